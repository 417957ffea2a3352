"""Every way in, on every system: a host that nobody has prepared serves a model, and a second run changes nothing.

`make test` runs a covering subset; `make test-matrix` runs all of it.
"""

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost, running_host

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(600)]

WHOLE = bool(os.environ.get("DEPLOYCTL_TEST_MATRIX"))
SUITES = ("bookworm", "trixie")
RIGHTS = ("root", "nopasswd", "password")
ROUTES = ("direct", "jump")
# Each value of each dimension at least once, together with test_lab.py (bookworm, nopasswd, direct).
SUBSET = {("trixie", "password", "jump"), ("trixie", "root", "direct")}
CELLS = [(s, r, w) for s in SUITES for r in RIGHTS for w in ROUTES if WHOLE or (s, r, w) in SUBSET]
MODEL = ("--plan", "sandbox", "--model", "gemma3:270m", "--engine", "embedded")
SUDO, PHRASE = "planted-sudo-password", "planted-key-passphrase"


class Watch(threading.Thread):
    """Looks at the arguments and the environment of every process of this machine and of the lab's hosts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.seen: set[str] = set()
        self.looked = 0

    def run(self) -> None:
        while not self.ended.wait(0.25):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    self.look(entry)

    def look(self, entry: Path) -> None:
        for name in ("cmdline", "environ"):
            try:
                text = (entry / name).read_bytes()
            except OSError:
                continue
            self.looked += 1
            # The lab's own guardian was told the guest's password; looking for the word must not find the look.
            if (SUDO.encode() in text or PHRASE.encode() in text) and b"nspawn.guardian" not in text:
                self.seen.add(f"{name}: {text[:200]!r}")


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    watch.start()
    yield watch
    watch.ended.set()
    watch.join()
    assert watch.looked > 0


def provision(shell: Any, *words: str, secrets: dict[str, str]) -> dict[str, Any]:
    """Run the command with each secret on a pipe of its own; returns its JSON."""
    options: list[str] = []
    ends = []
    for option, secret in secrets.items():
        out, into = os.pipe()
        os.write(into, f"{secret}\n".encode())
        os.close(into)
        options += [option, f"fd:{out}"]
        ends.append(out)
    command = [*shell.command, "--data-dir", str(shell.data_dir), "provision", *words, *options, "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=shell.cwd, env=shell.env, pass_fds=ends, timeout=400
        )
    finally:
        for end in ends:
            os.close(end)
    assert done.returncode == 0, done.stderr
    assert "planted-" not in done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def locked_key(lab_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's key, with a passphrase."""
    path = tmp_path_factory.mktemp("locked") / "id_ed25519"
    path.write_bytes(lab_key.read_bytes())
    path.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", PHRASE, "-f", path], check=True, capture_output=True)
    path.with_suffix(".pub").write_bytes(lab_key.with_suffix(".pub").read_bytes())
    return path


def left_behind(host: LabHost) -> str:
    """Files and log lines on the host that hold a secret."""
    found = host.run(
        "grep -rlF planted- /etc /home /root /run /tmp /usr/local /var 2>/dev/null; journalctl | grep -F planted-",
        check=False,
    )
    return found.stdout.strip()


