"""The private step: every update is that of examples taken by themselves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_dpadaptive as dpa
from tests.training import build


class Case(NamedTuple):
    """A model with data whose per-example loss has a catch."""

    model: Callable[[], Any]
    x: Any
    y: Any
    weight: Any = None
    loss: Any = None
    compile: Any = {}


def _rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


X, Y = build.data()
WEIGHT = _rng().uniform(0.0, 3.0, 8).astype(np.float32)
TOKENS = np.array(
    [
        [1, 2, 3, 4],
        [5, 0, 0, 0],
        [2, 2, 0, 0],
        [3, 1, 4, 0],
        [0, 0, 0, 0],  # nothing but mask
        [4, 4, 4, 4],
        [1, 5, 0, 0],
        [2, 0, 0, 0],
    ],
    np.int32,
)
TAGS = _rng(4).integers(0, 3, (8, 4)).astype(np.int32)
TAG_WEIGHT = _rng(5).uniform(0.0, 2.0, (8, 4)).astype(np.float32)


def tagger(mask: bool) -> Any:
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(6, 3, mask_zero=mask),
            layers.Dense(3),
        ]
    )


def pooled() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(6, 3, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3),
        ]
    )


def two_heads() -> Any:
    one, two = keras.Input((4,), name="one"), keras.Input((2,), name="two")
    both = layers.concatenate([layers.Dense(3)(one), two])
    hidden = layers.Dense(4, activation="tanh")(both)
    return keras.Model(
        {"one": one, "two": two},
        {
            "kind": layers.Dense(3, name="kind")(hidden),
            "size": layers.Dense(1, name="size")(hidden),
        },
    )


TWO_X = {"one": X, "two": _rng(6).standard_normal((8, 2)).astype(np.float32)}
TWO_Y = {"kind": Y, "size": _rng(7).standard_normal((8, 1)).astype(np.float32)}
TWO_WEIGHT = {"kind": WEIGHT, "size": WEIGHT[::-1].copy()}
TWO_LOSS = {"kind": build.labels_loss(), "size": "mse"}


class Siamese(keras.Model):
    """Nested models, a layer used twice, and a variable read by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(4, activation="tanh")])
        self.table = layers.Embedding(3, 4)

    def call(self, x: Any) -> Any:
        halves = self.inner(x[:, :2]) + self.inner(x[:, 2:])
        self.table.build(())
        return halves @ keras.ops.transpose(self.table.embeddings)


