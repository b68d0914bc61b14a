"""Tables with something odd in them: each is read right, or refused with the row."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accumtrain.data.config import TableConfig
from accumtrain.data.source import Wanted
from accumtrain.data.table.reader import open_tables
from accumtrain.data.table.source import open_table
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets
from accumtrain.errors import DataError
from tests.data.conftest import png

COUNT = 8
NAMES = [f"{number:03}" for number in range(COUNT)]
CLASSES = ["ant", "bee"] * (COUNT // 2)
BY_CLASS = dict(zip(NAMES, CLASSES, strict=True))
AGES = dict.fromkeys(NAMES, "1.5")
READ_AGES = dict.fromkeys(NAMES, 1.5)
SPLITS = ["train"] * 6 + ["test"] * 2
PATIENTS = [f"p{number // 2}" for number in range(COUNT)]
CLASS, LABEL, NUMBER = ClassTargets(), LabelTargets(), NumberTargets()
UNKNOWN = math.nan
COLUMNS = {"image_column": "id", "label_column": "label"}
BY_SPLIT = {**COLUMNS, "split_column": "part"}
TWO_LABELS = {"image_column": "id", "label_column": ["x", "y"]}
WORDS = {"x": ["1", "0", "yes", "No", "", "true", "0", "1"], "y": ["TRUE", "no", "", "1", "", "false", "0", "1"]}
BY_WORD = dict(zip(NAMES, [(1, 1), (0, 0), (1, UNKNOWN), (0, 1), None, (1, 0), (0, 0), (1, 1)], strict=True))

Expected = str | dict[str, Any]
Keys = dict[str, Any]
Write = Callable[[Path], Path]


def case(content: Any, expected: Expected, reader: TargetReader = CLASS, **keys: Any) -> Any:
    return content, reader, keys, expected


def changed(name: str, cell: Any, cells: dict[str, Any] = BY_CLASS) -> dict[str, Any]:
    return {**cells, name: cell}


# ---- what all formats can have: columns, of which each makes a file ----


def as_csv(columns: dict[str, list[Any]]) -> tuple[str, bytes]:
    cells = (["" if cell is None else str(cell) for cell in row] for row in zip(*columns.values(), strict=True))
    rows = [",".join(columns), *(",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in cells)]
    return "labels.csv", "\n".join(rows).encode()


def as_json(columns: dict[str, list[Any]]) -> tuple[str, bytes]:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "labels.jsonl", "\n".join(map(json.dumps, rows)).encode()


def as_parquet(columns: dict[str, list[Any]]) -> tuple[str, bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=3)
    return "labels.parquet", sink.getvalue().to_pybytes()


FORMATS = {"csv": (as_csv, 1), "json": (as_json, 0), "parquet": (as_parquet, 0)}  # and the rows above the first example


def labelled(cells: dict[str, Any], **more: list[Any]) -> dict[str, list[Any]]:
    return {"id": list(cells), "label": list(cells.values()), **more}


def again(name: str, label: str, part: str = "train") -> dict[str, list[Any]]:
    """All examples, and one of them once more as row @9."""
    return {"id": [*NAMES, name], "label": [*CLASSES, label], "part": [*SPLITS, part]}


# rows count from @1, the first example
CELLS = {
    "classes": case(labelled(BY_CLASS), BY_CLASS),
    # of columns
    "a column that is not there": case(
        labelled(BY_CLASS), "label_column=kind: .* has no column kind, only id, label;", label_column="kind"
    ),
    "a column asked for twice": case(
        labelled(BY_CLASS, who=PATIENTS),
        r"column 2 \(label\) is asked for twice; give each key its own",
        **COLUMNS,
        group="label",
    ),
    # of images
    "an image that is not there": case(labelled({**BY_CLASS, "x": "ant"}), "@9: .*/x can't be read: No such"),
    "no image": case(labelled({**BY_CLASS, "": "ant"}), "@9: there is a label, and no image"),
    "an image of no file": case(labelled({**BY_CLASS, "y/\x01": "ant"}), "@9: "),
    "a row twice": case({"id": [*NAMES, "000", "000.png"], "label": [*CLASSES, "ant", "ant"]}, BY_CLASS),
    "a row twice with other classes": case(
        again("000", "bee"), "@9, gives 000 the label bee, and .*@1, the label ant", **COLUMNS
    ),
    "a row twice with other labels": case(
        {"id": ["000", "000"], "x": [1, 1], "y": [0, None]},
        "@2, gives 000 the label 1.0,nan, and .*@1, the label 1.0,0.0",
        LABEL,
        **TWO_LABELS,
    ),
    "a row twice with the same labels": case(
        {"id": [*NAMES, *NAMES], "x": [1] * 16, "y": [None] * 16},
        dict.fromkeys(NAMES, (1, UNKNOWN)),
        LABEL,
        **TWO_LABELS,
    ),
    # of classes
    "no class": case(labelled(changed("000", None)), changed("000", None)),
    "two spellings of a class": case(
        labelled({name: ("caf\u00e9", "cafe\u0301", "bee", "bee")[int(name) % 4] for name in NAMES}),
        {name: ("caf\u00e9", "caf\u00e9", "bee", "bee")[int(name) % 4] for name in NAMES},
    ),
    "a class of several lines": case(
        labelled(changed("002", "a,\nb")),
        r"@3: the cell of column 2 \(label\) goes on over several lines: close its quotes",
    ),
    # of labels
    "labels of words": case({"id": NAMES, **WORDS}, BY_WORD, LABEL, **TWO_LABELS),
    "an unknown word": case(
        {"id": NAMES[:2], "x": ["1", "1"], "y": ["0", "maybe"]},
        "@2: column y holds maybe: write 1, true or yes",
        LABEL,
        **TWO_LABELS,
    ),
    "a number that is no label": case(
        {"id": NAMES[:2], "x": [1, 2], "y": [0, 1]}, "@2: column x holds 2: write 1", LABEL, **TWO_LABELS
    ),
    "lists of labels": case(
        labelled(changed("000", "b | a", changed("001", None))),
        {
            **{name: ((0, 1, 0, 0), (0, 0, 0, 1))[int(name) % 2] for name in NAMES},
            **{"000": (1, 0, 1, 0), "001": (0, 0, 0, 0)},
        },
        LABEL,
    ),
    "a list with a name twice": case(
        labelled(changed("002", "ant|bee|ant")), "@3: column label names ant more than once", LABEL
    ),
    # of numbers
    "numbers": case(
        labelled(changed("001", -2e3, changed("002", None, READ_AGES))),
        changed("001", -2000.0, changed("002", None, READ_AGES)),
        NUMBER,
    ),
    "no numbers": case(
        labelled(changed("001", "nan", changed("002", "NULL", AGES))),
        changed("001", None, changed("002", None, READ_AGES)),
        NUMBER,
    ),
    **{
        f"a number that is {what}": case(labelled(changed("003", cell, AGES)), f"@4: column label holds {told}", NUMBER)
        for what, cell, told in (
            ("written with a comma", "1,5", r"1,5, with a comma: it is 1\.5 by \"data\.decimal=','\"; choose one"),
            ("a text", "old", "old, which is no number"),
            ("followed by its unit", "5 kg", "5 kg, which is no number"),
            ("beyond all floats", "1e999", "1e999, which float32 can't hold"),
            ("beyond float32", "-1e39", "-1e39, which float32 can't hold"),
            ("infinite", "inf", "inf, which float32 can't hold"),
        )
    },
    # of splits and groups
    "an unknown split": case(again("000", "ant", "extra"), "@9: the split is extra; write one of train, ", **BY_SPLIT),
    "no split": case(again("000", "ant", ""), "@9: the split is empty; write one of train, ", **BY_SPLIT),
    "a class that is not trained on": case(
        labelled(changed("007", "fly"), part=SPLITS),
        "@8: the class fly of a test example has none to train on",
        **BY_SPLIT,
    ),
    "all in one split": case(
        labelled(BY_CLASS, part=["train"] * COUNT), "all examples with a label are in the split train", **BY_SPLIT
    ),
    "an image in two splits": case(
        again("000", "ant", "test"), "@9, gives 000 .* the split test, and .*@1, .* the split train", **BY_SPLIT
    ),
    "a group in two splits": case(
        labelled(BY_CLASS, part=SPLITS, who=["p"] * 7 + ["q"]),
        "@7: data.group=who: p is in the split test and, by .*@6, in another",
        **BY_SPLIT,
        group="who",
    ),
    "a row without a group": case(
        labelled(BY_CLASS, who=[*PATIENTS[:6], "", "p3"]), "@7: the group is empty", **COLUMNS, group="who"
    ),
    "a single group": case(
        labelled(BY_CLASS, who=["p0"] * COUNT), "p0: no group can be held out", **COLUMNS, group="who"
    ),
}


# ---- what a format alone can have ----


def rows(cells: dict[str, Any], header: str = "id,label", separator: str = ",", end: str = "\n") -> str:
    return end.join([header, *(f"{name}{separator}{cell}" for name, cell in cells.items())])


def objects(cells: dict[str, Any]) -> str:
    return "\n".join(json.dumps({"id": name, "label": cell}) for name, cell in cells.items())


def text(content: str | bytes, name: str = "labels.csv") -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return write


def lines(content: str | bytes) -> Write:
    return text(content, "labels.jsonl")


def not_utf8() -> pa.StringArray:
    return pa.Array.from_buffers(pa.string(), COUNT, pa.array([b"\xff"] * COUNT).buffers())


def parquet(**columns: Any) -> Write:
    return lambda folder: text(as_parquet(columns)[1], "labels.parquet")(folder)


def doubled_columns(folder: Path) -> Path:
    columns = [pa.array(NAMES), pa.array(CLASSES), pa.array(CLASSES)]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "label", "label"]), folder / "labels.parquet")
    return folder / "labels.parquet"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "labels.csv")
    return folder / "labels.csv"


def two_tables(folder: Path) -> Path:
    text(rows(dict(list(BY_CLASS.items())[:2])), "test.csv")(folder)
    return text(rows(dict(list(BY_CLASS.items())[1:])))(folder)


REST = "\n".join(f"{name},{kind}" for name, kind in list(BY_CLASS.items())[1:])
QUOTED = "".join(f'{name},"two\nlines",{kind}\n' for name, kind in BY_CLASS.items())
NO_HEADER = {"header": False}
FILES = {
    # of the file
    "no table": case(lambda folder: folder / "no.csv", "no.csv can't be read: No such file .*: give the table"),
    "a folder in its place": case(lambda folder: folder / "images", "images is a directory: give the table"),
    "a pipe in its place": case(a_pipe, "is not a regular file: give the table"),
    "an empty file": case(text(""), "is empty: give the table"),
    "empty lines alone": case(text("\n\r\n\n"), "has no row: give the table"),
    "empty lines alone of JSON": case(lines("\n\n"), "has no row: give the table"),
    "objects of nothing": case(lines("{}\n{}"), "has no row: give the table"),
    "a header alone": case(text("id,label\n"), "has no row: give the table"),
    "no header": case(text(f"000,ant\n{REST}"), BY_CLASS, **NO_HEADER),
    "no header, and columns by their numbers": case(
        text(f"000,ant\n{REST}"), BY_CLASS, **NO_HEADER, image_column=1, label_column=2
    ),
    "no header, which is not said": case(
        text(f"000,ant\n{REST}"), "the first row names the columns, and 000 is a file: set data.header=false"
    ),
    "a test table with an image of the other": case(
        two_tables,
        r"test.csv, row 3, gives 001 the label bee and the split test, and .*labels.csv, row 2, .* the split train",
        test_path="test.csv",
    ),
    "a test table that is not there": case(text(rows(BY_CLASS)), "data.test_path=.*no.csv can't", test_path="no.csv"),
    # of its encoding
    "a byte order mark": case(text("\ufeff" + rows(BY_CLASS)), BY_CLASS, **COLUMNS),
    "a byte order mark of JSON": case(lines("\ufeff" + objects(BY_CLASS)), BY_CLASS, **COLUMNS),
    "a byte order mark without a header": case(text(f"\ufeff000,ant\n{REST}"), BY_CLASS, **NO_HEADER),
    "UTF-16 with its mark": case(text(rows(BY_CLASS, "id\tlabel", "\t").encode("utf-16")), BY_CLASS),
    "UTF-16 without a mark": case(text(rows(BY_CLASS).encode("utf-16-le")), "row 1, .* a null character"),
    "half of UTF-16": case(text(rows(BY_CLASS).encode("utf-16") + b"a"), "labels.csv is not text in UTF-8"),
    "UTF-16 of JSON": case(lines(objects(BY_CLASS).encode("utf-16")), "is not text in UTF-8"),
    "Latin-1": case(
        text(rows(changed("002", "caf\u00e9")).encode("latin-1")), "labels.csv, row 4, is not text in UTF-8"
    ),
    "Latin-1 of JSON": case(
        lines(objects(BY_CLASS).replace("bee", "caf\u00e9").encode("latin-1")), "labels.jsonl is not text in UTF-8"
    ),
    "a null character": case(text(rows(changed("002", "a\0nt"))), "row 4, can't be read .* a null character"),
    "another program's file": case(
        text(b"PK\x03\x04\x14\x00" + bytes(range(256))), "labels.csv is compressed: .*save a table of Excel as CSV"
    ),
    "line ends of Windows": case(text(rows(BY_CLASS, end="\r\n") + "\r\n"), BY_CLASS),
    "line ends of old Macs": case(text(rows(BY_CLASS, end="\r")), BY_CLASS),
    # of its separators and quotes
    "tabs": case(text(rows(BY_CLASS, "id\tlabel", "\t"), "labels.tsv"), BY_CLASS),
    "semicolons": case(text(rows(BY_CLASS, "id;label", ";")), BY_CLASS),
    "bars": case(text(rows(BY_CLASS, "id|label", "|")), r"has the columns id\|label: say which"),
    "spaces around cells": case(
        text(rows({f" {name} ": f" {kind} " for name, kind in BY_CLASS.items()}, "id , label")), BY_CLASS, **COLUMNS
    ),
    "quotes": case(text(rows({f'"{name}"': f'"{kind}"' for name, kind in BY_CLASS.items()})), BY_CLASS),
    "a quote within a cell": case(text(rows(changed("000", '5" ant'))), "has a single example", test_fraction=0.1),
    "a separator in quotes": case(
        text(rows(changed("000", '"ant, red"', changed("002", '"ant, red"')))),
        changed("000", "ant, red", changed("002", "ant, red")),
    ),
    "a line break in quotes": case(text(f"id,note,label\n{QUOTED}"), BY_CLASS, **COLUMNS),
    "the row after line breaks in quotes": case(
        text('id,note,label\n000,"a\nb\nc",ant\n001'),
        "row 3, has 1 columns, and row 1 has 3: complete the row",
        **COLUMNS,
    ),
    "a quote that is closed far below": case(
        text('id,label\n000,"ant\n001,bee\n002,"ant\n003,bee'),
        r"labels.csv, row 2: the cell of column 2 \(label\) goes on over several lines",
    ),
    "a quote that is never closed": case(
        text('id,label\n000,ant\n001,"bee\n002,ant\n003,bee'),
        "labels.csv, row 3, can't be read as a table: unexpected end of data; close the quotes",
    ),
    "empty rows": case(text(f"\n\nid,label\n\n,\n000,ant\n{REST}\n\n"), BY_CLASS),
    "the row after empty ones": case(text("\nid,label\n\n000,ant\n,\n001"), "row 6, has 1 columns, and row 2"),
    "a short row": case(text(rows(BY_CLASS) + "\n000"), "row 10, has 1 columns, and row 1 has 2: complete"),
    "a short row far below": case(text("id,label\n" + "000,ant\n" * 2**17 + "001"), f"row {2**17 + 2}, has 1 columns"),
    "a long row": case(
        text(f"id,label\n000,ant,red\n{REST}"),
        "labels.csv, row 2, has 3 columns, and row 1 has 2: put a cell with a separator",
    ),
    "empty cells at the end of a row": case(text(f"id,label\n000,ant,,\n{REST}"), "row 2, has 4 columns"),
    "an empty column at the end": case(text(rows(BY_CLASS, end=",\n") + ","), BY_CLASS, **COLUMNS),
    "a name of two words between spaces": case(text("id label\n000 red ant"), "row 2, has 3 columns"),
    "a comma for a point without quotes": case(text(rows(changed("003", "1,5", AGES))), "row 5, has 3 columns", NUMBER),
    "classes of numbers and texts": case(
        text(rows(changed("000", 1, changed("002", 1)))), changed("000", "1", changed("002", "1"))
    ),
    "a plain table by the name of a packed one": case(text(rows(BY_CLASS), "labels.csv.gz"), BY_CLASS),
    "a packed table": case(
        text(gzip.compress(rows(BY_CLASS).encode()), "labels.csv.gz"), "labels.csv.gz is compressed: unp"
    ),
    "an image of a long name": case(
        text(rows({**BY_CLASS, "i" * 5000: "ant"})),
        "labels.csv, row 10: .*ii can't be read: File name too long: replace",
    ),
    "a long class of one example": case(
        text(rows(changed("003", "a" * 5000))),
        r"class a{40}\.\.\. has a single example, .*003.png: ",
        test_fraction=0.1,
    ),
    # of its columns
    "two columns of a name": case(text("id,label,label\n000,ant,1"), "has 2 columns called label: give", **COLUMNS),
    "two columns of a name in Parquet": case(
        doubled_columns, "has 2 columns called label: give them different names", image_column=1, label_column=2
    ),
    # of JSON lines
    "a broken line": case(lines(objects(BY_CLASS) + '\n{"id": "000", "label":'), "row 9, is no row of a table"),
    "a JSON array": case(lines("[\n" + objects(BY_CLASS)), "labels.jsonl, row 1, is no row of a table"),
    "a line that is no object": case(lines(objects(BY_CLASS) + "\n\n3"), "row 9, .*: it holds no object"),
    "other keys in other lines": case(
        lines(objects(BY_CLASS) + '\n{"label": "ant", "more": 1}'),
        "labels.jsonl, row 9: there is a label, and no image",
        **COLUMNS,
    ),
    "a key that the first line lacks": case(lines('{"id": "000"}\n' + objects(BY_CLASS)), BY_CLASS, **COLUMNS),
    "lists for images": case(
        lines(objects(BY_CLASS).replace('"000"', '["000"]').replace('"001"', '["001"]')),
        "labels.jsonl, row 3, .*: id holds a text, and the rows above hold a list",
    ),
    "lists for a group": case(
        lines(objects(BY_CLASS).replace("}", ', "who": ["a"]}')),
        r"labels.jsonl: column 3 \(who\) holds values of type list<item: string>: give texts or numbers",
        **COLUMNS,
        group="who",
    ),
    "an object in a cell": case(lines(objects(changed("002", {"a": 1}))), "row 3, .*: label holds an object"),
    "objects": case(lines(objects({name: {"a": 1} for name in NAMES})), "holds values of type struct"),
    "texts as the bytes of images": case(lines('{"id": {"bytes": "a"}, "label": "b"}'), "of type struct"),
    "lists in lists": case(
        lines(objects({name: [["a"]] for name in NAMES})), "holds values of type list<item: list", LABEL
    ),
    "a list among texts": case(lines(objects(changed("002", ["a"]))), "row 3, .*: label holds a list, and", LABEL),
    "a number among texts": case(lines(objects(changed("002", 1))), "row 3, .*: label holds a number, and"),
    "a list for a class": case(
        lines(objects({name: [kind] for name, kind in BY_CLASS.items()})),
        "labels.jsonl, row 1: column label holds a list, and an example has one class",
    ),
    "lists of 0 and 1": case(
        lines(objects({name: [0, 1, 1] for name in NAMES})), "holds lists of 0 and 1: give a column for each", LABEL
    ),
    "numbers of JSON": case(
        lines(objects(changed("001", UNKNOWN, changed("002", 2, READ_AGES)))),
        changed("001", None, changed("002", 2.0, READ_AGES)),
        NUMBER,
    ),
    "infinity in JSON": case(
        lines(objects(changed("002", math.inf, READ_AGES))), "row 3: column label holds inf", NUMBER
    ),
    "days for classes": case(
        lines(objects({name: f"2020-01-0{1 + int(name) % 2}" for name in NAMES})),
        {name: f"2020-01-0{1 + int(name) % 2}" for name in NAMES},
    ),
    "half a character": case(
        lines(objects(BY_CLASS).replace('"bee"', '"\\ud800"')), "labels.jsonl, row 2, .*surrogates"
    ),
    "a key twice": case(
        lines(objects(BY_CLASS) + '\n{"id": "000", "label": "ant", "label": "bee"}'),
        "labels.jsonl, row 9, is no row of a table: it has a key more than once",
    ),
    "a number beyond all floats": case(
        lines(objects(dict.fromkeys(NAMES, 1.5)) + '\n{"id": "000", "label": 1e999}'),
        "labels.jsonl, row 9, is no row of a table: 1e999 is beyond all floats",
        NUMBER,
    ),
    "a number of 5,000 digits": case(
        lines(objects(dict.fromkeys(NAMES, 1)) + '\n{"id": "000", "label": ' + "1" * 5000 + "}"),
        "labels.jsonl, row 9: column label holds inf",
        NUMBER,
    ),
    # of Parquet
    "no Parquet inside": case(text("id", "labels.parquet"), "data.path=.*labels.parquet can't be read as Parquet"),
    "half of a Parquet file": case(text(b"PAR1" + bytes(50), "labels.parquet"), "can't be read as Parquet"),
    "no row of Parquet": case(parquet(id=pa.array([], pa.string())), "has no row: give the table"),
    "dictionaries": case(parquet(id=NAMES, label=pa.array(CLASSES).dictionary_encode()), BY_CLASS),
    "whole numbers that gaps made floats": case(
        parquet(id=NAMES, label=[1.0, 2.0, None, *[2.0] * 4, 1.0]),
        dict(zip(NAMES, ["1", "2", None, *["2"] * 4, "1"], strict=True)),
    ),
    "whole numbers beyond float32": case(
        parquet(id=NAMES, label=[2**53 + 1, *[2**24 + 1] * 7]),
        {**dict.fromkeys(NAMES, 2.0**24), "000": 2.0**53},
        NUMBER,
    ),
    "a whole number that is no label": case(
        parquet(id=NAMES, label=[2**53 + 1, *[1] * 7]),
        "labels.parquet, row 1: column label holds 9007199254740993: write 1",
        LABEL,
    ),
    "classes of infinity": case(
        parquet(id=NAMES, label=[math.inf, 2.0] * 4), dict(zip(NAMES, ["inf", "2"] * 4, strict=True))
    ),
    "numbers of 16 bits": case(parquet(id=NAMES, label=pa.array([1.5] * COUNT, pa.float16())), READ_AGES, NUMBER),
    "classes of 16 bits": case(
        parquet(id=NAMES, label=pa.array([1.0, 2.0] * 4, pa.float16())), dict(zip(NAMES, ["1", "2"] * 4, strict=True))
    ),
    "labels that are no UTF-8": case(
        parquet(id=NAMES, label=not_utf8()), "labels.parquet can't be read .*Invalid UTF8 sequence.*: write it again"
    ),
    "bytes that are no UTF-8": case(
        parquet(id=NAMES, label=pa.array([b"ant", None, b"\xff", *[b"bee"] * 5])),
        r"labels.parquet, row 3: the cell of column 2 \(label\) is no text in UTF-8: write it as one",
    ),
    "bytes that are": case(parquet(id=NAMES, label=[kind.encode() for kind in CLASSES]), BY_CLASS),
    "bytes for a split that are no UTF-8": case(
        parquet(id=NAMES, label=CLASSES, part=[b"train"] * 7 + [b"\xff"]),
        r"row 8: the cell of column 3 \(part\) is no text in UTF-8",
        **BY_SPLIT,
    ),
    "dictionary of what is no UTF-8": case(
        parquet(id=NAMES, label=pa.DictionaryArray.from_arrays(pa.array([0] * COUNT), not_utf8())), "Invalid UTF8"
    ),
    "decimals": case(parquet(id=NAMES, label=pa.array([Decimal("1.50")] * COUNT)), READ_AGES, NUMBER),
    "lists of nothing": case(parquet(id=NAMES, label=[[]] * COUNT), "no row has a label in column 2", LABEL),
    "paths of images in structures": case(
        parquet(id=[{"bytes": None, "path": f"images/{name}.png"} for name in NAMES], label=CLASSES), BY_CLASS
    ),
    "structures": case(parquet(id=NAMES, label=[{"a": 1}] * COUNT), r"2 \(label\) holds values of type struct"),
    "dates": case(
        parquet(id=NAMES, label=pa.array([0] * COUNT, pa.date32())), r"column 2 \(label\) holds values of type date32"
    ),
    "booleans for numbers": case(
        parquet(id=NAMES, label=[True] * COUNT),
        "labels.parquet, row 1: column label holds True, which is no number",
        NUMBER,
    ),
    "an image of no bytes": case(
        parquet(image=[png(1), None, png(2)], label=["a", "b", "b"]),
        "labels.parquet, row 2: there is a label, and no image",
    ),
    "bytes of no image": case(
        parquet(image=[png(1), b"GIF89a", png(2), png(3)], label=["a", "a", "b", "b"]),
        "labels.parquet, row [12] is a damaged GIF, or of a kind that can't be read",
    ),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, name in enumerate(NAMES):
        (folder / f"{name}.png").write_bytes(png(number))
    return folder


@pytest.fixture
def folder(tmp_path: Path, images: Path) -> Path:
    """The pictures 000.png to 007.png in images/."""
    (tmp_path / "images").mkdir()
    for file in images.iterdir():
        (tmp_path / "images" / file.name).hardlink_to(file)
    return tmp_path


def found(folder: Path, write: Write, reader: TargetReader, keys: Keys) -> dict[str, Any]:
    """The target of each image by its name."""
    others = {key: str(folder / path) for key, path in keys.items() if key in ("test_path", "val_path")}
    source = open_table(TableConfig(path=str(write(folder)), **{**keys, **others}), Wanted(reader=reader))
    return {
        split.files[index].stem: source.class_names[label] if label.ndim == 0 else label
        for split in source.splits.values()
        for index, label in enumerate(np.asarray(split.known_labels))
    }


def check(folder: Path, write: Write, reader: TargetReader, keys: Keys, expected: Expected) -> None:
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            found(folder, write, reader, keys)
        return
    targets = found(folder, write, reader, keys)
    assert targets.keys() == {image for image, target in expected.items() if target is not None}
    for image, target in targets.items():
        np.testing.assert_array_equal(target, expected[image])


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_cells_are_right_or_refused_with_the_row(name, format_name, folder):
    columns, reader, keys, expected = CELLS[name]
    make, above = FORMATS[format_name]
    file, content = make(columns)
    if isinstance(expected, str):
        expected = re.sub(r"@(\d+)", lambda row: f"{file}, row {int(row[1]) + above}", expected)
    check(folder, text(content, file), reader, keys, expected)


@pytest.mark.parametrize("name", FILES)
def test_files_are_right_or_refused_with_the_row(name, folder):
    check(folder, *FILES[name])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_table_that_may_not_be_read(tmp_path):
    text(rows(BY_CLASS))(tmp_path).chmod(0)
    with pytest.raises(DataError, match=r"labels.csv can't be read: Permission denied"):
        found(tmp_path, lambda folder: folder / "labels.csv", CLASS, {})


@pytest.mark.parametrize("kind", [pa.binary(), pa.struct({"bytes": pa.binary()}), pa.string(), pa.list_(pa.string())])
def test_a_value_that_parquet_stores_once_is_multiplied_only_if_all_fit(tmp_path, monkeypatch, kind):
    value = {"string": "a" * 2**20, "binary": bytes(2**20)}.get(str(kind))
    value = value or ([b"a".decode() * 2**20] if pa.types.is_list(kind) else {"bytes": bytes(2**20)})
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": pa.array([value] * 40, kind), "label": ["a", "b"] * 20}), file)
    assert file.stat().st_size < 2**20
    table = open_tables(file, "data.path")[""]
    assert table.columns(["image"])[0].to_pylist() == [value] * 40
    monkeypatch.setattr("accumtrain.data.table.parquet.spare_bytes", lambda: 2**25)
    with pytest.raises(
        DataError, match=r"t.parquet takes (4[01].[0-9]|160.0) MB or more, 32.0 MB of memory are free: "
    ):
        table.columns(["image"])


def test_a_number_that_parquet_stores_once_is_counted_as_often_as_it_is_meant(tmp_path, monkeypatch):
    pq.write_table(pa.table({"number": np.zeros(2**20)}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 2**13
    monkeypatch.setattr("accumtrain.data.table.parquet.spare_bytes", lambda: 2**22)
    monkeypatch.setattr("accumtrain.data.table.parquet._BYTES_OF_A_ROW", 1)
    with pytest.raises(DataError, match=r"t.parquet takes 8.0 MB or more, 4.0 MB of memory are free: give a table of"):
        open_tables(tmp_path / "t.parquet", "data.path")[""].columns(["number"])


def test_a_page_of_parquet_has_its_checksum(tmp_path):
    file = tmp_path / "t.parquet"
    table = pa.table({"number": np.arange(99.0)})
    pq.write_table(table, file, write_page_checksum=True, use_dictionary=False, compression="none")
    content = file.read_bytes()
    at = content.index(np.float64(50).tobytes())
    file.write_bytes(content[:at] + b"\1" + content[at + 1 :])
    with pytest.raises(DataError, match=r"t.parquet can't be read \(could not verify page integrity.*: write it again"):
        open_tables(file, "data.path")[""].columns(["number"])


def test_chunks_of_parquet_are_made_in_halves(tmp_path, monkeypatch):
    monkeypatch.setattr("accumtrain.data.table.parquet._CHUNK", 100)
    pq.write_table(pa.table({"name": [f"{number}" * 9 for number in range(40)]}), tmp_path / "t.parquet")
    (column,) = open_tables(tmp_path / "t.parquet", "data.path")[""].columns(["name"])
    assert column.to_pylist() == [f"{number}" * 9 for number in range(40)]
    assert column.num_chunks > 4


@pytest.mark.parametrize("deep", ['{"a":' * 100_000 + "1" + "}" * 100_000, '{"a":' * 100_000, "[" * 100_000])
def test_a_row_of_json_may_not_be_deep(tmp_path, deep):
    (tmp_path / "t.jsonl").write_text('{"id": "a"}\n' + deep + "\n")
    with pytest.raises(DataError, match=r"t.jsonl, row 2, holds lists or objects that are too deep: write a flat row"):
        open_tables(tmp_path / "t.jsonl", "data.path")
