"""The two programs of an update, a micro-step and a commit: lowered by TensorFlow, run by JAX.

    python benchmarks/two_programs.py write FOLDER model=revnet104 precision=bfloat16 ...
    python benchmarks/two_programs.py run FOLDER --updates 20

`write` needs an environment with this package and JAX. `run` needs JAX and flatbuffers alone, and prints one line of
JSON. JAX 0.10.2 wrote and 0.10.2 and 0.11.2 ran. Images and large weights are drawn where the programs run, so a run
tells speed, memory and bits. With `write --data N` the folder holds the run's own state and the batches of its first N
updates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROGRAMS = ("micro_step", "commit")
SMALL = 4096  # values of a variable that is always stored as it is
Arrays = dict[str, np.ndarray]

# --- write: TensorFlow and JAX ------------------------------------------------------------------------------------


def write(folder: Path, overrides: list[str], updates: int, rounds: bool) -> None:
    from workbench import compose

    from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
    from accumtrain.process import environment

    config = compose("device=cpu", *overrides)
    environment.prepare(config.device)
    import jax
    import tensorflow as tf

    from accumtrain.data.pipeline import make_train_batches
    from accumtrain.devices.resolve import resolve_devices
    from accumtrain.pjrt.hand_over import hand_over
    from accumtrain.pjrt.program import lower
    from accumtrain.tasks.objective import open_objective
    from accumtrain.train.build import build_window

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    folder.mkdir(parents=True, exist_ok=True)
    objective = open_objective(config)
    data = objective.data
    total = total_steps(config, Epochs(config, data.train.size))
    window = build_window(config, objective, total, resolve_devices(config.device).strategy)
    size = micro_batch_size(config.batch_size, config.accum.count, 1)
    dataset = make_train_batches(data, batch=size, first=0, seed=config.run.seed)
    batches = [
        {name: value.numpy() for name, value in batch.items()}
        for batch in dataset.take(max(1, updates * config.accum.count))
    ]
    specs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in sorted(batches[0].items())}
    functions: dict[str, tuple[Any, list[Any]]] = {
        "micro_step": (window.accumulate, [specs]),
        "commit": (window.commit, []),
    }
    told: dict[str, Any] = {"steps": config.accum.count, "batch_size": config.batch_size}
    state: dict[int, Any] = {}  # variables and constants by their id, in the order in which they are stored
    for name, (function, inputs) in functions.items():
        program = lower(function, inputs, window.variables)
        handed = hand_over(program.hlo, rounds=rounds)
        (folder / f"{name}.jax").write_bytes(handed.serialize())
        state |= {id(value): value for value in program.captured}
        places = [list(state).index(id(value)) for value in program.captured]
        told[name] = {
            "written": [places[argument - program.inputs] for argument in handed.written],
            "read": [places[argument - program.inputs] for argument in handed.read[program.inputs :]],
            "outputs": sorted(program.outputs or {}),
        }
    arrays: Arrays = {f"batch_{name}": np.stack([batch[name] for batch in batches]) for name in specs if updates}
    trained = {id(variable) for variable in window.variables_}
    told |= {
        "inputs": {name: {"shape": list(spec.shape), "dtype": spec.dtype.name} for name, spec in specs.items()},
        "state": [
            describe(place, value.numpy(), arrays, whole=updates > 0) for place, value in enumerate(state.values())
        ],
        "weights": [place for place, value in enumerate(state) if value in trained],
    }
    np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **arrays)
    (folder / "told.json").write_text(json.dumps(told))


def describe(place: int, value: np.ndarray, arrays: Arrays, whole: bool) -> dict[str, Any]:
    """How to make a variable's value: one number, values that are added to `arrays`, or a normal distribution."""
    entry: dict[str, Any] = {"shape": list(value.shape), "dtype": value.dtype.name}
    if value.size and (value == value.flat[0]).all():
        return entry | {"fill": float(value.flat[0])}
    if whole or value.size <= SMALL:
        arrays[f"state_{place}"] = value
        return entry
    return entry | {"mean": float(value.mean()), "deviation": float(value.std())}


# --- run: JAX alone -----------------------------------------------------------------------------------------------


