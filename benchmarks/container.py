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

MOUNTED = Path("/sys/fs/cgroup")
NAME = "accumtrain-benchmark"
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@contextmanager
def container(megabytes: int) -> Iterator[None]:
    """Within this context, this process and those that it starts have so much memory together, and no swap.

    Afterwards this process belongs to the root group.

    Raises:
        SystemExit: this machine does not allow it.
    """
    version_1 = (MOUNTED / "memory").is_dir()
    root = MOUNTED / "memory" if version_1 else MOUNTED
    limits = (
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version_1 else ("memory.max", "memory.swap.max")
    )
    group = root / NAME
    try:
        group.mkdir(exist_ok=True)
        (group / limits[0]).write_text(str(megabytes * 2**20))
        if (group / limits[1]).exists():
            (group / limits[1]).write_text(str(megabytes * 2**20 if version_1 else 0))
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