@pytest.mark.parametrize(("suite", "rights", "route"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_a_bare_host_serves_a_model_and_a_second_run_changes_nothing(
    suite: str, rights: str, route: str, shell: Any, lab_host: HostFactory, lab_key: Path, locked_key: Path
) -> None:
    jump = lab_host("matrix-jump", user="jumper", sudo="none") if route == "jump" else None
    secrets = {"--passphrase": PHRASE} | ({"--sudo-password": SUDO} if rights == "password" else {})
    user = "root" if rights == "root" else "deploy"
    options: dict[str, Any] = {"suite": suite, "user": user, "behind": jump}
    if rights != "root":
        options |= {"sudo": rights, "password": SUDO if rights == "password" else ""}
    if rights == "root":  # one of them with models on another disk
        options |= {"mounts": {"/srv/models": 600}}
    with running_host(f"{suite}-{rights}", lab_key, **options) as host, watching() as watch:
        words = ["--host", f"{user}@{host.address}", "--key", str(locked_key), "--accept-new"]
        if rights == "root":
            words += ["--models-dir", "/srv/models"]
        if jump is not None:
            words += ["--jump", f"{jump.user}@{jump.address}"]
        first = provision(shell, *MODEL, *words, secrets=secrets)
        assert first["changed"] > 0
        second = provision(shell, *MODEL, *words, secrets=secrets)
        assert second["changes"] == []
        body = '{"model":"gemma3:270m","prompt":"One, two,","raw":true,"stream":false,"options":{"num_predict":4}}'
        script = (
            "import json, urllib.request as u; print(json.load(u.urlopen(u.Request("
            f"'http://127.0.0.1:11434/api/generate', {body.encode()!r})))['eval_count'])"
        )
        assert host.run(f"python3 -c {shlex.quote(script)}", timeout=120).stdout.strip() == "4"
        if rights == "root":
            assert host.run("ls /srv/models").stdout.split() == ["blobs", "lost+found", "manifests"]
        audit = host.run("cat /var/log/deployctl.log").stdout
        assert audit.count(" begin serve gemma3:270m") == 2
        assert audit.count(": done, ") == 2
        assert host.run("ls /run/deployctl", check=False).returncode != 0, "the lock is gone"
        assert left_behind(host) == ""
    assert watch.seen == set()
    kept = subprocess.run(["grep", "-rlF", "planted-", shell.data_dir], capture_output=True, text=True)
    assert kept.stdout == ""


def test_two_runs_at_once_do_not_meet_on_the_host(shell: Any, lab_host: HostFactory, wait_for: Any) -> None:
    host = lab_host("busy", user="root", suite="trixie")
    aim = ("--host", f"root@{host.address}", "--key", str(host.key_file), "--accept-new")
    first = shell.start("provision", *MODEL, *aim)
    try:
        wait_for(lambda: host.run("ls /run/deployctl/lock", check=False).returncode == 0, "the first run's lock")
        second = shell.run("down", "--purge", *aim)
        assert second.code == 3, second.err
        assert "is in use by" in second.err
        assert "lapses in" in second.err
    finally:
        out, err = first.communicate(timeout=300)
    assert first.returncode == 0, err
    assert "nothing" not in out


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_a_fleet_is_worked_on_at_once_and_one_dead_host_stops_no_other(
    shell: Any, lab_host: HostFactory, tmp_path: Path
) -> None:
    one, two = lab_host("busy", user="root", suite="trixie"), lab_host("fleet", user="root")
    (shell.cwd / "inventory").mkdir()
    hosts = {"one": one.address, "dead": "127.0.0.1, port: 9", "two": two.address}
    lines = [f"{name}: {{address: {address}, key_file: {one.key_file}}}" for name, address in hosts.items()]
    (shell.cwd / "inventory" / "hosts.yml").write_text("\n".join(lines) + "\n")
    began = time.monotonic()
    child = shell.start("provision", *MODEL, "--limit", "*", "--accept-new", "--json")
    out, err = child.communicate(timeout=500)
    took = time.monotonic() - began
    assert child.returncode == 3, err
    found = {entry["host"]: entry for entry in json.loads(out)["hosts"]}
    assert list(found) == ["one", "dead", "two"]
    assert [entry["exit_code"] for entry in found.values()] == [0, 3, 0]
    assert "no SSH at" in found["dead"]["error"]["message"]
    assert found["two"]["changed"] > 0
    assert took < sum(entry["seconds"] for entry in found.values()), "they overlapped"
    shown = shell.run("down", "--purge", "--limit", "one,two")
    assert shown.code == 0, shown.err
    assert "2 of 2 hosts are as wanted" in shown.out
