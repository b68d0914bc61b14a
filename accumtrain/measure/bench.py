"""job=bench: speed, memory, start and input of the configured run, beside the speed of a large matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.kernels import tell_emulation
from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.registries import has_builtin_layers
from accumtrain.config.schema import Config
from accumtrain.console import banner, format_bytes, format_count, format_seconds, format_things, say
from accumtrain.data.pipeline import DistributedBatches, HostShard, make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.runtime import Runtime
from accumtrain.measure.config import BenchConfig
from accumtrain.measure.dry_run import DryRun
from accumtrain.measure.flops import count_flops, matmul_flops_per_second
from accumtrain.process import environment
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.runs.folder import result_file
from accumtrain.tasks.objective import open_objective
from accumtrain.train.memory import at_peak
from accumtrain.train.tell.remedies import explain_errors

INPUT_SECONDS = 2.0  # of a measurement of the input alone


def bench_run(config: Config) -> dict[str, Any]:
    """Print a table and return the content of bench.json, as docs/bench.md describes it. Nothing is trained."""
    imported, clock = environment.prepared_seconds(), Stopwatch()
    devices = resolve_devices(config.device)
    objective = open_objective(config)
    data = objective.data
    steps = config.accum.count
    micro_batch = micro_batch_size(config.batch_size, steps, devices.replicas)
    batch = micro_batch * devices.replicas
    say(f"measuring {config.model.label}, {config.optim.kind}, {config.precision} on {devices.description}")
    with explain_errors(config, data, devices.replicas), temporary_folder("bench") as scratch:
        dry_run = DryRun(config, objective, devices, micro_batch, scratch, steps)
        start = {"import": imported, "build": clock.lap()}
        tensorflow = environment.tensorflow_import_seconds()  # a part of "import"
        micro_step = dry_run.step.prepare(dry_run.batches)
        start["trace"] = clock.lap()
        if not devices.xla:
            tell_emulation(config.precision, own_layers=has_builtin_layers(config))
        dry_run.update()
        start["first_run"] = clock.lap()

        some_updates = partial(dry_run.updates, config.log.every)  # as training makes them between two log records
        seconds = time_updates(some_updates, config.bench)
        calls = dry_run.calls
        memory = dry_run.meter.read()
        call = dry_run.seconds_of_call()
        repeat_one_batch(dry_run, config, data, devices, batch)
        seconds_without_input = time_updates(some_updates, config.bench)
        # a loss of the whole batch has two passes, whose graphs are not those of a micro-step
        flops = None if micro_step is None else count_flops(micro_step.graph, micro_batch) / batch

        del dry_run, micro_step, some_updates  # frees their memory
        input_alone = measure_input(config, data, batch)
    peak = measure_matmul_peak(config, devices.runtime)
    update = spread(seconds)
    speed = {
        "median": config.batch_size / update["median"],
        "p10": config.batch_size / update["p90"],
        "p90": config.batch_size / update["p10"],
    }
    result = {
        "status": "completed",
        "model": config.model.label,
        "memory_policy": config.model.memory,
        "optimizer": config.optim.kind,
        "precision": config.precision,
        "device": devices.description,
        "batch_size": config.batch_size,
        "micro_batch_size": micro_batch,
        "accum_steps": steps,
        "replicas": devices.replicas,
        "updates": len(seconds),
        "update_seconds": update,
        "examples_per_second": speed,
        "host_share": None if call is None else calls * call / update["median"],
        "call_seconds": call,
        "seconds_to_first_update": {"total": sum(start.values()), **start, "import_of_tensorflow": tensorflow},
        "memory": memory,
        "flops_per_example": flops,
        "flops_per_second": flops and flops * speed["median"],
        "matmul_flops_per_second": peak,
        "share_of_matmul": flops * speed["median"] / peak if flops and peak else None,
        "input_share": max(0.0, 1.0 - statistics.median(seconds_without_input) / update["median"]),
        "input_examples_per_second": input_alone,
    }
    _show(result)
    say(f"the same in {result_file(config)}")
    return result


class Stopwatch:
    """Measures the seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, p10 and p90. Four of five values are between p10 and p90."""
    p10, p90 = np.percentile(values, [10, 90])
    return {"median": statistics.median(values), "p10": float(p10), "p90": float(p90)}


def time_updates(updates: Callable[[], int], bench: BenchConfig) -> list[float]:
    """Return the seconds of whole updates after a warm-up. `updates` makes some in one call, returns their number."""
    length = 0
    while (count := updates()) > length:
        length = count  # once calls stop growing, the buffers have their place in memory, too
    clock = Stopwatch()
    seconds: list[float] = []
    while len(seconds) < bench.updates or sum(seconds) < bench.seconds:
        count = updates()
        seconds += [clock.lap() / count] * count
    return seconds


def repeat_one_batch(dry_run: DryRun, config: Config, data: Dataset, devices: Devices, batch: int) -> None:
    """Make all further updates of the dry run use the same batch, which is in memory."""

    def same_batch(shard: HostShard) -> tf.data.Dataset:
        dataset = make_train_batches(data, batch=batch, first=0, seed=config.run.seed, shard=shard)
        return dataset.take(shard.replicas).cache().repeat()

    dry_run.batches = iter(DistributedBatches(devices.strategy, same_batch))


def measure_input(config: Config, data: Dataset, batch: int) -> float:
    """Return the examples per second that the input delivers if nothing else runs."""
    batches = iter(make_train_batches(data, batch=batch, first=0, seed=config.run.seed))
    for _ in range(4):  # some batches were prefetched
        next(batches)
    started, taken = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < INPUT_SECONDS:
        next(batches)
        taken += batch
    return taken / passed


def measure_matmul_peak(config: Config, runtime: Runtime) -> float | None:
    """Return the operations per second of a large matrix product on all chips, or None if it does not fit."""
    chips = 1 if runtime.on_cpu else runtime.replicas
    try:
        return chips * matmul_flops_per_second(tf.as_dtype(config.precision), runtime)
    except tf.errors.ResourceExhaustedError:
        return None


def _show(result: dict[str, Any]) -> None:
    speed, seconds = result["examples_per_second"], result["update_seconds"]
    start, memory = result["seconds_to_first_update"], result["memory"]
    arithmetic = "not counted for a loss of the whole batch"
    if result["flops_per_example"] is not None:
        by_example, by_second = result["flops_per_example"] / 1e6, result["flops_per_second"] / 1e9
        arithmetic = f"{by_example:,.4g} MFLOP per example: {by_second:.4g} GFLOP/s"
    if result["share_of_matmul"] is not None:
        peak = result["matmul_flops_per_second"] / 1e9
        arithmetic += f", {result['share_of_matmul']:.0%} of the {peak:.4g} of a matrix product"
    alone = format_count(result["input_examples_per_second"])
    host = "not measured, as each micro-step is a call"
    if result["call_seconds"] is not None:
        host = f"{result['host_share']:.2%} of an update, {1e3 * result['call_seconds']:.2g} ms of a compiled call"
    rows = [
        ("batch", "{batch_size} = micro-batch {micro_batch_size} x {accum_steps} x {replicas}".format(**result)),
        (
            "examples/s",
            f"{speed['median']:.4g} ({speed['p10']:.4g} to {speed['p90']:.4g}; "
            f"{format_things(result['updates'], 'update')})",
        ),
        ("an update", f"{seconds['median']:.4g} s ({seconds['p10']:.4g} to {seconds['p90']:.4g})"),
        ("host", host),
        (
            "first update",
            f"after {format_seconds(start['total'])}: import {start['import']:.1f} "
            f"(TensorFlow's {start['import_of_tensorflow']:.1f}), build {start['build']:.1f}, "
            f"trace {start['trace']:.1f}, first run {start['first_run']:.1f}",
        ),
        ("memory", f"{at_peak(memory)}; {format_bytes(memory['rss_peak_bytes'])} resident"),
        ("arithmetic", arithmetic),
        ("input", f"{result['input_share']:.1%} of an update; alone {alone} examples/s"),
    ]
    banner("{model}, memory={memory_policy}, {optimizer}, {precision}".format(**result), rows)
