"""Debian packages for lab hosts: made anew of what is installed in a root, and served over HTTP for apt."""

from __future__ import annotations

import hashlib
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

# What has to go before a root has no Python and no zstd; the version differs by suite.
WITHOUT = ("python3", "libpython3", "zstd")


def installed(root: Path, prefixes: tuple[str, ...] = WITHOUT) -> list[str]:
    """Return the packages of ``root`` whose names begin with one of ``prefixes``."""
    command = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show"]
    command.append("--showformat=${Package} ${db:Status-Status}\n")
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in shown.splitlines() if line.endswith(" installed")]
    return [name for name in names if name.startswith(prefixes)]


def repack(root: Path, names: list[str], folder: Path) -> None:
    """Make a package of each installed one: its files, its maintainer scripts, what it depends on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        tree = folder / f"{name}.tree"
        (tree / "DEBIAN").mkdir(parents=True)
        lists = (root / "var/lib/dpkg/info").glob(f"{name}*.list")
        info = next(path for path in lists if path.stem.split(":")[0] == name)
        for line in info.read_text().splitlines():
            source, there = root / line.lstrip("/"), tree / line.lstrip("/")
            if source.is_dir() and not source.is_symlink():
                there.mkdir(exist_ok=True)
            elif source.is_symlink() or source.is_file():
                shutil.copy2(source, there, follow_symlinks=False)
        for script in ("preinst", "postinst", "prerm", "postrm", "conffiles"):
            if (kept := info.with_suffix(f".{script}")).is_file():
                shutil.copy2(kept, tree / "DEBIAN" / script)
        shown = subprocess.run(
            ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--status", name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        build(tree, _control(shown), folder / f"{name}.deb")
        shutil.rmtree(tree)


def build(tree: Path, control: str, target: Path) -> Path:
    """Make a package of the files in ``tree``."""
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN" / "control").write_text(control)
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def _control(status: str) -> str:
    """The fields of an installed package without those that only an installed one has."""
    kept, keep = [], True
    for line in status.splitlines():
        if not line.startswith(" "):
            keep = not line.startswith(("Status:", "Conffiles:"))
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def index(folder: Path) -> None:
    """Write the file Packages, which apt asks for."""
    parts = []
    for path in sorted(folder.glob("*.deb")):
        control = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True, check=True).stdout
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        parts.append(f"{control}Filename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n")
    (folder / "Packages").write_text("\n".join(parts))


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Say nothing: the test's output is for the test."""


@contextmanager
def served(folder: Path, address: str) -> Iterator[str]:
    """Serve a folder over HTTP; yields its URL."""
    server = http.server.ThreadingHTTPServer((address, 0), partial(_Silent, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
