"""The CPU kernels that a run chooses, for benchmarks that start its parts by themselves."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace

from accumtrain.config.schema import Config
from accumtrain.kinds.jobs import JOBS
from accumtrain.planning.kernel_choice import choose_kernels


@contextlib.contextmanager
def kernels_of(config: Config) -> Iterator[dict[str, str]]:
    """Within this context the environment has the variable that a run of `config` sets, as measured; gives it too."""
    given = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        choose_kernels(replace(config, run=replace(config.run, dir=folder)), JOBS["bench"])
    chosen = {name: value for name, value in os.environ.items() if name not in given}
    try:
        yield chosen
    finally:
        for name in chosen:
            del os.environ[name]
