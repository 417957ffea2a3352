"""Starting workers on other machines: what ssh is asked for, what travels, what is unpacked. The lab boots some."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from deployctl.hosts.target import Target
from deployctl.load import bundle
from deployctl.load.remote import LoadMachine, is_loopback, visit
from deployctl.load.spec import LoadSpec
from deployctl.load.visitor import header, settle


@pytest.fixture
def spec(make_workload, tmp_path):
    def make(url):
        return LoadSpec(url, "m:1", make_workload(), tmp_path / "prompts", samples=tmp_path / "s.arrow")

    return make


def started(spec, url, folder="~/.local/lg/1"):
    machine = LoadMachine(Target("lg", "192.0.2.7", user="ops"), folder)
    made = visit(machine, spec(url), {"chat.py": "# ñ"}, "chat.py", 5557)
    length, _, rest = made.first_input.partition(b"\n")
    assert int(length) == len(rest)
    return made, json.loads(rest)


def test_a_server_on_our_loopback_is_forwarded_and_asked_there(spec):
    made, told = started(spec, "http://localhost:11434/base")
    ways = [made.argv[index + 1] for index, word in enumerate(made.argv) if word == "-R"]
    assert ways[0].startswith("127.0.0.1:")
    assert ways[0].endswith(":127.0.0.1:5557")
    near = ways[1].split(":")[1]
    assert ways[1] == f"127.0.0.1:{near}:localhost:11434"
    there = json.loads(told["files"]["load.json"])
    assert there["url"] == f"http://127.0.0.1:{near}/base"
    assert there["prompts"] == "{folder}/prompts"
    assert told["argv"][told["argv"].index("--master-port") + 1] == ways[0].split(":")[1]
    assert made.argv[-2] == "192.0.2.7"
    assert made.argv[-1] == 'PYTHONPATH="$HOME"/.local/lg/1 exec python3 -m deployctl.load.visitor'


def test_a_server_elsewhere_is_asked_directly(spec):
    made, told = started(spec, "http://10.0.0.5:11434", folder="/opt/lg 1")
    assert made.argv.count("-R") == 1
    assert json.loads(told["files"]["load.json"])["url"] == "http://10.0.0.5:11434"
    assert made.argv[-1].startswith("PYTHONPATH='/opt/lg 1' exec ")


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("LOCALHOST", True), ("10.0.0.1", False)]
)
def test_a_loopback_address_is_a_machines_own(host, own):
    assert is_loopback(host) is own


def test_a_visit_leaves_the_rest_of_its_input_to_the_worker(tmp_path):
    """The worker is a Python that prints what it finds: its files, its environment, what follows on its input."""
    code = "import os, sys; print(open(sys.argv[1]).read(), os.environ['LOOK'], sys.stdin.read())"
    first = header({"LOOK": "{folder}/a.txt"}, {"sub/a.txt": "año"}, ["-c", code, "{folder}/sub/a.txt"])
    done = subprocess.run(
        [sys.executable, "-m", "deployctl.load.visitor"],
        input=first + b"the rest",
        capture_output=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        check=True,
        timeout=30,
    )
    assert done.stdout.decode().split() == ["año", f"{next(tmp_path.iterdir())}/a.txt", "the", "rest"]


def test_the_place_of_a_visit_is_filled_into_settings_and_into_nothing_else(tmp_path):
    settle({"environment": {}, "argv": [], "files": {"load.json": "{folder}", "prompts/en.txt": "{folder}"}}, tmp_path)
    assert (tmp_path / "load.json").read_text() == str(tmp_path)
    assert (tmp_path / "prompts" / "en.txt").read_text() == "{folder}"


def test_an_archive_has_all_that_a_worker_loads_and_its_marker_last(tmp_path, cache_dir):
    python, machine = bundle.here()
    made = bundle.build(cache_dir, python, machine)
    assert made.path == str(cache_dir / f"loadgen-{bundle.identity(python, machine)}.tar.gz")
    with tarfile.open(made.path) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert names[-1] == bundle.COMPLETE
    assert "deployctl/_resources/loadtests/chat.py" in names
    code = "import deployctl.load.child.bind as b, locust, sys; print(b.__file__); print(locust.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert all(Path(line).is_relative_to(tmp_path) for line in done.stdout.splitlines())
    assert bundle.identity("3.12", machine) != made.id
