"""The memory that is free for a run, within the limits of a container, and the processor. No TensorFlow here."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from accumtrain.console import format_bytes
from accumtrain.errors import OutOfMemoryError

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# The limit, what is used of it, and the line of memory.stat with the file cache that is dropped on demand.
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# Addresses that libraries take once they are loaded, and the stacks and heaps of the threads for each core.
LIBRARIES, THREADS_OF_A_CORE = 1792 * 2**20, 1024 * 2**20

INTEL = "GenuineIntel"  # the name by which its processors call their vendor
CPU_INFO = Path("/proc/cpuinfo")
# Instruction sets of x86 and ARM that decide which kernels compute, and so which bits come out.
INSTRUCTIONS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_bf16", "amx_fp16", "asimd", "sve"),
)
# Instruction sets of which one is enough for kernels that compute in a precision. With avx512_fp16 alone oneDNN has
# none for the gradient of a convolution's kernel (docs/kernels.md).
FOR_16_BITS = {"bfloat16": {"avx512_bf16", "amx_bf16"}, "float16": {"amx_fp16"}}
MATRIX_BFLOAT16 = "amx_bf16"  # with it a CPU makes sixteen times the multiplications of float32 in bfloat16

# ---- memory ----


def free_bytes() -> int:
    """Return the bytes for a run in place of this process: the free memory, and what this process would release."""
    return spare_bytes() + psutil.Process().memory_info().rss


def spare_bytes() -> int:
    """Return the bytes that this process may take beside what it holds."""
    limits = [psutil.virtual_memory().available, *list_cgroup_bytes(CGROUPS, OWN_CGROUPS)]
    addresses = count_free_addresses()
    return min(limits if addresses is None else [*limits, addresses])


def fewer_addresses_than_memory() -> bool:
    """Return whether a limit of addresses ends a run before memory does."""
    addresses = count_free_addresses()
    return addresses is not None and addresses < psutil.virtual_memory().available


def count_free_addresses() -> int | None:
    """Return the bytes of addresses that this process may still take; None without a limit (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else max(0, limit - psutil.Process().memory_info().vms)


def count_thread_addresses() -> int:
    """Return the bytes of addresses that TensorFlow's threads may take beside the tensors of a run."""
    return THREADS_OF_A_CORE * (os.cpu_count() or 1)


def check_addresses() -> None:
    """Raise OutOfMemoryError if `ulimit -v` allows fewer addresses than TensorFlow takes, which would crash."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = LIBRARIES + count_thread_addresses()
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise OutOfMemoryError(
            f"`ulimit -v` allows {format_bytes(limit)} of addresses, and TensorFlow with its threads takes "
            f"{format_bytes(needed)} beside the tensors of a run; give more, for example `ulimit -v unlimited`, and "
            "limit the tensors by device.memory_limit_mb"
        )


def list_cgroup_bytes(mounted: Path, own: Path) -> Iterator[int]:
    """Yield the free bytes of each control group around this process that has a limit.

    Args:
        mounted: where the control groups are mounted, version 2 there or version 1 in memory/.
        own: the file that names those of this process, a line `number:controllers:path` each.
    """
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, names = (mounted, V2) if controllers == "" else (mounted / "memory", V1)
        group = root / path.lstrip("/")
        # a container may see only the end of its path, and every group further up has a limit of its own
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield from _left(folder, *names)


def _left(folder: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    try:
        most = (folder / limit).read_text(encoding="utf-8").strip()
        now = int((folder / used).read_text(encoding="utf-8"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:  # the root has no limit, and a group of another namespace is not shown
        return
    if most != "max":
        yield max(0, int(most) - now + int(statistics.get(cache, 0)))


# ---- processor ----


def cpu() -> dict[str, Any]:
    """Return the model of the processor, and those of INSTRUCTIONS that the system names."""
    facts = dict(_cpu_facts())
    known = set(facts.get("flags", facts.get("Features", "")).split())
    return {
        "model": facts.get("model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in INSTRUCTIONS if name in known],
    }


def read_vendor() -> str:
    """Return the vendor of the processor by its own name; empty where the system has none."""
    return dict(_cpu_facts()).get("vendor_id", "")


def _cpu_facts() -> Iterator[tuple[str, str]]:
    """Yield name and value of each line about the first core."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            yield name.strip(), value.strip()
