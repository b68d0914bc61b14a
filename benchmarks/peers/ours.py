"""accumtrain's updates, with all that a run of it holds, on one batch in memory. `--model` is one or more overrides."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from turns import Turns, arguments

options = arguments()
turns = Turns(options.micro_batch * options.steps)

sys.path.insert(0, str(Path(__file__).parents[1]))
import micro_step  # noqa: E402, F401, settles the allocator
from workbench import of_case  # noqa: E402

from accumtrain.data.open_data import open_data  # noqa: E402
from accumtrain.devices.resolve import resolve_devices  # noqa: E402
from accumtrain.measure.bench import repeat_one_batch  # noqa: E402
from accumtrain.measure.dry_run import DryRun  # noqa: E402
from accumtrain.measure.flops import count_flops  # noqa: E402


def main() -> None:
    config = of_case(options.model, options.precision, options.micro_batch, options.steps, options.image_size)
    devices, data = resolve_devices(config.device), open_data(config.data, config.run.seed)
    with tempfile.TemporaryDirectory() as scratch:
        dry_run = DryRun(config, data, devices, options.micro_batch, Path(scratch), options.steps)
        repeat_one_batch(dry_run, config, data, devices, options.micro_batch)
        facts: dict[str, float] = {}
        while turns.next():
            dry_run.update()
            turns.stop()
            if not facts:
                graph = dry_run.step.prepare(dry_run.batches).graph
                flops = count_flops(graph, options.micro_batch) / options.micro_batch
                facts = {"parameters": dry_run.window.model.params, "flops_per_image": flops}
            if options.memory:
                facts["tensor_peak_bytes"] = dry_run.meter.read()["tensor_peak_bytes"] or 0
            if not devices.description.startswith("CPU"):
                facts["gpu_peak_bytes"] = dry_run.meter.read()["tensor_peak_bytes"] or 0
            turns.done(**facts)


if __name__ == "__main__":
    main()
