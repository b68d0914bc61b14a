"""The checkpoints of a run by tf.train.Checkpoint: the last N states and the best one.

A checkpoint holds model, optimizer, moving averages, loss scale and the update count, never the buffers of a window. A
restored run continues bit for bit. Micro-steps change nothing but the buffers. So a thread writes the state while the
next window is filled, and only the commit has to wait for it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.engine.compiled_function import NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError, first_line
from accumtrain.runs.checkpoint_store import (
    ChangedError,
    CheckpointStore,
    DamagedError,
    Saved,
    best_first,
    find_whole,
    newest_first,
)
from accumtrain.runs.config import BEST_STATE
from accumtrain.runs.names import BEST
from accumtrain.runs.schema import Manifest
from accumtrain.tasks.config import ACCURACY, LOSS
from accumtrain.train.config import BestBy

# The errors that TensorFlow raises for the checkpoint of another model.
OF_ANOTHER_MODEL = (
    tf.errors.NotFoundError,
    tf.errors.InvalidArgumentError,
    AssertionError,
    IndexError,
    ValueError,
    RuntimeError,
)
TRIES = 5  # to read a checkpoint beside a training that deletes it
READ_AT_ONCE = 2**20  # bytes of tensors that are read back together: they come on top of the peak of an update

Result = TypeVar("Result")

# ---- files -----------------------------------------------------------------------------------------------------------


def again_if_changed(read: Callable[[], Result]) -> Result:
    """Call `read`, which looks for a checkpoint, and call it again when a training has deleted what it found.

    Raises:
        ChangedError: in all of TRIES calls.
    """
    for _ in range(TRIES - 1):
        with suppress(ChangedError):
            return read()
    return read()


def find_state(directory: Path, state: str = BEST_STATE) -> tuple[Saved, Manifest]:
    """Return the checkpoint of a run's best or last state, and its manifest.

    One that is not whole is passed over. Without any evaluation the best state is the last.

    Raises:
        CheckpointError: there is no whole checkpoint.
        ChangedError: as `find_whole`.
    """
    found = best_first(directory) if state == BEST_STATE else newest_first(directory)
    if not found:
        raise CheckpointError(f"no checkpoint in {directory}: train first, with the same run.name")
    return find_whole(found)


def load_into(checkpoint: tf.train.Checkpoint, saved: Saved, *, frees_first: bool = True) -> None:
    """Restore all objects of `checkpoint`. The files may hold more.

    Args:
        frees_first: whether the memory of the variables is freed before the files are read; after an error they have no
            values then. TensorFlow reads all values before it writes one, and takes the memory of all variables twice
            otherwise. Variables of several replicas are not freed.

    Raises:
        CheckpointError: the files belong to another model, or can't be read.
        ChangedError: they are not those that were found.
        tf.errors.ResourceExhaustedError: memory has run out.
    """
    for variable in _variables(checkpoint) if frees_first else ():
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([0], variable.dtype))
    try:
        checkpoint.read(saved.prefix).expect_partial().assert_existing_objects_matched()
    except tf.errors.DataLossError as error:
        raise ChangedError(saved) from error
    except OF_ANOTHER_MODEL as error:
        if not saved.exists:
            raise ChangedError(saved) from error
        raise CheckpointError(
            f"checkpoint {saved.path} belongs to another model or optimizer: {first_line(error)}; give the command "
            "that the run was trained with, or choose another run.name"
        ) from error
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as error:
        said = f"checkpoint {saved.path} can't be read: {first_line(error)}; run the same command again"
        raise CheckpointError(said) from error


def _variables(checkpoint: tf.train.Checkpoint) -> Iterator[tf.Variable]:
    """Yield the variables below a checkpoint that one replica has, those in variables of Keras too."""
    keras = sys.modules.get("keras")  # a second to import, if nobody has
    for found in tf.train.TrackableView(checkpoint).descendants():
        variable = found.value if keras is not None and isinstance(found, keras.Variable) else found
        if isinstance(variable, tf.Variable) and not isinstance(variable, tf.distribute.DistributedValues):
            yield variable


class TensorReader:
    """A reader of all tensors of checkpoints that hold the same ones, some at a time, to compare their checksums.

    TensorFlow computes these checksums from the memory that it writes.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[list[str], list[tf.DType]]] = []  # names and dtypes of tensors that are read together

    def __call__(self, prefix: str) -> None:
        """Raise tf.errors.OpError, or a ValueError or RuntimeError without an index, if a file is damaged."""
        if not self._groups:
            self._groups = list(_groups(prefix))
        with tf.device("CPU"):
            for names, dtypes in self._groups:
                tf.raw_ops.RestoreV2(
                    prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
                )


