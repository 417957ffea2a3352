"""Whether the user who logs in can become root: asked before anything else is begun, without changing anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deployctl.errors import RootMissing
from deployctl.hosts.facts import HostFacts
from deployctl.hosts.secrets import AskSecret

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

WAYS = (
    "give its password: --sudo-password ask (or env:NAME, fd:N); or allow NOPASSWD in /etc/sudoers.d; or log in as root"
)


def ensure_root(session: Session, facts: HostFacts, ask: AskSecret | None = None) -> None:
    """Return when root is within reach, asking for the password of sudo where one is needed and none was given.

    The session's target knows the password from then on. Raises RootMissing.
    """
    target = session.target
    if not target.become or facts.root_or_sudo in ("root", "sudo"):
        return
    if not facts.root_or_sudo:
        raise RootMissing(
            f"{target} is not root, and there is no sudo on the host", hint="log in as root: --host root@ADDRESS"
        )
    if target.secrets.sudo is None:
        if ask is None:
            raise RootMissing(f"sudo on {target} asks for a password", hint=WAYS)
        session.target = replace(target, secrets=replace(target.secrets, sudo=ask(f"Password of sudo on {target}")))
    # -k: what sudo still remembers of an earlier log-in is no proof of this password
    tried = session.run("sudo -k -S -p '' true", stdin=f"{session.target.secrets.sudo}\n")
    if tried.rc != 0:
        said = next((line for line in reversed(tried.stderr.splitlines()) if line.strip()), "").strip()
        raise RootMissing(f"sudo on {target} refuses: {said or 'no reason given'}", hint=WAYS)
