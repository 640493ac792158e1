"""DP-MicroAdam ([H], [M]): Adam on a window of sparse gradients.

Per variable: a = g + Qinv(e); I = the k largest |a|; V = a[I]; a[I] ← 0;
e ← Q(a); (I, V) goes to slot (t-1) mod w;
  μ̂ = (1-β1)/(1-β1^t) Σ_i β1^{age_i} scatter(I_i, V_i), ν̂ with V² and β2
  θ -= η μ̂/(√ν̂ + es)

Layout: a variable is flattened in C order and cut into blocks of `block_size`;
the last block is as long as what is left (its range is over real entries only).
Equal |a|: the lower index is taken first (as tf.math.top_k).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tests.reference.clip import Array, flatten
from tests.reference.method import Mask, Method


def quantise(x: NDArray) -> tuple[NDArray[np.uint8], Any, Any]:
    """Returns (codes 0..15, mn, mx) of one block, in the block's dtype."""
    mn, mx = np.min(x), np.max(x)
    u = _unit(mn, mx)
    if u is None:
        return np.zeros(len(x), np.uint8), mn, mx
    q = np.floor((x - mn) / u + x.dtype.type(0.5))
    return np.clip(q, 0, 15).astype(np.uint8), mn, mx


def dequantise(codes: NDArray[np.uint8], mn: Any, mx: Any) -> NDArray:
    """Returns Qinv = q·u + mn."""
    dtype = np.asarray(mn).dtype
    u = _unit(mn, mx)
    if u is None:
        return np.full(len(codes), mn, dtype)
    return codes.astype(dtype) * u + mn


def _unit(mn: Any, mx: Any) -> Any:
    """Returns u, or None if it must not be divided by."""
    dtype = np.asarray(mn).dtype
    with np.errstate(all="ignore"):
        u = dtype.type((mx - mn) / dtype.type(15))
    # Below `tiny` are 0 and the denormals.
    usable = np.isfinite(u) and u >= np.finfo(dtype).tiny
    return u if usable else None


def largest(a: NDArray, k: int) -> NDArray[np.int64]:
    """Returns the indices of the k largest |a|, lower index first on ties."""
    return np.argsort(-np.abs(a), kind="stable")[:k]


class _Window:
    """State of one variable: the ring buffer and the error e."""

    def __init__(self, size: int, density: float, window: int):
        self.size = size
        self.k = math.ceil(density * size)
        self.indices = np.zeros((window, self.k), np.int64)
        self.values = np.zeros((window, self.k))
        self.e: Any = None


class MicroAdam(Method):
    """See the module.

    Args:
        shapes: See `Method`.
        density: Share of the entries kept a step, k = ceil(density·size).
        window: w.
        beta_1: β1.
        beta_2: β2.
        epsilon: es.
        error_feedback: "quantized", "full" (e as it is) or "none" (e = 0).
        block_size: Entries a block of the quantiser.
        dtype: In which a, top-k and the quantiser are computed. Roundings at
            .5 and near-ties fall differently in float32 and float64, and one
            that falls differently changes e by a whole u.
        **common: See `Method`.

    Attributes:
        rounding_margin: Smallest distance yet of (x-mn)/u from a rounding
            boundary, in codes. Below ~1e-4 a float32 replay may differ by u.
        selection_margin: Smallest relative gap yet between the last |a| that
            was selected and the next.
    """

    def __init__(
        self,
        shapes: Any,
        *,
        density: float = 0.01,
        window: int = 10,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        error_feedback: str = "quantized",
        block_size: int = 64,
        dtype: DTypeLike = np.float64,
        **common: Any,
    ):
        super().__init__(shapes, **common)
        if error_feedback not in ("quantized", "full", "none"):
            raise ValueError(
                "`error_feedback` must be 'quantized', 'full' or 'none'. "
                f"Received: error_feedback={error_feedback!r}."
            )
        self.w, self.block_size = window, block_size
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.error_feedback = error_feedback
        self.dtype = np.dtype(dtype)
        self.windows = [
            _Window(int(np.prod(shape)), density, window)
            for shape in self.shapes
        ]
        self.rounding_margin = self.selection_margin = np.inf

    def update(self, g: Array, mask: Mask, z: list[Array]) -> Array:
        """See the module."""
        gt = self.split(self.noisy_mean(g, mask, z[0]))
        return flatten(
            [
                self._update_variable(state, gv.reshape(-1))
                for state, gv in zip(self.windows, gt, strict=True)
            ]
        )

    def _update_variable(self, state: _Window, g: Array) -> Array:
        a = g.astype(self.dtype) + self.error(state)
        chosen = largest(a, state.k)
        self._note_selection(a, chosen)
        slot = (self.t - 1) % self.w
        state.indices[slot], state.values[slot] = chosen, a[chosen]
        a[chosen] = 0
        self._store_error(state, a)
        mu_hat, nu_hat = np.zeros(state.size), np.zeros(state.size)
        for i in range(min(self.t, self.w)):
            age = (self.t - 1 - i) % self.w
            mu_hat[state.indices[i]] += self.beta_1**age * state.values[i]
            nu_hat[state.indices[i]] += self.beta_2**age * state.values[i] ** 2
        mu_hat = self.debias((1 - self.beta_1) * mu_hat, self.beta_1)
        nu_hat = self.debias((1 - self.beta_2) * nu_hat, self.beta_2)
        return self.eta * mu_hat / (np.sqrt(nu_hat) + self.epsilon)

    def error(self, state: _Window) -> NDArray:
        """Returns Qinv(e) of one variable, as a vector."""
        if state.e is None:
            return np.zeros(state.size, self.dtype)
        if self.error_feedback == "full":
            return state.e
        return np.concatenate([dequantise(*block) for block in state.e])

    def _store_error(self, state: _Window, a: NDArray) -> None:
        if self.error_feedback == "full":
            state.e = a
        elif self.error_feedback == "quantized":
            blocks = np.split(
                a, range(self.block_size, len(a), self.block_size)
            )
            state.e = [quantise(block) for block in blocks]
            for block in blocks:
                self._note_rounding(block)

    def _note_rounding(self, x: NDArray) -> None:
        u = _unit(np.min(x), np.max(x))
        if u is not None:
            code = (x - np.min(x)).astype(np.float64) / float(u) + 0.5
            # floor jumps at integers; 0 and 15 are clamped, never crossed.
            gap = np.abs(code - np.round(code))
            self.rounding_margin = min(self.rounding_margin, np.min(gap))

    def _note_selection(self, a: NDArray, chosen: NDArray) -> None:
        rest = np.delete(np.abs(a), chosen)
        last = np.abs(a[chosen[-1]])
        if len(rest) and last > 0:
            gap = float(1 - np.max(rest) / last)
            self.selection_margin = min(self.selection_margin, gap)
