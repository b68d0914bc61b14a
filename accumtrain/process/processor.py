"""The processor: its model and the instruction sets that decide which kernels compute. No TensorFlow is imported."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INTEL = "GenuineIntel"  # as its processors name their vendor
CPU_INFO = Path("/proc/cpuinfo")
# of x86 and ARM, as far as they decide which kernels compute and so which bits come out
INSTRUCTIONS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_bf16", "amx_fp16", "asimd", "sve"),
)
# by precision: instruction sets of which one is enough for kernels that compute in it; with avx512_fp16 alone oneDNN
# has none for the gradient of a convolution's kernel (docs/kernels.md)
FOR_16_BITS = {"bfloat16": {"avx512_bf16", "amx_bf16"}, "float16": {"amx_fp16"}}
MATRIX_BFLOAT16 = "amx_bf16"  # with it a CPU makes sixteen times the multiplications of float32 in bfloat16


def cpu() -> dict[str, Any]:
    """Model of the processor, and its instruction sets among INSTRUCTIONS; none where the system does not name them."""
    facts = dict(_cpu_facts())
    known = set(facts.get("flags", facts.get("Features", "")).split())
    return {
        "model": facts.get("model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in INSTRUCTIONS if name in known],
    }


def vendor() -> str:
    """The vendor of the processor as it names it; empty where the system does not."""
    return dict(_cpu_facts()).get("vendor_id", "")


def _cpu_facts() -> Iterator[tuple[str, str]]:
    """The lines of the first core."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            yield name.strip(), value.strip()
