"""Trials of a loss with real examples: each of its terms is a mean or a sum over them, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.keras.split_batch import count_examples
from accumtrain.keras.split_loss import TOLERANCE, LossShare, LossTerms, losses_of_layers
from accumtrain.keras.whole_batch import WholeBatchLoss
from accumtrain.models.keras.call import StatelessCall, call_in_mode, read_values

TOLERANCE_OF_16_BITS, ROUNDING = 3e-2, 1e-6
HALF = {"float16", "bfloat16"}


@dataclass(frozen=True)
class Pass:
    """A forward pass of some examples.

    Attributes:
        total: the loss without that of layers, or what a `compute_loss` of the model's own returns.
        share: what divides `total`, as a share of the examples: below 1 with masks and weights.
        of_layers: the losses that layers add.
        changed: it changes state of the model, as batch statistics and random draws do.
    """

    total: float
    share: float
    of_layers: list[float]
    changed: bool

    def open_values(self, known: LossTerms) -> list[float]:
        """Return the finite values of the terms that are not known yet."""
        pairs = zip((self.total, *self.of_layers), (known.total, *known.of_layers), strict=True)
        return [value for value, kind in pairs if kind is None and np.isfinite(value)]


class LossTrial:
    """Passes of two groups of examples, A and B, in six batches: AB, BA, AA, BB, and each of them alone.

    A mean and a sum are additive: the losses of AB and BA are together those of AA and BB. That holds with random draws
    as well, since the four batches have the same size and so the same draws. The loss of AA is that of A, if it is a
    mean, or twice that, if it is a sum. Nothing that a pass changes is kept.

    A is one example, repeated, and B are those after it. Examples are tried until no term of the batch is 0 for them.

    Args:
        model: compiled and built.
        batch: x, y and sample_weight, nested tensors [N, ...] or None.
        most: the most examples in a pass; two are taken for 1.
        share: the loss that the model is compiled with.
    """

    def __init__(self, model: keras.Model, batch: Any, most: int, share: LossShare | WholeBatchLoss) -> None:
        self._model, self._batch, self._most, self._share = model, batch, max(2, most), share
        self._examples = int(count_examples(batch))
        own_dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
        self._tolerance = TOLERANCE_OF_16_BITS if own_dtypes & HALF else TOLERANCE

    def find_terms(self, known: LossTerms | None) -> LossTerms:
        """Return the terms of the loss. One group of the batch after another is tried until all of them are known.

        Args:
            known: of an earlier batch, in which some terms were 0. The others stay what they are.

        Returns:
            The terms; None stands for those that are 0 for all examples of the batch.

        Raises:
            ValueError: one is neither a mean nor a sum over the examples, or can't be tried, or layers add more or
                fewer losses than before.
        """
        for start in range(0, self._examples, self._most):
            if known is None or not known.settled:
                known = self._find_in_group(range(start, min(start + self._most, self._examples)), known)
        assert known is not None, "a batch has examples"
        return known

    def _find_in_group(self, examples: range, known: LossTerms | None) -> LossTerms:
        """Return the terms after some more examples, which fit into one pass."""
        trained = self._pass(examples, training=True)
        if known is None:  # Keras's own losses are what their reduction says
            total = None if self._share.has_own_terms() else self._share.kinds()[0]
            known = LossTerms(total, (None,) * len(trained.of_layers))
        known.check_number(self._model, trained.of_layers)
        if self._examples == 1 or not any(trained.open_values(known)):  # each rule is right for one example
            return known
        training = not trained.changed and self._pass(examples, training=True) == trained
        for example in examples:
            if any(trained.open_values(known)):
                known = self._find_by_example(example, known, training)
        if any(trained.open_values(known)):
            raise ValueError(self._in_training_only())
        return known

    def _find_by_example(self, example: int, known: LossTerms, training: bool) -> LossTerms:
        """Return the terms after the six batches, if one that is not known is not 0 in them."""
        half = self._most // 2
        first, second = [example] * half, [(example + place) % self._examples for place in range(1, half + 1)]
        both = self._pass([*first, *second], training)
        if len(both.of_layers) != len(known.of_layers):
            raise ValueError(self._in_training_only())
        if not any(both.open_values(known)):
            return known
        others = ([*second, *first], [*first, *first], [*second, *second], first, second)
        passes = [both, *(self._pass(batch, training) for batch in others)]
        loosely = both.changed  # random draws, which differ between batches of two sizes
        of_layers = zip(*(trial.of_layers for trial in passes), strict=True)
        kinds = tuple(
            kind or self._kind(f"add_loss, call {place + 1} in {self._model.name},", np.array(values), loosely)
            for place, (kind, values) in enumerate(zip(known.of_layers, of_layers, strict=True))
        )
        name = f"compute_loss of {self._model.name}" if self._share.is_own else f"the loss of {self._model.name}"
        totals, shares = np.array([(trial.total, trial.share) for trial in passes]).T
        more = ", or take whole_batch=True"
        total = known.total or self._kind(name, totals, loosely, shares, self._share.kinds(), more)
        return LossTerms(total, kinds)

    def _in_training_only(self) -> str:
        return (
            f"{self._model.name} adds a loss in training only, and its batch statistics or random draws don't allow to "
            "try it there: call add_loss whatever `training` is, with the same factor, or leave it out"
        )

    def _pass(self, examples: Sequence[int], training: bool) -> Pass:
        model = self._model
        x, y, sample_weight = keras.tree.map_structure(
            lambda tensor: None if tensor is None else tf.gather(tensor, examples), self._batch
        )
        weights = read_values(model.trainable_variables)
        metrics = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in model.metrics_variables]
        with StatelessCall([*weights, *metrics]) as call:
            y_pred = call_in_mode(model, x, training=training)
            total, share = self._share.of_examples(x, y, y_pred, sample_weight)
            of_layers = [float(loss) for loss in losses_of_layers(model)]
        changed = call.assignments.keys() - {id(variable) for variable in model.metrics_variables}
        return Pass(float(total), float(share), of_layers, bool(changed))

    def _kind(
        self,
        name: str,
        values: np.ndarray,
        loosely: bool,
        shares: np.ndarray | float = 1.0,
        kinds: Sequence[str] = ("mean", "sum"),
        more: str = "",
    ) -> str | None:
        """Return one of `kinds`, or None if the values don't tell, as all are 0 or none is finite.

        Args:
            loosely: a group alone may differ by a quarter.
            kinds: what is allowed.
            more: the end of the message of the error, a further remedy.
        """
        finite = np.isfinite(values)
        if not np.any(values) or not np.any(finite):
            return None
        largest = float(np.max(np.abs(values)))
        for kind, weights, factor in (("mean", shares, 1.0), ("sum", 1.0, 2.0)) if np.all(finite) else ():
            ab, ba, aa, bb, *_ = values * weights
            additive = abs(ab + ba - aa - bb) <= self._tolerance * largest
            twice, alone = values[2:4], factor * values[4:]
            alike = np.allclose(twice, alone, 0.25 if loosely else self._tolerance, ROUNDING * largest)
            if additive and alike and kind in kinds:
                return kind
        raise ValueError(
            f"{name} is neither the mean nor the sum of the losses of its examples, so it can't be joined over "
            "micro-batches: make it a mean over the examples, such as keras.ops.mean of one value for each of them, "
            f"and draw random numbers from a keras.random.SeedGenerator alone{more}"
        )
