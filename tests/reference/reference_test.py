"""Checks of the transcriptions: a battery for all, and values by hand."""

import numpy as np
import pytest

from tests.reference import clip, noise_rows, replay
from tests.reference.adaclip import AdaCliP
from tests.reference.bias_corrected import (
    AdagradBiasCorrected,
    AdamBiasCorrected,
)
from tests.reference.delayed import AdagradDelayed, RMSpropDelayed
from tests.reference.independent_moments import (
    AdagradIndependentMoments,
    AdamIndependentMoments,
)
from tests.reference.joint_moments import AdagradJointMoments, AdamJointMoments
from tests.reference.micro_adam import MicroAdam
from tests.reference.post_processing import SGD, Adagrad, Adam, AdamW
from tests.reference.replay import SHAPES, feed, run, scalar
from tests.reference.scale_then_privatize import (
    AdagradScaleThenPrivatize,
    AdamScaleThenPrivatize,
)
from tests.reference.side_information import (
    AdamSideInformation,
    NonPrivatePreconditionerAdam,
)

STEPS = 14
COMMON = {
    "l2_norm_clip": 0.8,
    "noise_multiplier": 0.3,
    "batch_size": 6,
    "learning_rate": 0.05,
}
METHODS = {
    "sgd": (SGD, {}),
    "momentum": (SGD, {"momentum": 0.9}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (Adam, {}),
    "adamw": (AdamW, {}),
    "adagrad": (Adagrad, {}),
    "adam_ime": (AdamIndependentMoments, {}),
    "adagrad_ime": (AdagradIndependentMoments, {"sensitivity": "tight"}),
    "adagrad_ime_max": (AdagradIndependentMoments, {"max_with_one": True}),
    "adam_jme": (AdamJointMoments, {}),
    "adagrad_jme": (AdagradJointMoments, {"scale": 0.1}),
    "adam_bc": (AdamBiasCorrected, {"epsilon": 1e-4}),
    "adagrad_bc": (AdagradBiasCorrected, {"epsilon": 0.0, "floor": 1e-8}),
    "adam_stp": (AdamScaleThenPrivatize, {"scale_epsilon": 0.1}),
    "adagrad_stp": (AdagradScaleThenPrivatize, {"scale_epsilon": 0.1}),
    "rmsprop_delayed": (
        RMSpropDelayed,
        {"plain_steps": 3, "adaptive_steps": 2, "adaptive_l2_norm_clip": 2.0},
    ),
    "adagrad_delayed": (
        AdagradDelayed,
        {"plain_steps": 2, "adaptive_steps": 3, "adaptive_learning_rate": 0.1},
    ),
    "noiseless": (NonPrivatePreconditionerAdam, {}),
    "noiseless_raw": (NonPrivatePreconditionerAdam, {"un_noised": "raw"}),
    "noiseless_stp": (
        NonPrivatePreconditionerAdam,
        {"scale_then_privatize": True, "scale_epsilon": 0.1},
    ),
    "adaclip": (AdaCliP, {"h2": 10.0}),
    "adaclip_batch": (AdaCliP, {"h2": 10.0, "variance": "batch"}),
    "micro_adam": (MicroAdam, {"density": 0.3, "window": 4}),
}


@pytest.mark.parametrize("name", METHODS)
class TestBattery:
    def make(self, name, **more):
        method, own = METHODS[name]
        return method(SHAPES, **{**COMMON, **own, **more})

    def test_runs_finite_and_moves_every_step(self, name):
        seen = run(self.make(name))
        assert np.isfinite(seen).all()
        assert (np.max(np.abs(np.diff(seen, axis=0)), axis=1) > 0).all()

    def test_order_and_a_copy_change_nothing(self, name):
        plain = run(self.make(name))
        np.testing.assert_allclose(
            run(self.make(name), permute=True), plain, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_array_equal(
            run(self.make(name), interrupt=STEPS // 2), plain
        )

    def test_noise_reaches_the_update_with_sigma_and_only_then(self, name):
        quiet = self.make(name, noise_multiplier=0.0)
        other = self.make(name, noise_multiplier=0.0)
        c = noise_rows.lambda_cgd(STEPS, 0.5)
        np.testing.assert_array_equal(run(quiet), run(other, strategy=c))
        assert np.any(run(self.make(name)) != run(self.make(name), strategy=c))

    def test_padding_rows_change_nothing(self, name):
        # The random stream depends on the number of rows: pad by hand.
        a, b = self.make(name), self.make(name)
        noise = noise_rows.replay(np.eye(3), SHAPES, streams=a.streams)
        pa = pb = replay.parameters(SHAPES)
        for batch, rows in zip(
            replay.gradient_stream(SHAPES, steps=3, examples=5),
            noise,
            strict=True,
        ):
            padded = [
                np.concatenate([g, np.full_like(g[:2], np.nan), 9 + g[:1]])
                for g in batch.per_example
            ]
            pa = a.step(pa, batch.per_example, batch.mask, rows)
            pb = b.step(pb, padded, np.arange(8) < 5, rows)
        np.testing.assert_allclose(
            clip.flatten(pa), clip.flatten(pb), rtol=1e-12
        )

    def test_an_empty_batch_is_a_step(self, name):
        ref = self.make(name)
        rows = noise_rows.replay(np.eye(1), SHAPES, streams=ref.streams)[0]
        empty = [np.zeros((0, *shape)) for shape in SHAPES]
        params = ref.step(
            replay.parameters(SHAPES), empty, np.zeros(0, bool), rows
        )
        assert ref.t == 1
        assert np.isfinite(clip.flatten(params)).all()


class TestByHand:
    def test_adam(self):
        ref = scalar(Adam, epsilon=0.0)
        # clip: (2, -1); ḡ = 0.5; g = 0.5 + 0.5·1 = 1.
        assert feed(ref, 1.0, [3, -1], 1.0) == pytest.approx(0.9, rel=1e-14)
        # g = -0.5: μ = .04, ν = .001249; μ̂ = .04/.19, ν̂ = .001249/.001999.
        expected = 0.9 - 0.1 * (0.04 / 0.19) / np.sqrt(0.001249 / 0.001999)
        assert feed(ref, 0.9, [0, 0], -1.0) == pytest.approx(expected)
        assert expected == pytest.approx(0.8733663, abs=1e-7)

    def test_epsilon_stands_beside_the_debiased_root(self):
        ref = scalar(Adam, epsilon=1.0)
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.1 / (1 + 1))

    def test_adagrad(self):
        ref = scalar(Adagrad, epsilon=0.0, initial_accumulator_value=3.0)
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.1 / 2)
        assert feed(ref, 0.0, [3, -1], 2.0) == pytest.approx(
            -0.1 * 1.5 / np.sqrt(4 + 2.25)
        )

    def test_momentum_and_nesterov(self):
        ref = scalar(SGD, momentum=0.9)
        theta = feed(ref, 0.0, [3, -1], 1.0)
        theta = feed(ref, theta, [3, -1], 1.0)
        assert theta == pytest.approx(-0.1 - 0.19)
        ref = scalar(SGD, momentum=0.9, nesterov=True)
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.19)

    def test_weight_decay_and_a_schedule(self):
        ref = scalar(
            SGD, weight_decay=0.5, learning_rate=lambda done: 0.1 / (1 + done)
        )
        assert feed(ref, 2.0, [3, -1], 1.0) == pytest.approx(2 - 0.1 - 0.1)
        assert feed(ref, 2.0, [3, -1], 1.0) == pytest.approx(2 - 0.05 - 0.05)

    def test_replace_one_doubles_the_noise(self):
        ref = scalar(SGD, sensitivity_factor=2)
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.1 * 1.5)

    def test_independent_moments(self):
        ref = scalar(AdamIndependentMoments, epsilon=0.0)
        # S2 = 5·4/4 = 5; g1 = 0.5 + √2·0.5, g2 = 0.25 + √2·5·0.5·0.1.
        g1, g2 = 0.5 + np.sqrt(0.5), 0.25 + np.sqrt(2) * 0.25
        assert feed(ref, 0.0, [3, -1], 1.0, 0.1) == pytest.approx(
            -0.1 * g1 / np.sqrt(g2)
        )
        ref = scalar(AdagradIndependentMoments, max_with_one=True)
        assert feed(ref, 0.0, [3, -1], 1.0, -1.0) == pytest.approx(-0.1 * g1)

    def test_a_negative_second_moment_counts_as_zero(self):
        for method in (AdamIndependentMoments, AdagradJointMoments):
            ref = scalar(method, epsilon=0.01, noise_multiplier=1.0)
            step = feed(ref, 0.0, [0.1, 0.1], 0.0, -1.0)
            assert step == pytest.approx(-0.1 * 0.1 / 0.01)

    def test_joint_moments_project_the_first_stream_too(self):
        ref = scalar(AdagradJointMoments, epsilon=0.0, noise_multiplier=0.0)
        # Five examples at the clip norm, B = 2: ḡ = 5, projected to 2.
        assert feed(ref, 0.0, [9] * 5, 0.0, 0.0) == pytest.approx(-0.1)
        ref = scalar(
            AdagradIndependentMoments, epsilon=0.0, noise_multiplier=0.0
        )
        assert feed(ref, 0.0, [9] * 5, 0.0, 0.0) == pytest.approx(-0.1 * 5 / 2)

    def test_scale_then_privatize(self):
        ref = scalar(AdamScaleThenPrivatize, scale_epsilon=0.5, epsilon=0.0)
        # s = 2: (6, -2) is clipped to (2, -2); mean 0; noise 0.5; over s.
        feed(ref, 0.0, [3, -1], 1.0)
        assert ref.nu_hat[0] == pytest.approx(0.25**2)
        # s = 1/0.75: (4, 0) -> (2, 0); mean 1; noise -0.25.
        feed(ref, 0.0, [3, 0], -0.5)
        g2 = 0.75 * 0.75
        nu_hat = (0.999 * 0.001 * 0.0625 + 0.001 * g2**2) / (1 - 0.999**2)
        assert ref.nu_hat[0] == pytest.approx(nu_hat)

    def test_delayed_preconditioner(self):
        ref = scalar(
            RMSpropDelayed,
            plain_steps=2,
            adaptive_steps=1,
            adaptive_l2_norm_clip=4.0,
            adaptive_learning_rate=0.2,
            epsilon=0.0,
        )
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.1)
        assert feed(ref, 0.0, [3, 1], 1.0) == pytest.approx(-0.2)
        # A = 0.1·((1 + 2)/2)²; gradients over √A, clip 4, noise 4·0.5/2·1.
        assert ref.A[0] == pytest.approx(0.225)
        assert ref.G[0] == 0
        expected = -0.2 * ((4 - 1 / np.sqrt(0.225)) / 2 + 1)
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(expected)
        # A new cycle: plain again, from G = 0.
        assert feed(ref, 0.0, [3, -1], 1.0) == pytest.approx(-0.1)
        assert ref.G[0] == pytest.approx(1.0)

    def test_side_information(self):
        for which, inverse_s in (("current", 0.4 + 0.1), ("previous", 0.1)):
            ref = scalar(
                AdamSideInformation,
                scale_then_privatize=True,
                scale_epsilon=0.1,
                scale_with=which,
                epsilon=0.0,
            )
            new = ref.step(
                [np.float64(0)],
                [np.array([0.3, 0.3])],
                np.ones(2, bool),
                [[np.float64(1)]],
                [np.float64(-0.4)],
            )
            scaled = min(2.0, 0.3 / inverse_s) + 0.5
            expected = -0.1 * scaled * inverse_s / 0.4
            assert float(new[0]) == pytest.approx(expected)

    def test_adaclip(self):
        ref = scalar(AdaCliP, h2=50.0)
        # b = 2: w = (1.5, -0.5) -> (1, -0.5); g̃ = 2(0.25 + 0.25·2) + 0 = 1.5.
        assert feed(ref, 0.0, [3, -1], 2.0) == pytest.approx(-0.15)
        v = 2 * (1.5**2 - 2**2 * 0.25 / 4)
        s2 = 0.9 * 4 + 0.1 * v
        assert ref.m[0] == pytest.approx(0.015)
        assert ref.s[0] ** 2 == pytest.approx(s2)
        assert ref.b[0] == pytest.approx(np.sqrt(s2))  # d = 1: b = s
        # Step 2, in the units and around the centre of step 1.
        b, m = np.sqrt(s2), 0.015
        gt = b * (((0.4 - m) / b - (0.1 + m) / b) / 2 - 0.25) + m
        assert feed(ref, 0.0, [0.4, -0.1], -1.0) == pytest.approx(-0.1 * gt)
        v = 2 * ((gt - m) ** 2 - b**2 * 0.25 / 4)
        assert v < 0  # so the clamp gives h1
        assert ref.m[0] == pytest.approx(0.99 * m + 0.01 * gt)
        assert ref.s[0] ** 2 == pytest.approx(0.9 * s2 + 0.1 * 1e-12)

    def test_adaclip_measures_the_spread_around_the_old_centre(self):
        ref = scalar(AdaCliP, h2=50.0, noise_multiplier=0.0)
        ref.m = np.array([1.0])
        # w = (0.5, 0) with b = 2: g̃ = 2·0.25 + 1; v = 2·(1.5 - 1)².
        feed(ref, 0.0, [2.0, 1.0], 0.0)
        assert ref.s[0] ** 2 == pytest.approx(0.9 * 4 + 0.1 * 0.5)
