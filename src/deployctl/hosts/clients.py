"""Whether OpenSSH gets in as paramiko did, and may forward: what the tunnel and Ansible will need, tried beforehand."""

from __future__ import annotations

import os
import subprocess

from deployctl.errors import HostUnreachable
from deployctl.hosts.askpass import answering
from deployctl.hosts.openssh import explain, ssh_command
from deployctl.hosts.target import Target


def try_openssh(target: Target, *, timeout: float = 30) -> None:
    """Log in with OpenSSH and ask for a forwarding to the host's loopback; nothing runs on the host.

    Whether anything listens there does not matter: a refused connection was forwarded, a prohibited one was not.
    Raises the HostError that tells what stands in the way.
    """
    what = f"OpenSSH does not get on with {target}"
    with answering(target) as asking:
        try:
            done = subprocess.run(
                ssh_command(target, "-W", f"127.0.0.1:{target.port}"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                env={**os.environ, "LC_ALL": "C", **asking},
                check=False,
            )
        except FileNotFoundError:
            raise HostUnreachable("there is no ssh on this machine", hint="install the OpenSSH client") from None
        except subprocess.TimeoutExpired:
            raise HostUnreachable(f"{what}: no answer within {timeout:.0f} s") from None
    problem = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0 and "open failed: connect failed" not in problem:
        raise explain(target, problem or f"ssh ended with {done.returncode}", what)
