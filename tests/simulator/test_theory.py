"""The model against queueing theory, wherever theory has an exact answer.

Sources:
- machine-repairman M/M/c//N: Gross, Shortle, Thompson, Harris, "Fundamentals of Queueing Theory", 4th ed., section 2.7;
- what an arrival of a closed network sees is the balance with one customer less: Sevcik and Mitrani, "The distribution
  of queuing network states at input and output instants", JACM 28(2), 1981; Lavenberg and Reiser, 1980;
- processor sharing, also with a rate that depends on the number present, has the product form whatever the
  distributions of work and think time: Baskett, Chandy, Muntz, Palacios, JACM 22(2), 1975;
- M/G/1-PS: the mean response of a request with work x is x / (1 - rho): Kleinrock, "Queueing Systems" II, section 4.4;
- N = X (R + Z), Little's law for a closed loop: Lazowska et al., "Quantitative System Performance", section 3.4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from deployctl.simulator.scenario import Scenario, parse_scenario
from deployctl.simulator.virtual import ClosedLoop, closed_loop

TOKENS = 1000  # of a mean answer: fine enough that whole tokens do not show
INSTANT = 1e12  # prompt tokens/s: no prefill


def scenario(
    slots: int,
    totals: list[float],
    think_s: dict[str, Any],
    output: dict[str, Any],
    prompt: dict[str, Any] | None = None,
) -> Scenario:
    return parse_scenario(
        {
            "name": "theory",
            "server": {"slots": slots, "prefill_tokens_per_s": INSTANT, "decode_tokens_per_s": totals},
            "workload": {
                "prompt_tokens": prompt or {"dist": "constant", "mean": 1},
                "output_tokens": output,
                "think_s": think_s,
            },
            "slo": {"ttft_s": 1.0},
        }
    )


def settled(loop: ClosedLoop) -> slice:
    count = len(loop.requests())
    return slice(count // 20, count - count // 50)


def batch_error(values: NDArray[np.float64], batches: int = 50) -> float:
    size = len(values) // batches
    return float(values[: size * batches].reshape(batches, size).mean(axis=1).std(ddof=1) / math.sqrt(batches))


def balance(customers: int, think_s: float, rates: list[float]) -> NDArray[np.float64]:
    """P(k present), k = 0..customers: birth rate (customers - k)/think, death rate ``rates[k-1]`` (then the last)."""
    weights = [1.0]
    for present in range(1, customers + 1):
        weights.append(weights[-1] * (customers - present + 1) / think_s / rates[min(present, len(rates)) - 1])
    return np.array(weights) / math.fsum(weights)


@pytest.mark.parametrize(("servers", "users", "think_s"), [(1, 6, 8.0), (2, 12, 5.0), (4, 20, 4.0)])
def test_waits_of_the_machine_repairman_queue_have_their_whole_distribution(
    servers: int, users: int, think_s: float
) -> None:
    # Exponential service of mean 1 s in each of c slots: M/M/c//N.
    case = scenario(
        servers,
        [TOKENS * (k + 1.0) for k in range(servers)],
        {"dist": "exponential", "mean": think_s},
        {"dist": "exponential", "mean": TOKENS},
    )
    loop = closed_loop(case, users, np.random.SeedSequence(1))
    loop.advance(40_000)
    waits = loop.waits_s()[settled(loop)]
    seen = balance(users - 1, think_s, [k + 1.0 for k in range(servers)])
    for limit in (0.0, 0.5, 1.0, 2.0):
        # With k present, k - c + 1 departures at rate c must come first: an Erlang.
        late = sum(
            float(share)
            * sum(
                math.exp(-servers * limit) * (servers * limit) ** i / math.factorial(i) for i in range(k - servers + 1)
            )
            for k, share in enumerate(seen)
            if k >= servers
        )
        measured = (waits > limit + 1e-9).astype(float)
        assert measured.mean() == pytest.approx(late, abs=4 * batch_error(measured))
        assert batch_error(measured) < 0.01


def test_throughput_and_response_of_the_machine_repairman_queue_follow_from_its_balance() -> None:
    users, think_s, servers = 12, 5.0, 2
    case = scenario(
        servers,
        [TOKENS * 1.0, TOKENS * 2.0],
        {"dist": "exponential", "mean": think_s},
        {"dist": "exponential", "mean": TOKENS},
    )
    loop = closed_loop(case, users, np.random.SeedSequence(2))
    loop.advance(40_000)
    shares = balance(users, think_s, [1.0, 2.0])
    throughput = math.fsum(float(share) * min(k, servers) for k, share in enumerate(shares))
    response = users / throughput - think_s
    requests = loop.requests()
    kept = requests.e2e_s[settled(loop)]
    assert loop.sent / 40_000 == pytest.approx(throughput, rel=0.01)
    assert kept.mean() == pytest.approx(response, abs=4 * batch_error(kept))


OUTPUTS = {
    "constant": {"dist": "constant", "mean": TOKENS},
    "exponential": {"dist": "exponential", "mean": TOKENS},
    "lognormal": {"dist": "lognormal", "mean": TOKENS, "cv": 1.5},
}
THINKS = {"exponential": {"dist": "exponential", "mean": 6.0}, "uniform": {"dist": "uniform", "min": 0, "max": 12}}


@pytest.mark.parametrize("think", THINKS.values(), ids=THINKS)
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_processor_sharing_with_batch_dependent_rates_is_insensitive_to_distributions(
    output: dict[str, Any], think: dict[str, Any]
) -> None:
    # A slot for everybody: no queue, only sharing. Rates as in a real batch: sub-linear in the number present.
    users = 8
    rates = [k / (1 + 0.25 * (k - 1)) for k in range(1, users + 1)]
    case = scenario(users, [TOKENS * rate for rate in rates], think, output)
    loop = closed_loop(case, users, np.random.SeedSequence(3))
    loop.advance(30_000)
    shares = balance(users, 6.0, rates)
    throughput = math.fsum(float(share) * rate for share, rate in zip(shares[1:], rates, strict=True))
    kept = loop.requests().e2e_s[settled(loop)]
    assert kept.mean() == pytest.approx(users / throughput - 6.0, abs=4 * batch_error(kept))
    assert batch_error(kept) < 0.05


def test_under_processor_sharing_a_request_waits_in_proportion_to_its_work() -> None:
    # M/G/1-PS as the limit of many users: 600 of them, each thinking 1,000 s: 0.6 arrivals/s of 1 s of work each.
    users, think_s = 600, 1000.0
    case = scenario(
        users,
        [float(TOKENS)] * users,
        {"dist": "exponential", "mean": think_s},
        {"dist": "lognormal", "mean": TOKENS, "cv": 1.0},
    )
    loop = closed_loop(case, users, np.random.SeedSequence(4))
    loop.advance(150_000)
    requests = loop.requests()
    kept = slice(1000, len(requests) - 100)
    work = requests.output_tokens[kept] / TOKENS
    response = requests.e2e_s[kept]
    rho = users * 1.0 / (think_s + response.mean())  # the finite source sends a little less than 0.6/s
    for low, high in ((0.2, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, 5.0)):
        chosen = (work >= low) & (work < high)
        stretch = response[chosen] / work[chosen]
        assert stretch.mean() == pytest.approx(1 / (1 - rho), rel=0.04)


@pytest.mark.parametrize("noise", [None, {"cv": 0.2, "tau_s": 30}])
def test_littles_law_holds_in_the_closed_loop(reference: Scenario, noise: dict[str, float] | None) -> None:
    data = reference.model_dump(mode="json")
    data["server"]["speed_noise"] = noise
    seconds = 60_000.0
    loop = closed_loop(Scenario.model_validate(data), 12, np.random.SeedSequence(6))
    loop.advance(seconds)
    requests = loop.requests()
    # Seconds that users spent with a request out, by hand; the rest of users x seconds was thought.
    start, _ = loop.pending()
    out = requests.e2e_s.sum() + (seconds - start).sum()
    thought = 12 * seconds - out
    assert thought / loop.sent == pytest.approx(20.0, rel=0.03)  # the workload's mean think time
    rate = len(requests) / seconds
    assert rate * (requests.e2e_s.mean() + 20.0) == pytest.approx(12, rel=0.02)


def test_near_the_knee_the_variance_of_the_attainment_is_several_times_binomial(reference: Scenario) -> None:
    # "3-9x binomial" (the issue); measured on the means of long batches.
    loop = closed_loop(reference, 12, np.random.SeedSequence(7))
    loop.advance(250_000)
    met = (loop.requests().ttft_s <= 5.0).astype(float)[1000:]
    size = 1000
    means = met[: len(met) // size * size].reshape(-1, size).mean(axis=1)
    ratio = means.var(ddof=1) / (met.mean() * (1 - met.mean()) / size)
    assert 3 <= ratio <= 9
