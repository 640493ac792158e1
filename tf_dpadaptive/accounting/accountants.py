r"""One adapter for each accountant; the smallest valid ε of them is the answer.

All adapters read the same question, a composition of `Release`s, in which σ is
noise over the sensitivity of one participation under the adjacency asked
about. The accountants of dp-accounting do not agree on that under replace-one
(its PLD of 0.6 wants noise over the clip norm, its RDP noise over twice the
clip norm, and 0.4.3 has no replace-one for samples at all), so each adapter
translates, and refuses what its version can't do:

* zero-out is charged as add-or-remove: for Gaussians the two are equal;
* without sampling every adjacency is the same Gaussian, which is exact;
* samples under replace-one go to the PLD of dp-accounting >= 0.6, at 2σ.

RDP orders close to 1 are left out: 0.4.3 computes ε = 0 there.
"""

import functools
import importlib.metadata
import inspect
import math
from typing import Any, NamedTuple, Protocol

from tf_dpadaptive.accounting.events import Release, to_event
from tf_dpadaptive.accounting.gaussian import gaussian_epsilon

_RDP_ORDERS = (
    *(1 + k / 10 for k in range(1, 100)),
    *range(11, 65),
    *(72, 80, 96, 128, 192, 256, 384, 512, 1024),
)
#: Below this σ samples are accounted without amplification only: ε is beyond
#: 1e5 either way, and dp-accounting divides by zero or never ends.
_SMALLEST_SAMPLED_SIGMA = 1e-3
#: Above this σ samples are accounted as with this one: ε can only be larger.
_LARGEST_SAMPLED_SIGMA = 1e6
#: Least width of the bins of the privacy loss; see `_interval`.
_PLD_INTERVAL = 1e-4
#: Above this ε no finer accounting is worth its time.
_PLD_LARGEST_EPSILON = 1e4
#: Below this ε dp-accounting is to answer; above, it may stumble.
_PLD_SURE_EPSILON = 1e3


class Question(NamedTuple):
    """What is asked of an accountant.

    Attributes:
        composition: The releases.
        replace: Whether neighbours differ by a replaced example; if not, by
            one that is zeroed, added or removed.
    """

    composition: tuple[Release, ...]
    replace: bool


class Accountant(Protocol):
    """Turns a question and a δ into an ε."""

    @property
    def name(self) -> str:
        """Name and version, for statements."""
        ...

    def supports(self, question: Question) -> bool:
        """Whether `epsilon` may be asked this."""
        ...

    def epsilon(self, question: Question, delta: float) -> float:
        """Returns an ε >= 0 for which (ε, δ)-DP holds; inf if none is known."""
        ...


def _sampled(question: Question) -> bool:
    return any(r.sampling_probability < 1 for r in question.composition)


def _version() -> str:
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}"


class AnalyticGaussian:
    """Exact ε of compositions of Gaussians on the whole data.

    Reference: Balle and Wang, "Improving the Gaussian mechanism for
    differential privacy", 2018, arXiv 1805.06530, theorem 8.
    """

    name = "exact analytic Gaussian"

    def supports(self, question: Question) -> bool:
        """See `Accountant`: nothing may be sampled."""
        return not _sampled(question)

    def epsilon(self, question: Question, delta: float) -> float:
        """See `Accountant`."""
        # Not the sum of squares: those of tiny and of huge σ leave float64.
        distance = math.hypot(
            *(
                math.sqrt(r.times) / r.noise_multiplier
                for r in question.composition
            )
        )
        return gaussian_epsilon(distance, delta)


class WholeData:
    """Exact for what the samples would release if they took everything.

    An upper bound: given the samples, which are drawn without looking at data,
    a run is a Gaussian on no more than the whole data, and a mixture over the
    samples is no easier to tell apart than the worst of them. It is the only
    bound asked where the noise is hopeless, and the others fail or hang.
    """

    name = "exact analytic Gaussian, without amplification"

    def supports(self, question: Question) -> bool:
        """See `Accountant`."""
        del question
        return True

    def epsilon(self, question: Question, delta: float) -> float:
        """See `Accountant`."""
        whole = tuple(
            r._replace(sampling_probability=1.0) for r in question.composition
        )
        return AnalyticGaussian().epsilon(
            question._replace(composition=whole), delta
        )


class Rdp:
    """Rényi differential privacy (dp-accounting)."""

    @property
    def name(self) -> str:
        """See `Accountant`."""
        return f"RDP of {_version()}"

    def supports(self, question: Question) -> bool:
        """See `Accountant`: no samples under replace-one."""
        from dp_accounting import rdp

        if question.replace and _sampled(question):
            return False
        return rdp.RdpAccountant(_RDP_ORDERS).supports(
            to_event(question.composition)
        )

    def epsilon(self, question: Question, delta: float) -> float:
        """See `Accountant`."""
        from dp_accounting import rdp

        # RDP is linear in the number of steps, so a run that is asked about
        # after each epoch pays for the orders once.
        total: Any = sum(
            r.times * _rdp_of_one(r.sampling_probability, r.noise_multiplier)
            for r in question.composition
        )
        # With little noise to speak of a rounding error can be negative.
        total = [max(0.0, float(x)) for x in total]
        return float(rdp.compute_epsilon(_RDP_ORDERS, total, delta)[0])


