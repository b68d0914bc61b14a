"""How a worker of compare.py takes its turns: each line on stdin is an update, answered by a line of JSON on stdout.

The first update is made at once, while the other workers are not there yet.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1]))  # what all benchmarks share; last, for one has the name of a package
from texts import TASKS, Texts

OPTIMIZERS = ("adam", "adamw", "adafactor")
STATUS = Path("/proc/self/status")  # on Linux


def arguments() -> argparse.Namespace:
    """Return the options of a worker, and as `texts` what its batches are of, None for images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--image-size", type=int)
    kinds.add_argument("--tokens", type=int, help="of the longest text")
    parser.add_argument("--vocabulary", type=int, help="of texts")
    parser.add_argument("--task", choices=TASKS, default="classify", help="of texts")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--memory", action="store_true", help="tell the peak of tensors on the CPU, too")
    parser.add_argument("--compile", action="store_true", help="PyTorch: use torch.compile")
    parser.add_argument("--lora-rank", type=int, help="torch_finetune.py: train adapters of this rank by PEFT")
    parser.add_argument("--recompute", action="store_true", help="torch_finetune.py: checkpoint activations")
    options = parser.parse_args()
    options.texts = Texts(options.tokens, options.vocabulary, options.task) if options.tokens else None
    return options


class Turns:
    """Updates from `units` images or tokens each.

    Create it before the framework writes to stdout: that goes to stderr from then on.
    """

    def __init__(self, units: int):
        self._units, self._first = units, True
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._started = psutil.Process().create_time()
        self._clock, self._ended = 0.0, 0.0  # perf_counter; `_ended` is 0 while an update runs

    def next(self) -> bool:
        """Waits for a turn, then starts the clock. False: there are no more."""
        asked = self._first or bool(sys.stdin.readline())
        self._clock, self._ended = time.perf_counter(), 0.0
        return asked

    def stop(self) -> None:
        """Stops the clock. What follows before `done` is not timed, and the other workers wait for it."""
        self._ended = time.perf_counter()

    def done(self, **facts: float) -> None:
        """Stops the clock unless it is stopped, and answers the turn, with what else there is to tell."""
        if not self._ended:
            self.stop()
        if self._first:
            facts["seconds_to_first_update"] = time.time() - self._started - (time.perf_counter() - self._ended)
        else:
            facts["units_per_second"] = self._units / (self._ended - self._clock)
        self._first = False
        facts["rss_peak_bytes"] = resident_peak_bytes()
        self._answers.write(json.dumps(facts) + "\n")


def units_of(options: argparse.Namespace) -> int:
    """Return the images of an update, or the tokens of its texts, padding included."""
    return options.micro_batch * options.steps * (options.tokens or 1)


def resident_peak_bytes() -> int:
    """The largest resident memory of this process; on Linux without that of its parent, which ru_maxrss begins with."""
    if STATUS.is_file():
        lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
