r"""What a run releases: a plan and a number of steps, as privacy events.

Every supported run is a composition of Gaussian mechanisms, each applied to a
Poisson sample of the data, so a `Release` holds three numbers. Its multiplier
is noise over the sensitivity of ONE participation under the plan's adjacency
(under "replace" that sensitivity is twice the clip norm).

| noise       | sampling          | charged                                    |
|-------------|-------------------|--------------------------------------------|
| independent | poisson           | T times: Gaussian(σ) on a sample, q = B/N  |
| ≤ b bands   | cyclic_poisson    | ⌈T/b⌉ times: Gaussian(σ), q = B·b/N        |
| any         | shuffled/in_order | once: Gaussian(σ / sens(C; b = ⌈N/B⌉))     |
| correlated  | poisson           | once: Gaussian(σ / sens(C; b = 1, k = T))  |

The last row has no amplification and no separation; it is valid, and hopeless.

References: Abadi et al. 2016, arXiv 1607.00133 (row 1); Choquette-Choo et al.
2023, arXiv 2306.08153 (row 2) and 2211.06530 (row 3).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_dpadaptive import _validate

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan


class Release(NamedTuple):
    """`times` Gaussian mechanisms, each on a fresh Poisson sample.

    Attributes:
        sampling_probability: q in (0, 1]; 1 is the whole data.
        noise_multiplier: Noise over the sensitivity of one participation.
        times: How many, >= 1.
    """

    sampling_probability: float
    noise_multiplier: float
    times: int


def releases(plan: "PrivacyPlan", steps: int) -> tuple[Release, ...]:
    """Returns what the first `steps` updates of a run of `plan` release.

    Args:
        plan: The plan.
        steps: Updates from the beginning of the run, >= 0. One unbroken run
            is one entry: a resumed run is a run of all its steps.

    Raises:
        ValueError: if the plan can't answer; the message says what is missing.
    """
    if steps != 0:
        _validate.positive_integer(steps=steps)
    steps = int(steps)
    if steps == 0:
        return ()
    if plan.noise_multiplier == 0:
        return (Release(1.0, 0.0, steps),)
    if plan.noise.correlated and steps > (plan.num_steps or 0):
        raise ValueError(
            "Correlated noise is bound to the plan's num_steps="
            f"{plan.num_steps} updates. Received: steps={steps}. Make a plan "
            "with more steps."
        )
    if plan.sampling == "poisson":
        if plan.noise.correlated:
            return _whole_data(plan, steps, min_separation=1, most=steps)
        return (
            Release(plan.sampling_probability, plan.noise_multiplier, steps),
        )
    if plan.sampling == "cyclic_poisson":
        return _cyclic(plan, steps)
    return _fixed_order(plan, steps)


def _cyclic(plan: "PrivacyPlan", steps: int) -> tuple[Release, ...]:
    parts = plan.parts
    probability = plan.sampling_probability * parts
    if probability > 1:
        raise ValueError(
            f"cyclic_poisson with {parts} bands needs expected_batch_size * "
            "bands <= num_examples. Received: expected_batch_size="
            f"{plan.expected_batch_size}, bands={parts}, "
            f"num_examples={plan.num_examples}."
        )
    count = math.ceil(steps / parts)
    return (Release(probability, plan.noise_multiplier, count),)


def _fixed_order(plan: "PrivacyPlan", steps: int) -> tuple[Release, ...]:
    if plan.adjacency == "add_or_remove":
        raise ValueError(
            f"sampling={plan.sampling!r} can't be accounted under adjacency="
            "'add_or_remove': to remove one example moves others to other "
            "steps. Use adjacency='zero_out' or 'replace', or Poisson "
            "sampling."
        )
    separation = plan.steps_per_epoch
    most = math.ceil(steps / separation)
    return _whole_data(plan, steps, min_separation=separation, most=most)


def _whole_data(
    plan: "PrivacyPlan", steps: int, *, min_separation: int, most: int
) -> tuple[Release, ...]:
    """One Gaussian for all participations together: no amplification."""
    # Correlated noise is laid out for num_steps: a shorter run sees the first
    # rows of that matrix, whose sensitivity with as many participations is no
    # larger. Asking for the matrix of `steps` would ask about another one.
    rows = steps if plan.num_steps is None else max(steps, plan.num_steps)
    try:
        factor = plan.noise.sensitivity(rows, min_separation, most)
    except ValueError as error:
        raise ValueError(
            f"noise={plan.noise!r} with sampling={plan.sampling!r} "
            f"(num_steps={plan.num_steps}, separation {min_separation}, up to "
            f"{most} participations) has no sensitivity to account with: "
            f"{error}"
        ) from error
    return (Release(1.0, plan.noise_multiplier / factor, 1),)


def to_event(composition: Sequence[Release]) -> Any:
    """Returns the `dp_accounting.DpEvent` of a composition of releases."""
    import dp_accounting

    events = [_one_event(release) for release in composition]
    if not events:
        return dp_accounting.NoOpDpEvent()
    if len(events) == 1:
        return events[0]
    return dp_accounting.ComposedDpEvent(events)


def _one_event(release: Release) -> Any:
    import dp_accounting

    if release.noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    event: Any = dp_accounting.GaussianDpEvent(release.noise_multiplier)
    if release.sampling_probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(
            release.sampling_probability, event
        )
    if release.times == 1:
        return event
    return dp_accounting.SelfComposedDpEvent(event, release.times)
