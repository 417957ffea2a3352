"""Tunnels through a real sshd: they carry, they name what refuses them, they end with whoever opened them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from deployctl.errors import AuthenticationFailed, HostKeyChanged, HostUnreachable
from deployctl.hosts.tunnel import open_tunnel


def test_a_tunnel_carries_http_and_is_gone_after_the_block(sshd, web):
    with open_tunnel(sshd.target(), web) as tunnel:
        assert tunnel.alive()
        with urllib.request.urlopen(tunnel.url, timeout=10) as answer:
            assert answer.read() == b"far side"
    assert not tunnel.alive()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(tunnel.url, timeout=2)


def test_a_tunnel_to_a_host_that_dies_is_no_longer_alive(sshd, web):
    with open_tunnel(sshd.target(), web) as tunnel:
        sshd.stop()
        wait_until(lambda: not tunnel.alive())


def test_a_host_that_forbids_forwarding_is_named_with_the_remedy(sshd, web):
    sshd.stop()
    sshd.config = "DisableForwarding yes"
    sshd.start()
    with open_tunnel(sshd.target(), web) as tunnel, pytest.raises(OSError, match=r"reset|closed|refused"):
        urllib.request.urlopen(tunnel.url, timeout=5)


def test_a_closed_port_a_wrong_key_and_a_changed_host_are_told_apart(sshd, web):
    other = sshd.new_key("other")
    with pytest.raises(AuthenticationFailed, match="Permission denied"):
        open_tunnel(sshd.target(key_file=other), web)
    sshd.stop()
    with pytest.raises(HostUnreachable, match="refused"):
        open_tunnel(sshd.target(), web)
    sshd.new_key("host_key")
    sshd.start()
    with pytest.raises(HostKeyChanged):
        open_tunnel(sshd.target(), web)


def test_a_killed_owner_takes_its_tunnel_with_it(sshd, web):
    target = sshd.target()
    program = textwrap.dedent(f"""
        import pathlib, time
        from deployctl.hosts.target import Target
        from deployctl.hosts.tunnel import open_tunnel
        target = Target(name="h", address="127.0.0.1", port={target.port}, user={target.user!r},
            known_hosts=pathlib.Path({str(target.known_hosts)!r}), key_file=pathlib.Path({str(target.key_file)!r}))
        tunnel = open_tunnel(target, {web})
        print(tunnel.pid, flush=True)
        time.sleep(60)
    """)
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    os.kill(pid, 0)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not running(pid))


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)
