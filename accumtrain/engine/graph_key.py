"""What decides the graphs of a run: two runs with the same key trace the same operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from accumtrain.backprop.target import on_cpu
from accumtrain.config.convert import to_mapping
from accumtrain.config.schema import Config
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.engine.training_loss import training_loss
from accumtrain.process.environment import kernel_settings
from accumtrain.process.own_source import source_digest
from accumtrain.process.processor import cpu
from accumtrain.process.program import is_own_run
from accumtrain.runs.provenance import platform_name, versions

# These name and observe a run; nothing of them is traced, but for what `graph_key` adds.
NOT_TRACED = ("job", "train", "eval", "checkpoint", "log", "run", "bench", "range_test", "report", "predict", "export")
KERAS = "keras"  # layers and optimizers of Keras make objects while they are traced, which a kept graph lacks


def may_be_kept(config: Config, devices: Devices) -> bool:
    """Whether graphs of this run are functions of its key: one CPU, TensorFlow's own kernels, no foreign code.

    Call it outside of the strategy's scope.
    """
    alone = devices.strategy is tf.distribute.get_strategy() and devices.workers == 1
    plain = alone and not (devices.xla or config.debug.eager)
    by_keras = KERAS in (config.model.kind, config.optim.kind)
    return plain and on_cpu() and is_own_run(config) and not by_keras


def graph_key(config: Config, data: Data, total_steps: int) -> dict[str, Any]:
    """All that the graphs of a run depend on, but for its variables: configuration, data, software, machine."""
    traced = {name: value for name, value in to_mapping(config).items() if name not in NOT_TRACED}
    return {
        "config": traced,
        "loss": vars(training_loss(config, data)),  # with weights that may come from the labels
        "seed": config.run.seed,
        "rollback": config.run.on_nonfinite,  # which gives the rate a factor
        "total_steps": total_steps,
        "image_shape": data.image_shape,
        "num_classes": data.num_classes,
        "source": source_digest(),
        "versions": versions(),
        "tensorflow": tf.version.GIT_VERSION,
        "platform": platform_name(),
        "cpu": cpu(),
        "environment": kernel_settings(),
    }
