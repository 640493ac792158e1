"""What every correlated mechanism must do: one table, one battery."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.noise.participation import patterns, signed
from tests.noise.white import Replayed, expected, run
from tf_dpadaptive.noise import streams
from tf_dpadaptive.noise.banded import BandedMF
from tf_dpadaptive.noise.banded_inverse import BandedInverse
from tf_dpadaptive.noise.blt import BLT
from tf_dpadaptive.noise.dense import DenseMF
from tf_dpadaptive.noise.keys import SecretKeys
from tf_dpadaptive.noise.square_root import SquareRoot
from tf_dpadaptive.noise.tree import TreeAggregation

N = 22
SHAPES = [(3, 2), (), (4,)]
MECHANISMS = [
    BandedMF(5),
    BandedMF(1),
    BandedMF(40),
    BandedMF(5, toeplitz=False),
    BandedInverse(2),
    BandedInverse(4),
    BandedInverse(2, epochs=3),
    BandedInverse(1),
    BandedInverse(2, regenerate=False),
    BandedInverse(4, regenerate=False),
    SquareRoot(),
    DenseMF(),
    DenseMF(epochs=3),
    BLT(1),
    BLT(3),
    BLT(2, epochs=3),
    TreeAggregation(),
    TreeAggregation(honaker=False),
    TreeAggregation(restart_every=7),
    TreeAggregation(honaker=False, restart_every=7),
    TreeAggregation(restart_every=6, complete=True),
    TreeAggregation(honaker=False, restart_every=11, complete=True),
    TreeAggregation(restart_every=1),
    TreeAggregation(regenerate=False),
    TreeAggregation(honaker=False, regenerate=False),
    TreeAggregation(restart_every=6, complete=True, regenerate=False),
]

every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)


def close(noise, wanted, mechanism):
    """Within 1e-6 of the noise's standard deviation times its reach."""
    size = np.sqrt(np.max(mechanism.row_norms_squared(N)))
    for got, want in zip(noise, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * size)


