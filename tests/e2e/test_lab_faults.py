"""What a bare server can be short of: packages, a free package manager, room on its disks, a whole archive."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from nspawn import packages
from nspawn.host import LabHost, running_host

from deployctl.sandbox import archive, model

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(600)]

WHOLE = bool(os.environ.get("DEPLOYCTL_TEST_MATRIX"))
HELD_S = 90 if WHOLE else 12
GATE = "/var/tmp/hold-the-installation"


def told(answer: Any, code: int) -> tuple[str, str]:
    """Check that a run failed with one line and a next command, and return both."""
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.err
    (error,) = (line for line in answer.err.splitlines() if line.startswith("error: "))
    (hint,) = (line for line in answer.err.splitlines() if line.startswith("  try: "))
    assert len(error) < 500
    return error, hint


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """The embedded engine packed as Ollama's newer releases are: .tar.zst."""
    path = tmp_path_factory.mktemp("release") / "ollama-0.33.0-linux-amd64.tar.zst"
    plain = subprocess.run(["gzip", "-dc", archive.build_archive(cache_dir)], capture_output=True, check=True).stdout
    path.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=plain, capture_output=True, check=True).stdout)
    return path


@pytest.fixture
def from_release(release: Path, cache_dir: Path) -> tuple[str, ...]:
    return ("--ollama-archive", str(release), "--gguf", str(model.gguf_path(cache_dir)))


@pytest.fixture
def bare(lab_base: Path, lab_key: Path, tmp_path: Path) -> Iterator[LabHost]:
    """A host without Python and zstd, and a repository on the test network that has both."""
    repository = tmp_path / "repository"
    names = packages.installed(lab_base)
    packages.repack(lab_base, names, repository)
    slow = tmp_path / "slow"
    (slow / "DEBIAN").mkdir(parents=True)
    (slow / "DEBIAN" / "postinst").write_text(f"#!/bin/sh\nsleep {HELD_S}\n")
    (slow / "DEBIAN" / "postinst").chmod(0o755)
    control = "Package: {}\nVersion: 9\nArchitecture: all\nMaintainer: lab <lab@example.org>\nDescription: lab\n"
    with ExitStack() as stack:
        host = stack.enter_context(running_host("bare", lab_key))
        packages.build(slow, control.format("slow"), host.root_dir / "var/lib/slow.deb")
        url = stack.enter_context(packages.served(repository, host.gateway))
        # The installation of zstd stands still for as long as the test wants it to.
        zstd = tmp_path / "zstd"
        subprocess.run(["dpkg-deb", "--raw-extract", repository / "zstd.deb", zstd], check=True)
        (zstd / "DEBIAN" / "postinst").write_text(f"#!/bin/sh\nwhile [ -e {GATE} ]; do sleep 0.1; done\n")
        (zstd / "DEBIAN" / "postinst").chmod(0o755)
        packages.build(zstd, (zstd / "DEBIAN" / "control").read_text(), repository / "zstd.deb")
        packages.index(repository)
        host.run(f"dpkg --purge --force-depends {' '.join(names)} && ! command -v python3 && ! command -v zstd")
        host.run(f"rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] {url} ./' >/etc/apt/sources.list")
        yield host


def test_no_python_no_zstd_a_held_package_lock_and_a_reboot_in_mid_installation(
    bare: LabHost, site_of: Callable[..., Any], from_release: tuple[str, ...]
) -> None:
    site = site_of(bare, *from_release)
    bare.run(f"touch {GATE}; systemd-run --unit holder dpkg -i /var/lib/slow.deb")
    code, said = site.cut("Wait for cloud-init: var/lib/dpkg/info/zstd.postinst", lambda _: half_installed(bare))
    assert code == 3, said
    assert re.search(r"package locks, install what is missing \(\d+ s\)", said), "it was shown to be waiting"
    assert bare.run("ls /var/lib/dpkg/updates").stdout, "dpkg left a journal of what it did not finish"
    bare.run(f"rm {GATE}")
    done = site.run()
    assert done.code == 0, done.err
    assert bare.run("dpkg --audit").stdout == ""
    assert site.answers() == "4"


def half_installed(host: LabHost) -> None:
    """Reboot while dpkg configures zstd."""
    script = "for i in $(seq 300); do pgrep -f zstd.postinst && exit 0; sleep 0.1; done; exit 1"
    host.run(script)
    host.reboot()


@pytest.mark.matrix
def test_a_package_that_no_repository_has_is_named_and_nothing_is_begun(
    lab_base: Path, lab_key: Path, site_of: Callable[..., Any], from_release: tuple[str, ...]
) -> None:
    with running_host("alone", lab_key, without=("zstd",)) as host:
        # As on a host whose mirror has gone: dpkg knows the package no more, and no list offers it.
        host.run("dpkg --purge --force-depends zstd; echo >/etc/apt/sources.list; rm -f /etc/apt/sources.list.d/*")
        before = files(host)
        error, hint = told(site_of(host, *from_release).run(), 4)
        assert "zstd" in error
        assert "run the same command again" in hint
        assert files(host) == before


def files(host: LabHost) -> set[str]:
    """The files of a host that are neither logs nor apt's own."""
    found = host.run("find / -xdev -type f -not -path '/var/log/*' -not -path '/var/lib/apt/*'").stdout
    return {path for path in found.splitlines() if not re.match("/(var/cache|var/lib/systemd|tmp|var/tmp)/", path)}


def test_a_disk_that_is_too_small_is_named_before_anything_is_sent_and_room_is_all_it_takes(
    lab_base: Path, lab_key: Path, site_of: Callable[..., Any]
) -> None:
    disks = {"/usr/local": 64, "/usr/share/ollama": 300}
    with running_host("small", lab_key, suite="trixie", user="root", mounts=disks) as host:
        site = site_of(host, "--engine", "embedded")
        host.run("fallocate -l 50M /usr/local/filler; fallocate -l 100M /usr/share/ollama/filler")
        before = files(host)
        error, hint = told(site.run(), 4)
        assert re.search(r"the archive does not fit on /usr/local: about .* are needed .* are free", error)
        assert "df -h /usr/local" in hint
        host.run("rm /usr/local/filler")
        error, hint = told(site.run(), 5)
        assert re.search(r"gemma3:270m does not fit on /usr/share/ollama: about .* are needed .* are free", error)
        assert "df -h /usr/share/ollama" in hint
        assert files(host) == before, "nothing was sent"
        assert host.run("ls -A ~root/.cache", check=False).stdout == ""
        host.run("rm /usr/share/ollama/filler")
        done = site.run()
        assert done.code == 0, done.err
        assert site.answers() == "4"


@pytest.mark.matrix
def test_a_truncated_archive_leaves_what_serves_serving(
    lab_host: Callable[..., LabHost], site_of: Callable[..., Any], release: Path, from_release: tuple[str, ...]
) -> None:
    host = lab_host("busy", user="root", suite="trixie")  # where test_lab_matrix.py has left a serving model
    site = site_of(host, *from_release)
    done = site.run()
    assert done.code == 0, done.err
    cut = site.shell.cwd / "ollama-0.34.0-linux-amd64.tar.zst"
    cut.write_bytes(release.read_bytes()[:-1000])
    site.words[site.words.index(str(release))] = str(cut)
    error, hint = told(site.run(), 4)
    assert "cannot unpack" in error
    assert "run the same command again" in hint
    assert site.answers() == "4"
