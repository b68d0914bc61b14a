"""The commands of docs/models.md about trained weights and rates, one after the other as they stand there."""

import json
import re
import shlex
from inspect import getmodule
from pathlib import Path

import keras
import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = "".join(text for language, text in BLOCKS if not language).splitlines()
ROWS = re.findall(r"^\| `(.*)` \| `\[(.*)\]` \| `\[(.*)\]` \| (.*)\|$", PAGE, re.MULTILINE)
PUBLISHED = [(name, *rest) for names, *rest in ROWS for name in names.split()]


@pytest.mark.slow
def test_the_commands(command, tmp_path):
    screens = {}
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        assert program == "accumtrain"
        answer = command(*arguments, "eval.every=1000")
        assert answer.code == 0, answer.err
        (name,) = [each.partition("=")[2] for each in arguments if each.startswith("run.name=")]
        screens[name] = answer.out
    for name in ("tuned", "head", "slow"):
        assert json.loads((tmp_path / "runs" / name / "weights.json").read_text())["left"] == {}
    assert "778 parameters" in screens["head"], "only the classifier is trained"


@pytest.mark.slow
def test_a_file_of_keras_is_tuned(command, tmp_path):
    """With a file of initial weights in the place of those that Keras would download, and the pixels of its row."""
    (save, turn) = (text for language, text in BLOCKS if language == "python")
    line = next(text for language, text in BLOCKS if language == "bash")
    mean, std = next((mean, std) for name, mean, std, _ in PUBLISHED if name == "MobileNetV2")
    line = line.replace("=imagenet", f"=mobilenetv2.keras data.mean=[{mean}] data.std=[{std}]")
    scope = {}
    exec(save.replace('weights="imagenet"', "weights=None"), scope)
    before = np.array(scope["model"].get_layer("Conv1").kernel)
    exec(turn, scope)
    np.testing.assert_array_equal(scope["model"].get_layer("Conv1").kernel, before[:, :, [2, 1, 0]])
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3))
            keras.utils.save_img(tmp_path / "photos" / name / f"{number}.png", pixels, scale=False)
    answer = command(*shlex.split(line.replace("\\\n", " "))[1:], "batch_size=8", "accum.steps=2", "train.steps=1")
    assert answer.code == 0, answer.err
    said = json.loads((tmp_path / "runs" / "pets" / "weights.json").read_text())
    assert set(said["left"]) == {"predictions/kernel", "predictions/bias"}
    assert "2,562 parameters" in answer.out, "only the classifier is trained"


def test_the_table_has_all_models_but_those_that_need_more():
    models = {name for name, value in vars(keras.applications).items() if name[0].isupper() and callable(value)}
    assert models - {name for name, *_ in PUBLISHED} == {f"EfficientNetB{number}" for number in range(8)}


@pytest.mark.parametrize(("name", "mean", "std", "note"), PUBLISHED)
def test_mean_and_std_are_those_of_keras(name, mean, std, note):
    module = getmodule(getattr(keras.applications, name))
    pixels = np.random.default_rng(0).random((2, 4, 4, 3))
    mean, std = (np.array(text.split(","), np.float64) for text in (mean, std))
    here = (pixels - mean) / std
    keras_s = module.preprocess_input(255.0 * pixels)
    np.testing.assert_allclose(here[..., ::-1] if "blue" in note else here, keras_s, rtol=0, atol=1e-5 / std.min())
