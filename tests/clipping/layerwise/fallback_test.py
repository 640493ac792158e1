import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import assert_same, compiled

rng = np.random.default_rng(5)
layers = keras.layers


class Scaled(layers.Layer):
    """A weight and a sublayer of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(4, activation="tanh")

    def build(self, shape):
        self.inner.build(shape)
        self.scale = self.add_weight(shape=(4,), name="scale")

    def call(self, inputs, training=False):
        hidden = self.inner(inputs) * self.scale
        return {"a": hidden, "b": (hidden * 2 if training else hidden,)}


class Attended(Scaled):
    """The same, with attention inside (its replay holds an Einsum)."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 2)

    def build(self, shape):
        super().build(shape)
        self.attention.build(shape, shape)

    def call(self, inputs):
        return super().call(self.attention(inputs, inputs) * self.scale)["a"]


def data(*shape, out=(2,), rows=5):
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    return x, rng.standard_normal((rows, *out)).astype(np.float32)


def ends_in_dense(inputs, hidden):
    return compiled(keras.Model(inputs, layers.Dense(2)(hidden)))


class FallbackTest:
    @pytest.mark.parametrize("eager", [False, True])
    def test_a_layer_with_weights_and_sublayers(self, eager):
        inputs = keras.Input((6,))
        hidden = Scaled(name="own")(inputs)
        model = ends_in_dense(inputs, hidden["a"] + hidden["b"][0])
        assert_same(model, *data(6), fallbacks=["own"], eager=eager)

    def test_einsum_inside_is_never_vectorized(self):
        inputs = keras.Input((3, 4))
        model = ends_in_dense(inputs, Attended(name="own")(inputs))
        assert_same(model, *data(3, 4, out=(3, 2)), fallbacks=["own"])

    def test_a_subclass_that_changes_the_call(self):
        class Odd(layers.Dense):
            def call(self, inputs):
                return super().call(inputs) ** 2

        inputs = keras.Input((6,))
        model = ends_in_dense(inputs, Odd(3, name="odd")(inputs))
        assert_same(model, *data(6), fallbacks=["odd"])

    def test_a_subclass_that_changes_nothing(self):
        class Mine(layers.Dense):
            pass

        inputs = keras.Input((6,))
        assert_same(ends_in_dense(inputs, Mine(3)(inputs)), *data(6))

    def test_a_weight_read_by_another_layer(self):
        # Pitfall 13a: a rule that looks at the owner alone misses this use.
        owner = layers.Dense(6)

        class Borrower(layers.Layer):
            def call(self, inputs):
                return inputs @ tf.convert_to_tensor(owner.kernel)

        inputs = keras.Input((6,))
        hidden = Borrower(name="borrower")(owner(inputs))
        model = ends_in_dense(inputs, hidden)
        assert_same(model, *data(6), fallbacks=["borrower"])

    def test_dropout_inside_is_replayed(self):
        class Random(Scaled):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.dropout = layers.Dropout(0.5)

            def call(self, inputs, training=None):
                hidden = self.dropout(inputs)
                hidden = self.inner(hidden) * self.scale
                return self.dropout(hidden)

        inputs = keras.Input((6,))
        hidden = layers.Dropout(0.3)(inputs)
        model = ends_in_dense(inputs, Random(name="own")(hidden))
        assert_same(model, *data(6), fallbacks=["own"])

    def test_large_gradients_are_formed_in_pieces(self, monkeypatch):
        from tf_dpadaptive.clipping.layerwise import chunks, fallback

        monkeypatch.setattr(fallback, "KEPT_FLOATS", 10)
        monkeypatch.setattr(chunks, "KEPT_FLOATS", 10)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", 500)
        inputs = keras.Input((6,))
        hidden = Scaled(name="own")(inputs)["a"]
        model = ends_in_dense(inputs, hidden)
        assert_same(model, *data(6, rows=7), fallbacks=["own"])


class RecurrentTest:
    @pytest.mark.parametrize(
        "layer",
        [
            lambda: layers.RNN(
                [layers.LSTMCell(3), layers.GRUCell(2)],
                unroll=True,
                name="own",
            ),
            lambda: layers.LSTM(3, dropout=0.3, unroll=True, name="own"),
        ],
        ids=["stacked", "dropout"],
    )
    def test_without_a_rule_a_layer_goes_as_a_whole(self, layer):
        inputs = keras.Input((3, 5))
        model = ends_in_dense(inputs, layer()(inputs))
        assert_same(model, *data(3, 5), fallbacks=["own"], only=["both"])

    @pytest.mark.slow
    def test_a_loop_inside(self):
        inputs = keras.Input((3, 5))
        cells = [layers.LSTMCell(3), layers.GRUCell(2)]
        model = ends_in_dense(inputs, layers.RNN(cells, name="own")(inputs))
        assert_same(model, *data(3, 5), fallbacks=["own"], only=["both"])
