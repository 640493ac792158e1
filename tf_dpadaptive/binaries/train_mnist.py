"""Trains private models of MNIST.

    python -m tf_dpadaptive.binaries.train_mnist --workdir=DIR

More in configs/mnist.py.
"""

from tf_dpadaptive.experiments import cli


def run() -> None:
    """Runs the binary."""
    cli.train("mnist")


if __name__ == "__main__":
    run()
