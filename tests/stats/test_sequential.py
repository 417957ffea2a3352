import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.stats.sequential import (
    Alternatives,
    confidence_sequence,
    log_e_above,
    log_e_below,
    log_e_mean_above,
    mix,
)


def test_evidence_of_a_spotless_run_is_the_hand_computed_mixture():
    # Alternatives multiply the odds of a miss, here 0.05 / 0.95, by these; each spotless request gives (1 - q) / 0.95.
    odds = 0.05 / 0.95
    alternatives = {0.0: 0.4, 0.1: 0.1, 0.2: 0.1, 0.35: 0.1, 0.5: 0.1, 0.65: 0.1, 0.8: 0.05, 0.9: 0.05}
    evidence = sum(weight * (1 / (1 + odds * m) / 0.95) ** 100 for m, weight in alternatives.items())
    assert log_e_above(100, 0, 0.95) == pytest.approx(math.log(evidence))


@pytest.mark.parametrize(("evidence", "share"), [(log_e_above, 0.95), (log_e_below, 0.9)])
def test_evidence_has_mean_one_under_the_hypothesis_itself(evidence, share):
    # E[e] = sum over k of Binomial(k; n, share) e(k) = 1 exactly: what makes it a martingale.
    n = 40
    mean = sum(
        math.comb(n, k) * share**k * (1 - share) ** (n - k) * math.exp(evidence(k, n - k, share)) for k in range(n + 1)
    )
    assert mean == pytest.approx(1.0)


def test_looking_after_every_request_errs_less_often_than_promised():
    rng = np.random.default_rng(11)
    wrong = 0
    for _ in range(300):
        hits = np.cumsum(rng.random(800) < 0.95)
        looks = range(9, 800, 10)
        wrong += any(log_e_above(hits[n], n + 1 - hits[n], 0.95) >= math.log(20) for n in looks)
    assert wrong <= 24  # 15 expected at the most; 24 is the 99 % quantile of Binomial(300, 0.05)


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_confidence_sequence_holds_the_observed_share(hits, misses):
    low, high = confidence_sequence(hits, misses, 0.05)
    assert 0 <= low <= high <= 1
    if hits + misses:
        assert low <= hits / (hits + misses) <= high


def test_a_confidence_sequence_narrows():
    wide, narrow = confidence_sequence(90, 10, 0.05), confidence_sequence(9000, 1000, 0.05)
    assert wide[0] < narrow[0] < 0.9 < narrow[1] < wide[1]


def test_any_choice_of_alternatives_keeps_the_mean_of_the_evidence_at_one():
    bets = Alternatives((0.2, 0.7), (0.25, 0.75))
    n, share = 30, 0.9
    mean = sum(
        math.comb(n, k) * share**k * (1 - share) ** (n - k) * math.exp(log_e_above(k, n - k, share, bets))
        for k in range(n + 1)
    )
    assert mean == pytest.approx(1.0)


def test_betting_on_a_mean_is_the_hand_computed_mixture_of_three_stakes():
    # Stakes are 0.1, 0.35 and 0.9 of 1 / (mean - least) = 2; a value 0.25 above the mean pays 1 + 0.5 of that share.
    gains = [1 + share * 2 * 0.25 for share in (0.1, 0.35, 0.9)]
    assert log_e_mean_above(np.array([0.75]), 0.5, 0.0, 1.0) == pytest.approx(math.log(sum(gains) / 3))


def test_betting_on_a_fair_coin_gains_nothing_on_average():
    n = 12
    mean = sum(
        math.comb(n, k) * 0.5**n * math.exp(log_e_mean_above(np.repeat([1.0, 0.0], [k, n - k]), 0.5, 0.0, 1.0))
        for k in range(n + 1)
    )
    assert mean == pytest.approx(1.0)


def test_values_that_never_fall_below_their_mean_are_soon_believed():
    # Host and twin agree in every request: only the twin's long-run attainment is left, 0.02 above the target.
    assert log_e_mean_above(np.full(250, 0.97), 0.95, 0.0, 1.0) > math.log(20)


def test_mixed_evidence_is_the_weighted_mean():
    assert mix(np.log([4.0, 1.0]), np.array([0.25, 0.75])) == pytest.approx(math.log(1.75))
