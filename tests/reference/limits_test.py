"""Limiting cases of the transcriptions, and their expectations exactly."""

import itertools

import numpy as np
import pytest

from tests.reference import noise_rows, replay
from tests.reference.adaclip import AdaCliP
from tests.reference.bias_corrected import (
    AdagradBiasCorrected,
    AdamBiasCorrected,
)
from tests.reference.delayed import RMSpropDelayed
from tests.reference.independent_moments import (
    AdagradIndependentMoments,
    AdamIndependentMoments,
)
from tests.reference.joint_moments import AdagradJointMoments, AdamJointMoments
from tests.reference.post_processing import SGD, Adagrad, Adam
from tests.reference.replay import SHAPES, feed, run, scalar
from tests.reference.scale_then_privatize import (
    AdagradScaleThenPrivatize,
    AdamScaleThenPrivatize,
)
from tests.reference.side_information import (
    AdamSideInformation,
    NonPrivatePreconditionerAdam,
)

COMMON = {
    "l2_norm_clip": 0.8,
    "noise_multiplier": 0.3,
    "batch_size": 6,
    "learning_rate": 0.05,
}


class TestLimits:
    def test_without_noise_the_moment_methods_are_adam_and_adagrad(self):
        # A clip norm so large that nothing is clipped or projected.
        still = {**COMMON, "noise_multiplier": 0.0, "l2_norm_clip": 1e4}
        for plain, others in (
            (
                Adam,
                [
                    AdamIndependentMoments,
                    AdamJointMoments,
                    AdamBiasCorrected,
                    NonPrivatePreconditionerAdam,
                ],
            ),
            (
                Adagrad,
                [
                    AdagradIndependentMoments,
                    AdagradJointMoments,
                    AdagradBiasCorrected,
                ],
            ),
        ):
            expected = run(plain(SHAPES, **still))
            for method in others:
                np.testing.assert_allclose(
                    run(method(SHAPES, **still)), expected, rtol=1e-12
                )

    @pytest.mark.parametrize(
        ("scaled", "plain"),
        [
            (AdamScaleThenPrivatize, Adam),
            (AdagradScaleThenPrivatize, Adagrad),
        ],
    )
    def test_scale_then_privatize_with_constant_s_is_post_processing(
        self, scaled, plain
    ):
        # es1 far above √ν̂: s is 1/es1, ζ·es1 the clip norm in gradient space.
        es1 = 1e9
        far = scaled(
            SHAPES,
            scale_epsilon=es1,
            **{**COMMON, "l2_norm_clip": COMMON["l2_norm_clip"] / es1},
        )
        np.testing.assert_allclose(
            run(far), run(plain(SHAPES, **COMMON)), rtol=1e-6
        )
        # s = 1 exactly: es1 = 1 at the first step, where ν̂ = 0.
        one = scaled(SHAPES, scale_epsilon=1.0, **COMMON)
        first = run(one, steps=1)
        np.testing.assert_array_equal(
            first, run(plain(SHAPES, **COMMON), steps=1)
        )

    def test_step_one_of_scale_then_privatize_clips_at_zeta_es1(self):
        es1 = 1e-3
        stp = AdamScaleThenPrivatize(SHAPES, scale_epsilon=es1, **COMMON)
        adam = Adam(SHAPES, **{**COMMON, "l2_norm_clip": 0.8 * es1})
        np.testing.assert_allclose(
            run(stp, steps=1), run(adam, steps=1), rtol=1e-12
        )

    def test_noise_of_scale_then_privatize_in_mean_space(self):
        ref = AdamScaleThenPrivatize(
            [(2,)], scale_epsilon=0.1, epsilon=0.0, beta_1=0.0, **COMMON
        )
        ref.nu_hat, ref.t = np.array([4.0, 0.0]), 1
        ref.update(np.zeros((0, 2)), np.zeros(0, bool), [np.ones(2)])
        np.testing.assert_allclose(ref.mu, 0.8 * 0.3 / 6 * np.array([2.1, 0.1]))

    def test_fixed_point_of_scale_then_privatize_on_noise_alone(self):
        # z = ±1 has z² = 1: no fluctuation, so the fixed point is exact.
        ref = AdamScaleThenPrivatize(
            [(1,)], scale_epsilon=0.2, beta_2=0.5, **COMMON
        )
        for _ in range(200):
            ref.step(
                [np.zeros(1)],
                [np.zeros((0, 1))],
                np.zeros(0, bool),
                [[np.full(1, 5.0)]],
            )
        tau = 5 * 0.8 * 0.3 / 6
        np.testing.assert_allclose(
            np.sqrt(ref.nu_hat), tau * 0.2 / (1 - tau), rtol=1e-9
        )

    def test_side_information_with_the_own_gradient_is_the_method_itself(self):
        shapes = [(4,)]
        arguments = {**COMMON, "noise_multiplier": 0.0}
        stp = {"scale_epsilon": 0.1}
        pairs = [
            (Adam(shapes, **arguments), {}),
            (
                AdamScaleThenPrivatize(shapes, **stp, **arguments),
                {
                    "scale_then_privatize": True,
                    "scale_with": "previous",
                    **stp,
                },
            ),
        ]
        for ref, own in pairs:
            side = AdamSideInformation(shapes, **own, **arguments)
            p = q = [np.ones(4)]
            for batch in replay.gradient_stream(shapes, steps=5, examples=4):
                before = ref.nu.copy()
                args = (batch.per_example, batch.mask, [[np.zeros(4)]])
                p = ref.step(p, *args)
                h = np.sqrt((ref.nu - ref.beta_2 * before) / 0.001)
                q = side.step(q, *args, [h])
                np.testing.assert_allclose(p[0], q[0], rtol=1e-9)

    def test_noiseless_scaling_without_noise_is_scale_then_privatize(self):
        still = {**COMMON, "noise_multiplier": 0.0, "scale_epsilon": 0.1}
        np.testing.assert_allclose(
            run(
                NonPrivatePreconditionerAdam(
                    SHAPES, scale_then_privatize=True, **still
                )
            ),
            run(AdamScaleThenPrivatize(SHAPES, **still)),
            rtol=1e-12,
        )

    def test_a_long_plain_phase_is_sgd(self):
        np.testing.assert_array_equal(
            run(RMSpropDelayed(SHAPES, **COMMON)), run(SGD(SHAPES, **COMMON))
        )

    @pytest.mark.parametrize("factor", [1, 2])
    def test_step_one_of_adaclip_is_sgd_with_that_clip_norm(self, factor):
        arguments = {**COMMON, "sensitivity_factor": factor}
        np.testing.assert_allclose(
            run(AdaCliP(SHAPES, h2=1.0, **arguments), steps=1),
            run(SGD(SHAPES, **arguments), steps=1),
            rtol=1e-12,
        )


