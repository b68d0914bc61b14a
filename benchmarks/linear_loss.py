"""Memory and time of a linear layer with cross-entropy, 4,096 tokens of 49,152 words, beside PyTorch (10 minutes).

    .venv/bin/python benchmarks/linear_loss.py --peer-python PYTHON    # one that has torch
    .venv/bin/python benchmarks/linear_loss.py --tokens 1024 --precision bfloat16

The peak is that of tensors beyond the inputs, the kernel and the gradients of both. Sides take turns, and ratios are by
rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from workbench import Table, Worker, by_rounds, in_turn

PEERS = Path(__file__).parent / "peers"
MB = 2**20
SIDES = {
    "TensorFlow, all logits": ("linear_ours.py", "--how", "plain"),
    "chunks of 1/6 of the kernel": ("linear_ours.py", "--how", "chunks", "--share", "6"),
    "chunks of 1/3": ("linear_ours.py", "--how", "chunks", "--share", "3"),
    "chunks of its size, as used": ("linear_ours.py", "--how", "chunks", "--share", "1"),
    "keras.LinearCrossEntropy": ("linear_ours.py", "--how", "layer"),
    "PyTorch": ("linear_torch.py",),
    "PyTorch, compiled": ("linear_torch.py", "--compile"),
}


def show(options: argparse.Namespace) -> None:
    sizes = [f"--{name}={getattr(options, name)}" for name in ("tokens", "words", "channels", "precision")]
    sides = {side: command for side, command in SIDES.items() if options.peer_python or "torch" not in command[0]}
    workers = {}
    for side, (program, *arguments) in sides.items():
        python = options.peer_python if "torch" in program else sys.executable
        environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true"}
        workers[side] = Worker([python, str(PEERS / program), *arguments, *sizes], environment)
    first = {side: worker.answer() for side, worker in workers.items()}
    answers = in_turn({side: worker.turn for side, worker in workers.items()}, options.rounds)
    for worker in workers.values():
        worker.close()
    print(f"{options.tokens:,} tokens x {options.words:,} words x {options.channels}, {options.precision}\n")
    table = Table("", "peak beyond, MB", "seconds", "time by that of all logits")
    seconds = {side: [1 / answer["units_per_second"] for answer in own] for side, own in answers.items()}
    for side, own in seconds.items():
        ratio = by_rounds(own, seconds["TensorFlow, all logits"])
        table.row(side, f"{first[side]['bytes_beyond'] / MB:.0f}", f"{statistics.median(own):.2f}", f"{ratio:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python with torch; without it there is no PyTorch in the table")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--words", type=int, default=49152)
    parser.add_argument("--channels", type=int, default=576)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    show(parser.parse_args())
