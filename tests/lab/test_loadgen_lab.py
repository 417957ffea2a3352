"""Load from two other machines: set up by the playbook, driven over SSH, one of them lost in mid-probe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nspawn.fixtures import HostFactory
from nspawn.host import LabHost

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.events import StepFinished
from deployctl.jobs.machines import ready_machines
from deployctl.jobs.wanted import Place, Wanted
from deployctl.load.clientside import ClientLimits
from deployctl.load.driver import LocustDriver
from deployctl.load.prober import LoadProber
from deployctl.load.remote import LoadMachine
from deployctl.load.store import read_samples
from deployctl.resources import Project, shipped_root

pytestmark = pytest.mark.timeout(600)
LENIENT = ClientLimits(loop_lag_p99_s=9, schedule_delay_p99_s=9, cpu_share=9, residual=0.9)
SERVER = Path(__file__).parents[1] / "load" / "fake_server.py"
WORKLOAD = Workload.model_validate(
    {"name": "t", "title": "t", "prompt_tokens": 40, "output_tokens": 12, "think_s": 0.1, "timeout_s": 5}
)


@contextmanager
def fake_server(address: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"FAKE_ADDRESS": address},
    ) as process:
        assert process.stdout is not None
        yield f"http://{address}:{process.stdout.readline().strip()}"
        process.communicate()


class Setup:
    """Both hosts as load generators, and what setting them up said."""

    def __init__(self, lab_host: HostFactory, key: Path, folder: Path, cache: Path) -> None:
        self.hosts = {name: lab_host(name) for name in ("lg-a", "lg-b")}
        self._key, self._folder, self._cache = key, folder, cache

    def machines(self) -> tuple[dict[str, LoadMachine], list[str]]:
        said: list[str] = []
        found = ready_machines(
            [f"{host.user}@{host.address}" for host in self.hosts.values()],
            Wanted(model="", key_file=self._key, key_policy="accept-new"),
            Catalog({}, {}, {}, {}, {}),
            Place(self._folder / "data", self._cache),
            Project(shipped_root()),
            self._folder / "loadgen.log",
            lambda event: said.append(event.detail) if isinstance(event, StepFinished) else None,
        )
        named = [
            replace(machine, target=replace(machine.target, name=name))
            for name, machine in zip(self.hosts, found, strict=True)
        ]
        return {machine.name: machine for machine in named}, said


@pytest.fixture(scope="module")
def setup(
    lab_host: HostFactory, lab_key: Path, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path
) -> tuple[Setup, dict[str, LoadMachine]]:
    made = Setup(lab_host, lab_key, tmp_path_factory.mktemp("loadgen"), cache_dir)
    machines, said = made.machines()
    assert all("changed" in one and " 0 changed" not in one for one in said), said
    again, said = made.machines()
    assert [one.split()[-1] for one in said] == ["ready", "ready"], "the second time nothing is run"
    assert again == machines
    return made, machines


def leftovers(host: LabHost) -> str:
    """Processes of ours on the host that are still there after some seconds."""
    find = "pgrep -f '[d]eployctl.load|[l]ocust.*--worker'"
    return host.run(f"for i in $(seq 150); do {find} >/dev/null || exit 0; sleep 0.1; done; {find}", check=False).stdout


def probe(driver: LocustDriver, users: int, requests: int) -> Any:
    return LoadProber(driver, limits=LENIENT)(users, lambda look: len(look.requests) < requests, 30)


def test_two_machines_share_the_users_and_one_that_is_lost_voids_its_probe_only(
    setup: tuple[Setup, dict[str, LoadMachine]], tmp_path: Path
) -> None:
    made, machines = setup
    lost = made.hosts["lg-b"]
    with (
        fake_server("127.0.0.1") as url,
        LocustDriver(url, "plain", WORKLOAD, out_dir=tmp_path, machines=tuple(machines.values())) as driver,
    ):
        run = probe(driver, 4, 20)
        assert run.invalid_reasons == ()
        assert set(run.last.requests.user) == {0, 1, 2, 3}
        assert run.last.requests.ok.all()
        assert run.last.requests.ttft_s.min() >= 0.02, "the server takes 20 ms to the first token"
        assert np.quantile(run.last.requests.e2e_s, 0.5) < 2
        # Guests share this machine's kernel, so their clocks are this machine's: what is measured is pure error.
        assert [one.name for one in driver.machines] == ["lg-a", "lg-b"]
        for one in driver.machines:
            assert abs(one.clock_s) <= one.clock_error_s + 0.002
            assert 0 < one.way_s < 1
        assert "deployctl-load-" not in made.hosts["lg-a"].run("ls /tmp").stdout, "what the worker read is gone"

        def cut(look: Any) -> bool:
            if len(look.requests) >= 4 and driver.alive:
                lost.stop_sshd()
            return driver.alive

        void = LoadProber(driver, limits=LENIENT)(4, cut, 30)
        assert any("load generator lg-b was lost" in reason for reason in void.invalid_reasons), void.invalid_reasons
        assert leftovers(lost) == "", "without its connection a worker ends"
        again = probe(driver, 4, 12)
        assert again.invalid_reasons == ()
        assert set(again.last.requests.user) == {0, 1, 2, 3}
        assert [note for note in driver.notes if "lg-b was lost and the others went on" in note]
    lost.start_sshd()
    stored = read_samples(driver.sample_files)
    assert len(stored) >= len(run.last.requests) + len(again.last.requests)
    assert leftovers(made.hosts["lg-a"]) == ""


def test_a_server_elsewhere_is_asked_directly_and_one_out_of_reach_is_named(
    setup: tuple[Setup, dict[str, LoadMachine]], tmp_path: Path
) -> None:
    made, machines = setup
    only = (machines["lg-a"],)
    with (
        fake_server(made.hosts["lg-a"].gateway) as url,
        LocustDriver(url, "plain", WORKLOAD, out_dir=tmp_path / "a", machines=only, workers=2) as driver,
    ):
        run = probe(driver, 3, 9)
        assert run.invalid_reasons == ()
        assert len(driver.worker_pids) == 2
    unreachable = LocustDriver(url, "plain", WORKLOAD, out_dir=tmp_path / "b", machines=only)
    with pytest.raises(MeasurementError, match=r"lg-a: .*no answer from http://10"), unreachable:
        pass
