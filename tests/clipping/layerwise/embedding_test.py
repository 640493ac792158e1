import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from tests.clipping.layerwise.compare import (
    assert_rows_stay_apart,
    assert_same,
    compiled,
)
from tf_dpadaptive.clipping.example import ExampleLoss
from tf_dpadaptive.clipping.layerwise import LayerwiseEngine, registry
from tf_dpadaptive.clipping.layerwise.forms import VariableGradient, gather
from tf_dpadaptive.clipping.layerwise.norms import squared_norms
from tf_dpadaptive.clipping.layerwise.products import Local
from tf_dpadaptive.clipping.layerwise.sums import weighted_sum

rng = np.random.default_rng(2)
ids = np.array([[1, 2, 1, 1], [0, 0, 0, 0], [5, 4, 3, 2], [6, 6, 1, 6]])
targets = rng.standard_normal((4, 4, 3)).astype(np.float32)


def lookup(layer):
    inputs = keras.Input((4,), dtype="int32")
    return compiled(keras.Model(inputs, keras.layers.Dense(3)(layer(inputs))))


class EmbeddingTest:
    @pytest.mark.parametrize("eager", [False, True])
    def test_equal_ids_are_summed_first(self, eager):
        assert_same(
            lookup(keras.layers.Embedding(7, 5)), ids, targets, eager=eager
        )

    def test_negative_ids_count_from_the_end(self):
        model = lookup(keras.layers.Embedding(7, 5))
        assert_same(model, np.where(ids == 6, -1, ids), targets)

    def test_one_id_an_example(self):
        inputs = keras.Input((), dtype="int32")
        hidden = keras.layers.Embedding(7, 5)(inputs)
        model = compiled(keras.Model(inputs, keras.layers.Dense(3)(hidden)))
        assert_same(model, ids[:, 0], targets[:, 0])

    def test_ids_with_two_axes(self):
        inputs = keras.Input((2, 2), dtype="int32")
        hidden = keras.layers.Embedding(7, 5)(inputs)
        model = compiled(keras.Model(inputs, keras.layers.Dense(3)(hidden)))
        assert_same(model, ids.reshape(4, 2, 2), targets.reshape(4, 2, 2, 3))

    def test_lora(self):
        layer = keras.layers.Embedding(7, 5)
        model = lookup(layer)
        layer.enable_lora(2)
        assert_same(compiled(model), ids, targets)

    def test_masked_steps(self):
        model = lookup(keras.layers.Embedding(7, 5, mask_zero=True))
        assert_same(model, ids, targets)

    def test_one_table_for_two_inputs(self):
        first, second = (keras.Input((4,), dtype="int32") for _ in range(2))
        table = keras.layers.Embedding(7, 3)
        model = compiled(
            keras.Model([first, second], table(first) * table(second))
        )
        assert_same(model, [ids, ids[::-1]], targets)


def tied(**kwargs):
    table = keras.layers.ReversibleEmbedding(7, 3, **kwargs)
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Dense(3, activation="tanh")(table(inputs))
    logits = table(hidden, reverse=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return table, compiled(keras.Model(inputs, logits), loss)


class ReversibleEmbeddingTest:
    @pytest.mark.parametrize("tie_weights", [True, False])
    def test_the_norm_is_that_of_the_sum_of_uses(self, tie_weights):
        _, model = tied(tie_weights=tie_weights)
        assert_same(model, ids, ids[:, ::-1])

    def test_soft_cap(self):
        _, model = tied(logit_soft_cap=0.5)
        assert_same(model, ids, ids[:, ::-1])

    def test_lora(self):
        table, model = tied()
        table.enable_lora(2)
        model = compiled(model, model.loss)
        assert_same(model, ids, ids[:, ::-1])

    def test_the_one_of_keras_hub_has_the_rule_too(self):
        import keras_hub

        layer = keras_hub.layers.ReversibleEmbedding(7, 3)
        found = registry.find_rule(layer)
        assert found is not None
        assert found == registry.find_rule(
            keras.layers.ReversibleEmbedding(7, 3)
        )

    def test_reverse_alone(self):
        inputs = keras.Input((4, 3))
        table = keras.layers.ReversibleEmbedding(7, 3)
        table.build()
        model = compiled(keras.Model(inputs, table(inputs, reverse=True)))
        y = rng.standard_normal((4, 4, 7)).astype(np.float32)
        assert_same(model, targets, y)


class PositionEmbeddingTest:
    def test_equals_the_reference(self):
        inputs = keras.Input((4, 3))
        added = keras_hub.layers.PositionEmbedding(6)(inputs)
        model = compiled(
            keras.Model(inputs, keras.layers.Dense(3)(inputs * added))
        )
        assert_same(model, targets, targets)


class Penalty(keras.layers.Layer):
    """Uses a table a second time, without a rule: its gradient is formed."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, inputs):
        return inputs * keras.ops.mean(self.table.embeddings**2)


class IdsOutsideTheTableTest:
    @staticmethod
    def model(kind):
        inputs = keras.Input((4,), dtype="int64")
        table = keras.layers.Embedding(7, 3)
        hidden = table(inputs)
        if kind == "formed":
            hidden = Penalty(table)(hidden)
        if kind == "lora":
            table.enable_lora(2)
        if kind == "tied":
            return tied()[1]
        return compiled(
            keras.Model(inputs, keras.layers.Dense(3, trainable=False)(hidden))
        )

    # XLA and GPUs do not raise on such ids.
    @pytest.mark.xla
    @pytest.mark.parametrize("kind", ["formed", "lora", "tied", "alone"])
    def test_no_other_example_receives_their_gradient(self, kind):
        model = self.model(kind)
        tied_table = kind == "tied"
        assert_rows_stay_apart(
            model,
            LayerwiseEngine(ExampleLoss(model)),
            ids,
            ids if tied_table else targets,
            6 if tied_table else 1e6,
        )

    def test_formed_and_summed_alike(self):
        rows = tf.constant(rng.standard_normal((2, 4, 3)), tf.float32)
        outside = tf.constant([[1, 7, -7, -8], [15, 1, 1, 2**32 + 2]], tf.int64)
        form = gather(outside, rows, 7)
        want = np.zeros((2, 7, 3), np.float32)
        want[0, 1], want[0, 0] = rows[0, 0], rows[0, 2]
        want[1, 1] = rows[1, 1] + rows[1, 2]
        np.testing.assert_allclose(form.formed((7, 3)), want, rtol=1e-6)
        gradient = VariableGradient((7, 3), (form,))
        np.testing.assert_allclose(
            squared_norms(gradient, Local(None, None)),
            np.sum(want**2, (1, 2)),
            rtol=1e-6,
        )
        np.testing.assert_allclose(
            weighted_sum(gradient, tf.constant([2.0, 3.0])),
            2 * want[0] + 3 * want[1],
            rtol=1e-6,
        )


class BertTest:
    @pytest.mark.slow
    def test_masked_language_model(self):
        backbone = keras_hub.models.BertBackbone(
            11, 2, 2, 8, 16, dropout=0.0, max_sequence_length=9
        )
        model = keras_hub.models.BertMaskedLM(backbone)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = compiled(model, loss)
        x = {
            "token_ids": rng.integers(1, 11, (5, 7)),
            "segment_ids": np.zeros((5, 7), int),
            "padding_mask": np.arange(7) < rng.integers(3, 8, (5, 1)),
            "mask_positions": rng.integers(0, 3, (5, 2)),
        }
        assert_same(
            model,
            x,
            rng.integers(0, 11, (5, 2)),
            weight=np.ones((5, 2), np.float32),
            tolerance=2e-5,
        )
