"""Functions of a user's program that a training calls: `add_hook`, and the state that they are given.

No TensorFlow here, as programs add hooks before the command line is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accumtrain.errors import ConfigError
from accumtrain.registry import load, module_of

if TYPE_CHECKING:
    from accumtrain.backprop.model import Model
    from accumtrain.train.metrics import Position

EVENTS = ("update", "evaluation", "checkpoint", "end")
BEGINNINGS = ("begin", "epoch_begin", "update_begin", "evaluation_begin")  # of a session, an epoch, ...
EPOCH = "epoch"  # the end of one, after its evaluation; or of the training amid one


@dataclass(frozen=True)
class TrainingState:
    """The state of a training as a hook sees it.

    Attributes:
        step: updates made.
        total_steps: updates of the whole run.
        total_epochs: epochs of the whole run, of which the last may be in part.
        epoch: passes over the training data.
        metrics: loss and metrics by name. Hooks on updates and checkpoints get those of the last update, and its
            learning_rate and grad_norm. Hooks on evaluations and on the end get those of the last evaluation.
        model: the model. Read it: changed weights are not supported.
        folder: the folder of the run.
        epoch_metrics: means of loss and metrics over the updates of this epoch so far.
        kept: JSON values by name that hooks keep in the checkpoints, or functions that return one for each. A
            continued run has the values again.
        log: writes numbers by name to metrics.jsonl (split "hook") and all trackers.
        request_stop: stops the run as a signal does, for a reason that is printed. Its state is saved, the exit code is
            75, and the same command goes on. All workers stop after the same update.
        finish: ends the run as complete after this update, for a reason that is printed. It is for one worker alone.
    """

    step: int
    total_steps: int
    total_epochs: int
    epoch: float
    metrics: Mapping[str, float]
    model: Model
    folder: Path
    log: Callable[[Mapping[str, float]], None]
    request_stop: Callable[[str], None]
    epoch_metrics: Mapping[str, float]
    kept: dict[str, Any]
    finish: Callable[[str], None]


@dataclass(frozen=True)
class Hook:
    """A function that is called on an event, on updates after each `every` of them.

    `on` is one of EVENTS, BEGINNINGS or EPOCH. One that `assigns` may change weights and variables of the optimizer.
    """

    function: str | Callable[[TrainingState], Any]
    every: int
    on: str
    assigns: bool = False


ADDED: list[Hook] = []  # in the order of the calls


def add_hook(function: str | Callable[[TrainingState], Any], every: int = 1, on: str = "update") -> None:
    """Have job=train call a function, outside of graphs and on the chief alone.

    After an update hooks run before its checkpoint. Small models make several updates in one compiled call, and a hook
    sees the last of these. With `every=1` each call makes one. Hooks of one event run in the order in which they were
    added. An error of a hook ends the run: an AccumtrainError with its message and exit code, any other as a bug. The
    last checkpoint stays.

    Args:
        function: takes a `TrainingState`; or "module:function", which is imported when the run begins.
        every: of on="update": the updates from one call to the next.
        on: "update", "evaluation", "checkpoint" or "end". An evaluation is that of the split that decides which state
            is the best, before that is saved. The files of a checkpoint are written then. The end comes after the last
            update and evaluation of a run that has finished.

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


@contextmanager
def hooked(hooks: Sequence[Hook]) -> Iterator[None]:
    """Have job=train call more hooks within this context."""
    ADDED.extend(hooks)
    try:
        yield
    finally:
        for hook in hooks:
            ADDED.remove(hook)


def hook_modules() -> set[str]:
    return {module_of(hook.function) for hook in ADDED}


class Hooks:
    """The hooks of one training, imported.

    Args:
        added: the hooks of `add_hook`; empty on a worker that is not the chief.
        log: takes the update and the numbers that a hook logs.
        position: of the run.
        within: returns the context of their calls, where variables and files are those of the last update. It is given
            True if they may assign to variables.
        alone: there is one worker.
        total_steps: updates of the whole run.
        others: `model` and `folder` as in `TrainingState`.

    Attributes:
        intervals: of the hooks on updates, the updates from one call to the next.
        follow_epochs: some are called at the ends of epochs.
        reason_to_stop: of a hook that has asked the run to stop; None before.
        reason_to_finish: of a hook that has ended the run as complete; None before.

    Raises:
        ConfigError: a hook can't be imported.
    """

    def __init__(
        self,
        added: Sequence[Hook],
        log: Callable[[int, Mapping[str, float]], None],
        *,
        position: Position,
        within: Callable[[bool], AbstractContextManager[None]],
        alone: bool,
        total_steps: int,
        **others: Any,
    ):
        self._hooks = [(hook, _imported(hook.function)) for hook in added]
        self._log, self._position, self._within = log, position, within
        self._alone, self._total, self._others = alone, total_steps, others
        self._kept: dict[str, Any] = {}
        self.intervals = [hook.every for hook in added if hook.on in ("update", "update_begin")]
        self.follow_epochs = any(hook.on == EPOCH for hook in added)
        self.reason_to_stop: str | None = None
        self.reason_to_finish: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Their part of the manifest of a checkpoint."""
        kept = {name: value() if callable(value) else deepcopy(value) for name, value in self._kept.items()}
        return {"kept": kept, "finished": self.reason_to_finish, "total": self._total}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. A run that a hook has ended goes on if it is to have another length now."""
        self._kept = deepcopy(facts["kept"])
        self.reason_to_finish = facts["finished"] if facts["total"] == self._total else None

    def due(self, event: str, step: int) -> list[tuple[Hook, Callable[[TrainingState], Any]]]:
        """Return the hooks to call on an event after update `step`, with their functions."""
        return [(hook, function) for hook, function in self._hooks if hook.on == event and step % hook.every == 0]

    def begin_update(self) -> None:
        """Tell of the beginning of an update, and of the epoch before its first one."""
        if not self._position.in_epoch:
            self._position.begin_epoch()
            self.call("epoch_begin")
        self.call("update_begin")

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        self.call(EPOCH, metrics)
        self._position.end_epoch()

    def call(self, event: str, metrics: Mapping[str, float] | None = None) -> None:
        """Call the hooks that are due on an event after the last update."""
        step = self._position.done
        due = self.due(event, step)
        if not due:
            return
        state = TrainingState(
            step=step,
            epoch=self._position.epoch,
            metrics=metrics or {},
            epoch_metrics=self._position.epoch_means,
            log=partial(self._log, step),
            request_stop=self._request_stop,
            finish=self._finish,
            kept=self._kept,
            total_steps=self._total,
            total_epochs=self._position.epochs_begun(self._total),
            **self._others,
        )
        with self._within(any(hook.assigns for hook, _ in due)):
            for _, function in due:
                function(state)

    def _request_stop(self, reason: str) -> None:
        self.reason_to_stop = reason

    def _finish(self, reason: str) -> None:
        if not self._alone:
            raise ConfigError(
                f"a hook has called finish({reason!r}), which only this worker would do: call request_stop, which "
                "stops all workers after the same update"
            )
        self.reason_to_finish = reason


def _imported(function: str | Callable[[TrainingState], Any]) -> Callable[[TrainingState], Any]:
    try:
        return load(function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the hook {function} can't be imported: {error}; name it as 'module:function', with the module in a "
            "folder of sys.path"
        ) from error
