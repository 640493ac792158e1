"""Public data of `DPAdamSideInformation`: a fixed pool, a slice a step."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive import PrivacyPlan, privatize
from tf_dpadaptive.optimizers import DPAdamSideInformation

B, N, BETA_2 = 4, 20, 0.5


def public_batches(batches: int = 3, features: int = 2) -> list[Any]:
    rng = np.random.default_rng(4)
    return [
        (
            rng.standard_normal((5, features)).astype("float32"),
            rng.standard_normal((5, 1)).astype("float32"),
        )
        for _ in range(batches)
    ]


def private_data(n: int = N) -> Any:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, 2)).astype("float32")
    return x, x[:, :1]


def plan_of() -> PrivacyPlan:
    return PrivacyPlan(
        1.0, expected_batch_size=B, num_examples=N, num_steps=60, delta=1e-2
    )


def compiled(model: Any = None, **own: Any) -> Any:
    """A linear model w·x with the squared error, at w = 0."""
    if model is None:
        linear = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )
        model = privatize(keras.Sequential([keras.Input((2,)), linear]))
    compile_arguments = {
        k: own.pop(k) for k in ("run_eagerly", "jit_compile") if k in own
    }
    given = {"learning_rate": 0.0, "l2_norm_clip": 1.0, "beta_2": BETA_2}
    optimizer = DPAdamSideInformation(plan=plan_of(), seed=1, **given, **own)
    model.compile(optimizer, loss="mse", **compile_arguments)
    return model


def trained(model: Any, steps: int) -> Any:
    model.fit(
        plan_of().batches(*private_data()), steps_per_epoch=steps, verbose=0
    )
    return model


def velocity(model: Any) -> np.ndarray:
    return model.optimizer._slots[0][1].numpy()


@pytest.mark.parametrize(
    "mode",
    [
        {"run_eagerly": True},
        {},
        pytest.param({"jit_compile": True}, marks=pytest.mark.xla),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_each_step_takes_the_next_public_batch(mode, scaled):
    steps, pool = 5, public_batches()
    model = compiled(public_batches=pool, scale_then_privatize=scaled, **mode)
    trained(model, steps)
    # The learning rate is 0, so w stays 0: h = mean of -2 y x over the batch.
    gradients = [np.mean(-2 * y * x, axis=0)[:, None] for x, y in pool]
    expected = np.zeros((2, 1))
    for t in range(steps):
        h = gradients[t % len(pool)]
        expected = BETA_2 * expected + (1 - BETA_2) * h**2
    np.testing.assert_allclose(velocity(model), expected, rtol=1e-5)


def test_the_pool_is_read_once_from_any_iterable():
    read = []

    def batches():
        for batch in public_batches():
            read.append(1)
            yield batch

    model = trained(compiled(public_batches=batches()), 4)
    assert len(read) == 3
    x, y = (
        np.concatenate(parts) for parts in zip(*public_batches(), strict=True)
    )
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    same = trained(compiled(public_batches=dataset), 4)
    np.testing.assert_array_equal(velocity(model), velocity(same))


def test_public_weights_and_float64_are_taken():
    x, y = public_batches(1)[0]
    weight = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    pool = [(x.astype("float64"), y.astype("float64"), weight)]
    model = trained(compiled(public_batches=pool), 1)
    h = -2 * y[0] * x[0] / 5
    np.testing.assert_allclose(
        velocity(model)[:, 0], (1 - BETA_2) * h**2, rtol=1e-5
    )


def test_public_data_are_in_no_config_and_no_file(tmp_path):
    model = trained(compiled(public_batches=public_batches()), 2)
    config = str(keras.optimizers.serialize(model.optimizer))
    assert "public" not in config.replace("SideInformation", "")
    # Two moments of two numbers, and no array of the pool's 30 and more.
    sizes = [int(np.prod(v.shape)) for v in model.optimizer.variables]
    assert max(sizes) == 2
    model.save(tmp_path / "model.keras")
    x, _ = public_batches()[0]
    assert x[0].tobytes() not in (tmp_path / "model.keras").read_bytes()


def test_after_a_load_the_first_step_says_what_is_missing(tmp_path):
    path = tmp_path / "model.keras"
    trained(compiled(public_batches=public_batches()), 2).save(path)
    model = privatize(keras.models.load_model(path))
    optimizer = model.optimizer
    model.compile(optimizer, loss="mse")
    before = velocity(model)
    with pytest.raises(RuntimeError, match="set_public_batches"):
        trained(model, 1)
    # Nothing has happened, and what the message says helps.
    assert optimizer.noise_step == 0
    assert model.ledger.updates == 2
    np.testing.assert_array_equal(velocity(model), before)
    optimizer.set_public_batches(public_batches())
    trained(model, 1)
    assert model.ledger.updates == 3
    assert np.any(velocity(model) != before)


def test_without_public_data_the_first_step_raises():
    with pytest.raises(RuntimeError, match="set_public_batches"):
        trained(compiled(), 1)


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}])
@pytest.mark.parametrize(
    "pool",
    [
        public_batches(features=3),
        [(x[:, :1], y) for x, y in public_batches()],
        [(x, y[:2]) for x, y in public_batches()],
    ],
)
def test_public_data_of_another_shape_are_refused_by_name(pool, mode):
    model = compiled(public_batches=pool, **mode)
    with pytest.raises(ValueError, match="`public_batches`.*shapes"):
        trained(model, 1)
    assert model.optimizer.noise_step == 0
    assert model.ledger.updates == 0
    model.optimizer.set_public_batches(public_batches())
    trained(model, 1)
    assert model.ledger.updates == 1


def test_bad_pools_are_refused_at_once():
    with pytest.raises(ValueError, match="at least one"):
        compiled(public_batches=[])
    mixed = [*public_batches(1), (np.ones((2, 2)), np.ones((2, 1)))]
    with pytest.raises(ValueError, match="same shapes"):
        compiled(public_batches=mixed)


def test_the_pool_is_fixed_once_a_step_has_used_it():
    # A compiled step holds the pool that it was traced with.
    model = compiled(public_batches=public_batches())
    model.optimizer.set_public_batches(public_batches(2))
    trained(model, 1)
    with pytest.raises(RuntimeError, match="Compile a new"):
        model.optimizer.set_public_batches(public_batches())
