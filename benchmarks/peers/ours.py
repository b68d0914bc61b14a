"""accumtrain's updates on one batch in memory. `--model` is one or more overrides.

Of images with all that a run holds, of texts with a window alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from turns import Turns, arguments, units_of

options = arguments()
turns = Turns(units_of(options))

from micro_step import MicroStep  # noqa: E402, settles the allocator
from texts import Texts  # noqa: E402
from workbench import of_case, of_texts  # noqa: E402

from accumtrain.devices.resolve import resolve_devices  # noqa: E402
from accumtrain.measure.bench import repeat_one_batch  # noqa: E402
from accumtrain.measure.dry_run import DryRun  # noqa: E402
from accumtrain.measure.flops import count_flops  # noqa: E402
from accumtrain.tasks.objective import open_objective  # noqa: E402
from accumtrain.train.memory import state_bytes  # noqa: E402


def train_on_texts(texts: Texts) -> None:
    run = MicroStep(of_texts(options.model, options.precision, options.optimizer), texts)
    facts: dict[str, float] = {}
    while turns.next():
        measured = run.update(options.micro_batch, options.steps)
        turns.stop()
        if not facts:
            flops = run.flops(options.micro_batch) / (options.micro_batch * texts.tokens)
            facts = {"parameters": run.window.model.params, "flops_per_unit": flops}
        if options.memory:
            state = state_bytes(run.window)
            facts["tensor_peak_bytes"] = sum(state.values()) + measured.bytes
            facts |= {f"{kind}_bytes": size for kind, size in state.items()}
        turns.done(**facts)


def train_on_images() -> None:
    config = of_case(options.model, options.precision, options.micro_batch, options.steps, options.image_size)
    devices, objective = resolve_devices(config.device), open_objective(config)
    with tempfile.TemporaryDirectory() as scratch:
        dry_run = DryRun(config, objective, devices, options.micro_batch, Path(scratch), options.steps)
        repeat_one_batch(dry_run, config, objective.data, devices, options.micro_batch)
        facts: dict[str, float] = {}
        while turns.next():
            dry_run.update()
            turns.stop()
            if not facts:
                graph = dry_run.step.prepare(dry_run.batches).graph
                flops = count_flops(graph, options.micro_batch) / options.micro_batch
                facts = {"parameters": dry_run.window.model.params, "flops_per_unit": flops}
            if options.memory:
                facts["tensor_peak_bytes"] = dry_run.meter.read()["tensor_peak_bytes"] or 0
            if not devices.description.startswith("CPU"):
                facts["gpu_peak_bytes"] = dry_run.meter.read()["tensor_peak_bytes"] or 0
            turns.done(**facts)


if __name__ == "__main__":
    if options.texts:
        train_on_texts(options.texts)
    else:
        train_on_images()
