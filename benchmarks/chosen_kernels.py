"""The CPU kernels that a run chooses, for benchmarks that start its parts by themselves."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from accumtrain.config.jobs import JOBS
from accumtrain.config.schema import Config
from accumtrain.runs.kernels import choose_kernels


@contextlib.contextmanager
def kernels_of(config: Config) -> Iterator[dict[str, str]]:
    """Within this context the environment has the variable that a run of `config` sets; gives it too."""
    given = dict(os.environ)
    with contextlib.ExitStack() as chosen:
        with contextlib.redirect_stdout(sys.stderr):
            chosen.enter_context(choose_kernels(config, JOBS["bench"]))
        yield {name: value for name, value in os.environ.items() if name not in given}
