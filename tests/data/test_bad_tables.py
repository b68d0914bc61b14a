"""Tables with something odd in them: each is read right, or refused with the line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accumtrain.data.config import TableConfig
from accumtrain.data.sources.targets import ClassTargets, LabelTargets, NumberTargets, TargetReader
from accumtrain.data.table.source import open_table
from accumtrain.errors import DataError
from tests.data.conftest import png

COUNT = 8
NAMES = [f"{number:03}" for number in range(COUNT)]
CLASSES = ["ant", "bee"] * (COUNT // 2)
BY_CLASS = dict(zip(NAMES, CLASSES, strict=True))
CLASS, LABEL, NUMBER = ClassTargets(), LabelTargets(), NumberTargets()
UNKNOWN = math.nan
AGES = dict.fromkeys(NAMES, 1.5)
TWO_LABELS = {"image_column": "id", "label_column": ["x", "y"]}


def rows(cells: dict[str, Any], header: str = "id,label", separator: str = ",", end: str = "\n") -> str:
    return end.join([header, *(f"{name}{separator}{cell}" for name, cell in cells.items())])


def changed(name: str, cell: Any, cells: dict[str, Any] = BY_CLASS) -> dict[str, Any]:
    return {**cells, name: cell}


def objects(cells: dict[str, Any]) -> str:
    return "\n".join(json.dumps({"id": name, "label": cell}) for name, cell in cells.items())


def text(content: str | bytes, name: str = "labels.csv") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return write


def lines(content: str) -> Callable[[Path], Path]:
    return text(content, "labels.jsonl")


def parquet(**columns: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pq.write_table(pa.table(columns), folder / "labels.parquet", row_group_size=3)
        return folder / "labels.parquet"

    return write


def doubled_columns(folder: Path) -> Path:
    columns = [pa.array(NAMES), pa.array(CLASSES), pa.array(CLASSES)]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "label", "label"]), folder / "labels.parquet")
    return folder / "labels.parquet"


def no_table(folder: Path) -> Path:
    return folder / "nothing.csv"


def a_folder(folder: Path) -> Path:
    return folder / "images"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "labels.csv")
    return folder / "labels.csv"


def two_tables(folder: Path) -> Path:
    text(rows(dict(list(BY_CLASS.items())[:2])), "test.csv")(folder)
    return text(rows(dict(list(BY_CLASS.items())[1:])))(folder)


REST = "\n".join(f"{name},{kind}" for name, kind in list(BY_CLASS.items())[1:])
PATIENTS = "\n".join(f"{name},{kind},p{number // 2}" for number, (name, kind) in enumerate(BY_CLASS.items()))
SPLITS = "\n".join(
    f"{name},{kind},{'train' if number < 6 else 'test'}" for number, (name, kind) in enumerate(BY_CLASS.items())
)
GROUPED = "\n".join(f"{row},{'pq'[number // 6]}" for number, row in enumerate(SPLITS.splitlines()))
IN_COLUMNS = {"image_column": "id", "label_column": "label"}
WORDS = ["1,TRUE", "0,no", "yes,", "No,1", ",", "true,false", "0,0", "1,1"]
BY_WORD = dict(zip(NAMES, [(1, 1), (0, 0), (1, UNKNOWN), (0, 1), None, (1, 0), (0, 0), (1, 1)], strict=True))
Expected = str | dict[str, Any]
Case = tuple[Callable[[Path], Path], TargetReader, dict[str, Any], Expected]
CASES: dict[str, Case] = {
    # of the file
    "no table": (no_table, CLASS, {}, r"data.path=.*nothing.csv can't be read: No such file .*: give the table"),
    "a folder in its place": (a_folder, CLASS, {}, "images is a directory: give the table"),
    "a pipe in its place": (a_pipe, CLASS, {}, "is not a regular file: give the table"),
    "an empty file": (text(""), CLASS, {}, "is empty: give the table"),
    "empty lines alone": (text("\n\r\n\n"), CLASS, {}, "has no row: give the table"),
    "a header alone": (text("id,label\n"), CLASS, {}, r"no row below the names of columns has a label in column 2"),
    "no header": (text(f"000,ant\n{REST}"), CLASS, {}, BY_CLASS),
    "a test table with an image of the other": (
        *(two_tables, CLASS, {"test_path": "test.csv"}),
        r"test.csv, line 3, gives 001 the label bee and the split test, and .*labels.csv, line 2, .* the split train",
    ),
    "a test table that is not there": (
        text(rows(BY_CLASS)),
        CLASS,
        {"test_path": "no.csv"},
        "data.test_path=.*no.csv can't",
    ),
    # of its encoding
    "a byte order mark": (
        text("\ufeff" + rows(BY_CLASS)),
        CLASS,
        {"label_column": "label", "image_column": "id"},
        BY_CLASS,
    ),
    "UTF-16 with its mark": (text(rows(BY_CLASS, "id\tlabel", "\t").encode("utf-16")), CLASS, {}, BY_CLASS),
    "UTF-16 without a mark": (
        text(rows(BY_CLASS).encode("utf-16-le")),
        CLASS,
        {},
        "labels.csv, line 1, .* a null character",
    ),
    "Latin-1": (
        text(rows(changed("002", "caf\u00e9")).encode("latin-1")),
        CLASS,
        {},
        "labels.csv, line 4, is not text in UTF-8",
    ),
    "a null character": (
        text(rows(changed("002", "a\0nt"))),
        CLASS,
        {},
        "labels.csv, line 4, can't be read .* a null character",
    ),
    "another program's file": (text(b"PK\x03\x04\x14\x00" + bytes(range(256))), CLASS, {}, "labels.csv, line [12], "),
    "line ends of Windows": (text(rows(BY_CLASS, end="\r\n") + "\r\n"), CLASS, {}, BY_CLASS),
    "line ends of old Macs": (text(rows(BY_CLASS, end="\r")), CLASS, {}, BY_CLASS),
    # of its separators and quotes
    "tabs": (text(rows(BY_CLASS, "id\tlabel", "\t"), "labels.tsv"), CLASS, {}, BY_CLASS),
    "semicolons": (text(rows(BY_CLASS, "id;label", ";")), CLASS, {}, BY_CLASS),
    "bars": (text(rows(BY_CLASS, "id|label", "|")), CLASS, {}, r"has the columns id\|label: say which"),
    "spaces around cells": (
        text(rows({f" {name} ": f" {kind} " for name, kind in BY_CLASS.items()}, "id , label")),
        CLASS,
        IN_COLUMNS,
        BY_CLASS,
    ),
    "quotes": (text(rows({f'"{name}"': f'"{kind}"' for name, kind in BY_CLASS.items()})), CLASS, {}, BY_CLASS),
    "a separator in quotes": (
        text(rows(changed("000", '"ant, red"', changed("002", '"ant, red"')))),
        CLASS,
        {},
        changed("000", "ant, red", changed("002", "ant, red")),
    ),
    "a line break in quotes": (
        *(text("id,note,label\n" + "\n".join(f'{name},"two\nlines",{kind}' for name, kind in BY_CLASS.items())), CLASS),
        *(IN_COLUMNS, BY_CLASS),
    ),
    "the line after line breaks in quotes": (
        text('id,note,label\n000,"a\nb\nc",ant\n001'),
        CLASS,
        IN_COLUMNS,
        "line 5, has 1 columns, and line 1 has 3",
    ),
    "a quote that is closed far below": (
        text('id,label\n000,"ant\n001,bee\n002,"ant\n003,bee'),
        CLASS,
        {},
        "labels.csv, line 2: a cell goes on over several lines",
    ),
    "a quote that is never closed": (
        text('id,label\n000,ant\n001,"bee\n002,ant\n003,bee'),
        CLASS,
        {},
        "labels.csv, line 3, can't be read as a table: unexpected end of data; close the quotes",
    ),
    "a short row": (
        text(rows(BY_CLASS) + "\n000"),
        CLASS,
        {},
        "labels.csv, line 10, has 1 columns, and line 1 has 2: complete the row",
    ),
    "a long row": (
        text(f"id,label\n000,ant,red\n{REST}"),
        CLASS,
        {},
        "labels.csv, line 2, has 3 columns, and line 1 has 2: put a cell with a separator",
    ),
    "empty cells at the end": (text(f"id,label\n000,ant,,\n{REST}"), CLASS, {}, BY_CLASS),
    "a name of two words between spaces": (
        text(rows(changed("000", "red ant"), "id label", " ")),
        CLASS,
        {},
        "line 2, has 3 columns",
    ),
    # of its columns
    "a column that is not there": (
        text(rows(BY_CLASS)),
        CLASS,
        {"label_column": "kind"},
        "data.label_column=kind: .* has the columns id, label",
    ),
    "two columns of a name": (
        text("id,label,label\n000,ant,1"),
        CLASS,
        {"image_column": "id", "label_column": "label"},
        r"has 2 columns of that name, 2 \(label\) and 3 \(label\)",
    ),
    "two columns of a name in Parquet": (
        doubled_columns,
        CLASS,
        {"image_column": 1, "label_column": 2},
        "several columns called label",
    ),
    "a column asked for twice": (
        text(f"id,label,p\n{PATIENTS}"),
        CLASS,
        {**IN_COLUMNS, "group": "label"},
        "give each key a column of its own",
    ),
    # of its images
    "an image that is not there": (
        text(rows({**BY_CLASS, "x": "ant"})),
        CLASS,
        {},
        r"labels.csv, line 10: .*/x can't be read: No such file",
    ),
    "no image": (text(rows({**BY_CLASS, "": "ant"})), CLASS, {}, "labels.csv, line 10: there is a label, and no image"),
    "an image of no file": (text(rows({**BY_CLASS, "y/\x01": "ant"})), CLASS, {}, "labels.csv, line 10: "),
    "a row twice": (text(rows(BY_CLASS) + "\n000,ant\n000.png,ant"), CLASS, {}, BY_CLASS),
    "a row twice with other classes": (
        text(rows(BY_CLASS) + "\n000,bee"),
        CLASS,
        {},
        "line 10, gives 000 the label bee, and .*line 2, the label ant",
    ),
    "a row twice with other labels": (
        text("id,x,y\n000,1,0\n000,1,"),
        LABEL,
        TWO_LABELS,
        "line 3, gives 000 the label 1.0,nan, and .*line 2, the label 1.0,0.0",
    ),
    "a row twice with the same labels": (
        text("id,x,y\n" + "\n".join(f"{name},1," for name in [*NAMES, *NAMES])),
        LABEL,
        TWO_LABELS,
        dict.fromkeys(NAMES, (1, UNKNOWN)),
    ),
    # of its classes
    "no class": (text(rows(changed("000", ""))), CLASS, {}, changed("000", None)),
    "two spellings of a class": (
        text(rows({name: ("caf\u00e9", "cafe\u0301", "bee", "bee")[int(name) % 4] for name in NAMES})),
        CLASS,
        {},
        {name: ("caf\u00e9", "caf\u00e9", "bee", "bee")[int(name) % 4] for name in NAMES},
    ),
    "classes of numbers and texts": (
        text(rows(changed("000", 1, changed("002", 1)))),
        CLASS,
        {},
        changed("000", "1", changed("002", "1")),
    ),
    # of its labels
    "labels of words": (
        text("id,x,y\n" + "\n".join(f"{name},{words}" for name, words in zip(NAMES, WORDS, strict=True))),
        LABEL,
        TWO_LABELS,
        BY_WORD,
    ),
    "an unknown word": (
        text("id,x,y\n000,1,0\n001,1,maybe"),
        LABEL,
        TWO_LABELS,
        "labels.csv, line 3: column y holds maybe: write 1, true or yes",
    ),
    "a number that is no label": (
        text("id,x,y\n000,1,0\n001,2,1"),
        LABEL,
        TWO_LABELS,
        "labels.csv, line 3: column x holds 2: write 1",
    ),
    "lists of labels": (
        *(text(rows(changed("000", "b | a", changed("001", "", BY_CLASS)))), LABEL, {}),
        {
            **{name: ((0, 1, 0, 0), (0, 0, 0, 1))[int(name) % 2] for name in NAMES},
            "000": (1, 0, 1, 0),
            "001": (0, 0, 0, 0),
        },
    ),
    "a list with a name twice": (
        text(rows(changed("002", "ant|bee|ant"))),
        LABEL,
        {},
        "labels.csv, line 4: column label names ant more than once",
    ),
    # of its numbers
    "numbers": (
        text(rows(changed("001", "-2e3", changed("002", "", AGES)))),
        NUMBER,
        {},
        changed("001", -2000.0, changed("002", None, AGES)),
    ),
    "no numbers": (
        text(rows(changed("001", "nan", changed("002", "NULL", AGES)))),
        NUMBER,
        {},
        changed("001", None, changed("002", None, AGES)),
    ),
    "a comma for a point": (
        text(rows(changed("003", "1,5", AGES), "id;label", ";")),
        NUMBER,
        {},
        r"labels.csv, line 5: column label holds 1,5, which is no number: write a point, 1\.5",
    ),
    "a comma for a point without quotes": (
        text(rows(changed("003", "1,5", AGES))),
        NUMBER,
        {},
        "labels.csv, line 5, has 3 columns",
    ),
    "a text among numbers": (
        text(rows(changed("003", "old", AGES))),
        NUMBER,
        {},
        "labels.csv, line 5: column label holds old, which is no number",
    ),
    "a number with its unit": (
        text(rows(changed("003", "5 kg", AGES))),
        NUMBER,
        {},
        "labels.csv, line 5: column label holds 5 kg, which is no number",
    ),
    "a number beyond all floats": (
        text(rows(changed("003", "1e999", AGES))),
        NUMBER,
        {},
        "labels.csv, line 5: column label holds 1e999, which float32 can't hold",
    ),
    "a number beyond float32": (
        text(rows(changed("003", "-1e39", AGES))),
        NUMBER,
        {},
        "labels.csv, line 5: column label holds -1e39, which float32 can't hold",
    ),
    "infinity": (text(rows(changed("003", "inf", AGES))), NUMBER, {}, "labels.csv, line 5: column label holds inf"),
    # of its splits and groups
    "an unknown split": (
        text(f"id,label,part\n{SPLITS}\n000,ant,extra"),
        CLASS,
        {**IN_COLUMNS, "split_column": "part"},
        "line 10: the split is extra; write one of train, ",
    ),
    "no split": (
        text(f"id,label,part\n{SPLITS}\n000,ant,"),
        CLASS,
        {**IN_COLUMNS, "split_column": "part"},
        "line 10: the split is empty; write one of train, ",
    ),
    "a class that is not trained on": (
        text(f"id,label,part\n{SPLITS[:-8]}fly,test"),
        CLASS,
        {**IN_COLUMNS, "split_column": "part"},
        "line 9: the class fly of a test image has no image to train on",
    ),
    "all in one split": (
        text("id,label,part\n" + SPLITS.replace("test", "train")),
        CLASS,
        {**IN_COLUMNS, "split_column": "part"},
        "all images with a label are in the split train",
    ),
    "an image in two splits": (
        text(f"id,label,part\n{SPLITS}\n000,ant,test"),
        CLASS,
        {**IN_COLUMNS, "split_column": "part"},
        "line 10, gives 000 .* the split test, and .*line 2, .* the split train",
    ),
    "a group in two splits": (
        text(f"id,label,part,who\n{GROUPED.replace('test,q', 'test,p')}"),
        CLASS,
        {**IN_COLUMNS, "split_column": "part", "group": "who"},
        "line 8: data.group=who: p is in the split test and, by .*line 7, in another",
    ),
    "a row without a group": (
        text(f"id,label,p\n{PATIENTS}".replace("p3", "")),
        CLASS,
        {**IN_COLUMNS, "group": "p"},
        "line 8: the group is empty",
    ),
    "a single group": (
        text("id,label,p\n" + PATIENTS.replace("p1", "p0").replace("p2", "p0").replace("p3", "p0")),
        CLASS,
        {**IN_COLUMNS, "group": "p"},
        "p0: no group can be held out",
    ),
    # of JSON lines
    "JSON lines": (lines(objects(BY_CLASS)), CLASS, {}, BY_CLASS),
    "a broken line": (
        lines(objects(BY_CLASS) + '\n{"id": "000", "label":'),
        CLASS,
        {},
        "labels.jsonl, line 9, is no row of a table",
    ),
    "a JSON array": (lines("[\n" + objects(BY_CLASS)), CLASS, {}, "labels.jsonl, line 1, is no row of a table"),
    "a line that is no object": (
        lines(objects(BY_CLASS) + "\n\n3"),
        CLASS,
        {},
        "labels.jsonl, line 10, is no row of a table: it holds no object",
    ),
    "other keys in other lines": (
        lines(objects(BY_CLASS) + '\n{"label": "ant", "more": 1}'),
        CLASS,
        {},
        "labels.jsonl, line 9: there is a label, and no image",
    ),
    "a key that the first line lacks": (lines('{"id": "000"}\n' + objects(BY_CLASS)), CLASS, IN_COLUMNS, BY_CLASS),
    "a list for an image": (
        lines(objects(BY_CLASS).replace('"000"', '["000"]').replace('"001"', '["001"]')),
        CLASS,
        {},
        "labels.jsonl, line 3: id holds a list, and other rows a text or a number, or the other way round",
    ),
    "lists for a group": (
        lines(objects(BY_CLASS).replace("}", ', "who": ["a"]}')),
        CLASS,
        {**IN_COLUMNS, "group": "who"},
        r"labels.jsonl: column 3 \(who\) holds values of type list<item: string>: give texts or numbers",
    ),
    "an object in a cell": (
        lines(objects(changed("002", {"a": 1}))),
        CLASS,
        {},
        "labels.jsonl, line 3: label holds an object",
    ),
    "a list in a list": (
        lines(objects(changed("002", [["a"]]))),
        LABEL,
        {},
        "labels.jsonl, line 3: label holds a list of other things",
    ),
    "a list among texts": (
        lines(objects(changed("002", ["a"]))),
        LABEL,
        {},
        "labels.jsonl, line 3: label holds a list, and other rows a text",
    ),
    "a list for a class": (
        lines(objects({name: [kind] for name, kind in BY_CLASS.items()})),
        CLASS,
        {},
        "labels.jsonl, line 1: column label holds a list, and an image has one class",
    ),
    "lists of 0 and 1": (
        lines(objects({name: [0, 1, 1] for name in NAMES})),
        LABEL,
        {},
        "labels.jsonl, line 1: column label names 1 more than once",
    ),
    "numbers of JSON": (
        lines(objects(changed("001", None, changed("002", 2, AGES)))),
        NUMBER,
        {},
        changed("001", None, changed("002", 2.0, AGES)),
    ),
    "infinity in JSON": (
        lines(objects(changed("002", math.inf, AGES))),
        NUMBER,
        {},
        "labels.jsonl, line 3: column label holds inf, which float32",
    ),
    "half a character": (
        lines(objects(BY_CLASS).replace('"bee"', '"\\ud800"')),
        CLASS,
        {},
        "labels.jsonl, line 2: label .*surrogates",
    ),
    "a key twice": (
        lines(objects(BY_CLASS) + '\n{"id": "000", "label": "ant", "label": "bee"}'),
        CLASS,
        {},
        "labels.jsonl, line 9, is no row of a table: it has a key more than once",
    ),
    "a number of 5,000 digits": (
        lines(objects(BY_CLASS) + '\n{"id": "000", "label": ' + "1" * 5000 + "}"),
        NUMBER,
        {},
        "labels.jsonl, line 9, is no row of a table",
    ),
    # of Parquet
    "Parquet": (parquet(id=NAMES, label=CLASSES), CLASS, {}, BY_CLASS),
    "no Parquet inside": (
        text(rows(BY_CLASS), "labels.parquet"),
        CLASS,
        {},
        "data.path=.*labels.parquet can't be read as Parquet",
    ),
    "half of a Parquet file": (text(b"PAR1" + bytes(50), "labels.parquet"), CLASS, {}, "can't be read as Parquet"),
    "nulls": (parquet(id=NAMES, label=[None, *CLASSES[1:]]), CLASS, {}, changed("000", None)),
    "dictionaries": (parquet(id=NAMES, label=pa.array(CLASSES).dictionary_encode()), CLASS, {}, BY_CLASS),
    "whole numbers that gaps made floats": (
        parquet(id=NAMES, label=[1.0, 2.0, None, *[2.0] * 4, 1.0]),
        CLASS,
        {},
        dict(zip(NAMES, ["1", "2", None, *["2"] * 4, "1"], strict=True)),
    ),
    "whole numbers beyond float32": (
        parquet(id=NAMES, label=[2**53 + 1, *[2**24 + 1] * 7]),
        NUMBER,
        {},
        {**dict.fromkeys(NAMES, 2.0**24), "000": 2.0**53},
    ),
    "a whole number that is no label": (
        parquet(id=NAMES, label=[2**53 + 1, *[1] * 7]),
        LABEL,
        {},
        "labels.parquet, row 1: column label holds 9007199254740993: write 1",
    ),
    "classes of infinity": (
        parquet(id=NAMES, label=[math.inf, 2.0] * 4),
        CLASS,
        {},
        dict(zip(NAMES, ["inf", "2"] * 4, strict=True)),
    ),
    "numbers of 16 bits": (
        parquet(id=NAMES, label=pa.array(np.full(COUNT, 1.5, np.float16))),
        NUMBER,
        {},
        AGES,
    ),
    "decimals": (parquet(id=NAMES, label=pa.array([Decimal("1.50")] * COUNT)), NUMBER, {}, AGES),
    "lists of nothing": (parquet(id=NAMES, label=[[]] * COUNT), LABEL, {}, "no row has a label in column 2"),
    "paths of images in structures": (
        parquet(id=[{"bytes": None, "path": f"images/{name}.png"} for name in NAMES], label=CLASSES),
        CLASS,
        {},
        BY_CLASS,
    ),
    "structures": (
        parquet(id=NAMES, label=[{"a": 1}] * COUNT),
        CLASS,
        {},
        r"column 2 \(label\) holds values of type struct",
    ),
    "dates": (
        parquet(id=NAMES, label=pa.array([0] * COUNT, pa.date32())),
        CLASS,
        {},
        r"column 2 \(label\) holds values of type date32",
    ),
    "booleans for numbers": (
        parquet(id=NAMES, label=[True] * COUNT),
        NUMBER,
        {},
        "labels.parquet, row 1: column label holds True, which is no number",
    ),
    "an image of no bytes": (
        parquet(image=[png(1), None, png(2)], label=["a", "b", "b"]),
        CLASS,
        {},
        "labels.parquet, row 2: there is a label, and no image",
    ),
    "bytes of no image": (
        parquet(image=[png(1), b"GIF89a", png(2), png(3)], label=["a", "a", "b", "b"]),
        CLASS,
        {},
        "labels.parquet, row [12] is a GIF, not a PNG",
    ),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, name in enumerate(NAMES):
        (folder / f"{name}.png").write_bytes(png(number))
    return folder


def found(folder: Path, write: Callable[[Path], Path], reader: TargetReader, keys: dict[str, Any]) -> dict[str, Any]:
    """The target of each image by its name."""
    others = {key: str(folder / path) for key, path in keys.items() if key in ("test_path", "val_path")}
    source = open_table(TableConfig(path=str(write(folder)), **{**keys, **others}), 0, reader)
    return {
        split.files[place].stem: source.class_names[label] if label.ndim == 0 else label
        for split in source.splits.values()
        for place, label in enumerate(np.asarray(split.known_labels))
    }


def test_how_many_there_are():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_right_or_refused_with_the_line(name, tmp_path, images):
    write, reader, keys, expected = CASES[name]
    (tmp_path / "images").mkdir()
    for file in images.iterdir():
        (tmp_path / "images" / file.name).hardlink_to(file)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            found(tmp_path, write, reader, keys)
        return
    targets = found(tmp_path, write, reader, keys)
    assert targets.keys() == {image for image, target in expected.items() if target is not None}
    for image, target in targets.items():
        np.testing.assert_array_equal(target, expected[image])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_table_that_may_not_be_read(tmp_path):
    text(rows(BY_CLASS))(tmp_path).chmod(0)
    with pytest.raises(DataError, match=r"labels.csv can't be read: Permission denied"):
        found(tmp_path, lambda folder: folder / "labels.csv", CLASS, {})
