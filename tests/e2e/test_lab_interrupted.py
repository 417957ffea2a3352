"""A run that is cut off at any step: the host goes on serving what it served, and the same command again finishes.

`make test` cuts at a few steps; `make test-matrix` at each of them, in every way.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nspawn.host import LabHost, running_host

from deployctl.sandbox import archive, model

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(1800)]

WHOLE = bool(os.environ.get("DEPLOYCTL_TEST_MATRIX"))
How = Callable[[LabHost, "subprocess.Popen[str]"], None]


def ctrl_c(host: LabHost, child: "subprocess.Popen[str]") -> None:
    del host
    os.killpg(child.pid, signal.SIGINT)


def kill(host: LabHost, child: "subprocess.Popen[str]") -> None:
    del host
    child.kill()


def cut_ssh(host: LabHost, child: "subprocess.Popen[str]") -> None:
    del child
    host.stop_sshd()


def reboot(host: LabHost, child: "subprocess.Popen[str]") -> None:
    del child
    host.reboot(abruptly=True)


def unplug(host: LabHost, child: "subprocess.Popen[str]") -> None:
    """Nobody says good-bye: packets go nowhere from now on."""
    del child
    host.run("ip link set host0 down")


UNPACKED = "usr/local/lib/.ollama-new-*/*"
SENDING, BLOBS = "home/deploy/.cache/deployctl/uploads/*", "usr/share/ollama/.ollama/models/blobs/*partial*"
# Where a cut falls: the line that the command prints as it comes to a step; or that, and then a file that shows up.
STEPS = (
    "✓ host",
    "✓ engine",
    "✓ size",
    "Wait for cloud-init and package locks",
    "Write the confinement as a drop-in",
    "Create the user that runs Ollama",
    "Create the models directory",
    "Install the archive",
    f"Install the archive: {SENDING}",
    f"Install the archive: {UNPACKED}",
    "Write the unit",
    "Write the settings as a drop-in",
    "Run Ollama with these settings",
    "Make the model available",
    f"Make the model available: {SENDING}",
    f"Make the model available: {BLOBS}",
    "provision  ",  # done or nothing to do
    "✓ tunnel",
)
BRIEFLY: tuple[tuple[str, How], ...] = (
    (f"Install the archive: {UNPACKED}", kill),
    ("Write the settings as a drop-in", ctrl_c),
    (f"Make the model available: {SENDING}", reboot),
)

UNPLUGGED = tuple((step, unplug) for step in (f"Install the archive: {SENDING}", f"Make the model available: {BLOBS}"))
WAYS: tuple[How, ...] = (kill, ctrl_c, cut_ssh, reboot)


def judge(how: How, code: int, said: str, site: Any) -> None:
    """Hold a run that was cut off to what it promises: its exit code, its words, the lock on the host."""
    assert "Traceback" not in said
    if how is kill:
        assert code == -signal.SIGKILL
    elif how is ctrl_c:
        assert code == 7, said
        assert "run the same command again" in said
        assert not site.locked(), "Ctrl-C lets go of the host"
    else:
        assert code == 3, said
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, said
        assert not errors[0].rstrip().endswith(":"), "it says why"
        assert said.splitlines()[-1].startswith("  try: "), said


def whole_way(step: str, how: How) -> bool:
    """What of all combinations happens at all: no connection is there to be cut before the first step's end."""
    return how in (kill, ctrl_c) or step not in ("✓ host", "✓ tunnel")


@pytest.mark.parametrize(
    "cuts",
    [*([(step, how) for step in STEPS if whole_way(step, how)] for how in WAYS), UNPLUGGED] if WHOLE else [BRIEFLY],
    ids=["kill", "ctrl-c", "ssh", "reboot", "unplugged"] if WHOLE else ["briefly"],
)
def test_cut_off_at_any_step_the_same_command_again_reaches_a_serving_model(
    cuts: list[tuple[str, How]], shell: Any, site_of: Callable[..., Any], lab_base: Path, lab_key: Path
) -> None:
    with running_host("cut", lab_key) as host:
        site = site_of(host, "--engine", "embedded")
        for step, how in cuts:
            code, said = site.cut(step, lambda child, how=how: how(host, child))
            if how is cut_ssh:
                host.start_sshd()
            if how is unplug:
                host.run("ip link set host0 up")
                host.wait_for_ssh()
            judge(how, code, said, site)
            assert shell.leftovers() == [], step
        done = site.run()
        assert done.code == 0, done.err
        assert site.answers() == "4"
        assert not site.locked()
        assert "as the last run left it" in site.run().err
        left = host.run("ls -A /usr/local/lib /home/deploy/.cache/deployctl/uploads /tmp").stdout
        assert ".ollama-new-" not in left
        assert ".deployctl-" not in left
        assert "ansible" not in left


@pytest.mark.matrix
def test_an_upgrade_that_is_killed_at_any_step_goes_on_serving(
    shell: Any, site_of: Callable[..., Any], lab_base: Path, lab_key: Path, cache_dir: Path, wait_for: Any
) -> None:
    newer = shell.cwd / "ollama-0.34.0-linux-amd64.tgz"
    tree = shell.cwd / "tree"
    tree.mkdir()
    subprocess.run(["tar", "-xzf", archive.build_archive(cache_dir), "-C", tree], check=True)
    (tree / "lib/ollama/newer").write_text("newer")
    subprocess.run(["tar", "-czf", newer, "-C", tree, "bin", "lib"], check=True)
    with running_host("upgraded", lab_key, suite="trixie") as host:
        site = site_of(host, "--engine", "embedded")
        first = site.run()
        assert first.code == 0, first.err
        site.words.remove("--engine")
        site.words.remove("embedded")
        site.words += ["--ollama-archive", str(newer), "--gguf", str(model.gguf_path(cache_dir)), "--slots", "2"]
        for step in STEPS[4:]:
            if "Make the model" not in step:
                code, _ = site.cut(step, lambda child: kill(host, child))
                assert code == -signal.SIGKILL
            # It may be in the middle of a restart.
            wait_for(lambda: host.run("systemctl is-active ollama", check=False).stdout == "active\n", "the server")
            wait_for(lambda: host.run(ASK, check=False).returncode == 0, f"an answer after a kill at {step}")
            assert site.answers() == "4"
        done = site.run()
        assert done.code == 0, done.err
        assert host.run("ls /usr/local/lib/ollama/newer").returncode == 0
        assert "OLLAMA_NUM_PARALLEL=2" in host.run("systemctl show ollama --property Environment").stdout


ASK = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:11434/api/version\")'"
