"""A first private model: scikit-learn's digits, in a minute, without flags.

    python -m tf_dpadaptive.binaries.quickstart --workdir=DIR

More in configs/quickstart.py.
"""

from tf_dpadaptive.experiments import cli


def run() -> None:
    """Runs the binary."""
    cli.train("quickstart")


if __name__ == "__main__":
    run()
