r"""Which examples take part in which update of a run.

Update t of a run (counted from 0) takes, by the plan's `sampling`,

* poisson: each example with probability B/N, independently;
* cyclic_poisson: each example of part t mod b with probability B·b/N;
* shuffled: examples tB, …, tB + B - 1 of one secret order, modulo passes;
* in_order: the same in the order of the data.

Accounting without amplification, or with banded noise, rests on how far apart
an example's updates lie, so order, parts and t belong to the run: they go on
over passes, over calls of `plan.batches` and over a resume. Position t is the
number of updates taken. As long as nobody calls `seek`, the updates handed out
count; iterators may run ahead of training (prefetch) or be dropped (Keras looks
at the first batch to build a model), so a training loop calls `seek`, and from
then on its count is the position.

Randomness comes from NumPy's Philox, keyed by the operating system.
"""

import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_dpadaptive import _validate

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan


def _philox(key: bytes, *counter: int) -> np.random.Philox:
    """The bit stream of a 128-bit key at an address of up to three words."""
    words = np.frombuffer(key[:16], np.uint64)
    high = [0, *counter, 0, 0, 0][:4]
    return np.random.Philox(key=words, counter=np.array(high, np.uint64))


class Sampler:
    """Draws the rows of each update of one run.

    Args:
        plan: The plan; it must have `num_examples`.
        seed: None (the operating system's randomness) or a whole number, for
            tests: whoever knows it knows who took part, and ε holds without
            amplification only. With it, update t's rows depend on (seed, t).

    Attributes:
        plan: The plan.
        seed: The argument.
        run_id: Unique name of the run whose order this is.
    """

    def __init__(self, plan: "PrivacyPlan", seed: int | None = None) -> None:
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, (int, np.integer))
        ):
            raise TypeError(
                "`seed` must be None or a whole number. Received: "
                f"seed={seed!r}."
            )
        self.plan = plan
        self.seed = None if seed is None else int(seed)
        self.run_id = uuid.uuid4().hex
        self._key = os.urandom(16)
        self._draws: bytes | None = None
        if self.seed is not None:
            material = hashlib.sha256(f"batches:{self.seed}".encode()).digest()
            self._key, self._draws = material[:16], material[16:]
        self._parts: list[np.ndarray] | None = None
        self._order: np.ndarray | None = None
        self._position = 0
        self._led = False
        # Iterators live in threads of tf.data.
        self._lock = threading.RLock()

    @property
    def position(self) -> int:
        """The update, from 0, with which the next iterator begins."""
        return self._position

    def seek(self, position: int) -> None:
        """Sets the position; from now on only `seek` moves it.

        Args:
            position: Number of updates that the run has taken, >= 0.
        """
        if position != 0:
            _validate.positive_integer(position=position)
        with self._lock:
            self._position, self._led = int(position), True

    def updates(self, steps: int) -> Iterator[np.ndarray]:
        """Yields the rows (int64, sorted, distinct) of the next updates.

        Args:
            steps: How many updates, >= 1.
        """
        with self._lock:
            start = self._position
        # An own stream for each iterator: no two updates share their draws,
        # whatever ran ahead, was dropped or was forked.
        fresh = np.random.Generator(_philox(os.urandom(16)))
        for update in range(start, start + steps):
            generator = fresh
            if self._draws is not None:
                generator = np.random.Generator(_philox(self._draws, 0, update))
            rows = self.rows(update, generator)
            with self._lock:
                if not self._led:
                    self._position = update + 1
            yield rows

    def rows(self, update: int, generator: np.random.Generator) -> np.ndarray:
        """Returns who takes part in an update: int64, sorted, distinct.

        At most `plan.max_batch_size`; of a larger sample, which is negligibly
        rare and accounted for, a uniformly random subset.

        Args:
            update: The update t from 0.
            generator: Where Poisson samples come from.
        """
        plan = self.plan
        if plan.sampling in ("shuffled", "in_order"):
            size = plan.expected_batch_size
            first = update % plan.steps_per_epoch * size
            return np.sort(self._ordered()[first : first + size])
        members: np.ndarray | int = int(plan.num_examples or 0)
        if plan.sampling == "cyclic_poisson":
            members = self._members()[update % plan.parts]
        count = members if isinstance(members, int) else len(members)
        probability = min(1.0, plan.sampling_probability * plan.parts)
        # A binomial number of examples, uniformly chosen, is the same as each
        # example for itself, at the cost of B instead of N. So is the cut: a
        # uniform subset of a uniform subset is one.
        size = min(generator.binomial(count, probability), plan.max_batch_size)
        chosen = generator.choice(members, size, replace=False, shuffle=False)
        return np.sort(chosen.astype(np.int64))

    def _ordered(self) -> np.ndarray:
        """The order of a run: a permutation, or the order of the data."""
        with self._lock:
            if self._order is None:
                examples = int(self.plan.num_examples or 0)
                self._order = np.arange(examples)
                if self.plan.sampling == "shuffled":
                    self._order = self._permutation(examples)
            return self._order

    def _permutation(self, examples: int) -> np.ndarray:
        # Raw bits, since NumPy keeps these, and not its `permutation`, the
        # same over versions: a resumed run must find the same order.
        bits = _philox(self._key).random_raw(examples)
        return np.argsort(bits, kind="stable")

    def _members(self) -> list[np.ndarray]:
        """The parts of cyclic_poisson, fixed for the run."""
        with self._lock:
            if self._parts is None:
                examples, parts = (
                    int(self.plan.num_examples or 0),
                    self.plan.parts,
                )
                if self.plan.adjacency == "add_or_remove":
                    # Each for itself, so that one example more or less leaves
                    # the others where they are.
                    bits = _philox(self._key).random_raw(examples)
                    part = bits % np.uint64(parts)
                else:
                    part = self._permutation(examples) % parts
                self._parts = [np.flatnonzero(part == i) for i in range(parts)]
            return self._parts

    def state(self) -> dict[str, Any]:
        """Returns order and position for `dpa.checkpoint`; JSON-able, secret.

        Poisson samples are not part of it: a resumed run draws fresh ones
        (with `seed`, those of its position).
        """
        return {
            "scheme": self._scheme(),
            "run_id": self.run_id,
            "key": self._key.hex(),
            "position": self._position,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes on with the order and from the position of `state()`.

        Args:
            state: What `state()` returned, for an equal way of sampling.

        Raises:
            ValueError: if it belongs to another sampling, N, B or number of
                parts: nothing is changed then.
        """
        if state["scheme"] != self._scheme():
            raise ValueError(
                "The saved order belongs to another way of sampling. Received: "
                f"{state['scheme']}, but this plan samples {self._scheme()}."
            )
        with self._lock:
            key = bytes.fromhex(state["key"])
            if key != self._key:
                self._key, self._order, self._parts = key, None, None
            self.run_id = str(state["run_id"])
            self._position = int(state["position"])

    def _scheme(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "sampling": plan.sampling,
            "num_examples": plan.num_examples,
            "expected_batch_size": plan.expected_batch_size,
            "parts": plan.parts,
            "independent_parts": plan.adjacency == "add_or_remove",
        }
