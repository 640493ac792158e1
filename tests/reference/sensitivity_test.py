"""IME's S2 and JME's J(λ) against brute force over neighbouring batches."""

import itertools

import numpy as np
import pytest

from tests.reference.independent_moments import (
    AdamIndependentMoments,
    square_sensitivity,
)
from tests.reference.joint_moments import (
    AdamJointMoments,
    joint_sensitivity,
    largest_square_distance,
)


def worst_pair(radius: float, distance: float, weights: tuple[float, float]):
    """Returns max u ||x-y||² + v ||x²-y²||² in the plane, on a grid.

    x = a + h, y = a - h; the objective grows with ||a||, so for each direction
    of a and each h the longest a that keeps both in the ball is taken.
    """
    angles = np.linspace(0, np.pi, 121)  # 45 degrees is among them
    lengths = np.linspace(0, min(distance, 2 * radius) / 2, 101)
    fa, fh, h = np.meshgrid(angles[:61], angles, lengths, indexing="ij")
    cos = np.abs(np.cos(fa - fh))
    a = -h * cos + np.sqrt(np.maximum(radius**2 - h**2 * (1 - cos**2), 0))
    square = (4 * a * h) ** 2 * (
        (np.cos(fa) * np.cos(fh)) ** 2 + (np.sin(fa) * np.sin(fh)) ** 2
    )
    u, v = weights
    return np.max(u * 4 * h**2 + v * square)


@pytest.mark.parametrize("r", [0.05, 0.5, 2 / 3, 0.8, 1.0, 1.3])
def test_largest_square_distance_is_exact_up_to_sqrt_two_radii(r):
    best = worst_pair(1.0, r, (0.0, 1.0))
    exact = largest_square_distance(r, 1.0)
    assert 0.999 * exact <= best <= exact * (1 + 1e-9)


@pytest.mark.parametrize(
    ("radius", "distance", "scale", "second_branch"),
    [
        (1.0, 0.1, 0.5, False),
        (1.0, 0.5, 20.0, False),
        (1.0, 0.9, 3.0, False),
        (1.0, 1.5, 0.3, False),
        (1.0, 1.5, 10.0, True),
        (1.0, 2.0, 0.5, False),  # free: J = D
        (1.0, 2.0, 2.0, True),
        (2.0, 0.3, 0.1, False),
        (2.0, 3.0, 4.0, True),
        (0.3, 0.2, 5.0, False),
        (0.3, 0.6, 30.0, True),
        (1.0, 5.0, 0.2, False),  # further apart than the ball is wide
    ],
)
def test_joint_sensitivity_is_exact_in_both_branches(
    radius, distance, scale, second_branch
):
    d = min(distance, 2 * radius)
    assert (d**2 > 2 * radius**2 + 1 / scale) == second_branch
    best = worst_pair(radius, distance, (1.0, scale))
    exact = joint_sensitivity(distance, radius, scale) ** 2
    assert 0.999 * exact <= best <= exact * (1 + 1e-9)


def test_joint_sensitivity_bounds_one_and_many_dimensions():
    rng = np.random.default_rng(0)
    for d, scale, distance in itertools.product(
        (1, 3, 6), (0.3, 0.5, 4.0), (0.2, 1.0, 1.8)
    ):
        x = rng.standard_normal((20_000, d)) / d**0.5
        y = x + rng.standard_normal((20_000, d)) * distance / d**0.5
        x, y = _into_ball(x), _into_ball(y)
        gap = np.sum((x - y) ** 2, axis=1)
        moved = gap + scale * np.sum((x**2 - y**2) ** 2, axis=1)
        assert np.max(moved[gap <= distance**2]) <= (
            joint_sensitivity(distance, 1.0, scale) ** 2
        )


def test_the_sentence_that_bounds_c_is_unsafe_for_small_clip_norms():
    # λ = c²; c <= 1/(2ζ²), read literally, claims J = D = 2ζ.
    zeta = 0.3
    c = 1 / (2 * zeta**2)
    best = np.sqrt(worst_pair(zeta, 2 * zeta, (1.0, c**2)))
    assert best > 1.3 * 2 * zeta
    free = np.sqrt(worst_pair(zeta, 2 * zeta, (1.0, c)))
    np.testing.assert_allclose(free, 2 * zeta, rtol=1e-9)


