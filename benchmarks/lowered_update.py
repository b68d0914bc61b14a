"""The lowered update, as `make tpu-compile` compiles it, run on a device of this machine by JAX, without TensorFlow.

    .venv/bin/python benchmarks/lowered_update.py write FOLDER model=revnet104 precision=bfloat16 ...
    python benchmarks/lowered_update.py run FOLDER

`write` takes a run's overrides and leaves update.mlir (StableHLO) in FOLDER. `run` is for an environment with JAX
(0.10.2 and 0.11.2 were tried): it compiles the program for JAX's first device and runs updates with drawn weights and
images, which tell nothing of training. With `--compare` it compares what the first one makes with what XLA makes of the
same program on the CPU. The bytes are the compiler's.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = "update.mlir"
MAIN = re.compile(r"func\.func (?:public )?@main\((.*?)\) ->", re.DOTALL)
COPY = re.compile(r"mhlo\.copy (%\S+) : (tensor<\S+>)")  # an operation that JAX's StableHLO does not have


def write(folder: Path, overrides: list[str]) -> None:
    from composed import compose

    from accumtrain.config.convert import to_mapping
    from accumtrain.planning import tpu_plan

    folder.mkdir(parents=True, exist_ok=True)
    told = tpu_plan.answer({"config": to_mapping(compose("device=cpu", *overrides))}, folder)
    (folder / tpu_plan.MODULE).rename(folder / PROGRAM)
    print(f"{folder / PROGRAM}: an update of {told['flops'] / 1e9:,.0f} GFLOP")


def run(folder: Path, updates: int, compare: bool) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    text = (folder / PROGRAM).read_text()
    device = jax.devices()[0]
    started = time.perf_counter()
    program = compiled(text, device)
    seconds = time.perf_counter() - started
    values = drawn(text)
    made: list[np.ndarray] = []
    times: list[float] = []
    for update in range(updates + 1):
        arguments = jax.block_until_ready([jax.device_put(value, device) for value in values])
        started = time.perf_counter()
        results = jax.block_until_ready(program.execute(arguments))
        times.append(time.perf_counter() - started)
        made = [np.asarray(result) for result in results] if update == 0 else made
    memory, median = program.get_compiled_memory_stats(), statistics.median(times[1:])
    print(f"{device.device_kind}: compiled in {seconds:.0f} s, an update in {median:.4f} s ({min(times):.4f} at best)")
    print(
        f"temporary {memory.temp_size_in_bytes / 2**20:,.0f} MB, state {memory.argument_size_in_bytes / 2**20:,.0f} MB"
    )
    if compare:
        cpu = jax.devices("cpu")[0]
        expected = compiled(text, cpu).execute([jax.device_put(value, cpu) for value in values])
        errors = [relative_error(a, np.asarray(b)) for a, b in zip(made, expected, strict=True) if a.size > 1]
        print(f"differences from the CPU's, by tensors: median {np.median(errors):.1e}, worst {max(errors):.1e}")


def compiled(text: str, device: Any) -> Any:
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text))
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    compile_ = getattr(device.client, "compile_and_load", device.client.compile)  # older JAX: the same by another name
    return compile_(module, xla_client.DeviceList((device,)), options)


def drawn(text: str) -> list[np.ndarray]:
    """Arguments of the program: images, labels, weights of examples, then variables."""
    import jax.numpy as jnp

    dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f64": jnp.float64, "i32": jnp.int32, "i64": jnp.int64}
    found, (signature,) = [], MAIN.findall(text)
    generator = np.random.default_rng(0)
    for place, declared in enumerate(re.findall(r"%arg\d+: tensor<([^>]*)>", signature)):
        *sizes, dtype = declared.split("x")
        shape = tuple(map(int, sizes))
        if place == 0:
            value = generator.standard_normal(shape)
        elif len(shape) == 4:
            value = generator.standard_normal(shape) * (2.0 / np.prod(shape[:3])) ** 0.5
        elif len(shape) == 2:
            value = generator.standard_normal(shape) * 0.01
        else:  # every label is class 1, or 0 of a program without any other
            value = np.ones(shape) if shape else np.zeros(shape)
        found.append(np.asarray(value).astype(dtypes[dtype]))
    return found


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    writing = actions.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("overrides", nargs="*")
    running = actions.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--updates", type=int, default=8)
    running.add_argument("--compare", action="store_true", help="with XLA on the CPU, which takes minutes")
    options = parser.parse_args()
    if options.action == "write":
        write(options.folder, options.overrides)
    else:
        run(options.folder, options.updates, options.compare)


if __name__ == "__main__":
    main()
