"""Turns TensorFlow's errors into errors that tell the user what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.input_errors import explain_input_error
from accumtrain.data.source import Data
from accumtrain.errors import OutOfMemoryError, WorkerLostError
from accumtrain.planning.advice import in_words

# what collective operations raise when another worker has ended
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


@contextmanager
def in_user_words(config: Config, data: Data | None, replicas: int = 1, workers: int = 1) -> Iterator[None]:
    """Within this context, errors of TensorFlow about memory, data or a lost worker become errors with a remedy.

    Args:
        data: what is read there; None if nothing is.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(in_words(config, replicas)) from error
    except LOST as error:
        if workers == 1:
            raise
        raise WorkerLostError(
            f"another worker went away or did not answer in time ({type(error).__name__}); the last "
            "checkpoint is intact: start all workers again with the same command to continue from it"
        ) from error
    except tf.errors.OpError as error:
        reason = None if data is None else explain_input_error(error, data)
        if reason is None:
            raise
        raise reason from error
