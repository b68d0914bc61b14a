"""Golden runs: copies of them, how they go on, and the bits of their states."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from accumtrain.config.read import from_mapping
from accumtrain.config.schema import Config
from accumtrain.data.config import TableConfig
from accumtrain.dispatch import run
from accumtrain.runs.names import CHECKPOINTS, folder_of

GOLDEN = Path(__file__).parent
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
ANSWERS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "answers.json").read_text())
ASKED = {"lenet": "digit.png", "tokens": "plain.txt", "masked_tokens": "masked.txt", "numbers": "box.png"}
ASSETS = "assets"


def copied(name: str, folder: Path) -> Config:
    """Copy a golden run into `folder`. Return the copy's configuration, whose data is found from any folder."""
    shutil.copytree(GOLDEN / name, folder / "golden")
    config = from_mapping(yaml.safe_load((folder / "golden" / "config.yaml").read_text()))
    if isinstance(config.data, TableConfig):
        config = replace(config, data=replace(config.data, path=str(GOLDEN.parents[1] / config.data.path)))
    return replace(config, run=replace(config.run, dir=str(folder)))


def continued(config: Config, expected: dict[str, Any]) -> Path:
    """Continue a run. Return the path of its last state."""
    run(replace(config, train=replace(config.train, steps=expected["continued_to"])))
    return folder_of(config) / CHECKPOINTS / f"step-{expected['continued_to']}" / "state"


def tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a state by name."""
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if not name.startswith(("_CHECK", "save_counter"))]
    return {name: reader.get_tensor(name) for name in names}


def digest(path: Path) -> str:
    """Return a SHA-256 of names, types and bits of the tensors of a state."""
    state = hashlib.sha256()
    for name, value in sorted(tensors(path).items()):
        array = np.asarray(value)
        state.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return state.hexdigest()


def predictions(config: Config, name: str) -> list[dict[str, Any]]:
    """Return what job=predict answers for the inputs of a golden run, whose names are without their folder."""
    asked = GOLDEN / "asked" / ASKED[name]
    run(replace(config, job="predict", predict=replace(config.predict, input=str(asked))))
    text = (folder_of(config) / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.replace(f"{asked.parent}/", "").splitlines()]


def exported(config: Config) -> dict[str, Any]:
    """Return what job=export tells of the input and the outputs, and the texts that it writes beside the model."""
    run(replace(config, job="export"))
    told = json.loads((folder_of(config) / "export.json").read_text())
    assets = sorted((Path(told["file"]) / ASSETS).iterdir())
    texts = {path.name: json.loads(path.read_text()) for path in assets}
    return {"input": told["input"], "class_names": told["class_names"], ASSETS: texts}
