"""Adam beside Adafactor as the batch grows: LeNet-5 on the digits, equal epochs, the better of two rates (minutes).

    .venv/bin/python benchmarks/adafactor_batches.py
    .venv/bin/python benchmarks/adafactor_batches.py --epochs 10 --batches 64 1024

Each number is the accuracy on the 360 test images after the last epoch under a cosine, the mean over the seeds, and the
rate that gave it.
"""

import argparse
import contextlib
import io
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from accumtrain import Config, run
from accumtrain.config.schema import RunConfig, TrainConfig
from accumtrain.kinds.models import LeNetConfig
from accumtrain.optim.config import AdafactorConfig, AdamConfig, OptimConfig

BATCHES = (32, 64, 128, 256, 512, 1024)
RATES = {AdamConfig: (2e-3, 1e-2), AdafactorConfig: (0.05, 0.2)}


def accuracy(optim: OptimConfig, batch: int, epochs: int, seed: int, folder: str) -> float:
    config = Config(
        model=LeNetConfig(),
        optim=optim,
        batch_size=batch,
        train=TrainConfig(epochs=epochs),
        run=RunConfig(name=f"{optim.kind}-{optim.lr}-{batch}-{seed}", dir=folder, seed=seed),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        result = run(config)
    assert result is not None  # as on a worker that is not the chief
    return float(result["test"]["accuracy"])


def best(kind: type[OptimConfig], batch: int, epochs: int, seeds: int, folder: str) -> tuple[float, float]:
    """The accuracy of the better rate, and this rate."""
    means = []
    for rate in RATES[kind]:
        optim = kind(lr=rate, weight_decay=0.0)
        found = [accuracy(optim, batch, epochs, seed, folder) for seed in range(seeds)]
        means.append((sum(found) / seeds, rate))
    return max(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    start = time.monotonic()
    print("| batch | Adam | its rate | Adafactor | its rate |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for batch in given.batches:
            cells = [
                f"{100 * found:.1f} % | {rate:g}"
                for found, rate in (best(kind, batch, given.epochs, given.seeds, folder) for kind in RATES)
            ]
            print(f"| {batch} | {' | '.join(cells)} |", flush=True)
    print(f"\n{given.epochs} epochs, {given.seeds} seeds, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
