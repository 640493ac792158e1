"""What is installed, what an import costs, and what CI refuses to skip."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tf_dpadaptive.version import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tf_dpadaptive"
PYTHONS = ("3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def listed(parser: configparser.ConfigParser, section: str, key: str):
    lines = parser[section][key].splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def python(source: str) -> str:
    """Output of a fresh interpreter, whose warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pins(version: str) -> dict[str, str]:
    """The pinned version of each distribution, for one Python."""
    found = {}
    for line in (
        (ROOT / f"constraints/py{version}.txt").read_text().splitlines()
    ):
        if line and not line.lstrip().startswith("#"):
            name, pinned = line.split("==")
            found[canonicalize_name(name)] = pinned
    return found


class ImportTest:
    def test_loads_nothing_but_keras_and_the_package(self):
        # Keras itself imports parts of scikit-learn and SciPy where they are.
        roots = python(
            "import sys, keras\n"
            "before = set(sys.modules)\n"
            "import tf_dpadaptive\n"
            "new = {n.split('.')[0] for n in set(sys.modules) - before}\n"
            "print(*(new - sys.stdlib_module_names))\n"
        )
        assert set(roots.split()) <= {"tf_dpadaptive", "keras", "tensorflow"}

    def test_defines_no_flags(self):
        defined = python(
            "import tf_dpadaptive\n"
            "from absl import flags\n"
            "modules = flags.FLAGS.flags_by_module_dict()\n"
            "print(*(m for m in modules if 'dpadaptive' in m))\n"
        )
        assert not defined.split()


class MetadataTest:
    def test_packages_are_those_of_the_tree(self, setup_cfg):
        folders = {p.parent for p in PACKAGE.rglob("*.py")}
        tree = {".".join(f.relative_to(ROOT).parts) for f in folders}
        packages = listed(setup_cfg, "options", "packages")
        assert set(packages) == tree | {"tf_dpadaptive.configs"}

    def test_each_command_runs_a_binary(self, setup_cfg):
        for line in listed(
            setup_cfg, "options.entry_points", "console_scripts"
        ):
            _, module, function = re.split(r"\s*=\s*|:", line)
            file = ROOT / (module.replace(".", "/") + ".py")
            names = {
                node.name
                for node in ast.parse(file.read_text()).body
                if isinstance(node, ast.FunctionDef)
            }
            assert function in names, line

    @pytest.mark.parametrize("version", PYTHONS)
    def test_constraints_pin_what_is_required(self, setup_cfg, version):
        pinned = pins(version)
        lines = listed(setup_cfg, "options", "install_requires")
        lines += listed(setup_cfg, "options.extras_require", "dev")
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker and not marker.evaluate({"python_version": version}):
                assert canonicalize_name(requirement.name) not in pinned
                continue
            pin = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), requirement

    def test_tf_privacy_is_pinned_for_3_11_alone(self):
        assert pins("3.11")["tensorflow-privacy"] == "0.9.0"
        assert pins("3.11")["dp-accounting"] == "0.4.3"
        for version in ("3.12", "3.13"):
            assert "tensorflow-privacy" not in pins(version)
            assert pins(version)["dp-accounting"].startswith("0.6.")

    @pytest.mark.slow
    def test_wheel_holds_package_and_configs_and_no_more(self, tmp_path):
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("tf_dpadaptive", "configs"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        for name in ("setup.cfg", "pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, tmp_path)
        built = subprocess.run(
            [
                sys.executable,
                "-c",
                "from setuptools import build_meta as b; b.build_wheel('.')",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert built.returncode == 0, built.stderr
        (wheel,) = tmp_path.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            metadata = archive.read(
                next(n for n in names if n.endswith("/METADATA"))
            ).decode()
        for config in (ROOT / "configs").glob("*.py"):
            assert f"tf_dpadaptive/configs/{config.name}" in names
        for module in PACKAGE.rglob("*.py"):
            assert module.relative_to(ROOT).as_posix() in names
        top = {name.split("/")[0] for name in names}
        version = __version__
        assert top == {
            "tf_dpadaptive",
            f"tf_dpadaptive-{version}.dist-info",
        }
        assert f"Version: {version}\n" in metadata
        assert "Requires-Python: >=3.11\n" in metadata


class SharedDataTest:
    """conftest.py: a test that needs data may be skipped, but not in CI."""

    def outcome(self, folder: Path, body: str, **environment: str) -> str:
        shutil.copy(ROOT / "conftest.py", folder)
        (folder / "some_test.py").write_text(body)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("CI", "TF_DPADAPTIVE_DATA")
            and not name.startswith("PYTEST_")
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "some_test.py"],
            cwd=folder,
            env=kept | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.splitlines()[-1].split(" in ")[0]

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "clone").mkdir()
        return tmp_path / "clone"

    @pytest.fixture
    def data(self, tmp_path: Path) -> str:
        (tmp_path / "data").mkdir()
        return str(tmp_path / "data")

    USES = "def test_a(shared_data):\n    assert shared_data.is_dir()\n"
    SKIPS = (
        "import pytest\n"
        "def test_a(shared_data):\n    pytest.skip('no folder of mine')\n"
    )

    def test_runs_with_the_folder_that_the_environment_names(
        self, folder: Path, data: str
    ):
        assert "1 passed" in self.outcome(
            folder, self.USES, TF_DPADAPTIVE_DATA=data
        )

    def test_runs_with_the_folder_beside_the_clone(self, folder: Path):
        (folder.parent / "shared" / "data").mkdir(parents=True)
        assert "1 passed" in self.outcome(folder, self.USES)

    def test_is_skipped_where_there_is_no_data(self, folder: Path):
        assert "1 skipped" in self.outcome(folder, self.USES, CI="true")

    def test_fails_when_the_named_folder_is_missing(self, folder: Path):
        outcome = self.outcome(folder, self.USES, TF_DPADAPTIVE_DATA="/no/data")
        assert "1 error" in outcome

    def test_a_skip_beside_the_data_fails_in_ci_alone(
        self, folder: Path, data: str
    ):
        given = {"TF_DPADAPTIVE_DATA": data}
        assert "1 skipped" in self.outcome(folder, self.SKIPS, **given)
        assert "1 failed" in self.outcome(
            folder, self.SKIPS, CI="true", **given
        )
