"""The train function of a Keras model in micro-batches: the first batch is tried before it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, tee
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.loss_share import UntriedLossError
from accumtrain.keras.split_train_step import SplitTrainStep

IN_THE_GRAPH = (tf.data.Iterator, tf.distribute.DistributedIterator)  # takes the batches of these, after the tracing


def split_training(model: keras.Model, step: SplitTrainStep) -> None:
    """Has `fit` and `train_on_batch` of a model make their steps by `step`."""
    model.train_step = step
    model.make_train_function = MakeTrainFunction(model, step)
    model.train_function = None  # made anew by the next fit


class MakeTrainFunction:
    """Takes the place of `keras.Model.make_train_function`."""

    def __init__(self, model: keras.Model, step: SplitTrainStep) -> None:
        self._model, self._step = model, step

    def __call__(self, force: bool = False) -> None:
        """Makes the train function, unless there is one."""
        if self._model.train_function is None or force:
            self._step.terms = None  # another loss may be compiled
            self._model.train_function = SplitTrainFunction(self._model, self._step)


class SplitTrainFunction:
    """Takes the place of the train function of a Keras model."""

    def __init__(self, model: keras.Model, step: SplitTrainStep) -> None:
        self._model, self._step, self._of_keras = model, step, _train_function_of(model)

    def __call__(self, batches: Iterator[Any]) -> Any:
        """Makes the next steps, and returns what Keras's function does.

        Raises:
            StopIteration: there is no batch left.
            ValueError: see `LossTrial.terms`.
        """
        terms = self._step.terms
        if terms is not None and terms.settled:
            return self._of_keras(batches)
        if terms is None and not self._model.run_eagerly:
            traced = batches
            if not isinstance(batches, IN_THE_GRAPH):
                traced, batches = tee(batches)
            try:
                return self._of_keras(traced)
            except UntriedLossError:  # while the step is traced, so nothing has changed
                pass
        first = list(islice(batches, self._model.steps_per_execution))
        if not first:
            raise StopIteration
        for batch in first:
            self._step.try_loss(batch)
        if self._step.terms != terms:
            self._of_keras = _train_function_of(self._model)
        return self._of_keras(chain(first, batches))


def _train_function_of(model: keras.Model) -> Callable[[Iterator[Any]], Any]:
    """What Keras makes of the model's train_step."""
    own = model.train_function
    type(model).make_train_function(model, force=True)
    made, model.train_function = model.train_function, own
    return made
