"""`TrainedOn`: what a trained run was trained on, which its folder keeps as inputs.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from accumtrain.data.config import DataConfig
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.sources.config import INPUTS
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.registry import load
from accumtrain.runs.files import read_json, to_json_value
from accumtrain.runs.run import INPUTS_FILE, REMEDY
from accumtrain.runs.schema import InputsFile, NamedTargets, OfKind

_DIGITS = 16  # of a digest


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

    def as_json(self) -> InputsFile:
        """Return the content of inputs.json."""
        targets: NamedTargets = {"form": self.form, "names": self.class_names}
        return {"inputs": cast(OfKind, self.inputs.facts()), "targets": targets, "facts": dict(self.facts)}

    @cached_property
    def digests(self) -> dict[str, str]:
        """A digest of each value of inputs.json, by dotted key, which the checkpoints of a run keep."""
        parts: Mapping[str, Any] = to_json_value(self.as_json())
        values = {f"{part}.{key}": value for part, content in parts.items() for key, value in content.items()}
        texts = {key: json.dumps(value, sort_keys=True) for key, value in values.items()}
        return {key: hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for key, text in texts.items()}

    def with_length(self, config: DataConfig) -> TrainedOn:
        """Return the same for texts of data.length tokens, if that is given."""
        return replace(self, inputs=self.inputs.with_length(config))

    @classmethod
    def from_json(cls, content: InputsFile, config: DataConfig) -> TrainedOn:
        """Return what inputs.json holds.

        Args:
            config: The data keys of the run.

        Raises:
            ConfigError: A value breaks a rule, or the kind of inputs is of a program that was not imported.
        """
        inputs, targets = content["inputs"], content["targets"]
        kind: Any = load(INPUTS[inputs["kind"]].build)
        return cls(kind.from_facts(inputs, config), targets["form"], targets["names"], content["facts"])


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
    content: InputsFile = read_json(file, InputsFile)
    kind = content["inputs"]["kind"]
    INPUTS[kind]  # a program that was not imported has it, which is no damage
    try:
        return TrainedOn.from_json(content, config)
    except ConfigError as error:
        raise CheckpointError(f"{file} is damaged: {error}; {REMEDY}") from error
