"""Walks the path of a new user from the wheel, in a clean environment; keeps its screens as pictures for docs/.

make screens, or python .ci/screens/walk.py OUTPUT [--folder FOLDER] [--only NAME ...]

Each command runs in a terminal of 80 columns. Its screen is kept as SVG, as it stood when the command ended. A command
that ends with another exit code than the expected one makes this one end with 1.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from fcntl import ioctl
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLUMNS, LINES = 80, 50
PHOTOS = "data=folder data.path=photos data.image_size"
NAMED = {"brown": "yellow"}  # of pyte, in the words of rich
# rich's page without the font that it would fetch from the network
PAGE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#292929"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Step:
    """A command of the path; `name` is that of its screen, `code` the exit code that is expected."""

    name: str
    command: str
    code: int = 0
    last: int | None = None  # lines of the screen that are kept, of a long one


STEPS = [
    Step("info", "accumtrain job=info"),
    Step("first_run", "accumtrain"),
    Step("check", f"accumtrain job=check {PHOTOS}=16", 3),
    Step("refused", f"accumtrain run.name=digits model=lenet5 {PHOTOS}=16", 3),
    Step("photos", f"accumtrain run.name=digits model=lenet5 {PHOTOS}=16 data.on_error=skip"),
    Step("evaluate", "accumtrain job=evaluate run.name=digits"),
    Step("predict", "accumtrain job=predict run.name=digits predict.input=new/ data.on_error=skip"),
    Step("export", "accumtrain job=export run.name=digits export.format=tflite"),
    Step("use", "python use.py runs/digits/digits.tflite new/3.png 2>/dev/null"),
    Step("plan", "accumtrain job=plan model=revnet38 data=synthetic batch_size=64 device.memory_limit_mb=100"),
    Step("limit", "accumtrain model=resnet20 batch_size=256 accum.steps=auto device.memory_limit_mb=40 train.epochs=2"),
    Step("sweep", "accumtrain --multirun model=lenet5 train.epochs=3 batch_size=32,64,128", last=30),
    Step("report", "accumtrain job=report"),
    Step("fine_tune", "accumtrain run.name=tuned model=keras model.name=MobileNetV3Small model.weights=trained.keras"
         f" model.norm_momentum=0.9 {PHOTOS}=32 data.on_error=skip train.epochs=20"),
]  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--folder", type=Path, help="walk here, and leave it; with the environment that is there")
    parser.add_argument("--only", nargs="*")
    asked = parser.parse_args(arguments)
    folder = (asked.folder or Path(tempfile.mkdtemp())).resolve()
    if not (folder / "venv").exists():
        prepare(folder)
    asked.output.mkdir(parents=True, exist_ok=True)
    done = [walk(step, folder, asked.output) for step in STEPS if not asked.only or step.name in asked.only]
    if not asked.folder:
        shutil.rmtree(folder)
    return 0 if all(done) else 1


def prepare(folder: Path) -> None:
    """A clean environment with the wheel, and what the path needs: photos, ten odd files among them."""
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("accumtrain-*.whl")
    subprocess.run([*pip, "install", "--constraint", ROOT / "requirements/constraints.txt", wheel], check=True)
    shutil.copy(HERE / "use.py", folder / "use.py")
    subprocess.run([python, HERE / "photos.py"], cwd=folder, check=True)


def walk(step: Step, folder: Path, output: Path) -> bool:
    """Runs a command and keeps its screen; prints what happened."""
    print(f"{step.name}: ", end="", flush=True)
    started = time.monotonic()
    lines, code = run(step.command, folder)
    kept = lines if step.last is None else [Text("[...]", "dim"), *lines[-step.last :]]
    draw([Text.assemble(("$ ", "dim"), (step.command, "bold")), *kept], output / f"{step.name}.svg")
    print(f"{time.monotonic() - started:.0f} s, exit code {code}, expected {step.code}", flush=True)
    return code == step.code


def run(command: str, folder: Path) -> tuple[list[Text], int]:
    """The lines of a terminal after a command, and its exit code."""
    screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(PATH=f"{folder}/venv/bin:{os.environ['PATH']}", TERM="xterm-256color", LANG="C.UTF-8")
        os.execvp("bash", ["bash", "-c", command])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    while (output := read(terminal)) != b"":
        stream.feed(output)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rows = [*screen.history.top, *(screen.buffer[line] for line in range(screen.cursor.y + 1))]
    lines = [text_of([row[column] for column in range(COLUMNS)]) for row in rows]
    while lines and not lines[-1].plain:
        lines.pop()
    return lines, code


def read(terminal: int) -> bytes:
    """What the command has printed next, b"" at its end."""
    try:
        return os.read(terminal, 65536)
    except OSError as error:  # how Linux says that the last process has closed its end
        if error.errno != errno.EIO:
            raise
        return b""


def text_of(row: list[pyte.screens.Char]) -> Text:
    """A line of the terminal."""
    text = Text()
    for style, characters in groupby(row, style_of):
        text.append("".join(character.data for character in characters), style)
    text.rstrip()
    return text


def style_of(character: pyte.screens.Char) -> Style:
    colour = NAMED.get(character.fg, re.sub("^bright(?!_)", "bright_", character.fg))
    colour = f"#{colour}" if re.fullmatch("[0-9a-f]{6}", colour) else colour
    return Style(color=colour, bold=character.bold, reverse=character.reverse)


def draw(lines: list[Text], file: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for line in lines:
        console.print(line, highlight=False, overflow="fold")
    file.write_text(console.export_svg(code_format=PAGE, unique_id=file.stem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
