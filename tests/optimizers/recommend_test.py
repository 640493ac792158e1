"""`recommend`: numbers by hand and by simulation; its words in the README."""

import re
from pathlib import Path

import numpy as np
import pytest

import tf_dpadaptive as dpa
from tf_dpadaptive.noise.banded_inverse import BandedInverse
from tf_dpadaptive.optimizers import recommend
from tf_dpadaptive.optimizers.recommend import WHEN

CAN, AGREE, NO_GAIN = "Can work:", "Can work if", "No gain here"


def plan_of(sigma: float, batch_size: int, **fields) -> dpa.PrivacyPlan:
    given = {"num_steps": 10_000, **fields}
    return dpa.PrivacyPlan(sigma, expected_batch_size=batch_size, **given)


def words(*arguments, **options) -> str:
    """The text on one line."""
    return " ".join(recommend(*arguments, **options).split())


def group_of(text: str, name: str) -> str:
    """The title under which a method stands."""
    title = ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(("-", " ")):
            title = line
        if re.match(rf"- (\w+, )*{name}\b", line):
            return title
    raise AssertionError(f"{name} is not named in {text}")


@pytest.mark.parametrize(
    ("batch_size", "sentence"),
    [
        (49, "B is below both: v̂ shows noise."),
        (51, "B lies between: v̂ shows the gradients if they agree"),
        (2_501, "B is above both: v̂ shows the gradients."),
    ],
)
def test_the_two_regimes(batch_size, sentence):
    # σ = 1/2 and m = 10⁴: u√m = 50, u²m = 2500.
    text = words(plan_of(0.5, batch_size), 10_000)
    assert "from B = u√m = 50 and from B = u²m = 2,500 on" in text
    assert sentence in text
    assert f"Φ/ν is {(50 / batch_size) ** 2:.2g} if" in text
    assert f"agree, {2500 / batch_size:.2g} if they are unrelated" in text


def test_replacing_doubles_the_noise_and_correlation_multiplies_it():
    assert "noise u = 1 " in words(plan_of(0.5, 9, adjacency="replace"), 10)
    noise = BandedInverse(2)
    r = float(np.mean(noise.row_norms_squared(50)))
    plan = plan_of(0.5, 9, noise=noise, num_steps=50, sampling="shuffled")
    assert f"noise u = {0.5 * r**0.5:.3g} " in words(plan, 10)
    assert r > 1.2


def test_factors_of_bias_correction_and_of_the_squares():
    # c = √(2 · 0.001/1.999) = 0.03163 for Adam, √(2/10⁴) = 0.01414 for AdaGrad.
    text = words(plan_of(1.0, 100), 1_000_000)
    number = r"{}: B from ([\d,]+) on if they agree, (never|from [\d,]+ on)"
    for name, agree, unrelated in [
        ("DPAdamBiasCorrected", 1000 * 0.03163**0.5, "from 31,631 on"),
        ("DPAdagradBiasCorrected", 1000 * 0.014142**0.5, "from 14,142 on"),
        ("DPAdamIndependentMoments", 2e6 * 0.03163, "never"),
        ("DPAdagradJointMoments", 3**0.5 * 1e6 * 0.014142, "never"),
        ("DPRMSpropDelayed", 100, "from 1,000,000 on"),
        ("DPAdamScaleThenPrivatize", 1000, "from 1,000,000 on"),
    ]:
        found = re.search(number.format(name), text)
        assert found, name
        seen = float(found[1].replace(",", ""))
        assert seen == pytest.approx(agree, rel=1e-3)
        assert found[2] == unrelated
    assert "AdaCliP: B from 500,000 on;" in text
    # τ < 1 for ζ < B/σ = 100; T τ² < 1 for ζ < B/(σ√T) = 1.
    assert "DPAdamScaleThenPrivatize" in text
    assert "l2_norm_clip below 100; large" in text
    assert "l2_norm_clip below 1; large" in text


def test_short_runs_average_less():
    long, short = plan_of(1.0, 100), plan_of(1.0, 100, num_steps=200)
    # c = √(2/200) = 0.1, above the 0.03163 of β2.
    assert "DPAdamBiasCorrected: B from 32 on" in words(short, 10_000)
    assert "DPAdamBiasCorrected: B from 18 on" in words(long, 10_000)
    # c = √(2 · 0.1/1.9) = 0.3244.
    assert "DPAdamBiasCorrected: B from 57 on" in words(
        long, 10_000, beta_2=0.9
    )


