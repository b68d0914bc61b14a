"""An update that is not finite: skip, roll back or stop, and where it became so. Reversals and examples left out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.tracing import on_gpu
from accumtrain.config.schema import Config
from accumtrain.console import format_things, warn
from accumtrain.data.local_files import list_first
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.engine.losses import SMALLEST_LOSS_SCALE
from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import Step
from accumtrain.engine.sums import all_finite
from accumtrain.engine.window import Window
from accumtrain.models.config import REVERSE, ModelConfig
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.schema import Recovered, SkippedFile

# ---- how a run goes on (run.on_nonfinite) ----------------------------------------------------------------------------

RATE_FACTOR = 0.5  # on the learning rate, for each rollback
ANOTHER_ORDER = 1_000_003  # added to the seed of the order of examples, for each rollback
LARGEST_SEED = 2**31
WIDER = 4  # bits before the point that a wider range of streams has more


class Recovery:
    """The skipped windows and rollbacks of a run; both counts are saved with its checkpoints.

    Args:
        on_nonfinite: stop, skip or rollback.
        max_nonfinite: skipped updates in a row, or rollbacks, after which the run stops all the same.
        seed: of the order of examples.
        window: for rollbacks, a factor on its rate is added. Create this before the commit is traced.
    """

    def __init__(self, on_nonfinite: str, max_nonfinite: int, seed: int, window: Window):
        self.mode, self._most, self._seed = on_nonfinite, max_nonfinite, seed
        self.skipped = self.rollbacks = self._in_a_row = 0
        self._loss_scale = window.loss_scale
        self._rate_factor: tf.Variable | None = None
        if self.mode == "rollback":
            schedule, factor = window.schedule, tf.Variable(1.0, trainable=False, name="rate_factor")
            window.schedule = lambda step: (value := schedule(step)) * tf.cast(factor, value.dtype)
            self._rate_factor = factor

    @property
    def counts(self) -> Recovered:
        """The counts that the manifest of a checkpoint and the summary hold."""
        return {"skipped": self.skipped, "rollbacks": self.rollbacks}

    @property
    def windows_without_update(self) -> int:
        """The number of windows that were skipped, those that a loss scale has counted too."""
        return self.skipped + (0 if self._loss_scale is None else int(self._loss_scale.skipped.numpy()))

    @property
    def seed(self) -> int:
        """The seed of the order of examples: run.seed, or another one after each rollback."""
        return (self._seed + self.rollbacks * ANOTHER_ORDER) % LARGEST_SEED

    @property
    def rate_factor(self) -> float:
        return RATE_FACTOR**self.rollbacks

    def restore(self, counts: Recovered) -> None:
        self.skipped = counts["skipped"]
        self.roll_back(counts["rollbacks"])

    def allows(self, *, state_finite: bool) -> bool:
        """Return whether the run goes on after an update that is not finite. A state that is not can't be skipped."""
        if self.mode == "skip":
            return state_finite and self._in_a_row < self._most
        return self.mode == "rollback" and self.rollbacks < self._most

    def pass_over(self, update: Mapping[str, float], number: int, window: Window, file: Path) -> str:
        """Return the words about a window that is passed over: all its examples are bad, or float16 overflowed.

        The text is empty of other windows.

        Args:
            update: the scalars of its commit, which has made no update.
            number: of the update.
            file: it lists the examples that are bad.
        """
        if not update["examples"]:
            self.count_skipped(window)
            return f"update {number}: skipped, its examples are bad (see {file})"
        scale = update.get("loss_scale", SMALLEST_LOSS_SCALE)
        if scale > SMALLEST_LOSS_SCALE and update["state_finite"]:
            skipped = f"this batch is skipped (number {update['skipped']}); loss scale {scale:g} -> {scale / 2:g}"
            return f"update {number}: float16 overflowed, {skipped}"
        return ""

    def skip(self, window: Window) -> None:
        self._in_a_row += 1
        self.count_skipped(window)

    def count_skipped(self, window: Window) -> None:
        """Count a window without an update, unless a loss scale has counted it already."""
        if window.loss_scale is None:
            self.skipped += 1

    def roll_back(self, rollbacks: int) -> None:
        """Set the number of rollbacks, and with it the rate."""
        self.rollbacks = rollbacks
        if self._rate_factor is not None:
            self._rate_factor.assign(self.rate_factor)

    def after_update(self) -> None:
        self._in_a_row = 0


