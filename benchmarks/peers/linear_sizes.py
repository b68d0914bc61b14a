"""The options of the workers of linear_loss.py."""

from __future__ import annotations

import argparse


def sizes_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name in ("tokens", "words", "channels"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
    return parser
