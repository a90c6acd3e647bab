"""Values that are out of the usual, and values that only look as if they were."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_ft.decide.spikes import Limits, Odd, Series

NAN, INF = math.nan, math.inf
LIMITS = Limits(window=16, least=4, deviations=5.0)


def told(values, limits=LIMITS):
    series = Series("loss", limits)
    found = [series.take(step, value) for step, value in enumerate(values)]
    return [(odd.step, odd.oddness) for odd in found if odd is not None]


USUAL = Limits(window=128, least=32, deviations=12.0)
"""The defaults of a job file."""

LEVEL = [2.0, 2.1, 1.9, 2.0]
"""Their median is 2.0, their median absolute deviation 0.05: a deviation is 0.074."""


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        pytest.param([*LEVEL, 2.37], [], id="within-five-deviations"),
        pytest.param([*LEVEL, 2.38], [(4, "spike")], id="beyond"),
        pytest.param([*LEVEL, -9.0], [], id="downwards-is-no-failure"),
        pytest.param([2.0, 2.1, 1.9, 99.0], [], id="too-few-to-know-what-is-usual"),
        pytest.param([NAN], [(0, "nan")], id="nan-at-once"),
        pytest.param([2.0, INF], [(1, "infinite")], id="infinite-at-once"),
        pytest.param([2.0, -INF], [(1, "infinite")], id="minus-infinite"),
        pytest.param([*LEVEL, 9.0, 9.0, NAN, 9.0], [(4, "spike")], id="the-first-of-a-row"),
        pytest.param([*LEVEL, 9.0, 2.0, 9.0], [(4, "spike"), (6, "spike")], id="again-after-a-usual-one"),
        pytest.param([5.0] * 8 + [5.24], [], id="a-flat-loss-may-move-a-little"),
        pytest.param([5.0] * 8 + [5.26], [(8, "spike")], id="and-not-more"),
        pytest.param([0.0] * 8 + [0.0], [], id="zeros"),
        pytest.param([0.0] * 8 + [1e-9], [(8, "spike")], id="from-zeros"),
        pytest.param([1e308] * 8 + [1.7e308], [(8, "spike")], id="the-largest-floats"),
    ],
)
def test_what_is_out_of_the_usual(values, odd):
    assert told(values) == odd


def test_a_new_level_is_usual_after_a_window():
    assert told([2.0] * 20 + [11.0] * 40 + [90.0]) == [(20, "spike"), (60, "spike")]


def test_what_it_says():
    series = Series("grad_norm", LIMITS)
    for step, value in enumerate(LEVEL):
        assert series.take(step, value) is None
    odd = series.take(4, 9.0)
    assert odd is not None
    assert odd.text == "gradient norm is 9 at step 4, 94.4 deviations above 2"
    assert Odd(7, "loss", "nan", NAN).text == "loss is NaN at step 7"
    assert Odd(7, "loss", "infinite", INF).text == "loss is infinite at step 7"


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_loss_that_falls_is_no_spike(seed):
    """Noise of a twentieth around an exponential fall, over 3000 steps, with the limits that are the default."""
    noise = random.Random(seed)
    losses = [1.5 + 9 * math.exp(-step / 400) * noise.gauss(1, 0.05) for step in range(3000)]
    assert told(losses, USUAL) == []
    losses[2500] *= 3
    assert told(losses, USUAL) == [(2500, "spike")]


@given(st.lists(st.floats(), max_size=60))
def test_whatever_comes_is_judged(values):
    for step, oddness in told(values, Limits(window=8, least=2, deviations=3.0)):
        names = {"nan": math.isnan, "infinite": math.isinf, "spike": math.isfinite}
        assert names[oddness](values[step])