def describe_update(
    update: Mapping[str, float],
    done: int,
    model: ModelConfig,
    window: Window,
    step: Step,
    runtime: Runtime,
    batches: Callable[[], Any],
) -> str:
    """Say of an update that is not finite where that shows.

    Args:
        done: updates made, this one aside unless its state alone is not finite.
        batches: returns an iterator that begins with the micro-batches of its window.
    """
    if not update["state_finite"]:
        return f"update {done} left {describe_state(window)}, though loss and gradient were finite"
    if not update["in_range"]:
        return f"update {done + 1} is not finite: {out_of_range(model, window)}"
    return f"update {done + 1} is not finite, {describe_window(window, step, runtime, batches())}"


def out_of_range(model: ModelConfig, window: Window) -> str:
    """Say that streams have left the range of their numbers."""
    limit = FixedPoint(model.stream_bits or 0).limit(window.variables_[0].dtype)
    return (
        f"a stream of the network has left the range from -{limit:g} to {limit:g} of numbers with "
        f"model.snap_bits={model.stream_bits}"
    )


def describe_divergence(update: Mapping[str, float], done: int, model: ModelConfig, folder: Path) -> str:
    """Say of an update that ends a run how large its values are, what is saved in the run's folder, and what to do."""
    if update["state_finite"]:
        last = f"it was not made, and the state after update {done} is saved in {folder}"
    else:
        last = f"it is not saved, and the last checkpoint in {folder} is finite"
    what_to_do = remedy(model, folder.name, in_range=bool(update["in_range"]))
    return f"(loss {update['loss']:.4g}, gradient norm {update['grad_norm']:.4g}); {last}: {what_to_do}"


def remedy(model: ModelConfig, run: str, *, in_range: bool) -> str:
    """Return what to do about the run of this name, which has diverged."""
    smaller = "lower optim.lr, lengthen schedule.warmup or set optim.clip_norm=1, under another run.name"
    if in_range:
        return smaller
    bits = model.stream_bits or 0
    fewer = max(bits - WIDER, 0)
    wider = f"whose range is {2 ** (bits - fewer)} times as large" if fewer else "whose floats have no such range"
    return f"go on with model.snap_bits={fewer} run.name={run} run.resume=force, {wider}; or {smaller}"


def warn_of_rate_jump(config: Config, total_before: int | None, total: int, done: int) -> None:
    """Warn if the learning rate jumps because the run now ends after another number of updates.

    Args:
        total_before: number of updates that the run was to have; None if unknown.
        done: number of updates done.
    """
    if total_before in (None, total) or done == 0:
        return
    step = tf.constant(done, tf.int64)
    before, now = (float(config.schedule.build(count)(step)) for count in (total_before, total))
    if math.isclose(before, now, rel_tol=0.01):
        return
    warn(
        f"schedule={config.schedule.kind} now ends at update {total} instead of {total_before}, so the rate goes on at "
        f"{now:.3g} times optim.lr instead of {before:.3g}. To keep one rate from here on, add run.resume=force "
        "schedule=constant optim.lr=<rate>"
    )


# ---- where it became infinite or NaN ---------------------------------------------------------------------------------

NAMED = 3  # variables, or examples, named in a message


def describe_window(window: Window, step: Step, runtime: Runtime, batches: Any) -> str:
    """Say at which micro-step which sums of a window stop being finite, or else which values of the commit are not.

    The window is empty before and after.

    Args:
        batches: an iterator that begins with the micro-batches of the window.
    """
    for micro_step in range(window.micro_steps):
        step.accumulate(batches)
        with runtime.reading(window.buffers):
            loss_finite = bool(all_finite([tf.convert_to_tensor(window.loss)]))
            bad = _nonfinite(window, zip(window.variables_, window.gradients, strict=True))
        if bad or not loss_finite:
            step.drop()
            what = [] if loss_finite else ["the loss"]
            what += [f"the gradients of {_listed(bad)}"] if bad else []
            # a loss of the whole batch is computed at the last micro-step, for all
            at = "" if window.whole_batch else f"at micro-step {micro_step + 1} of {window.micro_steps} "
            return f"{at}in {' and '.join(what)}"
    with runtime.reading(window.buffers):
        bad = _nonfinite_of_whole(window)
    step.drop()
    return f"in {' and '.join(bad)}" if bad else "though it is when its micro-batches are computed once more"


