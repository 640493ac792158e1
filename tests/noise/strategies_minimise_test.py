"""The wrapper of L-BFGS: progress, and refusal of a bad end."""

import numpy as np
import pytest
from absl import logging

from tf_dpadaptive.noise.strategies_minimise import minimise


def bowl(x):
    return float(np.sum((x - 3) ** 2)), 2 * (x - 3)


def test_it_finds_the_minimum_within_bounds():
    np.testing.assert_allclose(minimise("bowl", bowl, np.zeros(2)), 3.0)
    bounded = minimise("bowl", bowl, np.zeros(2), bounds=[(0, 1), (0, 9)])
    np.testing.assert_allclose(bounded, [1.0, 3.0])


def test_it_tells_the_log(monkeypatch):
    lines = []
    monkeypatch.setattr(
        logging, "info", lambda line, *words: lines.append(line % words)
    )
    minimise("bowl", bowl, np.zeros(2))
    assert lines[-1].startswith("Optimised bowl: √loss 1.000000 after")


def test_a_value_that_is_not_finite_is_refused():
    with pytest.raises(RuntimeError, match="cliff failed"):
        minimise("cliff", lambda x: (float("nan"), x), np.ones(2))