@pytest.mark.parametrize(
    ("name", "batch_size", "title"),
    [
        ("DPAdamBiasCorrected", 5, NO_GAIN),  # 18 and 316
        ("DPAdamBiasCorrected", 7, AGREE),
        ("DPAdamBiasCorrected", 317, CAN),
        ("AdaCliP", 1_600, NO_GAIN),  # 5000
        ("AdaCliP", 5_000, CAN),
        ("DPAdamIndependentMoments", 200, NO_GAIN),  # 633, never
        ("DPAdamIndependentMoments", 9_999, AGREE),
        ("DPAdam", 1, CAN),
        ("DPAdamSideInformation", 1, CAN),
        ("NonPrivatePreconditionerAdam", 1, "Not private:"),
    ],
)
def test_verdicts(name, batch_size, title):
    text = recommend(plan_of(1.0, batch_size), 10_000)
    assert group_of(text, name).startswith(title)


def test_a_run_shorter_than_the_plain_phase_has_no_use_for_it():
    text = recommend(plan_of(0.1, 100, num_steps=100), 10)
    assert group_of(text, "DPRMSpropDelayed").startswith(NO_GAIN)
    assert "of 100 steps all would be plain ones" in " ".join(text.split())
    text = recommend(plan_of(0.1, 100, num_steps=101), 10)
    assert not group_of(text, "DPRMSpropDelayed").startswith(NO_GAIN)


def test_without_noise_everything_can_work():
    text = recommend(plan_of(0.0, 1), 10**9)
    assert NO_GAIN not in text
    assert "inf" not in text


def test_each_method_is_named_once():
    text = recommend(plan_of(1.0, 100), 1_000)
    listed = {name for names in WHEN for name in names.split(", ")}
    expected = set(dpa.optimizers.__all__) - {"DPOptimizer", "recommend"}
    assert listed == expected
    for name in listed:
        heads = re.findall(rf"^- (?:\w+, )*{name}(?:, \w+)*:", text, re.M)
        assert len(heads) == 1, name


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="`plan`"):
        recommend(None, 10)
    with pytest.raises(ValueError, match="num_parameters"):
        recommend(plan_of(1.0, 1), 0)
    with pytest.raises(ValueError, match="beta_2"):
        recommend(plan_of(1.0, 1), 10, beta_2=1.0)


def second_moments(
    batch_size: float, sigma: float, m: int, square: bool
) -> np.ndarray:
    """v̂ of Adam after 600 steps with β2 = 0.99, ζ = 1 and gradients that agree.

    From noisy gradients, less Φ; or from the noisy square of the mean (IME).
    """
    rng = np.random.default_rng(0)
    g, tau, v = 1 / np.sqrt(m), sigma / batch_size, np.zeros(2_000)
    for _ in range(600):
        z = rng.standard_normal(v.size)
        seen = (
            g**2 + np.sqrt(2) * (2 * batch_size + 1) / batch_size**2 * sigma * z
            if square
            else (g + tau * z) ** 2 - tau**2
        )
        v = 0.99 * v + 0.01 * seen
    return v


@pytest.mark.parametrize(
    ("name", "square"),
    [("DPAdamBiasCorrected", False), ("DPAdamIndependentMoments", True)],
)
def test_the_thresholds_are_where_the_second_moment_turns_negative(
    name, square
):
    sigma, m = 1.0, 10_000
    text = words(plan_of(sigma, 1), m, beta_2=0.99)
    found = re.search(rf"{name}: B from ([\d,]+) on", text)
    assert found
    threshold = float(found[1].replace(",", ""))
    above = second_moments(4 * threshold, sigma, m, square)
    below = second_moments(threshold / 10, sigma, m, square)
    # 4 deviations from 0 above, so 3e-5 of 2000; a tenth and less below.
    assert np.mean(above < 0) < 0.005
    assert np.mean(below < 0) > 0.4


def test_the_readme_says_the_same_of_each_method():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    table = readme.split("## Methods")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    heads = [
        cell.strip()
        for cell in next(
            line for line in table.splitlines() if line.startswith("| method")
        )
        .strip("|")
        .split("|")
    ]
    place = heads.index("when to use it")
    said = {", ".join(re.findall(r"`(\w+)`", r[0])): r[place] for r in rows}
    assert said == dict(WHEN)
