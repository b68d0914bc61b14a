"""Reversible U-Nets: reversible units at each resolution, and skip connections that are computed back, to the bit.

On the way up y = skip + up(low), sums of fixed-point streams. So going back skip = y - up(low), and of a level only its
output is kept. A step down is computed again from the skip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint, add
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients, Pullback, Streams, pullback
from accumtrain.backprop.replay import Consume, forward_stored, replay
from accumtrain.backprop.segments import Backward, Chain, Coupling, OnStreams, Segment, Stage
from accumtrain.backprop.tracing import after
from accumtrain.models.config import REVERSE, STORE, RevUNetConfig
from accumtrain.models.layers import Bias, Initializer, ModelSpec, Numerics
from accumtrain.models.resnet.blocks import PoolAndPad, with_norm_momentum
from accumtrain.models.resnet.revnet import Stems
from accumtrain.models.unet.layers import NormedConv, double_size, layers_to_cut
from accumtrain.models.unet.skips import pass_skips

Pair = tuple[tf.Tensor, tf.Tensor]  # of streams, or of their gradients


class Fork(tf.Module):
    """A stream of half the size, and beside it the stream itself.

    Args:
        function: from the stream to values of half its height and width.
    """

    def __init__(self, function: OnStreams, numbers: FixedPoint):
        super().__init__()
        self.function, self.numbers = function, numbers

    def __call__(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        return self.numbers.for_mode(mode).differentiable_encode(self.function(x, mode)), x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tuple[tf.Tensor, tf.Tensor], Pullback]:
        low, function_backward = pullback(self.function, x, mode)

        def backward(d_y: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, Gradients]:
            d_x, gradients = function_backward(d_y[0])
            return add(d_y[1], d_x), gradients

        return (self.numbers.encode(low), x), backward


class StepDown(tf.Module):
    """A segment from streams to those of half the size, and beside these the streams themselves as skip connection.

    With any policy but `store` it keeps nothing, as the way back brings the skip connection.
    """

    def __init__(self, memory: str, forks: Sequence[Fork]):
        super().__init__()
        self.memory, self.forks = memory, list(forks)

    def __call__(self, x: Pair, mode: Mode) -> tuple[Streams, Pair]:
        return tuple(fork(each, mode)[0] for fork, each in zip(self.forks, x, strict=True)), x

    def forward(self, x: Pair, mode: Mode, consume: Consume) -> tuple[tuple[Streams, Pair], Backward]:
        passes = [forward_stored(fork, each, mode, consume) for fork, each in zip(self.forks, x, strict=True)]

        def backward(y: tuple[Pair, Pair], d_y: tuple[Pair, Pair]) -> tuple[Streams, Streams]:
            skip, d_x = y[1], list[tf.Tensor]()
            for number, d_each in enumerate(zip(*d_y, strict=True)):
                d_each = after(d_x, d_each)  # one after the other, for a low peak
                if self.memory == STORE:
                    d_x.append(passes[number][1](None, d_each)[1])
                else:
                    d_x.append(replay(self.forks[number], skip[number], d_each, mode, consume)[1])
            return skip, tuple(d_x)

        return (tuple(low for (low, _), _ in passes), x), backward


class StepUp(tf.Module):
    """A segment from streams, and beside them a skip connection of twice the size, to its sum with the larger streams.

    It keeps the smaller streams. `reverse` computes the skip connection from the sum.

    Args:
        functions: from each stream to values of twice its height and width, which are cut to the size of the skip
            connection.
    """

    def __init__(self, memory: str, functions: Sequence[OnStreams], numbers: FixedPoint):
        super().__init__()
        self.memory, self.functions, self.numbers = memory, list(functions), numbers

    def __call__(self, x: tuple[Pair, Pair], mode: Mode) -> Streams:
        low, skip = x
        sum_ = self.numbers.for_mode(mode).differentiable_add
        functions = self._cut(low, skip)
        return tuple(sum_(s, up(each, mode)) for up, each, s in zip(functions, low, skip, strict=True))

    def forward(self, x: tuple[Pair, Pair], mode: Mode, consume: Consume) -> tuple[Streams, Backward]:
        low, skip = x
        passes = [forward_stored(up, each, mode, consume) for up, each in zip(self._cut(low, skip), low, strict=True)]

        def backward(y: Pair, d_y: Pair) -> tuple[Streams, Streams]:
            d_low: list[tf.Tensor] = []
            skips: list[tf.Tensor] = []
            for number, up in enumerate(self._cut(low, y)):
                d_each = after(d_low, d_y[number])
                if self.memory == STORE:
                    d_low.append(passes[number][1](None, d_each)[1])
                    continue
                undo = partial(self.numbers.subtract, y[number]) if self.memory == REVERSE else None
                _, d_each, restored = replay(up, low[number], d_each, mode, consume, undo)
                d_low.append(d_each)
                skips.append(restored)
            return (low, tuple(skips) if self.memory == REVERSE else skip), (tuple(d_low), d_y)

        return tuple(self.numbers.add(each, up) for each, (up, _) in zip(skip, passes, strict=True)), backward

    def _cut(self, low: Pair, like: Pair) -> list[Chain]:
        """Return the functions with outputs of the height and width of `like`."""
        return [Chain(STORE, [function, *layers_to_cut(low[0], like[0])]) for function in self.functions]


class StreamsHead(tf.Module):
    """The logits of each pixel: the sum of a function of each stream, and a bias."""

    def __init__(self, init: Initializer, functions: Sequence[NormedConv], classes: int):
        super().__init__()
        self.functions, self.bias = list(functions), Bias(init, classes)

    def __call__(self, x: Pair, mode: Mode) -> tf.Tensor:
        first, second = (function(each, mode) for function, each in zip(self.functions, x, strict=True))
        return self.bias(first + second)

    def pullback(self, x: Pair, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        """Return the logits and their pullback. A replay goes through one stream after the other."""
        passes = [pullback(function, each, mode) for function, each in zip(self.functions, x, strict=True)]

        def backward(d_y: tf.Tensor) -> tuple[Streams, Gradients]:
            d_x: list[tf.Tensor] = []
            trains = mode.trains(self.bias.bias)
            gradients: Gradients = [(self.bias.bias, tf.reduce_sum(d_y, [0, 1, 2]))] if trains else []
            for function, each, (_, function_backward) in zip(self.functions, x, passes, strict=True):
                if mode.replaying:
                    _, function_backward = pullback(function, after([d_y, *d_x], each), mode)
                d_each, new = function_backward(d_y)
                d_x.append(d_each)
                gradients += new
            return tuple(d_x), gradients

        (first, _), (second, _) = passes
        return self.bias(first + second), backward


def build_revunet(config: RevUNetConfig, spec: ModelSpec) -> Model:
    """Build stem, a stage of units for each level on both ways, steps between them, and head."""
    init, policy, compute_dtype = spec.init, config.policy, spec.compute_dtype
    widths, numbers = [width // 2 for width in config.filters], FixedPoint(config.snap_bits)
    numerics = Numerics(compute_dtype, numbers, numbers)
    # float16 has no exponents for scaled values
    low_dtype = init.dtype if compute_dtype == tf.float16 and config.snap_bits else compute_dtype

    def stage(level: int) -> Stage:
        width, count = widths[level], config.units[level]
        # memory peaks in the first level: values as large as its streams stay in low precision, and `add` casts them
        dtype = low_dtype if level == 0 else init.dtype

        def residual() -> OnStreams:
            function = NormedConv(init, config.norm, 3, width, width, numerics, low_peak=level == 0)
            return OnStreams(function, numbers, dtype)

        units = [
            Coupling(residual(), residual(), numbers=numbers, checks_range=index == count - 1) for index in range(count)
        ]
        return Stage(policy, units, exact=config.snap_bits > 0)

    def fork(inputs: int, outputs: int) -> Fork:
        # no strided kernel: of maps of one column oneDNN returns random numbers as its gradient in bfloat16
        pool = PoolAndPad(inputs, inputs, 2, Numerics(compute_dtype, reads=numbers))
        conv = NormedConv(init, config.norm, 1, inputs, outputs, Numerics(compute_dtype, adds_to=numbers))
        return Fork(OnStreams(Chain(STORE, [pool, conv]), numbers, init.dtype), numbers)

    def up(inputs: int, outputs: int) -> OnStreams:
        conv = NormedConv(init, config.norm, 1, inputs, 4 * outputs, numerics)
        return OnStreams(Chain(STORE, [conv, double_size]), numbers, init.dtype)

    plain = Numerics(compute_dtype, adds_to=numbers)
    stems = [
        OnStreams(NormedConv(init, None, 3, spec.channels, widths[0], plain), numbers, init.dtype) for _ in range(2)
    ]
    segments: list[Segment] = [Chain("store" if policy == STORE else "recompute", [Stems(*stems)]), stage(0)]
    steps = list(enumerate(pairwise(widths)))
    for level, (inputs, outputs) in steps:
        segments.append(pass_skips(level, StepDown(policy, [fork(inputs, outputs) for _ in range(2)])))
        segments.append(pass_skips(level + 1, stage(level + 1)))
    for level, (outputs, inputs) in reversed(steps):
        segments.append(pass_skips(level, StepUp(policy, [up(inputs, outputs) for _ in range(2)], numbers)))
        segments.append(pass_skips(level, stage(level)))
    reads = Numerics(reads=numbers)
    logits = [NormedConv(init, config.norm, 1, widths[0], spec.num_classes, reads) for _ in range(2)]
    segments.append(Chain("store" if policy == STORE else "recompute", [StreamsHead(init, logits, spec.num_classes)]))
    return with_norm_momentum(Model(segments, compute_dtype), config.norm_momentum)
