"""The two programs of an update, a micro-step and a commit: lowered by TensorFlow, run by JAX.

    python benchmarks/two_programs.py write FOLDER model=revnet104 precision=bfloat16 ...
    python benchmarks/two_programs.py run FOLDER --updates 20

`write` needs an environment with this package and JAX. `run` needs JAX alone, and prints one line of JSON. JAX 0.10.2
wrote and 0.10.2 and 0.11.2 ran. Images and large weights are drawn where the programs run, so a run tells speed,
memory and bits. With `write --data N` the folder holds the run's own state and the batches of its first N updates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
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


def write(folder: Path, overrides: list[str], updates: int, highest: bool) -> None:
    from workbench import compose

    from accumtrain.config.rules import Epochs, micro_batch_size, total_steps
    from accumtrain.process import environment

    config = compose("device=cpu", *overrides)
    environment.prepare(config.device)
    import tensorflow as tf

    from accumtrain.data.open_data import open_data
    from accumtrain.data.pipeline import make_train_batches
    from accumtrain.devices.resolve import resolve_devices
    from accumtrain.train.build import build_window

    folder.mkdir(parents=True, exist_ok=True)
    data = open_data(config.data, config.run.seed)
    total = total_steps(config, Epochs(config, data.train.size))
    window = build_window(config, data, total, resolve_devices(config.device).strategy)
    size = micro_batch_size(config.batch_size, config.accum.count, 1)
    dataset = make_train_batches(data, batch=size, first=0, seed=config.run.seed).take(
        max(1, updates * config.accum.count)
    )
    batches = [{name: value.numpy() for name, value in batch.items()} for batch in dataset]
    names = sorted(batches[0])
    specs = [tf.TensorSpec(batches[0][name].shape, batches[0][name].dtype) for name in names]

    def micro_step(*values: Any) -> dict[str, Any]:
        window.accumulate(dict(zip(names, values, strict=True)))
        return {}

    averages = [] if window.ema is None else window.ema.averages
    scale = [] if window.loss_scale is None else window.loss_scale.variables
    state = [*window.model.named.values(), *window.optimizer.state, *averages, *scale, *window.buffers, window.step]
    variables = list({id(variable): variable for variable in state}.values())
    functions = {"micro_step": (micro_step, specs), "commit": (window.commit, [])}
    told: dict[str, Any] = {
        name: lower(folder / f"{name}.bin", function, arguments, variables, highest)
        for name, (function, arguments) in functions.items()
    }
    arrays: Arrays = {f"batch_{name}": np.stack([batch[name] for batch in batches]) for name in names if updates}
    trained = {id(variable) for variable in window.variables_}
    told |= {
        "steps": config.accum.count,
        "batch_size": config.batch_size,
        "inputs": {
            name: {"shape": list(spec.shape), "dtype": spec.dtype.name} for name, spec in zip(names, specs, strict=True)
        },
        "state": [
            describe(place, variable.numpy(), arrays, whole=updates > 0) for place, variable in enumerate(variables)
        ],
        "weights": [place for place, variable in enumerate(variables) if id(variable) in trained],
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


def lower(file: Path, function: Any, specs: list[Any], variables: list[Any], highest: bool) -> dict[str, Any]:
    """Writes a portable program. Returns its variables' places, which result is whose new value, and its types."""
    import tensorflow as tf

    from accumtrain.backprop.tracing import for_xla

    def traced(*values: Any) -> Any:
        with for_xla():
            return function(*values)

    compiled: Any = tf.function(traced, autograph=False, jit_compile=True)
    concrete = compiled.get_concrete_function(*specs)
    place = {id(variable.handle): index for index, variable in enumerate(variables)}
    places = [place[id(handle)] for handle in concrete.captured_inputs]
    hlo = compiled.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    content, aliases, types = make_portable(hlo, highest)
    file.write_bytes(content)
    return types | {
        "places": places,
        "updated": {places[parameter - len(specs)]: result for parameter, result in aliases.items()},
        "outputs": sorted(concrete.structured_outputs or {}),
    }


