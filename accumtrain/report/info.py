"""job=info: this machine, or with run.name=... the origin of a run. No TensorFlow here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import banner, format_bytes, format_things, say, table, warn
from accumtrain.errors import CheckpointError
from accumtrain.fields import format_value
from accumtrain.process.cuda import cuda_build, explain_missing_gpu, find_gpus
from accumtrain.process.jax_packages import explain_missing_packages, jax_packages
from accumtrain.process.machine import cpu, free_bytes
from accumtrain.process.tpu_runtime import explain_missing_tpu
from accumtrain.runs.contents import collect_results
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.runs.provenance import WHOLE, inspect_run, versions

NEEDED_FOR = {"gpu": "for a GPU", "tpu": "for a TPU", "jax": "for JAX"}  # titles of what is missing
VARIABLES = {  # of the environment, and their meaning
    "ACCUMTRAIN_16BIT_KERNELS": "0: convolutions and products of 16 bits in float32",
    "CUDA_VISIBLE_DEVICES": "the GPUs that TensorFlow sees",
    "JAX_COMPILATION_CACHE_DIR": "where JAX keeps compiled programs",
    "JAX_DISABLE_JIT": "1: JAX compiles nothing, which device.runtime=jax refuses",
    "JAX_PLATFORMS": "what JAX may compute on",
    "LD_LIBRARY_PATH": "where CUDA's libraries may come from",
    "NCCL_SOCKET_IFNAME": "the network between workers with GPUs",
    "OMP_NUM_THREADS": "cores of each job of a sweep by joblib",
    "SLURM_JOB_ID": "this is a job of SLURM",
    "SLURM_STEP_NODELIST": "the nodes of device=multiworker",
    "TF_CONFIG": "the workers of device=multiworker",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": "memory of tensors on the CPU",
    "TF_DETERMINISTIC_OPS": "GPU kernels that repeat to the bit",
    "TF_ENABLE_ONEDNN_OPTS": "0: slower kernels, which fail without a crash",
    "TF_NUM_INTEROP_THREADS": "operations that run at once",
    "TF_NUM_INTRAOP_THREADS": "cores of one operation",
    "XLA_FLAGS": "the compiler of device.xla=true and device.runtime=jax",
}


def show_info(config: Config) -> dict[str, Any]:
    """Print the answer and return the content of info.json.

    Raises:
        CheckpointError: run.name names no run.
    """
    return _tell_machine() if config.run.name is None else _tell_run(config)


# ---- this machine ----


def _tell_machine() -> dict[str, Any]:
    build, gpus, jax = cuda_build(), find_gpus(), jax_packages()
    found = {
        "status": "completed",
        "versions": versions(),
        "jax": jax,
        "cuda": {name: build.get(name) for name in ("cuda_version", "cudnn_version")},
        "platform": platform.platform(),
        "cpu": {**cpu(), "cores": os.cpu_count()},
        "memory": {"bytes": psutil.virtual_memory().total, "free_bytes": free_bytes()},
        "gpus": [vars(gpu) for gpu in gpus],
        "missing": {
            "gpu": explain_missing_gpu(build, gpus),
            "tpu": explain_missing_tpu(),
            "jax": explain_missing_packages(jax),
        },
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    _show_machine(found)
    return found


def _show_machine(found: Mapping[str, Any]) -> None:
    software = dict(found["versions"])
    memory, processor, cuda = found["memory"], found["cpu"], found["cuda"]
    built = f"CUDA {cuda['cuda_version']}, cuDNN {cuda['cudnn_version']}" if cuda["cuda_version"] else "no CUDA"
    rows = [
        ("python", f"{software.pop('python')}, {found['platform']}"),
        ("tensorflow", f"{software.pop('tensorflow')}, built with {built}"),
        ("jax", _list(found["jax"]).removeprefix("jax ") or "not installed"),
        ("libraries", _list({name: number for name, number in software.items() if name != "accumtrain"})),
        (
            "cpu",
            f"{processor['model']}, {format_things(processor['cores'], 'core')}, {' '.join(processor['instructions'])}",
        ),
        ("memory", f"{format_bytes(memory['bytes'])}, {format_bytes(memory['free_bytes'])} of it free"),
        *(("gpu", _gpu_text(gpu)) for gpu in found["gpus"]),
        *((NEEDED_FOR[kind], missing or "nothing is missing") for kind, missing in found["missing"].items()),
    ]
    banner(f"accumtrain {software['accumtrain']}", rows)
    if variables := [(name, f"{value} ({VARIABLES[name]})") for name, value in found["variables"].items()]:
        banner("environment", variables)
    else:
        say("no environment variable that matters here is set")


def _list(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def _gpu_text(gpu: Mapping[str, Any]) -> str:
    capability = gpu["capability"] / 10
    return f"{gpu['name']}, {format_bytes(gpu['memory'])}, compute capability {capability}, driver {gpu['driver']}"


# ---- a run ----


def _tell_run(config: Config) -> dict[str, Any]:
    folder = folder_of(config)
    if not (folder / "config.yaml").exists() and not (folder / CHECKPOINTS).exists():
        others = sorted(path.parent.name for path in Path(config.run.dir).glob("*/config.yaml"))
        raise CheckpointError(
            f"no run in {folder}; " + (f"{config.run.dir} holds {', '.join(others)}" if others else "train first")
        )
    found = inspect_run(folder)
    _show_run(folder, found)
    return {"status": found["status"] or "not finished", "run": str(folder), **found}


def _show_run(folder: Path, found: Mapping[str, Any]) -> None:
    if found["status"]:
        epochs = "" if found["epoch"] is None else f", {format_things(format(found['epoch'], '.4g'), 'epoch')}"
        status = f"{found['status']}, {format_things(found['step'], 'update')}{epochs}"
    else:
        status = "unknown" if found["unreadable"] else "no summary.json yet: it trains, or was killed"
    rows = [("status", status)]
    if found["best_on"]:
        for title, means in collect_results(found).items():
            numbers = [f"{name} {value:.4g}" for name, value in means.items() if value is not None]
            rows.append((title, ", ".join(numbers)))
    banner(str(folder), [*rows, *_provenance_rows(found["provenance"] or {})])
    changed = [(key, format_value(before), format_value(now)) for key, (before, now) in found["changed"].items()]
    if changed:
        table("values that are not the defaults", ("key", "default", "here"), changed)
    if found["checkpoints"]:
        checkpoints = [_checkpoint_row(folder, checkpoint) for checkpoint in found["checkpoints"]]
        table("checkpoints", ("checkpoint", "size", "written (UTC)", "state"), checkpoints)
    else:
        say("no checkpoint")
    for checkpoint in found["checkpoints"]:
        if checkpoint["state"] != WHOLE:
            warn(f"{checkpoint['path']}: {checkpoint['state']}")
    for checkpoint in found["quarantine"]:
        warn(f"{checkpoint['path']} was moved away: {(checkpoint['reason'] or 'the reason is lost').strip()}")
    for message in found["unreadable"]:
        warn(message)


def _provenance_rows(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a run's origin. Some of it may be missing in summary.json."""
    git = origin.get("git") or {}
    versions_then = [f"{name} {number}" for name, number in origin.get("versions", {}).items()]
    rows = {
        "command": " ".join(origin.get("command", [])),
        "started": " on ".join(origin[key] for key in ("started", "host") if key in origin),
        "device": origin.get("device", ""),
        "machine": "; ".join(filter(None, [origin.get("cpu", {}).get("model"), origin.get("platform")])),
        "versions": ", ".join(versions_then),
        "git": git.get("commit", "")[:12] + (", with changes" if git.get("dirty") else ""),
    }
    return [(name, text) for name, text in rows.items() if text]


def _checkpoint_row(folder: Path, saved: Mapping[str, Any]) -> tuple[str, ...]:
    place = Path(saved["path"]).relative_to(folder / CHECKPOINTS)
    written = "-" if saved["written"] is None else saved["written"][:19].replace("T", " ")
    return str(place), cell(saved["bytes"], format_bytes), written, saved["state"].partition(":")[0]
