"""Accuracy on scikit-learn's digits with each noise at the same ε.

    python benchmarks/digits_noise.py --out digits_noise.json

Logistic regression by DP-SGD with a constant rate on one shuffled order that is
kept in every pass: nothing is amplified, and only the noise differs. For each
mechanism the learning rate is chosen from one grid by the mean accuracy over
`--choosing` seeds; then other seeds give mean and standard deviation. The
choice looks at the test set, for all mechanisms alike: digits are public, and
the numbers are for comparison only.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MECHANISMS = (
    "Independent()",
    "TreeAggregation()",
    "BandedInverse(2, epochs=epochs)",
    "BLT(3, epochs=epochs)",
    "BandedMF(steps_per_epoch)",
)
RATES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)


def data() -> Any:
    """Digits as 1,437 training and 360 test examples in [0, 1]."""
    import numpy as np
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x / 16).astype("float32")[order], y[order]
    return x[360:], y[360:], x[:360], y[:360]


def accuracy(plan: Any, rate: float, seed: int, digits: Any) -> float:
    """Trains once; returns the share of the test set that is right."""
    import keras

    import tf_dpadaptive as dpa

    x, y, x_test, y_test = digits
    keras.utils.set_random_seed(seed)
    model = dpa.privatize(
        keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    )
    model.compile(
        dpa.optimizers.DPSGD(rate, 1.0, plan),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    steps = plan.num_steps
    model.fit(plan.batches(x, y, steps=steps), epochs=1, verbose=0)
    assert model.epsilon() == plan.epsilon()
    found = model.evaluate(
        x_test, y_test, batch_size=360, verbose=0, return_dict=True
    )
    return float(found["accuracy"])


def main() -> None:
    """Prints a line a mechanism, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--rates", nargs="*", type=float, default=list(RATES))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--choosing", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", default=None)
    arguments = parser.parse_args()

    import keras
    import numpy as np

    import tf_dpadaptive as dpa
    from tf_dpadaptive.experiments import mechanisms

    digits = data()
    results: list[dict[str, Any]] = []
    for text in arguments.mechanisms:
        began = time.perf_counter()
        names = {
            "epochs": arguments.epochs,
            "steps_per_epoch": -(-len(digits[0]) // arguments.batch),
        }
        plan = dpa.PrivacyPlan.calibrate(
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            num_examples=len(digits[0]),
            expected_batch_size=arguments.batch,
            epochs=arguments.epochs,
            sampling="shuffled",
            noise=mechanisms.from_text(text, names),
        )
        by_rate: dict[float, float] = {}
        for rate in arguments.rates:
            by_rate[rate] = float(
                np.mean(
                    [
                        accuracy(plan, rate, 100 + seed, digits)
                        for seed in range(arguments.choosing)
                    ]
                )
            )
            keras.backend.clear_session()
        best = max(by_rate, key=lambda rate: by_rate[rate])
        found = [
            accuracy(plan, best, seed, digits)
            for seed in range(arguments.seeds)
        ]
        keras.backend.clear_session()
        errors = plan.noise.prefix_errors_squared(plan.num_steps or 1)
        row: dict[str, Any] = {
            "mechanism": mechanisms.to_text(plan.noise),
            "epsilon": plan.epsilon(),
            "noise_multiplier": plan.noise_multiplier,
            "error_of_sums": plan.noise_multiplier
            * float(np.sqrt(np.mean(errors))),
            "rate": best,
            "by_rate": by_rate,
            "mean": float(np.mean(found)),
            "std": float(np.std(found, ddof=1)),
            "accuracies": found,
            "seconds": time.perf_counter() - began,
        }
        results.append(row)
        print(
            f"{row['mechanism']:32s} ε={row['epsilon']:.3f} "
            f"σ={row['noise_multiplier']:7.3f} "
            f"sums ±{row['error_of_sums']:7.2f} clip norms  rate {best:6g}  "
            f"accuracy {100 * row['mean']:.2f} ± {100 * row['std']:.2f} %"
        )
        sys.stdout.flush()
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(vars(arguments) | {"results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
