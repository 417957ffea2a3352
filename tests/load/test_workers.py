"""Locust as a master with workers, all on this machine."""

import os
import signal
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from deployctl.load.clientside import ClientLimits
from deployctl.load.prober import LoadProber
from deployctl.load.samples import Failure
from deployctl.load.store import read_samples
from deployctl.load.wire import Health, Open, Report, decode_report, encode_report, parse, shifted

LENIENT = ClientLimits(loop_lag_p99_s=9, schedule_delay_p99_s=9, cpu_share=9, residual=0.9)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def reach(driver, wanted, timeout_s=30):
    requests, health = [], []
    deadline = monotonic() + timeout_s
    while monotonic() < deadline:
        batch = driver.poll(0.2)
        requests += batch.requests
        health += batch.health
        if wanted(batch, requests):
            return requests, health, batch
    raise AssertionError(f"not in {timeout_s} s; log: {driver.log_tail()}")


def level(users):
    return lambda batch, _: batch.level is not None and batch.level.users == users and not batch.level.rate_per_s


def test_two_workers_share_the_users_and_lose_no_request(driving):
    with driving(workers=2, think_s=0.05) as driver:
        pids = [driver.pid, *driver.worker_pids]
        assert len(pids) == 3
        driver.set_users(5)
        _, _, batch = reach(driver, level(5))
        began = batch.level.began_s
        requests, health, _ = reach(driver, lambda _, requests: len(requests) >= 25)
        driver.set_users(0)
        rest, _, batch = reach(driver, level(0))
        assert batch.open_requests == []
        requests = [sample for sample in requests + rest if sample.intended_s >= began]
        driver.set_users(2)
        reach(driver, level(2))
        _, _, batch = reach(driver, lambda batch, _: len(batch.open_requests) > 0)
        later = {one.user for one in batch.open_requests}
    users = {sample.user for sample in requests}
    assert len(users) == 5
    assert {user % 1024 for user in users} == {0, 1}, "both workers have users"
    assert not users & later
    assert {report.worker for report in health} == {0, 1}
    stored = {(sample.user, sample.seq): sample for sample in read_samples(driver.sample_files)}
    for sample in requests:
        assert sample.ok
        assert stored[sample.user, sample.seq].end_s == pytest.approx(sample.end_s, abs=3e-6)
    assert all(gone(pid) for pid in pids)


def test_workers_users_add_up_from_the_first_second(driving):
    """Nobody thinks, and a worker's users come a moment after the level was asked for: no fault of anybody's."""
    limits = ClientLimits(loop_lag_p99_s=9, schedule_delay_p99_s=9, cpu_share=9, residual=0.05)
    with driving(workers=2, think_s=0, output_tokens=200) as driver:  # an answer takes 0.8 s
        run = LoadProber(driver, limits=limits)(3, lambda look: look.now_s < 4 and not look.invalid, 20)
    assert run.invalid_reasons == ()


def test_what_is_cut_on_workers_is_kept_as_cancelled(driving):
    with driving("slow:30", workers=2, think_s=0, timeout_s=60) as driver:
        driver.set_users(4)
        reach(driver, lambda batch, _: len(batch.open_requests) == 4)
        asked = monotonic()
    assert monotonic() - asked < 10
    assert [sample.error for sample in read_samples(driver.sample_files)] == [Failure.CANCELLED] * 4


def test_a_lost_worker_voids_the_probe_and_the_next_one_runs(driving):
    with driving(workers=2, think_s=0.02) as driver:
        prober = LoadProber(driver, limits=LENIENT)

        def kill(look):
            if driver.alive:
                os.kill(driver.worker_pids[0], signal.SIGKILL)
                sleep(0.2)
            return driver.alive

        assert "died" in prober(4, kill, 20).invalid_reasons[0]
        run = prober(4, lambda look: len(look.requests) < 12, 20)
        assert not run.invalid_reasons
        assert len(run.last.requests) >= 12
        assert len(np.unique(run.last.requests.user)) == 4


def test_workers_share_one_schedule_of_arrivals(driving):
    with driving(workers=2) as driver:
        run = LoadProber(driver, arrivals_per_s=10.0, process="constant", limits=LENIENT)(
            1, lambda look: look.now_s < 3, 20
        )
        requests = read_samples(driver.sample_files)
    starts = np.sort(np.concatenate([run.last.requests.start_s, run.last.pending_start_s]))
    assert np.diff(starts) == pytest.approx(0.1, abs=1e-6)
    assert {sample.user % 1024 for sample in requests} <= {0, 1}


def test_a_killed_parents_workers_end(fake, make_workload, tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from deployctl.load.driver import LocustDriver\nfrom deployctl.catalog.workloads import Workload\n"
        "driver = LocustDriver(sys.argv[1], 'plain', Workload.model_validate_json(sys.argv[2]),"
        " out_dir=Path(sys.argv[3]), workers=2)\n"
        "driver.start(); driver.set_users(3); print(driver.pid, *driver.worker_pids, flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, fake, make_workload(think_s=0.02).model_dump_json(exclude_none=True)]
    with subprocess.Popen([*argv, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        pids = list(map(int, parent.stdout.readline().split()))
        sleep(1)
        parent.kill()
    deadline = monotonic() + 10
    while not all(map(gone, pids)) and monotonic() < deadline:
        sleep(0.05)
    assert len(pids) == 3
    assert all(map(gone, pids))


def test_another_machines_clock_moves_whole_samples_and_no_duration():
    from deployctl.load.samples import Sample

    sample = Sample(3, 1, 10.0, sent_s=10.5, first_byte_s=11.0, first_token_s=11.5, end_s=14.0, output_tokens=6)
    health = Health(14.5, (0.001,), 0.2, 1000, 4, 1, worker=2)
    report = Report(15.0, (Open(4, 0, 12.0, 13.0),), ((5, 2, 14.0),), (sample,), ((3, 16.0),), health, worker=2)
    moved = shifted(report, 1000.0)
    there = moved.samples[0]
    assert (there.ttft_s, there.tpot_s, there.e2e_s, there.schedule_delay_s) == pytest.approx(
        (sample.ttft_s, sample.tpot_s, sample.e2e_s, sample.schedule_delay_s)
    )
    assert (there.intended_s, moved.t_s, moved.health.t_s) == (1010.0, 1015.0, 1014.5)
    assert moved.opened == (Open(4, 0, 1012.0, 1013.0),)
    assert (moved.first_tokens, moved.next_starts) == (((5, 2, 1014.0),), ((3, 1016.0),))
    assert shifted(report, 0.0) is report
    assert repr(decode_report(parse(encode_report(report)))) == repr(report)
