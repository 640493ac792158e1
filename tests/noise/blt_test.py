"""Buffered linear Toeplitz noise: the numbers of the notes."""

import numpy as np
import tensorflow as tf

from tests.noise.white import Replayed, expected, run
from tf_dpadaptive.noise.blt import BLT
from tf_dpadaptive.noise.square_root import SquareRoot


def test_numbers_of_the_notes():
    n = 100_000
    errors = BLT(2).prefix_errors_squared(n)
    np.testing.assert_allclose(np.sqrt(np.max(errors)), 5.296747, rtol=1e-6)
    np.testing.assert_allclose(BLT(2).scale(n), 2.041, atol=5e-4)


def test_four_buffers_are_near_the_square_root():
    # The square root is the best Toeplitz matrix for the largest error.
    n = 2000
    best = np.max(SquareRoot().prefix_errors_squared(n))
    assert best < np.max(BLT(4).prefix_errors_squared(n)) < 1.002 * best


def test_slow_decays_stay_exact_over_a_long_run():
    n, mechanism = 1000, BLT(3)
    white = Replayed([(4,)], n)
    stream = mechanism.stream(white, [(4,)], num_steps=n)
    (noise,) = run(stream, range(n), tf.function)
    (wanted,) = expected(mechanism, white, n)
    np.testing.assert_allclose(noise, wanted, atol=2e-6 * mechanism.scale(n))


def test_epochs_are_what_it_is_optimised_for():
    n = 200

    def error(mechanism):
        squares = mechanism.prefix_errors_squared(n)
        return mechanism.sensitivity(n, 20, 10) * np.sqrt(np.max(squares))

    assert error(BLT(3, epochs=10)) < 0.95 * error(BLT(3))
