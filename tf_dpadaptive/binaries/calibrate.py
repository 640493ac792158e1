"""Says what a plan guarantees and what each noise costs at the same ε.

    python -m tf_dpadaptive.binaries.calibrate --config.privacy.epsilon=3

More in configs/calibrate.py.
"""

from tf_dpadaptive.experiments import cli


def run() -> None:
    """Runs the binary."""
    cli.calibrate("calibrate")


if __name__ == "__main__":
    run()
