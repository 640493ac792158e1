"""Checks of the MicroAdam reference: quantiser, top-k, window, limits."""

import numpy as np
import pytest

from tests.reference.micro_adam import (
    MicroAdam,
    dequantise,
    largest,
    quantise,
)
from tests.reference.post_processing import Adam
from tests.reference.replay import run

COMMON = {
    "l2_norm_clip": 0.8,
    "noise_multiplier": 0.3,
    "batch_size": 6,
    "learning_rate": 0.05,
}
DTYPES = [np.float32, np.float64]


class TestQuantiser:
    def test_codes_round_half_up_and_not_half_to_even(self):
        x = np.array([0.0, 0.49, 0.5, 1.5, 2.5, 14.5, 15.0])
        codes, mn, mx = quantise(x)
        assert (mn, mx) == (0.0, 15.0)
        np.testing.assert_array_equal(codes, [0, 0, 1, 2, 3, 15, 15])
        np.testing.assert_array_equal(
            dequantise(codes, mn, mx), [0, 0, 1, 2, 3, 15, 15]
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_error_is_at_most_half_a_unit(self, dtype):
        rng = np.random.default_rng(0)
        for size in (1, 2, 63, 64):
            x = (rng.standard_normal(size) * 10.0 ** rng.uniform(-9, 9)).astype(
                dtype
            )
            codes, mn, mx = quantise(x)
            assert codes.max() <= 15
            back = dequantise(codes, mn, mx)
            assert back.dtype == dtype
            half = (float(mx) - float(mn)) / 30
            rounding = 4 * np.finfo(dtype).eps * np.max(np.abs(x))
            assert np.max(np.abs(back - x)) <= half + rounding

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("value", [0.0, -3.0, 1e-3, 1e30])
    def test_a_constant_block_comes_back_as_it_is(self, dtype, value):
        x = np.full(5, value, dtype)
        codes, mn, mx = quantise(x)
        np.testing.assert_array_equal(codes, 0)
        np.testing.assert_array_equal(dequantise(codes, mn, mx), x)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_denormal_unit_is_never_divided_by(self, dtype):
        tiny = np.finfo(dtype).tiny
        x = np.array([0, 7 * tiny, 14 * tiny], dtype)  # u = 14/15 tiny
        codes, mn, mx = quantise(x)
        np.testing.assert_array_equal(codes, 0)
        np.testing.assert_array_equal(dequantise(codes, mn, mx), 0)
        codes, _, _ = quantise(np.array([0, 8 * tiny, 15 * tiny], dtype))
        np.testing.assert_array_equal(codes, [0, 8, 15])

    def test_an_overflowing_range_gives_the_minimum(self):
        x = np.array([3e38, -3e38, 0], np.float32)
        codes, mn, mx = quantise(x)
        np.testing.assert_array_equal(codes, 0)
        np.testing.assert_array_equal(dequantise(codes, mn, mx), x[1])
        # In float64 the same range is an ordinary one.
        np.testing.assert_array_equal(quantise(x.astype(float))[0], [15, 0, 8])

    def test_a_zero_need_not_come_back_as_zero(self):
        back = dequantise(*quantise(np.array([-1.0, 2.1, 0.0])))
        np.testing.assert_allclose(back, [-1, 2.1, 1 / 30])


class TestSelection:
    def test_ties_take_the_lower_index(self):
        a = np.array([1.0, -2.0, 2.0, 0.0, -2.0])
        np.testing.assert_array_equal(largest(a, 2), [1, 2])
        np.testing.assert_array_equal(largest(np.zeros(4), 3), [0, 1, 2])

    @pytest.mark.parametrize(
        ("shape", "density", "k"),
        [((), 0.01, 1), ((100,), 0.01, 1), ((101,), 0.01, 2), ((7,), 1.0, 7)],
    )
    def test_k_is_the_ceiling(self, shape, density, k):
        ref = MicroAdam([shape], density=density, **COMMON)
        assert ref.windows[0].k == k


class TestMethod:
    SHAPES = ((9, 15), (3,), ())

    def test_everything_kept_is_adam_until_the_window_is_full(self):
        shapes = list(self.SHAPES)
        micro = MicroAdam(shapes, density=1.0, window=6, epsilon=1e-7, **COMMON)
        a = run(micro, shapes, steps=8)
        b = run(Adam(shapes, **COMMON), shapes, steps=8)
        np.testing.assert_allclose(a[:6], b[:6], rtol=1e-9)
        assert np.max(np.abs(a[6] - b[6])) > 1e-4

    def test_the_step_grows_to_six_and_a_half_times_adams(self):
        ref = MicroAdam(
            [(1,)],
            density=1.0,
            epsilon=0.0,
            **{**COMMON, "noise_multiplier": 0.0},
        )
        ref.t, new = 100_000, [np.zeros(1)]
        for _ in range(10):
            new = ref.step(
                [np.zeros(1)],
                [np.ones((1, 1))],
                np.ones(1, bool),
                [[np.zeros(1)]],
            )
        expected = (1 - 0.9**10) / np.sqrt(1 - 0.999**10)
        assert -new[0][0] / 0.05 == pytest.approx(expected, rel=1e-6)
        assert expected == pytest.approx(6.5, abs=0.05)

    def test_full_feedback_loses_nothing(self):
        # Σ of all selected values and e is Σ of all gradients.
        ref = MicroAdam(
            [(20,)], density=0.1, window=9, error_feedback="full", **COMMON
        )
        rng, total = np.random.default_rng(0), np.zeros(20)
        for _ in range(9):
            g, z = rng.standard_normal((4, 20)), rng.standard_normal(20)
            total += ref.noisy_mean(g, np.ones(4, bool), z)
            ref.step([np.zeros(20)], [g], np.ones(4, bool), [[z]])
        state = ref.windows[0]
        kept = np.zeros(20)
        np.add.at(kept, state.indices, state.values)
        np.testing.assert_allclose(kept + state.e, total, atol=1e-12)

    def test_no_feedback_forgets_what_was_not_selected(self):
        ref = MicroAdam([(4,)], density=0.25, error_feedback="none", **COMMON)
        for g in ([4.0, 3.0, 0, 0], [0, 0.0, 0.1, 0]):
            ref.step(
                [np.zeros(4)],
                [np.array([g]) / 10],
                np.ones(1, bool),
                [[np.zeros(4)]],
            )
        np.testing.assert_array_equal(ref.windows[0].indices[:2, 0], [0, 2])

    def test_ring_buffer_by_hand(self):
        # One entry of two a step, w = 2, nothing clipped, B = 1, σ = 0.
        ref = MicroAdam(
            [(2,)],
            density=0.5,
            window=2,
            error_feedback="none",
            epsilon=1e-30,
            l2_norm_clip=100.0,
            noise_multiplier=0.0,
            batch_size=1,
            learning_rate=1.0,
        )
        moves = [
            -ref.step(
                [np.zeros(2)],
                [np.array([g])],
                np.ones(1, bool),
                [[np.zeros(2)]],
            )[0]
            for g in ([1.0, 0.0], [0.0, 3.0], [2.0, 0.0])
        ]
        b1, b2 = 0.9, 0.999
        second = [
            0.1 * b1 * 1 / (1 - b1**2) / np.sqrt(0.001 * b2 / (1 - b2**2)),
            0.1 * 3 / (1 - b1**2) / np.sqrt(0.001 * 9 / (1 - b2**2)),
        ]
        np.testing.assert_allclose(moves[1], second, rtol=1e-10)
        third = [
            0.1 * 2 / (1 - b1**3) / np.sqrt(0.001 * 4 / (1 - b2**3)),
            0.1 * b1 * 3 / (1 - b1**3) / np.sqrt(0.001 * b2 * 9 / (1 - b2**3)),
        ]
        np.testing.assert_allclose(moves[2], third, rtol=1e-10)

    def test_blocks_run_in_c_order_and_the_last_is_short(self):
        ref = MicroAdam(
            [(10, 13)], density=0.01, **{**COMMON, "noise_multiplier": 0.0}
        )
        g = np.arange(130.0).reshape(1, 10, 13) + 1
        ref.step(
            [np.zeros((10, 13))], [g], np.ones(1, bool), [[np.zeros((10, 13))]]
        )
        blocks = ref.windows[0].e
        assert [len(codes) for codes, _, _ in blocks] == [64, 64, 2]
        unit = 0.8 / 6 / np.linalg.norm(g)
        np.testing.assert_allclose(
            [(mn, mx) for _, mn, mx in blocks],
            # The two largest, 129 and 130, were taken: that block is all 0.
            np.array([[1, 64], [65, 128], [0, 0]]) * unit,
        )

    def test_float32_and_float64_agree_away_from_the_boundaries(self):
        shapes, out = list(self.SHAPES), []
        for dtype in DTYPES:
            ref = MicroAdam(
                shapes, density=0.05, window=4, dtype=dtype, **COMMON
            )
            out.append(run(ref, shapes, seed=4))
            assert ref.rounding_margin > 1e-5
            assert ref.selection_margin > 1e-5
        np.testing.assert_allclose(out[0], out[1], atol=1e-6)
