"""Columns of tables that can be read in two ways: each is refused with both readings, and the keys choose one."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from accumtrain.data.config import TableConfig
from accumtrain.data.source import Source, Wanted
from accumtrain.data.table.source import open_table
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets
from accumtrain.errors import DataError
from tests.data.conftest import png

CLASS, LABEL, NUMBER = ClassTargets(), LabelTargets(), NumberTargets()
COUNT = 12
PAIRS = [["scab"], ["frog eye"], ["scab", "frog eye"], []]
BOTH = [[float("scab" in names), float("frog eye" in names)] for names in PAIRS * 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures 0.png to 11.png in photos/."""
    (tmp_path / "photos").mkdir()
    for number in range(COUNT):
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(number))
    return tmp_path


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def table(folder: Path, cells: list[str], names: str = "photos/{}.png", header: str = "image,label") -> Path:
    """A table with a cell a picture, over and over."""
    rows = [f"{quoted(names.format(number))},{cells[number % len(cells)]}" for number in range(COUNT)]
    (folder / "labels.csv").write_text("\n".join([header, *rows, ""]))
    return folder / "labels.csv"


def opened(path: Path, reader: TargetReader, **keys: Any) -> Source:
    return open_table(TableConfig(path=str(path), **keys), Wanted(reader=reader))


def targets(source: Source) -> list[Any]:
    """The targets of the pictures in the order of their numbers."""
    found = {
        int(split.name(index).rsplit("/")[-1][:-4]): np.asarray(split.known_labels)[index].tolist()
        for split in source.splits.values()
        for index in range(split.size)
    }
    return [found[number] for number in sorted(found)]


# ---- lists of labels ----

