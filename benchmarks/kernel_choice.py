"""Whether timing single kernels finds the faster ones (minutes on a CPU).

    .venv/bin/python benchmarks/kernel_choice.py                         # TensorFlow's own or oneDNN's
    .venv/bin/python benchmarks/kernel_choice.py --precision bfloat16    # bfloat16's or float32's

Each case is timed as a run does it (accumtrain/planning/kernel_comparison.py), and as whole updates by job=bench, with
both values of the variable in turn. Unless the environment says otherwise, ONEDNN_MAX_CPU_ISA=AVX2 has oneDNN do in
float32 as on a processor without AVX-512; DEFAULT takes all that this one has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from accumtrain.config.convert import from_mapping
from accumtrain.config.schema import Config
from accumtrain.planning.kernel_comparison import IN_16_BITS, LIBRARY, KernelKinds, measure

ISA = "ONEDNN_MAX_CPU_ISA"
CASES = [("resnet20", 8, 32), ("revnet38", 8, 32), ("resnet20", 32, 32), ("revnet38", 32, 32), ("resnet50", 128, 4)]
ROUNDS = 3


def command(model: str, side: int, batch: int, precision: str) -> list[str]:
    data = ["data=synthetic", f"data.image_size={side}", "data.num_classes=10"]
    return [f"model={model}", *data, f"batch_size={batch}", "accum.steps=1", f"precision={precision}"]


def images_per_second(overrides: list[str], variable: str, value: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "accumtrain", "job=bench", *overrides, f"run.dir={folder}", "run.name=one"],
            env={**os.environ, variable: value},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads((Path(folder) / "one" / "bench.json").read_text())["images_per_second"]["median"]


def composed(overrides: list[str]) -> Config:
    """The configuration of a case, as the command line composes it."""
    shown = subprocess.run(
        [sys.executable, "-m", "accumtrain", *overrides, "--cfg", "job"],
        capture_output=True,
        text=True,
        check=True,
    )
    values = OmegaConf.to_container(OmegaConf.create(shown.stdout), resolve=True)
    assert isinstance(values, dict)
    return from_mapping({str(key): value for key, value in values.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    precision = parser.parse_args().precision
    kinds = LIBRARY if precision == "float32" else IN_16_BITS
    if kinds is LIBRARY:
        os.environ.setdefault(ISA, "AVX2")
    default, other = kinds.names
    print(f"{ISA}={os.environ.get(ISA, 'DEFAULT')}; how many times as fast as {kinds.names[default]} kernels")
    print(f"{kinds.names[other]} are, by single kernels and by whole updates")
    print(f"{'model':<10} {'px':>4} {'batch':>5} {'kernels':>8} {'updates':>8}")
    for case in CASES:
        overrides = command(*case, precision)
        seconds = measure(composed(overrides), kinds)
        assert seconds is not None
        updates = statistics.median(ratio_of_updates(overrides, kinds, number) for number in range(ROUNDS))
        model, side, batch = case
        print(f"{model:<10} {side:>4} {batch:>5} {seconds[default] / seconds[other]:>8.2f} {updates:>8.2f}", flush=True)


def ratio_of_updates(overrides: list[str], kinds: KernelKinds, number: int) -> float:
    """Of the images per second with the other kernels to those with the default; who begins turns with the number."""
    default, other = kinds.names
    order = (default, other) if number % 2 else (other, default)
    speed = {value: images_per_second(overrides, kinds.variable, value) for value in order}
    return speed[other] / speed[default]


if __name__ == "__main__":
    main()
