"""Optimised strategies on disk: found once for given parameters.

One file for one set of parameters, in the folder that the environment variable
TF_DPADAPTIVE_CACHE names, else in the user's cache folder. A file is written
aside and moved into place, so that concurrent writers and readers see whole
files; what can't be read, belongs to other parameters or fails its check is
computed again.

Privacy: nothing secret is stored, and no guarantee hangs on a file: the
sensitivity is always computed from the coefficients that are used.
"""

import hashlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Names the meaning of the files; a new meaning is a new number.
FORMAT = 1

VARIABLE = "TF_DPADAPTIVE_CACHE"

#: What numpy raises for a file that is none of its own, or not whole.
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    EOFError,
    KeyError,
    zipfile.BadZipFile,
)


def folder() -> pathlib.Path:
    """Returns the folder of the files; it need not exist yet."""
    named = os.environ.get(VARIABLE)
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tf_dpadaptive" / "strategies"


def cached(
    name: str,
    parameters: Mapping[str, int],
    compute: Callable[[], dict[str, Array]],
    loss: Callable[[Mapping[str, Array]], float],
) -> dict[str, Array]:
    """Returns the arrays of a strategy, from disk if they are there and right.

    Args:
        name: Family of the strategy, part of the file's name.
        parameters: What the strategy was optimised for.
        compute: Optimises it.
        loss: Value that was minimised. Raises ValueError for arrays that are
            no such strategy. A file whose loss is another than it says is not
            used.
    """
    identity = json.dumps(
        {"format": FORMAT, "name": name, **parameters}, sort_keys=True
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:20]
    path = folder() / f"{name}-{digest}.npz"
    arrays = _read(path, identity)
    if arrays is not None:
        try:
            stated = float(arrays.pop("loss"))
            if abs(loss(arrays) - stated) <= 1e-9 * max(1.0, abs(stated)):
                return arrays
            problem = "its loss is not what it says"
        except (KeyError, TypeError, ValueError) as error:
            problem = str(error)
        logging.warning("%s is not used: %s.", path, problem)
    arrays = compute()
    _write(path, identity, {**arrays, "loss": np.asarray(loss(arrays))})
    return arrays


def shaped(arrays: Mapping[str, Array], name: str, *shape: int) -> Array:
    """Returns the array of that name.

    Args:
        arrays: Arrays of a strategy.
        name: Which of them.
        *shape: The shape that it must have.

    Raises:
        ValueError: if it has another shape or is not finite.
    """
    array = arrays[name]
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`{name}` must be finite numbers of shape {shape}. Received: "
            f"shape={array.shape}"
        )
    return array


def frozen(array: Array) -> Array:
    """Returns the array read-only: the caches hand one to everybody."""
    array.flags.writeable = False
    return array


def _read(path: pathlib.Path, identity: str) -> dict[str, Array] | None:
    """The file's arrays; None where there is no such whole file."""
    try:
        # Opened here: numpy leaves a file that it can't read open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if str(file["identity"]) != identity:
                return None
            return {
                key: np.asarray(file[key], np.float64)
                for key in file.files
                if key != "identity"
            }
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        logging.warning("%s is not used, it can't be read: %s.", path, error)
        return None


def _write(
    path: pathlib.Path, identity: str, arrays: Mapping[str, Array]
) -> None:
    """Best effort: a read-only disk costs time in the next run, no more."""
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=path.stem, suffix=".part", delete=False
        ) as file:
            aside = file.name
            np.savez(file, identity=np.asarray(identity), **arrays)
        os.replace(aside, path)
    except OSError as error:
        logging.warning("The strategy was not kept in %s: %s.", path, error)
        if aside is not None:
            pathlib.Path(aside).unlink(missing_ok=True)
