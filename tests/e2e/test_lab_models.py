"""A release from a mirror on the network and models on a disk of their own: refused, provisioned, taken away."""

import hashlib
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from nspawn.host import LabHost, running_host

from deployctl.sandbox import archive, model

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(1200),  # a dozen commands, one after the other
    pytest.mark.matrix,
]

MODELS, SMALL = "/srv/models", "/srv/small"
# Everything on the host's own disk that somebody may have put there, but for logs and backups of account files.
FILES = (
    "find / -xdev -not -path '/var/log/*' -not -path '/var/lib/systemd/*' -not -path '/var/tmp*' -not -path ~root/'*'"
    " -not -path '/etc/*-' -not -path '/proc/*' -not -path '/sys/*' -not -path '/run/*' -not -path '/tmp/*' | sort"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: ClassVar[set[str]] = set()  # who asked for what

    def log_message(self, *_: object) -> None:
        self.asked.add(f"{self.client_address[0]} {self.path}")


@pytest.fixture(scope="module")
def machine(lab_base: Path, lab_key: Path) -> Iterator[LabHost]:
    with running_host("disks", lab_key, user="root", suite="trixie", mounts={MODELS: 600, SMALL: 64}) as host:
        yield host


@pytest.fixture(scope="module")
def mirror(machine: LabHost, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Releases in the layout of the official ones, served on the network that the host is on."""
    folder = tmp_path_factory.mktemp("mirror")
    good = archive.build_archive(cache_dir)
    name = "ollama-linux-amd64" + ("".join(good.suffixes[-2:]) if good.name.endswith(".tar.zst") else ".tgz")
    for version in ("v0.40.0", "v0.40.1"):
        (folder / version).mkdir()
        shutil.copy(good, folder / version / name)
        with good.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        (folder / version / "sha256sum.txt").write_text(f"{digest}  ./{name}\n")
    with (folder / "v0.40.1" / name).open("r+b") as stream:  # somebody has been at it
        stream.seek(1000)
        stream.write(b"tampered")
    with http.server.ThreadingHTTPServer((machine.gateway, 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{machine.gateway}:{server.server_port}", folder
        server.shutdown()


def test_a_mirror_and_a_disk_for_models_of_their_own(
    shell: Any, machine: LabHost, mirror: tuple[str, Path], cache_dir: Path
) -> None:
    address, _ = mirror
    before = machine.run(FILES).stdout.splitlines()
    (shell.cwd / "inventory").mkdir()
    (shell.cwd / "inventory" / "hosts.yml").write_text(
        f"box:\n  address: {machine.address}\n  key_file: {machine.key_file}\n"
        f"  models_dir: {MODELS}\n  ollama_mirror: {address}\n"
    )
    weights = model.gguf_path(cache_dir)
    words = ("--plan", "sandbox", "--model", "gemma3:270m", "--gguf", str(weights), "--offline", "--host", "box")
    words += ("--no-probe", "--slots", "2", "--context", "1024")  # the same settings however busy this machine is

    def provision(*more: str, version: str = "0.40.0") -> Any:
        return shell.run("provision", *words, "--accept-new", "--ollama-version", version, *more, "--json")

    # A disk that is too small is found before a quarter of a gigabyte is sent.
    small = provision("--models-dir", SMALL)
    assert small.code == 5, small.err
    assert f"does not fit on {SMALL}" in small.document["error"]["message"]
    assert machine.run("du -s ~root/.cache 2>/dev/null | cut -f1", check=False).stdout.strip() in ("", "0", "4", "8")

    # A way that the server's user may not go.
    machine.run("chmod 700 /srv")
    shut = provision()
    assert shut.code == 4, shut.err
    assert "may not pass /srv (drwx------ root): chmod o+x /srv" in shut.document["error"]["message"]
    machine.run("chmod 755 /srv")

    # A disk that is in fstab and was not mounted.
    machine.run("echo '/dev/vdz /srv/away ext4 nofail 0 0' >>/etc/fstab; mkdir /srv/away")
    away = provision("--models-dir", "/srv/away/models")
    assert away.code == 4, away.err
    assert "/srv/away is in /etc/fstab and not mounted: mount /srv/away" in away.document["error"]["message"]
    machine.run("sed -i /vdz/d /etc/fstab; rmdir /srv/away")

    first = provision()
    assert first.code == 0, first.err
    assert "ollama 0.40.0, from http://" in first.err
    assert f"{machine.address} /v0.40.0/ollama-linux-amd64.tgz" in Quiet.asked, "the host itself fetched it"
    assert MODELS in machine.run("systemctl show ollama --property=RequiresMountsFor").stdout
    found = machine.run(f"ls {MODELS}; stat -c %U {MODELS}; ls /usr/share/ollama/.ollama/models", check=False).stdout
    assert found.split() == ["blobs", "lost+found", "manifests", "ollama"]
    served = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:11434/api/tags').read())\""
    assert "gemma3:270m" in machine.run(served).stdout

    # Nothing to do, in the short look and in the playbook itself.
    assert provision().document["changes"] == []
    machine.run("rm /var/lib/deployctl/stamp")
    played = provision().document
    assert played["changes"] == []
    assert played["ok"] > 5

    # What the mirror gives out is not what it lists: the host keeps what it has.
    tampered = provision(version="0.40.1")
    assert tampered.code == 4, tampered.err
    assert "checksum of" in tampered.document["error"]["message"]
    assert "gemma3:270m" in machine.run(served).stdout

    assert shell.run("down", "--host", "box").code == 0
    assert "sha256-" in machine.run(f"ls {MODELS}/blobs").stdout, "models stay"
    assert shell.run("down", "--purge", "--host", "box").code == 0
    for mount in (MODELS, SMALL):
        assert machine.run(f"ls {mount}; stat -c %U:%G {mount}").stdout.split() == ["lost+found", "root:root"]
    assert [path for path in machine.run(FILES).stdout.splitlines() if path not in before] == []
    again = json.loads(shell.run("down", "--purge", "--host", "box", "--json").out)
    assert again["changed"] == 0