@every_mechanism
class MatrixTest:
    def test_strategy_and_noising_matrix_are_inverse(self, mechanism):
        for n in (1, 2, N):
            if getattr(mechanism, "epochs", 1) > n:
                continue
            c = mechanism.strategy_matrix(n)
            inverse = mechanism.noising_matrix(n)
            assert c.shape == inverse.shape == (n, n)
            assert c.dtype == inverse.dtype == np.float64
            np.testing.assert_allclose(c @ inverse, np.eye(n), atol=1e-10)
            np.testing.assert_array_equal(np.triu(c, 1), 0.0)

    def test_one_participation_has_sensitivity_one(self, mechanism):
        squares = np.sum(mechanism.strategy_matrix(N) ** 2, axis=0)
        honaker = getattr(mechanism, "honaker", False)
        if honaker and mechanism.restart_every != 1:
            # The one-sided estimate loses information; charged is the tree.
            assert 0.8 < np.max(squares) < 1.0
        else:
            np.testing.assert_allclose(np.max(squares), 1.0, rtol=1e-9)
        assert mechanism.sensitivity(N, 1, 1) == 1.0
        assert mechanism.sensitivity(N, N, 5) == 1.0

    def test_row_norms_and_prefix_errors_are_those_of_the_matrix(
        self, mechanism
    ):
        inverse = mechanism.noising_matrix(N)
        rows = mechanism.row_norms_squared(N)
        assert rows.shape == (N,)
        assert rows.dtype == np.float64
        np.testing.assert_allclose(rows, np.sum(inverse**2, axis=1))
        np.testing.assert_allclose(
            mechanism.prefix_errors_squared(N),
            np.sum(np.cumsum(inverse, axis=0) ** 2, axis=1),
        )

    def test_bands_is_the_number_of_diagonals_or_none(self, mechanism):
        c = mechanism.strategy_matrix(N)
        rows, columns = np.nonzero(np.abs(c) > 1e-12)
        diagonals = int(np.max(rows - columns)) + 1
        if mechanism.bands is None:
            assert diagonals > N // 2 or mechanism == BandedInverse(1)
        else:
            assert diagonals <= mechanism.bands

    def test_several_participations_are_bounded(self, mechanism):
        c = mechanism.strategy_matrix(N)
        gram = np.abs(c.T @ c)
        for b, k in ((6, 2), (11, 2), (7, 4), (20, 3)):
            if isinstance(mechanism, BandedMF) and mechanism.bands > b:
                with pytest.raises(ValueError, match="min_separation"):
                    mechanism.sensitivity(N, b, k)
                continue
            relative = mechanism.sensitivity(N, b, k)
            periodic = mechanism.periodic_sensitivity(N, b, k)
            most = min(k, -(-N // b))
            assert periodic <= relative * (1 + 1e-12)
            assert relative <= most
            for first in range(N):
                steps = np.arange(first, N, b)[:k]
                total = np.sum(gram[np.ix_(steps, steps)])
                assert np.sqrt(total) <= periodic * (1 + 1e-9)

    def test_no_pattern_of_participations_is_worse(self, mechanism):
        n = 11
        c = mechanism.strategy_matrix(n)
        for b, k in ((1, 2), (2, 3), (3, 4), (5, 3)):
            if isinstance(mechanism, BandedMF) and mechanism.bands > b:
                with pytest.raises(ValueError, match="min_separation"):
                    mechanism.sensitivity(n, b, k)
                continue
            charged = mechanism.sensitivity(n, b, k)
            worst = max(signed(c, steps) for steps in patterns(n, b, k))
            assert worst <= charged * (1 + 1e-9)
            if isinstance(mechanism, (BandedMF, SquareRoot, BLT)):
                np.testing.assert_allclose(charged, worst)

    def test_more_participations_are_never_cheaper(self, mechanism):
        if isinstance(mechanism, BandedMF) and mechanism.bands > 5:
            return
        values = [mechanism.sensitivity(N, 5, k) for k in (1, 2, 3, 4, 5)]
        assert values == sorted(values)
        assert values[1] > 1.0


@every_mechanism
class StreamTest:
    def test_steps_are_the_rows_of_the_solution(self, mechanism):
        white = Replayed(SHAPES, N, streams=2)
        stream = mechanism.stream(white, SHAPES, num_steps=N, stream=1)
        noise = run(stream, range(N))
        close(noise, expected(mechanism, white, N, stream=1), mechanism)
        assert {s for _, s in white.asked} == {1}
        assert all(part.dtype == np.float32 for part in noise)

    def test_graph(self, mechanism):
        white = Replayed(SHAPES, N)
        stream = mechanism.stream(white, SHAPES, num_steps=N)
        noise = run(stream, range(N), tf.function)
        close(noise, expected(mechanism, white, N), mechanism)

    @pytest.mark.xla
    def test_xla(self, mechanism):
        white = Replayed(SHAPES, N)
        stream = mechanism.stream(white, SHAPES, num_steps=N)
        noise = run(
            stream,
            range(N),
            lambda function: tf.function(function, jit_compile=True),
        )
        close(noise, expected(mechanism, white, N), mechanism)

    @pytest.mark.xla
    def test_xla_compiles_once_for_all_steps(self, mechanism):
        # In a loop the step is no constant: an op that needs one (and would
        # be compiled anew at every step) does not compile.
        white = Replayed(SHAPES, N)
        stream = mechanism.stream(white, SHAPES, num_steps=N)

        @tf.function(jit_compile=True)
        def total():
            zeros = [tf.zeros(shape) for shape in SHAPES]
            return tf.while_loop(
                lambda t, _: t < N,
                lambda t, sums: [
                    t + 1,
                    [a + b for a, b in zip(sums, stream.next(t), strict=True)],
                ],
                [tf.constant(0, tf.int64), zeros],
            )[1]

        wanted = expected(mechanism, white, N)
        for got, want in zip(total(), wanted, strict=True):
            np.testing.assert_allclose(
                got, np.sum(want, axis=0), rtol=1e-4, atol=1e-4
            )

    def test_a_run_goes_on_from_its_buffers(self, mechanism):
        white = Replayed(SHAPES, N)
        first = mechanism.stream(white, SHAPES, num_steps=N)
        before = run(first, range(9), tf.function)
        kept = [buffer.numpy() for buffer in first.buffers]
        second = mechanism.stream(white, SHAPES, num_steps=N)
        for buffer, value in zip(second.buffers, kept, strict=True):
            buffer.assign(value)
        after = run(second, range(9, N), tf.function)
        noise = [
            np.concatenate(parts) for parts in zip(before, after, strict=True)
        ]
        close(noise, expected(mechanism, white, N), mechanism)

    def test_buffers_are_plain_variables(self, mechanism):
        stream = mechanism.stream(Replayed(SHAPES, N), SHAPES, num_steps=N)
        for buffer in stream.buffers:
            assert isinstance(buffer, tf.Variable)
            assert not isinstance(buffer, keras.Variable)
            assert not buffer.trainable

    def test_what_regenerates_keeps_nothing_of_the_size_of_the_model(
        self, mechanism
    ):
        sizes = []
        for size in (10, 1000):
            shapes = [(size,)]
            stream = mechanism.stream(Replayed(shapes, N), shapes, num_steps=N)
            sizes.append(sum(int(tf.size(b)) for b in stream.buffers))
        if getattr(mechanism, "regenerate", False) or mechanism.bands == 1:
            assert sizes[0] == sizes[1]
        else:
            assert sizes[1] > sizes[0] + 900

    def test_a_step_outside_the_run_raises_on_the_host(self, mechanism):
        stream = mechanism.stream(Replayed(SHAPES, N), SHAPES, num_steps=N)
        for step in (-1, N, N + 7):
            with pytest.raises(ValueError, match=f"step={step}"):
                stream.next(tf.constant(step, tf.int64))

    @pytest.mark.xla
    def test_a_step_outside_the_run_is_nan_when_compiled(self, mechanism):
        stream = mechanism.stream(Replayed(SHAPES, N), SHAPES, num_steps=N)
        draw = tf.function(stream.next, jit_compile=True)
        for part in draw(tf.constant(N, tf.int64)):
            assert np.all(np.isnan(part))

    def test_num_steps_is_needed(self, mechanism):
        with pytest.raises(ValueError, match="num_steps"):
            mechanism.stream(Replayed(SHAPES, N), SHAPES, num_steps=None)
        with pytest.raises(ValueError, match="num_steps"):
            mechanism.stream(Replayed(SHAPES, N), SHAPES, num_steps=0)

    def test_covariance_of_keyed_noise(self, mechanism):
        # 36 entries, each within 6 standard deviations: false alarm < 1e-7.
        n, size = 8, 20_000
        keys = SecretKeys(seed=3)
        stream = mechanism.stream(keys, [(size,)], num_steps=n)
        (noise,) = run(stream, range(n), tf.function)
        inverse = mechanism.noising_matrix(n)
        wanted = inverse @ inverse.T
        spread = np.sqrt(
            (np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / size
        )
        got = noise @ noise.T / size
        assert np.all(np.abs(got - wanted) < 6 * spread)
        # Noise too small by a tenth would be seen.
        assert np.any(np.abs(0.81 * got - wanted) > 6 * spread)


@every_mechanism
class ConfigurationTest:
    def test_it_is_frozen_and_compares_by_value(self, mechanism):
        same = type(mechanism).from_config(mechanism.get_config())
        assert same == mechanism
        assert hash(same) == hash(mechanism)
        assert repr(same) == repr(mechanism)
        with pytest.raises(dataclasses.FrozenInstanceError):
            mechanism.bands = 3

    def test_keras_serialises_it(self, mechanism):
        config = keras.saving.serialize_keras_object(mechanism)
        assert config["registered_name"].startswith("tf_dpadaptive>")
        assert keras.saving.deserialize_keras_object(config) == mechanism


def test_all_are_different():
    assert len(set(MECHANISMS)) == len(MECHANISMS)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: BandedMF(0), "bands"),
        (lambda: BandedMF(1.5), "bands"),
        (lambda: BandedMF(None), "bands"),
        (lambda: BandedInverse(0), "bands"),
        (lambda: BandedInverse(2, epochs=0), "epochs"),
        (lambda: BLT(0), "buffers"),
        (lambda: DenseMF(epochs=0), "epochs"),
        (lambda: TreeAggregation(restart_every=0), "restart_every"),
    ],
)
def test_arguments_are_checked(make, name):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        make()


