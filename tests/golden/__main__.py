"""Add the bits of the continued runs on this machine to expected.json: `python -m tests.golden`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.golden.runs import EXPECTED, GOLDEN, continued, copied, digest
from tests.machine import machine


def main() -> None:
    """Continue a copy of each run; runs that have bits of this machine are left alone."""
    for name, expected in EXPECTED.items():
        if machine() not in expected["bits"]:
            with tempfile.TemporaryDirectory() as folder:
                expected["bits"][machine()] = digest(continued(copied(name, Path(folder)), expected))
    (GOLDEN / "expected.json").write_text(json.dumps(EXPECTED, indent=1) + "\n")


if __name__ == "__main__":
    main()
