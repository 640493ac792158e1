"""The price of privacy: a private step beside the plain Keras step.

    python -m benchmarks.private_step --task mlp --batch 256 --json mlp.json
    python -m benchmarks.private_step --workdir runs/bench      # all of it

A step is per-example clipping, noise and update, synchronised by reading the
loss. Private and plain steps of one model are timed in alternation in one
process, after three steps each to warm up, for at least `--steps` steps and a
second; medians are reported. Peak memory is the private step's own, before the
plain step exists; that of the plain step comes from a process of its own
(`--clipping none`). Data is random; Adam, learning rate 1e-3, clip norm 1,
noise multiplier 1.

With `--workdir` every task (or that of `--task`), batch size and kind of step
(DPAdam, the same with both steps under XLA, StP, the vectorized engine) runs in
a process of its own, and the table `private_step.md`, `.json` and the picture
`.png` are written there.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

TASKS = {
    "logreg": (64, 256, 1024),
    "mlp": (64, 256, 1024),
    "cnn": (64, 256, 1024),
    "bert_tiny": (8, 32, 128),
}
CLIPPING = ("auto", "vectorized", "sequential", "none")
TOKENS, MASKED, VOCABULARY = 128, 19, 30522


def build(task: str) -> Any:
    """The model of a task."""
    import keras
    from keras import layers

    if task == "bert_tiny":
        import keras_hub

        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=VOCABULARY,
            num_layers=2,
            num_heads=2,
            hidden_dim=128,
            intermediate_dim=512,
            max_sequence_length=512,
            dropout=0.0,
        )
        return keras_hub.models.BertMaskedLM(backbone)
    stack = {
        "logreg": lambda: [keras.Input((784,)), layers.Dense(10)],
        "mlp": lambda: [
            keras.Input((784,)),
            layers.Dense(1000, activation="relu"),
            layers.Dense(10),
        ],
        "cnn": lambda: [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, "same", activation="relu"),
            layers.MaxPool2D(2, 1),
            layers.Conv2D(32, 4, 2, "valid", activation="relu"),
            layers.MaxPool2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ],
    }
    return keras.Sequential(stack[task]())


def data(task: str, batch: int) -> tuple[Any, Any]:
    """One random batch."""
    rng = np.random.default_rng(0)
    if task != "bert_tiny":
        shape = (28, 28, 1) if task == "cnn" else (784,)
        x = rng.standard_normal((batch, *shape)).astype(np.float32)
        return x, rng.integers(0, 10, batch)
    places = np.tile(np.arange(TOKENS), (batch, 1))
    x = {
        "token_ids": rng.integers(0, VOCABULARY, (batch, TOKENS)),
        "segment_ids": np.zeros((batch, TOKENS), int),
        "padding_mask": np.ones((batch, TOKENS), bool),
        "mask_positions": np.sort(rng.permuted(places, axis=1)[:, :MASKED]),
    }
    return x, rng.integers(0, VOCABULARY, (batch, MASKED))


def stepper(model: Any, optimizer: Any, batch: Any, jit: Any) -> Callable:
    """A function that takes one step and waits for its loss."""
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=jit)
    dataset = tf.data.Dataset.from_tensors(batch).cache().repeat()
    iterator = iter(dataset.prefetch(2))
    model.make_train_function()
    step = model.train_function
    return lambda: float(step(iterator)["loss"])


def private_model(args: argparse.Namespace) -> tuple[Any, Any]:
    """A privatized model and its optimizer."""
    import tf_dpadaptive as dpa

    plan = dpa.PrivacyPlan(
        noise_multiplier=1.0, expected_batch_size=args.batch, delta=1e-5
    )
    model = dpa.privatize(
        build(args.task),
        clipping=args.clipping,
        microbatch_size=args.microbatch,
    )
    make = getattr(dpa.optimizers, args.optimizer)
    return model, make(learning_rate=1e-3, l2_norm_clip=1.0, plan=plan)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Times one task in this process."""
    import keras
    import tensorflow as tf

    if args.threads:
        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    warnings.simplefilter("ignore")
    jit = {"auto": "auto", "on": True, "off": False}[args.jit]
    batch = data(args.task, args.batch)
    result = {
        "task": args.task,
        "batch": args.batch,
        "optimizer": args.optimizer,
        "clipping": args.clipping,
        "jit": args.jit,
    }
    private = None
    if args.clipping != "none":
        private = stepper(*private_model(args), batch, jit)
        for _ in range(3):
            private()
        result["peak_rss_mb"] = peak_mb()
    plain = stepper(build(args.task), keras.optimizers.Adam(1e-3), batch, jit)
    for _ in range(3):
        plain()
    if private is None:
        result["peak_rss_mb"] = peak_mb()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + 1.0
    while len(times[1]) < args.steps or time.perf_counter() < end:
        for step, taken in zip((private, plain), times, strict=True):
            if step is not None:
                start = time.perf_counter()
                step()
                taken.append(1e3 * (time.perf_counter() - start))
    plain_ms = statistics.median(times[1])
    result["plain_median_ms"] = round(plain_ms, 3)
    if private is not None:
        median = statistics.median(times[0])
        result |= {
            "median_ms": round(median, 3),
            "ratio": round(median / plain_ms, 3),
            "examples_per_s": round(1e3 * args.batch / median, 1),
        }
    return result | {"steps": len(times[1]), "versions": versions()}


def peak_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    status = Path("/proc/self/status").read_text()
    line = next(x for x in status.splitlines() if x.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def versions() -> dict[str, str]:
    """What was measured with."""
    import tensorflow as tf

    packages = ("tensorflow", "keras", "keras-hub", "tf-dpadaptive")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    gpus = tf.config.list_physical_devices("GPU")
    return found | {"device": "GPU" if gpus else "CPU"}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--optimizer", default="DPAdam")
    parser.add_argument("--clipping", choices=CLIPPING, default="auto")
    parser.add_argument("--microbatch", type=int)
    parser.add_argument("--jit", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--workdir", type=Path, help="folder for the table")
    args = parser.parse_args(arguments)
    if args.task is None and args.workdir is None:
        parser.error("one of --task and --workdir is needed")
    return args


def main(arguments: list[str]) -> None:
    """Measures one task, or writes the table of all."""
    args = parse(arguments)
    if args.workdir is not None:
        from benchmarks import private_step_table

        sizes = {k: v for k, v in TASKS.items() if args.task in (None, k)}
        private_step_table.write(args.workdir, args.steps, sizes)
        return
    result = json.dumps(measure(args), indent=2)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(result + "\n")
    print(result)


if __name__ == "__main__":
    main(sys.argv[1:])
