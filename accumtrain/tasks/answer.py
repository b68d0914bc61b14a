"""`Answer`: from the outputs of a trained model to the answers for its user. It needs only files of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.engine.losses import Batch
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import convert
from accumtrain.registry import load
from accumtrain.runs.names import folder_of
from accumtrain.tasks.config import TASKS


@dataclass(frozen=True)
class AnswersInWords:
    """The answers for some examples, as job=predict tells them.

    Attributes:
        columns: Those of the CSV file, after that of the file's name.
        rows: Their cells for each example.
        records: The keys of the JSON line of each example, after `file`.
        titles: Those of the columns of the table on the screen, after that of the input.
        shown: Their cells for each example.
        summary: The part of predict.json about all of them.
    """

    columns: list[str]
    rows: Sequence[Sequence[Any]]
    records: list[dict[str, Any]]
    titles: list[str]
    shown: list[list[str]]
    summary: dict[str, Any]


class Answer:
    """From the outputs of a trained model to its answers, and to their words.

    Args:
        config: That of the run.
        trained_on: The facts that the run has kept of its data.
        facts: About the answers, which evaluations have found, as JSON values by name.

    Attributes:
        name: That of the answers in an export.
        unit_name: That of a difference of answers, in words.
        writes: The folder for a PNG file of each answer, beside the files of job=predict; None if there are none.
        facts: About the training examples and the answers.
        facts_type: Their TypedDict, whose lists have a value for each name. None: of any type.
        inputs: Those of the run.
        class_names: Those of the model's outputs.
    """

    name: ClassVar[str] = "values"
    unit_name: ClassVar[str] = ""
    writes: ClassVar[str | None] = None
    facts_type: ClassVar[Any] = None

    def __init__(self, config: Config, trained_on: TrainedOn, facts: Mapping[str, Any]) -> None:
        self.config, self.inputs, self.class_names = config, trained_on.inputs, list(trained_on.class_names)
        self.facts = {**trained_on.facts, **facts}

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any], names: Sequence[str]) -> None:
        """Check facts that files of a run have kept. Raise ConfigError, which begins with the key, for odd ones."""
        known = convert(cls.facts_type or dict[str, Any], facts, "facts")
        for key in cls.facts_type.__annotations__ if cls.facts_type else ():
            value = known.get(key)
            if isinstance(value, list) and len(value) != len(names):
                raise ConfigError(f"facts.{key}: must have {len(names)} values, one for a name, and has {len(value)}")

    def keep(self, answers: Sequence[np.ndarray] | np.ndarray, files: Sequence[Path]) -> np.ndarray:
        """Return what `tell` takes of what `predict` has returned for some examples.

        Args:
            files: Where to write the answer to each example, if `writes` names a folder for them; or empty.
        """
        return np.asarray(answers)

    def __call__(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        """Return the answers, float32 [N, K], to inputs and the outputs of the model for them, [N, ...].

        Called in graphs.
        """
        return tf.cast(outputs, tf.float32)

    def answer(self, model: Model, inputs: Any) -> tf.Tensor:
        """Return the answers of a model to inputs, float32 [N, K]. Called in graphs."""
        return self(inputs, model(inputs, EVALUATION))

    def predict(self, model: Model, batch: Batch) -> tf.Tensor:
        """Return what job=predict tells of the examples of a batch, [N, ...]. Called in graphs."""
        return self.answer(model, batch["inputs"])

    @property
    def further(self) -> Mapping[str, Callable[[Model, Any], tf.Tensor]]:
        """The functions that a SavedModel has beside `answer`, by the name of their signature and output.

        Each takes what `answer` takes, and returns whole numbers, [N, ...].
        """
        return {}

    @property
    def columns(self) -> list[str]:
        """The names of the K answers."""
        return self.class_names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the answers to an example."""
        return (len(self.columns),)

    @property
    def sizes(self) -> list[str]:
        """The shape in words."""
        return list(map(str, self.shape))

    @property
    def unit(self) -> np.ndarray | float:
        """The unit of each answer, in which differences are measured."""
        return 1.0

    def texts(self) -> dict[str, Any]:
        """Return facts that a user of the answers needs beside them, as JSON values by name."""
        return {}

    def keras_layer(self) -> Any:
        """Return the layer of Keras that makes the same answers, and has their name."""
        import keras  # it takes a second, and no other job needs it

        return keras.layers.Identity(name=self.name)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Return answers, float32 [N, K], in words, each by its name; or what `predict` has returned."""
        values = [[round_float32(value) for value in row] for row in answers.tolist()]
        return AnswersInWords(
            columns=self.columns,
            rows=values,
            records=[{self.name: dict(zip(self.columns, row, strict=True))} for row in values],
            titles=self.columns,
            shown=[[f"{value:.6g}" for value in row] for row in values],
            summary={},
        )


def round_float32(value: float) -> float:
    """Return it with the digits that a float32 has."""
    return float(f"{value:.9g}")


def find_answer(config: Config) -> type[Answer]:
    """Return the answer of the task of a run. Raise ConfigError if the task was registered with something else."""
    built: Any = load(TASKS[config.task.kind].answer)
    if not (isinstance(built, type) and issubclass(built, Answer)):
        raise ConfigError(
            f"task={config.task.kind}: {built!r} is no subclass of accumtrain.Answer; give register_task such a class"
        )
    return built


def build_answer(config: Config, trained_on: TrainedOn, facts: Mapping[str, Any]) -> Answer:
    """Return the answer of a trained run.

    Raises:
        ConfigError: its task was registered with something else.
        CheckpointError: the facts are not those of such answers.
    """
    answer = find_answer(config)(config, trained_on, facts)
    try:
        answer.check_facts(answer.facts, answer.class_names)
    except ConfigError as error:
        raise CheckpointError(
            f"the files of the run in {folder_of(config)} are damaged: {error}; train it again under another run.name"
        ) from error
    return answer
