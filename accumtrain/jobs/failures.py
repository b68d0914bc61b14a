"""TensorFlow's errors in the user's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from accumtrain.config import Config
from accumtrain.data.input_errors import explain_input_error
from accumtrain.data.source import Data
from accumtrain.errors import OutOfMemoryError
from accumtrain.jobs.advice import in_words


@contextmanager
def explained(config: Config, data: Data, replicas: int = 1) -> Iterator[None]:
    """Within, what TensorFlow raises for want of memory or for bad data becomes an error that says what to do."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(in_words(config, replicas)) from error
    except tf.errors.OpError as error:
        reason = explain_input_error(error, data)
        if reason is None:
            raise
        raise reason from error
