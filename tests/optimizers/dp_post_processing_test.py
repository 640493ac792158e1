"""DPPostProcessing keeps the contract, with Keras' own arithmetic."""

from typing import Any

import keras
import numpy as np
import pytest

from tests.optimizers.bench import Bench, flat
from tests.optimizers.contract import (
    CLIP,
    SHAPES,
    SIGMA,
    B,
    Contract,
    plan_of,
)
from tests.reference import clip, post_processing, replay
from tf_dpadaptive import optimizers as dpa


class DPPostProcessingTest(Contract):
    def make(self, plan: Any, **arguments: Any) -> Any:
        given = {"l2_norm_clip": CLIP, "seed": 1, **arguments}
        inner = keras.optimizers.Adam(0.1)
        return dpa.DPPostProcessing(inner, plan=plan, **given)

    @pytest.mark.parametrize("resume_at", [None, 6])
    @pytest.mark.parametrize(
        "inner",
        [
            keras.optimizers.Adam,
            keras.optimizers.RMSprop,
            keras.optimizers.Nadam,
            keras.optimizers.Adagrad,
            keras.optimizers.Lion,
        ],
    )
    def test_follows_the_numpy_reference(
        self, resume_at: int | None, inner: Any
    ) -> None:
        """The reference is Keras' own optimizer on the noisy mean."""
        plan = plan_of()

        def make() -> Any:
            return dpa.DPPostProcessing(inner(0.1), CLIP, plan, seed=1)

        bench = Bench(make(), replay.parameters(SHAPES))
        mean = post_processing.SGD(
            SHAPES,
            l2_norm_clip=CLIP,
            noise_multiplier=SIGMA,
            batch_size=B,
            learning_rate=0.1,
        )
        variables = [keras.Variable(p) for p in bench.parameters()]
        plain = inner(0.1)
        for t, (batch, row) in enumerate(
            zip(self.stream(), self.noise(bench), strict=True)
        ):
            if t == resume_at:
                fresh = Bench(make(), bench.parameters())
                for old, new in zip(
                    bench.optimizer.variables,
                    fresh.optimizer.variables,
                    strict=True,
                ):
                    new.assign(old)
                bench = fresh
            g = clip.flatten_examples(batch.per_example, mean.shapes)
            noisy = mean.noisy_mean(g, batch.mask, clip.flatten(row[0]))
            plain.apply(
                [keras.ops.cast(p, "float32") for p in mean.split(noisy)],
                variables,
            )
            got = bench.step(*batch, row)
            expected = [keras.ops.convert_to_numpy(v) for v in variables]
            np.testing.assert_allclose(flat(got), flat(expected), atol=2e-4)

    @pytest.mark.parametrize("arguments", [{"name": "mine"}])
    def test_accepts_what_is_post_processing(self, arguments: Any) -> None:
        super().test_accepts_what_is_post_processing(arguments)

    @pytest.mark.parametrize(
        "arguments", [{"weight_decay": 0.1}, {"use_ema": True}]
    )
    def test_sends_what_is_the_inner_optimizers_there(
        self, arguments: Any
    ) -> None:
        with pytest.raises(ValueError, match="inner"):
            self.make(plan_of(), **arguments)

    @pytest.mark.parametrize(
        "arguments", [{"clipnorm": 1.0}, {"gradient_accumulation_steps": 2}]
    )
    def test_refuses_an_inner_optimizer_that_would_break_the_guarantee(
        self, arguments: Any
    ) -> None:
        inner = keras.optimizers.Adam(0.1, **arguments)
        with pytest.raises(ValueError, match=next(iter(arguments))):
            dpa.DPPostProcessing(inner, CLIP, plan_of())

    def test_refuses_an_inner_optimizer_of_the_wrong_kind(self) -> None:
        with pytest.raises(TypeError, match="plain Keras optimizer"):
            dpa.DPPostProcessing(self.make(plan_of()), CLIP, plan_of())
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
        with pytest.raises(TypeError, match="LossScaleOptimizer"):
            dpa.DPPostProcessing(scaled, CLIP, plan_of())

    def test_learning_rate_is_that_of_the_inner_optimizer(self) -> None:
        optimizer = self.make(plan_of())
        optimizer.learning_rate = 0.5
        assert float(optimizer.inner_optimizer.learning_rate) == 0.5
        assert float(optimizer.learning_rate) == 0.5
