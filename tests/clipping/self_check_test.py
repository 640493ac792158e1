"""The self-check passes right rules, and catches a wrong one of each family."""

import dataclasses
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import chunk_of, geometries
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine, passes, registry
from tf_dpadaptive.clipping.layerwise.forms import (
    Formed,
    Gather,
    Outer,
)
from tf_dpadaptive.clipping.self_check import WrongGradients, self_check

rng = np.random.default_rng(9)
layers = keras.layers


def checked(model, x, y, loss="mse", padding=None, **options):
    model.compile("sgd", loss)
    example, chunk = chunk_of(model, x, y, padding=padding)
    return self_check(LayerwiseEngine(example), example, chunk, **options)


def image_model(*between):
    return keras.Sequential(
        [keras.Input((5, 5, 3)), *between, layers.Flatten(), layers.Dense(2)]
    )


def sequence_model(*between):
    return keras.Sequential(
        [keras.Input((4, 6)), *between, layers.Flatten(), layers.Dense(2)]
    )


def lookup_model(*between):
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(7, 6),
            *between,
            layers.Flatten(),
            layers.Dense(2),
        ]
    )


def images(rows=4):
    x = rng.standard_normal((rows, 5, 5, 3)).astype(np.float32)
    return x, rng.standard_normal((rows, 2)).astype(np.float32)


def sequences(rows=4):
    x = rng.standard_normal((rows, 4, 6)).astype(np.float32)
    return x, rng.standard_normal((rows, 2)).astype(np.float32)


def ids(rows=4):
    x = np.array([[1, 1, 2, 1], [3, 0, 3, 5], [6, 6, 6, 6], [0, 1, 2, 3]])
    return x[:rows], rng.standard_normal((rows, 2)).astype(np.float32)


FAMILIES = {
    layers.Dense: (lambda: sequence_model(layers.Dense(3)), sequences),
    layers.EinsumDense: (
        lambda: sequence_model(
            layers.EinsumDense("abc,cd->abd", (4, 3), bias_axes="d")
        ),
        sequences,
    ),
    layers.Embedding: (lookup_model, ids),
    layers.LayerNormalization: (
        lambda: sequence_model(layers.LayerNormalization()),
        sequences,
    ),
    layers.RMSNormalization: (
        lambda: sequence_model(layers.RMSNormalization()),
        sequences,
    ),
    layers.GroupNormalization: (
        lambda: image_model(layers.GroupNormalization(3)),
        images,
    ),
    layers.PReLU: (lambda: sequence_model(layers.PReLU()), sequences),
    layers.Conv2D: (lambda: image_model(layers.Conv2D(3, 2)), images),
    layers.Conv2DTranspose: (
        lambda: image_model(layers.Conv2DTranspose(2, 2)),
        images,
    ),
    layers.DepthwiseConv2D: (
        lambda: image_model(layers.DepthwiseConv2D(2)),
        images,
    ),
    layers.SeparableConv2D: (
        lambda: image_model(layers.SeparableConv2D(3, 2)),
        images,
    ),
    layers.LSTM: (lambda: sequence_model(layers.LSTM(3)), sequences),
    layers.GRU: (lambda: sequence_model(layers.GRU(3)), sequences),
}


NAMES = {layers.RMSNormalization: "rms_", layers.PReLU: "p_re_lu"}


def spoilt(form):
    """A form as a plausible mistake would leave it: the last step is lost."""
    if isinstance(form, Outer) and form.left.shape[2] > 1:
        return form._replace(
            left=form.left[:, :, 1:], right=form.right[:, :, 1:]
        )
    if isinstance(form, Gather):
        return form._replace(distinct=True)  # equal ids are not summed
    if isinstance(form, Formed):
        return Formed(0.9 * form.value)
    return form._replace(left=0.9 * form.left)


