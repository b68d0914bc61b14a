"""How far a run is: its updates, its place in the stream of examples, and its epochs. Checkpoints hold all three."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from accumtrain.config.arithmetic import Epochs


class Place:
    """The place of a run.

    Args:
        epochs: of the run.

    Attributes:
        done: updates made.
        examples: taken from the stream, those of windows that made no update too: the position in it.
    """

    def __init__(self, batch_size: int, epochs: Epochs):
        self._batch_size, self._epochs = batch_size, epochs
        self.done = self.examples = 0

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest of a checkpoint."""
        return {"examples": self.examples, "epochs": str(self._epochs.at(self.done))}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.done, self.examples = manifest["step"], manifest["examples"]
        self._epochs.restore(self.done, epochs_of(manifest))

    def advance(self, done: int) -> None:
        """Goes on to update `done`."""
        self.examples += (done - self.done) * self._batch_size
        self.done = done

    def pass_over(self) -> None:
        """Goes on after the examples of a window that made no update."""
        self.examples += self._batch_size

    @property
    def epoch(self) -> float:
        """The epochs made."""
        return float(self._epochs.at(self.done))


def epochs_of(manifest: Mapping[str, Any]) -> Fraction:
    """The epochs that were made by the update of a checkpoint."""
    return Fraction(manifest["epochs"])
