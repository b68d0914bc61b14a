"""What a run knows of its reversed activations, which have the bits of the computed ones or not."""

from __future__ import annotations

from collections.abc import Mapping

from accumtrain.backprop.target import on_gpu
from accumtrain.config.schema import Config
from accumtrain.console import warn
from accumtrain.devices.found import Devices
from accumtrain.kinds.model_keys import REVERSE

EXACT, INEXACT, NOT_COMPARED = "exact", "not exact", "not compared"


def compares(config: Config, devices: Devices) -> bool:
    """Whether reversed activations are compared with the computed ones, as `backprop.mark` and the stages decide."""
    return bool(config.model.stream_bits) and not (devices.xla or on_gpu())


class Reversal:
    """What the updates of a session have told.

    Attributes:
        known: EXACT, INEXACT or NOT_COMPARED; None before the first update, and where nothing is reversed.
    """

    def __init__(self, memory: str):
        self._reverses = memory == REVERSE
        self.known: str | None = None

    def note(self, update: Mapping[str, float], done: int) -> None:
        """Takes note of an update, number `done`. Warns, once, of a reversal that was not exact to the bit."""
        if not self._reverses or self.known == INEXACT:
            return
        self.known = INEXACT if not update["exact"] else EXACT if update["compared"] else NOT_COMPARED
        if self.known == INEXACT:
            warn(
                f"update {done}: reversed activations had other bits than the computed ones, so a kernel has not "
                "given the same bits twice. From here on the gradient may be off by roundings: job=verify measures by "
                "how much, and model.memory=recompute or store reverses nothing"
            )
