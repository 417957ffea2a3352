"""The file of host keys agrees with OpenSSH's own tools, and concurrent writers lose nothing."""

import base64
import multiprocessing
import subprocess
from pathlib import Path

import pytest

from deployctl.errors import HostKeyChanged
from deployctl.hosts.keys import HostKey, KnownHosts
from deployctl.hosts.target import Target


@pytest.fixture
def public(tmp_path):
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub")


def key_of(public):
    kind, blob = public.read_text().split()[:2]
    return HostKey(kind, base64.b64decode(blob))


def target(path, address="192.0.2.7", port=22):
    return Target(name="h", address=address, port=port, known_hosts=path)


def test_fingerprints_equal_those_of_ssh_keygen(public):
    listing = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True).stdout
    assert key_of(public).fingerprint == listing.split()[1]


@pytest.mark.parametrize(
    ("address", "port"), [("192.0.2.7", 22), ("192.0.2.7", 2222), ("2001:db8::1", 22), ("::1", 99)]
)
def test_ssh_keygen_finds_what_was_added(tmp_path, public, address, port):
    file = tmp_path / "known_hosts"
    host = target(file, address, port)
    assert KnownHosts(file).add(host, key_of(public)) is True
    subprocess.run(["ssh-keygen", "-f", file, "-F", host.known_hosts_name], check=True, capture_output=True)
    assert [key.fingerprint for key in KnownHosts(file).lookup(host)] == [key_of(public).fingerprint]


def test_names_that_ssh_keygen_has_hashed_are_found(tmp_path, public):
    file = tmp_path / "known_hosts"
    KnownHosts(file).add(target(file), key_of(public))
    KnownHosts(file).add(target(file, "192.0.2.8"), key_of(public))
    subprocess.run(["ssh-keygen", "-H", "-f", file], check=True, capture_output=True)
    assert "192.0.2" not in file.read_text()
    assert [key.line for key in KnownHosts(file).lookup(target(file, "192.0.2.8"))] == [2]
    assert KnownHosts(file).lookup(target(file, "192.0.2.9")) == ()


def test_a_known_key_is_not_added_again_and_a_second_key_never(tmp_path, public):
    file = tmp_path / "known_hosts"
    store = KnownHosts(file)
    store.add(target(file), key_of(public))
    before = file.read_bytes()
    assert store.add(target(file), key_of(public)) is False
    with pytest.raises(HostKeyChanged):
        store.add(target(file), HostKey("ssh-ed25519", b"another"))
    assert file.read_bytes() == before


def test_a_revoked_key_is_marked_and_broken_lines_are_passed_over(tmp_path, public):
    file = tmp_path / "known_hosts"
    kind, blob = public.read_text().split()[:2]
    file.write_text(f"\n# note\nnonsense\n192.0.2.7 {kind} not-base64!\n@revoked 192.0.2.7,other {kind} {blob}\n")
    (key,) = KnownHosts(file).lookup(target(file))
    assert key.revoked
    assert key.line == 5


def add_many(path, start):
    for number in range(start, start + 25):
        KnownHosts(path).add(target(path, f"host-{number}"), HostKey("ssh-ed25519", b"key %d" % number))


def test_four_writers_at_once_lose_no_line(tmp_path):
    file = tmp_path / "known_hosts"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_in_child, args=(str(file), start)) for start in (0, 25, 50, 75)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = file.read_text().splitlines()
    assert len(lines) == 100
    assert {line.split()[0] for line in lines} == {f"host-{number}" for number in range(100)}


def _add_in_child(path, start):
    add_many(Path(path), start)
