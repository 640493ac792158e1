"""The guarantee in plain words."""

import math
from typing import TYPE_CHECKING

from tf_dpadaptive.accounting import compose

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan

_ADJACENCY = {
    "zero_out": "data sets in which one example's contribution is set to zero",
    "add_or_remove": "data sets of which one has one example more",
    "replace": "data sets in which one example is replaced by any other",
}
_SAMPLING = {
    "poisson": (
        "each of the {n} examples entered each batch independently with "
        "probability {q:.4g}, drawn afresh at every update"
    ),
    "cyclic_poisson": (
        "the {n} examples were split once into {parts} fixed parts, and each "
        "update sampled the next part, each example of it independently with "
        "probability {qp:.4g}"
    ),
    "shuffled": (
        "the {n} examples were put into one random order, kept for the whole "
        "run, and taken in batches of {b}; no amplification is claimed"
    ),
    "in_order": (
        "the {n} examples were taken in their order in batches of {b}, the "
        "same in each pass; no amplification is claimed"
    ),
}


def of_plan(plan: "PrivacyPlan", steps: int, delta: float) -> str:
    """Returns one paragraph on `steps` updates of `plan`.

    Args:
        plan: The plan.
        steps: Updates that ran, or will.
        delta: δ in (0, 1).

    Raises:
        ValueError: if the plan can't answer.
    """
    found = compose.account_for_runs([(plan, steps)], delta)
    if math.isinf(found.epsilon):
        return (
            f"There is NO differential privacy guarantee: ε is infinite after "
            f"{steps} updates with noise multiplier {plan.noise_multiplier:g}."
        )
    sampling = _SAMPLING[plan.sampling].format(
        n=plan.num_examples,
        b=plan.expected_batch_size,
        q=plan.sampling_probability,
        parts=plan.parts,
        qp=plan.sampling_probability * plan.parts,
    )
    if plan.sampling == "poisson" and plan.noise.correlated:
        sampling += " (no amplification is claimed with correlated noise)"
    return (
        f"The parameters after {steps} updates, and all parameters on the way, "
        f"are (ε, δ)-differentially private with ε = {found.epsilon:.4g} at "
        f"δ = {delta:g}, for {_ADJACENCY[plan.adjacency]} (adjacency "
        f"{plan.adjacency!r}). Released was, at each update, the sum of the "
        f"clipped per-example contributions over the expected batch size "
        f"{plan.expected_batch_size}, with Gaussian noise of multiplier "
        f"{plan.noise_multiplier:g} times its sensitivity "
        f"({plan.noise!r}); {sampling}. Accountant: {found.accountant}. Not "
        "covered: the choice of hyper-parameters from this data, metrics and "
        "losses shown during training, the number of examples itself, other "
        "uses of the data, and anybody who knows the noise or sampling seeds."
    )
