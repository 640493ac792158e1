"""keras-hub models take strings; padding and weights survive preprocessing."""

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras_hub.src.utils.pipeline_model import PipelineModel

import tf_dpadaptive as dpa
from tests.training import build
from tf_dpadaptive.batch import Batch

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
X, Y = build.data(32)
WEIGHT = np.linspace(0.2, 2.0, 32).astype(np.float32)


def sentences(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, rows)
    return np.array([" ".join(rng.choice(WORDS, n)) for n in lengths])


TEXT = sentences(32)


class Pipeline(PipelineModel):
    """Doubles its inputs before the model; drops weights, as keras-hub's do."""

    def __init__(self, makes_weights: bool = False) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.makes_weights = makes_weights

    def preprocess_samples(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> Any:
        x = 2.0 * tf.convert_to_tensor(x)
        if self.makes_weights:
            return x, y, 0.5 * tf.ones(tf.shape(x)[:1])
        return keras.utils.pack_x_y_sample_weight(x, y)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def pipeline(makes_weights: bool = False, **fields: Any) -> Any:
    fields = {"num_examples": 32, **fields}
    model = build.compiled(
        Pipeline(makes_weights), build.sgd(**fields), metrics=["accuracy"]
    )
    model(X)
    return model


class PipelineTest:
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("makes_weights", [False, True])
    def test_sampled_batches_with_padding(
        self, weighted: bool, makes_weights: bool
    ):
        # One update with all 32 examples; the rest of the shape is padding.
        model = pipeline(makes_weights, batch=32, num_examples=None)
        plan = model.optimizer.plan
        assert plan.max_batch_size >= 64
        weight = WEIGHT if weighted else None
        parts = (X, Y) if weight is None else (X, Y, weight)
        made = None
        if weighted or makes_weights:
            made = (0.5 if makes_weights else 1.0) * np.ones(32, np.float32)
            made = made * (WEIGHT if weighted else 1.0)
        expected = build.clipped_mean(
            build.alone(model, 2 * X, Y, made), divisor=32
        )
        data = tf.data.Dataset.from_tensors(
            build.padded(*parts, extra=plan.max_batch_size - 32)
        )
        update = build.taken(model, lambda: model.fit(data, verbose=0))
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)

    def test_sampling_stays_verified_and_metrics_are_of_real_rows(self):
        model = pipeline(rate=0.0)
        plan = model.optimizer.plan
        shown = model.fit(plan.batches(X, Y, seed=3), verbose=0).history
        assert model.ledger.verified
        assert model.ledger.updates == 4
        kept = [
            (b.x.numpy()[b.real()], b.y.numpy()[b.real()])
            for b in plan.batches(X, Y, seed=3)
        ]
        x, y = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        true = model.evaluate(x, y, verbose=0, return_dict=True, batch_size=99)
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(shown[name], true[name], rtol=1e-5)

    def test_class_weight_beside_sample_weight(self):
        model = pipeline(batch=32)
        both = WEIGHT * np.array([0.25, 1.0, 3.0], np.float32)[Y]
        expected = build.clipped_mean(
            build.alone(model, 2 * X, Y, both), divisor=32
        )
        plan = model.optimizer.plan
        update = build.taken(
            model,
            lambda: model.fit(
                plan.batches(X, Y, WEIGHT),
                class_weight={0: 0.25, 2: 3.0},
                verbose=0,
            ),
        )
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)

    def test_arrays_come_in_batches_of_b(self):
        model = pipeline()
        model.fit(X, Y, verbose=0)
        assert model.ledger.updates == 4
        assert not model.ledger.verified

    def test_train_on_batch_preprocesses_too(self):
        model = pipeline(batch=32)
        expected = build.clipped_mean(build.alone(model, 2 * X, Y), divisor=32)
        update = build.taken(model, lambda: model.train_on_batch(X, Y))
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)

    def test_evaluates_and_predicts(self):
        model = pipeline()
        plain = Pipeline()
        plain(X)
        plain.set_weights(model.get_weights())
        plain.compile(loss=build.labels_loss(), metrics=["accuracy"])
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(
            plain.evaluate(X, Y, verbose=0), rel=1e-5
        )
        np.testing.assert_allclose(
            model.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-5
        )