def _groups(prefix: str) -> Iterator[tuple[list[str], list[tf.DType]]]:
    """Yield names and dtypes of tensors that take up to READ_AT_ONCE together, or of one that takes more."""
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    names: list[str] = []
    size = 0
    for name in sorted(shapes):
        bytes_of_tensor = math.prod(shapes[name]) * dtypes[name].size
        if names and size + bytes_of_tensor > READ_AT_ONCE:
            yield names, [dtypes[key] for key in names]
            names, size = [], 0
        names.append(name)
        size += bytes_of_tensor
    if names:
        yield names, [dtypes[key] for key in names]


# ---- the checkpoints of a run ----------------------------------------------------------------------------------------

NICENESS = 19  # of the thread that writes: it has the processors when training leaves them
# Seconds. If training waits longer than this for a checkpoint, other programs use the processors, and the thread that
# writes must have a normal priority.
PATIENCE = 0.25


class Checkpoints:
    """The checkpoints of one run, in `directory`: `step-<n>` and `best/step-<n>`. Create it outside any scope.

    Call `wait` before anything but micro-steps changes the state.

    Args:
        window: the state to save and restore.
        keep: number of last states to keep.
        keep_hours: one more is kept for every so many hours; None keeps no others.
        facts: returns further content of the manifest of a checkpoint, when it is begun.
        writes: False writes nothing, on workers that leave this to the chief.
        frees_first: as in `load_into`.
        best_by: decides which state is the best; None is the accuracy if it is measured, else the loss.
        runtime: of the devices; None is TensorFlow's.
    """

    def __init__(
        self,
        directory: Path,
        window: Window,
        keep: int,
        *,
        facts: Callable[[], Mapping[str, Any]],
        keep_hours: float | None = None,
        writes: bool = True,
        frees_first: bool = True,
        best_by: BestBy | None = None,
        runtime: Runtime | None = None,
    ):
        self.directory, self.step, self._frees_first = directory, window.step, frees_first
        self._model, self._ema = window.model, window.ema
        self._keep, self._keep_hours, self._facts, self._writes = keep, keep_hours, facts, writes
        # In checkpoints `best_accuracy` is the name of the value of the metric that decides, whichever that is. It is 0
        # if the loss decides alone. An infinite `best_loss` says that there is no best state yet.
        with tf.device("CPU"):  # float64: what is read back must equal what was measured
            self.best_accuracy = tf.Variable(-1.0, trainable=False, dtype=tf.float64)
            self.best_loss = tf.Variable(float("inf"), trainable=False, dtype=tf.float64)
        state = {"model": window.model, "optimizer": window.optimizer, "step": window.step}
        if window.ema is not None:
            state["ema"] = window.ema
        if window.loss_scale is not None:
            state["loss_scale"] = window.loss_scale
        self._runtime = runtime or TensorFlowRuntime()
        self._best_by = best_by or (BestBy(ACCURACY, True) if ACCURACY in window.metrics else BestBy(LOSS, False))
        self._checkpoint = tf.train.Checkpoint(**state, best_accuracy=self.best_accuracy, best_loss=self.best_loss)
        # a graph, as tf.train.Checkpoint walks through all objects in each call
        self._save = CompiledFunction(self._save_graph, NO_GRAPH_OPTIMIZER)
        self._last, self._best = CheckpointStore(directory), CheckpointStore(directory / BEST)
        self._read_back = TensorReader()
        self._writer, self._yields = ThreadPoolExecutor(1, "checkpoint"), True
        self._pending: Future[None] | None = None
        self._saved_step: int | None = None
        self.pauses: list[float] = []  # seconds that training has waited for each checkpoint

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last checkpoint, and end the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    # --- restore --------------------------------------------------------------------------------------------------

    def restore(
        self, accept: Callable[[Manifest], None] = lambda manifest: None, *, needed: bool = False
    ) -> Manifest | None:
        """Restore the newest whole checkpoint, the best one included. Damaged ones are moved to quarantine/.

        Args:
            accept: raises an error if the manifest is not of this run.
            needed: whether it is an error if there is no checkpoint.

        Returns:
            Its manifest; None if there is no checkpoint.

        Raises:
            CheckpointError: none of the checkpoints is whole, one belongs to another model, or none is left. The state
                may be lost then, as `load_into` says.
        """
        if self._writes:
            self._last.sweep()
            self._best.sweep()
        return again_if_changed(lambda: self._restore(accept, needed))

    def _restore(self, accept: Callable[[Manifest], None], needed: bool) -> Manifest | None:
        found = newest_first(self.directory)
        if not found:
            if needed or not tf.size(self.step):  # the size is 0 if an attempt to read one has freed the variables
                raise CheckpointError(
                    f"the checkpoints in {self.directory} are gone, which the run needs to go on: put them back and "
                    "run the same command again, or start anew under another run.name"
                )
            return None
        saved, manifest = find_whole(found, self._dismiss)
        accept(manifest)
        with self._runtime.assigning():
            load_into(self._checkpoint, saved, frees_first=self._frees_first)
        if saved.path.parent == self.directory:  # else, as the best one, it will not stay
            self._saved_step = saved.step
        return manifest

    def restore_best(self) -> tuple[Saved, Manifest]:
        """Restore the weights of the best state. Return and raise what `restore_model` does."""
        with self._runtime.assigning():
            return restore_model(self.directory, self._model, self._ema, frees_first=self._frees_first)

    def _dismiss(self, saved: Saved, reason: str) -> str:
        """Move a damaged checkpoint to quarantine/, unless another worker does. Return a text about that."""
        if not self._writes:
            return ""
        return f"; it is now {CheckpointStore(saved.path.parent).quarantine(saved, reason)}"

    @property
    def best(self) -> dict[str, float] | None:
        """Return loss and deciding metric of the best state; None before the first evaluation."""
        loss, value = float(self.best_loss), float(self.best_accuracy)
        if math.isinf(loss):
            return None
        return {LOSS: loss} if self._best_by.metric == LOSS else {LOSS: loss, self._best_by.metric: value}

    @property
    def best_step(self) -> int | None:
        """The update of the best state that was written last; None if there is none."""
        return next((saved.step for saved in self._best.newest_first()), None)

    def forget_best(self) -> None:
        """Make the next evaluation that of the best state, as the measure that decides has changed."""
        self.best_loss.assign(math.inf)

    # --- save -----------------------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Begin to save the state of the last update. Return False if it is saved already.

        Raises:
            CheckpointError: the checkpoint before it could not be written.
        """
        self.wait()  # what is written now must not change
        with self._runtime.reading():
            step = int(self.step.numpy())
            if step == self._saved_step:
                return False
            self._begin(self._last, step, self._kept)
            self._saved_step = step
            return True

    def save_if_best(self, result: Mapping[str, float]) -> bool:
        """Begin to save the state if it is the best so far: by the metric that decides, or as good with a lower loss.

        Args:
            result: loss and metrics of an evaluation, by name.

        Returns:
            True if it is the best. A state whose loss or deciding metric is not finite is not.

        Raises:
            CheckpointError: the checkpoint before it could not be written.
        """
        rank = self._best_by.rank(result)
        if not all(map(math.isfinite, rank)) or (self.best is not None and rank <= self._best_by.rank(self.best)):
            return False
        self.wait()  # what is written now must not change
        with self._runtime.reading():
            self.best_accuracy.assign(0.0 if self._best_by.metric == LOSS else result[self._best_by.metric])
            self.best_loss.assign(result[LOSS])
            self._begin(self._best, int(self.step.numpy()), lambda newest_first: newest_first[:1])
            return True

    def wait(self) -> None:
        """Wait until the state is written, so that it may change.

        Raises:
            CheckpointError: it can't be written; the checkpoints before it are untouched.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        started = time.perf_counter()
        pending.result()
        waited = time.perf_counter() - started
        if waited > PATIENCE and self._yields and len(self.pauses) > 1:  # the first one traces
            self._writer.shutdown()  # as no thread may raise its priority again
            self._writer, self._yields = ThreadPoolExecutor(1, "checkpoint"), False
        self.pauses[-1] += waited

    def _begin(self, store: CheckpointStore, step: int, kept: Callable[[list[Saved]], list[Saved]]) -> None:
        self.wait()
        if self._writes:
            self.pauses.append(0.0)
            self._pending = self._writer.submit(self._write, store, step, dict(self._facts()), kept)

    def _write(
        self, store: CheckpointStore, step: int, facts: dict[str, Any], kept: Callable[[list[Saved]], list[Saved]]
    ) -> None:
        try:
            store.write(step, self._write_files, self._read_back, facts)
        except (tf.errors.OpError, DamagedError, CheckpointError) as error:
            full = "No space left on device" in str(error)
            reason = "no space left on the device" if full else first_line(error)
            last = next(iter(newest_first(self.directory)), None)
            raise CheckpointError(
                f"could not save update {step} in {store.directory}: {reason}; fix that and run the same command "
                + (f"again: it continues from step-{last.step}" if last else "again: nothing was saved before")
            ) from error
        store.keep(kept)

    def _save_graph(self, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device(self.best_loss.device):  # TensorFlow writes one file for each device
            return {"prefix": self._checkpoint.write(prefix)}

    def _write_files(self, prefix: str) -> None:
        save = self._save.get_concrete_function(tf.constant(prefix))
        if self._yields:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        if len({variable.device for variable in save.captured_inputs}) > 1:  # this executor takes one device
            save(tf.constant(prefix))
            return
        tf.raw_ops.PartitionedCall(
            args=[tf.constant(prefix), *save.captured_inputs],
            Tout=[tf.string],
            f=save,
            executor_type="SINGLE_THREADED_EXECUTOR",  # in this thread, as TensorFlow's others take turns with training
        )

    def _kept(self, newest_first: list[Saved]) -> list[Saved]:
        """Return the last `keep` checkpoints, and of those before them one for every `keep_hours`."""
        kept, before = newest_first[: self._keep], newest_first[self._keep :]
        if self._keep_hours is not None:
            last = float("-inf")
            for saved in reversed(before):
                if saved.written_at - last >= 3600 * self._keep_hours:
                    kept.append(saved)
                    last = saved.written_at
        return kept


def restore_model(
    directory: Path,
    model: Model,
    ema: MovingAverage | None,
    accept: Callable[[Manifest], None] = lambda manifest: None,
    *,
    state: str = BEST_STATE,
    frees_first: bool = True,
) -> tuple[Saved, Manifest]:
    """Restore the weights of a run's best state, or of its last.

    A damaged checkpoint is skipped with a warning; nothing is moved. The run may train meanwhile, and replace its best
    state: then that one is taken.

    Args:
        accept: as in `Checkpoints.restore`.
        state: `best` or `last`. Without any evaluation the best state is the last.
        frees_first: as in `load_into`.

    Returns:
        The checkpoint and its manifest.

    Raises:
        CheckpointError: no checkpoint is whole, or one belongs to another model. The weights may be lost then, as
            `load_into` says.
    """
    checkpoint = tf.train.Checkpoint(model=model) if ema is None else tf.train.Checkpoint(model=model, ema=ema)

    def restore() -> tuple[Saved, Manifest]:
        saved, manifest = find_state(directory, state)
        accept(manifest)
        load_into(checkpoint, saved, frees_first=frees_first)
        return saved, manifest

    return again_if_changed(restore)
