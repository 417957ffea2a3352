"""From a name on the command line to a target: inventory, options, jumps, secrets."""

from pathlib import Path

import pytest

from deployctl.catalog.load import load_catalog
from deployctl.errors import CatalogError, UsageError
from deployctl.jobs.reach import find_target
from deployctl.jobs.wanted import Place, Wanted
from deployctl.resources import Project

PRINT = "SHA256:" + "A" * 43
HOSTS = f"""
gate:
  address: gate.example.com
  user: jumper
  key_file: /keys/gate
bastion:
  address: 10.0.0.1
  jump: gate
far:
  address: 2001:db8::7
  user: deploy
  port: 2222
  jump: bastion
  host_key: {PRINT}
  sudo_password: env:SUDO_PW
  plan: cpu-32gb
loop:
  address: 10.0.0.2
  jump: loop
"""


@pytest.fixture
def find(tmp_path):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text(HOSTS)
    place = Place(tmp_path / "data", tmp_path / "cache")

    def run(host, **wanted):
        return find_target(Wanted("", host=host, **wanted), load_catalog(Project(tmp_path)), place)

    return run


def test_a_listed_host_brings_its_chain_its_fingerprint_and_its_secret(find, monkeypatch):
    monkeypatch.setenv("SUDO_PW", "planted")
    far = find("far")
    assert [str(hop) for hop in far.chain] == ["jumper@gate.example.com", "root@10.0.0.1", "deploy@[2001:db8::7]:2222"]
    assert far.known_hosts_name == "gate.example.com/10.0.0.1/[2001:db8::7]:2222"
    assert (far.fingerprint, far.secrets.sudo, far.via.via.key_file) == (PRINT, "planted", Path("/keys/gate"))


def test_jumps_are_typed_as_ssh_takes_them_or_named(find, tmp_path):
    target = find("root@10.9.9.9", jump="me@[2001:db8::1]:2022,gate", key_file=tmp_path / "id", host_key=PRINT)
    assert [str(hop) for hop in target.chain] == ["me@[2001:db8::1]:2022", "jumper@gate.example.com", "root@10.9.9.9"]
    assert target.via.via.key_file == tmp_path / "id", "a key that was named opens a jump that was typed, too"
    assert target.fingerprint == PRINT


@pytest.mark.parametrize(
    "wanted",
    [
        {"host": "loop"},
        {"host": "root@h", "jump": "-oProxyCommand=x"},
        {"host": "root@h", "jump": "a,,b"},
        {"host": "root@h", "host_key": "MD5:aa"},
        {"host": "root@h", "sudo_password": "hunter2"},
    ],
)
def test_what_cannot_be_meant_is_refused(find, wanted):
    with pytest.raises(UsageError) as caught:
        find(**wanted)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('address: \'{{ lookup("pipe", "id") }}\'', "address"),
        ("address: -oProxyCommand=id", "address"),
        ("address: h\n  user: 'a b'", "user"),
        ("address: h\n  key_file: '/x{{ 1 }}'", "key_file"),
        ("address: h\n  python: python3 -c x", "python"),
        ("address: h\n  host_key: aa:bb", "host_key"),
        ("address: h\n  sudo_password: hunter2", "sudo_password"),
    ],
)
def test_a_field_of_the_inventory_that_a_program_would_run_is_refused_with_its_line(tmp_path, line, word):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text(f"bad:\n  {line}\n")
    with pytest.raises(CatalogError, match=rf"hosts.yml:\d+: host bad, {word}") as caught:
        load_catalog(Project(tmp_path))
    if word == "sudo_password":
        assert "hunter2" not in caught.value.message
