"""Factors of schedules, as bits of float32; `python -m tests.optim.stored_factors` writes them, for a new schedule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.optim import schedules
from tests.machine import machine

FILE = Path(__file__).with_name("stored_factors.json")
TOTALS = (1, 2, 7, 60)
BEYOND = 5  # updates after the end
CONFIGS: dict[str, schedules.ScheduleConfig] = {
    "constant": schedules.ConstantConfig(),
    "constant, warmup": schedules.ConstantConfig(warmup=7),
    "cosine": schedules.CosineConfig(),
    "cosine, warmup": schedules.CosineConfig(warmup=6, final=0.1),
    "step": schedules.StepConfig(boundaries=[3, 5, 41]),
    "step, warmup": schedules.StepConfig(warmup=4, boundaries=[3, 30], factor=0.3),
    "step, no boundaries": schedules.StepConfig(boundaries=[]),
    "rsqrt": schedules.RsqrtConfig(timescale=9),
    "rsqrt, warmup": schedules.RsqrtConfig(timescale=3, warmup=11),
    "inverse_time": schedules.InverseTimeConfig(timescale=7, decay=0.7),
    "inverse_time, staircase": schedules.InverseTimeConfig(timescale=7, decay=0.7, warmup=3, staircase=True),
    "one_cycle": schedules.OneCycleConfig(),
    "one_cycle, short rise": schedules.OneCycleConfig(rise=0.05, start=0.2, final=0.01),
    "wsd": schedules.WsdConfig(),
    "wsd, linear": schedules.WsdConfig(warmup=3, decay=5, shape="linear", final=0.1),
}


def factors(config: schedules.ScheduleConfig, total: int) -> np.ndarray:
    """Return the factor of each update of a run and of some beyond, by one graph."""
    graph = tf.function(config.build(total), autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    return np.array([graph(tf.constant(step, tf.int64)) for step in range(total + BEYOND)], np.float32)


def main() -> None:
    rows = {
        f"{name}, {total} updates": factors(config, total).view(np.uint32).tolist()
        for name, config in CONFIGS.items()
        for total in TOTALS
    }
    lines = [f" {json.dumps(name)}: {json.dumps(bits)}" for name, bits in rows.items()]
    FILE.write_text("{\n" + ",\n".join([f' "machine": {json.dumps(machine())}', *lines]) + "\n}\n")


if __name__ == "__main__":
    main()
