"""The segments of a model, and back-propagation through each of them by its memory policy.

memory      kept of the forward pass                    backward
store       every activation                            plain back-propagation
recompute   the segment's input, in a reversible        the segment or unit is computed again, then back-propagated
            stage that of each unit
reverse     the output (and the input of a stage        each unit's input is computed from its output
            whose first unit is not invertible)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint, add, fingerprint_streams, times
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Pullback, Streams, chain_pullback, pullback
from accumtrain.backprop.replay import Consume, Keep, forward_stored, replay, save_for_backward
from accumtrain.backprop.tracing import after, is_for_xla

Backward = Callable[[Streams, Streams], tuple[Streams, Streams]]  # (output, its gradient) -> (input, its gradient)


class Segment(Protocol):
    """A part of a model: a function from one tensor or pair of streams to another."""

    def __call__(self, x: Any, mode: Mode) -> Any: ...

    def forward(self, x: Any, mode: Mode, consume: Consume) -> tuple[Any, Backward]:
        """Run a training pass. Return the output and the function that back-propagates through the segment.

        Args:
            consume: gets the gradients of the segment's variables.
        """


class Chain(tf.Module):
    """Layers applied one after the other.

    Args:
        memory: `store` keeps all activations for the backward pass, `recompute` only the input.
        layers: functions of (x, mode). Those with variables must be tf.Modules.
        twice: number of layers, the first ones, that `recompute` computes again twice: for the input of the others, and
            when these are done and their activations freed.

    Raises:
        ValueError: `memory` is neither.
    """

    def __init__(self, memory: str, layers: Sequence[Module], twice: int = 0):
        super().__init__()
        _check_memory("Chain", memory, ("store", "recompute"))
        self.memory, self.layers, self._twice = memory, list(layers), twice

    def __call__(self, x: Streams, mode: Mode) -> Streams:
        for layer in self.layers:
            x = layer(x, mode)
        return x

    def pullback(self, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
        return chain_pullback(self.layers, x, mode)

    def forward(self, x: Streams, mode: Mode, consume: Consume) -> tuple[Streams, Backward]:
        if self.memory == "store" or not self._twice:
            return forward_by_memory(self, x, mode, consume)
        first, others = (Chain(self.memory, part) for part in (self.layers[: self._twice], self.layers[self._twice :]))
        y, _ = self.pullback(x, mode)

        def backward(_: Streams, d_y: Streams) -> tuple[Streams, Streams]:
            again = after([d_y], x)
            with tf.control_dependencies(tf.nest.flatten(again)):
                middle, _ = first.pullback(again, mode.replay())
            _, d_middle, _ = replay(others, middle, d_y, mode, consume)
            return replay(first, x, d_middle, mode, consume)[:2]

        return y, backward


class OnStreams(tf.Module):
    """A function whose output is added to a stream, or becomes one.

    Args:
        function: its pullback takes and returns gradients for values without a factor.
        numbers: of the stream.
        dtype: of the output and of the gradient of the input: float32, float64, or the lower precision that the
            function computes in. None is that of the input.
        scales: the function itself returns values times `numbers.factor`.
    """

    def __init__(self, function: Module, numbers: FixedPoint, dtype: tf.DType | None = None, scales: bool = True):
        super().__init__()
        self.function, self.numbers, self.dtype, self.scales = function, numbers, dtype, scales

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        with tf.control_dependencies([x]):  # without it the kernels of all units are cast, and kept, from the start
            return self._scaled(self.function(x, mode), self.dtype or x.dtype, mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        """Return the output and its pullback, which takes the gradient of the values without the scale."""
        dtype = self.dtype or x.dtype
        with tf.control_dependencies([x]):
            y, function_backward = pullback(self.function, x, mode)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
                d_x, gradients = function_backward(tf.cast(d_y, y.dtype))
                d_x = tf.zeros_like(x) if d_x is None else d_x  # the output does not depend on the input
                return tf.cast(d_x, dtype), gradients

            return self._scaled(y, dtype, mode), backward

    def _scaled(self, y: tf.Tensor, dtype: tf.DType, mode: Mode) -> tf.Tensor:
        numbers = self.numbers.for_mode(mode)
        done = numbers.factor(y.dtype) if self.scales else 1.0
        return times(tf.cast(y, dtype), numbers.scale(dtype) / done)


class Coupling(tf.Module):
    """One reversible unit (Gomez et al. 2017, arXiv:1707.04585): y1 = s1(x1) + F(x2), y2 = s2(x2) + G(y1).

    Reversal is exact to the bit for streams in fixed point, and up to rounding for floats.

    Args:
        f: a function of (x [N, ...], mode), whose values are those that `numbers.add` takes (`OnStreams`).
        g: another one.
        shortcuts: s1 and s2, such functions too; None is the identity, and only then the unit is invertible.
        numbers: of the streams.
        checks_range: a training pass looks for streams that have left the range of the numbers.
    """

    def __init__(
        self,
        f: Module,
        g: Module,
        shortcuts: tuple[Module, Module] | None = None,
        numbers: FixedPoint = FLOATS,
        checks_range: bool = False,
    ):
        super().__init__()
        self.f, self.g, self.shortcuts, self.numbers, self.checks_range = f, g, shortcuts, numbers, checks_range

    @property
    def invertible(self) -> bool:
        return self.shortcuts is None

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        x1, x2 = x
        numbers = self.numbers.for_mode(mode)
        f = self.f(x2, mode)
        if self.shortcuts is not None:
            x1, x2 = (numbers.differentiable_encode(s(x, mode)) for s, x in zip(self.shortcuts, x, strict=True))
        y1 = numbers.differentiable_add(x1, f)
        return self._check_range((y1, numbers.differentiable_add(x2, self.g(y1, mode))), mode)

    def inverse(self, y: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the input of an invertible unit in training, from its output."""
        y1, y2 = y
        x2 = self.numbers.subtract(y2, self.g(y1, mode))
        return self.numbers.subtract(y1, self.f(x2, mode)), x2

    def pullback(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[Streams, Pullback]:
        x1, x2 = x
        shortcut1, shortcut2 = self.shortcuts or (None, None)
        numbers = self.numbers.for_mode(mode)
        in_place = mode.replaying  # a replay has less memory to spare than the first pass
        f, f_backward = pullback(self.f, x2, mode)
        s1, s1_backward = pullback(shortcut1, x1, mode)
        s2, s2_backward = pullback(shortcut2, x2, mode)
        if self.shortcuts is not None:
            s1, s2 = numbers.encode(s1), numbers.encode(s2)
        y1 = numbers.add(s1, f, in_place=in_place)
        g, g_backward = pullback(self.g, y1, mode)

        def backward(d_y: tuple[tf.Tensor, tf.Tensor]) -> tuple[Streams, Gradients]:
            d_y1, d_y2 = d_y
            d_y1_by_g, g_gradients = g_backward(d_y2)
            d_y1 = add(d_y1, d_y1_by_g, in_place=in_place)
            d_x2_by_f, f_gradients = f_backward(d_y1)
            d_x1, s1_gradients = s1_backward(d_y1)
            d_x2_by_s2, s2_gradients = s2_backward(d_y2)
            d_x2 = add(d_x2_by_s2, d_x2_by_f, in_place=in_place)
            return (d_x1, d_x2), g_gradients + f_gradients + s1_gradients + s2_gradients

        return self._check_range((y1, numbers.add(s2, g, in_place=in_place)), mode), backward

    def _check_range(self, y: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        """Return y. Note in the mode how near its limit it comes, where `checks_range` asks for that."""
        numbers = self.numbers.for_mode(mode)
        if not self.checks_range or not numbers.bits or mode.replaying:
            return y
        reach = numbers.reach(y)
        mode.reach.append(reach)
        return y if is_for_xla() else after([reach], y)  # a late check would keep y in memory

    def reverse(
        self, kept: Streams | None, y: Streams, d_y: Streams, mode: Mode, consume: Consume
    ) -> tuple[Streams, Streams]:
        """Compute the input and its gradient from the output and its gradient.

        It replays G, then F, then the shortcuts. Each is freed before the next. Sums are formed in the same order as in
        `pullback`, so the gradient has the same bits.

        Args:
            kept: the input of a unit that is not invertible, else None.
        """
        (y1, y2), (d_y1, d_y2) = y, d_y
        undo = self.numbers.subtract
        invert1, invert2 = (partial(undo, y1), partial(undo, y2)) if self.invertible else (None, None)
        y1, d_y1_by_g, x2 = replay(self.g, after([d_y1], y1), d_y2, mode, consume, invert2)
        d_y1 = add(d_y1, d_y1_by_g, in_place=True)
        x2, d_x2_by_f, x1 = replay(self.f, x2 if kept is None else kept[1], d_y1, mode, consume, invert1)
        if self.shortcuts is None or kept is None:
            return (x1, x2), (d_y1, add(d_y2, d_x2_by_f, in_place=True))
        x1, d_x1, _ = replay(self.shortcuts[0], kept[0], after([d_x2_by_f], d_y1), mode, consume)
        _, d_x2_by_s2, _ = replay(self.shortcuts[1], x2, after([d_x1], d_y2), mode, consume)
        return (x1, x2), (d_x1, add(d_x2_by_s2, d_x2_by_f, in_place=True))


class Stage(tf.Module):
    """Reversible units applied one after the other.

    Args:
        memory: `store` keeps all activations for the backward pass, `recompute` the input of each unit, `reverse` only
            the output.
        units: the first may have shortcuts and so change the shape of the streams; `reverse` then keeps its input, too.
        exact: the units are made to be reversed to the bit. The mode is told if they are not.
        keep_first: the function by which `recompute` keeps the input of the first unit.
        stored: number of units, the last ones, that keep all activations in spite of `memory`.

    Raises:
        ValueError: `memory` is none of these, or another unit than the first is not invertible.
    """

    def __init__(
        self,
        memory: str,
        units: Sequence[Coupling],
        exact: bool = True,
        keep_first: Keep = save_for_backward,
        stored: int = 0,
    ):
        super().__init__()
        _check_memory("Stage", memory, ("store", "recompute", "reverse"))
        self.memory, self.units, self.exact, self._keep_first = memory, list(units), exact, keep_first
        self._stored = len(self.units) if memory == "store" else stored
        if not all(unit.invertible for unit in self.units[1:]):
            raise ValueError("only the first unit of a stage may change the shape of the streams")

    def __call__(self, x: Streams, mode: Mode) -> Streams:
        for unit in self.units:
            x = unit(x, mode)
        return x

    def pullback(self, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
        return chain_pullback(self.units, x, mode)

    def forward(self, x: Streams, mode: Mode, consume: Consume) -> tuple[Streams, Backward]:
        first = len(self.units) - self._stored
        forward = self._forward_recomputed if self.memory == "recompute" else self._forward_reversed
        backwards: list[Backward] = []
        if first:
            x, backward = forward(self.units[:first], x, mode, consume)
            backwards.append(backward)
        for unit in self.units[first:]:
            x, backward = forward_stored(unit, x, mode, consume)
            backwards.append(backward)
        return x, partial(_go_back, backwards)

    def _forward_reversed(
        self, units: Sequence[Coupling], x: Streams, mode: Mode, consume: Consume
    ) -> tuple[Streams, Backward]:
        kept = None
        if not units[0].invertible:
            x, kept = save_for_backward(x)
            x, _ = pullback(units[0], x, mode)
        reversed_ = units if kept is None else units[1:]
        x, begin = fingerprint_streams(x) if self.exact and reversed_ else (x, None)
        y, _ = chain_pullback(reversed_, x, mode)

        def backward(y: Streams, d_y: Streams) -> tuple[Streams, Streams]:
            for unit in reversed(reversed_):
                y, d_y = unit.reverse(None, y, d_y, mode, consume)
            if begin is not None:
                y, again = fingerprint_streams(y)
                mode.inexact.append(tf.reduce_any(again != begin))
            elif reversed_:
                mode.not_compared.append(tf.constant(True))
            return (y, d_y) if kept is None else units[0].reverse(kept(d_y), y, d_y, mode, consume)

        return y, backward

    def _forward_recomputed(
        self, units: Sequence[Coupling], x: Streams, mode: Mode, consume: Consume
    ) -> tuple[Streams, Backward]:
        backwards: list[Backward] = []
        for unit in units:
            x, backward = forward_recomputed(
                unit, x, mode, consume, save_for_backward if backwards else self._keep_first
            )
            backwards.append(backward)
        return x, partial(_go_back, backwards)


def _check_memory(segment: str, memory: str, known: Sequence[str]) -> None:
    if memory not in known:
        raise ValueError(f"memory={memory!r}: a {segment} has none of this name; choose from {', '.join(known)}")


def _go_back(backwards: Sequence[Backward], y: Streams, d_y: Streams) -> tuple[Streams, Streams]:
    """Back-propagate through parts of a stage, from the last."""
    for backward in reversed(backwards):
        y, d_y = backward(y, d_y)
    return y, d_y


def forward_by_memory(segment: Any, x: Streams, mode: Mode, consume: Consume) -> tuple[Streams, Backward]:
    """Do `Segment.forward` for a segment whose `memory` is `store` or `recompute`."""
    if segment.memory == "store":
        return forward_stored(segment, x, mode, consume)
    return forward_recomputed(segment, x, mode, consume)


def forward_recomputed(
    module: Module, x: Streams, mode: Mode, consume: Consume, keep: Keep = save_for_backward
) -> tuple[Streams, Backward]:
    """Run a module and keep its input. Return y, and the function that computes y again and back-propagates."""
    x, kept = keep(x)
    y, _ = pullback(module, x, mode)

    def backward(_: Streams, d_y: Streams) -> tuple[Streams, Streams]:
        if all(gradient is None for gradient in tf.nest.flatten(d_y)):  # no gradient arrives, as for integer outputs
            return x, tf.nest.map_structure(lambda _: None, x)
        return replay(module, kept(d_y), d_y, mode, consume)[:2]

    return y, backward