class SelfCheckTest:
    @pytest.mark.parametrize(
        "family", FAMILIES, ids=lambda layer: layer.__name__
    )
    def test_a_wrong_rule_of_the_family_is_caught(self, family, monkeypatch):
        build, data = FAMILIES[family]
        right = registry.find_rule(
            next(
                layer
                for layer in build()._flatten_layers()
                if type(layer) is family
            )
        )
        x, y = data()
        assert checked(build(), x, y).largest_error < 1e-4

        def wrong(use):
            for variable, form in right.function(use):
                yield variable, spoilt(form)

        monkeypatch.setitem(
            registry._RULES, family, dataclasses.replace(right, function=wrong)
        )
        with pytest.raises(
            WrongGradients, match=NAMES.get(family, family.__name__.lower()[:4])
        ):
            checked(build(), x, y)

    def test_a_wrong_layout_is_caught_by_the_sum(self, monkeypatch):
        right = registry.find_rule(layers.Dense(1))

        def wrong(use):
            for variable, form in right.function(use):
                if isinstance(form, Outer) and variable.shape == (6, 6):
                    form = form._replace(left=form.right, right=form.left)
                yield variable, form

        monkeypatch.setitem(
            registry._RULES,
            layers.Dense,
            dataclasses.replace(right, function=wrong),
        )
        with pytest.raises(WrongGradients, match="clipped sum"):
            checked(sequence_model(layers.Dense(6)), *sequences())

    def test_mixed_examples_are_caught(self, unseen):
        class Mixing(layers.Layer):
            def call(self, inputs):
                return inputs + 0.01 * tf.reduce_mean(inputs, 0, True)

        with pytest.raises(WrongGradients, match="mixed"):
            checked(sequence_model(Mixing(), layers.Dense(3)), *sequences())

    def test_a_hidden_path_is_caught(self):
        """The kernel gets out by another way than the layer's outputs."""

        class Leaky(layers.Dense):
            pass

        class Thief(layers.Layer):
            def compute_output_shape(self, shape):
                return shape

            def call(self, inputs):
                return inputs * tf.reduce_sum(stolen[-1])

        stolen = []
        dense = Leaky(6)
        dense.activation = lambda t: (
            stolen.append(tf.convert_to_tensor(dense.kernel)) or t
        )
        with pytest.raises(WrongGradients, match="kernel"):
            checked(sequence_model(dense, Thief()), *sequences())

    def test_a_head_of_zeros_does_not_make_it_empty(self):
        model = sequence_model(layers.Dense(3))
        model.layers[-1].kernel.assign(tf.zeros_like(model.layers[-1].kernel))
        assert checked(model, *sequences()).untested == ()
        assert not np.any(model.layers[-1].kernel)

    def test_what_cannot_be_checked_is_said(self, caplog):
        class Dead(layers.Layer):
            def call(self, inputs):
                return 0.0 * inputs

        model = sequence_model(layers.Dense(3, name="below"), Dead())
        with caplog.at_level(logging.WARNING, "tf_dpadaptive"):
            report = checked(model, *sequences())
        assert any("below/kernel" in path for path in report.untested)
        assert "below/kernel" in caplog.text

    def test_padding_is_not_looked_at(self):
        padding = [True, False, True, False]
        x, y = sequences()
        x[0] = np.nan
        report = checked(sequence_model(layers.Dense(3)), x, y, padding=padding)
        assert report.rows == (1, 3)
        nothing = checked(
            sequence_model(layers.Dense(3)), x, y, padding=[True] * 4
        )
        assert nothing is None

    def test_the_optimizers_geometry(self):
        model = sequence_model(layers.Dense(3))
        geometry = geometries(model)["both"]
        assert checked(model, *sequences(), geometry=geometry)

    def test_two_rows_at_least(self):
        with pytest.raises(ValueError, match="rows=1"):
            checked(sequence_model(layers.Dense(3)), *sequences(), rows=1)

    @pytest.mark.parametrize("odd", [np.nan, np.inf, 1e25, -1e30, 0.0])
    def test_odd_examples_are_no_alarm(self, odd):
        x, y = sequences()
        x[1] = odd
        assert checked(sequence_model(layers.Dense(3)), x, y)

    def test_huge_gradients_that_come_out_small_are_caught(self, monkeypatch):
        from tf_dpadaptive.clipping import self_check as module

        traced = module._Traced.__call__

        def shrunk(self, values, chunk, clip_norm):
            norms, total = traced(self, values, chunk, clip_norm)
            return {i: np.minimum(n, 1e3) for i, n in norms.items()}, total

        monkeypatch.setattr(module._Traced, "__call__", shrunk)
        x, y = sequences()
        x[1] = 1e30
        with pytest.raises(WrongGradients, match="too small"):
            checked(sequence_model(layers.Dense(3)), x, y)


@pytest.fixture
def unseen(monkeypatch):
    """The graph is not looked at, which would have shown it before."""
    monkeypatch.setattr(passes, "refuse_meeting_rows", lambda *_: None)


class Capacity(layers.Layer):
    """Only the first eight examples with a positive first feature are taken."""

    def call(self, inputs):
        chosen = tf.cast(inputs[:, 0, :1] > 0, tf.float32)
        place = tf.cumsum(chosen, 0)
        taken = (chosen > 0) & (place <= 8)
        return tf.where(taken[:, None], -inputs, inputs)


class Sorted(layers.Layer):
    """Rows are sorted, go through a layer, and are put back."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, inputs):
        order = tf.argsort(inputs[:, 0, 0])
        result = self.inner(tf.gather(inputs, order))
        return tf.gather(result, tf.argsort(order))


@pytest.mark.parametrize("layer", [Capacity, Sorted])
def test_mixing_in_real_batches_alone_is_caught(layer, unseen):
    rows = 32
    x = rng.standard_normal((rows, 4, 6)).astype(np.float32)
    x[:, 0, 0] = np.linspace(0.1, 1, rows)  # the first rows lie in order
    y = rng.standard_normal((rows, 2)).astype(np.float32)
    with pytest.raises(WrongGradients, match="mixed"):
        checked(sequence_model(layer(), layers.Dense(3)), x, y)
