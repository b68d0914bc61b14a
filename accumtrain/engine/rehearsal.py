"""A rehearsal: micro-steps of two small sizes and a commit, with every piece of memory that they take written down.

What larger micro-batches take follows from it (planning/recording.py). The graph of the micro-step is made once, for
any number of images, so both sizes run the same operations.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from accumtrain.config.arithmetic import Epochs, total_steps
from accumtrain.config.schema import Config
from accumtrain.data.pipeline import Share, distributed, train_batches
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.engine.allocation_log import Log, log_allocations, mark
from accumtrain.engine.build_window import build_window
from accumtrain.engine.memory_meter import CPU
from accumtrain.engine.operation_places import Place, find_places
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window

FILL, STEP, SETTLED, COMMIT, END = "fill", "step", "settled", "commit", "end"
PIXELS = 4 * 224 * 224  # of the larger micro-batch, about, which decides how long a rehearsal takes
STEPS = 4  # micro-steps of the larger size, at most
SECONDS = 0.5  # after which no further one begins
CALM = 0.05  # seconds in which the data pipeline takes nothing: it has all its batches ready


@dataclass(frozen=True)
class Rehearsal:
    """What was written down.

    Attributes:
        sizes: the two micro-batches.
        places: see `find_places`.
        static_bytes: tensors of the run before its first update.
        batch_norm: whether the model has a norm that takes statistics of a micro-batch.
    """

    log: Log
    sizes: tuple[int, int]
    places: dict[str, Place]
    static_bytes: int
    batch_norm: bool = False


def sizes_for(image_shape: tuple[int, ...]) -> tuple[int, int]:
    """The two micro-batches of a rehearsal: larger for small images, so that little has to be extrapolated.

    They are powers of two, for which kernels are chosen as for other even numbers.
    """
    images = min(64, max(4, PIXELS // (image_shape[0] * image_shape[1])))
    large = 1 << images.bit_length() - 1
    return max(2, large // 4), large


def rehearse(config: Config, devices: Devices, data: Data, *, commit: bool) -> Rehearsal:
    """Builds the run of `config` and makes micro-steps of two sizes.

    Args:
        commit: also makes a commit, whose memory depends neither on the micro-batch nor on the memory policy.

    Raises:
        tf.errors.OpError, ValueError, TypeError: the micro-step can't be traced for any number of images, or not run.
    """
    play = _Play(config, devices, data)
    log = log_allocations(lambda: play.run(commit=commit))
    return Rehearsal(log, play.sizes, play.places, play.static_bytes, play.batch_norm)


class _Play:
    def __init__(self, config: Config, devices: Devices, data: Data):
        self._config, self._devices, self._data = config, devices, data
        self.sizes = sizes_for(data.image_shape)

    def run(self, *, commit: bool) -> None:
        config, data, strategy = self._config, self._data, self._devices.strategy
        window = build_window(config, data, total_steps(config, Epochs(config, data.train.size)), strategy, draws=False)
        with strategy.scope():
            step = Step(window, strategy)
        self.static_bytes, self.batch_norm = _allocated(), bool(window.model.norms)
        for size in self.sizes:
            self._steps_of(step, window, size)
        if commit:
            mark(COMMIT)
            step.commit(partial=True)["step"].numpy()
        mark(END)

    def _steps_of(self, step: Step, window: Window, size: int) -> None:
        batches = self._batches(size)
        if size == self.sizes[0]:
            # the commit is not traced ahead: it is needed once only
            traced = step.compiled_micro_steps.get_concrete_function(batches, tf.constant(1))
            paths = {id(variable): path for path, variable in window.model.named.items()}
            buffers = zip(window.variables_, window.gradients, strict=True)
            self.places = find_places(traced, window.model.named, {paths[id(v)]: buffer for v, buffer in buffers})
        mark(f"{FILL} {size}")
        next(batches)
        _wait_for_data()  # each step begins with its batches ready, as in a run
        started = time.perf_counter()
        for made in range(1 if size == self.sizes[0] else STEPS):
            if made and time.perf_counter() - started > SECONDS:
                break
            mark(f"{STEP} {size}")
            step.accumulate(batches, 1)
            tf.test.experimental.sync_devices()
            mark(f"{SETTLED} {size}")
            _wait_for_data()
        mark(f"{SETTLED} {size}")
        del batches
        gc.collect()  # the batches that are ready are freed before the next size

    def _batches(self, size: int) -> Iterator[Any]:
        """Batches of `size` images, whose specification has any number of them."""

        def stream(share: Share) -> tf.data.Dataset:
            dataset = train_batches(self._data, batch=size, first=0, seed=self._config.run.seed, share=share)
            nothing = tf.nest.map_structure(
                lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), dataset.element_spec
            )
            return dataset.concatenate(tf.data.Dataset.from_tensors(nothing).take(0))

        batches: Iterator[Any] = iter(distributed(self._devices.strategy, stream))
        return batches


def _allocated() -> int:
    return int(tf.config.experimental.get_memory_info(CPU)["current"])


def _wait_for_data(longest: float = 2.0) -> None:
    """Returns when nothing more is taken: the data pipeline then has as many batches ready as it ever has."""
    end = time.perf_counter() + longest
    before, now = -1, _allocated()
    while now != before and time.perf_counter() < end:
        time.sleep(CALM)
        before, now = now, _allocated()
