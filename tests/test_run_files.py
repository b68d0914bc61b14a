"""The everyday tests: what they leave out is there, and what they keep covers every room."""

from pathlib import Path

from tests.run_files import RUNS

TESTS = Path(__file__).parent
FILES = {file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py")}


def test_what_is_left_out_is_there():
    assert not RUNS - FILES


def test_every_room_keeps_a_file():
    assert {Path(file).parent for file in FILES} == {Path(file).parent for file in FILES - RUNS}
