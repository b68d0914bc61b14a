"""The files of a checkpoint: whether they are whole, and what they hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import tensorflow as tf

from accumtrain.console import warn
from accumtrain.errors import CheckpointError, first_line
from accumtrain.runs.checkpoint_store import ChangedError, DamagedError, Saved

# what TensorFlow raises for the checkpoint of another model
OF_ANOTHER_MODEL = (
    tf.errors.NotFoundError,
    tf.errors.InvalidArgumentError,
    AssertionError,
    IndexError,
    ValueError,
    RuntimeError,
)
TRIES = 5  # to read a checkpoint beside a training that deletes it

Result = TypeVar("Result")
READ_AT_ONCE = 2**20  # bytes of tensors that are read back together: they come on top of the peak of an update


def again_if_changed(read: Callable[[], Result]) -> Result:
    """Calls `read`, which looks for a checkpoint, and calls it again when a training has deleted what it found.

    Raises:
        ChangedError: in all of TRIES calls.
    """
    for _ in range(TRIES - 1):
        with suppress(ChangedError):
            return read()
    return read()


def find_whole(
    candidates: Iterable[Saved], dismiss: Callable[[Saved, str], str] = lambda saved, reason: ""
) -> tuple[Saved, dict[str, Any]]:
    """Returns the first checkpoint that is whole, and its manifest. Warns of the damaged ones before it.

    Args:
        candidates: at least one checkpoint.
        dismiss: called for a damaged checkpoint with the reason. Returns what else the warning shall say.

    Raises:
        CheckpointError: none of them is whole.
        ChangedError: one is not there any more.
    """
    damages = []
    for saved in candidates:
        try:
            manifest = saved.check()
        except DamagedError as error:
            if not saved.exists:
                raise ChangedError(saved) from error
            damages.append(f"{saved.path} is damaged: {error}{dismiss(saved, str(error))}")
            continue
        for damage in damages:
            warn(f"{damage}; {saved.path} is taken instead")
        return saved, manifest
    raise CheckpointError(
        f"no checkpoint of this run is whole: {'; '.join(damages)}. Put back a copy of one if there is any, or start "
        "anew under another run.name"
    )


def load_into(checkpoint: tf.train.Checkpoint, saved: Saved, *, frees_first: bool = True) -> None:
    """Restores all objects of `checkpoint`. The files may hold more.

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
        reason = first_line(error)
        raise CheckpointError(
            f"checkpoint {saved.path} belongs to another model or optimizer: {reason}; give the command that the run "
            "was trained with, or choose another run.name"
        ) from error
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as error:
        reason = first_line(error)
        raise CheckpointError(f"checkpoint {saved.path} can't be read: {reason}; run the same command again") from error


def _variables(checkpoint: tf.train.Checkpoint) -> Iterator[tf.Variable]:
    """The variables below a checkpoint that one replica has, those in variables of Keras too."""
    keras = sys.modules.get("keras")  # a second to import, if nobody has
    for found in tf.train.TrackableView(checkpoint).descendants():
        variable = found.value if keras is not None and isinstance(found, keras.Variable) else found
        if isinstance(variable, tf.Variable) and not isinstance(variable, tf.distribute.DistributedValues):
            yield variable


class TensorReader:
    """Reads all tensors of checkpoints that hold the same tensors, some at a time, to compare their checksums.

    TensorFlow computes these checksums from the memory that it writes.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[list[str], list[tf.DType]]] = []  # names and dtypes of tensors that are read together

    def __call__(self, prefix: str) -> None:
        """Raises tf.errors.OpError, or a ValueError or RuntimeError without an index, if a file is damaged."""
        if not self._groups:
            self._groups = list(_groups(prefix))
        with tf.device("CPU"):
            for names, dtypes in self._groups:
                tf.raw_ops.RestoreV2(
                    prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
                )


def _groups(prefix: str) -> Iterator[tuple[list[str], list[tf.DType]]]:
    """Names and dtypes of tensors that take up to READ_AT_ONCE together, or of one that takes more."""
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    names: list[str] = []
    size = 0
    for name in sorted(shapes):
        bytes_of_tensor = math.prod(shapes[name]) * dtypes[name].size
        if names and size + bytes_of_tensor > READ_AT_ONCE:
            yield names, [dtypes[each] for each in names]
            names, size = [], 0
        names.append(name)
        size += bytes_of_tensor
    if names:
        yield names, [dtypes[each] for each in names]