def make_portable(hlo: bytes, highest: bool) -> tuple[bytes, dict[int, int], dict[str, Any]]:
    """(StableHLO artifact, parameter -> the result that takes its memory, types) of a serialized HloModuleProto."""
    from jax.extend import mlir
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters.mlir import make_ir_context

    with make_ir_context():
        module = ir.Module.parse(mlir.hlo_to_stablehlo(hlo))
        attributes = module.operation.attributes
        aliases = {}
        for each in map(str, attributes["mhlo.input_output_alias"]):
            (parameter,) = re.findall(r"parameter_number = (\d+)", each)
            (result,) = re.findall(r"output_index = array<i64(?:: (\d+))?>", each)
            aliases[int(parameter)] = int(result or 0)
        for name in [str(getattr(attribute, "name", attribute)) for attribute in attributes]:
            if name.startswith("mhlo."):
                del attributes[name]
        copies: list[Any] = []  # XLA made them for the aliases; JAX's StableHLO has no such operation

        def collect(operation: Any) -> Any:
            if operation.name == "mhlo.copy":
                copies.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(collect)
        for copy in copies:
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.erase()
        main = next(each for each in module.body if "main" in str(each.attributes["sym_name"]))
        function = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        kinds = {"arguments": function.inputs, "results": function.results}
        types = {name: [tensor_type(ir.RankedTensorType(each)) for each in found] for name, found in kinds.items()}
        text = str(module).replace("precision DEFAULT", "precision HIGHEST") if highest else str(module)
        return mlir.serialize_portable_artifact(text, stablehlo.get_current_version()), aliases, types


def tensor_type(kind: Any) -> tuple[list[int], str]:
    return list(kind.shape), str(kind.element_type)


# --- run: JAX alone -----------------------------------------------------------------------------------------------


class Program:
    """A lowered function that reuses the memory of the variables it writes."""

    def __init__(self, folder: Path, name: str, told: dict[str, Any], platform: str):
        import jax
        import jax.numpy as jnp
        from jax import export

        results = [(shape, dtype_of(kind)) for shape, kind in told["results"]]
        arguments = [jax.ShapeDtypeStruct(shape, dtype_of(kind)) for shape, kind in told["arguments"]]

        def placeholder(*_: Any) -> Any:
            return tuple(jnp.zeros(shape, dtype) for shape, dtype in results)

        exported = export.export(jax.jit(placeholder, keep_unused=True), platforms=[platform])(*arguments)
        exported = dataclasses.replace(exported, mlir_module_serialized=(folder / f"{name}.bin").read_bytes())
        places, self._outputs = told["places"], told["outputs"]
        updated = {int(place): result for place, result in told["updated"].items()}
        self._written = [place for place in places if place in updated]
        self._read = [place for place in places if place not in updated]
        others = [result for result in range(len(results)) if result not in set(updated.values())]

        def call(written: list[Any], read: list[Any], values: list[Any]) -> Any:
            state = dict(zip(self._written, written, strict=True)) | dict(zip(self._read, read, strict=True))
            made = exported.call(*values, *[state[place] for place in places])
            return [made[updated[place]] for place in self._written], [made[result] for result in others]

        self._function = jax.jit(call, donate_argnums=0)

    def compile(self, state: list[Any], values: list[Any]) -> float:
        """Compiles for the state and values of one call. Returns seconds."""
        started = time.perf_counter()
        self._compiled = self._function.lower(*self._split(state), values).compile()
        return time.perf_counter() - started

    def __call__(self, state: list[Any], values: list[Any]) -> dict[str, Any]:
        """Puts the new values into `state`, and returns the other results by name."""
        written, others = self._compiled(*self._split(state), values)
        for place, value in zip(self._written, written, strict=True):
            state[place] = value
        return dict(zip(self._outputs, others, strict=False))

    def memory(self) -> dict[str, int]:
        """MB (2^20 bytes) of temporaries, arguments and reused arguments, by the compiler."""
        found = self._compiled.memory_analysis()
        return {name: getattr(found, f"{name}_size_in_bytes") >> 20 for name in ("temp", "argument", "alias")}

    def _split(self, state: list[Any]) -> tuple[list[Any], list[Any]]:
        return [state[place] for place in self._written], [state[place] for place in self._read]


def dtype_of(kind: str) -> Any:
    import jax.numpy as jnp

    names = {"f": "float", "bf": "bfloat", "i": "int", "ui": "uint"}
    letters, bits = re.findall(r"(\D+)(\d+)", kind)[0]
    return jnp.dtype("bool" if kind == "i1" else names[letters] + bits)


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
    platform = {"gpu": "cuda"}.get(device.platform, device.platform)
    micro_step, commit = (Program(folder, name, told[name], platform) for name in PROGRAMS)

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
        "image": generator.standard_normal,
        "label": lambda shape: generator.integers(0, 10, shape),
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
        write(options.folder, options.overrides, options.data, options.highest)
    else:
        run(options.folder, options)


if __name__ == "__main__":
    main()
