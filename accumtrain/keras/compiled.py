"""A compiled Keras model together with the examples it learns from, in this process or a child of it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.data.as_given import GivenData, GivenSplit, given_data
from accumtrain.data.source import Split
from accumtrain.errors import ConfigError, DataError
from accumtrain.keras.accumulate_arguments import check_summable
from accumtrain.keras.model_copy import read_model, write_model
from accumtrain.kinds.compiled import running
from accumtrain.kinds.sources import DataConfig
from accumtrain.models.keras_call import call_stateless, mask_of, normalisations
from accumtrain.process.temporary_folder import temporary_folder

EXAMPLES = "examples.pickle"  # in a folder for child processes
EXAMPLES_TRACED = 7  # unlikely to be the size of anything else
MOST_EXAMPLES = 1024  # that a child gets
TERMINAL_STYLE = re.compile(r"\x1b\[\d*m")  # in Keras's messages


@dataclass(frozen=True)
class Traced:
    """What a forward pass in training shows of a model.

    Attributes:
        moving: the batch normalisations whose moving statistics it changes.
        penalised: whether layers or weights have losses of their own.
        outputs: specs of what it returns for `EXAMPLES_TRACED` examples.
    """

    moving: Sequence[keras.layers.BatchNormalization]
    penalised: bool
    outputs: Any


class Compiled:
    """A built and compiled model, and its data.

    Args:
        data: examples of inputs, as the model takes them, and of targets: a tuple of what the loss takes and,
            optionally, the weight of the example.

    Attributes:
        inputs: the first example, several times.
        targets: those of `inputs`.

    Raises:
        DataError: the model or the loss does not take it.
        ConfigError: all weights are frozen, or one is of a float8 layer.
    """

    def __init__(self, model: keras.Model, data: GivenData):
        self.model, self.data = model, data
        batch = first_batch(data)
        self.inputs, self.targets = batch["image"], batch["label"]
        with _data_errors(model):
            model._symbolic_build(data_batch=(self.inputs, *self.targets))
        if not model.trainable_variables:
            raise ConfigError(
                f"all weights of {model.name} are frozen: set trainable=True for a layer, and compile again"
            )
        with config_errors():
            check_summable(model.trainable_variables)
        self.weighted = any(len(split.read(tf.zeros([1], tf.int64))[1]) > 1 for split in data.splits.values())
        self._before: list[tuple[keras.Variable, np.ndarray]] = []

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Afterwards the model and its optimizer are as they were, and within this context after each `reset`."""
        self._before = [(each, each.numpy()) for each in (*self.model.variables, *self.model.optimizer.variables)]
        try:
            yield
        finally:
            self.reset()

    def reset(self) -> None:
        """Sets the model and its optimizer to what they were when `unchanged` was entered; before that does nothing."""
        for variable, value in self._before:
            variable.assign(value)

    @cached_property
    def traced(self) -> Traced:
        """The facts of a forward pass.

        Raises:
            ConfigError: the outputs have masks.
            DataError: the model does not take the inputs.
        """
        changed: list[int] = []
        penalised: list[bool] = []

        def call(x: Any) -> Any:
            state = [tf.convert_to_tensor(variable.value) for variable in self.model.non_trainable_variables]
            y, new_state, losses = call_stateless(self.model, state, x, training=True)
            changed.extend(
                id(variable)
                for variable, before, after in zip(self.model.non_trainable_variables, state, new_state, strict=True)
                if after is not before
            )
            penalised.append(isinstance(losses, tf.Tensor))
            if any(mask_of(each) is not None for each in tf.nest.flatten(y)):
                raise ConfigError(
                    f"the outputs of {self.model.name} have masks, and a masked loss is no mean over examples: use "
                    "accumtrain.keras.accumulate and model.fit"
                )
            return y

        with _data_errors(self.model):
            outputs = tf.function(call, autograph=False).get_concrete_function(self.inputs).structured_outputs
        moving = [layer for layer in normalisations(self.model) if id(layer.moving_mean) in changed]
        return Traced(moving, penalised[-1], outputs)


@contextmanager
def config_errors(remedy: str = "") -> Iterator[None]:
    """Turns a ValueError about the model into ConfigError, with a remedy more."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{error}{remedy}") from error


@contextmanager
def _data_errors(model: keras.Model) -> Iterator[None]:
    """Turns what Keras raises while it builds or traces a model into DataError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError, tf.errors.InvalidArgumentError) as error:
        reason = TERMINAL_STYLE.sub("", str(error))
        raise DataError(f"{model.name} or its loss does not take the data: {reason}") from error


def first_batch(data: GivenData) -> dict[str, Any]:
    """The first example, several times: inputs and targets as the model and the loss get them."""
    index = tf.zeros([EXAMPLES_TRACED], tf.int64)
    inputs, targets = data.train.read(index)
    return {"image": inputs, "label": targets}


def open_given(config: DataConfig, seed: int) -> GivenData:
    """The data of the compiled model."""
    data: GivenData = running().data
    return data


# --- for child processes ------------------------------------------------------------------------------------------


@contextmanager
def written(compiled: Compiled) -> Iterator[Path]:
    """A folder from which `read_compiled` makes the model again, with some of the examples.

    Raises:
        ConfigError: Keras can't save the model.
    """
    with temporary_folder("model") as folder:
        with config_errors("\nOr give `steps` as a number: nothing is tried out then"):
            write_model(compiled.model, folder)
        examples = {name: _some(split) for name, split in compiled.data.splits.items()}
        (folder / EXAMPLES).write_bytes(pickle.dumps(examples))
        yield folder


def read_compiled(folder: Path) -> Compiled:
    """What `written` has written."""
    examples = pickle.loads((folder / EXAMPLES).read_bytes())
    splits = {name: GivenSplit(*arrays) for name, arrays in examples.items()}
    return Compiled(read_model(folder), given_data(splits["train"], splits["val"]))


def _some(split: Split) -> Any:
    """The first examples of a split, as arrays."""
    index = tf.range(min(split.size, MOST_EXAMPLES), dtype=tf.int64)
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), split.read(index))
