"""What a plan guarantees, and what each noise would cost at the same ε.

The error of a mechanism is that of the summed updates: after step t the noise
in the sum of the gradients so far has the standard deviation σ·√e_t, in units
of the clip norm. SGD's weights are such a sum.
"""

import importlib.metadata
import math
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

import tf_dpadaptive as dpa
from tf_dpadaptive.experiments import build, mechanisms, report
from tf_dpadaptive.noise import NoiseMechanism
from tf_dpadaptive.noise.keys import SecretKeys

#: What is compared where a config has no `compare`: noise @ sampling.
#: `epochs` stands for the number of passes of the plan.
COMPARE = (
    "Independent() @ poisson",
    "BandedMF(16) @ cyclic_poisson",
    "Independent() @ shuffled",
    "TreeAggregation() @ shuffled",
    "BandedInverse(2, epochs=epochs) @ shuffled",
    "BLT(3, epochs=epochs) @ shuffled",
    "BandedMF(16) @ shuffled",
    "BandedMF(64) @ shuffled",
)


class Choice(NamedTuple):
    """One mechanism at the plan's ε.

    Attributes:
        noise: The mechanism, as text.
        sampling: The sampling.
        noise_multiplier: σ that keeps (ε, δ); 0 where it is refused.
        errors: σ·√e_t in clip norms, shape (steps,).
        one_step: Root mean square of the noise of single steps, in clip norms.
        bytes_per_parameter: What the noise keeps.
        refused: Why it can't be had; empty where it can.
        own: Whether this is the plan itself.
    """

    noise: str
    sampling: str
    noise_multiplier: float
    errors: np.ndarray
    one_step: float
    bytes_per_parameter: float
    refused: str
    own: bool


def run(
    config: ml_collections.ConfigDict, workdir: str | pathlib.Path
) -> dict[str, Any]:
    """Writes report.json and noise.png for the plan of a config.

    Args:
        config: Sections `privacy` and `train` as for training; `data` with
            `num_train`; and, if it likes, `compare`, a tuple of texts as in
            `COMPARE`.
        workdir: Folder for the results; made if it is not there.

    Returns:
        The report; `summary` puts it into words.

    Raises:
        ValueError: if the plan can't be had, or has no finite ε.
    """
    plan = _plan(config)
    epsilon = plan.epsilon()
    if not math.isfinite(epsilon):
        raise ValueError(
            "The plan has no finite ε to compare at. Received: "
            f"noise_multiplier={plan.noise_multiplier!r}."
        )
    choices = compare(plan, epsilon, config.get("compare") or COMPARE)
    if not any(choice.own for choice in choices):
        own = f"{mechanisms.to_text(plan.noise)} @ {plan.sampling}"
        choices = compare(plan, epsilon, [own]) + choices
    folder = pathlib.Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "config": config.to_dict(),
        "versions": {
            "tf_dpadaptive": dpa.__version__,
            "python": platform.python_version(),
            "dp-accounting": importlib.metadata.version("dp-accounting"),
        },
        "epsilon": epsilon,
        "delta": plan.delta,
        "noise_multiplier": plan.noise_multiplier,
        "updates": plan.num_steps,
        "statement": plan.statement(),
        "compared": [_row(choice) for choice in choices],
    }
    report.write(result, folder)
    draw(choices, folder / "noise.png", epsilon=epsilon, plan=plan)
    return result


def compare(
    plan: dpa.PrivacyPlan, epsilon: float, wanted: Sequence[str]
) -> list[Choice]:
    """Calibrates each mechanism to one ε; the plan's own keeps its σ.

    Args:
        plan: Its data, batches, steps, δ and adjacency are used.
        epsilon: ε > 0.
        wanted: Texts as in `COMPARE`; without "@" with the plan's sampling.
    """
    steps = plan.num_steps or 1
    names = {"epochs": math.ceil(steps / plan.steps_per_epoch)}
    pairs: list[tuple[NoiseMechanism, str]] = []
    for text in wanted:
        noise, _, sampling = (part.strip() for part in text.partition("@"))
        mechanism = mechanisms.from_text(noise, names)
        pairs.append((mechanism, sampling or plan.sampling))
    return [_choice(plan, epsilon, *pair) for pair in pairs]


