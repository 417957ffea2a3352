"""Hosts behind hosts: three real sshds in a row, for paramiko, OpenSSH and Ansible alike."""

import subprocess
import urllib.request

import pytest
from loopback.sshd import running_sshd

from deployctl.errors import HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.events import discard
from deployctl.hosts.clients import try_openssh
from deployctl.hosts.secrets import Secrets
from deployctl.hosts.ssh import connect
from deployctl.hosts.tunnel import open_tunnel
from deployctl.provision.playbook import run_playbook
from deployctl.resources import Project


@pytest.fixture
def row(tmp_path):
    """Two jumps and a host behind them; the last one's key has a passphrase, every key is unknown yet."""
    with (
        running_sshd(tmp_path / "outer") as outer,
        running_sshd(tmp_path / "inner") as inner,
        running_sshd(tmp_path / "far") as far,
    ):
        known = tmp_path / "known hosts"
        change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", far.client_key]
        subprocess.run(change, check=True, capture_output=True)
        first = outer.target(name="outer", known_hosts=known)
        second = inner.target(name="inner", known_hosts=known, via=first)
        target = far.target(name="far", known_hosts=known, via=second, secrets=Secrets(passphrase="a secret"))
        yield outer, inner, far, target


def test_one_file_of_known_hosts_serves_every_client_through_two_jumps(row, web, tmp_path):
    outer, inner, far, target = row
    with pytest.raises(HostKeyUnknown) as caught:
        connect(target, "refuse")
    assert outer.fingerprint() in caught.value.message, "the first host on the way is asked about first"
    with connect(target, "accept-new") as session:
        assert session.run("echo $SSH_CONNECTION").stdout.split()[3] == str(target.port)
        assert session.fingerprint == far.fingerprint()
    names = [line.split()[0] for line in target.known_hosts.read_text().splitlines()]
    assert names == [hop.known_hosts_name for hop in target.chain]
    assert [log.count("Accepted publickey") for log in (outer.log, inner.log, far.log)] == [1, 1, 1]

    try_openssh(target)
    with open_tunnel(target, web) as tunnel, urllib.request.urlopen(tunnel.url, timeout=10) as answer:
        assert answer.read() == b"far side"
    folder = tmp_path / "project" / "playbooks"
    folder.mkdir(parents=True)
    (folder / "own.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Say\n      ansible.builtin.raw: echo hello\n"
    )
    log = tmp_path / "log"
    run_playbook("own.yml", target, {}, project=Project(tmp_path / "project"), log=log, emit=discard, step="x")
    assert far.log.count("Accepted publickey") == 4
    assert "a secret" not in log.read_text()


def test_a_key_that_changed_on_the_way_stops_everything_and_the_remedy_names_that_host(row):
    _, inner, far, target = row
    with connect(target, "accept-new"):
        pass
    before = far.log.count("Connection from")
    inner.stop()
    inner.new_key("host_key")
    inner.start()
    remedy = f"-R '{target.via.known_hosts_name}'"
    with pytest.raises(HostKeyChanged) as caught:
        connect(target, "accept-new")
    assert remedy in caught.value.hint
    with pytest.raises(HostKeyChanged) as caught:
        open_tunnel(target, 9)
    assert remedy in caught.value.hint
    assert far.log.count("Connection from") == before
    command = caught.value.hint.partition("old key: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    with connect(target, "accept-new"):
        pass


def test_a_jump_that_forbids_forwarding_or_finds_nobody_is_named(row):
    _, inner, far, target = row
    with connect(target, "accept-new"):
        pass
    far.stop()
    with pytest.raises(HostUnreachable, match=f"from the jump host .*:{inner.port}"):
        connect(target, "refuse")
    inner.stop()
    inner.config = "AllowTcpForwarding no"
    inner.start()
    with pytest.raises(HostUnreachable, match="forbids forwarding") as caught:
        connect(target, "refuse")
    assert "AllowTcpForwarding" in caught.value.hint