class Program:
    """A lowered function that reuses the memory of the state that it writes."""

    def __init__(self, folder: Path, name: str, told: dict[str, Any]):
        import jax
        from jax import export

        self._written, self._read, self._outputs = told["written"], told["read"], told["outputs"]
        exported = export.deserialize(bytearray((folder / f"{name}.jax").read_bytes()))
        self._function = jax.jit(exported.call, donate_argnums=0)

    def compile(self, state: list[Any], values: list[Any]) -> float:
        """Compiles for the state and values of one call. Returns seconds."""
        started = time.perf_counter()
        self._compiled = self._function.lower(*self._arguments(state, values)).compile()
        return time.perf_counter() - started

    def __call__(self, state: list[Any], values: list[Any]) -> dict[str, Any]:
        """Puts the new values into `state`, and returns the other results by name."""
        written, others = self._compiled(*self._arguments(state, values))
        for place, value in zip(self._written, written, strict=True):
            state[place] = value
        return dict(zip(self._outputs, others, strict=True))

    def memory(self) -> dict[str, int]:
        """MB (2^20 bytes) of temporaries, arguments and reused arguments, by the compiler."""
        found = self._compiled.memory_analysis()
        return {name: getattr(found, f"{name}_size_in_bytes") >> 20 for name in ("temp", "argument", "alias")}

    def _arguments(self, state: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
        return [state[place] for place in self._written], [*values, *(state[place] for place in self._read)]


def run(folder: Path, options: argparse.Namespace) -> None:
    started = time.perf_counter()
    import jax

    jax.config.update("jax_enable_x64", True)
    if options.cache:
        jax.config.update("jax_compilation_cache_dir", str(options.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    device = jax.devices()[0]
    told = json.loads((folder / "told.json").read_text())
    generator = np.random.default_rng(0)
    arrays = dict(np.load(folder / "arrays.npz"))
    restored = dict(np.load(options.restore)) if options.restore else arrays
    values = [make(entry, restored.get(f"state_{place}"), generator) for place, entry in enumerate(told["state"])]
    state = [jax.numpy.array(jax.device_put(value, device), copy=True) for value in values]
    batches = micro_batches(told, arrays, np.random.default_rng(1))
    micro_step, commit = (Program(folder, name, told[name]) for name in PROGRAMS)

    held = [jax.device_put(batch, device) for batch in batches[: told["steps"]]] if options.resident else batches
    compiled = [micro_step.compile(state, jax.device_put(batches[0], device)), commit.compile(state, [])]
    ready = time.perf_counter() - started
    seconds: list[float] = []
    losses: list[float] = []

    def put(count: int) -> list[Any]:
        return jax.device_put(held[count % len(held)], device)

    coming = put(options.first * told["steps"])
    for update in range(options.first, options.updates):
        began = time.perf_counter()
        for step in range(told["steps"]):
            micro_step(state, coming)
            coming = put(update * told["steps"] + step + 1)  # while the device computes
        scalars = commit(state, [])
        losses.append(float(scalars["loss"]))  # waits for the device
        seconds.append(time.perf_counter() - began)
    final = {f"state_{place}": np.asarray(value) for place, value in enumerate(state)}
    if options.save:
        np.savez(options.save, allow_pickle=False, **final)
    median = statistics.median(seconds[1:] or seconds)
    answer = {
        "program": folder.name,
        "device": device.device_kind,
        "jax": jax.__version__,
        "flags": os.environ.get("XLA_FLAGS", ""),
        "images_per_second": round(told["batch_size"] / median),
        "milliseconds": round(median * 1e3, 1),
        "compile_seconds": [round(each, 1) for each in compiled],
        "first_update_seconds": round(ready + seconds[0], 1),
        "micro_step_mb": micro_step.memory(),
        "commit_mb": commit.memory(),
        "peak_mb": (device.memory_stats() or {}).get("peak_bytes_in_use", 0) >> 20,
        "losses": [losses[0], losses[-1]],
        **{name: bool(scalars[name]) for name in ("finite", "exact", "in_range")},
    }
    if options.compare:
        answer |= differences(final, dict(np.load(options.compare)), told["weights"])
    print(json.dumps(answer), flush=True)


def make(entry: dict[str, Any], stored: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
    """The value of a variable: as stored, one number everywhere, or drawn."""
    if stored is not None:
        return stored
    if "fill" in entry:
        return np.full(entry["shape"], entry["fill"], entry["dtype"])
    noise = generator.standard_normal(entry["shape"])
    return (entry["mean"] + entry["deviation"] * noise).astype(entry["dtype"])


def micro_batches(told: dict[str, Any], arrays: Arrays, generator: np.random.Generator) -> list[list[np.ndarray]]:
    """The stored micro-batches, or those of one update: normal noise as images, labels 0 to 9, weights of 1."""
    names = sorted(told["inputs"])
    if f"batch_{names[0]}" in arrays:
        return [list(values) for values in zip(*(arrays[f"batch_{name}"] for name in names), strict=True)]
    draws: dict[str, Callable[[list[int]], np.ndarray]] = {
        "inputs": generator.standard_normal,
        "targets": lambda shape: generator.integers(0, 10, shape),
        "weight": np.ones,
    }
    inputs = told["inputs"].items()
    return [[draws[name](each["shape"]).astype(each["dtype"]) for name, each in inputs] for _ in range(told["steps"])]


def differences(found: Arrays, expected: Arrays, weights: list[int]) -> dict[str, Any]:
    """How many variables differ in a bit, and the weights' relative distances: median and largest."""
    unequal = sum(found[name].tobytes() != expected[name].tobytes() for name in expected)
    distances = [relative_distance(found[f"state_{place}"], expected[f"state_{place}"]) for place in weights]
    return {"unequal_variables": unequal, "distances": [float(np.median(distances)), max(distances)]}


def relative_distance(found: np.ndarray, expected: np.ndarray) -> float:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    writing = actions.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("overrides", nargs="*")
    writing.add_argument("--data", type=int, default=0, metavar="N", help="store the state and N updates' batches")
    writing.add_argument("--highest", action="store_true", help="products of float32 are not rounded to TensorFloat-32")
    running = actions.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--updates", type=int, default=20)
    running.add_argument("--first", type=int, default=0, help="the update to begin with, after --restore")
    running.add_argument("--restore", type=Path, help="a file of --save")
    running.add_argument("--save", type=Path, help="where the final state goes, an .npz file")
    running.add_argument("--compare", type=Path, help="a file of --save, to compare the final state with")
    running.add_argument("--cache", type=Path, help="where compiled programs are kept")
    running.add_argument("--resident", action="store_true", help="one update's images stay on the device")
    options = parser.parse_args()
    if options.action == "write":
        write(options.folder, options.overrides, options.data, rounds=not options.highest)
    else:
        run(options.folder, options)


if __name__ == "__main__":
    main()
