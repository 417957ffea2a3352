"""Build OpenSSH's arguments: one pure function that the tunnel and Ansible share."""

from __future__ import annotations

import re
import shlex

from deployctl.errors import AuthenticationFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.hosts.target import Target

CONNECT_TIMEOUT_S = 15


def auth_args(target: Target) -> list[str]:
    """Return the options that say how to authenticate. Ansible's own would forbid passwords: these must come first."""
    secrets = target.secrets
    ways = "publickey"
    if secrets.password is not None:
        keys = "publickey," if target.key_file is not None else ""
        ways = f"{keys}password,keyboard-interactive"
    options = {
        "BatchMode": "no" if secrets.for_ssh else "yes",
        "PreferredAuthentications": ways,
        "PasswordAuthentication": "no" if secrets.password is None else "yes",
        "KbdInteractiveAuthentication": "no" if secrets.password is None else "yes",
        "NumberOfPasswordPrompts": "1",
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def ssh_args(target: Target) -> list[str]:
    """Return the options that pin who we are and who the host is, without port, user or address.

    Nothing is read from the user's or the system's configuration: what paramiko was told is all that ssh is told.
    A dead peer is noticed after 15 s (ServerAliveInterval x ServerAliveCountMax). Behind a jump, a nested ssh with the
    same options carries the connection: -J would not pass them on.
    """
    options = {
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{target.known_hosts}"',  # ssh_config(5): double quotes keep spaces together
        "GlobalKnownHostsFile": "/dev/null",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "IdentitiesOnly": "yes",  # hardened servers allow two keys only before they hang up
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "no",
        "LogLevel": "ERROR",
    }
    if target.via is not None:
        options["HostKeyAlias"] = target.known_hosts_name
        options["ProxyCommand"] = _proxy_command(target, target.via)
    args = ["-F", "none", *auth_args(target)]
    for name, value in options.items():
        args += ["-o", f"{name}={value}"]
    if target.key_file is not None:
        args += ["-i", str(target.key_file)]
    return args


def ssh_command(target: Target, *extra: str) -> list[str]:
    """Return the whole argv of an ssh client for the target; ``extra`` options stand before the address."""
    return ["ssh", *ssh_args(target), "-p", str(target.port), "-l", target.user, *extra, "--", target.address]


def _proxy_command(target: Target, via: Target) -> str:
    """One line for the shell that ssh runs it with; ssh expands percent signs in it first."""
    address = f"[{target.address}]" if ":" in target.address else target.address
    return shlex.join(ssh_command(via, "-W", f"{address}:{target.port}")).replace("%", "%%")


def explain(target: Target, problem: str, what: str) -> HostError:
    """Turn what an ssh client wrote into the error of its kind; ``what`` says what did not come about.

    ssh says all this on standard error in English, whatever the locale.
    """
    lower = problem.lower()
    line = " ".join(re.sub(r"@{3,}|@ +warning|! +@", " ", problem, flags=re.IGNORECASE).split())
    hint = f"deployctl host check {target}"
    if "identification has changed" in lower:
        shown = re.search(r"SHA256:[A-Za-z0-9+/]+", problem)
        named = re.search(r"Host key for (\S+) has changed", problem)
        changed = next((hop for hop in target.chain if named and hop.known_hosts_name == named[1]), target)
        return HostKeyChanged(
            f"{changed} presents another host key than {changed.known_hosts} knows"
            + (f" ({shown[0]})" if shown else "")
            + "; somebody may be in between, so nothing was sent",
            hint=(
                "if the host was reinstalled, compare the fingerprint on its console, then forget the old key: "
                f"ssh-keygen -f '{changed.known_hosts}' -R '{changed.known_hosts_name}'"
            ),
        )
    if "host key verification failed" in lower:
        return HostKeyUnknown(f"{what}: the host key of {target} is not known", hint=hint)
    if "permission denied (" in lower:
        return AuthenticationFailed(f"{what}: {line}", hint=hint)
    if "administratively prohibited" in lower:
        return HostUnreachable(f"{what}: {line}", hint="set `AllowTcpForwarding local` in the host's sshd_config")
    return HostUnreachable(f"{what}: {line or 'no answer any more'}", hint=hint)
