"""Accountants against anchors, closed forms, and one another."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from tf_dpadaptive.accounting import accountants
from tf_dpadaptive.accounting.accountants import (
    AnalyticGaussian,
    Pld,
    Question,
    Rdp,
    answer,
)
from tf_dpadaptive.accounting.events import Release
from tf_dpadaptive.accounting.gaussian import gaussian_delta

MNIST = Release(250 / 60_000, 1.1, 14_400)
SMALL = Release(0.00016, 1.0, 1000)
GAUSSIAN = Release(1.0, 1.0, 1)


def ask(*composition, replace=False):
    return Question(tuple(composition), replace)


def sampled_delta(q, sigma, epsilon):
    """Exact δ of one sampled Gaussian, the worse of both directions."""
    # (1-q) p0 + q p1 - e^ε p0 = q (p1 - (1 + (e^ε - 1)/q) p0), and the other.
    remove = q * gaussian_delta(sigma, math.log1p(math.expm1(epsilon) / q))
    share = 1 - math.exp(epsilon) * (1 - q)
    if share <= 0:
        return remove
    at = math.log(math.exp(epsilon) * q / share)
    return max(remove, share * gaussian_delta(sigma, at))


def replaced_delta(q, sigma, epsilon):
    """The same under replace-one, by integration.

    Noise of 2σ clip norms; the two examples pull to opposite sides.
    """
    x = np.linspace(-30 * sigma, 30 * sigma, 40_001)
    absent = (1 - q) * stats.norm.pdf(x, 0, 2 * sigma)
    one = absent + q * stats.norm.pdf(x, 1, 2 * sigma)
    two = absent + q * stats.norm.pdf(x, -1, 2 * sigma)
    return np.sum(np.maximum(one - np.exp(epsilon) * two, 0)) * (x[1] - x[0])


def solve(delta_of, q, sigma, delta):
    return optimize.brentq(lambda e: delta_of(q, sigma, e) - delta, 1e-9, 50)


class TestAnchors:
    """The numbers of the project's notes, on every Python version alike."""

    @pytest.mark.parametrize(
        ("release", "rdp", "pld"),
        [(MNIST, 2.562, 2.350), (SMALL, 0.482, 0.0194)],
    )
    def test_sampled(self, release, rdp, pld):
        assert Rdp().epsilon(ask(release), 1e-5) == pytest.approx(rdp, abs=5e-4)
        tolerance = 5e-4 if pld > 1 else 5e-5
        assert Pld().epsilon(ask(release), 1e-5) == pytest.approx(
            pld, abs=tolerance
        )
        found = answer(ask(release), 1e-5)
        assert found.accountant.startswith("PLD of dp-accounting")

    def test_versions_agree_to_five_digits(self):
        assert answer(ask(MNIST), 1e-5).epsilon == pytest.approx(
            2.349933, rel=1e-5
        )
        assert Rdp().epsilon(ask(MNIST), 1e-5) == pytest.approx(
            2.561716, rel=1e-5
        )
        assert answer(ask(Release(0.0445, 1.5, 500)), 1e-4).epsilon == (
            pytest.approx(2.830, abs=2e-3)
        )

    @pytest.mark.parametrize("replace", [False, True])
    def test_one_gaussian_in_both_relations(self, replace):
        found = answer(ask(GAUSSIAN, replace=replace), 1e-5)
        assert found.epsilon == pytest.approx(4.377, abs=5e-4)
        assert found.accountant == "exact analytic Gaussian"
        assert Rdp().epsilon(
            ask(GAUSSIAN, replace=replace), 1e-5
        ) == pytest.approx(4.73, abs=5e-3)

    def test_pld_agrees_with_the_exact_gaussian(self):
        for sigma in (0.5, 1.0, 5.0):
            question = ask(Release(1.0, sigma, 3))
            exact = AnalyticGaussian().epsilon(question, 1e-5)
            found = Pld().epsilon(question, 1e-5)
            assert exact * (1 - 1e-9) <= found <= exact * 1.002


