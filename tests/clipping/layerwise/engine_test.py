"""Whole models: structure, losses, padding, numbers at the edge, modes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import (
    assert_same,
    chunk_of,
    compiled,
)
from tf_dpadaptive.clipping.engine import in_chunks
from tf_dpadaptive.clipping.geometry import IDENTITY
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine, NotLayerwise

rng = np.random.default_rng(8)
layers = keras.layers


def data(*shape, out=(3,), rows=6):
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    return x, rng.standard_normal((rows, *out)).astype(np.float32)


def mlp(*between):
    return compiled(
        keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(5, activation="tanh"),
                *between,
                layers.Dense(3),
            ]
        )
    )


class StructureTest:
    def test_a_layer_used_twice_has_one_gradient(self):
        inputs = keras.Input((4,))
        shared = layers.Dense(4, activation="tanh")
        outputs = layers.Dense(3)(shared(shared(inputs)))
        assert_same(compiled(keras.Model(inputs, outputs)), *data(4))

    def test_nested_models(self):
        inner = keras.Sequential([layers.Dense(4, activation="tanh")])
        middle = keras.Input((4,))
        middle = keras.Model(middle, layers.Dense(4)(inner(middle)))
        inputs = keras.Input((4,))
        outputs = layers.Dense(3)(middle(inner(inputs)))
        assert_same(compiled(keras.Model(inputs, outputs)), *data(4))

    def test_a_subclassed_model(self):
        class Sub(keras.Model):
            def __init__(self):
                super().__init__()
                self.first = layers.Dense(4, activation="tanh")
                self.norm = layers.LayerNormalization()
                self.last = layers.Dense(3)

            def call(self, inputs, training=False):
                hidden = self.first(inputs)
                if training:
                    hidden = hidden + self.norm(hidden)
                return self.last(hidden)

        model = Sub()
        model(np.zeros((1, 4), np.float32), training=True)
        assert_same(compiled(model), *data(4))

    def test_an_activation_with_weights(self):
        assert_same(mlp(layers.Dense(5, activation=layers.PReLU())), *data(4))

    def test_time_distributed(self):
        inputs = keras.Input((3, 4))
        outputs = layers.TimeDistributed(layers.Dense(2))(inputs)
        model = compiled(keras.Model(inputs, outputs))
        assert_same(model, *data(3, 4, out=(3, 2)))

    @pytest.mark.parametrize("how", ["loop", "function"])
    def test_a_layer_called_where_nothing_can_be_watched_climbs(self, how):
        class Outer(layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.dense = layers.Dense(4, activation="tanh")

            def build(self, shape):
                self.dense.build((None, shape[-1]))

            def call(self, inputs):
                if how == "function":
                    inner = tf.function(self.dense, autograph=False)
                    return inner(inputs)
                steps = tf.transpose(inputs, [1, 0, 2])
                steps = tf.map_fn(
                    self.dense,
                    steps,
                    fn_output_signature=tf.TensorSpec([None, 4]),
                )
                return tf.transpose(steps, [1, 0, 2])

        inputs = keras.Input((3, 4))
        outputs = layers.Dense(3)(Outer(name="outer")(inputs))
        model = compiled(keras.Model(inputs, outputs))
        x, y = data(3, 4, out=(3, 3))
        assert_same(model, x, y, fallbacks=["outer"], only=["both"])

    def test_examples_folded_into_other_axes_climb(self):
        class Folded(layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.dense = layers.Dense(4)

            def build(self, shape):
                self.dense.build((None, shape[-1]))

            def call(self, inputs):
                flat = keras.ops.reshape(inputs, (-1, inputs.shape[-1]))
                shape = (-1, inputs.shape[1], 4)
                return keras.ops.reshape(self.dense(flat), shape)

        inputs = keras.Input((3, 4))
        outputs = layers.Dense(3)(Folded(name="folded")(inputs))
        model = compiled(keras.Model(inputs, outputs))
        assert_same(model, *data(3, 4, out=(3, 3)), fallbacks=["folded"])

    @pytest.mark.parametrize("length", [3, None])
    @pytest.mark.parametrize("split", ["whitespace", "character"])
    def test_strings_that_are_split_in_the_model(self, split, length):
        model = keras.Sequential(
            [
                keras.Input((), dtype="string"),
                layers.TextVectorization(
                    split=split,
                    vocabulary=["a", "b"],
                    output_sequence_length=length,
                ),
                layers.Embedding(4, 5, mask_zero=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            ]
        )
        x = np.array(["a b", "b", "c a a", "", "b b c", "a"])
        if length is not None:
            assert_same(compiled(model), x, data(4)[1])
            return
        # The longest row of the batch would set the length of all.
        example, chunk = chunk_of(compiled(model), x, data(4)[1])
        with pytest.raises(NotLayerwise, match="`output_sequence_length`"):
            LayerwiseEngine(example).plan(chunk)

    def test_rematerialised_layers(self):
        with keras.RematScope(mode="full"):
            model = mlp()
        assert_same(model, *data(4))

    def test_spectral_normalisation(self):
        model = mlp(layers.SpectralNormalization(layers.Dense(5)))
        assert_same(model, *data(4))


class LossTest:
    def test_several_outputs_weights_and_a_tracked_loss(self):
        inputs = keras.Input((4,))
        hidden = layers.Dense(4, activation="tanh")(inputs)
        outputs = {"a": layers.Dense(3, name="a")(hidden), "b": hidden}
        model = keras.Model(inputs, outputs)
        model.compile(
            "sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 3.0}
        )
        x, y = data(4)
        assert_same(model, x, {"a": y, "b": x})

    def test_sample_weights_and_padding(self):
        x, y = data(4)
        weight = np.abs(y[:, 0])
        padding = [False, True, False, False, True, False]
        assert_same(mlp(), x, y, weight=weight, padding=padding)

    def test_masked_sequences_mean_over_what_counts(self):
        inputs = keras.Input((5, 4))
        hidden = layers.Masking()(inputs)
        outputs = layers.Dense(3)(hidden)
        x, y = data(5, 4, out=(5, 3))
        x[0, 2:] = x[1, 4:] = x[3] = 0
        assert_same(compiled(keras.Model(inputs, outputs)), x, y)

    def test_the_models_own_loss(self):
        class Own(keras.Sequential):
            def compute_loss(self, x, y, y_pred, sample_weight, training=True):
                return keras.ops.sum(keras.ops.abs(y_pred - y) * x[:, :1])

        model = Own([keras.Input((4,)), layers.Dense(3)])
        assert_same(compiled(model), *data(4))

    def test_a_loss_that_reads_weights_is_refused_by_name(self):
        class Own(keras.Sequential):
            def compute_loss(self, x, y, y_pred, sample_weight, training=True):
                kernel = self.layers[0].kernel
                return keras.ops.sum(keras.ops.matmul(x, kernel) - y)

        model = Own([keras.Input((4,)), layers.Dense(3, name="read")])
        example, chunk = chunk_of(compiled(model), *data(4))
        with pytest.raises(NotLayerwise, match="read/kernel"):
            LayerwiseEngine(example).plan(chunk)


class ProofTest:
    def test_a_weight_used_in_the_models_own_call_is_refused(self):
        # Pitfall 13a, by hand: the look-up alone would be too small a norm.
        class Tied(keras.Model):
            def __init__(self):
                super().__init__()
                self.table = layers.Embedding(7, 3, name="table")

            def call(self, ids):
                hidden = self.table(ids)
                table = tf.convert_to_tensor(self.table.embeddings)
                return tf.matmul(hidden, table, transpose_b=True)

        model = Tied()
        ids = np.arange(8).reshape(4, 2) % 7
        model(ids)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        example, chunk = chunk_of(compiled(model, loss), ids, ids)
        with pytest.raises(NotLayerwise, match="table/embeddings"):
            LayerwiseEngine(example).plan(chunk)

    def test_a_call_traced_before_is_refused(self):
        class Jitted(layers.Dense):
            @tf.function(autograph=False)
            def call(self, inputs):
                return super().call(inputs)

        inputs = keras.Input((4,))
        outputs = layers.Dense(3)(Jitted(4, name="jitted")(inputs))
        model = compiled(keras.Model(inputs, outputs))
        x, y = data(4)
        # The call was traced here, on the variables themselves.
        model.layers[1](x)
        example, chunk = chunk_of(model, x, y)
        with pytest.raises(NotLayerwise, match="jitted"):
            LayerwiseEngine(example).clipped_sum(
                example.values(), chunk, 1.0, IDENTITY
            )

    def test_a_recomputed_call_is_refused(self):
        class Outer(layers.Layer):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(4, name="again")

            def build(self, shape):
                self.dense.build(shape)

            def call(self, inputs):
                return tf.recompute_grad(self.dense)(inputs)

        example, chunk = chunk_of(mlp(Outer()), *data(4))
        with pytest.raises(NotLayerwise, match="again/kernel"):
            LayerwiseEngine(example).plan(chunk)

    def test_added_losses_are_refused(self):
        model = mlp(layers.ActivityRegularization(l2=0.1))
        example, chunk = chunk_of(model, *data(4))
        with pytest.raises(NotLayerwise, match="add_loss"):
            LayerwiseEngine(example).plan(chunk)


class NumbersTest:
    def test_zero_huge_and_non_finite_examples(self):
        x, y = data(4, rows=8)
        x[0], y[0] = 0, 0
        x[1] = 1e30
        y[2] = np.nan
        x[3, 1] = np.inf
        y[4] = 1e38
        x[5] *= 1e-25
        model = compiled(keras.Sequential([keras.Input((4,)), layers.Dense(3)]))
        assert_same(model, x, y)

    def test_non_finite_padding(self):
        x, y = data(4)
        x[1] = np.nan
        padding = [False, True, False, False, True, False]
        assert_same(mlp(), x, y, padding=padding)

    def test_nothing_but_padding(self):
        example, chunk = chunk_of(mlp(), *data(4), padding=[True] * 6)
        engine = LayerwiseEngine(example)
        total = engine.clipped_sum(example.values(), chunk, 1.0, IDENTITY).total
        assert all(not np.any(t) for t in total.values())

    def test_one_example(self):
        assert_same(mlp(), *data(4, rows=1))

    def test_half_precision_keeps_norms_in_float32(self):
        with _policy("mixed_bfloat16"):
            model = mlp(layers.LayerNormalization())
        assert_same(model, *data(4), tolerance=0.03)

    def test_double_precision(self):
        with _policy("float64"):
            model = mlp(layers.LayerNormalization())
        x, y = data(4)
        assert_same(model, x.astype(float), y.astype(float), tolerance=2e-6)


class ModesTest:
    def test_dropout_masks_are_those_of_the_reference(self):
        assert_same(
            mlp(layers.Dropout(0.5), layers.GaussianNoise(0.3)), *data(4)
        )

    def test_pieces_give_the_same_as_all_at_once(self):
        model = mlp(layers.Dropout(0.5))
        example, chunk = chunk_of(model, *data(4, rows=7))
        engine = LayerwiseEngine(example)

        def work(size):
            return tf.function(
                lambda values, chunk: in_chunks(
                    lambda c: engine.clipped_sum(values, c, 1.0, IDENTITY),
                    chunk,
                    size,
                ),
                autograph=False,
            )(example.values(), chunk)

        whole, parts = work(None), work(3)
        for i, value in whole.total.items():
            np.testing.assert_allclose(parts.total[i], value, atol=1e-5)
        np.testing.assert_allclose(parts.norms, whole.norms, rtol=1e-5)

    def test_a_batch_size_that_is_not_known_beforehand(self):
        model = mlp(layers.Dropout(0.5))
        example, chunk = chunk_of(model, *data(4, rows=7))
        engine = LayerwiseEngine(example)
        want = engine.clipped_sum(example.values(), chunk, 1.0, IDENTITY)
        spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), chunk
        )
        work = tf.function(
            lambda chunk: engine.clipped_sum(
                example.values(), chunk, 1.0, IDENTITY
            ),
            autograph=False,
            input_signature=[spec],
        )
        got = work(chunk)
        for i, value in want.total.items():
            np.testing.assert_allclose(got.total[i], value, atol=1e-5)

    @pytest.mark.xla
    def test_compiled(self):
        inputs = keras.Input((6, 6, 2))
        hidden = layers.Conv2D(4, 3, activation="relu")(inputs)
        hidden = layers.Dropout(0.2)(layers.GroupNormalization(2)(hidden))
        hidden = layers.Reshape((16, 4))(hidden)
        hidden = layers.MultiHeadAttention(2, 2)(hidden, hidden)
        outputs = layers.Dense(3)(layers.Flatten()(hidden))
        model = compiled(keras.Model(inputs, outputs))
        assert_same(model, *data(6, 6, 2), jit_compile=True)


class _policy:
    """The global dtype policy, for a while."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.name)

    def __exit__(self, *_):
        keras.config.set_dtype_policy(self.before)