def bert(dropout: float = 0.0) -> Any:
    tokenizer = keras_hub.tokenizers.BertTokenizer(
        vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    )
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        tokenizer, sequence_length=8
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=15,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=8,
        dropout=dropout,
    )
    return keras_hub.models.BertTextClassifier(
        backbone, num_classes=3, preprocessor=preprocessor, dropout=dropout
    )


class BertTest:
    """A two-letter story: the classifier of keras-hub, from strings."""

    def model(self, rate: float, **fields: Any) -> Any:
        fields = {"num_examples": 32, **fields}
        return build.compiled(
            bert(),
            build.sgd(rate=rate, **fields),
            metrics=["accuracy"],
            run_eagerly=False,
        )

    def test_strings_with_padding_give_the_update_of_each_sentence(self):
        model = self.model(1.0)
        x, y, weight = TEXT[:8], Y[:8], WEIGHT[:8]
        tokens = model.preprocessor(tf.constant(x))
        gradients = build.alone(model, tokens, y, weight)
        clip = float(np.median(np.linalg.norm(gradients, axis=1)))
        model.compile(
            build.sgd(clip=clip, num_examples=None),
            build.labels_loss(),
            metrics=["accuracy"],
        )
        data = tf.data.Dataset.from_tensors(build.padded(x, y, weight))
        before = model.evaluate(x, y, verbose=0, return_dict=True)
        shown: dict[str, Any] = {}
        update = build.taken(
            model,
            lambda: shown.update(model.fit(data, verbose=0).history),
        )
        np.testing.assert_allclose(
            update, build.clipped_mean(gradients, clip), rtol=1e-4, atol=1e-6
        )
        assert shown["accuracy"] == [pytest.approx(before["accuracy"])]

    def test_sampled_strings_are_verified_and_learnt_in_private(self):
        plan = build.plan(1.0, num_steps=8)
        model = build.compiled(
            bert(dropout=0.1),
            dpa.optimizers.DPAdam(1e-3, 1.0, plan),
            run_eagerly=False,
        )
        before = build.flat(model)
        history = model.fit(
            plan.batches(TEXT, Y),
            epochs=2,
            validation_data=(TEXT, Y),
            callbacks=[dpa.callbacks.PrivacyBudget()],
            verbose=0,
        ).history
        assert (build.flat(model) != before).all()
        assert history["epsilon"][-1] == pytest.approx(plan.epsilon())
        assert model.ledger.verified
        assert model.predict(TEXT, verbose=0).shape == (32, 3)
        assert isinstance(model, keras_hub.models.BertTextClassifier)

    def test_saves_as_itself_and_says_what_keras_will_not_load(
        self, tmp_path: Any
    ):
        model = self.model(0.1)
        model.fit(TEXT, Y, verbose=0)
        with build.log_lines() as lines:
            model.save(tmp_path / "bert.keras")
        assert any("without its ledger" in line for line in lines)
        # keras-hub's tasks have a `compile` of their own.
        with pytest.warns(UserWarning, match="compile"):
            loaded = keras.saving.load_model(tmp_path / "bert.keras")
        assert type(loaded) is keras_hub.models.BertTextClassifier
        assert getattr(loaded, "optimizer", None) is not model.optimizer
        np.testing.assert_allclose(
            loaded.predict(TEXT, verbose=0),
            model.predict(TEXT, verbose=0),
            rtol=1e-4,
            atol=1e-6,
        )

    def test_checkpoint_keeps_the_ledger(self, tmp_path: Any):
        model = self.model(0.1)
        model.fit(TEXT, Y, verbose=0)
        dpa.checkpoint.save(model, tmp_path / "run")
        other = self.model(0.1)
        dpa.checkpoint.restore(other, tmp_path / "run")
        np.testing.assert_array_equal(build.flat(other), build.flat(model))
        assert other.ledger.updates == 4


def test_batch_of_a_dataset_keeps_its_padding():
    model = pipeline()
    batch = build.padded(X[:8], Y[:8], WEIGHT[:8])
    made = model.preprocess_samples(batch)
    assert isinstance(made, Batch)
    np.testing.assert_array_equal(made.padding, batch.padding)
    np.testing.assert_array_equal(made.sample_weight, batch.sample_weight)
    np.testing.assert_array_equal(made.x[:8], 2 * X[:8])
