"""The open loop through a real Locust."""

import json
from time import monotonic

import numpy as np
import pytest

from deployctl.load.prober import LoadProber
from deployctl.load.store import read_samples


def gather(driver, enough, timeout_s=20):
    requests = []
    deadline = monotonic() + timeout_s
    while not enough(requests) and monotonic() < deadline:
        requests += driver.poll(0.2).requests
    driver.set_users(0)
    while monotonic() < deadline + timeout_s:
        batch = driver.poll(0.2)
        requests += batch.requests
        if batch.level is not None and not batch.level.users and not batch.level.rate_per_s:
            return sorted(requests, key=lambda sample: sample.intended_s)
    raise AssertionError("the open loop did not drain")


def test_a_stall_counts_for_every_request_that_should_have_started_in_it(fake_with, driving):
    """Arrivals every 100 ms while the server stalls for 10 s: the waits are 10 s, 9.9 s, ... 0: uniform on (0, 10).

    A client that waits for an answer before it sends the next request would see one slow request among many.
    """
    stall, rate = 10.0, 10.0
    with fake_with() as url, driving(f"stall:{stall}", url=url, timeout_s=20) as driver:
        driver.set_rate(rate, "constant")
        requests = gather(driver, lambda requests: len(requests) > 1.1 * stall * rate)
    assert np.diff([sample.intended_s for sample in requests]) == pytest.approx(1 / rate, abs=1e-6)
    caught = [sample.ttft_s for sample in requests[: int(stall * rate)]]
    assert len(caught) == 100
    analytic = stall - np.arange(100) / rate
    assert np.quantile(caught, 0.99) == pytest.approx(np.quantile(analytic, 0.99), rel=0.02)
    assert np.quantile(caught, 0.5) == pytest.approx(np.quantile(analytic, 0.5), rel=0.05)


def test_nothing_that_the_server_does_holds_an_arrival_back(driving):
    with driving("slow:1.5", output_tokens=1) as driver:
        driver.set_rate(20, "constant")
        requests = gather(driver, lambda requests: len(requests) >= 10)
    assert len({sample.user for sample in requests}) == len(requests), "each arrival is a user of its own"
    begun = np.array([sample.intended_s for sample in requests])
    first_end = min(sample.end_s for sample in requests)
    assert (begun < first_end).sum() >= 29, "20 per second for the 1.5 s before the first answer"
    assert all(sample.ok for sample in requests)


def test_a_probe_may_ask_for_a_rate(driving):
    with driving() as driver:
        prober = LoadProber(driver, arrivals_per_s=5.0, process="constant")
        run = prober(4, lambda look: look.now_s < 2, 10)
        again = prober(2, lambda look: look.now_s < 2, 10)
    starts = np.concatenate([run.last.requests.start_s, run.last.pending_start_s])
    assert np.diff(np.sort(starts)) == pytest.approx(0.05, abs=1e-6)
    starts = np.concatenate([again.last.requests.start_s, again.last.pending_start_s])
    assert np.diff(np.sort(starts)) == pytest.approx(0.1, abs=1e-6)
    assert not any("residual" in reason for reason in run.invalid_reasons)


def test_a_log_is_replayed_with_its_own_times_texts_and_lengths(driving, tmp_path):
    log = tmp_path / "log.jsonl"
    entries = [
        {"arrival_s": 10 + 0.15 * index, "prompt": f"Pregunta {index}", "output_tokens": 3 + index}
        for index in range(6)
    ]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with driving(log=log, speed=1.5, workers=2) as driver:
        run = LoadProber(driver, replay=True)(1, lambda _: True, 20)
    requests = sorted(read_samples(driver.sample_files), key=lambda sample: sample.intended_s)
    assert [sample.output_tokens for sample in requests] == [3, 4, 5, 6, 7, 8]
    assert np.diff([sample.intended_s for sample in requests]) == pytest.approx(0.1, abs=1e-6)
    assert len(run.last.requests) == 6, "the probe is over when the log is"
    assert run.last.now_s < 10
