"""Whether timing single kernels finds the faster of TensorFlow's own and oneDNN's (minutes on a CPU).

    .venv/bin/python benchmarks/kernel_choice.py

Each case is timed as a run does it (accumtrain/planning/kernel_choice.py), and as whole updates by job=bench, with
TF_ENABLE_ONEDNN_OPTS=0 and =1 in turn. Unless the environment says otherwise, ONEDNN_MAX_CPU_ISA=AVX2 has oneDNN do as
on a processor without AVX-512; DEFAULT takes all that this one has.
"""

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
from accumtrain.planning.kernel_choice import KERNELS, measure
from accumtrain.process.environment import ONEDNN

ISA = "ONEDNN_MAX_CPU_ISA"
CASES = [("resnet20", 8, 32), ("revnet38", 8, 32), ("resnet20", 32, 32), ("revnet38", 32, 32), ("resnet50", 128, 4)]
ROUNDS = 3


def command(model: str, side: int, batch: int) -> list[str]:
    data = ["data=synthetic", f"data.image_size={side}", "data.num_classes=10"]
    return [f"model={model}", *data, f"batch_size={batch}", "accum.steps=1"]


def updates_per_second(case: tuple[str, int, int], value: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "accumtrain", "job=bench", *command(*case), f"run.dir={folder}", "run.name=one"],
            env={**os.environ, ONEDNN: value},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads((Path(folder) / "one" / "bench.json").read_text())["images_per_second"]["median"]


def composed(case: tuple[str, int, int]) -> Config:
    """The configuration of a case, as the command line composes it."""
    shown = subprocess.run(
        [sys.executable, "-m", "accumtrain", *command(*case), "--cfg", "job"],
        capture_output=True,
        text=True,
        check=True,
    )
    values = OmegaConf.to_container(OmegaConf.create(shown.stdout), resolve=True)
    assert isinstance(values, dict)
    return from_mapping({str(key): value for key, value in values.items()})


def main() -> None:
    os.environ.setdefault(ISA, "AVX2")
    print(f"{ISA}={os.environ[ISA]}; how many times as fast oneDNN's kernels are, by single kernels and by updates")
    print(f"{'model':<10} {'px':>4} {'batch':>5} {'kernels':>8} {'updates':>8}")
    for case in CASES:
        seconds = measure(composed(case))
        assert seconds is not None
        ratios = []
        for number in range(ROUNDS):
            order = list(KERNELS) if number % 2 else list(reversed(KERNELS))
            speed = {value: updates_per_second(case, value) for value in order}
            ratios.append(speed["1"] / speed["0"])
        model, side, batch = case
        row = f"{model:<10} {side:>4} {batch:>5} {seconds['0'] / seconds['1']:>8.2f} {statistics.median(ratios):>8.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
