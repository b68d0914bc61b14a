"""`TrainedOn`: what a trained run was trained on, which its folder keeps as inputs.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accumtrain.data.config import INPUTS, DataConfig
from accumtrain.data.inputs.base import Inputs
from accumtrain.errors import CheckpointError
from accumtrain.registry import load
from accumtrain.runs.files import has_form, is_count, is_text, read_json
from accumtrain.runs.run import INPUTS_FILE, REMEDY


@dataclass(frozen=True)
class TrainedOn:
    """The inputs and targets that a run was trained on.

    Attributes:
        form: That of the targets (tasks/config.py).
        class_names: A name for each class, its number if it has none; of other tasks, for each label or number.
        facts: About the targets, as the task has found them in the training examples.
    """

    inputs: Inputs
    form: str
    class_names: list[str]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the content of inputs.json."""
        targets = {"form": self.form, "names": self.class_names}
        return {"inputs": self.inputs.facts(), "targets": targets, "facts": dict(self.facts)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], config: DataConfig) -> TrainedOn:
        """Return what inputs.json holds.

        Args:
            config: The data keys of the run.

        Raises:
            CheckpointError: It is damaged.
            ConfigError: The kind of inputs is of a program that was not imported.
        """
        inputs, targets, facts = (content.get(name) for name in ("inputs", "targets", "facts"))
        if not (
            isinstance(inputs, dict)
            and isinstance(targets, dict)
            and isinstance(facts, dict)
            and is_text(inputs.get("kind"))
            and has_form(inputs.get("shape"), [is_count])
            and 0 not in inputs["shape"]
            and is_text(targets.get("form"))
            and has_form(targets.get("names"), [is_text])
            and targets["names"]
        ):
            raise CheckpointError("it holds no inputs and targets")
        kind: Any = load(INPUTS[inputs["kind"]].build)
        return cls(kind.from_facts(inputs, config), targets["form"], targets["names"], facts)


def read_trained_on(folder: Path, config: DataConfig) -> TrainedOn | None:
    """Return what a run was trained on; None if the file is gone, or if the run was given its examples.

    Args:
        config: The data keys of the run.

    Raises:
        CheckpointError: The file is damaged.
        ConfigError: The kind of inputs is of a program that was not imported.
    """
    file = folder / INPUTS_FILE
    if not file.exists():
        return None
    content = read_json(file)
    try:
        return TrainedOn.from_json(content, config)
    except CheckpointError as error:
        raise CheckpointError(f"{file} is damaged: {error}; {REMEDY}") from error
