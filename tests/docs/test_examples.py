"""Every program and notebook in examples/ runs as it stands there, and learns."""

import json
import re
from pathlib import Path

import pytest

from tests.programs import run_python, with_path

EXAMPLES = Path(__file__).parents[2] / "examples"
# take more than 10 s; .ci/run runs own_cnn with the wheel
SLOW = {"mnist_convnet", "own_cnn", "fine_tuning", "gradient_tape", "mirrored", "plan_train_compare", "reversible"}
SLOW |= {"language_model", "load_run", "mlp", "transformer", "two_losses", "unet", "vgg16"}
COMMANDS = {"own_transformer", "serving", "table_of_numbers"}  # take arguments: run by tests of their own
WITH_RUNS = {"fine_tuning", "load_run", "plan_train_compare"}  # write into runs/
WRITTEN = {"unet": {"masks.png"}, "language_model": {"runs", "manual", "beginnings.txt"}}
WRITTEN |= {name: {"runs"} for name in WITH_RUNS}
LINES = {"unet": 200}
ACCURACY = re.compile(r"(?:val_accuracy:|val accuracy|digit_accuracy:|test accuracy:|mean IoU:) (\d\.\d+)")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(file, id=file.stem, marks=pytest.mark.slow if file.stem in SLOW else ())
        for file in sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")])
        if file.stem not in COMMANDS
    ],
)
def test_example_learns(program, tmp_path):
    if program.suffix == ".py":
        assert len(program.read_text().splitlines()) < LINES.get(program.stem, 60)
        command = [program]
    else:
        command = ["-c", code_of(program)]
    done = run_python(*command, cwd=tmp_path, env=with_path(MPLBACKEND="Agg"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "UserWarning" not in done.stderr, "an example shows nothing that we advise against"
    assert float(ACCURACY.findall(done.stdout)[-1]) > 0.6
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN.get(program.stem, set())


def code_of(notebook):
    """The code cells one after the other, as Jupyter runs them; there are no magic commands in them."""
    cells = json.loads(notebook.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_opens(notebook):
    """It has the form of nbformat 4.5, without answers, and each of its code cells is whole."""
    content = json.loads(notebook.read_text())
    assert content.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        is_code = cell["cell_type"] == "code"
        of_code = {"execution_count", "outputs"} if is_code else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | of_code
        assert re.fullmatch("[A-Za-z0-9_-]{1,64}", cell["id"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if is_code:
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
            compile("".join(cell["source"]), notebook.name, "exec")
        else:
            assert cell["cell_type"] == "markdown"


def test_the_named_ones_are_there():
    assert {file.stem for file in EXAMPLES.iterdir()} >= SLOW | WITH_RUNS | COMMANDS
