"""The direction of flow and the habits that no linter knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "tf_dpadaptive"
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))

# Each layer may import itself and those before it; what is not listed (the
# package's own leaves, such as _validate.py) may be imported by all.
LAYERS = (
    {"clipping", "noise"},
    {"plan", "accounting", "data"},
    {"optimizers"},
    {"training"},
    {"experiments"},
    {"binaries"},
)
HEAVY = {
    "dp_accounting",
    "keras_hub",
    "matplotlib",
    "scipy",
    "sklearn",
    "tensorflow_datasets",
    "tensorflow_privacy",
}
BRIDGE = "noise/tf_privacy.py"
LONGEST_MODULE = 350
LONGEST_BINARY = 25


def relative(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


def layer(part: str) -> int | None:
    for level, parts in enumerate(LAYERS):
        if part in parts:
            return level
    return None


def parse(source: str, path: str = PACKAGE) -> ast.Module:
    return ast.parse(source, filename=path)


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: all but function bodies."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from at_import(node)


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """Full names of the imported modules, and of what comes from them."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def against_the_flow(part: str, tree: ast.Module) -> list[str]:
    """Imports, lazy ones too, of a later layer than that of `part`."""
    here = layer(part)
    found = []
    for name in imported(ast.walk(tree)):
        root, *rest = name.split(".")
        if root != PACKAGE or not rest or here is None:
            continue
        there = layer(rest[0])
        if there is not None and there > here:
            found.append(name)
    return found


def imported_roots(nodes: Iterator[ast.AST]) -> set[str]:
    return {name.split(".")[0] for name in imported(nodes)}


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions of the module and methods of its public classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            members = node.body
        else:
            members = [node]
        for member in members:
            if isinstance(
                member, ast.FunctionDef
            ) and not member.name.startswith("_"):
                yield member


def unannotated(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    missing = [
        a.arg
        for a in every
        if a.annotation is None and a.arg not in ("self", "cls")
    ]
    return missing + ([] if function.returns else ["return"])


def weak_generators(tree: ast.Module) -> list[int]:
    """Lines with `tf.random.stateless_*` that leave the algorithm to chance.

    The default one drops the upper half of a 64-bit seed under XLA.
    """
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ".stateless_" in ast.unparse(node.func)
        and not any(
            word.arg == "alg" and ast.unparse(word.value) == "'philox'"
            for word in node.keywords
        )
    ]


def unseeded(tree: ast.Module) -> list[int]:
    """Lines with `default_rng()`: numbers from nowhere."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and not node.args
        and not node.keywords
        and ast.unparse(node.func).endswith("default_rng")
    ]


@pytest.fixture(params=MODULES, ids=relative)
def module(request: pytest.FixtureRequest) -> Path:
    return request.param


class ModuleTest:
    def test_imports_go_one_way(self, module: Path):
        part = relative(module).split("/")[0].removesuffix(".py")
        assert not against_the_flow(part, parse(module.read_text()))

    def test_nothing_heavy_is_imported_with_the_module(self, module: Path):
        tree = parse(module.read_text())
        assert not imported_roots(at_import(tree)) & HEAVY

    def test_tf_privacy_is_imported_by_the_bridge_alone(self, module: Path):
        if relative(module) != BRIDGE:
            tree = parse(module.read_text())
            assert "tensorflow_privacy" not in imported_roots(ast.walk(tree))

    def test_is_short_enough_to_hold_one_idea(self, module: Path):
        binary = module.parent.name == "binaries"
        longest = LONGEST_BINARY if binary else LONGEST_MODULE
        assert len(module.read_text().splitlines()) <= longest

    def test_does_not_print(self, module: Path):
        calls = [
            node.lineno
            for node in ast.walk(parse(module.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not calls

    def test_public_functions_are_annotated_and_documented(self, module: Path):
        for function in public_functions(parse(module.read_text())):
            where = f"{function.name}, line {function.lineno}"
            assert not unannotated(function), where
            decorators = {
                ast.unparse(d).split(".")[-1] for d in function.decorator_list
            }
            inherited = decorators & {"override", "setter"}
            assert inherited or ast.get_docstring(function), where

    def test_stateless_generators_name_philox(self, module: Path):
        assert not weak_generators(parse(module.read_text()))

    def test_random_generators_are_seeded(self, module: Path):
        # Sampling from the operating system is data/sampling's own business.
        if "sampling" not in module.name:
            assert not unseeded(parse(module.read_text()))


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")))
def test_tests_are_seeded(path: Path):
    assert not unseeded(parse(path.read_text()))


class RulesTest:
    """Each rule above finds what it is meant to find."""

    @pytest.mark.parametrize(
        ("part", "source", "caught"),
        [
            ("noise", "import tf_dpadaptive.plan", True),
            ("noise", "from tf_dpadaptive import plan", True),
            ("plan", "from tf_dpadaptive.noise import keys", False),
            ("plan", "def f():\n from tf_dpadaptive.training import x", True),
            ("optimizers", "from tf_dpadaptive.plan import X", False),
            ("training", "import tf_dpadaptive.experiments.runner", True),
            ("clipping", "from tf_dpadaptive import _validate", False),
        ],
    )
    def test_direction(self, part: str, source: str, caught: bool):
        assert bool(against_the_flow(part, parse(source))) is caught

    @pytest.mark.parametrize(
        ("source", "caught"),
        [
            ("import scipy.special", True),
            ("class A:\n  from sklearn import datasets", True),
            ("try:\n  import keras_hub\nexcept ImportError:\n  pass", True),
            ("def f():\n  import scipy.special", False),
            ("import keras", False),
        ],
    )
    def test_heavy(self, source: str, caught: bool):
        found = imported_roots(at_import(parse(source))) & HEAVY
        assert bool(found) is caught

    def test_annotations(self):
        tree = parse("def f(a, *, b: int, **c) -> int: ...")
        assert unannotated(next(public_functions(tree))) == ["a", "c"]

    @pytest.mark.parametrize(
        ("arguments", "caught"),
        [
            ("s, 1", True),
            ("s, 1, alg='auto_select'", True),
            ("s, 1, alg='philox'", False),
        ],
    )
    def test_philox(self, arguments: str, caught: bool):
        source = f"tf.random.stateless_uniform({arguments})"
        assert bool(weak_generators(parse(source))) is caught

    def test_seeds(self):
        source = "np.random.default_rng()\nnp.random.default_rng(3)"
        assert unseeded(parse(source)) == [1]
