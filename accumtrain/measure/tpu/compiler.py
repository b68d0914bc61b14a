"""Compile a program for a TPU that this machine does not have. A Python with jax and libtpu runs this script:

    python compiler.py FOLDER

FOLDER holds `request.json` ({"topology": "v5e:2x2"}) and `update.jax`, a function of (arguments that change in place,
other arguments) as jax.export serializes it. `answer.json` then holds the bytes that one device would need, or a
`message`. Exit codes: 0 compiled, 2 the topology is unknown to the compiler, 6 the program does not fit into the
device's memory.

This file imports nothing of the package, which is not installed there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # else libtpu waits for minutes for an answer of Google's metadata server
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile; only a chip is for one process
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",  # the count of updates is an int64
}
EXCEEDED = re.compile(r"Used \S+ of \S+ hbm")


def main(name: str) -> int:
    """Answer the request in the folder `name`. Return the exit code of the process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(ENVIRONMENT)
    directory = Path(name)
    topology = json.loads((directory / "request.json").read_text(encoding="utf-8"))["topology"]
    answer, code = _answer((directory / "update.jax").read_bytes(), topology)
    (directory / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return code


def _answer(program: bytes, topology: str) -> tuple[dict[str, Any], int]:
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    try:
        device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    except JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        return {"message": f"device.tpu_topology={topology}: the TPU's compiler does not know it: {reason}"}, 2
    try:
        return _compiled(program, device), 0
    except JaxRuntimeError as error:
        exceeded = EXCEEDED.search(str(error))
        if exceeded is None:
            raise
        return {"message": exceeded[0]}, 6


def _compiled(program: bytes, device: Any) -> dict[str, Any]:
    import jax
    from jax import export

    exported = export.deserialize(bytearray(program))
    there = jax.sharding.SingleDeviceSharding(device)
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=there) for value in exported.in_avals]
    arguments, _ = jax.tree.unflatten(exported.in_tree, shapes)
    compiled = jax.jit(exported.call, donate_argnums=0).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    return {
        "device": device.device_kind,
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
    }


def _end_with_parent() -> None:
    """End this process when its parent ends, which holds the other end of stdin."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
