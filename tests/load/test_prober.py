"""Probing through a real Locust."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from deployctl.capacity.control import Control
from deployctl.capacity.probe import Slo
from deployctl.capacity.twin import Demand, Twin
from deployctl.catalog.distributions import Dist
from deployctl.errors import MeasurementError
from deployctl.load.baseline import baseline
from deployctl.load.clientside import ClientLimits
from deployctl.load.prober import Calibration, LoadProber, to_requests
from deployctl.load.samples import Sample
from deployctl.load.store import read_samples

# On a machine that runs other tests at the same time, a loop may well be late.
LENIENT = ClientLimits(loop_lag_p99_s=9, schedule_delay_p99_s=9, cpu_share=9, residual=0.9)


class Keeping:
    """Keeps every look; says stop after ``requests``."""

    def __init__(self, requests):
        self.looks = []
        self._requests = requests

    def __call__(self, look):
        self.looks.append(look)
        return len(look.requests) < self._requests


def test_a_probe_shows_every_request_of_its_level_and_the_open_ones(driving):
    keeping = Keeping(30)
    with driving(think_s=0.05, output_tokens=40) as driver:
        run = LoadProber(driver)(4, keeping, 20)
    last = run.last
    assert last is keeping.looks[-1]
    assert len(last.requests) >= 30
    assert np.all(np.diff(last.requests.start_s) >= 0)
    assert last.requests.start_s[0] >= 0
    assert set(last.requests.user) == {0, 1, 2, 3}
    assert last.requests.ok.all()
    assert (last.requests.output_tokens == 40).all()
    assert last.requests.ttft_s.min() > 0.02  # the server's prefill
    assert all(len(look.pending_start_s) <= 4 for look in keeping.looks)
    assert all((look.pending_start_s <= look.now_s).all() for look in keeping.looks)
    assert max(len(look.pending_start_s) for look in keeping.looks) > 0
    assert run.seconds >= last.now_s
    # Nothing was lost: all else that is on disk began after the look.
    begin = min(sample.intended_s for sample in read_samples(driver.sample_files)) - last.requests.start_s[0]
    stored = [sample.intended_s - begin for sample in read_samples(driver.sample_files)]
    known = [*last.requests.start_s, *last.pending_start_s]
    assert sorted(start for start in stored if start <= last.now_s) == pytest.approx(sorted(known), abs=3e-6)


def test_probes_follow_each_other_and_do_not_mix(driving):
    with driving(think_s=0.02) as driver:
        prober = LoadProber(driver)
        first = prober(3, Keeping(9), 10).last.requests
        second = prober(2, Keeping(6), 10).last.requests
    assert set(first.user) == {0, 1, 2}
    assert set(second.user) == {0, 1}, "numbered anew"
    assert {sample.user for sample in read_samples(driver.sample_files)} == {0, 1, 2, 3, 4}
    assert second.start_s.min() >= 0


def test_a_probe_ends_at_its_time_limit(driving):
    with driving(think_s=0.02) as driver:
        run = LoadProber(driver)(2, lambda _: True, 1.5)
    assert 1.0 <= run.last.now_s <= 2.0


def test_failures_are_shown_as_infinitely_late(driving):
    with driving("status:503", think_s=0.05) as driver:
        requests = LoadProber(driver)(2, Keeping(4), 10).last.requests
    assert not requests.ok.any()
    assert np.isinf(requests.ttft_s).all()
    assert np.isinf(requests.tpot_s).all()
    assert np.isinf(requests.e2e_s).all()


def test_what_still_runs_after_the_drain_is_cut_and_noted(driving):
    with driving("slow:20", think_s=0, timeout_s=30) as driver:
        run = LoadProber(driver, drain_patience_s=0.5)(3, lambda look: len(look.pending_start_s) < 3, 10)
    assert len(run.last.requests) == 0
    assert np.isnan(run.last.pending_ttft_s).all()
    assert "3 requests were cut" in run.notes[0]


def test_a_load_process_that_dies_voids_the_probe_and_the_next_one_runs(driving):
    with driving(think_s=0.02) as driver:
        prober = LoadProber(driver, limits=LENIENT)

        def kill(look):
            if driver.alive:
                os.kill(driver.pid, signal.SIGKILL)
            return driver.alive

        assert "died" in prober(2, kill, 10).invalid_reasons[0]
        run = prober(2, Keeping(6), 10)
        assert not run.invalid_reasons
        assert len(run.last.requests) >= 6


def test_gates_from_outside_void_the_probe(driving):
    windows = []

    def gates(begin, end):
        windows.append((begin, end))
        return ("steal 12 % > 5 %",)

    with driving(think_s=0.02) as driver:
        run = LoadProber(driver, gates=gates, limits=LENIENT)(2, Keeping(3), 10)
    assert run.invalid_reasons == ("steal 12 % > 5 %",)
    assert all(begin < end for begin, end in windows)


def test_a_client_above_its_limits_is_client_bound_and_not_failed(driving):
    with driving(think_s=0.02) as driver:
        run = LoadProber(driver, limits=ClientLimits(cpu_share=0.0))(2, lambda look: look.now_s < 2, 10)
    assert any(reason.startswith("client-bound: CPU") for reason in run.invalid_reasons)


def test_a_healthy_client_accounts_for_all_of_its_users_time(driving):
    with driving(think_s={"dist": "exponential", "mean": 0.3}, output_tokens=30) as driver:
        prober = LoadProber(driver)
        prober(5, lambda look: look.now_s < 4, 10)
    assert prober.last_client.residual < 0.05


def test_percentiles_are_numpys_on_raw_samples(driving):
    with driving(think_s=0.02) as driver:
        run = LoadProber(driver)(4, Keeping(25), 20)
    count = len(run.last.requests)
    raw = sorted(read_samples(driver.sample_files), key=lambda sample: sample.intended_s)
    starts = np.array([sample.intended_s - raw[0].intended_s for sample in raw])
    wanted = run.last.requests.start_s - run.last.requests.start_s[0]
    of_run = [raw[int(np.argmin(np.abs(starts - start)))] for start in wanted]
    assert len({(one.user, one.seq) for one in of_run}) == count
    for name, numerator, divisor in (
        ("ttft_s", lambda one: one.first_token_s - one.intended_s, lambda one: 1),
        ("e2e_s", lambda one: one.end_s - one.intended_s, lambda one: 1),
        ("tpot_s", lambda one: one.end_s - one.first_token_s, lambda one: one.output_tokens - 1),
    ):
        expected = np.quantile([numerator(one) / divisor(one) for one in of_run], [0.5, 0.95, 0.99])
        assert np.quantile(getattr(run.last.requests, name), [0.5, 0.95, 0.99]) == pytest.approx(expected, abs=5e-6)


def test_open_requests_have_an_owner_and_fit_between_its_finished_ones(driving):
    keeping = Keeping(20)
    with driving(think_s=0.05, output_tokens=40, workers=2) as driver:
        LoadProber(driver, limits=LENIENT)(5, keeping, 20)
    for look in keeping.looks:
        assert len(look.pending_user) == len(look.pending_start_s) == len(set(look.pending_user))
        assert set(look.requests.user) | set(look.pending_user) <= set(range(5))
        ends = look.requests.start_s + look.requests.e2e_s
        for owner, start in zip(look.pending_user, look.pending_start_s, strict=True):
            assert (ends[look.requests.user == owner] <= start + 1e-6).all()
    assert sum(len(look.pending_user) for look in keeping.looks) > 0


def test_the_arrays_follow_the_drawn_law_in_the_servers_tokens():
    """40 were drawn, the server counts 1.5 per drawn one on the whole; a failed request counts nothing itself."""
    good = Sample(9, 0, 5.0, first_token_s=5.5, end_s=6.0, prompt_tokens=57, output_tokens=2)
    good = replace(good, asked_prompt_tokens=40, asked_tokens=3)
    arrays = to_requests([good, replace(good, user=7, intended_s=5.1, error="timeout")], 4.0, ratio=1.5)
    assert arrays.user.tolist() == [0, 1]
    assert arrays.prompt_tokens.tolist() == [60, 60]
    assert arrays.output_tokens.tolist() == [2, 3]


def test_the_searchs_control_variate_reads_a_real_probe(driving):
    """Its replay of the probe covers nearly all of it, and where every request keeps the SLO it corrects nothing."""
    law = {"dist": "uniform", "min": 10, "max": 30}
    demand = Demand(*(Dist(dist="constant", mean=mean) for mean in (40, 20, 0.1)))
    with driving(think_s=0.1, output_tokens=law) as driver:
        run = LoadProber(driver, limits=LENIENT)(3, lambda look: len(look.requests) < 30, 20)
    control = Control(Twin(slots=3, prefill=2000.0, decode=(250.0, 500.0, 750.0), queue_limit=None), demand, Slo(0.001))
    missed = control.deviations(run.last, 0.25)
    assert (missed[:10] == 0.75).all(), "a threshold of 1 ms, and 40 tokens of prompt take 20 ms: the twin misses all"
    easy = Control(control.twin, demand, Slo(ttft_s=5.0))
    assert set(easy.deviations(run.last, 0.0)) == {0.0}


def test_prompts_that_come_out_of_a_cache_void_the_probe(driving):
    alone = Calibration(read_tokens_per_s=1000)
    with driving("counting:50:10", think_s=0.02) as driver:  # 5,000 tokens/s
        run = LoadProber(driver, limits=LENIENT, calibration=alone)(3, lambda look: not look.invalid, 20)
        warm = LoadProber(driver, limits=LENIENT)(3, Keeping(25), 20)
    assert run.invalid_reasons[0].startswith("prompts out of a cache: read at 5000 tokens/s")
    assert warm.invalid_reasons == ()


def test_prompts_that_the_server_cuts_fail_and_are_noted(driving):
    with driving("counting:50:50", prompt_tokens=500, think_s=0.02) as driver:
        run = LoadProber(driver, limits=LENIENT)(2, Keeping(6), 20)
    assert not run.last.requests.ok.any()
    assert "requests failed: prompt_cut" in run.notes[0]
    assert "50 prompt tokens counted of" in run.notes[0]


def test_a_cut_request_is_not_among_the_arrays():
    good = Sample(0, 0, 5.0, first_token_s=5.5, end_s=6.0, output_tokens=2)
    arrays = to_requests([good, replace(good, seq=1, intended_s=4.0, error="cancelled")], 4.0)
    assert arrays.start_s.tolist() == [1.0]
    assert arrays.ttft_s.tolist() == [0.5]


def test_the_baseline_has_the_servers_own_rates(driving):
    with driving(output_tokens=10, think_s=60) as driver:
        measured = baseline(driver, requests=2)
    # The server says: 33 prompt tokens in 2 s, 10 tokens in 5 s.
    assert measured.prefill_tokens_per_s == pytest.approx(16.5)
    assert measured.decode_tokens_per_s == pytest.approx(2)
    assert measured.requests >= 2
    assert measured.short_answers == 0


def test_a_baseline_without_one_success_says_what_came_instead(driving):
    with driving("status:503") as driver, pytest.raises(MeasurementError, match="503 server busy"):
        baseline(driver, max_seconds=1)
