"""Dense factorisations: the numbers of the notes, and several epochs."""

import numpy as np
import pytest

from tf_dpadaptive.noise.dense import DenseMF


@pytest.mark.parametrize(
    ("n", "expected"),
    [(2, 1.144123), (8, 1.494414), (64, 2.099856), (256, 2.524414)],
)
def test_rmse_of_the_notes(n, expected):
    errors = DenseMF().prefix_errors_squared(n)
    np.testing.assert_allclose(np.sqrt(np.mean(errors)), expected, rtol=1e-6)


def test_kept_order_has_the_sensitivity_of_orthogonal_columns():
    mechanism, n = DenseMF(epochs=4), 24
    assert mechanism.periodic_sensitivity(n, 6, 4) == 2.0
    c = mechanism.strategy_matrix(n)
    worst = max(np.linalg.norm(np.sum(c[:, j::6], axis=1)) for j in range(6))
    np.testing.assert_allclose(worst, 2.0, rtol=1e-6)
    # Only separated, columns overlap.
    assert mechanism.sensitivity(n, 6, 4) > 2.0


def test_kept_order_with_another_period_is_bounded():
    mechanism, n = DenseMF(epochs=4), 24
    c = mechanism.strategy_matrix(n)
    for period, k in ((5, 3), (12, 2)):
        worst = max(
            np.linalg.norm(np.sum(c[:, j::period][:, :k], axis=1))
            for j in range(n)
        )
        bound = mechanism.periodic_sensitivity(n, period, k)
        assert worst * (1 - 1e-12) <= bound
        assert bound <= mechanism.sensitivity(n, period, k) * (1 + 1e-12)


def test_epochs_beat_one_epoch_at_equal_privacy():
    n, k = 32, 4

    def error(mechanism):
        squares = mechanism.prefix_errors_squared(n)
        return mechanism.periodic_sensitivity(n, n // k, k) * np.sqrt(
            np.mean(squares)
        )

    assert error(DenseMF(epochs=k)) < 0.95 * error(DenseMF())


def test_more_epochs_than_steps_are_refused():
    with pytest.raises(ValueError, match="epochs=5, num_steps=4"):
        DenseMF(epochs=5).strategy_matrix(4)
