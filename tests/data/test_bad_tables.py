"""Tables with something odd in them: each is read right, or refused with the row."""

from __future__ import annotations

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
from accumtrain.data.table.source import open_table
from accumtrain.data.targets import ClassTargets, LabelTargets, NumberTargets, TargetReader
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
CELLS: dict[str, tuple[dict[str, list[Any]], TargetReader, Keys, Expected]] = {
    "classes": (labelled(BY_CLASS), CLASS, {}, BY_CLASS),
    # of columns
    "a column that is not there": (
        *(labelled(BY_CLASS), CLASS, {"label_column": "kind"}),
        "data.label_column=kind: .* has the columns id, label",
    ),
    "a column asked for twice": (
        *(labelled(BY_CLASS, who=PATIENTS), CLASS, {**COLUMNS, "group": "label"}),
        r"column 2 \(label\) is asked for twice; give each key its own",
    ),
    # of images
    "an image that is not there": (labelled({**BY_CLASS, "x": "ant"}), CLASS, {}, "@9: .*/x can't be read: No such"),
    "no image": (labelled({**BY_CLASS, "": "ant"}), CLASS, {}, "@9: there is a label, and no image"),
    "an image of no file": (labelled({**BY_CLASS, "y/\x01": "ant"}), CLASS, {}, "@9: "),
    "a row twice": (
        *({"id": [*NAMES, "000", "000.png"], "label": [*CLASSES, "ant", "ant"]}, CLASS, {}),
        BY_CLASS,
    ),
    "a row twice with other classes": (
        *(again("000", "bee"), CLASS, COLUMNS),
        "@9, gives 000 the label bee, and .*@1, the label ant",
    ),
    "a row twice with other labels": (
        *({"id": ["000", "000"], "x": [1, 1], "y": [0, None]}, LABEL, TWO_LABELS),
        "@2, gives 000 the label 1.0,nan, and .*@1, the label 1.0,0.0",
    ),
    "a row twice with the same labels": (
        *({"id": [*NAMES, *NAMES], "x": [1] * 16, "y": [None] * 16}, LABEL, TWO_LABELS),
        dict.fromkeys(NAMES, (1, UNKNOWN)),
    ),
    # of classes
    "no class": (labelled(changed("000", None)), CLASS, {}, changed("000", None)),
    "two spellings of a class": (
        *(labelled({name: ("caf\u00e9", "cafe\u0301", "bee", "bee")[int(name) % 4] for name in NAMES}), CLASS, {}),
        {name: ("caf\u00e9", "caf\u00e9", "bee", "bee")[int(name) % 4] for name in NAMES},
    ),
    "a class of several lines": (
        *(labelled(changed("002", "a,\nb")), CLASS, {}),
        r"@3: the cell of column 2 \(label\) goes on over several lines: close its quotes",
    ),
    # of labels
    "labels of words": ({"id": NAMES, **WORDS}, LABEL, TWO_LABELS, BY_WORD),
    "an unknown word": (
        *({"id": NAMES[:2], "x": ["1", "1"], "y": ["0", "maybe"]}, LABEL, TWO_LABELS),
        "@2: column y holds maybe: write 1, true or yes",
    ),
    "a number that is no label": (
        *({"id": NAMES[:2], "x": [1, 2], "y": [0, 1]}, LABEL, TWO_LABELS),
        "@2: column x holds 2: write 1",
    ),
    "lists of labels": (
        *(labelled(changed("000", "b | a", changed("001", None))), LABEL, {}),
        {
            **{name: ((0, 1, 0, 0), (0, 0, 0, 1))[int(name) % 2] for name in NAMES},
            **{"000": (1, 0, 1, 0), "001": (0, 0, 0, 0)},
        },
    ),
    "a list with a name twice": (
        *(labelled(changed("002", "ant|bee|ant")), LABEL, {}),
        "@3: column label names ant more than once",
    ),
    # of numbers
    "numbers": (
        *(labelled(changed("001", -2e3, changed("002", None, READ_AGES))), NUMBER, {}),
        changed("001", -2000.0, changed("002", None, READ_AGES)),
    ),
    "no numbers": (
        *(labelled(changed("001", "nan", changed("002", "NULL", AGES))), NUMBER, {}),
        changed("001", None, changed("002", None, READ_AGES)),
    ),
    **{
        f"a number that is {what}": (labelled(changed("003", cell, AGES)), NUMBER, {}, f"@4: column label holds {told}")
        for what, cell, told in (
            ("written with a comma", "1,5", r"1,5, which is no number: write a point, 1\.5"),
            ("a text", "old", "old, which is no number"),
            ("followed by its unit", "5 kg", "5 kg, which is no number"),
            ("beyond all floats", "1e999", "1e999, which float32 can't hold"),
            ("beyond float32", "-1e39", "-1e39, which float32 can't hold"),
            ("infinite", "inf", "inf, which float32 can't hold"),
        )
    },
    # of splits and groups
    "an unknown split": (again("000", "ant", "extra"), CLASS, BY_SPLIT, "@9: the split is extra; write one of train, "),
    "no split": (again("000", "ant", ""), CLASS, BY_SPLIT, "@9: the split is empty; write one of train, "),
    "a class that is not trained on": (
        *(labelled(changed("007", "fly"), part=SPLITS), CLASS, BY_SPLIT),
        "@8: the class fly of a test example has none to train on",
    ),
    "all in one split": (
        *(labelled(BY_CLASS, part=["train"] * COUNT), CLASS, BY_SPLIT),
        "all examples with a label are in the split train",
    ),
    "an image in two splits": (
        *(again("000", "ant", "test"), CLASS, BY_SPLIT),
        "@9, gives 000 .* the split test, and .*@1, .* the split train",
    ),
    "a group in two splits": (
        *(labelled(BY_CLASS, part=SPLITS, who=["p"] * 7 + ["q"]), CLASS, {**BY_SPLIT, "group": "who"}),
        "@7: data.group=who: p is in the split test and, by .*@6, in another",
    ),
    "a row without a group": (
        *(labelled(BY_CLASS, who=[*PATIENTS[:6], "", "p3"]), CLASS, {**COLUMNS, "group": "who"}),
        "@7: the group is empty",
    ),
    "a single group": (
        *(labelled(BY_CLASS, who=["p0"] * COUNT), CLASS, {**COLUMNS, "group": "who"}),
        "p0: no group can be held out",
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
FILES: dict[str, tuple[Write, TargetReader, Keys, Expected]] = {
    # of the file
    "no table": (lambda folder: folder / "no.csv", CLASS, {}, "no.csv can't be read: No such file .*: give the table"),
    "a folder in its place": (lambda folder: folder / "images", CLASS, {}, "images is a directory: give the table"),
    "a pipe in its place": (a_pipe, CLASS, {}, "is not a regular file: give the table"),
    "an empty file": (text(""), CLASS, {}, "is empty: give the table"),
    "empty lines alone": (text("\n\r\n\n"), CLASS, {}, "has no row: give the table"),
    "empty lines alone of JSON": (lines("\n\n"), CLASS, {}, "has no row: give the table"),
    "objects of nothing": (lines("{}\n{}"), CLASS, {}, "has no row: give the table"),
    "a header alone": (text("id,label\n"), CLASS, {}, "has no row: give the table"),
    "no header": (text(f"000,ant\n{REST}"), CLASS, NO_HEADER, BY_CLASS),
    "no header, and columns by their numbers": (
        *(text(f"000,ant\n{REST}"), CLASS, {**NO_HEADER, "image_column": 1, "label_column": 2}),
        BY_CLASS,
    ),
    "no header, which is not said": (
        *(text(f"000,ant\n{REST}"), CLASS, {}),
        "the first row names the columns, and 000 is a file: set data.header=false",
    ),
    "a test table with an image of the other": (
        *(two_tables, CLASS, {"test_path": "test.csv"}),
        r"test.csv, row 3, gives 001 the label bee and the split test, and .*labels.csv, row 2, .* the split train",
    ),
    "a test table that is not there": (
        *(text(rows(BY_CLASS)), CLASS, {"test_path": "no.csv"}),
        "data.test_path=.*no.csv can't",
    ),
    # of its encoding
    "a byte order mark": (text("\ufeff" + rows(BY_CLASS)), CLASS, COLUMNS, BY_CLASS),
    "a byte order mark of JSON": (lines("\ufeff" + objects(BY_CLASS)), CLASS, COLUMNS, BY_CLASS),
    "a byte order mark without a header": (text(f"\ufeff000,ant\n{REST}"), CLASS, NO_HEADER, BY_CLASS),
    "UTF-16 with its mark": (text(rows(BY_CLASS, "id\tlabel", "\t").encode("utf-16")), CLASS, {}, BY_CLASS),
    "UTF-16 without a mark": (text(rows(BY_CLASS).encode("utf-16-le")), CLASS, {}, "row 1, .* a null character"),
    "half of UTF-16": (text(rows(BY_CLASS).encode("utf-16") + b"a"), CLASS, {}, "labels.csv is not text in UTF-8"),
    "UTF-16 of JSON": (lines(objects(BY_CLASS).encode("utf-16")), CLASS, {}, "is not text in UTF-8"),
    "Latin-1": (
        *(text(rows(changed("002", "caf\u00e9")).encode("latin-1")), CLASS, {}),
        "labels.csv, row 4, is not text in UTF-8",
    ),
    "Latin-1 of JSON": (
        *(lines(objects(BY_CLASS).replace("bee", "caf\u00e9").encode("latin-1")), CLASS, {}),
        "labels.jsonl is not text in UTF-8",
    ),
    "a null character": (text(rows(changed("002", "a\0nt"))), CLASS, {}, "row 4, can't be read .* a null character"),
    "another program's file": (text(b"PK\x03\x04\x14\x00" + bytes(range(256))), CLASS, {}, "labels.csv, row 1, "),
    "line ends of Windows": (text(rows(BY_CLASS, end="\r\n") + "\r\n"), CLASS, {}, BY_CLASS),
    "line ends of old Macs": (text(rows(BY_CLASS, end="\r")), CLASS, {}, BY_CLASS),
    # of its separators and quotes
    "tabs": (text(rows(BY_CLASS, "id\tlabel", "\t"), "labels.tsv"), CLASS, {}, BY_CLASS),
    "semicolons": (text(rows(BY_CLASS, "id;label", ";")), CLASS, {}, BY_CLASS),
    "bars": (text(rows(BY_CLASS, "id|label", "|")), CLASS, {}, r"has the columns id\|label: say which"),
    "spaces around cells": (
        *(text(rows({f" {name} ": f" {kind} " for name, kind in BY_CLASS.items()}, "id , label")), CLASS, COLUMNS),
        BY_CLASS,
    ),
    "quotes": (text(rows({f'"{name}"': f'"{kind}"' for name, kind in BY_CLASS.items()})), CLASS, {}, BY_CLASS),
    "a quote within a cell": (
        text(rows(changed("000", '5" ant'))),
        CLASS,
        {"test_fraction": 0.1},
        "has a single example",
    ),
    "a separator in quotes": (
        *(text(rows(changed("000", '"ant, red"', changed("002", '"ant, red"')))), CLASS, {}),
        changed("000", "ant, red", changed("002", "ant, red")),
    ),
    "a line break in quotes": (text(f"id,note,label\n{QUOTED}"), CLASS, COLUMNS, BY_CLASS),
    "the row after line breaks in quotes": (
        *(text('id,note,label\n000,"a\nb\nc",ant\n001'), CLASS, COLUMNS),
        "row 3, has 1 columns, and row 1 has 3: complete the row",
    ),
    "a quote that is closed far below": (
        *(text('id,label\n000,"ant\n001,bee\n002,"ant\n003,bee'), CLASS, {}),
        r"labels.csv, row 2: the cell of column 2 \(label\) goes on over several lines",
    ),
    "a quote that is never closed": (
        *(text('id,label\n000,ant\n001,"bee\n002,ant\n003,bee'), CLASS, {}),
        "labels.csv, row 3, can't be read as a table: unexpected end of data; close the quotes",
    ),
    "empty rows": (text(f"\n\nid,label\n\n,\n000,ant\n{REST}\n\n"), CLASS, {}, BY_CLASS),
    "the row after empty ones": (text("\nid,label\n\n000,ant\n,\n001"), CLASS, {}, "row 6, has 1 columns, and row 2"),
    "a short row": (text(rows(BY_CLASS) + "\n000"), CLASS, {}, "row 10, has 1 columns, and row 1 has 2: complete"),
    "a short row far below": (
        *(text("id,label\n" + "000,ant\n" * 2**17 + "001"), CLASS, {}),
        f"row {2**17 + 2}, has 1 columns",
    ),
    "a long row": (
        *(text(f"id,label\n000,ant,red\n{REST}"), CLASS, {}),
        "labels.csv, row 2, has 3 columns, and row 1 has 2: put a cell with a separator",
    ),
    "empty cells at the end of a row": (text(f"id,label\n000,ant,,\n{REST}"), CLASS, {}, "row 2, has 4 columns"),
    "an empty column at the end": (text(rows(BY_CLASS, end=",\n") + ","), CLASS, COLUMNS, BY_CLASS),
    "a name of two words between spaces": (text("id label\n000 red ant"), CLASS, {}, "row 2, has 3 columns"),
    "a comma for a point without quotes": (text(rows(changed("003", "1,5", AGES))), NUMBER, {}, "row 5, has 3 columns"),
    "classes of numbers and texts": (
        *(text(rows(changed("000", 1, changed("002", 1)))), CLASS, {}),
        changed("000", "1", changed("002", "1")),
    ),
    # of its columns
    "two columns of a name": (text("id,label,label\n000,ant,1"), CLASS, COLUMNS, "has 2 columns called label: give"),
    "two columns of a name in Parquet": (
        *(doubled_columns, CLASS, {"image_column": 1, "label_column": 2}),
        "has 2 columns called label: give them different names",
    ),
    # of JSON lines
    "a broken line": (lines(objects(BY_CLASS) + '\n{"id": "000", "label":'), CLASS, {}, "row 9, is no row of a table"),
    "a JSON array": (lines("[\n" + objects(BY_CLASS)), CLASS, {}, "labels.jsonl, row 1, is no row of a table"),
    "a line that is no object": (lines(objects(BY_CLASS) + "\n\n3"), CLASS, {}, "row 9, .*: it holds no object"),
    "other keys in other lines": (
        *(lines(objects(BY_CLASS) + '\n{"label": "ant", "more": 1}'), CLASS, COLUMNS),
        "labels.jsonl, row 9: there is a label, and no image",
    ),
    "a key that the first line lacks": (lines('{"id": "000"}\n' + objects(BY_CLASS)), CLASS, COLUMNS, BY_CLASS),
    "lists for images": (
        *(lines(objects(BY_CLASS).replace('"000"', '["000"]').replace('"001"', '["001"]')), CLASS, {}),
        "labels.jsonl, row 3, .*: id holds a text, and the rows above hold a list",
    ),
    "lists for a group": (
        *(lines(objects(BY_CLASS).replace("}", ', "who": ["a"]}')), CLASS, {**COLUMNS, "group": "who"}),
        r"labels.jsonl: column 3 \(who\) holds values of type list<item: string>: give texts or numbers",
    ),
    "an object in a cell": (lines(objects(changed("002", {"a": 1}))), CLASS, {}, "row 3, .*: label holds an object"),
    "objects": (lines(objects({name: {"a": 1} for name in NAMES})), CLASS, {}, "holds values of type struct"),
    "texts as the bytes of images": (lines('{"id": {"bytes": "a"}, "label": "b"}'), CLASS, {}, "of type struct"),
    "lists in lists": (
        lines(objects({name: [["a"]] for name in NAMES})),
        LABEL,
        {},
        "holds values of type list<item: list",
    ),
    "a list among texts": (lines(objects(changed("002", ["a"]))), LABEL, {}, "row 3, .*: label holds a list, and"),
    "a number among texts": (lines(objects(changed("002", 1))), CLASS, {}, "row 3, .*: label holds a number, and"),
    "a list for a class": (
        *(lines(objects({name: [kind] for name, kind in BY_CLASS.items()})), CLASS, {}),
        "labels.jsonl, row 1: column label holds a list, and an example has one class",
    ),
    "lists of 0 and 1": (
        lines(objects({name: [0, 1, 1] for name in NAMES})),
        LABEL,
        {},
        "row 1: .* names 1 more than once",
    ),
    "numbers of JSON": (
        *(lines(objects(changed("001", UNKNOWN, changed("002", 2, READ_AGES)))), NUMBER, {}),
        changed("001", None, changed("002", 2.0, READ_AGES)),
    ),
    "infinity in JSON": (
        lines(objects(changed("002", math.inf, READ_AGES))),
        NUMBER,
        {},
        "row 3: column label holds inf",
    ),
    "days for classes": (
        *(lines(objects({name: f"2020-01-0{1 + int(name) % 2}" for name in NAMES})), CLASS, {}),
        {name: f"2020-01-0{1 + int(name) % 2}" for name in NAMES},
    ),
    "half a character": (
        *(lines(objects(BY_CLASS).replace('"bee"', '"\\ud800"')), CLASS, {}),
        "labels.jsonl, row 2, .*surrogates",
    ),
    "a key twice": (
        *(lines(objects(BY_CLASS) + '\n{"id": "000", "label": "ant", "label": "bee"}'), CLASS, {}),
        "labels.jsonl, row 9, is no row of a table: it has a key more than once",
    ),
    "a number of 5,000 digits": (
        *(lines(objects(dict.fromkeys(NAMES, 1)) + '\n{"id": "000", "label": ' + "1" * 5000 + "}"), NUMBER, {}),
        "labels.jsonl, row 9: column label holds inf",
    ),
    # of Parquet
    "no Parquet inside": (
        text("id", "labels.parquet"),
        CLASS,
        {},
        "data.path=.*labels.parquet can't be read as Parquet",
    ),
    "half of a Parquet file": (text(b"PAR1" + bytes(50), "labels.parquet"), CLASS, {}, "can't be read as Parquet"),
    "no row of Parquet": (parquet(id=pa.array([], pa.string())), CLASS, {}, "has no row: give the table"),
    "dictionaries": (parquet(id=NAMES, label=pa.array(CLASSES).dictionary_encode()), CLASS, {}, BY_CLASS),
    "whole numbers that gaps made floats": (
        *(parquet(id=NAMES, label=[1.0, 2.0, None, *[2.0] * 4, 1.0]), CLASS, {}),
        dict(zip(NAMES, ["1", "2", None, *["2"] * 4, "1"], strict=True)),
    ),
    "whole numbers beyond float32": (
        *(parquet(id=NAMES, label=[2**53 + 1, *[2**24 + 1] * 7]), NUMBER, {}),
        {**dict.fromkeys(NAMES, 2.0**24), "000": 2.0**53},
    ),
    "a whole number that is no label": (
        *(parquet(id=NAMES, label=[2**53 + 1, *[1] * 7]), LABEL, {}),
        "labels.parquet, row 1: column label holds 9007199254740993: write 1",
    ),
    "classes of infinity": (
        *(parquet(id=NAMES, label=[math.inf, 2.0] * 4), CLASS, {}),
        dict(zip(NAMES, ["inf", "2"] * 4, strict=True)),
    ),
    "numbers of 16 bits": (parquet(id=NAMES, label=pa.array([1.5] * COUNT, pa.float16())), NUMBER, {}, READ_AGES),
    "decimals": (parquet(id=NAMES, label=pa.array([Decimal("1.50")] * COUNT)), NUMBER, {}, READ_AGES),
    "lists of nothing": (parquet(id=NAMES, label=[[]] * COUNT), LABEL, {}, "no row has a label in column 2"),
    "paths of images in structures": (
        *(parquet(id=[{"bytes": None, "path": f"images/{name}.png"} for name in NAMES], label=CLASSES), CLASS, {}),
        BY_CLASS,
    ),
    "structures": (parquet(id=NAMES, label=[{"a": 1}] * COUNT), CLASS, {}, r"2 \(label\) holds values of type struct"),
    "dates": (
        *(parquet(id=NAMES, label=pa.array([0] * COUNT, pa.date32())), CLASS, {}),
        r"column 2 \(label\) holds values of type date32",
    ),
    "booleans for numbers": (
        *(parquet(id=NAMES, label=[True] * COUNT), NUMBER, {}),
        "labels.parquet, row 1: column label holds True, which is no number",
    ),
    "an image of no bytes": (
        *(parquet(image=[png(1), None, png(2)], label=["a", "b", "b"]), CLASS, {}),
        "labels.parquet, row 2: there is a label, and no image",
    ),
    "bytes of no image": (
        *(parquet(image=[png(1), b"GIF89a", png(2), png(3)], label=["a", "a", "b", "b"]), CLASS, {}),
        "labels.parquet, row [12] is a GIF, not a PNG",
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
    source = open_table(TableConfig(path=str(write(folder)), **{**keys, **others}), 0, reader)
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
