"""RMSE of each mechanism beside the published numbers, and optimisation times.

    python benchmarks/noise_table.py --out noise_table.json

RMSE = √mean(e_t): the noise in the prefix sums, of σ = 1 and one participation
of sensitivity 1. Each strategy is optimised afresh, in a cache folder of its
own; the time is that of its coefficients and their errors in this process,
whose processor time stands beside it since the machine may be shared.
"""

import argparse
import importlib
import json
import math
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = (64, 256, 2000)
MECHANISMS = (
    "Independent()",
    "TreeAggregation(honaker=False)",
    "TreeAggregation()",
    "BandedInverse(2)",
    "BandedInverse(4)",
    "BandedMF(16)",
    "BandedMF(16, toeplitz=False)",
    "BandedMF(64)",
    "BandedMF(128)",
    "SquareRoot()",
    "BLT(2)",
    "BLT(3)",
    "BLT(4)",
    "DenseMF()",
)

#: √meanloss at sensitivity 1: of closed forms, and of published optima.
PUBLISHED = {
    ("TreeAggregation(honaker=False)", 64): 4.594494,
    ("TreeAggregation()", 64): 3.652307,
    ("BandedMF(16)", 64): 2.329086,
    ("BandedMF(128)", 2000): 4.242317,
    ("DenseMF()", 64): 2.099856,
    ("DenseMF()", 256): 2.524414,
    **{("Independent()", n): math.sqrt((n + 1) / 2) for n in STEPS},
}


def measure(name: str, steps: int) -> dict[str, Any]:
    """Optimises one mechanism and computes its RMSE."""
    import numpy as np

    from tf_dpadaptive.experiments import mechanisms

    mechanism = mechanisms.from_text(name)
    wall, cpu = time.perf_counter(), time.process_time()
    errors = mechanism.prefix_errors_squared(steps)
    return {
        "mechanism": name,
        "steps": steps,
        "rmse": round(math.sqrt(float(np.mean(errors))), 6),
        "largest": round(math.sqrt(float(np.max(errors))), 6),
        "published": PUBLISHED.get((name, steps)),
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - cpu, 2),
    }


def main() -> None:
    """Prints a table, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--steps", nargs="*", type=int, default=list(STEPS))
    parser.add_argument("--out", default=None)
    arguments = parser.parse_args()

    from tf_dpadaptive.noise import strategies_cache

    for module in ("linalg", "optimize", "signal"):
        importlib.import_module(f"scipy.{module}")  # no measurement pays for it
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ[strategies_cache.VARIABLE] = folder
        for steps in arguments.steps:
            for name in arguments.mechanisms:
                try:
                    row = measure(name, steps)
                except ValueError as error:
                    print(f"n={steps:5d} {name:32s} {error}")
                    continue
                results.append(row)
                published = row["published"]
                print(
                    f"n={steps:5d} {name:32s} RMSE {row['rmse']:10.6f}  "
                    + (f"({published:.6f})" if published else " " * 10)
                    + f"  {row['seconds']:7.2f} s"
                )
                sys.stdout.flush()
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