WRITTEN = {  # how people write lists of labels, and the key that takes each
    " ": lambda names: " ".join(name.replace(" ", "_") for name in names),
    ",": lambda names: quoted(", ".join(names)),
    "/": "/".join,
    "+": " + ".join,
    "&": " & ".join,
    "list": lambda names: quoted(repr(names)),
    "list of JSON": lambda names: quoted(json.dumps(names)),
    "list without quotes": lambda names: quoted(f"[{', '.join(names)}]"),
    "list in parentheses": lambda names: quoted(repr(tuple(names))),
    "list without quotes in parentheses": lambda names: quoted(f"({', '.join(names)})"),
    "list in braces": lambda names: quoted(repr(set(names))),
    "list without quotes in braces": lambda names: quoted(f"{{{', '.join(names)}}}"),
    "list of NumPy": lambda names: quoted(f"[{' '.join(map(repr, names))}]"),
    "  in the form of tabs": lambda names: "\t".join(name.replace(" ", "_") for name in names),
    ", at the end": lambda names: quoted("".join(f"{name}," for name in names)),
    "#": "#".join,
    "~": "~".join,
    "\u3001": "\u3001".join,
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_lists_of_labels_ask_for_their_separator_and_take_it(folder, kind):
    separator = kind.split(" ")[0] or " "
    path = table(folder, [WRITTEN[kind](names) for names in PAIRS])
    with pytest.raises(DataError, match="which can be read in two ways: as the labels ") as refused:
        opened(path, LABEL)
    by_list, whole = re.findall(r"data\.label_separator=(?:'(.)'\"|(\w+))", str(refused.value))
    assert ("".join(by_list), "".join(whole)) == (separator, ";")
    source = opened(path, LABEL, label_separator=separator)
    order = [source.class_names.index(name) for name in ("scab", "frog_eye" if separator == " " else "frog eye")]
    assert [[row[index] for index in order] for row in targets(source)] == BOTH
    assert len(opened(path, LABEL, label_separator=";").class_names) == (3 if kind[0] != "l" else 4), "whole cells"


@pytest.mark.parametrize("cells", [["golden retriever", "tabby cat"], ["a,b", "c"], ["1/2", "on:off"]])
def test_words_that_do_not_recur_are_one_label(folder, cells):
    assert opened(table(folder, [*map(quoted, cells), ""]), LABEL).class_names == sorted(cells)


@pytest.mark.parametrize("cell", ["['a' 'b', 'c']", "['a', 1.5]", "{'a': 1}", "scab", "[" * 200_000])
def test_what_is_no_written_list_is_refused_with_its_row(folder, cell):
    path = table(folder, [quoted("['scab']"), quoted(cell)])
    with pytest.raises(DataError, match=r"labels.csv, row 3: column label holds .*, which is no list as JSON"):
        opened(path, LABEL, label_separator="list")


@pytest.mark.parametrize("cell", ["['a' ... 'b']", "{'a': 1, 'b': 0}", "[['a'], ['b']]"])
def test_what_looks_like_a_list_and_is_none_names_no_key_that_fails(folder, cell):
    path = table(folder, [quoted(cell), "scab"])
    with pytest.raises(DataError, match=r"which is no list as JSON or Python write one: write it as \['a', 'b'\]$"):
        opened(path, LABEL)
    with pytest.raises(DataError, match=r"data.label_separator=list, and write it as \['a', 'b'\]\? If it is one"):
        opened(path, CLASS)


def test_numbers_in_a_list_of_numpy_are_labels(folder):
    source = opened(table(folder, ["[1 2]", "[2]", "[]"]), LABEL, label_separator="list")
    assert (source.class_names, targets(source)[:3]) == (["1", "2"], [[1, 1], [0, 1], [0, 0]])


@pytest.mark.parametrize(("cells", "keys"), [(["a;b", "a;nan"], {}), (["['a', 'None']"], {"label_separator": "list"})])
def test_what_means_unknown_is_no_label_of_a_list(folder, cells, keys):
    path, word = table(folder, [*map(quoted, cells), ""]), "nan" if len(cells) > 1 else "None"
    with pytest.raises(DataError, match=f"column label holds the label {word}, which means that nothing is known"):
        opened(path, LABEL, **keys)
    assert word in opened(path, LABEL, missing=[], **keys).class_names


@pytest.mark.parametrize(("cells", "other", "word"), [(["1", "0", "?"], r"\?", "1"), (["No", "-", "yes"], "-", "No")])
def test_another_text_beside_yes_and_no_is_no_label(folder, cells, other, word):
    path = table(folder, cells)
    told = rf"row \d: column label holds {other}, and {word} in other rows: if it is one label, write 1, 0, or nothing"
    with pytest.raises(DataError, match=told):
        opened(path, LABEL)
    assert opened(path, LABEL, label_separator=";").class_names == sorted(cells)
    assert opened(path, LABEL, missing=[cell for cell in cells if cell in "?-"]).class_names == ["label"]


@pytest.mark.parametrize(
    ("cells", "remedy"),
    [
        (["a;", "b;", "a;b;"], r"the labels a and b, did you mean task=multilabel\? If"),
        ([quoted(cell) for cell in ("a,b", "b,c", "a,c")], 'the labels a and b, did you mean task=multilabel "data'),
        (["scab", "rot", "rot#scab"], "did you mean task=multilabel \"data.label_separator='#'\"\\?"),
        (["[1 0]", "[0 1]"], r"did you mean task=multilabel data.label_separator=list\?"),
        (["scab", "rot", "scab;rot"], r"the labels scab and rot, did you mean task=multilabel\? If"),
        (["scab", "rot", "rot|scab"], r"the labels rot and scab, did you mean task=multilabel\? If"),
        (["scab", "rot", "scab rot"], "did you mean task=multilabel \"data.label_separator=' '\"\\?"),
        (["scab", "rot", quoted("scab, rot")], "did you mean task=multilabel \"data.label_separator=','\"\\?"),
        ([quoted("['scab']"), quoted("['scab', 'rot']")], r"did you mean task=multilabel data.label_separator=list\?"),
    ],
)
def test_classes_that_are_lists_ask_for_the_task(folder, cells, remedy):
    with pytest.raises(DataError, match=f"labels.csv, row [234]: column label holds .*{remedy}"):
        opened(table(folder, cells), CLASS)


def test_classes_of_several_words_are_classes(folder):
    names = ["Labrador retriever", "golden retriever", "Paris, France", "Lyon, France"]
    assert opened(table(folder, [*map(quoted, names)]), CLASS).class_names == sorted(names)


@pytest.mark.parametrize(
    ("reader", "remedy"),
    [
        (CLASS, "if it has both as labels, task=multilabel data.rows=labels joins them; otherwise leave one"),
        (LABEL, "if each row has a label of it, data.rows=labels joins them; otherwise leave one of the rows out"),
    ],
)
def test_two_rows_of_an_image_name_the_key_that_joins_them(folder, reader, remedy):
    path = table(folder, ["scab", "rot"])
    path.write_text(path.read_text() + "photos/0.png,rot\n")
    with pytest.raises(DataError, match=f"an image has one of each; {remedy}"):
        opened(path, reader)
    path.write_text(path.read_text() + "photos/1.png,nan\n")
    joined = opened(path, LABEL, rows="labels")
    assert targets(joined)[:2] == [[1, 1], [1, 0]]
    assert any("column label is unknown in 1 row, with nan in it" in note for note in joined.notes)


# ---- cells that mean that nothing is known ----


@pytest.mark.parametrize("word", ["nan", "NaN", "NaT", "NA", "n/a", "#N/A", "null", "None", "<NA>", ""])
def test_a_target_that_is_unknown_is_left_out_and_told(folder, word):
    path = table(folder, ["cat", "dog", word])
    source = opened(path, CLASS)
    assert source.class_names == ["cat", "dog"]
    assert len(targets(source)) == 8
    notes = " ".join(source.notes)
    assert "4 rows without a label are left out: photos/2.png" in notes
    assert "not in the table" not in notes
    assert (f"column label is unknown in 4 rows, with {word} in it; data.missing=[]" in notes) == bool(word)
    if word:
        assert opened(path, CLASS, missing=[]).class_names == sorted(["cat", "dog", word])


@pytest.mark.parametrize(("reader", "values"), [(NUMBER, ["1.5", "2"]), (LABEL, ["yes", "0"]), (LABEL, ["cat", "dog"])])
def test_other_targets_that_are_unknown_are_told_too(folder, reader, values):
    source = opened(table(folder, [*values, "NA"]), reader)
    assert len(targets(source)) == 8
    assert any("column label is unknown in 4 rows, with NA in it" in note for note in source.notes)


@pytest.mark.parametrize(("cells", "key"), [(["?"], '["?"]'), (["-", "NULL"], '["-", "NULL"]')])
def test_a_class_of_signs_alone_is_told_with_the_key_that_leaves_it_out(folder, cells, key):
    path = table(folder, ["cat", "dog", *cells])
    told = f"column label has the class {cells[0]}: if it means unknown, 'data.missing={key}' says so"
    assert told in opened(path, CLASS).notes
    assert opened(path, CLASS, missing=json.loads(key)).class_names == ["cat", "dog"]


def test_texts_of_ones_own_mean_that_nothing_is_known(folder):
    assert opened(table(folder, ["cat", "dog", "?"]), CLASS, missing=["?"]).class_names == ["cat", "dog"]


# ---- decimal signs ----


@pytest.mark.parametrize(
    ("decimal", "values"), [(",", [1.25, 2.5, 3.75, 1250.5]), (".", [1250, None, None, None]), (None, None)]
)
def test_a_comma_in_numbers_is_asked_for(folder, decimal, values):
    path = table(folder, [*map(quoted, ["1,250", "2,5", "3,75", "1.250,5"])])
    if values is None or None in values:
        told = r'2,5, which is no number by "data.decimal=\'\.\'": write one, such as 1\.5'
        if decimal is None:
            told = (
                r'1,250, with a comma: it is 1\.25 by "data.decimal=\',\'", and 1250 by "data.decimal=\'\.\'"; choose'
            )
        with pytest.raises(DataError, match=f"column label holds {told}"):
            opened(path, NUMBER, decimal=decimal)
    else:
        assert [row[0] for row in targets(opened(path, NUMBER, decimal=decimal))] == values * 3


@pytest.mark.parametrize(("cells", "decimal"), [(["950", "1.250"], [950, 1.25]), (["1.250.000", "1.5"], None)])
def test_points_that_may_part_thousands_are_asked_for(folder, cells, decimal):
    path, thousands = table(folder, cells), [[950, 1250], [1250000, 15]][decimal is None]
    told = "with a point: it is 12500?0?0? by \"data.decimal=','\"" + (
        ", and 1.25 by .*; choose" if decimal else "; choose"
    )
    with pytest.raises(DataError, match=f"column label holds 1.250(.000)?, {told} one"):
        opened(path, NUMBER)
    if decimal:
        assert [row[0] for row in targets(opened(path, NUMBER, decimal=","))][:2] == thousands
        assert [row[0] for row in targets(opened(path, NUMBER, decimal="."))][:2] == decimal


@pytest.mark.parametrize("cells", [["1.250", "2.500"], ["1", "2.125", "0.125"], ["1000", "1.250"], ["1", "1.25"]])
def test_points_are_decimal_where_they_can_not_part_thousands(folder, cells):
    found = [row[0] for row in targets(opened(table(folder, cells), NUMBER))]
    assert found[: len(cells)] == [float(cell) for cell in cells]


def test_thousands_are_groups_of_three_digits(folder):
    cells = ["1,250,000.5", "999", "-1,000"]
    source = opened(table(folder, [*map(quoted, cells)]), NUMBER, decimal=".")
    assert [row[0] for row in targets(source)][:3] == [1250000.5, 999, -1000]
    with pytest.raises(DataError, match="column label holds 1,25,0, which is no number by"):
        opened(table(folder, [quoted("1,25,0"), "2"]), NUMBER, decimal=".")


# ---- names of files ----


@pytest.mark.parametrize(
    "names", [r"photos\{}.png", r"C:\me\photos\{}.png", "/home/ann/photos/{}.png", "../old/photos/{}.png"]
)
def test_names_that_begin_elsewhere_are_found_below_a_root(folder, names):
    path = table(folder, ["cat", "dog"], names)
    with pytest.raises(DataError, match=re.escape(f"12 of 12 would be found by data.root={folder}, and")):
        opened(path, CLASS)
    assert targets(opened(path, CLASS, root=str(folder))) == [0, 1] * 6
    assert targets(opened(path, CLASS, root=str(folder / "photos"))) == [0, 1] * 6


def test_a_table_may_lie_away_from_its_files(folder, tmp_path_factory):
    path = table(tmp_path_factory.mktemp("tables"), ["cat", "dog"], "{}.png")
    with pytest.raises(DataError, match=r"none of the images .* is there.*; data.root=<folder> says where they are"):
        opened(path, CLASS)
    assert targets(opened(path, CLASS, root=str(folder / "photos"))) == [0, 1] * 6
    with pytest.raises(DataError, match="nowhere can't be read: No such file"):
        opened(path, CLASS, root=str(folder / "nowhere"))


def test_another_case_of_letters_is_counted(folder):
    with pytest.raises(DataError, match="12 of 12 would be found in another case of letters: write them as"):
        opened(table(folder, ["cat", "dog"], "Photos/{}.PNG"), CLASS)


def test_another_case_of_a_name_alone_and_another_ending_are_counted(folder):
    (folder / "photos" / "0.png").rename(folder / "photos" / "A.PNG")
    names = ["a.png", *(f"{number}.jpeg" for number in range(1, COUNT))]
    (folder / "labels.csv").write_text("image,label\n" + "".join(f"{name},{name[0]}\n" for name in names[:1] * 2))
    with pytest.raises(DataError, match="2 of 2 would be found in another case of letters: write them as the files"):
        opened(folder / "labels.csv", CLASS)
    (folder / "labels.csv").write_text("image,label\n" + "".join(f"photos/{name},{name}\n" for name in names[1:]))
    with pytest.raises(DataError, match="11 of 11 would be found with another ending: write them as the files"):
        opened(folder / "labels.csv", CLASS)


@pytest.mark.parametrize("names", ["old/cats/{}.png", r"\\server\share\cats\{}.png", "cats/{}.png"])
def test_a_root_further_in_is_named(folder, names):
    (folder / "mine").mkdir()
    (folder / "photos").rename(folder / "mine" / "cats")
    (folder / "other").mkdir()
    (folder / "other" / "0.png").write_bytes(png(COUNT))
    path = table(folder, ["cat", "dog"], names)
    with pytest.raises(DataError, match=re.escape(f"12 of 12 would be found by data.root={folder}/mine, and")):
        opened(path, CLASS)
    assert targets(opened(path, CLASS, root=f"{folder}/mine")) == [0, 1] * 6


def test_some_that_are_elsewhere_are_counted_and_found(folder):
    path = table(folder, ["cat", "dog"])
    path.write_text(path.read_text().replace("photos/3.png", r"D:\photos\3.png"))
    told = r"1 of 12 images that its column 1 (image) names are not there, such as D:\photos\3.png: 1 of 1 would be"
    with pytest.raises(DataError, match=re.escape(f"{told} found by data.root={folder}")):
        opened(path, CLASS)
    assert targets(opened(path, CLASS, root=str(folder))) == [0, 1] * 6


@pytest.mark.parametrize("text", ["a plain sentence", quoted("one line\nand another")])
def test_texts_that_are_taken_for_names_of_images_name_the_key_of_texts(folder, text):
    (folder / "labels.csv").write_text("\n".join(["text,label", *(f"{text},{label}" for label in "abab")]))
    with pytest.raises(DataError, match=r"; if .* texts?.*, data.text_column=text says so$"):
        opened(folder / "labels.csv", CLASS)


# ---- columns that no key names ----


@pytest.mark.parametrize("name", ["id", "", "Unnamed: 0"])
def test_a_column_that_counts_the_rows_is_not_taken_for_a_number_to_learn(folder, name):
    path = table(folder, ["1.5", "2"], header="image,price")
    lines = path.read_text().splitlines()
    counted = [f"{name},{lines[0]}", *(f"{row},{line}" for row, line in enumerate(lines[1:]))]
    path.write_text("\n".join(counted))
    with pytest.raises(DataError, match=r"has the columns .*, image, price: say which of them hold an example"):
        opened(path, NUMBER)
    source = opened(path, NUMBER, image_column="image", label_column="price")
    assert targets(source)[:2] == [[1.5], [2]]


@pytest.mark.parametrize(
    ("reader", "rows", "values"),
    [(LABEL, ["1,0", "yes,true", "0,NA"], [[1, 0], [1, 1]]), (NUMBER, ["1.5,-2", "0,4", "7,"], [[1.5, -2], [0, 4]])],
)
@pytest.mark.parametrize("first", [True, False])
def test_columns_are_taken_where_the_cells_leave_no_choice(folder, reader, rows, values, first):
    names = "image,a,b" if first else "a,b,image"
    for number in range(2):  # that a label of 0 or 1 could name, too
        (folder / f"{number}.png").write_bytes(png(number + COUNT))
    lines = [f"photos/{number}.png,{rows[number % 3]}" for number in range(COUNT)]
    lines = [line if first else ",".join((*line.split(",")[1:], line.split(",")[0])) for line in lines]
    (folder / "labels.csv").write_text("\n".join([names, *lines]))
    source = opened(folder / "labels.csv", reader)
    assert source.class_names == ["a", "b"]
    assert targets(source)[:2] == values
    assert f"{folder}/labels.csv: column image names the images, and the targets are a, b" in source.notes


@pytest.mark.parametrize(
    ("header", "cells"),
    [("image,a,b", ["photos/1.png,1", "photos/2.png,0"]), ("image,a,b", ["1,2", "0,x"]), ("image,a,a", ["1,0", "0,1"])],
)
def test_columns_are_asked_for_where_there_is_a_choice(folder, header, cells):
    lines = [f"photos/{number}.png,{cells[number % 2]}" for number in range(COUNT)]
    (folder / "labels.csv").write_text("\n".join([header, *lines]))
    with pytest.raises(DataError, match=r"has the columns image, a, .: say which of them hold an example"):
        opened(folder / "labels.csv", LABEL)


# ---- what a key says, and what it can't mean ----


def test_a_group_of_thousands_begins_with_no_zero(folder):
    path = table(folder, ["0.250", "1.500"])
    with pytest.raises(DataError, match=r"holds 0.250, which is no number by \"data.decimal=','\""):
        opened(path, NUMBER, decimal=",")
    assert targets(opened(path, NUMBER, decimal="."))[:2] == [[0.25], [1.5]]


@pytest.mark.parametrize("cell", ["-999", "-999.0"])
def test_numbers_can_mean_unknown(folder, cell):
    source = opened(table(folder, ["1", cell, "2"]), NUMBER, missing=["-999"])
    assert sum(split.size for split in source.splits.values()) == 8, "others are left out"


def test_numbers_of_parquet_can_mean_unknown(folder):
    path = folder / "labels.parquet"
    names = [f"photos/{number}.png" for number in range(COUNT)]
    pyarrow.parquet.write_table(pa.table({"image": names, "label": [1.5, -999.0, 2.5] * 4}), path)
    source = opened(path, NUMBER, missing=["-999"])
    assert sum(split.size for split in source.splits.values()) == 8
    assert "column label is unknown in 4 rows, with -999.0 in it" in " ".join(source.notes)


def test_a_separator_that_stands_nowhere_is_refused(folder):
    path = table(folder, [quoted("scab,rot"), "scab", "rot"])
    with pytest.raises(
        DataError, match=r"column label holds no text with \"data.label_separator='\|'\": give the sign"
    ):
        opened(path, LABEL, label_separator="|")
    assert len(opened(path, LABEL, label_separator=";").class_names) == 3


@pytest.mark.parametrize("cell", ["frozenset({'a', 'b'})", "array(['a', 'b'], dtype=object)", "'a';'b'"])
def test_texts_that_look_like_lists_are_asked_for(folder, cell):
    with pytest.raises(DataError, match=r"which is no list as JSON or Python write one: write it as \['a', 'b'\]"):
        opened(table(folder, [quoted(cell), "a"]), LABEL)


def test_quoted_names_are_a_list(folder):
    path = table(folder, [quoted('"a", "b"'), quoted('"a",')])
    with pytest.raises(DataError, match=r"as the labels a and b, by data\.label_separator=list"):
        opened(path, LABEL)
    assert opened(path, LABEL, label_separator="list").class_names == ["a", "b"]


@pytest.mark.parametrize("cells", [["[1, 0]", "[0, 1]"], ["[0]", "[1, 0]"]])
def test_lists_of_0_and_1_are_no_names(folder, cells):
    with pytest.raises(DataError, match="column label holds lists of 0 and 1: give a column for each label, or an"):
        opened(table(folder, list(map(quoted, cells))), LABEL, label_separator="list")


@pytest.mark.parametrize("cells", [["a;b", "c"], ["a|b", "c"], [quoted("a,b"), "a", "b"]])
def test_a_row_for_each_label_has_no_list(folder, cells):
    with pytest.raises(DataError, match=r"and with data.rows=labels a row has one label: write a row for each"):
        opened(table(folder, cells), LABEL, rows="labels")


def test_an_image_of_unknown_labels_is_left_out(folder):
    source = opened(table(folder, ["a", "b", "NA"]), LABEL, rows="labels")
    assert sum(split.size for split in source.splits.values()) == 8
    assert opened(table(folder, ["a", "b", ""]), LABEL, rows="labels").class_names == ["a", "b"]


def test_classes_of_several_words_are_kept_by_a_key(folder):
    path = table(folder, ["hot dog", "hot", "dog"])
    with pytest.raises(DataError, match=r"If it is one class, \"data.label_separator=';'\" says so"):
        opened(path, CLASS)
    assert opened(path, CLASS, label_separator=";").class_names == ["dog", "hot", "hot dog"]


def test_classes_that_are_numbers_may_be_numbers_to_predict(folder):
    cells = [f"{number}.5" for number in range(COUNT)]
    with pytest.raises(DataError, match=r"remove the class; or did you mean task=regress, as the classes are numbers"):
        opened(table(folder, cells), CLASS)


@pytest.mark.parametrize(
    ("names", "refused"), [("0.5,1.25", True), ("-1,2", True), ("2019,2020", False), ("a,1", False)]
)
def test_a_first_row_of_numbers_is_an_example(tmp_path, names, refused):
    path = tmp_path / "numbers.csv"
    path.write_text("\n".join([f"{names},kind", *(f"{row}.5,{row}.25,{'xy'[row % 2]}" for row in range(12)), ""]))
    columns = {"number_columns": ["*"], "label_column": "kind"}
    with pytest.raises(DataError, match=r"are numbers: set data\.header=false") if refused else nullcontext():
        notes = opened(path, CLASS, **columns).notes
        assert ("if that is an example, set data.header=false" in " ".join(notes)) == (names == "2019,2020")