def signs(steps):
    """Yields all ±1 sequences: their mean is 0 and their covariance I."""
    return itertools.product([-1.0, 1.0], repeat=steps)


class TestMoments:
    STRATEGY = noise_rows.at_sensitivity_one(noise_rows.lambda_cgd(5, 0.5))

    def mean_of(self, method, attribute, streams=1, **own):
        """Returns E[attribute] after 5 steps over all signs, by enumeration."""
        r = noise_rows.row_norms(self.STRATEGY)
        total, count = 0.0, 0
        for z in signs(5):
            ref = scalar(method, row_norms=r, **own)
            for row in noise_rows.rows(self.STRATEGY, np.array(z)):
                feed(ref, 0.0, [3, -1, 0.5], *[row] * streams)
            total, count = total + getattr(ref, attribute)[0], count + 1
        return total / count

    @pytest.mark.parametrize(
        ("method", "corrected"),
        [(Adam, AdamBiasCorrected), (Adagrad, AdagradBiasCorrected)],
    )
    def test_the_bias_of_nu_is_phi_under_correlated_noise(
        self, method, corrected
    ):
        noisy = self.mean_of(method, "nu")
        clean = self.mean_of(method, "nu", noise_multiplier=0.0)
        ref = scalar(corrected, row_norms=noise_rows.row_norms(self.STRATEGY))
        for _ in range(5):
            feed(ref, 0.0, [3, -1, 0.5], 0.0)
        own = ref.phi if corrected is AdamBiasCorrected else ref.bias
        assert noisy - clean == pytest.approx(own, rel=1e-12)

    def test_with_independent_noise_the_debiased_bias_is_tau_squared(self):
        ref = scalar(AdamBiasCorrected)
        for _ in range(7):
            feed(ref, 0.0, [1.0], 0.3)
            assert ref.bias == pytest.approx(0.25, rel=1e-12)

    @pytest.mark.parametrize(
        "method", [AdamIndependentMoments, AdamJointMoments]
    )
    def test_released_squares_are_unbiased(self, method):
        noisy = self.mean_of(method, "nu", streams=2)
        clean = self.mean_of(method, "nu", streams=2, noise_multiplier=0.0)
        assert noisy == pytest.approx(clean, rel=1e-12)

    def test_adaclip_is_unbiased_over_poisson_batches_but_not_given_n(self):
        # All 2⁶ batches of 6 examples, each drawn with q = 1/2, B = 3.
        rng = np.random.default_rng(0)
        g = rng.standard_normal((6, 3))
        by_size = {}
        for batch in itertools.product([False, True], repeat=6):
            ref = AdaCliP(
                [(3,)],
                l2_norm_clip=100.0,
                noise_multiplier=0.0,
                batch_size=3,
                learning_rate=1.0,
                h2=1.0,
            )
            ref.m = np.array([5.0, -2.0, 1.0])
            gt = ref.update(g, np.array(batch), [np.zeros(3)])
            by_size.setdefault(sum(batch), []).append(gt)
        everything = np.concatenate([np.array(v) for v in by_size.values()])
        np.testing.assert_allclose(
            everything.mean(axis=0), g.mean(axis=0), atol=1e-12
        )
        m = np.array([5.0, -2.0, 1.0])
        for n, given in by_size.items():
            np.testing.assert_allclose(
                np.mean(given, axis=0),
                n / 3 * g.mean(axis=0) + (1 - n / 3) * m,
                atol=1e-12,
            )

    @pytest.mark.parametrize("factor", [1, 2])
    def test_adaclip_subtracts_exactly_the_noise_variance(self, factor):
        # h1 = -inf: no clamp, so v must average to 0 on noise alone.
        values = []
        for z in signs(2):
            ref = scalar(
                AdaCliP, h1=-np.inf, h2=np.inf, sensitivity_factor=factor
            )
            rows = noise_rows.rows(noise_rows.lambda_cgd(2, 0.5), np.array(z))
            ref.row_norms, ref.t = [1.0, 1.25], 1
            feed(ref, 0.0, [], rows[1])
            values.append(ref.s[0] ** 2)
        assert np.mean(values) == pytest.approx(0.9 * 4, rel=1e-12)

    def test_adaclip_runs_away_on_noise_alone_above_k_of_two(self):
        # k = dσ²/B. The clamp v >= h1 keeps E max(z² - 1, 0) = 0.484 of the
        # noise, so from equal s one step makes s² (β2 + (1-β2) 0.484 k) fold.
        d, b, k = 20_000, 10, 20.0
        rng = np.random.default_rng(0)
        ref = AdaCliP(
            [(d,)],
            l2_norm_clip=1.0,
            noise_multiplier=np.sqrt(k * b / d),
            batch_size=b,
            learning_rate=0.0,
            h2=1.0,
        )
        start = ref.s[0]
        none = np.zeros((0, d)), np.zeros(0, bool)
        ref.t = 1
        ref.update(*none, [rng.standard_normal(d)])
        # 10 standard errors: the seeded draw is far inside.
        assert np.mean(ref.s**2) / start**2 == pytest.approx(
            0.9 + 0.1 * 0.484 * k, abs=0.2
        )
        for _ in range(60):
            ref.update(*none, [rng.standard_normal(d)])
        # Only h2 stops it: v is then h2 or h1, s² near P(z² > 1) = 0.32 of h2,
        # from 5e-5 at the start.
        assert 0.25 < np.mean(ref.s**2) < 0.33
