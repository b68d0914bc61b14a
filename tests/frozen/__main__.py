"""Write the stored facts anew: `python -m tests.frozen [section ...]`. A named change is then a diff of its file."""

from __future__ import annotations

import sys
import time

from tests.frozen.facts import FAST, SLOW
from tests.frozen.stored import write


def main(names: list[str]) -> None:
    """Write the named sections; without a name all of them."""
    sections = {section.__name__: section for section in (*FAST, *SLOW)}
    for name in names or sections:
        begun = time.monotonic()
        write(name, sections[name]())
        print(f"{name}: {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
