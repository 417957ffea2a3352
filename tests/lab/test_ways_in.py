"""Every way into a real host: behind a jump, by password, over IPv6, with and without sudo; and what its share is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost

from deployctl.errors import AuthenticationFailed, RootMissing
from deployctl.hosts.clients import try_openssh
from deployctl.hosts.facts import gather
from deployctl.hosts.privilege import ensure_root
from deployctl.hosts.secrets import Secrets
from deployctl.hosts.ssh import connect
from deployctl.hosts.target import Target
from deployctl.hosts.tunnel import open_tunnel

PASSWORD = "planted 'log-in' password"


@pytest.fixture(scope="module")
def gate(lab_host: HostFactory) -> LabHost:
    return lab_host("gate", user="jumper", sudo="none")


@pytest.fixture(scope="module")
def far(lab_host: HostFactory, gate: LabHost) -> LabHost:
    """Debian 13, linked to the gate alone, one and a half CPUs, half a GiB, a small disk; asks for passwords."""
    return lab_host(
        "far",
        suite="trixie",
        behind=gate,
        sudo="password",
        password=PASSWORD,
        password_login=True,
        cpus=1.5,
        memory_mib=512,
        disk_mib=300,
        mounts={"/srv/models": 64},
    )


@pytest.fixture(scope="module")
def target(far: LabHost, tmp_path_factory: pytest.TempPathFactory) -> Target:
    known = tmp_path_factory.mktemp("ways") / "known_hosts"
    return replace(far.target(known), key_file=None, secrets=Secrets(password=PASSWORD, sudo=PASSWORD))


def test_a_password_opens_a_host_behind_a_jump_to_every_client(target: Target, far: LabHost) -> None:
    with connect(target, "refuse") as session:
        assert session.run("cat /etc/hostname").stdout.strip() == "far"
    try_openssh(target)
    with open_tunnel(target, 22) as tunnel:
        assert tunnel.alive()
    log = far.run("journalctl -u ssh -o cat --no-pager").stdout
    assert len(re.findall("Accepted (?:password|keyboard-interactive)", log)) == 3
    assert "Accepted publickey" not in log
    assert PASSWORD not in log


def test_a_wrong_password_is_refused_and_a_person_is_asked_where_none_was_given(target: Target) -> None:
    wrong = replace(target, secrets=Secrets(password="wrong"))
    with pytest.raises(AuthenticationFailed, match="it refused the password"):
        connect(wrong, "refuse")
    none = replace(target, secrets=Secrets())
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return PASSWORD

    with connect(none, "refuse", ask_secret=ask) as session:
        assert session.target.secrets.password == PASSWORD
    assert questions == [f"Password of {target}"]


def test_sudo_is_tried_before_anything_is_begun(target: Target, gate: LabHost) -> None:
    with connect(target, "refuse") as session:
        facts = gather(session)
        assert facts.root_or_sudo == "sudo-password"
        ensure_root(session, facts)
        assert session.run_as_root("id -un; cat /etc/shadow | wc -l").stdout.split()[0] == "root"
        session.target = replace(target, secrets=replace(target.secrets, sudo=None))
        with pytest.raises(RootMissing, match="asks for a password") as caught:
            ensure_root(session, facts)
        assert "--sudo-password ask" in caught.value.hint
        session.target = replace(target, secrets=replace(target.secrets, sudo="wrong"))
        with pytest.raises(RootMissing, match=r"refuses: .*incorrect password|refuses: .*no password|refuses: .*try"):
            ensure_root(session, facts)
    with connect(replace(gate.target(target.known_hosts, trust=False), become=True), "refuse") as session:
        facts = gather(session)
        session.target = replace(session.target, secrets=Secrets(sudo="whatever"))
        with pytest.raises(RootMissing):
            ensure_root(session, facts)


def test_the_host_tells_its_share_and_not_the_machines(target: Target) -> None:
    with connect(target, "refuse") as session:
        facts = gather(session)
    assert (facts.os_id, facts.os_version) == ("debian", "13")
    assert facts.cpu_quota == 1.5
    assert facts.ram_bytes == 512 * 2**20
    root, models = facts.disk_for("/usr"), facts.disk_for("/srv/models/blobs")
    assert root is not None
    assert root.size_bytes < 300 * 2**20
    assert models is not None
    assert models.mount == "/srv/models"
    assert models.size_bytes < 64 * 2**20


def test_a_host_with_ipv6_alone_is_reached_by_every_client(lab_host: HostFactory, tmp_path: Path) -> None:
    host = lab_host("six", suite="trixie", ipv6_only=True)
    target = host.target(tmp_path / "known_hosts")
    assert ":" in target.address
    assert str(target) == f"deploy@[{target.address}]"
    with connect(target, "refuse") as session:
        assert "inet " not in session.run("ip -o -4 addr show dev host0").stdout
    try_openssh(target)
    with open_tunnel(target, 22) as tunnel:
        assert tunnel.alive()
