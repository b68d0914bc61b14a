"""`Model`: a chain of segments from inputs to logits, and which of its variables are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.segments import Segment
from accumtrain.backprop.streams import check_streams
from accumtrain.console import table

SplitInputs = Callable[[Streams], tuple[Streams, Mapping[str, tf.Tensor]]]


class Model(tf.Module):
    """A chain of segments from inputs to logits.

    Args:
        segments: the first takes the inputs: images [N, H, W, C] in `compute_dtype`, or int32 tokens [N, T]. The last
            returns logits [N, classes], float32 or float64, or a `LinearLogits`.
        compute_dtype: dtype of convolutions and matrix products.
        split_inputs: a function that returns the input of the first segment, and a mapping of tensors by name. Every
            layer finds these in `mode.side`. None: the inputs are that of the first segment.

    Raises:
        ValueError: TwoStreams, units and JoinStreams differ in snap_bits. Or, in a call of the model, `split_inputs`
            returns something else.
    """

    joins_loss = False  # the loss may look into the last segment, so one tape records both
    _frozen: frozenset[int] = frozenset()  # ids of variables

    def __init__(
        self,
        segments: Sequence[Segment],
        compute_dtype: tf.DType = tf.float32,
        split_inputs: SplitInputs | None = None,
    ):
        super().__init__()
        check_streams(segments)
        self.segments, self.compute_dtype, self._split_inputs = list(segments), compute_dtype, split_inputs

    def __call__(self, images: tf.Tensor, mode: Mode = EVALUATION) -> tf.Tensor:
        """Return the logits [N, classes] of images [N, H, W, C] of any float dtype."""
        x, mode = self.begin(images, mode)
        for segment in self.segments:
            x = segment(x, mode)
        return mode.invalidate_out_of_range(x)

    def begin(self, inputs: Streams, mode: Mode) -> tuple[Streams, Mode]:
        """Return the input of the first segment, and the mode of the pass with what goes beside it."""
        x, mode = self.cast(inputs), mode.with_frozen(self._frozen)
        if self._split_inputs is None:
            return x, mode
        split = self._split_inputs(x)
        if not (isinstance(split, tuple) and len(split) == 2 and isinstance(split[1], Mapping)):
            raise ValueError(
                f"split_inputs returns {split!r}: must be a pair, the input of the first segment and a dict of tensors"
            )
        x, side = split
        return x, mode.with_side(side)

    def cast(self, images: Streams) -> Streams:
        """Return the input of the first segment: floats in `compute_dtype`, and integers as they are."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(images)]
        floats = [tf.cast(tensor, self.compute_dtype) if tensor.dtype.is_floating else tensor for tensor in tensors]
        return tf.nest.pack_sequence_as(images, floats)

    def summary(self) -> None:
        """Print a table of the segments: their parts, what is kept of each in training, and the trained values."""
        rows = []
        for segment in self.segments:
            parts = getattr(segment, "layers", None) or getattr(segment, "units", None) or [segment]
            counts = Counter(type(part).__name__ for part in parts)
            told = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
            trained = sum(int(tf.size(variable)) for variable in getattr(segment, "trainable_variables", ()))
            rows.append((told, getattr(segment, "memory", "-"), f"{trained:,}"))
        table(f"{self.params:,} trained parameters", ("segment", "memory", "parameters"), rows)

    @property
    def named(self) -> dict[str, tf.Variable]:
        """Every variable by its path, such as segments/0/layers/0/conv/kernel. Models alike have the same paths.

        A variable that two layers share has the path of the first.
        """
        found = self._flatten(predicate=lambda value: isinstance(value, tf.Variable), with_path=True)
        paths: dict[int, tuple[str, tf.Variable]] = {}
        for path, variable in found:
            paths.setdefault(id(variable), ("/".join(map(str, path)), variable))
        return dict(paths.values())

    @property
    def defers_logits(self) -> bool:
        """The last segment may return a `LinearLogits`."""
        modules = getattr(self.segments[-1], "submodules", ())
        return any(getattr(module, "defers_logits", False) for module in modules)

    @property
    def learnable(self) -> Sequence[tf.Variable]:
        """The variables that are trained unless they are frozen."""
        return tuple(super().trainable_variables)

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        return tuple(variable for variable in self.learnable if id(variable) not in self._frozen)

    @property
    def trainable_paths(self) -> list[str]:
        """The path of each trainable variable."""
        paths = {id(variable): path for path, variable in self.named.items()}
        return [paths[id(variable)] for variable in self.trainable_variables]

    @property
    def frozen(self) -> list[tf.Variable]:
        """The variables that keep their values."""
        return [variable for variable in self.learnable if id(variable) in self._frozen]

    def freeze(self, paths: Iterable[str]) -> None:
        """Make learnable variables keep their values. Call it before anything is built on the model.

        Their gradient is not computed. A batch normalisation without a trained variable computes with its moving
        statistics in training, too. These stay as they are, as with Keras's frozen layers.
        """
        named = self.named
        self._frozen = frozenset(id(named[path]) for path in paths)
        for norm in self.norms:
            norm.frozen = all(id(variable) in self._frozen for variable in norm.trainable_variables)

    @property
    def norms(self) -> list:
        """Every batch normalisation whose moving statistics change in training, in a fixed order."""
        return [
            module
            for module in self.submodules
            if hasattr(module, "moving_mean") and not getattr(module, "frozen", False)
        ]

    @property
    def added(self) -> Collection[str]:
        """The paths of variables such as those of adapters, which weights of the model need not have."""
        return ()

    @property
    def frozen_segments(self) -> int:
        """Number of segments before the first that is trained, if any variable is frozen. Nothing is kept of them."""
        if not self._frozen:
            return 0
        trained = {id(variable) for variable in self.trainable_variables}
        for index, segment in enumerate(self.segments[:-1]):
            if any(id(variable) in trained for variable in getattr(segment, "trainable_variables", ())):
                return index
        return len(self.segments) - 1

    @property
    def decayed(self) -> list[bool]:
        """A bool for each trainable variable: weight decay applies to those with "kernel" in their name."""
        return ["kernel" in variable.name.rsplit("/", 1)[-1] for variable in self.trainable_variables]

    @property
    def params(self) -> int:
        """Number of trainable values."""
        return sum(int(tf.size(variable)) for variable in self.trainable_variables)
