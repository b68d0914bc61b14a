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

import psutil


def arguments() -> argparse.Namespace:
    """--model, --precision, --micro-batch, --steps and --image-size of a worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--image-size", type=int, required=True)
    return parser.parse_args()


class Turns:
    """Updates of `images` each. Create it before the framework writes to stdout: that goes to stderr from then on."""

    def __init__(self, images: int):
        self._images, self._first = images, True
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._started = psutil.Process().create_time()
        self._clock = 0.0

    def next(self) -> bool:
        """Waits for a turn, then starts the clock. False: there are no more."""
        asked = self._first or bool(sys.stdin.readline())
        self._clock = time.perf_counter()
        return asked

    def done(self, **facts: float) -> None:
        """Stops the clock and answers the turn, with what else there is to tell."""
        seconds = time.perf_counter() - self._clock
        if self._first:
            facts["seconds_to_first_update"] = time.time() - self._started
        else:
            facts["images_per_second"] = self._images / seconds
        self._first = False
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        facts["rss_peak_bytes"] = peak if sys.platform == "darwin" else peak * 1024
        self._answers.write(json.dumps(facts) + "\n")
