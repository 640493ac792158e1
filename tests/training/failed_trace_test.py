"""A step that fails while it is traced leaves nothing half-made behind."""

import keras
import numpy as np
import pytest

from tf_dpadaptive import PrivacyPlan, optimizers, privatize
from tf_dpadaptive.training import step

PLAN = PrivacyPlan(1.0, expected_batch_size=4, num_examples=20, num_steps=9)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("kind", [optimizers.DPSGD, optimizers.DPAdam])
def test_a_fit_after_a_failed_first_step_trains_as_if_it_were_the_first(
    monkeypatch, kind, built
):
    # Variables that were made in the failed trace had no values, and the
    # next fit died of an error that named nothing.
    linear = keras.layers.Dense(1, use_bias=False)
    model = privatize(keras.Sequential([linear]))
    if built:
        model.build((None, 2))
    model.compile(kind(0.1, 1.0, PLAN, seed=1), loss="mse")
    x = np.random.default_rng(0).standard_normal((20, 2)).astype("float32")
    data = PLAN.batches(x, x[:, :1], seed=1)

    def fail(*_):
        raise ValueError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(step, "show", fail)
        with pytest.raises(ValueError, match="planted"):
            model.fit(data, steps_per_epoch=1, verbose=0)
    assert model.ledger.updates == 0
    for variable in model.optimizer.variables[2:]:
        np.testing.assert_array_equal(variable, np.zeros(variable.shape))
    before = model.get_weights()[0]
    assert np.all(np.isfinite(before))
    model.fit(data, steps_per_epoch=2, verbose=0)
    assert model.ledger.updates == 2
    assert np.all(np.isfinite(model.get_weights()[0]))
    assert np.any(model.get_weights()[0] != before)
