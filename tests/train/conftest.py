"""What a command has answered, and what a run has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.errors import AccumtrainError
from tests.conftest import Answer

TIMES = ("seconds", "examples_per_second")


def assert_error(answer: Answer, error: type[AccumtrainError], words: str) -> None:
    """The command has ended with this error, in these words."""
    assert (answer.code, words in answer.err) == (error.exit_code, True), answer


def records_of(run: Path, split: str | None = None) -> list[dict[str, Any]]:
    """The records of a split, or of all, without what differs from run to run."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    chosen = [record for record in records if split in (None, record["split"])]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in chosen]


def json_of(run: Path, name: str = "summary") -> dict[str, Any]:
    return json.loads((run / f"{name}.json").read_text())


def tensors_of(checkpoint: Path, beginning: str = "") -> dict[str, np.ndarray]:
    """What a checkpoint holds of a run."""
    reader = tf.train.load_checkpoint(str(checkpoint / "state"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(beginning)]
    return {name: reader.get_tensor(name) for name in names if "OBJECT_GRAPH" not in name}


def assert_same_tensors(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To the bit."""
    assert found.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []
