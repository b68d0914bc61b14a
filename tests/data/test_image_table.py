"""Tables of labels: the forms that people have, and the tables that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accumtrain.data.config import FolderConfig, TableConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Dataset
from accumtrain.errors import DataError
from tests.data.conftest import PLAIN, png, read_pictures

COUNT = 12
LABELS = ("ant", "bee", "caf\u00e9")


@pytest.fixture
def folder(tmp_path):
    """Numbered pictures 000.png to 011.png in images/."""
    (tmp_path / "images").mkdir()
    for number in range(COUNT):
        (tmp_path / f"images/{number:03}.png").write_bytes(png(number))
    return tmp_path


def label(number: int) -> str:
    return LABELS[number % 3]


def opened(folder: Path, text: str, *, name: str = "labels.csv", encoding: str = "utf-8", **keys: object) -> Dataset:
    (folder / name).write_bytes(text.encode(encoding))
    return open_data(TableConfig(path=str(folder / name), **{**PLAIN, "val_fraction": 0.0, **keys}), seed=0)


def numbers(data: Dataset) -> dict[int, str]:
    """Return the name of the class of each picture in any split by its number."""
    return {
        number: data.class_names[label] for split in data.splits for number, label in read_pictures(data, split).items()
    }


def table(row: Callable[[int], str], header: str = "") -> str:
    return "\n".join([*([header] if header else []), *map(row, range(COUNT))])


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (table(lambda n: f"{n:03},{label(n)}", "id,label"), {}),
        (table(lambda n: f"images/{n:03}.png,{label(n)}"), {"header": False}),
        (table(lambda n: f"{n:03}.png;{label(n)}\r", "file;class\r"), {}),
        (table(lambda n: f"images/{n:03}\t{label(n)}"), {"header": False}),
        (table(lambda n: f"images/{n:03}\t{label(n)}", "\r\n"), {"header": False}),
        (table(lambda n: f"{n:03}.png {label(n)}"), {"header": False}),
        (table(lambda n: f'{n},"{label(n)}",{n:03}', ",what,id"), {"image_column": "id", "label_column": "what"}),
        (table(lambda n: f"{n},{label(n)}, {n:03} ", ",what,id"), {"image_column": 3, "label_column": 2}),
        (table(lambda n: f"{label(n)},{n:03}"), {"image_column": 2, "header": False}),
        (table(lambda n: f"{label(n)},{n:03}", "x,y"), {"label_column": "x"}),
        (table(lambda n: f"{n:03},{label(n)}".replace("\u00e9", "e\u0301"), "id,label"), {}),
        (table(lambda n: f"{n:03},two\u2028lines,{label(n)}", "id,note,what"), {"image_column": 1, "label_column": 3}),
        ("\ufeff" + table(lambda n: f"{n:03},{label(n)}\n", "id,label"), {}),
    ],
)
def test_tables_that_people_have(folder, text, keys):
    data = opened(folder, text, **keys)
    assert numbers(data) == {number: label(number) for number in range(COUNT)}
    assert data.class_names == list(LABELS)
    assert np.bincount(data.test.known_labels).tolist() == [1, 1, 1]


def test_the_split_and_the_fingerprint_do_not_depend_on_the_place(folder):
    text = table(lambda n: f"{n:03},{label(n)}", "id,label")
    before = opened(folder, text)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (folder / "images").rename(elsewhere / "images")
    after = opened(elsewhere, text)
    assert after.fingerprint == before.fingerprint
    np.testing.assert_array_equal(after.test.known_labels, before.test.known_labels)


def test_what_is_left_out_is_told(folder):
    rows = [f"{number:03},{label(number)}" for number in range(COUNT - 3)]
    data = opened(folder, "\n".join(["id,label", *rows, rows[0], "009,", "010, "]))
    assert data.notes == [
        "2 rows without a label are left out: 009, 010",
        "1 image stands in the table more than once, read once: 000",
        f"1 image is not in the table, and is left out: {folder}/images/011.png",
    ]


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("", {}, "is empty: give the table"),
        ("\n\n", {}, "has no row"),
        ("id,label", {}, "has no row: give the table"),
        ("id,label\n000,\n001, ", {}, r"no row has a label in column 2 \(label\); write them into it"),
        ("id,label,x\n000,ant,1", {}, r"has the columns id, label, x: say which of them .* data.label_column="),
        (
            "id,label\n000,ant",
            {"label_column": "breed"},
            r"label_column=breed: .* has no column breed, only id, label;",
        ),
        (
            "id,label\n000,ant",
            {"label_column": 3},
            r"data.label_column=3: .*give the name of one, or its number .*, by data.label_column$",
        ),
        ("id,label\n000,ant", {"label_column": 1, "image_column": "id"}, r"column 1 \(id\) is asked for twice"),
        ("id,label\n000,ant\n001,bee\n000,bee", {}, "row 4, gives 000 the label bee, and .*row 2, the label ant"),
        ("id,label\n000,ant\n001", {}, "row 3, has 1 columns, and row 1 has 2: complete the row"),
        ("\nid,label\n\n000,ant\n,\n001", {}, "row 6, has 1 columns, and row 2 has 2: complete the row"),
        ("id,label\n000,ant\n001,ant", {}, "has the single class ant"),
        ("id,label\nx,ant\ny,bee", {}, r"none of the images that its column 1 \(id\) names is there, such as x, y: "),
        ("id,label\n000,ant\n001,bee\n002,bee", {}, r"class ant has a single example, .*000.png"),
        ("id,label\n000,a\n001,a\n002,b\nx,b", {}, r"1 file named as an image can't be used: .*/x can't be read"),
        ("id,label\n000,ant\n001,ant\n002,bee\nx\0.png,bee", {}, "is not a name that a file can have|can't be read as"),
    ],
)
def test_refused(folder, text, keys, message):
    with pytest.raises(DataError, match=message):
        opened(folder, text, **keys)


def test_two_files_of_a_name_are_told_apart_by_paths(folder):
    (folder / "more").mkdir()
    (folder / "more/000.png").write_bytes(png(99))
    message = r"000 can be .*images/000.png or .*more/000.png: write its path into the table"
    with pytest.raises(DataError, match=message):
        opened(folder, table(lambda n: f"{n:03},{label(n)}", "id,label"))
    data = opened(folder, table(lambda n: f"images/{n:03},{label(n)}", "id,label"))
    assert numbers(data) == {number: label(number) for number in range(COUNT)}


def test_another_encoding_is_named(folder):
    with pytest.raises(DataError, match="is not text in UTF-8: save the table as CSV in UTF-8"):
        opened(folder, table(lambda n: f"{n:03},{label(n)}"), encoding="latin-1")


def test_images_that_are_not_there_can_be_left_out(folder):
    (folder / "images/004.png").unlink()
    data = opened(folder, table(lambda n: f"{n:03},{label(n)}", "id,label"), on_error="skip")
    assert [example["name"] for example in data.skipped] == [str(folder / "004")]


def test_a_folder_points_to_its_table(folder):
    text = table(lambda n: f"{n:03},{label(n)}", "id,label")
    (folder / "labels.csv").write_text(text)
    for path in (folder, folder / "images"):
        with pytest.raises(DataError) as refused:
            open_data(FolderConfig(path=str(path), **PLAIN), seed=0)
        assert f"data=table data.path={folder / 'labels.csv'}" in str(refused.value)
    assert opened(folder, text).class_names == list(LABELS)
    (folder / "a_submission.csv").write_text(text)
    with pytest.raises(DataError, match=r"if one of a_submission.csv, labels.csv holds .* data.path=<table>"):
        open_data(FolderConfig(path=str(folder / "images"), **PLAIN), seed=0)
