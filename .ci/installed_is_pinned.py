"""Compares the packages of this environment with a file of pins, lines `name==version ; marker`. 1 if they differ.

.venv/bin/python .ci/installed_is_pinned.py requirements/constraints.txt
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UNPINNED = {"accumtrain", "pip"}  # what is developed here, and what installs


def main(file: str) -> int:
    lines = [line for line in Path(file).read_text().splitlines() if line and not line.startswith("#")]
    asked = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate()]
    pins = {canonicalize_name(pin.name): pin.specifier for pin in asked}
    installed = {canonicalize_name(found.name): found.version for found in distributions()}
    wrong = [
        f"{name} {version}: {pins.get(name, 'not pinned')}"
        for name, version in sorted(installed.items())
        if name not in UNPINNED and (name not in pins or version not in pins[name])
    ]
    print("\n".join(wrong) or f"all {len(installed) - len(UNPINNED)} packages are installed as {file} pins them")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
