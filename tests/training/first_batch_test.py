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
from tf_dpadaptive.clipping.layerwise import registry
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
    return build.compiled(self_check=True, **options)


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
        0.1, 0.5, build.plan(0.1), seed=1, h2=1.0
    )
    model = _model(optimizer=optimizer)
    for _ in range(2):
        model.fit(*build.data(), verbose=0)
    model.private.checked.clear()
    model.fit(*build.data(), verbose=0)
    assert model.ledger.updates == 3
