"""Where a release of Ollama comes from: the address and the checksum, found on a real HTTP server."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deployctl.catalog.hosts import check_mirror, check_models_dir
from deployctl.errors import ProvisionError, UsageError
from deployctl.hosts.facts import HostFacts, read
from deployctl.jobs.source import choose_source, released
from deployctl.jobs.wanted import Place, Wanted

ARCHIVE = b"not really an archive"
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
OTHER = "0" * 64


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def facts() -> HostFacts:
    return read("facts=1\narch=x86_64\nhostname=box\ncpus=1\nram_kb=1\nend=1\n")


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A mirror's address and folder; 0.40.0 is in it in the layout of the official releases."""
    release = tmp_path / "v0.40.0"
    release.mkdir()
    (release / "ollama-linux-amd64.tar.zst").write_bytes(ARCHIVE)
    (release / "sha256sum.txt").write_text(f"{OTHER}  ./ollama-darwin.tgz\n{SHA256}  ./ollama-linux-amd64.tar.zst\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


def test_a_mirror_gives_the_archive_of_the_hosts_architecture_with_its_checksum(
    mirror: tuple[str, Path], facts: HostFacts
) -> None:
    address, _ = mirror
    found = released(address, "v0.40.0", facts)
    assert (found.engine, found.version, found.sha256) == ("ollama", "0.40.0", SHA256)
    assert found.url == f"{address}/v0.40.0/ollama-linux-amd64.tar.zst"
    with pytest.raises(ProvisionError, match="no checksum for ollama-linux-arm64"):
        released(address, "0.40.0", replace(facts, arch="aarch64"))
    with pytest.raises(ProvisionError, match=r"v9\.9\.9 has no sha256sum\.txt \(HTTP 404\)"):
        released(address, "9.9.9", facts)


def test_an_older_release_is_a_tgz(mirror: tuple[str, Path], facts: HostFacts) -> None:
    address, folder = mirror
    (folder / "v0.13.0").mkdir()
    (folder / "v0.13.0/sha256sum.txt").write_text(f"{SHA256} *ollama-linux-amd64.tgz\n")
    assert released(address, "0.13.0", facts).url == f"{address}/v0.13.0/ollama-linux-amd64.tgz"


def test_one_archive_may_be_named_instead(mirror: tuple[str, Path], facts: HostFacts) -> None:
    address, _ = mirror
    name = f"{address}/v0.40.0/ollama-linux-amd64.tar.zst"
    assert released(name, None, facts).sha256 == SHA256
    assert released(name, None, facts).version == "0.40.0"
    with pytest.raises(ProvisionError, match="is for amd64, and box is arm64"):
        released(name, None, replace(facts, arch="aarch64"))


def test_a_checksum_that_is_insisted_on_must_be_the_listed_one(mirror: tuple[str, Path], facts: HostFacts) -> None:
    address, _ = mirror
    assert released(address, "0.40.0", facts, sha256=SHA256).sha256 == SHA256
    with pytest.raises(ProvisionError, match=f"lists {SHA256}"):
        released(address, "0.40.0", facts, sha256=OTHER)


def test_with_a_checksum_only_the_host_needs_to_reach_the_mirror(facts: HostFacts) -> None:
    nobody = "http://127.0.0.1:9/ollama"
    found = released(nobody, "0.40.0", facts, sha256=SHA256)
    assert (found.url, found.sha256) == (f"{nobody}/v0.40.0/ollama-linux-amd64.tar.zst", SHA256)
    with pytest.raises(ProvisionError, match="out of reach from here") as caught:
        released(nobody, "0.40.0", facts)
    assert "--ollama-sha256" in caught.value.hint


def test_an_archive_of_ones_own_is_held_to_the_checksum_too(facts: HostFacts, tmp_path: Path) -> None:
    (tmp_path / "ollama-v0.40.0-linux-amd64.tgz").write_bytes(ARCHIVE)
    wanted = Wanted("m:1", archive=tmp_path / "ollama-v0.40.0-linux-amd64.tgz", ollama_sha256=SHA256)
    place = Place(tmp_path, tmp_path)
    assert choose_source(wanted, facts, place, print).version == "0.40.0"
    with pytest.raises(UsageError, match=f"has the sha256 {SHA256}"):
        choose_source(replace(wanted, ollama_sha256=OTHER), facts, place, print)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://m/",
        "http://user:secret@m/",
        "https://m/?token=secret",
        "m.example.com",
        "http://m:x/",
        "http://",
        "file:///x",
    ],
)
def test_what_is_no_mirrors_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not the address|Port"):
        check_mirror(text)


def test_addresses_of_mirrors_lose_the_slash_at_their_end() -> None:
    assert check_mirror("http://[2001:db8::1]:8080/ollama/") == "http://[2001:db8::1]:8080/ollama"


@pytest.mark.parametrize(
    "text",
    ["models", "/", "/srv", "/etc/ollama", "/tmp/x", "/srv/../etc", "/srv/my models", "/srv/%h", "/a:b", "/srv/{{x}}"],
)
def test_a_folder_that_models_cannot_or_must_not_be_in_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an absolute path|the system's own"):
        check_models_dir(text)


def test_a_folder_for_models_is_used_without_a_slash_at_its_end() -> None:
    assert check_models_dir("/srv/models/") == "/srv/models"
