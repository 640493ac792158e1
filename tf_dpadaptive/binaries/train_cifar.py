"""Trains private models of CIFAR-10 and CIFAR-100.

    python -m tf_dpadaptive.binaries.train_cifar --workdir=DIR

More in configs/cifar.py.
"""

from tf_dpadaptive.experiments import cli


def run() -> None:
    """Runs the binary."""
    cli.train("cifar")


if __name__ == "__main__":
    run()
