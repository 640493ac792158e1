"""The data sets of the experiments, by their names.

scikit-learn and TensorFlow Datasets are imported when a task needs them.
"""

import hashlib
import pathlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import logging

from tf_dpadaptive.data.task import DataUnavailableError, Task

# What a result may call the data. A folder with another name goes by it.
_SOURCES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar10_jpeg": "CIFAR-10 re-encoded as JPEG (lossy)",
}


def load(config: Any) -> Task:
    """Loads the data that a config's `data` section names.

    Args:
        config: Has `name`: "text" (see `text.load`), "digits" (scikit-learn's,
            bundled), or the name of a TFDS data set with the features `image`
            and `label`, which may be one that TFDS does not know, prepared in
            a folder. `dir`: the TFDS data_dir; None means TFDS' own.
            `num_train`, `num_test`: how many examples to keep; None keeps all.
            `num_public`: how many of the training examples are declared
            public and taken out; None: 0.

    Returns:
        The task.

    Raises:
        DataUnavailableError: If the data are not there and can't be had. The
            text lists the ways to get them.
    """
    if config.name == "digits":
        task = _digits()
    elif config.name == "text":
        from tf_dpadaptive.data import text

        task = text.load(config)
    else:
        task = _tfds(config.name, config.dir)
    task = task.head(config.num_train, config.num_test)
    return task.with_public(config.num_public)


def _digits() -> Task:
    from sklearn import datasets

    digits = datasets.load_digits()
    images = digits.images.astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    # Sorted by a hash: the file's own order is 0123456789 0123456789 ..., and
    # a library's shuffle may change with its version.
    order = sorted(
        range(len(images)),
        key=lambda i: hashlib.sha256(f"digits {i}".encode()).digest(),
    )
    train, test = np.split(np.array(order), [len(order) * 4 // 5])
    return Task(
        source="scikit-learn's digits (8x8), split 80/20 by a fixed hash",
        x_train=images[train],
        y_train=labels[train],
        x_test=images[test],
        y_test=labels[test],
        num_classes=10,
        max_value=16.0,
    )


def _tfds(name: str, directory: str | None) -> Task:
    builder = _prepared_builder(name, directory)
    features = builder.info.features
    if not {"image", "label"} <= set(features or ()):
        raise ValueError(
            f"`data.name` must be a data set with the features `image` and "
            f"`label`. Received: data.name={name!r}, which has "
            f"{sorted(features or ())}."
        )
    source, decoders = _SOURCES.get(name, f"TFDS data set {name!r}"), None
    if features["image"].encoding_format == "jpeg":
        source += ", decoded with the accurate DCT"
        decoders = {"image": _accurate_jpeg()}
    arrays = {}
    for split in ("train", "test"):
        batches = builder.as_dataset(
            split=split, batch_size=1000, decoders=decoders
        ).as_numpy_iterator()
        parts = [(part["image"], part["label"]) for part in batches]
        for key, column in zip("xy", zip(*parts, strict=True), strict=True):
            arrays[f"{key}_{split}"] = np.concatenate(column)
    return Task(
        source=source,
        num_classes=features["label"].num_classes,
        max_value=255.0,
        files=_sha256(pathlib.Path(builder.data_dir)),
        **arrays,
    )


def _prepared_builder(name: str, directory: str | None) -> Any:
    try:
        import tensorflow_datasets as tfds

        # Its bars would write over the progress bar of the training.
        tfds.disable_progress_bar()
        builder = tfds.builder(name, data_dir=directory)
        if not builder.is_prepared():
            logging.warning(
                "%s is not prepared in %s: TensorFlow Datasets will download "
                "it there now.",
                name,
                builder.data_dir,
            )
            _check_hosts(builder.url_infos)
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(
                    try_download_gcs=False
                )
            )
    except Exception as error:
        # TFDS raises whatever its downloader, its checksums, the disk or an
        # import raises; the way out is the same for all of them.
        raise DataUnavailableError(_advice(name, directory, error)) from None
    return builder


def _check_hosts(urls: Iterable[str]) -> None:
    """Fails at once where TFDS would retry for minutes: without a network."""
    if urllib.request.getproxies():
        return  # Names are the proxy's to resolve.
    for host in {urllib.parse.urlsplit(url).hostname for url in urls}:
        socket.getaddrinfo(host, 443)


def _advice(name: str, directory: str | None, error: Exception) -> str:
    cause = str(error).strip().split("\n")[0]
    return f"""\
The data set {name!r} could not be had from data.dir={directory!r}.
Cause: {type(error).__name__}: {cause}
Ways to get it:
  1. It is already prepared by TensorFlow Datasets somewhere: name the folder \
that holds {name}/<version>/dataset_info.json with --config.data.dir=FOLDER \
(FOLDER is the one above {name}/).
  2. A machine with a network: run the same command there, or
     python -c "import tensorflow_datasets as tfds; \
tfds.builder('{name}', data_dir='FOLDER').download_and_prepare()"
     (needs `pip install tensorflow-datasets importlib_resources`), copy \
FOLDER here and use 1.
  3. Arrays of your own: tf_dpadaptive.experiments.runner.run(config, \
workdir, task=tf_dpadaptive.data.tasks.Task(...)).
  4. No data at all: python -m tf_dpadaptive.binaries.quickstart trains on \
the digits that come with scikit-learn."""


def _accurate_jpeg() -> Any:
    """TensorFlow's default decoder is a fast one: 1 of 255 off on average."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def decode(image: Any, feature: Any) -> Any:
        channels = feature.shape[-1]
        return tf.ensure_shape(
            tf.io.decode_jpeg(image, channels, dct_method="INTEGER_ACCURATE"),
            feature.shape,
        )

    decoder: Any = tfds.decode.make_decoder(output_dtype=tf.uint8)
    return decoder(decode)()


def _sha256(directory: pathlib.Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
