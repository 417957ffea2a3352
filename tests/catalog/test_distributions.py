import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deployctl.catalog.distributions import Dist


def dists() -> st.SearchStrategy[Dist]:
    mean = st.floats(1, 1000)
    return st.one_of(
        st.builds(lambda m, cv: Dist(dist="lognormal", mean=m, cv=cv), mean, st.floats(0.05, 2)),
        st.builds(
            lambda m, cv, hi: Dist(dist="lognormal", mean=m, cv=cv, min=2, max=2 + hi), mean, st.floats(0.05, 2), mean
        ),
        st.builds(lambda m: Dist(dist="exponential", mean=m), mean),
        st.builds(lambda a, b: Dist(dist="uniform", min=a, max=a + b), mean, mean),
        st.builds(lambda m: Dist(dist="constant", mean=m), mean),
        st.builds(lambda v: Dist(dist="empirical", values=tuple(v)), st.lists(mean, min_size=1, max_size=20)),
    )


@settings(deadline=None, max_examples=50)
@given(dists(), st.floats(0, 0.999), st.floats(0, 0.999))
def test_quantiles_never_decrease(dist: Dist, p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert dist.quantile(low) <= dist.quantile(high) * (1 + 1e-12)


@settings(deadline=None, max_examples=50)
@given(dists())
def test_samples_stay_within_the_bounds_and_follow_the_quantiles(dist: Dist) -> None:
    drawn = dist.sample(np.random.default_rng(1), 4000)
    assert drawn.shape == (4000,)
    assert drawn.min() >= (dist.min or 0)
    assert drawn.max() <= (math.inf if dist.max is None else dist.max)
    # 4,000 draws: the share below a quantile is within 5 standard deviations (0.04) of it.
    if dist.dist in {"exponential", "uniform"}:
        for p in (0.1, 0.5, 0.9):
            assert abs((drawn <= dist.quantile(p)).mean() - p) < 0.04


def test_a_lognormal_of_mean_100_and_cv_1_has_the_textbook_quantiles() -> None:
    # sigma^2 = ln 2, mu = ln 100 - ln(2)/2: median 100/sqrt(2) = 70.71; 99 %: exp(mu + 2.3263 * 0.83255) = 490.6
    dist = Dist(dist="lognormal", mean=100, cv=1)
    assert dist.quantile(0.5) == pytest.approx(70.7107, rel=1e-5)
    assert dist.quantile(0.99) == pytest.approx(490.64, rel=1e-3)


def test_an_exponential_of_mean_20_has_its_median_at_20_ln_2() -> None:
    assert Dist(dist="exponential", mean=20).quantile(0.5) == pytest.approx(13.862944, rel=1e-6)


def test_the_mean_of_a_clamped_exponential_is_the_limited_expected_value() -> None:
    # E[min(X, 20)] = 20 (1 - 1/e) = 12.6424 for mean 20
    assert Dist(dist="exponential", mean=20, max=20).expected() == pytest.approx(12.6424, rel=1e-5)


@settings(deadline=None, max_examples=50)
@given(dists())
def test_the_expected_value_is_the_mean_of_many_draws(dist: Dist) -> None:
    drawn = dist.sample(np.random.default_rng(7), 20000)
    spread = drawn.std() / math.sqrt(len(drawn))
    assert dist.expected() == pytest.approx(drawn.mean(), abs=6 * spread + 1e-9 * dist.mean + 0.02 * dist.mean)


def test_counts_are_whole_and_at_least_one() -> None:
    drawn = Dist(dist="exponential", mean=0.4).sample_counts(np.random.default_rng(0), 100)
    assert drawn.dtype == np.int64
    assert drawn.min() == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"dist": "lognormal", "mean": 5}, "a lognormal distribution needs cv"),
        ({"dist": "exponential"}, "an? exponential distribution needs mean"),
        ({"dist": "exponential", "mean": 5, "cv": 1}, "takes no cv"),
        ({"dist": "uniform", "min": 5, "max": 1}, "min 5 is above max 1"),
        ({"dist": "normal", "mean": 5}, "lognormal"),
        ({"dist": "lognormal", "mean": 0, "cv": 1}, "above 0"),
        ({"dist": "empirical", "values": []}, "needs values|at least 1"),
        ({"dist": "empirical", "values": [-1, 2]}, "not be negative"),
        ({"dist": "constant", "mean": float("nan")}, "finite"),
    ],
)
def test_a_wrong_distribution_is_refused_with_what_is_wrong(body: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Dist.model_validate(body)


def test_a_dumped_distribution_reads_back_as_itself() -> None:
    for dist in (
        Dist(dist="uniform", min=1, max=3),
        Dist(dist="empirical", values=(1, 5)),
        Dist(dist="constant", mean=2),
    ):
        assert Dist.model_validate(dist.model_dump()) == dist
