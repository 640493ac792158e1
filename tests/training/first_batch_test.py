"""`fit` looks at its first batch before it trains on it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.layerwise import passes, registry
from tf_dpadaptive.clipping.layerwise.forms import Outer
from tf_dpadaptive.clipping.self_check import WrongGradients
from tf_dpadaptive.training import first_batch

pytestmark = pytest.mark.filterwarnings(
    "ignore:SAMPLING NOT VERIFIED",
    "ignore:Batches of",
    "ignore:Your input ran out of data",
)

ROWS = build.ROWS


def _model(**options: Any) -> Any:
    return build.compiled(
        **{"optimizer": build.sgd(), "self_check": True, **options}
    )


class _Rows(keras.utils.PyDataset):
    """Four batches."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = build.data(4 * ROWS)
        return x[index::4], y[index::4]


def _generator() -> Any:
    for i in range(4):
        yield _Rows()[i]


def _arrays(model: Any) -> None:
    model.fit(*build.data(4 * ROWS), verbose=0)


def _dataset(model: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices(build.data(4 * ROWS))
    model.fit(data.batch(ROWS), verbose=0)


def _planned(model: Any) -> None:
    plan = model.optimizer.plan
    model.fit(plan.batches(*build.data(4 * ROWS)), verbose=0)


def _one_by_one(model: Any) -> None:
    for i in range(4):
        model.train_on_batch(*_Rows()[i])


WAYS: dict[str, Callable[[Any], None]] = {
    "arrays": _arrays,
    "dataset": _dataset,
    "plan.batches": _planned,
    "PyDataset": lambda model: model.fit(_Rows(), verbose=0),
    "generator": lambda model: model.fit(_generator(), verbose=0),
    "train_on_batch": _one_by_one,
}


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for Dense that finds gradients half as long as they are."""
    right = registry.find_rule(keras.layers.Dense(1))

    def wrong(use: Any) -> Any:
        for variable, form in right.function(use):
            if isinstance(form, Outer):
                form = form._replace(left=0.5 * form.left)
            yield variable, form

    monkeypatch.setitem(
        registry._RULES,
        keras.layers.Dense,
        dataclasses.replace(right, function=wrong),
    )


@pytest.mark.parametrize("way", WAYS)
class EveryWayOfTrainingTest:
    def test_a_wrong_rule_is_caught_before_the_first_update(
        self, way: str, halved: None
    ) -> None:
        model = _model()
        before = build.state(model)
        with pytest.raises(WrongGradients, match="kernel"):
            WAYS[way](model)
        assert build.unchanged(model, before)

    def test_no_batch_is_lost_or_checked_twice(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        check = first_batch.self_check
        monkeypatch.setattr(
            first_batch,
            "self_check",
            lambda *args, **kwargs: seen.append(check(*args, **kwargs)),
        )
        model = _model()
        WAYS[way](model)
        assert model.ledger.updates == 4
        WAYS[way](model)
        assert len(seen) == 1


def test_the_check_changes_nothing_of_the_training() -> None:
    def trained(self_check: bool) -> np.ndarray:
        keras.utils.set_random_seed(3)
        model = build.mlp()
        model.add(keras.layers.Dropout(0.5))
        model = build.compiled(model, self_check=self_check)
        model.train_on_batch(*build.data())
        return build.flat(model)

    np.testing.assert_array_equal(trained(True), trained(False))


def test_it_can_be_turned_off(halved: None) -> None:
    model = build.compiled(self_check=False)
    model.fit(*build.data(), verbose=0)
    assert model.ledger.updates == 1


def test_rows_of_another_shape_are_checked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(
        first_batch, "self_check", lambda *args, **kwargs: seen.append(1)
    )
    model = keras.Sequential(
        [
            keras.Input((None, 4)),
            keras.layers.Dense(3),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    model = _model(model=model, optimizer=build.sgd())
    for steps in (2, 3, 2):
        x = np.ones((ROWS, steps, 4), np.float32)
        model.train_on_batch(x, np.zeros(ROWS, np.int32))
    assert len(seen) == 2


def test_batches_of_padding_alone_are_passed_over(halved: None) -> None:
    model = _model()
    x, y = build.data()
    empty = Batch(x, y, None, np.ones(ROWS, bool))
    full = Batch(x, y, None, np.zeros(ROWS, bool))
    first_batch.check_engine(model, [empty, empty])
    assert not model.private.checked
    with pytest.raises(WrongGradients, match="kernel"):
        first_batch.check_engine(model, [empty, full])


def test_the_geometry_of_the_optimizer_passes() -> None:
    optimizer = dpa.optimizers.AdaCliP(
        0.1, 0.5, build.plan(0.1, num_examples=8), seed=1, h2=1.0
    )
    model = _model(optimizer=optimizer)
    for _ in range(2):
        model.fit(*build.data(), verbose=0)
    model.private.checked.clear()
    model.fit(*build.data(), verbose=0)
    assert model.ledger.updates == 3


class _MixesManyRows(keras.layers.Layer):
    """Subtracts the mean of the batch where there are more than 16 rows."""

    def call(self, x: Any) -> Any:
        many = tf.shape(x)[0] > 16
        return tf.where(many, x - tf.reduce_mean(x, 0, keepdims=True), x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def _mixing_many() -> Any:
    return build.compiled(
        keras.Sequential(
            [keras.Input((4,)), _MixesManyRows(), keras.layers.Dense(3)]
        ),
        build.sgd(1.0, batch=32),
        self_check=True,
    )


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_a_small_first_batch_shows_what_large_ones_do(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The graph is not looked at, which would have shown it before.
    monkeypatch.setattr(passes, "refuse_meeting_rows", lambda *_: None)
    model = _mixing_many()
    before = build.flat(model)
    x, y = build.data(32)
    with pytest.raises((WrongGradients, ValueError)):
        model.train_on_batch(x[:rows], y[:rows])
    np.testing.assert_array_equal(build.flat(model), before)


def test_what_may_mix_in_large_batches_takes_examples_alone() -> None:
    model = _mixing_many()
    with build.log_lines() as lines:
        model.train_on_batch(*build.data(32))
    assert any("The rows of a batch meet in" in line for line in lines)
    assert model.private.setup.engine.name == "vectorized"


def test_steps_that_cancel_are_clipped() -> None:
    # One layer on two inputs nearly alike, outputs subtracted: what is left
    # of the gradient is far below the rounding of its terms.
    shared = keras.layers.Dense(1)
    one, two = keras.Input((10_000,)), keras.Input((10_000,))
    model = build.compiled(
        keras.Model([one, two], shared(one) - shared(two)),
        build.sgd(batch=1, clip=1.0),
        loss=lambda y, p: 1e6 * tf.reduce_sum(p, -1),
        run_eagerly=False,
        jit_compile=False,
    )
    for scale, apart in ((1.1, 2e-3), (1.3, 5e-3), (1.7, 1e-2)):
        x = np.full((1, 10_000), scale, np.float32)
        other = (x * (1 + apart)).astype(np.float32)
        before = build.flat(model)
        model.train_on_batch([x, other], np.zeros((1, 1), np.float32))
        moved = np.linalg.norm(build.flat(model) - before)
        assert 0.99 < moved < 1.001
