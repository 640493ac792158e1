"""What every test shares: the environment, the seed, the data beside us."""

import os
import sys
from collections.abc import Generator
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import pytest

pytest.register_assert_rewrite("tests")

hypothesis.settings.register_profile(
    "tf_dpadaptive", deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("tf_dpadaptive")

# Each binary defines the flags of its own process: no doctests from there.
collect_ignore_glob = ["tf_dpadaptive/binaries/*.py"]

_ROOT = Path(__file__).parent
_VARIABLE = "TF_DPADAPTIVE_DATA"


def _shared_data() -> Path:
    """The folder of real data: $TF_DPADAPTIVE_DATA, or the one beside us."""
    default = _ROOT.parent / "shared" / "data"
    return Path(os.environ.get(_VARIABLE) or default).resolve()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets (TFDS' MNIST, ...); the test is skipped without them.

    With CI=true a test that asks for this folder must run where it exists.
    """
    folder = _shared_data()
    if not folder.is_dir():
        if os.environ.get(_VARIABLE):
            pytest.fail(f"{_VARIABLE}={folder} is not a folder.")
        pytest.skip(f"needs data: set {_VARIABLE} or provide {folder}")
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Initial weights and data orders that do not change between runs."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(20)


def pytest_report_header() -> str:
    """Says whether tests on real data can run."""
    folder = _shared_data()
    return f"shared data: {folder if folder.is_dir() else 'none'}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked `gpu` where there is no GPU."""
    if item.get_closest_marker("gpu"):
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            pytest.skip("needs a GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turns "skipped although the data is there" into a failure."""
    report = yield
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and os.environ.get("CI") == "true"
        and "shared_data" in getattr(item, "fixturenames", ())
        and not item.get_closest_marker("gpu")
        and _shared_data().is_dir()
    ):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped, but the data it needs is in "
            f"{_shared_data()}: {report.longrepr}"
        )
    return report
