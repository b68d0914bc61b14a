"""A control group that limits memory, as a container does: needs root, and Linux with control groups version 1 or 2.

What counts is what the kernel charges: memory of the processes, and the files that they read, TensorFlow's libraries
among them. So the file cache of the machine is dropped first, or those libraries would be charged to nobody. Only
version 1 has been run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accumtrain.process.free_memory import CGROUPS, V1, V2

NAME = "accumtrain-benchmark"
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@contextmanager
def container(megabytes: int) -> Iterator[None]:
    """Within this context, this process and those that it starts have so much memory together, and no swap.

    Afterwards this process belongs to the root group.

    Raises:
        SystemExit: this machine does not allow it.
    """
    size = megabytes * 2**20
    if (CGROUPS / "memory").is_dir():  # what counts with swap in version 1 is memory and swap together
        root, limit, swap, most_swap = CGROUPS / "memory", V1[0], "memory.memsw.limit_in_bytes", size
    else:
        root, limit, swap, most_swap = CGROUPS, V2[0], "memory.swap.max", 0
    group = root / NAME
    try:
        group.mkdir(exist_ok=True)
        (group / limit).write_text(str(size))
        if (group / swap).exists():  # not where the kernel does not count swap
            (group / swap).write_text(str(most_swap))
        os.sync()
        DROP_CACHES.write_text("3")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as problem:
        raise SystemExit(f"--container needs root, and control groups that may limit memory: {problem}") from problem
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