def test_a_resumed_run_draws_the_past_from_the_old_secret():
    # λ-CGD at sensitivity 1: noise = s (z_t - λ z_{t-1}).
    mechanism, n = BandedInverse(2), 6
    scale = mechanism.scale(n)
    decay = -mechanism.inverse_coefficients(n)[1]
    old = SecretKeys()
    old.step.assign(3)
    new = SecretKeys()
    new.load(old.state())
    stream = mechanism.stream(new, [(5,)], num_steps=n)
    (noise,) = run(stream, [3])
    fresh = new.normal(3, 0, 0, (5,)).numpy()
    assert not np.allclose(fresh, old.normal(3, 0, 0, (5,)))
    past = old.normal(2, 0, 0, (5,)).numpy()
    np.testing.assert_allclose(
        noise[0], scale * (fresh - decay * past), rtol=1e-5
    )


def test_full_rows_are_drawn_again_where_they_are_too_large_to_keep(
    monkeypatch,
):
    from tf_dpadaptive.noise import dense

    monkeypatch.setattr(dense, "KEPT_AT_MOST", 0)
    for mechanism in (SquareRoot(), DenseMF()):
        white = Replayed(SHAPES, N)
        stream = mechanism.stream(white, SHAPES, num_steps=N)
        assert isinstance(stream, streams.RegeneratingStream)
        noise = run(stream, range(N), tf.function)
        close(noise, expected(mechanism, white, N), mechanism)


def test_large_variables_are_read_in_chunks(monkeypatch):
    from tf_dpadaptive.noise import ring

    monkeypatch.setattr(ring, "CELLS", 9)
    shapes = [(2, 5), (3,), (), (7,)]  # 7 is padded
    mechanism = BandedMF(4)
    white = Replayed(shapes, N)
    for wrap in (lambda function: function, tf.function):
        stream = mechanism.stream(white, shapes, num_steps=N)
        noise = run(stream, range(N), wrap)
        close(noise, expected(mechanism, white, N), mechanism)
    assert [tuple(b.shape) for b in stream.buffers[3:]] == [
        (5, 3, 2),
        (1, 3, 3),
        (1, 3, 1),
        (3, 3, 3),
    ]
