"""Where a run came from and what is left of it: its files, read by somebody else. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accumtrain.config.changed import changed_from_defaults
from accumtrain.errors import CheckpointError
from accumtrain.runs.checkpoint_store import REASON, CheckpointStore, DamagedError, Saved
from accumtrain.runs.contents import read_config, read_summary
from accumtrain.runs.files import read_text
from accumtrain.runs.folder import BEST, CHECKPOINTS, QUARANTINE

WHOLE = "whole"
OF_SUMMARY = ("status", "step", "epoch", "train", "val", "test", "best", "best_on", "provenance")

Content = TypeVar("Content")


def origin(folder: Path) -> dict[str, Any]:
    """What the folder of a run tells of it. What can't be read is named in `unreadable`; nothing is changed.

    Returns:
        status, step, epoch, train, val, test, best, best_on, provenance: as in summary.json; None before there is one.
        changed: default and value of each key of config.yaml, but run.name, that differs from its default.
        checkpoints: step, path, bytes, written (ISO 8601, UTC) and state ("whole", or what is wrong) of each, newest
            first, then the best one.
        quarantine: path and reason of each damaged checkpoint that was moved away.
        unreadable: messages about files that are damaged.
    """
    unreadable: list[str] = []

    def readable(read: Callable[[], Content | None]) -> Content | None:
        try:
            return read()
        except CheckpointError as error:
            unreadable.append(str(error))
            return None

    summary: Mapping[str, Any] = readable(lambda: read_summary(folder)) or {}
    config = folder / "config.yaml"
    values = readable(lambda: read_config(config) if config.exists() else None) or {}
    checkpoints = folder / CHECKPOINTS
    stores = (CheckpointStore(checkpoints), CheckpointStore(checkpoints / BEST))
    found = [saved for store in stores for saved in readable(store.newest_first) or []]
    reasons = sorted((checkpoints / QUARANTINE).glob(f"*/{REASON}"))
    return {
        **{key: summary.get(key) for key in OF_SUMMARY},
        "changed": {key: list(pair) for key, pair in changed_from_defaults(values).items() if key != "run.name"},
        "checkpoints": [_described(saved) for saved in found],
        "quarantine": [{"path": str(file.parent), "reason": readable(partial(read_text, file))} for file in reasons],
        "unreadable": unreadable,
    }


def _described(saved: Saved) -> dict[str, Any]:
    written, size = None, None
    try:
        size = sum(file.lstat().st_size for file in saved.path.iterdir())
        saved.check()
        written = datetime.fromtimestamp(saved.written, timezone.utc).isoformat(timespec="seconds")
        state = WHOLE
    except (DamagedError, CheckpointError, OSError) as error:
        state = f"damaged: {error}" if isinstance(error, DamagedError) else str(error)
    return {"step": saved.step, "path": str(saved.path), "bytes": size, "written": written, "state": state}
