"""Configurations composed as the command line composes them, without TensorFlow."""

from __future__ import annotations

import hydra

from accumtrain.config.conf_dir import CONF_DIR
from accumtrain.config.schema import Config
from accumtrain.shell.compose import plain_values, read_config
from accumtrain.shell.overrides import for_hydra

CLASSES = {32: 10, 224: 1000}  # by the image size of a comparison


def compose(*overrides: str) -> Config:
    """The configuration that `accumtrain *overrides` would run."""
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return read_config(plain_values(hydra.compose("config", for_hydra(overrides))), overrides)


def of_case(model: str, precision: str, micro_batch: int, steps: int, image_size: int) -> Config:
    """The configuration of one side of compare.py; `model` is one or more overrides."""
    return compose(
        *model.split(),
        "optim=adam",
        "data=synthetic",
        f"data.image_size={image_size}",
        f"data.num_classes={CLASSES[image_size]}",
        f"precision={precision}",
        f"batch_size={micro_batch * steps}",
        f"accum.steps={steps}",
    )
