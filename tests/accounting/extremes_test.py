"""Noise multipliers far from any use: no crash, and no wrong small ε."""

import dataclasses
import math

import pytest

from tf_dpadaptive.noise import BLT, BandedMF, Independent
from tf_dpadaptive.plan import ADJACENCIES, SAMPLINGS, PrivacyPlan

SIGMAS = [5e-324, 1e-300, 1e-160, 1e-30, 1e-10, 9e-4, 1e-3, 1e-2, 0.1, 1.0]
SIGMAS += [1e3, 1e6, 2e6, 1e10, 1e160, 1e300]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    from tf_dpadaptive.noise import strategies_cache

    monkeypatch.setenv(strategies_cache.VARIABLE, str(tmp_path))


def supported(plan):
    try:
        plan.epsilon()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "noise", [Independent(), BandedMF(4), BLT(2)], ids=repr
)
def test_epsilon_falls_with_noise_from_infinity_to_zero(
    noise, sampling, adjacency
):
    plan = PrivacyPlan(
        1.0, 10, 100, 10, sampling, noise, delta=1e-5, adjacency=adjacency
    )
    if not supported(plan):
        pytest.skip("refused at every noise multiplier")
    found = [
        dataclasses.replace(plan, noise_multiplier=s).epsilon() for s in SIGMAS
    ]
    assert found == sorted(found, reverse=True)
    assert found[:3] == [math.inf] * 3
    assert found[-1] == 0
    # An update that an example takes part in with certainty costs more than
    # this, and here it takes part in at least one of ten with 1 - 0.9^10 >> δ.
    for sigma, epsilon in zip(SIGMAS[3:7], found[3:7], strict=True):
        assert 1 / (2 * sigma**2) < epsilon < math.inf
