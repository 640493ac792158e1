"""What the documents show runs, and what they name exists."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import tf_dpadaptive as dpa
from tf_dpadaptive import _validate
from tf_dpadaptive.optimizers.base import DPOptimizer

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/pitfalls.md"]


def blocks(document: str) -> list[str]:
    """Python blocks of a document, without their indentation."""
    found = re.findall(
        r"^( *)```python\n(.*?)^ *```$",
        (ROOT / document).read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    return [re.sub(rf"^{indent}", "", b, flags=re.M) for indent, b in found]


def named_files(document: str) -> set[str]:
    """Paths in `code` and in links that look like files of this project."""
    text = (ROOT / document).read_text()
    quoted = re.findall(r"`([\w./]+/[\w.]+\.(?:py|md|txt|cfg|toml))`", text)
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    return {*quoted, *linked}


def test_readme_example_runs_and_keeps_its_promise(capsys):
    (block,) = blocks("README.md")
    names: dict[str, Any] = {}
    exec(block, names)
    model, plan = names["model"], names["plan"]
    assert model.epsilon() == pytest.approx(plan.epsilon())
    assert model.epsilon() <= 3.0
    _, accuracy = model.evaluate(names["x"], names["y"], verbose=0)
    assert accuracy > 0.5  # ten classes; the noise leaves some of the signal
    assert capsys.readouterr().out.rstrip().endswith(model.privacy_statement())


def test_contributing_example_is_an_optimizer():
    (block,) = blocks("CONTRIBUTING.md")
    names: dict[str, Any] = {
        "DPOptimizer": DPOptimizer,
        "_validate": _validate,
        "keras": keras,
        "ops": ops,
    }
    exec(block, names)
    plan = dpa.PrivacyPlan(noise_multiplier=1.0, expected_batch_size=4)
    optimizer = names["DPSignSGD"](0.1, l2_norm_clip=1.0, plan=plan)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.beta_1 == optimizer.beta_1
    step, (m,) = optimizer.rule(0.1, 1.0, np.array([2.0, -3.0]), np.zeros(2))
    np.testing.assert_allclose(step, [0.1, -0.1])
    np.testing.assert_allclose(m, [0.2, -0.3])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str):
    places = [ROOT, ROOT / "tf_dpadaptive", (ROOT / document).parent]
    missing = [
        name
        for name in named_files(document)
        if not any((place / name).exists() for place in places)
    ]
    assert not missing


def test_readme_lists_every_method():
    readme = (ROOT / "README.md").read_text()
    table = readme.split("## Methods")[1].split("\n## ")[0]
    first = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(first)))
    assert listed == set(dpa.optimizers.__all__) - {"DPOptimizer", "recommend"}
