"""Functions of a user's program that a training calls: `add_hook`, and what they are given.

No TensorFlow here, as programs add hooks before the command line is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accumtrain.errors import ConfigError
from accumtrain.registry import load, module_of

if TYPE_CHECKING:
    from accumtrain.backprop.model import Model

EVENTS = ("update", "evaluation", "checkpoint", "end")


@dataclass(frozen=True)
class TrainingState:
    """The state of a training as a hook sees it.

    Attributes:
        step: updates made.
        total_steps: updates of the whole run.
        epoch: passes over the training data.
        metrics: loss, metrics, learning_rate and grad_norm of the update; loss and metrics of the evaluation after an
            evaluation, and of the last one at the end; of the last update after a checkpoint.
        model: the model. Read it: changed weights are not supported.
        folder: the folder of the run.
        log: writes numbers by name to metrics.jsonl (split "hook") and all trackers.
        request_stop: stops the run as a signal does, for a reason that is told: its state is saved, the exit code is
            75, and the same command goes on. All workers stop after the same update.
    """

    step: int
    total_steps: int
    epoch: float
    metrics: Mapping[str, float]
    model: Model
    folder: Path
    log: Callable[[Mapping[str, float]], None]
    request_stop: Callable[[str], None]


@dataclass(frozen=True)
class Hook:
    """A function that is called on an event; of updates on every so manieth."""

    function: str | Callable[[TrainingState], Any]
    every: int
    on: str


ADDED: list[Hook] = []  # in the order of the calls


def add_hook(function: str | Callable[[TrainingState], Any], every: int = 1, on: str = "update") -> None:
    """Have job=train call a function, outside of graphs and on the chief alone.

    After an update hooks run before its checkpoint. An update that a hook sees is the last of its call, so `every=1`
    turns off that small models make several updates in one call. Hooks of one event run in the order in which they
    were added. An error of a hook ends the run: an AccumtrainError with its message and exit code, any other as a bug.
    The last checkpoint stays.

    Args:
        function: takes a `TrainingState`; or "module:function", which is imported when the run begins.
        every: of on="update": the updates from one call to the next.
        on: "update"; "evaluation" of the split that decides which state is the best; "checkpoint", once its files are
            written; or "end", after the last update and evaluation of a run that has finished.

    Raises:
        ValueError: there is no such event, or `every` is no number of updates.
        TypeError: `function` is no function, or a text that names none.
    """
    if on not in EVENTS:
        raise ValueError(f"on={on!r}: must be one of {', '.join(EVENTS)}")
    if type(every) is not int or every < 1 or (every > 1 and on != "update"):
        raise ValueError(
            f"every={every!r}: must be a whole number of updates, 1 or more; leave it out unless on is 'update'"
        )
    if not (callable(function) or (isinstance(function, str) and all(function.partition(":")))):
        raise TypeError(f"{function!r} is not a function; give one, or write 'module:function'")
    ADDED.append(Hook(function, every, on))


def hook_modules() -> set[str]:
    return {module_of(hook.function) for hook in ADDED}


class Hooks:
    """The hooks of one training, imported.

    Args:
        added: what `add_hook` was given; empty on a worker that is not the chief.
        log: takes the update and the numbers that a hook logs.
        others: `total_steps`, `model`, `folder` as in `TrainingState`.

    Attributes:
        intervals: of the hooks on updates, the updates from one call to the next.
        reason_to_stop: of a hook that has asked the run to stop; None before.

    Raises:
        ConfigError: a hook can't be imported.
    """

    def __init__(self, added: Sequence[Hook], log: Callable[[int, Mapping[str, float]], None], **others: Any):
        self._hooks = [(hook, _imported(hook.function)) for hook in added]
        self._log, self._others = log, others
        self.intervals = [hook.every for hook in added if hook.on == "update"]
        self.reason_to_stop: str | None = None

    def due(self, event: str, step: int) -> list[Callable[[TrainingState], Any]]:
        """Return the functions to call on an event after update `step`."""
        return [function for hook, function in self._hooks if hook.on == event and step % hook.every == 0]

    def call(self, event: str, step: int, epoch: float, metrics: Mapping[str, float]) -> None:
        log = partial(self._log, step)
        state = TrainingState(
            step=step, epoch=epoch, metrics=metrics, log=log, request_stop=self._request_stop, **self._others
        )
        for function in self.due(event, step):
            function(state)

    def _request_stop(self, reason: str) -> None:
        self.reason_to_stop = reason


def _imported(function: str | Callable[[TrainingState], Any]) -> Callable[[TrainingState], Any]:
    try:
        return load(function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the hook {function} can't be imported: {error}; name it as 'module:function', with the module in a "
            "folder of sys.path"
        ) from error
