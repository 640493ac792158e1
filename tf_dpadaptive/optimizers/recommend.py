r"""Which methods can work at a size and a noise, in words.

Noise adds Φ = τ²r to each coordinate of v̂, where an adaptive method looks for
ν, the squared mean gradient. With m parameters, gradients clipped to ζ, and u =
Sσ√r/ζ (the noise in units of ζ):

    gradients of a batch agree:    ν = ζ²/m         Φ ≤ ν  for  B ≥ u√m
    they are unrelated:            ν = ζ²/(Bm)      Φ ≤ ν  for  B ≥ u²m

Bias correction takes Φ off, but not its fluctuation cΦ, c = √(2(1-β2)/(1+β2))
(√(2/T) for AdaGrad and short runs): ν stands out from B ≥ u√m·c^½ or u²m·c on.
Where the square of the mean has a release of its own, the noise left in v̂ is
kcu·ζ²/B, k = 2 (IME) or √3 (JME): ν stands out from B ≥ kcum on if gradients
agree, and if they are unrelated only for kcum ≤ 1, whatever B is. DP² averages
`plain_steps` releases before it squares them: Φ/plain_steps in the place of Φ.
Scale-then-privatize needs τ√r < 1 at a clip norm near √m: B ≥ u√m again.
AdaCliP's variances feed on their own noise for B < u²m/2.

Reference: Ganesh, McMahan, Thakurta, 2025, arXiv 2507.01129, section 4.4.1, for
the two regimes and bias correction; the other numbers follow in the same way.
They are orders of magnitude.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tf_dpadaptive import _validate
from tf_dpadaptive.plan import PrivacyPlan

#: When to use a method: one sentence, here and in the README.
WHEN: Mapping[str, str] = {
    "DPSGD": "always works: there is no second moment to hide; the one to beat",
    "DPAdam, DPAdamW": (
        "the default; where Φ exceeds ν it is momentum SGD with rate η/τ"
    ),
    "DPAdagrad": "as DPAdam, with steps that shrink over the run",
    "DPPostProcessing": "to keep the exact arithmetic of a Keras optimizer",
    "DPAdamBiasCorrected, DPAdagradBiasCorrected": (
        "where Φ hides ν, but its fluctuation does not; tune `epsilon`"
    ),
    "DPAdamScaleThenPrivatize, DPAdagradScaleThenPrivatize": (
        "large batches: needs a clip norm near √m that keeps τ√r below 1 "
        "(AdaGrad: τ√(rT))"
    ),
    "DPAdamIndependentMoments, DPAdagradIndependentMoments": (
        "few parameters and large batches: the square drowns otherwise, and "
        "the mean has √2 times the noise"
    ),
    "DPAdamJointMoments, DPAdagradJointMoments": (
        "as independent moments; the mean has √3 times the noise at the "
        "default `scale`, less at a smaller one"
    ),
    "DPRMSpropDelayed, DPAdagradDelayed": (
        "long runs whose gradients keep their scale: averages noise over "
        "`plain_steps` before it scales"
    ),
    "DPAdamSideInformation": (
        "whenever there are public data of the same kind: noise does not "
        "reach the second moment; raise `epsilon` to 1e-3 where public "
        "gradients are 0"
    ),
    "AdaCliP": (
        "few parameters of very different spread: its variances feed on "
        "their own noise elsewhere, up to `h2`"
    ),
    "DPMicroAdam": "as DPAdam, where eight bytes a parameter are too many",
    "NonPrivatePreconditionerAdam": "NOT PRIVATE: only to compare with",
}


#: By how much B may miss a threshold and not count as too small.
_SLACK = 3.0

_CAN, _AGREE, _NO_GAIN, _PUBLIC = (
    "Can work:",
    "Can work if the gradients of a batch agree (or B is up to 3 times less):",
    "No gain here (v̂ shows noise; may train, as a plainer method would):",
    "Not private:",
)


class _Threshold(NamedTuple):
    """Least B if gradients agree, and if they are unrelated; and a remark."""

    agree: float
    unrelated: float
    remark: str = ""

    def verdict(self, batch_size: float) -> str:
        """Returns the title of the group that the method belongs to."""
        if batch_size >= max(self.agree, self.unrelated):
            return _CAN
        return _AGREE if batch_size * _SLACK >= self.agree else _NO_GAIN

    def why(self) -> str:
        """Returns the numbers behind the verdict."""
        if self.agree == 0 or math.isinf(self.agree):
            return self.remark
        first = f"B from {_size(self.agree)} on"
        if self.agree >= self.unrelated:
            return f"{first}; {self.remark}"
        second = "never"
        if math.isfinite(self.unrelated):
            second = f"from {_size(self.unrelated)} on"
        return f"{first} if they agree, {second} if not; {self.remark}"


def recommend(
    plan: PrivacyPlan, num_parameters: int, *, beta_2: float = 0.999
) -> str:
    """Returns in words which methods can work at this size and noise, and why.

    Args:
        plan: The `PrivacyPlan`: B, σ, adjacency, steps and noise are read.
        num_parameters: m ≥ 1, the number of trainable parameters.
        beta_2: β2 in [0, 1) of the Adam forms. Default 0.999.

    Raises:
        TypeError: if `plan` is no plan.
        ValueError: if a number is out of range.

    >>> plan = PrivacyPlan(1.0, expected_batch_size=512, num_steps=1000)
    >>> print(recommend(plan, num_parameters=10_000))
    m = 10,000 parameters, B = 512, noise u = 1 (...
    ...
    Can work:
    ...
    No gain here (v̂ shows noise; may train, as a plainer method would):
    ...
    """
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(
            "`plan` must be a PrivacyPlan: make one with "
            f"`PrivacyPlan.calibrate(...)`. Received: plan={plan!r}."
        )
    _validate.positive_integer(num_parameters=num_parameters)
    _validate.unit_below_one(beta_2=beta_2)
    m = int(num_parameters)
    thresholds = _thresholds(plan, m, beta_2)
    groups: dict[str, list[str]] = {
        title: [] for title in (_CAN, _AGREE, _NO_GAIN, _PUBLIC)
    }
    for family, when in WHEN.items():
        members = family.split(", ")
        if members[0] not in thresholds:
            private = not family.startswith("NonPrivate")
            title = _CAN if private else _PUBLIC
            groups[title].append(f"{family}: {when}.")
            continue
        for name in members:
            need = thresholds[name]
            title = need.verdict(plan.expected_batch_size)
            groups[title].append(f"{name}: {need.why()}{when}.")
    lines = _regimes(plan, m)
    for title, entries in groups.items():
        if entries:
            lines += ["", title, *(f"- {entry}" for entry in entries)]
    return "\n".join(
        textwrap.fill(line, 79, subsequent_indent="  " * line.startswith("-"))
        for line in lines
    )


def _noise(plan: PrivacyPlan) -> tuple[float, float]:
    """Returns u for the mean and for the largest row norm."""
    u = plan.sensitivity_factor * plan.noise_multiplier
    if not plan.noise.correlated:
        return u, u
    rows = plan.noise.row_norms_squared(int(plan.num_steps or 1))
    return u * math.sqrt(np.mean(rows)), u * math.sqrt(np.max(rows))


def _regimes(plan: PrivacyPlan, m: int) -> list[str]:
    """Returns the sentences on Φ against ν."""
    b, (u, _) = plan.expected_batch_size, _noise(plan)
    agree, unrelated = u * math.sqrt(m), u**2 * m
    if b >= max(agree, unrelated):
        where = "B is above both: v̂ shows the gradients."
    elif b >= agree:
        where = (
            "B lies between: v̂ shows the gradients if they agree, as they do "
            "early in training, and noise otherwise."
        )
    else:
        where = "B is below both: v̂ shows noise."
    return [
        f"m = {m:,} parameters, B = {b:,}, noise u = {u:.3g} (the standard "
        "deviation on the sum, in units of the clip norm).",
        "Noise adds Φ to each coordinate of v̂, where an adaptive method looks "
        f"for ν, the squared mean gradient. Φ/ν is {(agree / b) ** 2:.2g} if "
        f"the gradients of a batch agree, {unrelated / b:.2g} if they are "
        f"unrelated: Φ is below ν from B = u√m = {_size(agree)} and from "
        f"B = u²m = {_size(unrelated)} on. {where}",
    ]


def _thresholds(
    plan: PrivacyPlan, m: int, beta_2: float
) -> dict[str, _Threshold]:
    """Returns what B each method needs; methods that always work are absent."""
    b, (u, largest) = plan.expected_batch_size, _noise(plan)
    steps = plan.num_steps or math.ceil(1 / (1 - beta_2))
    agree, unrelated = u * math.sqrt(m), u**2 * m
    short = math.sqrt(2 / steps)
    average = math.sqrt(2 * (1 - beta_2) / (1 + beta_2))
    found: dict[str, _Threshold] = {}
    for form, c in (("DPAdam", max(average, short)), ("DPAdagrad", short)):
        found[form + "BiasCorrected"] = _Threshold(
            agree * math.sqrt(c), unrelated * c
        )
        for kind, k in (("IndependentMoments", 2.0), ("JointMoments", 3**0.5)):
            need = k * c * u * m
            found[form + kind] = _Threshold(
                need, need if need <= 1 else math.inf
            )
        tau = largest / b * (1.0 if form == "DPAdam" else math.sqrt(steps))
        remark = f"l2_norm_clip below {_size(1 / tau)}; " if tau else ""
        found[form + "ScaleThenPrivatize"] = _Threshold(
            agree, unrelated, remark
        )
    plain = 100  # the default of `plain_steps`
    delayed = _Threshold(agree / math.sqrt(plain), unrelated)
    if plan.num_steps is not None and plan.num_steps <= plain:
        delayed = _Threshold(
            math.inf,
            math.inf,
            f"of {plan.num_steps} steps all would be plain ones; ",
        )
    found["DPRMSpropDelayed"] = found["DPAdagradDelayed"] = delayed
    runaway = (plan.sensitivity_factor * plan.noise_multiplier) ** 2 * m / 2
    found["AdaCliP"] = _Threshold(runaway, runaway)
    return found


def _size(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