def _nonfinite_of_whole(window: Window) -> list[str]:
    """Return the names of the values that are not finite, of those that only the commit knows."""
    gradients = [tf.cast(tf.convert_to_tensor(buffer), window.dtype) for buffer in window.gradients]
    values = {
        "the learning rate": [window.rate()],
        "the batch statistics": [tf.convert_to_tensor(buffer) for buffer in window.statistics.buffers],
        "the norm of the gradient": [tf.nn.l2_loss(gradient) for gradient in gradients],
    }
    return [name for name, tensors in values.items() if tensors and not bool(all_finite(tensors))]


def describe_state(window: Window) -> str:
    """Name the variables that are infinite or NaN, as a checkpoint does."""
    pairs = ((variable, variable) for variable in window.updated_variables)
    return f"{_listed(_nonfinite(window, pairs))} infinite or NaN"


def _nonfinite(window: Window, values: Iterable[tuple[tf.Variable, tf.Variable]]) -> list[str]:
    """Return the names of the variables whose values are not finite.

    Args:
        values: pairs of a variable to name, and the value.
    """
    bad = [variable for variable, value in values if not bool(all_finite([tf.convert_to_tensor(value)]))]
    names = _names(window) if bad else {}
    return [names.get(variable.ref(), variable.name) for variable in bad]


def _names(window: Window) -> dict[Any, str]:
    """Return the path of each variable from the window, such as model/stages/0/kernel."""
    names: dict[Any, str] = {}
    roots = {"model": window.model, "optimizer": window.optimizer, "ema": window.ema}
    left = deque((name, root) for name, root in roots.items() if root is not None)
    seen: set[int] = set()
    while left:
        path, trackable = left.popleft()
        if id(trackable) in seen:
            continue
        seen.add(id(trackable))
        if isinstance(trackable, tf.Variable):
            names[trackable.ref()] = path
        left.extend((f"{path}/{name}", child) for name, child in tf.train.TrackableView.children(trackable).items())
    return names


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


# ---- reversed activations --------------------------------------------------------------------------------------------

EXACT, INEXACT, NOT_COMPARED = "exact", "not exact", "not compared"


def compares(config: Config, devices: Devices) -> bool:
    """Return whether reversed activations are compared with the computed ones, as the stages decide."""
    return bool(config.model.stream_bits) and not (devices.xla or on_gpu())


class Reversal:
    """The exactness of a session's reversed activations, as its updates tell it.

    Attributes:
        known: EXACT, INEXACT or NOT_COMPARED; None before the first update, and where nothing is reversed.
    """

    def __init__(self, memory: str):
        self._reverses = memory == REVERSE
        self.known: str | None = None

    def note(self, update: Mapping[str, float], done: int) -> None:
        """Take note of an update, number `done`. Warn, once, of a reversal that was not exact to the bit."""
        if not self._reverses or self.known == INEXACT:
            return
        self.known = INEXACT if not update["exact"] else EXACT if update["compared"] else NOT_COMPARED
        if self.known == INEXACT:
            warn(
                f"update {done}: reversed activations had other bits than the computed ones, so a kernel has not "
                "given the same bits twice. From here on the gradient may be off by roundings: job=verify measures by "
                "how much, and model.memory=recompute or store reverses nothing"
            )


# ---- examples that are left out (data.on_error=skip) -----------------------------------------------------------------

SKIPPED = "skipped.json"


class SkippedExamples:
    """skipped.json: the examples that a run has left out, in all of its sessions. One process of it `writes`."""

    def __init__(self, folder: Path, data: Dataset, *, writes: bool) -> None:
        self.file, self._data, self._writes = folder / SKIPPED, data, writes

    def note(self, tell: Callable[[str], None]) -> None:
        """Add those that are new to the file, and tell of them."""
        known = self._noted()
        new = [example for example in self._data.skipped if example not in known] if self._writes else []
        if not new:
            return
        write_json(self.file, {"count": len(known + new), "examples": known + new})
        some = list_first([example["name"] for example in new], NAMED)
        tell(f"left out, as they can't be read: {format_things(len(new), 'example')}, which {SKIPPED} names ({some})")

    @property
    def count(self) -> int:
        return len(self._noted())

    def _noted(self) -> list[Any]:
        examples: list[Any] = read_json(self.file, SkippedFile)["examples"] if self.file.exists() else []
        return examples
