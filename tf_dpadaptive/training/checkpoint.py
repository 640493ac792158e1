"""The only resumable form of a private run: as sensitive as the data.

A checkpoint holds the weights, the optimizer's state, the ledger, the sampler's
phase and order, AND the secrets: whoever holds it can subtract the noise. It is
written with mode 0600, in one step (a reader sees the old file or the new one),
and must never be released. To release a model use `model.save`.

After `restore`, updates not yet taken draw from a fresh secret (two runs that
go on from one checkpoint must not share noise); old secrets stay only to
regenerate past terms of correlated noise. With `seed=` the old secret goes on,
so that a seeded run resumes bit for bit.
"""

import io
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.optimizers.base import DPOptimizer

FORMAT = 1


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint of a privatized, compiled model.

    Args:
        model: The model; its optimizer must be built.
        path: File to write, mode 0600, replaced in one step.
        extra: JSON-serialisable values to keep beside it.

    Privacy: holds the noise secret. As sensitive as the training data.
    """
    optimizer = _optimizer(model)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    arrays = {f"noise/{k}": v for k, v in optimizer._keys.state().items()}
    for name, variables in _variables(model, optimizer).items():
        for place, variable in enumerate(variables):
            arrays[f"{name}/{place}"] = np.asarray(variable.numpy())
    meta = {
        "format": FORMAT,
        "optimizer": _identity(optimizer),
        "layers": _layers(model),
        "run_id": optimizer.run_id,
        "ledger": model.ledger.to_config(),
        "sampler": optimizer.sampling.order,
        "extra": dict(extra or {}),
    }
    _write(os.fspath(path), meta, arrays)


def restore(model: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Takes up a checkpoint into a privatized model compiled the same way.

    Args:
        model: A model of the same architecture, compiled with an optimizer of
            the same class, arguments and plan.
        path: File that `save` wrote.

    Returns:
        The `extra` values of `save`.

    Raises:
        ValueError: if model or optimizer differ from what was saved; nothing
            is changed then.
    """
    optimizer = _optimizer(model)
    meta, arrays = _read(os.fspath(path))
    identity = _identity(optimizer)
    if meta["optimizer"] != identity:
        others = _differences(meta["optimizer"], identity)
        raise ValueError(
            f"The checkpoint {os.fspath(path)!r} was written with another "
            f"optimizer than this model has: {'; '.join(others)}. Compile with "
            "the same optimizer and plan."
        )
    if meta["layers"] != _layers(model):
        raise ValueError(
            f"The checkpoint {os.fspath(path)!r} was written of a model with "
            f"the layers {meta['layers']}, but this model has "
            f"{_layers(model)}. Build the same model."
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    groups = _variables(model, optimizer)
    _check_shapes(groups, arrays)
    for name, variables in groups.items():
        for place, variable in enumerate(variables):
            variable.assign(arrays[f"{name}/{place}"])
    optimizer._keys.load(
        {key: arrays[f"noise/{key}"] for key in ("step", "eras")}
    )
    saved = Ledger.from_config(meta["ledger"])
    model.ledger.abandon(meta["run_id"], saved)
    optimizer.run_id = meta["run_id"]
    model.ledger.merge(saved)
    model.ledger.fork(meta["run_id"])
    model.private.settle_past(optimizer)
    optimizer.sampling.order = meta["sampler"]
    if model.private.sampler is not None:
        model.private.follow(model.private.sampler)
    return meta["extra"]


def _optimizer(model: Any) -> DPOptimizer:
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, DPOptimizer) or not hasattr(model, "private"):
        raise ValueError(
            "`model` must be privatized and compiled with a DP optimizer. "
            f"Received: model={type(model).__name__} with optimizer="
            f"{type(optimizer).__name__}."
        )
    return optimizer


def _variables(model: Any, optimizer: DPOptimizer) -> dict[str, list[Any]]:
    """All variables of a run, by group, in a fixed order."""
    return {
        "model": list(model.variables),
        "optimizer": list(optimizer.variables),
        "buffers": [b for s in optimizer._streams for b in s.buffers],
    }


def _check_shapes(
    groups: Mapping[str, list[Any]], arrays: Mapping[str, np.ndarray]
) -> None:
    for name, variables in groups.items():
        saved = sum(key.startswith(f"{name}/") for key in arrays)
        if saved != len(variables):
            raise ValueError(
                f"The checkpoint holds {saved} variables of the {name}, but "
                f"here there are {len(variables)}. Build the same model, "
                "optimizer and plan first."
            )
        for place, variable in enumerate(variables):
            there = arrays[f"{name}/{place}"].shape
            # Some buffers of noise have sides of no fixed length (None).
            here = tuple(variable.shape)
            if len(there) != len(here) or any(
                own not in (None, side)
                for own, side in zip(here, there, strict=True)
            ):
                raise ValueError(
                    f"Variable {place} of the {name} has shape "
                    f"{tuple(variable.shape)}, but {tuple(there)} in the "
                    "checkpoint. Build the same model, optimizer and plan."
                )


def _identity(optimizer: DPOptimizer) -> Any:
    """What must be equal for a run to go on: class, plan, arguments."""
    config = optimizer.get_config()
    config.pop("ledger")
    config["seeded"] = optimizer._keys.seed is not None
    described = {"class": type(optimizer).__name__, "config": config}
    return _lasting(json.loads(json.dumps(described, default=_plain)))


def _differences(saved: Any, here: Any, path: str = "") -> list[str]:
    """What is not equal in two identities, said in words."""
    if not (isinstance(saved, dict) and isinstance(here, dict)):
        if saved == here:
            return []
        return [f"{path} was {saved!r} and is {here!r}"]
    found: list[str] = []
    for key in sorted({*saved, *here}):
        inner = path if key == "config" else f"{path}.{key}".lstrip(".")
        found += _differences(saved.get(key), here.get(key), inner)
    return found


def _layers(model: Any) -> list[str]:
    """Kinds of the layers that own variables; preprocessors make others."""
    return [
        type(layer).__name__
        for layer in model._flatten_layers(include_self=False, recursive=True)
        if layer._trainable_variables or layer._non_trainable_variables
    ]


def _lasting(described: Any) -> Any:
    """Drops names and learning rates (callbacks change them) at any depth."""
    if isinstance(described, dict):
        return {
            key: _lasting(value)
            for key, value in described.items()
            if key not in ("name", "learning_rate")
        }
    return described


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return keras.saving.serialize_keras_object(value)


def _write(path: str, meta: Any, arrays: Mapping[str, np.ndarray]) -> None:
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    buffer = io.BytesIO()
    text = np.frombuffer(
        json.dumps(meta, default=_plain).encode(), dtype=np.uint8
    )
    np.savez(buffer, meta=text, **_storable(arrays))
    partial = f"{path}.{secrets.token_hex(4)}.part"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)
        raise


def _storable(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """NumPy files know no bfloat16: float32 holds it exactly."""
    return {
        key: value.astype(np.float32)
        if value.dtype.name in ("bfloat16", "float16")
        else value
        for key, value in arrays.items()
    }


def _read(path: str) -> tuple[Any, dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        meta = json.loads(arrays.pop("meta").tobytes().decode())
    except (ValueError, KeyError, AttributeError, EOFError) as error:
        raise ValueError(
            f"{path!r} is not a checkpoint of `checkpoint.save`: {error}"
        ) from error
    if meta["format"] != FORMAT:
        raise ValueError(
            f"The checkpoint {path!r} has format {meta['format']}; this "
            f"version reads format {FORMAT}."
        )
    return meta, arrays
