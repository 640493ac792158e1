r"""The fixed shape of a Poisson batch, and what its overflow costs.

A Poisson batch has any size, a compiled step has one. Batches are padded to
`max_batch_size` rows, and in the negligible case that more examples were
sampled, a uniformly random subset is kept. The cost:

    δ_total(ε) = δ(ε) + T · P[Binomial(N, q) ≥ max_batch_size].

Why: fix the other examples' samples at all T steps. As long as they number
less than `max_batch_size` at each, nothing overflows with or without example
i, and i is included with probability q, independently, exactly as in the
mechanism that was accounted; those samples are drawn without looking at data,
so the other case has the same probability under both neighbours and is paid
for in δ, once, without a factor e^ε. (Pitfall 22 of the project's notes has
the generic bound with 1 + e^ε; this one is tighter.)
"""

import functools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan

#: Share of the plan's δ that overflow may take, and its probability for one
#: batch where δ or the number of steps is not known.
_SHARE_OF_DELTA = 1e-4
_UNKNOWN = 1e-15


def max_batch_size(plan: "PrivacyPlan") -> int:
    """Returns the rows of the fixed shape of the plan's batches."""
    if plan.sampling in ("shuffled", "in_order"):
        return plan.expected_batch_size
    population, probability = _population(plan)
    tail = _UNKNOWN
    if plan.delta is not None and plan.num_steps is not None:
        tail = _SHARE_OF_DELTA * plan.delta / plan.num_steps
    return _smallest_shape(
        population, probability, plan.expected_batch_size, tail
    )


def overflow_delta(plan: "PrivacyPlan", steps: int) -> float:
    """Returns the δ that overflow adds over `steps` updates."""
    if plan.sampling in ("shuffled", "in_order") or plan.noise_multiplier == 0:
        return 0.0
    population, probability = _population(plan)
    rows = max_batch_size(plan)
    if population is not None and rows >= population:
        return 0.0
    return steps * _tail(
        population, probability, plan.expected_batch_size, rows
    )


def _population(plan: "PrivacyPlan") -> tuple[int | None, float]:
    """Over how many examples one update samples, and how likely each is."""
    if plan.num_examples is None:
        return None, math.nan
    if plan.sampling == "poisson" or plan.adjacency == "add_or_remove":
        return plan.num_examples, plan.sampling_probability
    part = math.ceil(plan.num_examples / plan.parts)
    return part, min(1.0, plan.sampling_probability * plan.parts)


def _tail(
    population: int | None, probability: float, mean: float, rows: int
) -> float:
    """P[the sample has at least `rows` examples]."""
    from scipy import special

    if population is None:
        # Poisson(B) has the heavier tail of all Binomial(N, B/N).
        return float(special.gammainc(rows, mean))
    return float(special.betainc(rows, population - rows + 1, probability))


@functools.lru_cache(maxsize=1024)
def _smallest_shape(
    population: int | None, probability: float, mean: int, tail: float
) -> int:
    def fits(rows: int) -> bool:
        return _tail(population, probability, mean, rows) <= tail

    most = 2**62 if population is None else population
    low, high = mean, min(mean + 8, most)
    while high < most and not fits(high):
        low, high = high, min(mean + 3 * (high - mean), most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return min(8 * math.ceil(high / 8), most)
