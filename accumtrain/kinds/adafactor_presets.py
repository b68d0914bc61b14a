"""What Adafactor is elsewhere: the options that make its rule that of the paper, or of a well-known implementation."""

from __future__ import annotations

from typing import Any

FACTORED_AXES = ("last", "largest")
MOMENTUM_OF = ("change", "update")
WEIGHT_DECAY_FACTORS = ("rate", "step_size", "one")

# Arguments of the class, for what is not its default. conf/optim/adafactor_<name>.yaml says the same.
ADAFACTOR_PRESETS: dict[str, dict[str, Any]] = {
    # Shazeer & Stern 2018, arXiv:1804.04235
    "paper": {"learning_rate": None, "weight_decay": 0.0},
    # optax.adafactor
    "optax": {
        "learning_rate": None,
        "weight_decay": 0.0,
        "min_dim_size_to_factor": 128,
        "factored_axes": "largest",
        "weight_decay_factor": "one",
    },
    # transformers.optimization.Adafactor
    "huggingface": {
        "learning_rate": None,
        "weight_decay": 0.0,
        "unscaled_relative_step": 1.0,
        "weight_decay_factor": "step_size",
    },
    # the Keras 2 optimizer of Jianlin Su, github.com/bojone/adafactor
    "bojone": {
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "min_dim_size_to_factor": 128,
        "factored_axes": "largest",
        "momentum_of": "update",
    },
}
