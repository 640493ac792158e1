"""Trains private masked language models: BERT on text of your own.

    python -m tf_dpadaptive.binaries.train_bert --config.data.path=FILE \
        --config.data.vocabulary=FILE --workdir=DIR

More in configs/bert_tiny.py.
"""

from tf_dpadaptive.experiments import cli


def run() -> None:
    """Runs the binary."""
    cli.train("bert_tiny")


if __name__ == "__main__":
    run()
