"""Time and memory of one noise step at 4.4 million parameters.

    python benchmarks/noise_step.py --out noise_step.json

Each mechanism runs in a process of its own, step by step beside independent
noise, so that a busy machine slows both. Reported for each: milliseconds of a
noise step and of one with a plain Adam update behind it (the cheapest step
that trains), both also as ratios to independent noise; bytes of the
buffers; and the peak of the process' memory over that with TensorFlow alone.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NUM_STEPS = 2000

#: Variables of BERT-tiny: 4.4 million parameters, most in one embedding.
LAYER = [(128, 128)] * 4 + [(128, 512), (512, 128)] + [(128,)] * 9 + [(512,)]
SHAPES = [(30522, 128), (512, 128), (2, 128), (128,), (128,), *LAYER * 2]

MECHANISMS = (
    "Independent()",
    "BandedInverse(2)",
    "BandedInverse(2, regenerate=False)",
    "BandedInverse(4)",
    "BLT(2)",
    "BLT(3)",
    "BLT(4)",
    "TreeAggregation(honaker=False)",
    "TreeAggregation()",
    "TreeAggregation(regenerate=False)",
    "BandedMF(8)",
    "BandedMF(32)",
    "BandedMF(128)",
    "SquareRoot()",
)


def peak() -> int:
    """Peak resident memory of this process, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, steps: int) -> dict[str, Any]:
    """Runs one mechanism beside independent noise, in this process."""
    import tensorflow as tf

    from tf_dpadaptive import noise
    from tf_dpadaptive.noise.keys import SecretKeys

    warnings.simplefilter("ignore")
    named = {x: getattr(noise, x) for x in noise.__all__}
    mechanism = eval(name, {"__builtins__": {}}, named)
    baseline = peak()
    keys = SecretKeys(seed=0)
    streams = {"mechanism": mechanism.stream(keys, SHAPES, num_steps=NUM_STEPS)}
    alone = tf.function(streams["mechanism"].next, autograph=False)
    for step in range(3):
        alone(tf.constant(step, tf.int64))
    memory = peak()
    streams["independent"] = noise.Independent().stream(keys, SHAPES)
    slots = [
        [tf.Variable(tf.zeros(s), trainable=False) for s in SHAPES]
        for _ in range(3)
    ]

    def draw(step: tf.Tensor, which: str) -> Any:
        return streams[which].next(step)

    def adam(step: tf.Tensor, which: str) -> Any:
        gradients = streams[which].next(step)
        for g, m, v, x in zip(gradients, *slots, strict=True):
            m.assign_add(0.1 * (g - m))
            v.assign_add(0.001 * (g * g - v))
            x.assign_sub(0.001 * m / (tf.sqrt(v) + 1e-8))

    times: dict[str, list[float]] = {}
    first = 3
    for function in (draw, adam):
        for which in streams:
            compiled = tf.function(
                lambda t, f=function, w=which: f(t, w), autograph=False
            )
            compiled(tf.constant(first, tf.int64))
            streams[which].compiled = compiled
        for t in range(first + 1, first + 1 + steps):
            step = tf.constant(t, tf.int64)
            for which, stream in streams.items():
                began = time.perf_counter()
                stream.compiled(step)
                spent = 1e3 * (time.perf_counter() - began)
                times.setdefault(f"{function.__name__}/{which}", []).append(
                    spent
                )
        first += steps + 1
    medians = {key: statistics.median(value) for key, value in times.items()}
    least = {key: min(value) for key, value in times.items()}
    means = {key: statistics.fmean(value) for key, value in times.items()}
    buffers = sum(4 * int(tf.size(b)) for b in streams["mechanism"].buffers)
    return {
        "mechanism": name,
        "steps": steps,
        "least_ms": round(least["draw/mechanism"], 1),
        "median_ms": round(medians["draw/mechanism"], 1),
        "mean_ms": round(means["draw/mechanism"], 1),
        "largest_ms": round(max(times["draw/mechanism"]), 1),
        "independent_median_ms": round(medians["draw/independent"], 1),
        "ratio_of_least": round(
            least["draw/mechanism"] / least["draw/independent"], 2
        ),
        "ratio": round(
            medians["draw/mechanism"] / medians["draw/independent"], 2
        ),
        "ratio_of_means": round(
            means["draw/mechanism"] / means["draw/independent"], 2
        ),
        "ratio_with_adam": round(
            medians["adam/mechanism"] / medians["adam/independent"], 2
        ),
        "buffers_mb": round(buffers / 1e6, 1),
        "process_peak_mb": round(memory / 1e6),
        "over_tensorflow_mb": round((memory - baseline) / 1e6),
    }


def main() -> None:
    """Measures every mechanism and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--out", default=None)
    parser.add_argument("--one", default=None, help="used by itself")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.steps)))
        return
    results: list[dict[str, Any]] = []
    for name in arguments.mechanisms:
        child = subprocess.run(
            [
                sys.executable,
                __file__,
                f"--one={name}",
                f"--steps={arguments.steps}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            text=True,
        )
        results.append(json.loads(child.stdout.splitlines()[-1]))
        print(json.dumps(results[-1]), file=sys.stderr)
    report = {
        "parameters": sum(_size(shape) for shape in SHAPES),
        "num_steps": NUM_STEPS,
        "machine": f"{platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "results": results,
    }
    text = json.dumps(report, indent=2)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text + "\n")
    else:
        print(text)


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


if __name__ == "__main__":
    main()