class OwnLoss(keras.Model):
    """A model with its own `compute_loss`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return keras.ops.mean(keras.ops.logsumexp(y_pred * x[:, :1], axis=-1))


def frozen() -> Any:
    model = build.mlp()
    model.get_layer("hidden").trainable = False
    return model


def frozen_norm() -> Any:
    norm = layers.BatchNormalization()
    norm.trainable = False
    return keras.Sequential([keras.Input((4,)), norm, layers.Dense(3)])


CASES = {
    "mean": Case(build.mlp, X, Y),
    "fewer rows than B": Case(build.mlp, X[:5], Y[:5]),
    "sample weights": Case(build.mlp, X, Y, WEIGHT),
    "loss divided by weights": Case(
        build.mlp,
        X,
        Y,
        WEIGHT,
        build.labels_loss(reduction="mean_with_sample_weight"),
    ),
    "sum": Case(build.mlp, X, Y, None, build.labels_loss(reduction="sum")),
    "sequence mean": Case(lambda: tagger(False), TOKENS, TAGS),
    "weights of tokens": Case(lambda: tagger(False), TOKENS, TAGS, TAG_WEIGHT),
    "masked outputs": Case(lambda: tagger(True), TOKENS, TAGS),
    "masked outputs and weights": Case(
        lambda: tagger(True), TOKENS, TAGS, TAG_WEIGHT
    ),
    "masked pooling": Case(pooled, TOKENS, Y),
    "several outputs": Case(
        two_heads,
        TWO_X,
        TWO_Y,
        None,
        TWO_LOSS,
        {"loss_weights": {"kind": 0.5, "size": 2.0}},
    ),
    "weights of several outputs": Case(
        two_heads, TWO_X, TWO_Y, TWO_WEIGHT, TWO_LOSS
    ),
    "nested and shared": Case(Siamese, X, Y),
    "own loss": Case(OwnLoss, X, Y),
    "frozen": Case(frozen, X, Y),
    "frozen normalization": Case(frozen_norm, X, Y),
}


@pytest.mark.parametrize("clipping", ["auto", "vectorized", "sequential"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore:Batches of 5 rows")
def test_update_is_that_of_each_example_by_itself(case: Case, clipping: str):
    model = build.compiled(
        case.model(), loss=case.loss, clipping=clipping, **case.compile
    )
    model(case.x)
    # Far from the symmetry of fresh weights and zero biases.
    rng = _rng(8)
    build.assign(
        model,
        [v + 0.3 * rng.standard_normal(v.shape) for v in build.values(model)],
    )
    gradients = build.alone(model, case.x, case.y, case.weight)
    # Half of the examples are clipped.
    clip = float(np.median(np.linalg.norm(gradients, axis=1)))
    vars(model.optimizer)["l2_norm_clip"] = clip  # it is fixed to users
    update = build.taken(
        model, lambda: model.train_on_batch(case.x, case.y, case.weight)
    )
    np.testing.assert_allclose(
        update, build.clipped_mean(gradients, clip), rtol=2e-5, atol=2e-6
    )


def test_update_of_linear_regression_is_that_of_numpy():
    layer = layers.Dense(1)
    model = build.compiled(
        keras.Sequential([keras.Input((4,)), layer]), loss="mse"
    )
    x, y = build.data(seed=2)
    w, b = (np.asarray(v.numpy(), np.float64) for v in layer.variables)
    error = x @ w + b - y[:, None]
    gradients = np.hstack([2 * error * x, 2 * error])
    model.train_on_batch(x, y[:, None])
    after = np.concatenate([np.ravel(v.numpy()) for v in layer.variables])
    before = np.concatenate([w.ravel(), b])
    np.testing.assert_allclose(
        before - after, build.clipped_mean(gradients), rtol=1e-5, atol=1e-6
    )


class PaddingTest:
    """Padding, order, pieces: nothing of it changes what is released."""

    @pytest.fixture(scope="class")
    @staticmethod
    def model() -> Any:
        return build.compiled(optimizer=build.sgd(), run_eagerly=False)

    @pytest.fixture(scope="class")
    @staticmethod
    def start(model: Any) -> list[np.ndarray]:
        model.train_on_batch(X, Y)
        return build.values(model)

    @pytest.fixture
    @staticmethod
    def update(model: Any, start: Any) -> Callable[..., np.ndarray]:
        build.assign(model, start)
        return lambda *batch: build.taken(
            model, lambda: model.train_on_batch(*batch)
        )

    @pytest.fixture
    @staticmethod
    def expected(update: Any, model: Any, start: Any) -> np.ndarray:
        result = update(X, Y)
        build.assign(model, start)
        return result

    @pytest.mark.parametrize("extra", [1, 8])
    def test_padding_contributes_nothing(
        self, update: Any, expected: Any, extra: int
    ):
        found = update(build.padded(X, Y, extra=extra))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def test_order_does_not_matter(self, update: Any, expected: Any):
        found = update(X[::-1], Y[::-1])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def test_no_example_is_an_update_too(self, update: Any, model: Any):
        # DP-SGD without noise: the update is counted and moves nothing.
        before = model.optimizer.noise_step, int(model.optimizer.iterations)
        booked = model.ledger.updates
        empty = build.padded(X, Y)._replace(padding=tf.ones([16], tf.bool))
        assert not update(empty).any()
        after = model.optimizer.noise_step, int(model.optimizer.iterations)
        assert after == (before[0] + 1, before[1] + 1)
        assert model.ledger.updates == booked + 1

    # The norm of a gradient of 1e30 overflows when it is squared.
    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
    def test_example_without_finite_gradient_counts_as_zero(
        self, update: Any, model: Any, start: Any, bad: float
    ):
        rest = build.alone(model, X[1:], Y[1:])
        weight = np.ones(8, np.float32)
        weight[0] = bad
        np.testing.assert_allclose(
            update(X, Y, weight),
            build.clipped_mean(rest),
            rtol=1e-5,
            atol=1e-7,
        )

    @pytest.mark.parametrize("clipping", ["vectorized", "sequential"])
    @pytest.mark.parametrize("rows", [1, 3, 100])
    def test_microbatch_size_bounds_memory_only(
        self,
        model: Any,
        start: Any,
        expected: Any,
        rows: int,
        clipping: str,
    ):
        other = build.compiled(
            optimizer=build.sgd(), clipping=clipping, microbatch_size=rows
        )
        build.assign(other, start)
        batch = build.padded(X, Y, extra=2)
        found = build.taken(other, lambda: other.train_on_batch(batch))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def test_second_call_does_not_trace(
        self, model: Any, start: Any, monkeypatch: Any
    ):
        def trace(*_: Any) -> None:
            raise AssertionError("traced again")

        monkeypatch.setattr("tf_dpadaptive.training.model.private_step", trace)
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_chunks_hold_no_more_rows_than_asked(rows: int, monkeypatch: Any):
    seen = []
    engine = "tf_dpadaptive.clipping.vectorized.VectorizedEngine.clipped_sum"
    from tf_dpadaptive.clipping.vectorized import VectorizedEngine

    plain = VectorizedEngine.clipped_sum

    def noting(self: Any, values: Any, chunk: Any, *rest: Any) -> Any:
        seen.append(chunk.real.shape[0])
        return plain(self, values, chunk, *rest)

    model = build.compiled(clipping="vectorized", microbatch_size=rows)
    model.train_on_batch(X, Y)
    vars(model.private.setup).pop("clipped_sum")  # to be traced again
    monkeypatch.setattr(engine, noting)
    model.train_on_batch(X, Y)
    assert seen
    assert max(seen) <= rows


class PrecisionTest:
    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_clip_is_float32_whatever_computes(self, policy: str):
        # Gradients of 100 in float16 overflow when they are squared.
        dense = layers.Dense(1, use_bias=False, dtype=policy)
        model = build.compiled(
            keras.Sequential([keras.Input((4,)), dense]),
            loss=lambda y, p: 300.0 * p[:, 0],
        )
        assert type(model.optimizer) is dpa.optimizers.DPSGD
        x = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0, 1, 2, 3]]
        update = build.taken(model, lambda: model.train_on_batch(x, Y))
        expected = np.full(4, 2 * build.CLIP / build.ROWS)
        np.testing.assert_allclose(update, expected, rtol=1e-6)

    def test_automatic_loss_scaling_is_off_under_mixed_float16(self):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = build.compiled()
            assert type(model.optimizer) is dpa.optimizers.DPSGD
            gradients = build.alone(model, X, Y)
            update = build.taken(model, lambda: model.train_on_batch(X, Y))
        finally:
            keras.config.set_dtype_policy("float32")
        np.testing.assert_allclose(
            update, build.clipped_mean(gradients), rtol=1e-2, atol=1e-3
        )


class RegularizerTest:
    def test_weight_penalty_is_outside_the_clip_at_full_strength(self):
        penalty = keras.regularizers.L2(50.0)
        head = layers.Dense(3, kernel_regularizer=penalty)
        model = build.compiled(
            keras.Sequential([keras.Input((4,)), head]),
            build.sgd(rate=1e-3),
        )
        kernel, bias = (v.numpy() for v in head.variables)
        head.kernel.regularizer = None
        gradients = build.alone(model, X, Y)
        head.kernel.regularizer = penalty
        update = build.taken(model, lambda: model.train_on_batch(X, Y))
        public = np.concatenate([100.0 * kernel.ravel(), 0.0 * bias])
        np.testing.assert_allclose(
            update,
            1e-3 * (build.clipped_mean(gradients) + public),
            rtol=1e-4,
            atol=1e-7,
        )

    def test_weight_penalty_is_shown(self):
        head = layers.Dense(3, kernel_regularizer=keras.regularizers.L1(7.0))
        model = build.compiled(
            keras.Sequential([keras.Input((4,)), head]), build.sgd(rate=0.0)
        )
        shown = model.train_on_batch(X, Y)
        assert shown == pytest.approx(model.test_on_batch(X, Y), rel=1e-5)
        assert shown > 7.0 * np.abs(head.kernel.numpy()).sum()

    def test_variable_with_a_penalty_alone_is_trained(self):
        class Lazy(layers.Layer):
            def build(self, _: Any) -> None:
                self.idle = self.add_weight(
                    shape=(2,), initializer="ones", regularizer="l2"
                )

            def call(self, x: Any) -> Any:
                return x

        lazy = Lazy()
        model = build.compiled(
            keras.Sequential([keras.Input((4,)), layers.Dense(3), lazy])
        )
        model.train_on_batch(X, Y)
        np.testing.assert_allclose(lazy.idle.numpy(), 1 - 2 * 0.01, rtol=1e-6)


class RandomLayersTest:
    @pytest.mark.parametrize("clipping", ["auto", "sequential"])
    def test_each_example_draws_its_own_mask(self, clipping: str):
        # Each example has its own input, so the update shows every mask.
        dense = layers.Dense(1, use_bias=False)
        model = build.compiled(
            keras.Sequential(
                [
                    keras.Input((8, 16)),
                    layers.Dropout(0.5),
                    layers.Flatten(),
                    dense,
                ]
            ),
            build.sgd(clip=1e6),
            loss=lambda y, p: p[:, 0],
            clipping=clipping,
        )
        x = np.zeros((8, 8, 16), np.float32)
        x[np.arange(8), np.arange(8)] = 1.0
        masks = [
            np.round(
                8 * build.taken(model, lambda: model.train_on_batch(x, Y))
            ).reshape(8, 16)
            for _ in range(2)
        ]
        # Inverted dropout: 0 or 2; 2⁻¹⁶ is the chance that two are equal.
        assert set(np.unique(masks)) == {0.0, 2.0}
        assert len(np.unique(np.concatenate(masks), axis=0)) == 16

    def test_evaluation_draws_nothing(self):
        model = build.compiled(
            keras.Sequential(
                [keras.Input((4,)), layers.Dropout(0.5), layers.Dense(3)]
            )
        )
        assert model.test_on_batch(X, Y) == model.test_on_batch(X, Y)


def test_spectral_normalization_trains_as_in_keras():
    # It writes to its kernel and its vector: functions of the weights alone.
    def make() -> Any:
        keras.utils.set_random_seed(3)
        dense = layers.SpectralNormalization(layers.Dense(3))
        return keras.Sequential([keras.Input((4,)), dense])

    private = build.compiled(make(), build.sgd(clip=1e6, batch=1))
    plain = make()
    plain.compile(keras.optimizers.SGD(1.0), build.labels_loss())
    for i in range(3):
        private.train_on_batch(X[i : i + 1], Y[i : i + 1])
        plain.train_on_batch(X[i : i + 1], Y[i : i + 1])
        for ours, theirs in zip(
            private.get_weights(), plain.get_weights(), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
