"""The command line as a shell sees it: help, versions, errors, exit codes, one JSON document."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployctl.cli.app import COMMANDS, hoist

COMMAND = [sys.executable, "-m", "deployctl"]


def run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **env},
        timeout=60,
        check=False,
    )


def test_the_kept_help_is_what_typer_renders() -> None:
    kept = run("--help").stdout
    rendered = run("-v", "--help").stdout  # any other argument goes the long way
    assert kept == rendered
    assert kept.startswith("Usage: deployctl ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    answer = run(name, "--help")
    assert answer.returncode == 0, answer.stderr
    assert f"Usage: deployctl {name}" in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


def test_help_imports_no_command_and_no_heavy_library() -> None:
    script = (
        "import sys; sys.argv = ['deployctl', '-v', '--help']\n"
        "from deployctl.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'numpy', 'pydantic', 'paramiko', 'ansible_runner', 'locust', 'gevent', 'ollama', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stderr.strip() == "[]"


def test_no_module_of_the_parent_process_imports_locust_or_gevent() -> None:
    script = (
        "import sys\n"
        "import deployctl.jobs.up, deployctl.jobs.test, deployctl.jobs.provision, deployctl.jobs.check\n"
        "import deployctl.cli.answers, deployctl.report.html, deployctl.load.driver, deployctl.load.prober\n"
        "print(sorted({'locust', 'gevent'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_version_is_the_packages() -> None:
    from deployctl import __version__

    assert run("--version").stdout == f"deployctl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        (["plans", "cpu-31gb"], 2, "cpu-32gb"),
        (["up", "--plan", "sandbox", "--model", "nope:1b"], 5, "nope:1b"),
        (["up", "--plan", "sandbox"], 2, "--model"),
        (["frobnicate"], 2, "frobnicate"),
        (["up", "--plan", "sandbox", "--model", "gemma3:270m", "--budget", "soon"], 2, "soon"),
        (["up", "--plan", "sandbox", "--model", "gemma3:270m", "--engine", "warp"], 2, "warp"),
        (["up", "--plan", "cpu-32gb", "--model", "llama3.1:8b"], 2, "--host"),
        (["test", "--model", "gemma3:270m"], 2, "--url"),
        (["test", "--model", "gemma3:270m", "--url", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
        (["test", "--model", "gemma3:270m", "--url", "127.0.0.1:9"], 2, "http://127.0.0.1:9"),
        (["host", "check", "root@127.0.0.1:9"], 3, "127.0.0.1"),
        (["report", "20200101T000000Z-0000"], 2, "20200101T000000Z-0000"),
        (["--project", "/nowhere/at/all", "plans"], 2, "/nowhere/at/all"),
    ],
)
def test_bad_input_names_the_fault_and_has_its_own_exit_code(
    words: list[str], code: int, names: str, tmp_path: Path
) -> None:
    answer = run("--data-dir", str(tmp_path), *words, cwd=tmp_path)
    assert answer.returncode == code, answer.stderr
    assert names in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    assert not list((tmp_path / "runs").glob("*")), "a run that got nowhere leaves nothing behind"


def test_a_plan_too_small_is_refused_before_any_host_is_touched(tmp_path: Path) -> None:
    # Port 9 of loopback refuses connections: had the host been asked first, the code would be 3.
    answer = run(
        *("--data-dir", str(tmp_path), "up", "--plan", "cpu-8gb", "--model", "llama3.1:70b"),
        *("--host", "root@127.0.0.1:9"),
        cwd=tmp_path,
    )
    assert answer.returncode == 1, answer.stderr
    assert "GiB" in answer.stderr
    assert not list(tmp_path.iterdir()), "nothing is kept of a run that never began"


def test_json_errors_are_one_document_on_stdout(tmp_path: Path) -> None:
    answer = run("up", "--plan", "sandbox", "--model", "nope:1b", "--json", cwd=tmp_path)
    assert answer.returncode == 5
    error = json.loads(answer.stdout)["error"]
    assert error["kind"] == "ModelUnavailable"
    assert "nope:1b" in error["message"]


@pytest.mark.parametrize(
    "words",
    [["up"], ["plns"], ["advise", "--bogus"], ["up", "--slots", "abc"], ["report", "--format", "html"], ["host"]],
)
def test_usage_errors_are_one_json_document_too(words: list[str], tmp_path: Path) -> None:
    answer = run("--json", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert json.loads(answer.stdout)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["down"], "no host was named"),
        (["host", "check", "sandbox"], "is a plan, not a host"),
        (["test", "--plan", "sandbox", "--model", "gemma3:270m"], "deployctl up --plan sandbox"),
        (["up", "--plan", "sandbox", "--model", "gemma3:270m", "--gguf", __file__], "GGUF"),
        (["up", "--plan", "sandbox", "--model", "gemma3:270m", "--ollama-archive", "/nofile"], "/nofile"),
        (["up", "--plan", "sandbox", "--model", "gemma3:270m", "--key", "/nofile"], "/nofile"),
    ],
)
def test_a_wish_that_cannot_be_meant_is_refused_before_anything_is_contacted(
    words: list[str], names: str, tmp_path: Path
) -> None:
    answer = run("--data-dir", str(tmp_path / "data"), *words, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert names in answer.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:9", "http://[::1", "http://127.0.0.1:99999", "http://a:secret@127.0.0.1:9", "ftp://x"]
)
def test_a_url_that_cannot_be_driven_is_refused_without_repeating_secrets(url: str, tmp_path: Path) -> None:
    answer = run("--data-dir", str(tmp_path / "data"), "test", "--model", "m", "--url", url, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert "secret" not in answer.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["p 100%", "d${HOME}", "q'uote", "{{ x }}", 'two"'])
def test_a_data_directory_that_ssh_or_ansible_would_read_as_code_is_refused(name: str, tmp_path: Path) -> None:
    answer = run("--data-dir", str(tmp_path / name), "plans", cwd=tmp_path)
    assert answer.returncode == 2
    assert "--data-dir" in answer.stderr


def test_lists_are_json_when_asked_for() -> None:
    plans = json.loads(run("plans", "--json").stdout)
    assert {"sandbox", "cpu-32gb", "gpu-a100-80"} <= {plan["id"] for plan in plans}
    models = json.loads(run("models", "--json").stdout)
    assert "gemma3:270m" in {model["name"] for model in models}


def test_a_project_overrides_the_catalogue_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "plans.yml").write_text("tiny:\n  vcpus: 1\n  ram_gb: 2\n  disk_gb: 10\n")
    plans = json.loads(run("plans", "--json", "--project", str(tmp_path)).stdout)
    assert [plan["id"] for plan in plans] == ["tiny"]
    assert json.loads(run("models", "--json", "--project", str(tmp_path)).stdout), "the other files still ship"


def test_global_options_may_follow_the_command() -> None:
    words = ["up", "--json", "--plan", "p", "--data-dir", "d", "-vv", "--project=x", "--", "--json"]
    assert hoist(words) == ["--json", "--data-dir", "d", "-vv", "--project=x", "up", "--plan", "p", "--", "--json"]


def test_completion_scripts_are_offered() -> None:
    answer = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "deployctl" in answer.stdout


def test_an_interrupt_that_python_swallowed_is_delivered_at_the_next_event() -> None:
    # An exception inside __del__ is printed and ignored (Python's data model), and a signal may well arrive there.
    script = (
        "import os, signal\n"
        "from deployctl import interrupts\n"
        "interrupts.install()\n"
        "class Swallows:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        for _ in range(1000): pass\n"
        "one = Swallows()\n"
        "del one\n"
        "try: interrupts.check()\n"
        "except KeyboardInterrupt: print('delivered')\n"
        "interrupts.check()\n"
        "print('once')"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.split() == ["delivered", "once"]
