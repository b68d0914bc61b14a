"""The checkpoints of a run: the last N states and the best one, by tf.train.Checkpoint.

A checkpoint holds model, optimizer, moving averages, loss scale and the update count, never the buffers of a window. A
restored run continues bit for bit.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError

# what TensorFlow raises for a damaged checkpoint, or for one of another model
UNREADABLE = (tf.errors.OpError, AssertionError, IndexError, ValueError, RuntimeError)


class Checkpoints:
    """The checkpoints of one run, in `directory`: `step-<n>` and `best/step-<n>`. Create it outside any scope.

    Args:
        window: the state to save and restore.
        keep: number of last states to keep.
        writes: False writes nothing, on workers that leave this to the chief.
    """

    def __init__(self, directory: Path, window: Window, keep: int, writes: bool = True):
        self.directory, self.step, self._writes = directory, window.step, writes
        with tf.device("CPU"):  # float64: what is read back must equal what was measured
            self.best_accuracy = tf.Variable(-1.0, trainable=False, dtype=tf.float64)
            self.best_loss = tf.Variable(float("inf"), trainable=False, dtype=tf.float64)
        state = {"model": window.model, "optimizer": window.optimizer, "step": window.step}
        if window.ema is not None:
            state["ema"] = window.ema
        if window.loss_scale is not None:
            state["loss_scale"] = window.loss_scale
        self._checkpoint = tf.train.Checkpoint(**state, best_accuracy=self.best_accuracy, best_loss=self.best_loss)
        self._last = _manager(self._checkpoint, directory, keep)
        self._best = _manager(self._checkpoint, directory / "best", 1)

    def restore(self) -> bool:
        """Restores the last state. Returns whether there is one.

        Raises:
            CheckpointError: it is damaged or belongs to another model.
        """
        path = self._last.latest_checkpoint
        if path is None:
            return False
        try:
            self._checkpoint.restore(path).assert_existing_objects_matched()
        except UNREADABLE as error:
            raise _unusable(path, error) from error
        return True

    def save(self) -> None:
        """Saves the state of the last update, unless it is saved already.

        Raises:
            CheckpointError: it can't be written; the checkpoints before it are untouched.
        """
        step = int(self.step.numpy())
        if self._last.latest_checkpoint is None or not self._last.latest_checkpoint.endswith(f"step-{step}"):
            self._write(self._last, step)

    def save_if_best(self, loss: float, accuracy: float) -> bool:
        """Saves the state if it has the best test accuracy so far, or the same with a lower loss. Returns whether."""
        if (accuracy, -loss) <= (float(self.best_accuracy), -float(self.best_loss)):
            return False
        self.best_accuracy.assign(accuracy)
        self.best_loss.assign(loss)
        self._write(self._best, int(self.step.numpy()))
        return True

    @property
    def best(self) -> dict[str, float] | None:
        """Loss and accuracy of the best state; None before the first evaluation."""
        if float(self.best_accuracy) < 0:
            return None
        return {"loss": float(self.best_loss), "accuracy": float(self.best_accuracy)}

    def _write(self, manager: tf.train.CheckpointManager, step: int) -> None:
        if not self._writes:
            return
        try:
            manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            _remove_parts(Path(manager.directory), step)
            full = "No space left on device" in str(error)
            reason = "no space left on the device" if full else str(error).strip().splitlines()[0]
            last = self._last.latest_checkpoint
            raise CheckpointError(
                f"could not save update {step} in {manager.directory}: {reason}; mend that and run the same command "
                + (f"again: it continues from {Path(last).name}" if last else "again: nothing was saved before")
            ) from error


def restore_model(directory: Path, model: Model, ema: MovingAverage | None) -> str:
    """Restores the weights of the best state, or of the last state if there was no evaluation yet.

    Returns:
        The path of the checkpoint.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it belongs to another model.
    """
    path = tf.train.latest_checkpoint(str(directory / "best")) or tf.train.latest_checkpoint(str(directory))
    if path is None:
        raise CheckpointError(f"no checkpoint in {directory}: train first, with the same run.name")
    state = {"model": model} if ema is None else {"model": model, "ema": ema}
    try:
        tf.train.Checkpoint(**state).restore(path).expect_partial().assert_existing_objects_matched()
    except UNREADABLE as error:
        raise _unusable(path, error) from error
    return path


def _manager(checkpoint: tf.train.Checkpoint, directory: Path, keep: int) -> tf.train.CheckpointManager:
    return tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=keep, checkpoint_name="step")


def _remove_parts(directory: Path, step: int) -> None:
    """Deletes the files of a failed save."""
    for part in directory.glob(f"step-{step}[._]*"):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def _unusable(path: str, error: Exception) -> CheckpointError:
    reason = str(error).strip().splitlines()[0]
    return CheckpointError(
        f"checkpoint {path} can't be used: {reason}; delete the files {Path(path).name}.* and the file `checkpoint` "
        "beside them to continue from an older state or from the start"
    )
