"""4-bit quantisation in blocks of 64, two codes a byte.

    per block [mn, mx]: u = (mx-mn)/15;  q = floor((x-mn)/u + 0.5)
                        Q⁻¹ = q·u + mn

Where u is 0, denormal or not finite the codes are 0 and Q⁻¹ = mn.

Reference: Modoranu et al., "MicroAdam", 2024, arXiv 2405.15593, section 3.
"""

from typing import Any

import numpy as np
from keras import ops

BLOCK = 64
_TINY = float(np.finfo(np.float32).tiny)


def num_blocks(size: int) -> int:
    """Returns how many blocks hold `size` entries."""
    return -(-size // BLOCK)


def quantise(x: Any) -> tuple[Any, Any]:
    """Returns codes, uint8 (blocks·32,), and ranges, float32 (blocks, 2).

    Args:
        x: float32 (size,) vector; the last block's range is that of its real
            entries.
    """
    size = x.shape[0]
    missing = num_blocks(size) * BLOCK - size
    padded = ops.concatenate([x, ops.repeat(x[-1:], missing)]) if missing else x
    blocks = ops.reshape(padded, [-1, BLOCK])
    low = ops.min(blocks, axis=1, keepdims=True)
    high = ops.max(blocks, axis=1, keepdims=True)
    unit, usable = _unit(low, high)
    codes = ops.floor((blocks - low) / unit + 0.5)
    codes = ops.where(usable, ops.clip(codes, 0.0, 15.0), 0.0)
    codes = ops.cast(ops.reshape(codes, [-1, 2]), "int32")
    packed = ops.cast(codes[:, 0] + 16 * codes[:, 1], "uint8")
    return packed, ops.concatenate([low, high], axis=1)


def dequantise(packed: Any, ranges: Any, size: int) -> Any:
    """Returns the float32 (size,) vector that the codes stand for.

    Args:
        packed: Codes of `quantise`.
        ranges: Ranges of `quantise`.
        size: Entries of the vector.
    """
    codes = ops.cast(packed, "int32")
    pairs = ops.stack([codes % 16, codes // 16], axis=1)
    blocks = ops.cast(ops.reshape(pairs, [-1, BLOCK]), "float32")
    low, high = ranges[:, :1], ranges[:, 1:]
    unit, usable = _unit(low, high)
    values = ops.where(usable, blocks * unit, 0.0) + low
    return ops.reshape(values, [-1])[:size]


def _unit(low: Any, high: Any) -> tuple[Any, Any]:
    """Returns u (1 where it must not divide) and whether it may."""
    unit = (high - low) / 15.0
    usable = ops.logical_and(ops.isfinite(unit), unit >= _TINY)
    return ops.where(usable, unit, 1.0), usable