def summary(result: Mapping[str, Any]) -> str:
    """Returns the statement and the table of a report.

    Args:
        result: What `run` returned.
    """
    width = max(len(row["noise"]) for row in result["compared"])
    lines = [
        result["statement"],
        "",
        f"Noise multiplier: {result['noise_multiplier']:.4f}",
        "",
        f"Noise (*: this plan's) at ε = {result['epsilon']:.4g}, "
        f"δ = {result['delta']:g}, over {result['updates']} updates.",
        "Errors are standard deviations in clip norms,",
        "of the sum of all updates so far (root mean square over the run, and "
        "after its end) and of one update.",
        "",
        f"  {'noise':{width}}  {'sampling':14}  {'σ':>8}  {'of sums':>8}  "
        f"{'at end':>8}  {'of one':>8}  {'bytes/parameter':>15}",
    ]
    for row in result["compared"]:
        line = "* " if row["own"] else "  "
        line += f"{row['noise']:{width}}  {row['sampling']:14}  "
        if "refused" in row:
            lines.append(f"{line}refused: {row['refused']}")
            continue
        lines.append(
            f"{line}{row['noise_multiplier']:8.4g}  {row['error']:8.4g}  "
            f"{row['error_at_end']:8.4g}  {row['error_of_one']:8.4g}  "
            f"{row['bytes_per_parameter']:15.4g}"
        )
    return "\n".join(lines)


def draw(
    choices: Sequence[Choice],
    path: pathlib.Path,
    *,
    epsilon: float,
    plan: dpa.PrivacyPlan,
) -> None:
    """Draws the error of the summed updates against the step.

    Args:
        choices: The mechanisms; refused ones are left out.
        path: Where the picture goes.
        epsilon: ε of all of them.
        plan: The plan.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for choice in choices:
        if not choice.refused:
            axes.plot(
                np.arange(1, choice.errors.size + 1),
                choice.errors,
                label=f"{choice.noise}, {choice.sampling}",
                linewidth=2 if choice.own else 1,
            )
    axes.set_yscale("log")
    axes.set_xlabel("update")
    axes.set_ylabel("noise in the sum of the updates (clip norms)")
    axes.set_title(
        f"Noise at ε = {epsilon:.3g}, δ = {plan.delta:g} "
        f"({plan.num_examples} examples, batches of "
        f"{plan.expected_batch_size})",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _plan(config: ml_collections.ConfigDict) -> dpa.PrivacyPlan:
    """The plan; there are no data to count."""
    examples = config.data.num_train
    if not examples:
        raise ValueError(
            "`data.num_train` must say how many examples there are. Received: "
            f"data.num_train={examples!r}. Set --config.data.num_train=N."
        )
    return build.plan(config, examples)


def _choice(
    plan: dpa.PrivacyPlan,
    epsilon: float,
    mechanism: NoiseMechanism,
    sampling: str,
) -> Choice:
    steps, name = plan.num_steps or 1, mechanisms.to_text(mechanism)
    own = (mechanism, sampling) == (plan.noise, plan.sampling)
    try:
        found = plan if own else _calibrated(plan, epsilon, mechanism, sampling)
        kept = _bytes_per_parameter(mechanism, steps)
    except ValueError as error:
        nothing = np.zeros(0)
        return Choice(name, sampling, 0.0, nothing, 0.0, 0.0, str(error), own)
    scale = found.noise_multiplier * plan.sensitivity_factor
    rows = mechanism.row_norms_squared(steps)
    return Choice(
        noise=name,
        sampling=sampling,
        noise_multiplier=found.noise_multiplier,
        errors=scale * np.sqrt(mechanism.prefix_errors_squared(steps)),
        one_step=scale * math.sqrt(float(np.mean(rows))),
        bytes_per_parameter=kept,
        refused="",
        own=own,
    )


def _calibrated(
    plan: dpa.PrivacyPlan, epsilon: float, noise: NoiseMechanism, sampling: str
) -> dpa.PrivacyPlan:
    """The plan with other noise, at ε."""
    return dpa.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=plan.delta or 0.0,
        num_examples=plan.num_examples or 0,
        expected_batch_size=plan.expected_batch_size,
        num_steps=plan.num_steps,
        sampling=sampling,
        noise=noise,
        adjacency=plan.adjacency,
    )


def _bytes_per_parameter(mechanism: NoiseMechanism, steps: int) -> float:
    """Measured on two sizes of a variable: what does not grow is no state."""
    kept: list[float] = []
    for size in (64, 128):
        # A stream that nobody trains with: its numbers are never drawn.
        stream = mechanism.stream(SecretKeys(), [(size,)], num_steps=steps)
        kept.append(
            sum(b.dtype.size * math.prod(b.shape) for b in stream.buffers)
        )
    return (kept[1] - kept[0]) / 64


def _row(choice: Choice) -> dict[str, Any]:
    row: dict[str, Any] = {
        "noise": choice.noise,
        "sampling": choice.sampling,
        "own": choice.own,
    }
    if choice.refused:
        return row | {"refused": choice.refused}
    return row | {
        "noise_multiplier": choice.noise_multiplier,
        "error": math.sqrt(float(np.mean(np.square(choice.errors)))),
        "error_at_end": float(choice.errors[-1]),
        "error_of_one": choice.one_step,
        "bytes_per_parameter": choice.bytes_per_parameter,
    }
