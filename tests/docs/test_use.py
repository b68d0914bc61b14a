"""The commands and the program of docs/use.md, one after the other as they stand there, on pictures of our own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.programs import start_python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "use.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
(PROGRAM,) = [block for language, block in BLOCKS if language == "python"]
COLOURS = {"bees": (230, 200, 20), "skies": (30, 80, 230)}


def picture(file: Path, colour: tuple[int, ...], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(-25, 26, [70, 90, 3])
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(file)


@pytest.fixture
def start(tmp_path):
    for name, colour in COLOURS.items():
        for number in range(20):
            picture(tmp_path / "photos" / name / f"{number}.jpg", colour, number)
            picture(tmp_path / "elsewhere" / name / f"{number}.jpg", colour, 50 + number)
    for number, colour in enumerate(COLOURS.values()):
        picture(tmp_path / "new" / f"{number}.jpg", colour, 100 + number)
    labels = np.arange(8) % len(COLOURS)
    images = np.array(list(COLOURS.values()), np.uint8)[labels][:, np.newaxis, np.newaxis].repeat(32, 1).repeat(32, 2)
    np.savez(tmp_path / "new.npz", images=images, labels=labels)

    def start(arguments: list[str]) -> subprocess.Popen:
        command = {"accumtrain": ["-m", "accumtrain"], "python": []}[arguments[0]]
        return start_python(*command, *arguments[1:], cwd=tmp_path, stderr=None)

    return start


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_page(start, tmp_path):
    *commands, server, client = (shlex.split(line) for line in COMMANDS)
    commands[0] += ["train.epochs=3", "model.units=[1,1,1]", "optim=adam"]  # a smaller one
    for command in commands:
        of_onnx = "export.format=onnx" in command and find_spec("tf2onnx") is None
        if command[0] == "pip" or of_onnx:
            continue
        with start(command) as done:
            done.communicate()
        assert done.returncode == 0, command
    assert (tmp_path / "answers.csv").read_text().startswith("file,class,probability\nnew/0.jpg,")
    with start(["python", "-c", f"{PROGRAM}\nassert names == {sorted(COLOURS)}"]) as done:
        assert done.wait() == 0

    program = (ROOT / "examples" / "serving.py").read_text()
    (tmp_path / "serving.py").write_text(program)
    assert len(program.splitlines()) < 60
    assert "import accumtrain" not in program
    lines = (tmp_path / "runs" / "cats" / "predictions.jsonl").read_text().splitlines()
    told = next(each["top"] for each in map(json.loads, lines) if each["file"] == "new/1.jpg")
    with start([*server[:-1], "0"]) as serving:  # any free port
        address = serving.stdout.readline().strip()
        try:
            *posts, _ = client
            answered = subprocess.check_output([*posts, address], cwd=tmp_path, text=True)
            refused = subprocess.check_output([*posts[:-1], "hello", address], cwd=tmp_path, text=True)
        finally:
            serving.kill()
    assert json.loads(answered) == pytest.approx({each["class"]: each["probability"] for each in told}, abs=1e-5)
    assert "no photo that can be decoded" in refused
