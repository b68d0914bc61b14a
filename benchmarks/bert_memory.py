"""Memory of BERT-base with Adafactor, masked tokens, 256 texts of 128 tokens, beside Keras and PyTorch (an hour).

    .venv/bin/python benchmarks/bert_memory.py
    .venv/bin/python benchmarks/bert_memory.py --batch 64 --peers torch

The peak is that of all tensors, as in memory_chart.py. Ours is that of a window, without the checkpoints and the input
of a run. It is exact on a busy machine, too.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from typing import Any

from compare import Case, started
from texts import Texts
from workbench import Table

MB = 2**20
TEXTS = Texts(tokens=128, vocabulary=30522, task="masked_tokens")
BATCH, MICRO_BATCHES = 256, (64, 32, 16, 8)
LIMIT_MB = 1.2 * 1024
PEER_LIMIT = 20 * 2**30  # bytes of address space
KINDS = ("weights", "gradients", "optimizer")


def case_of(ours: str, micro_batch: int, steps: int) -> Case:
    return Case(f"model={ours}", "encoder_base", "float32", micro_batch, steps, TEXTS, "adafactor")


def bytes_of_update(worker: str, case: Case) -> dict[str, Any]:
    """Return what a worker tells of its second update, which the peers' is measured in."""
    process = started(worker, case, "--memory")
    told = process.answer() | process.turn()
    process.close()
    return told


def main(batch: int, peers: Sequence[str]) -> None:
    """Show the job with the largest micro-batch under the limit, beside the peers with the same micro-batch."""
    if batch % max(MICRO_BATCHES):
        raise SystemExit(f"--batch {batch}: must be a multiple of the largest micro-batch, {max(MICRO_BATCHES)}")
    resource.setrlimit(resource.RLIMIT_AS, (PEER_LIMIT, PEER_LIMIT))
    print(f"BERT-base, vocabulary {TEXTS.vocabulary}, {batch} texts of {TEXTS.tokens} tokens, Adafactor, float32; MB.")
    print(f"The micro-batch is the largest with less than {LIMIT_MB:.0f} MB in all.\n")
    table = Table("", "micro-batch", "M parameters", "tensors at the peak", *KINDS, "the rest")

    def show(name: str, worker: str, case: Case) -> float:
        told = bytes_of_update(worker, case)
        peak = told["tensor_peak_bytes"] / MB
        kinds = [told[f"{kind}_bytes"] / MB for kind in KINDS if f"{kind}_bytes" in told]
        cells = [*(f"{mb:.1f}" for mb in kinds), f"{peak - sum(kinds):.1f}"] if kinds else ["-"] * (len(KINDS) + 1)
        table.row(name, case.micro_batch, f"{told['parameters'] / 1e6:.2f}", f"{peak:.1f}", *cells)
        return peak

    for micro_batch in MICRO_BATCHES:  # two micro-steps and a commit have the peak of a whole update
        if show("ours, reversed", "ours", case_of("revencoder_base", micro_batch, 2)) < LIMIT_MB:
            break
    steps = batch // micro_batch
    show("ours, reversed, whole batch", "ours", case_of("revencoder_base", micro_batch, steps))
    show("ours, plain", "ours", case_of("encoder_base", micro_batch, steps))
    for peer in peers:
        try:
            show(peer, peer, case_of("encoder_base", micro_batch, steps))
        except SystemExit as ended:
            table.row(peer, micro_batch, "", f"ended, with {PEER_LIMIT / 2**30:.0f} GB of address space", *[""] * 4)
            print(ended)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH, help="texts of an update")
    parser.add_argument("--peers", nargs="*", choices=("keras", "torch"), default=["keras", "torch"])
    options = parser.parse_args()
    main(options.batch, options.peers)
