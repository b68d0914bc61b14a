"""A library's error in a line."""

import pytest

from accumtrain.errors import first_line

NODE = "{{function_node __wrapped__IteratorGetNext_device_/job:localhost/replica:0/task:0/device:CPU:0}}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no space left", "no space left"),
        ("\n  two\nlines", "two"),
        ("", "ValueError"),
        (
            f"{NODE} a.png; No such file\n\t [[{{{{node ReadFile}}}}]] [Op:IteratorGetNext] name: ",
            "a.png; No such file",
        ),
        (f"{NODE}\n[[{{{{node x}}}}]]\nOOM [Op:Empty] name: ", "OOM"),
    ],
)
def test_first_line(text, line):
    assert first_line(ValueError(text)) == line
