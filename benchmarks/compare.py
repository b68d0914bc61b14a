"""accumtrain beside Keras `fit` and PyTorch: the same updates in turn on a quiet machine, ratios by rounds.

    .venv/bin/python benchmarks/compare.py --small                     # a few minutes
    .venv/bin/python benchmarks/compare.py --case resnet50-bfloat16    # one of them
    .venv/bin/python benchmarks/compare.py --output benchmarks/RESULTS.md

Each worker is a process of its own (peers/), started alone, so that its first update is timed alone. Then rounds: every
worker makes one update while the others wait, and a matrix product shows what the machine gives at that moment. A ratio
is formed within each round; its median stands in the table. The peers need `pip install 'accumtrain[peers]'`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from chosen_kernels import kernels_of
from texts import Texts
from workbench import Table, Worker, by_rounds, in_turn, of_case, of_texts

from accumtrain.config.schema import Config
from accumtrain.process.machine import cpu

PEERS = Path(__file__).parent / "peers"
PACKAGES = ("accumtrain", "tensorflow", "keras", "torch", "numpy")
MEANINGS = """\
Images, or tokens of texts, per second: median over the rounds, p10 to p90 in brackets. Ratios: ours over the peer's
within each round, median. Share: ours of the matrix product of the same round. First update: seconds from the start of
the process. Memory: peak resident. Others: the share of the machine's CPUs that other processes, or other machines on
its host, used meanwhile; above a few per cent the row says little. One batch in memory, Adam, two updates of warm-up.
Where a run first times CPU kernels, ours has the faster ones, timed before (docs/faster.md). Keras is `fit` without
XLA, with TensorFlow's default; PyTorch is eager, channels_last, with fused Adam, and autocast for bfloat16. The peers
have no reversible networks: theirs is the ResNet of as many parameters, or the plain transformer. Their ViTs and text
encoders are ours layer for layer. A text ends in padding, up to half of it, which counts as tokens.
"""


@dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        ours: overrides of accumtrain.
        peer: the model of Keras and PyTorch, named as accumtrain names it.
        data: width of an image, or texts.
        optimizer: of texts; of images it is Adam.
    """

    ours: str
    peer: str
    precision: str
    micro_batch: int
    steps: int
    data: int | Texts
    optimizer: str = "adam"

    @property
    def text(self) -> str:
        size = f"{self.data.tokens} tokens" if isinstance(self.data, Texts) else f"{self.data} px"
        return f"{self.ours}, {size}, {self.micro_batch} x {self.steps}, {self.precision}"

    @property
    def config(self) -> Config:
        """The configuration of our side."""
        if isinstance(self.data, Texts):
            return of_texts(self.ours, self.precision, self.optimizer)
        return of_case(self.ours, self.precision, self.micro_batch, self.steps, self.data)

    @property
    def is_twin(self) -> bool:
        """Return whether both peers have our network layer for layer."""
        return self.ours == f"model={self.peer}" and self.peer.startswith(("vit", "encoder", "decoder"))


def kernels(case: Case) -> dict[str, str]:
    """The variable by which a run chooses its CPU kernels; none where it is not set."""
    with kernels_of(case.config) as chosen:
        return chosen


def _cases() -> dict[str, Case]:
    texts, rows = Texts(tokens=128, vocabulary=30522), Texts(tokens=512, vocabulary=30522, task="next_token")
    models: dict[str, tuple[str, str, int, int, int | Texts]] = {
        # name: overrides, the peers' model, micro-batch, micro-steps, pixels or texts
        "resnet20": ("model=resnet20", "resnet20", 128, 1, 32),
        "revnet38": ("model=revnet38", "resnet32", 128, 1, 32),
        "revnet38-stored": ("model=revnet38 model.memory=store", "resnet32", 128, 1, 32),
        "resnet50": ("model=resnet50", "resnet50", 16, 2, 224),
        "resnet101": ("model=resnet101", "resnet101", 16, 2, 224),
        "revnet104": ("model=revnet104", "resnet101", 16, 2, 224),
        "revnet104-batch32": ("model=revnet104", "resnet101", 32, 1, 224),
        "revnet104-stored": ("model=revnet104 model.memory=store", "resnet101", 16, 2, 224),
        "vit_small": ("model=vit_small", "vit_small", 8, 2, 224),
        "revvit_small": ("model=revvit_small", "vit_small", 8, 2, 224),
        "encoder_small": ("model=encoder_small", "encoder_small", 32, 2, texts),
        "revencoder_small": ("model=revencoder_small", "encoder_small", 32, 2, texts),
        "decoder_small": ("model=decoder_small", "decoder_small", 4, 2, rows),
        "revdecoder_small": ("model=revdecoder_small", "decoder_small", 4, 2, rows),
    }
    return {
        f"{name}-{precision}": Case(ours, peer, precision, micro_batch, steps, data)
        for name, (ours, peer, micro_batch, steps, data) in models.items()
        for precision in ("float32", "bfloat16")
    }


CASES = _cases()
SMALL = ("resnet20-float32", "revnet38-float32", "resnet50-bfloat16")
WARM_UP = 2  # turns of each worker before those that count
WORKERS = {
    "ours": "ours.py",
    "keras": "keras_fit.py",
    "torch": "torch_fit.py",
    "finetune": "torch_finetune.py",
    "matmul": "matmul.py",
}


