"""Memory and numbers of transformers. Each subcommand prints a Markdown table.

.venv/bin/python benchmarks/transformers.py depth     # peaks of 6 to 48 blocks: stored, recomputed, reversed
.venv/bin/python benchmarks/transformers.py batch     # what a further image, text or token takes
"""

from __future__ import annotations

import argparse

from micro_step import Images, Peak, peaks
from texts import Texts
from workbench import Table

POLICIES = {"store": "stored", "recompute": "recomputed", "reverse": "reversed"}
VOCABULARY = 256
BATCH = 8
FAMILIES: dict[str, tuple[list[str], Images | Texts]] = {
    "revvit": (["model=revvit_tiny", "model.patch=4", "model.pool=mean"], Images((32, 32, 3), 10)),
    "revencoder": (["model=revencoder_tiny"], Texts(128, VOCABULARY)),
}
SIZE = ("model.width=128", "model.heads=4")


def find_peaks(family: str, policy: str, depth: int, batches: list[int]) -> list[Peak]:
    """Return the peaks of a small model of a family, beyond its state, one for each size of a batch."""
    overrides, data = FAMILIES[family]
    return peaks(data, batches, *overrides, *SIZE, f"model.depth={depth}", f"model.memory={policy}")


def show_depth(depths: list[int]) -> None:
    """Show the peak beyond state by the number of blocks."""
    print(
        f"MB beyond state at the peak of a micro-step of {BATCH} examples, and MB asked of the allocator in brackets\n"
    )
    table = Table("model", "blocks", *POLICIES.values(), "stored / reversed")
    for family in FAMILIES:
        for depth in depths:
            found = {policy: find_peaks(family, policy, depth, [BATCH])[0] for policy in POLICIES}
            cells = (f"{peak.handed_out:.2f} ({peak.asked:.2f})" for peak in found.values())
            handed_out, asked = zip(found["store"], found["reverse"], strict=True)
            ratios = f"{handed_out[0] / handed_out[1]:.1f} ({asked[0] / asked[1]:.1f})"
            table.row(family, depth, *cells, ratios)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("depth", "batch"))
    show_depth([6, 12, 24, 48])
