"""An installation that is killed before each of its renames: what is noted is never more than what is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Dies, as by kill -9, just before the rename of the given number (Python tells its audit hooks of each).
SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.deployctl.ollama.plugins.modules import install
from ansible_collections.deployctl.ollama.plugins.module_utils.history import GOOD, History
from ansible_collections.deployctl.ollama.plugins.module_utils.progress import Progress
what, prefix, archive, version, last = sys.argv[2:]
left = int(last)

def count(event, arguments):
    global left
    if event == "os.rename" and prefix in str(arguments[1]):
        left -= 1
        if left == 0:
            os._exit(9)

sys.addaudithook(count)
settings = [os.path.join(prefix, "settings")]
history = History(prefix, settings)
if what == "install":
    with open(archive, "rb") as file:
        digest = install.hashlib.sha256(file.read()).hexdigest()
    target = {"version": version, "sha256": digest}
    if install.noted(prefix) != target:
        wanted = {"prefix": prefix, "uploaded": archive, "archive": archive, "url": None, "sha256": digest}
        install.discard = lambda path: None
        install.install({**wanted, "settings": settings}, target, Progress(None))
elif what == "keep":
    history.keep()
else:
    history.restore(GOOD)
"""


@pytest.fixture
def run(root, tmp_path):
    (tmp_path / "prefix").mkdir()

    def call(what, archive="", version="", last=0):
        collections = root / "playbooks" / "collections"
        words = [collections, what, tmp_path / "prefix", archive, version, last]
        done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, words)], capture_output=True, text=True)
        assert done.returncode in (0, 9), done.stderr
        return done.returncode

    return call


@pytest.fixture
def release(tmp_path):
    """Archives whose program and library tell their version."""

    def make(version):
        folder = tmp_path / version
        for name, text in (("bin/ollama", f"#!/bin/sh\necho {version}\n"), ("lib/ollama/version", version)):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(text)
        archive = tmp_path / f"{version}.tgz"
        subprocess.run(["tar", "-czf", archive, "-C", folder, "bin", "lib"], check=True)
        return archive

    return make


def there(prefix: Path) -> tuple[str, str, str]:
    """The version that the program, its library and the note tell."""
    said = subprocess.run([prefix / "bin/ollama"], capture_output=True, text=True, check=True).stdout.strip()
    library = prefix / "lib/ollama"
    return said, (library / "version").read_text(), json.loads((library / ".deployctl.json").read_text())["version"]


def test_an_upgrade_that_is_killed_anywhere_is_made_whole_by_the_next_run(run, release, tmp_path):
    one, two = release("1.0"), release("2.0")
    run("install", one, "1.0")
    kills = 0
    for last in range(1, 20):
        killed = run("install", two, "2.0", last)
        kills += killed == 9
        run("install", two, "2.0")
        assert there(tmp_path / "prefix") == ("2.0", "2.0", "2.0"), f"after a kill before rename {last}"
        run("install", one, "1.0")
        if not killed:
            break
    assert kills >= 4


def test_a_way_back_that_is_killed_anywhere_is_gone_to_its_end_by_the_next_try(run, release, tmp_path):
    one, two = release("1.0"), release("2.0")
    run("install", one, "1.0")
    run("keep")
    kills = 0
    for last in range(1, 20):
        run("install", two, "2.0")
        killed = run("restore", last=last)
        kills += killed == 9
        run("restore")
        assert there(tmp_path / "prefix") == ("1.0", "1.0", "1.0"), f"after a kill before rename {last}"
        if not killed:
            break
    assert kills >= 2
