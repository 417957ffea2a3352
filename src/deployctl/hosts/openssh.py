"""Build OpenSSH's arguments: one pure function that the tunnel and Ansible share."""

from __future__ import annotations

import re

from deployctl.errors import AuthenticationFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.hosts.target import Target

CONNECT_TIMEOUT_S = 15


def ssh_args(target: Target) -> list[str]:
    """Return the options that pin who we are and who the host is, without port, user or address.

    Nothing is read from the user's or the system's configuration: what paramiko was told is all that ssh is told.
    A dead peer is noticed after 15 s (ServerAliveInterval x ServerAliveCountMax).
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{target.known_hosts}"',  # ssh_config(5): double quotes keep spaces together
        "GlobalKnownHostsFile": "/dev/null",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "IdentitiesOnly": "yes",  # hardened servers allow two keys only before they hang up
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "no",
        "LogLevel": "ERROR",
    }
    args = ["-F", "none"]
    for name, value in options.items():
        args += ["-o", f"{name}={value}"]
    if target.key_file is not None:
        args += ["-i", str(target.key_file)]
    return args


def ssh_command(target: Target, *extra: str) -> list[str]:
    """Return the whole argv of an ssh client for the target; ``extra`` options stand before the address."""
    return ["ssh", *ssh_args(target), "-p", str(target.port), "-l", target.user, *extra, "--", target.address]


def explain(target: Target, problem: str, what: str) -> HostError:
    """Turn what an ssh client wrote into the error of its kind; ``what`` says what did not come about.

    ssh says all this on standard error in English, whatever the locale.
    """
    lower = problem.lower()
    line = " ".join(re.sub(r"@{3,}|@ +warning|! +@", " ", problem, flags=re.IGNORECASE).split())
    hint = f"deployctl host check {target}"
    if "identification has changed" in lower:
        shown = re.search(r"SHA256:[A-Za-z0-9+/]+", problem)
        return HostKeyChanged(
            f"{target} presents another host key than {target.known_hosts} knows"
            + (f" ({shown[0]})" if shown else "")
            + "; somebody may be in between, so nothing was sent",
            hint=(
                "if the host was reinstalled, compare the fingerprint on its console, then forget the old key: "
                f"ssh-keygen -f '{target.known_hosts}' -R '{target.known_hosts_name}'"
            ),
        )
    if "host key verification failed" in lower:
        return HostKeyUnknown(f"{what}: the host key of {target} is not known", hint=hint)
    if "permission denied (" in lower:
        return AuthenticationFailed(f"{what}: {line}", hint=hint)
    if "administratively prohibited" in lower:
        return HostUnreachable(f"{what}: {line}", hint="set `AllowTcpForwarding local` in the host's sshd_config")
    return HostUnreachable(f"{what}: {line}", hint=hint)