def _into_ball(x: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.maximum(norm, 1.0)


def worst_square_move(batch_size: float, n: int, factor: int = 1) -> float:
    """Returns max ||(Πḡ)² - (Πḡ')²|| over batches of n examples, ζ = 1.

    In the plane: n - 1 examples sum to any vector of length <= n - 1; the one
    that changes is c, or c' in its stead (0 under zero-out).
    """
    angle = np.linspace(0, 2 * np.pi, 97)[:-1]
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    # B - 1 and B are where one more example takes the mean to the edge.
    longest = min(n - 1.0, 3 * batch_size + 1)
    sums = np.linspace(0, longest, 41)
    edges = np.array([batch_size - 1, batch_size])
    sums = np.append(sums, edges[(edges >= 0) & (edges <= longest)])
    half = circle[: 48 // 2 + 1]
    rest = (sums[:, None, None] * half).reshape(-1, 1, 2)
    one = (np.array([0.25, 0.5, 0.75, 1.0])[:, None, None] * circle).reshape(
        1, -1, 2
    )
    other = one * (1.0 - factor)  # 0, or the opposite example
    x = _into_ball(((rest + one) / batch_size).reshape(-1, 2))
    y = _into_ball(
        np.broadcast_to(
            (rest + other) / batch_size,
            np.broadcast_shapes(rest.shape, one.shape),
        ).reshape(-1, 2)
    )
    return float(np.sqrt(np.max(np.sum((x**2 - y**2) ** 2, axis=1))))


@pytest.mark.parametrize("batch_size", [1.5, 1.7, 2, 3, 8])
def test_tight_is_exact_from_one_and_a_half_on(batch_size):
    tight = square_sensitivity(1.0, batch_size, 1, "tight")
    sizes = {1, 2, int(batch_size), int(batch_size) + 1, 4 * int(batch_size)}
    worst = {n: worst_square_move(batch_size, n) for n in sizes}
    assert max(worst.values()) <= tight * (1 + 1e-12)
    assert worst[4 * int(batch_size)] >= 0.999 * tight
    assert tight < square_sensitivity(1.0, batch_size, 1, "paper")


@pytest.mark.parametrize("batch_size", [1.0, 1.2, 1.4])
def test_tight_fails_below_when_batches_exceed_b(batch_size):
    tight = square_sensitivity(1.0, batch_size, 1, "tight")
    paper = square_sensitivity(1.0, batch_size, 1, "paper")
    assert worst_square_move(batch_size, 1) <= tight * (1 + 1e-12)
    worst = max(worst_square_move(batch_size, n) for n in (2, 3, 5))
    assert tight * 1.002 < worst <= paper
    if batch_size == 1.0:
        np.testing.assert_allclose(worst, np.sqrt(1.5), rtol=0.01)


@pytest.mark.parametrize("batch_size", [0.3, 0.6, 0.9])
def test_paper_holds_below_one(batch_size):
    paper = square_sensitivity(1.0, batch_size, 1, "paper")
    assert max(worst_square_move(batch_size, n) for n in (1, 2, 4)) <= paper


@pytest.mark.parametrize("batch_size", [3, 4.5, 9])
def test_replace_one_tight_is_exact_from_three_on(batch_size):
    tight = square_sensitivity(1.0, batch_size, 2, "tight")
    worst = worst_square_move(batch_size, 3 * int(batch_size), factor=2)
    assert 0.999 * tight <= worst <= tight * (1 + 1e-12)
    assert tight < square_sensitivity(1.0, batch_size, 2, "paper")


def test_replace_one_tight_fails_below_three_and_is_refused():
    assert worst_square_move(2.0, 6, factor=2) > 4 * (2 - 1) / 2**2
    assert worst_square_move(2.0, 6, factor=2) <= square_sensitivity(
        1.0, 2.0, 2, "paper"
    )
    with pytest.raises(ValueError, match="B >= 3"):
        square_sensitivity(1.0, 2.0, 2, "tight")
    with pytest.raises(ValueError, match="B >= 1 "):
        square_sensitivity(1.0, 0.9, 1, "tight")


def test_without_the_projection_a_large_batch_breaks_both_constants():
    # 3B equal examples: the un-projected square moves by (6B - 1)/B².
    b, n = 4, 12
    moved = (n**2 - (n - 1) ** 2) / b**2
    assert moved > square_sensitivity(1.0, b, 1, "paper")
    ref = AdamIndependentMoments(
        [(1,)],
        l2_norm_clip=1.0,
        noise_multiplier=0.0,
        batch_size=b,
        learning_rate=0.1,
    )
    g = np.ones((n, 1))
    g1, g2 = ref.releases(g, np.ones(n, bool), [np.zeros(1)] * 2)
    assert g1 == n / b  # the first stream stays un-projected
    assert g2 == 1.0


@pytest.mark.parametrize("n", [1, 4, 5, 16])
@pytest.mark.parametrize("size", [1, 3])
def test_the_methods_themselves_move_by_no_more_than_they_claim(n, size):
    zeta, b, rng = 0.7, 5, np.random.default_rng(n)
    common = {
        "l2_norm_clip": zeta,
        "noise_multiplier": 0.0,
        "batch_size": b,
        "learning_rate": 0.1,
    }
    ime = AdamIndependentMoments([(size,)], sensitivity="tight", **common)
    jme = AdamJointMoments([(size,)], scale=3.0, **common)
    quiet = [np.zeros(size)] * 2
    for _ in range(60):
        g = 10.0 ** rng.uniform(-1, 1) * (
            rng.uniform(-2, 2) + rng.standard_normal((n, size))
        )
        everyone, absent = np.ones(n, bool), np.ones(n, bool)
        absent[rng.integers(n)] = False
        for ref in (ime, jme):
            x1, x2 = ref.releases(g, everyone, quiet)
            y1, y2 = ref.releases(g, absent, quiet)
            mean, square = np.linalg.norm(x1 - y1), np.linalg.norm(x2 - y2)
            assert mean <= zeta / b * (1 + 1e-9)
            assert square <= ime.S2 * (1 + 1e-9)
            if ref is jme:
                joint = np.hypot(mean, np.sqrt(jme.lam) * square)
                assert joint <= jme.J * (1 + 1e-9)


def test_noise_of_the_joint_release_is_one_gaussian_of_multiplier_sigma():
    ref = AdamJointMoments(
        [(2,)],
        l2_norm_clip=0.5,
        noise_multiplier=3.0,
        batch_size=4,
        sensitivity_factor=2,
        learning_rate=0.1,
    )
    assert ref.lam == 2.0
    d = 2 * 0.5 / 4
    # D = 0.25 <= 2R/3: J² = D² + λ D² (2R - D)².
    np.testing.assert_allclose(ref.J**2, d**2 * (1 + 2 * 0.75**2))
    g1, g2 = ref.releases(
        np.zeros((1, 2)), np.ones(1, bool), [np.ones(2), np.ones(2)]
    )
    np.testing.assert_allclose(g1, 3 * ref.J)
    np.testing.assert_allclose(np.sqrt(ref.lam) * g2, 3 * ref.J)
