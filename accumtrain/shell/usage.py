"""The text of `accumtrain --help`. Hydra's own help would take most of a second to compose."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from accumtrain.shell.choices import all_choices

TEXT = """\
accumtrain: train with the batch you want on the memory you have.

accumtrain [group=choice ...] [key=value ...]

Groups and their choices
{groups}

Examples
  accumtrain                                            RevNet-38 on the embedded digits, minutes on a laptop
  accumtrain model=lenet5 batch_size=128 accum.steps=8  a batch of 128 in the memory of 16
  accumtrain model=revnet104 data=folder data.path=photos data.image_size=224
  accumtrain -m batch_size=32,64,128 train.epochs=2     a sweep, ranked at the end
  accumtrain job=verify model=revnet104                 prove exactness on this machine
  accumtrain job=bench model=resnet50 data=synthetic data.image_size=224
  accumtrain job=evaluate run.name=revnet38-digits      evaluate what a run has learned
  accumtrain job=predict run.name=cats predict.input=new    what is in new images
  accumtrain job=export run.name=cats export.format=tflite  a file for other programs
  accumtrain job=info                                   this machine: versions, devices, what is missing
  accumtrain job=info run.name=revnet38-digits          where a run came from, and its checkpoints

A group, a choice or a key in words: accumtrain --help optim, --help optim=adam, --help optim.lr.
Every key with its value: accumtrain --cfg job. The same command again continues a run.
Completion by TAB: eval "$(accumtrain --shell-completion install=bash)"
Exit codes: 0 done, 1 a bug, 2 configuration, 3 data, 4 diverged, 5 checkpoint, 6 out of memory,
7 beyond a bound of job=verify or job=export, 75 stopped with its state saved,
130 interrupted before there was any."""


def help_text(config_dirs: Iterable[Path]) -> str:
    """The text of the help, with the choices of the folders `config_dirs`."""
    choices = all_choices(config_dirs)
    wrapper = textwrap.TextWrapper(width=110, subsequent_indent=" " * 14, break_on_hyphens=False)
    groups = [wrapper.fill(f"  {group:<12}{', '.join(names)}") for group, names in choices.items()]
    return TEXT.format(groups="\n".join(groups))