@functools.lru_cache(maxsize=256)
def _rdp_of_one(probability: float, sigma: float) -> Any:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(_RDP_ORDERS)
    accountant.compose(to_event([Release(probability, sigma, 1)]))
    return accountant.rdp


class Pld:
    """Privacy loss distributions, rounded pessimistically (dp-accounting)."""

    @property
    def name(self) -> str:
        """See `Accountant`."""
        return f"PLD of {_version()}"

    def supports(self, question: Question) -> bool:
        """See `Accountant`: samples under replace-one need version 0.6."""
        import dp_accounting
        from dp_accounting import pld

        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        if question.replace and _sampled(question):
            if not _replaces():
                return False
            relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        return pld.PLDAccountant(relation).supports(
            to_event(question.composition)
        )

    def epsilon(self, question: Question, delta: float) -> float:
        """See `Accountant`."""
        steps = sum(r.times for r in question.composition)
        # The convolutions round: measured, masses are wrong by less than this
        # and the far tail is nothing but it.
        rounding = steps * 2.0**-52 + 1e-14
        if delta <= 2 * rounding:
            return math.inf
        # Only a rough ε: it takes zero-out for replace.
        rough = Rdp().epsilon(question, delta)
        if rough > _PLD_LARGEST_EPSILON:
            return math.inf
        if not question.composition:
            return 0.0
        interval = _interval(question)
        try:
            parts = [
                _pld_of(release, question.replace, interval)
                for release in question.composition
            ]
        except ValueError:
            # For a σ below 0.1 the δs of one release may come out unordered.
            if rough > _PLD_SURE_EPSILON:
                return math.inf
            raise
        total = functools.reduce(lambda a, b: a.compose(b), parts)
        return float(total.get_epsilon_for_delta(delta - rounding))


def _interval(question: Question) -> float:
    """Width of the bins: a twentieth of the loss's spread in one step.

    Wider bins give a larger ε (measured: less than 0.05 % here, at a quarter
    to a sixteenth of the time). In powers of two, so that plans share work.
    """
    spread = min(
        r.sampling_probability
        * math.sqrt(math.expm1(min(r.noise_multiplier**-2, 100.0)))
        for r in question.composition
    )
    octaves = math.floor(math.log2(max(spread / 20 / _PLD_INTERVAL, 1.0)))
    return _PLD_INTERVAL * 2 ** min(octaves, 6)


def _replaces() -> bool:
    """Whether this dp-accounting has sampled Gaussians under replace-one."""
    from dp_accounting.pld import privacy_loss_distribution as library

    parameters = inspect.signature(library.from_gaussian_mechanism).parameters
    return "neighboring_relation" in parameters


def _pld_of(release: Release, replace: bool, interval: float) -> Any:
    sigma, count = release.noise_multiplier, release.times
    if release.sampling_probability == 1:
        return _pld_of_one(1.0, sigma / math.sqrt(count), replace, interval)
    one = _pld_of_one(release.sampling_probability, sigma, replace, interval)
    return one.self_compose(count)


@functools.lru_cache(maxsize=16)
def _pld_of_one(
    probability: float, sigma: float, replace: bool, interval: float
) -> Any:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as library

    options: dict[str, Any] = {
        "standard_deviation": sigma,
        "sensitivity": 1.0,
        "pessimistic_estimate": True,
        "value_discretization_interval": interval,
        "log_mass_truncation_bound": -50,
        "sampling_prob": probability,
        "use_connect_dots": True,
    }
    if replace:
        # There the sensitivity is one clip norm, and σ is over two of them.
        options["standard_deviation"] = 2 * sigma
        options["neighboring_relation"] = (
            dp_accounting.NeighboringRelation.REPLACE_ONE
        )
    return library.from_gaussian_mechanism(**options)


class Answer(NamedTuple):
    """An ε and the accountant that gave it."""

    epsilon: float
    accountant: str


@functools.lru_cache(maxsize=4096)
def answer(question: Question, delta: float) -> Answer:
    """Returns the smallest valid ε and who found it.

    Args:
        question: What was released, under which adjacency.
        delta: In (0, 1).

    Raises:
        ValueError: if no installed accountant supports the question.
    """
    if any(r.noise_multiplier == 0 for r in question.composition):
        return Answer(math.inf, "none: there is no noise")
    if not question.composition:
        return Answer(0.0, "none: nothing was released")
    exact = AnalyticGaussian()
    candidates: list[Accountant] = (
        [exact] if exact.supports(question) else [Rdp(), Pld()]
    )
    question = question._replace(
        composition=tuple(
            r._replace(
                noise_multiplier=min(r.noise_multiplier, _LARGEST_SAMPLED_SIGMA)
            )
            if r.sampling_probability < 1
            else r
            for r in question.composition
        )
    )
    supporting: list[Accountant] = [
        a for a in candidates if a.supports(question)
    ]
    if not supporting:
        raise ValueError(
            "No accountant supports Poisson samples under adjacency='replace' "
            f"with {_version()}: it needs dp-accounting >= 0.6 (Python >= "
            "3.12). Use adjacency='zero_out', or sampling without "
            "amplification (shuffled, in_order)."
        )
    if _sampled(question):
        if any(
            r.noise_multiplier < _SMALLEST_SAMPLED_SIGMA
            for r in question.composition
        ):
            supporting = []
        supporting.append(WholeData())
    return min(
        (Answer(a.epsilon(question, delta), a.name) for a in supporting),
        key=lambda found: found.epsilon,
    )
