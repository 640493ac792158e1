"""ε of what really ran: one run, or several runs on the same data."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_dpadaptive import _validate
from tf_dpadaptive.accounting import accountants, events, overflow

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan

Run = tuple["PrivacyPlan", int]


def account_for_runs(runs: Sequence[Run], delta: float) -> accountants.Answer:
    """Returns ε, and the accountant that gave it, of runs on the same data.

    Args:
        runs: Pairs of a plan and the number of its updates that ran. One
            unbroken run is ONE pair however often it was stopped and resumed.
        delta: The δ at which to state ε, in (0, 1).

    Raises:
        ValueError: if the runs' adjacencies differ, if one of the plans can't
            answer, or if δ is smaller than what overflow costs.
    """
    _validate.open_unit(delta=delta)
    adjacencies = sorted({plan.adjacency for plan, _ in runs})
    if len(adjacencies) > 1:
        raise ValueError(
            "Runs can be composed only under one adjacency. Received: "
            f"adjacencies {adjacencies}."
        )
    composition = _merged(
        [
            release
            for plan, steps in runs
            for release in events.releases(plan, steps)
        ]
    )
    question = accountants.Question(composition, adjacencies == ["replace"])
    spill = sum(overflow.overflow_delta(plan, steps) for plan, steps in runs)
    if spill >= delta and all(r.noise_multiplier > 0 for r in composition):
        raise ValueError(
            f"delta={delta!r} is too small for the fixed shape of the batches: "
            f"overflow alone takes {spill:.1e}. Make the plan with `delta` and "
            "`num_steps`, so that `max_batch_size` allows for them."
        )
    return accountants.answer(question, max(delta - spill, math.ulp(0.0)))


def epsilon_of_runs(runs: Sequence[Run], delta: float) -> float:
    """Returns ε of runs on the same data: see `account_for_runs`."""
    return account_for_runs(runs, delta).epsilon


def _merged(
    releases: Sequence[events.Release],
) -> tuple[events.Release, ...]:
    """Adds up the counts of equal mechanisms, in a fixed order."""
    counts: dict[tuple[float, float], int] = {}
    for probability, sigma, count in releases:
        key = (probability, sigma)
        counts[key] = counts.get(key, 0) + count
    return tuple(
        events.Release(*key, count) for key, count in sorted(counts.items())
    )