def started(name: str, case: Case, *more: str, python: str = sys.executable) -> Worker:
    """A worker that makes its first update, by an interpreter; `more` are options of its own."""
    options: dict[str, str | int] = {
        "--model": case.ours if name == "ours" else case.peer,
        "--precision": case.precision,
        "--micro-batch": case.micro_batch,
        "--steps": case.steps,
    }
    if isinstance(case.data, Texts):
        options |= {"--tokens": case.data.tokens, "--vocabulary": case.data.vocabulary}
        options |= {"--task": case.data.task, "--optimizer": case.optimizer}
    else:
        options |= {"--image-size": case.data}
    words = [str(word) for option in options.items() for word in option]
    chosen = kernels(case) if name == "ours" else {}
    return Worker([python, str(PEERS / WORKERS[name]), *words, *more], os.environ | chosen)


def compare(case: Case, names: Sequence[str], rounds: int) -> dict[str, dict[str, Any]]:
    """What every worker told, and its `rounds`; of `machine`, the share of its CPUs that `others` used."""
    workers, facts = {}, {}
    for name in names:  # alone, so that its first update is timed alone
        workers[name] = started(name, case)
        facts[name] = workers[name].answer()
    if case.is_twin:
        check_parameters(case, facts)
    turns = {name: worker.turn for name, worker in workers.items()}
    warm = in_turn(turns, WARM_UP)
    began, used = time.perf_counter(), used_by_others(workers.values())
    answers = in_turn(turns, rounds)
    others = (used_by_others(workers.values()) - used) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    found: dict[str, dict[str, Any]] = {"machine": {"others": others}}
    for name, worker in workers.items():
        worker.close()
        for answer in (*warm[name], *answers[name]):
            facts[name] |= answer  # the latest word of each kind
        found[name] = facts[name] | {"rounds": answers[name]}
    return found


def check_parameters(case: Case, facts: Mapping[str, dict[str, Any]]) -> None:
    """Raise SystemExit if the networks differ in their number of parameters."""
    counts = {name: told["parameters"] for name, told in facts.items() if "parameters" in told}
    if len(set(counts.values())) > 1:
        raise SystemExit(f"{case.text}: the networks are not the same, parameters {counts}")


def used_by_others(workers: Iterable[Worker]) -> float:
    """CPU seconds that this machine, or the host that steals from it, has spent on anything but these workers."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + getattr(times, "steal", 0.0)  # of Linux only
    return busy - sum(worker.cpu_seconds() for worker in workers)


# --- the table ------------------------------------------------------------------------------------------------------


def rates(facts: dict[str, Any]) -> list[float]:
    return [answer["units_per_second"] for answer in facts["rounds"]]


def share(found: dict[str, dict[str, Any]]) -> str:
    peaks = [answer["flops_per_second"] for answer in found["matmul"]["rounds"]]
    flops = found["ours"]["flops_per_unit"]
    return f"{by_rounds([flops * rate for rate in rates(found['ours'])], peaks):.2f}"


def of_each(found: dict[str, dict[str, Any]], show: Callable[[dict[str, Any]], str]) -> list[str]:
    return [show(found[name]) if name in found else "-" for name in ("ours", "keras", "torch")]


def speed(facts: dict[str, Any]) -> str:
    ordered = sorted(rates(facts))
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (0.1, 0.9))
    return f"{statistics.median(ordered):.4g} ({low:.4g} to {high:.4g})"


def row(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    ours = rates(found["ours"])
    return [
        name,
        *of_each(found, speed),
        *(f"{by_rounds(ours, rates(found[peer])):.2f}" if peer in found else "-" for peer in ("keras", "torch")),
        share(found),
        " / ".join(of_each(found, lambda facts: f"{facts['rss_peak_bytes'] / 2**30:.2f}")),
        " / ".join(of_each(found, lambda facts: f"{facts['seconds_to_first_update']:.1f}")),
        " / ".join(of_each(found, lambda facts: f"{facts['parameters'] / 1e6:.2f}")),
        f"{found['machine']['others']:.0%}",
    ]


HEAD = (
    "case",
    "ours, images or tokens/s",
    "Keras",
    "PyTorch",
    "ours / Keras",
    "ours / PyTorch",
    "share",
    "memory, GB (ours / Keras / PyTorch)",
    "first update, s",
    "M parameters",
    "others",
)


def machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    widest = [name for name in cpu()["instructions"] if name.startswith(("avx", "amx", "asimd", "sve"))]
    processor = f"{cpu()['model']} with {', '.join(widest)}, {os.cpu_count()} cores"
    return f"{processor}; Python {platform.python_version()}, {versions}"


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a peer that was not asked for
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--small", action="store_true", help=f"only {', '.join(SMALL)}, in few rounds")
    parser.add_argument("--rounds", type=int, help="updates of each worker that count (9, small 3)")
    parser.add_argument("--peers", nargs="*", choices=("keras", "torch"), default=["keras", "torch"])
    parser.add_argument("--output", type=Path, help="write the table there too, after every case")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.small else 9)
    print(f"{machine()}\n")
    table, done = Table(*HEAD), []
    for name in SMALL if options.small else options.case:
        table.row(*row(name, compare(CASES[name], ["ours", *options.peers, "matmul"], rounds)))
        done.append(name)
        if options.output:
            options.output.write_text(report(table, done, rounds))


def report(table: Table, done: Sequence[str], rounds: int) -> str:
    lines = "\n".join(table.lines)
    cases = "\n".join(f"- {name}: {CASES[name].text}" for name in done)
    return (
        f"# accumtrain beside Keras and PyTorch\n\n{datetime.date.today()}, {machine()}\n\n"
        f"`.venv/bin/python {shlex.join(sys.argv)}`, {rounds} rounds\n\n{lines}\n\n{MEANINGS}\n{cases}\n"
    )


if __name__ == "__main__":
    main()
