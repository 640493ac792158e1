"""Every method on awkward models: low precision, frozen, idle, large ones."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers import optimizers_test as contracts
from tests.optimizers.contract import B, plan_of
from tf_dpadaptive import optimizers as dpa
from tf_dpadaptive import privatize

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*feeds (on )?its own noise", "ignore:.*feeds its own noise back"
)
# One contract a class of the package.
METHODS = list(
    {
        contract.kind: contract
        for name, contract in vars(contracts).items()
        if name.endswith("Test") and contract.kind is not None
    }.values()
)
FEATURES = 5


def optimizer_of(contract: Any, inputs: Any, targets: Any, **plan: Any) -> Any:
    """The method with its test's arguments; public data where it takes any."""
    made = contract().make(plan_of(**plan))
    if contract.public:
        made.set_public_batches([(inputs[:B], targets[:B])])
    return made


def features() -> tuple[np.ndarray, np.ndarray]:
    """Data of which the first two features are 0: so are their gradients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * B, FEATURES)).astype("float32")
    x[:, :2] = 0
    return x, rng.integers(0, 3, 3 * B)


def trained(model: Any, contract: Any, x: Any, y: Any, **plan: Any) -> Any:
    model = privatize(model)
    model.compile(
        optimizer_of(contract, x, y, **plan),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(B, True)
    history = model.fit(rows, verbose=0).history
    assert np.all(np.isfinite(history["loss"]))
    for variable in [*model.variables, *model.optimizer.variables]:
        value = keras.ops.convert_to_numpy(variable)
        assert np.all(np.isfinite(np.asarray(value, "float64"))), variable.path
    return model


@pytest.mark.parametrize("contract", METHODS)
def test_float16_stays_finite_where_the_second_moment_is_zero(contract):
    x, y = features()
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(4, activation="tanh", dtype="mixed_float16"),
            keras.layers.Dense(3, dtype="mixed_float16"),
        ]
    )
    before = model.get_weights()[0]
    # Without noise the second moment of a feature that is 0 stays exactly 0.
    model = trained(model, contract, x, y, noise_multiplier=0.0)
    dtypes = {v.dtype for v in model.optimizer.variables}
    assert dtypes <= {"float32", "int32", "int64", "uint8"}
    after = model.get_weights()[0]
    assert np.any(after[2:] != before[2:])
    if contract.kind is dpa.DPMicroAdam:
        return  # its 4-bit codes do not hold 0 exactly
    decay = 0.1 * 0.004 * 3 if contract.kind is dpa.DPAdamW else 0.0
    np.testing.assert_allclose(after[:2], before[:2], rtol=1.1 * decay)


class Idle(keras.Model):
    """A frozen layer, a trained one, and one that the output does not need.

    All in bfloat16.
    """

    def __init__(self) -> None:
        super().__init__()
        dense = partial(keras.layers.Dense, dtype="mixed_bfloat16")
        self.frozen = dense(4, trainable=False, name="frozen")
        self.idle = dense(2, name="idle")
        self.used = dense(3, name="used")

    def build(self, input_shape: Any) -> None:
        self.frozen.build((None, FEATURES))
        self.idle.build((None, FEATURES))
        self.used.build((None, 4))

    def call(self, x: Any) -> Any:
        return self.used(self.frozen(x))


@pytest.mark.parametrize("contract", METHODS)
def test_frozen_and_unconnected_variables_stay_as_they_are(contract):
    x, y = features()
    model = Idle()
    model.build((None, FEATURES))
    before = {v.path: v.numpy() for v in model.variables}
    model = trained(model, contract, x, y)
    for variable in model.variables:
        moved = np.any(variable.numpy() != before[variable.path])
        assert moved == ("used" in variable.path), variable.path


@pytest.mark.slow
@pytest.mark.parametrize("contract", METHODS)
def test_an_embedding_of_a_real_vocabulary(contract):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 30522, (B, 6)).astype("int32")
    y = rng.integers(0, 3, B)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(30522, 128),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    before = model.get_weights()
    model = trained(model, contract, x, y)
    assert model.ledger.updates == 1
    moved = [
        np.mean(a != b)
        for a, b in zip(model.get_weights(), before, strict=True)
    ]
    # Noise reaches all rows, not only those that were looked up.
    sparse = contract.kind is dpa.DPMicroAdam
    assert moved[0] > (0.29 if sparse else 0.99)