class TestPld:
    @pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.99])
    @pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0])
    def test_one_sample_is_bounded_from_above_and_closely(self, q, sigma):
        delta = 1e-6
        exact = solve(sampled_delta, q, sigma, delta)
        found = Pld().epsilon(ask(Release(q, sigma, 1)), delta)
        assert found >= exact * (1 - 1e-4)
        assert found <= exact * 1.02 + 1e-4

    @pytest.mark.parametrize("release", [MNIST, SMALL, Release(0.3, 5.0, 100)])
    def test_wider_bins_only_cost(self, release, monkeypatch):
        fine = Pld().epsilon(ask(release), 1e-5)
        monkeypatch.setattr(accountants, "_PLD_INTERVAL", 8e-4)
        assert Pld().epsilon(ask(release), 1e-5) >= fine * (1 - 1e-6)

    def test_is_not_asked_below_its_rounding(self):
        assert Pld().epsilon(ask(MNIST), 1e-12) == math.inf
        assert answer(ask(MNIST), 1e-12).accountant.startswith("RDP")

    def test_hopeless_noise_is_left_to_rdp(self):
        question = ask(Release(0.01, 0.02, 1000))
        assert Pld().epsilon(question, 1e-5) == math.inf
        assert answer(question, 1e-5).epsilon > 1e4

    def test_composition_of_different_samples(self):
        half = ask(MNIST._replace(times=7200), MNIST._replace(times=7200))
        assert Pld().epsilon(half, 1e-5) == pytest.approx(
            Pld().epsilon(ask(MNIST), 1e-5), rel=1e-4
        )
        mixed = ask(MNIST, GAUSSIAN)
        parts = Pld().epsilon(ask(MNIST), 5e-6) + Pld().epsilon(
            ask(GAUSSIAN), 5e-6
        )
        one = max(
            Pld().epsilon(ask(MNIST), 1e-5), Pld().epsilon(ask(GAUSSIAN), 1e-5)
        )
        assert one < Pld().epsilon(mixed, 1e-5) < parts
        assert Pld().epsilon(mixed, 1e-5) < Rdp().epsilon(mixed, 1e-5)


class TestReplace:
    def test_rdp_refuses_samples(self):
        assert not Rdp().supports(ask(MNIST, replace=True))
        assert Rdp().supports(ask(GAUSSIAN, replace=True))

    @pytest.mark.parametrize("q", [0.01, 0.3, 0.9])
    def test_one_sample_is_exact_or_refused(self, q):
        question = ask(Release(q, 1.0, 1), replace=True)
        if not Pld().supports(question):
            with pytest.raises(ValueError, match=r"dp-accounting >= 0\.6"):
                answer(question, 1e-6)
            return
        exact = solve(replaced_delta, q, 1.0, 1e-6)
        found = answer(question, 1e-6).epsilon
        assert exact * (1 - 1e-4) <= found <= exact * 1.01

    def test_costs_more_than_zero_out_at_the_same_noise(self):
        question = ask(Release(0.01, 1.0, 100), replace=True)
        if not Pld().supports(question):
            pytest.skip("dp-accounting < 0.6 has no samples under replace")
        # Both add noise of two clip norms.
        zeroed = answer(ask(Release(0.01, 2.0, 100)), 1e-5).epsilon
        assert 1.2 * zeroed < answer(question, 1e-5).epsilon < 3 * zeroed

    def test_whole_data_is_the_limit_of_samples(self):
        question = ask(Release(1 - 1e-9, 1.0, 1), replace=True)
        if not Pld().supports(question):
            pytest.skip("dp-accounting < 0.6 has no samples under replace")
        assert answer(question, 1e-5).epsilon == pytest.approx(4.377, abs=2e-3)


class TestAnalyticGaussian:
    @pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 10.0, 1e4])
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
    def test_is_the_smallest_epsilon_of_its_delta(self, sigma, delta):
        found = AnalyticGaussian().epsilon(ask(Release(1.0, sigma, 1)), delta)
        assert gaussian_delta(sigma, found) <= delta
        if found:
            assert gaussian_delta(sigma, found * (1 - 1e-6)) > delta

    def test_delta_of_a_known_case(self):
        # Balle and Wang, theorem 8, by numerical integration.
        x = np.linspace(-40, 40, 2_000_001)
        p, q = stats.norm.pdf(x, 1, 2), stats.norm.pdf(x, 0, 2)
        total = np.sum(np.maximum(p - np.exp(0.5) * q, 0)) * (x[1] - x[0])
        assert gaussian_delta(2.0, 0.5) == pytest.approx(total, rel=1e-6)

    def test_composition_adds_precisions(self):
        two = ask(Release(1.0, 3.0, 4), Release(1.0, 2.0, 1))
        sigma = (4 / 9 + 1 / 4) ** -0.5
        assert AnalyticGaussian().epsilon(two, 1e-5) == pytest.approx(
            AnalyticGaussian().epsilon(ask(Release(1.0, sigma, 1)), 1e-5)
        )

    def test_refuses_samples(self):
        assert not AnalyticGaussian().supports(ask(MNIST))


class TestAnswer:
    def test_no_noise_is_infinite(self):
        assert answer(ask(GAUSSIAN, Release(0.1, 0.0, 1)), 0.1).epsilon == (
            math.inf
        )

    def test_nothing_is_zero(self):
        assert answer(ask(), 1e-5).epsilon == 0

    def test_takes_the_smaller(self):
        for release in (MNIST, SMALL):
            found = answer(ask(release), 1e-5).epsilon
            assert found == min(
                Rdp().epsilon(ask(release), 1e-5),
                Pld().epsilon(ask(release), 1e-5),
            )
