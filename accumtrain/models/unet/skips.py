"""Skip connections as values that go beside the current one, from the way down to the way up."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Module, Streams
from accumtrain.backprop.replay import Consume
from accumtrain.backprop.segments import Backward, Segment


class WithSkip(tf.Module):
    """A segment on the first of two values. The second passes through, and so does its gradient."""

    def __init__(self, segment: Segment):
        super().__init__()
        self.segment = segment

    @property
    def memory(self) -> str:
        """The policy of the segment."""
        return getattr(self.segment, "memory", "-")

    @property
    def layers(self) -> list[Module]:
        """The layers or units of the segment."""
        return getattr(self.segment, "layers", None) or getattr(self.segment, "units", None) or [self.segment]

    def __call__(self, x: tuple[Streams, Streams], mode: Mode) -> tuple[Streams, Streams]:
        return self.segment(x[0], mode), x[1]

    def forward(
        self, x: tuple[Streams, Streams], mode: Mode, consume: Consume
    ) -> tuple[tuple[Streams, Streams], Backward]:
        y, inner_backward = self.segment.forward(x[0], mode, consume)

        def backward(y: Streams, d_y: Streams) -> tuple[Streams, Streams]:
            x, d_x = inner_backward(y[0], d_y[0])
            return (x, y[1]), (d_x, d_y[1])

        return (y, x[1]), backward


def pass_skips(skips: int, segment: Segment) -> Segment:
    """Return a segment beside which so many skip connections go."""
    for _ in range(skips):
        segment = WithSkip(segment)
    return segment
