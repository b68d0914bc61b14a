"""Tables of texts and of numbers, classes in several columns, and a row for each label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from accumtrain.data.config import TableConfig
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.data.sources.labelled import open_labelled
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, LABELS, NUMBERS, TOKENS
from tests.data.conftest import PLAIN, join, png

TEXTS = ["bark", "purr", "wag the tail", "meow", "fetch", "a paw", "growl", "fur"]
KINDS = ["dog", "cat"] * 4
ROWS = {"say": TEXTS, "kind": KINDS, "age": [0.5, 1, 2, 3, 4, 5, 6, 7], "size": [10, 20] * 4}


def as_csv(folder: Path, columns: dict[str, list[Any]]) -> str:
    rows = ([f'"{cell}"' for cell in row] for row in zip(*columns.values(), strict=True))
    (folder / "t.csv").write_text("\n".join(map(",".join, [list(columns), *rows])))
    return str(folder / "t.csv")


def as_json(folder: Path, columns: dict[str, list[Any]]) -> str:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "t.jsonl")


def as_parquet(folder: Path, columns: dict[str, list[Any]]) -> str:
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=3)
    return str(folder / "t.parquet")


FORMATS = [as_csv, as_json, as_parquet]


def opened(path: str, form: str = CLASSES, **keys: Any) -> Dataset:
    return open_data(TableConfig(path=path, **{"val_fraction": 0.0, **keys}), 0, form)


def examples(data: Dataset) -> list[tuple[Any, Any]]:
    """The inputs and targets of the examples of all splits, as they are stored."""
    read = [split.read(tf.range(split.size, dtype=tf.int64)) for split in data.splits.values()]
    return [
        pair for inputs, targets in read for pair in zip(inputs.numpy().tolist(), targets.numpy().tolist(), strict=True)
    ]


def padded(text: str, length: int = 12) -> list[int]:
    own = list(text.encode())
    return own + [-1] * (length - len(own))


# ---- texts ----


@pytest.mark.parametrize("write", FORMATS)
def test_texts_have_classes(tmp_path, write):
    path = write(tmp_path, ROWS)
    data = opened(path, text_column="say", label_column="kind", length=12)
    assert sorted(examples(data)) == sorted(
        (padded(text), int(kind == "dog")) for text, kind in zip(TEXTS, KINDS, strict=True)
    )
    assert (data.class_names, data.inputs.kind, data.sizes) == (["cat", "dog"], "tokens", "6 training and 2 test")
    again = opened(path, text_column="say", label_column="kind", length=12)
    assert (examples(again), again.fingerprint) == (examples(data), data.fingerprint)


def test_those_held_out_are_evenly_spaced_in_each_class(tmp_path):
    data = opened(as_json(tmp_path, ROWS), text_column="say", label_column="kind", length=12, test_fraction=0.5)
    test, _ = data.test.read(tf.range(4, dtype=tf.int64))
    assert test.numpy().tolist() == [padded(text) for text in ("bark", "purr", "fetch", "a paw")]


@pytest.mark.parametrize("write", FORMATS)
def test_texts_are_read_to_the_byte_and_may_repeat(tmp_path, write):
    texts = [" two\nlines ", "cafe\u0301", "same", "same"] * 2
    data = opened(write(tmp_path, {"text": texts, "kind": KINDS}), text_column="text", length=12)
    assert sorted(row for row, _ in examples(data)) == sorted(map(padded, texts))


def test_texts_have_labels_or_numbers(tmp_path):
    path = as_json(tmp_path, ROWS | {"tags": ["x;y", "y", "", "x"] * 2})
    data = opened(path, NUMBERS, text_column="say", label_column=["age", "size"], length=12)
    assert sorted(examples(data)) == sorted(
        (padded(t), [a, s]) for t, a, s in zip(TEXTS, ROWS["age"], ROWS["size"], strict=True)
    )
    data = opened(path, LABELS, text_column="say", label_column="tags", length=12)
    assert data.class_names == ["x", "y"]
    expected = zip(map(padded, TEXTS), [[1, 1], [0, 1], [0, 0], [1, 0]] * 2, strict=True)
    assert sorted(examples(data)) == sorted(expected)


def test_texts_without_classes_are_cut_into_pieces_of_a_group(tmp_path):
    path = as_json(tmp_path, {"text": ["abcdef", "ghijkl", "mnopqr", "stuvwx"], "by": ["p", "p", "q", "q"]})
    data = opened(path, TOKENS, text_column="text", length=4, group="by")
    assert (data.num_classes, [split.size for split in data.splits.values()]) == (257, [4, 4])
    assert len(set(data.train.groups.tolist())) == 1
    with pytest.raises(ConfigError, match=r"data.text_column=null: the tokens of texts are learned"):
        opened(path, TOKENS)


@pytest.mark.parametrize("write", FORMATS)
def test_a_row_without_a_text_is_told_or_left_out(tmp_path, write):
    path = write(tmp_path, {"text": [*TEXTS, ""], "kind": [*KINDS, "dog"]})
    place = f"{path}, row {10 if write is as_csv else 9}"
    with pytest.raises(DataError, match=rf"{place} has no text: .*data.on_error=skip"):
        opened(path, text_column="text", length=12)
    data = opened(path, text_column="text", length=12, on_error="skip")
    assert [example["name"] for example in data.skipped] == [place]


def test_a_row_without_a_class_is_left_out(tmp_path):
    data = opened(as_json(tmp_path, {"text": [*TEXTS, "x"], "kind": [*KINDS, None]}), text_column="text", length=12)
    assert len(examples(data)) == 8
    assert f"1 row without a label is left out: {tmp_path}/t.jsonl, row 9" in data.notes


def test_new_texts_are_measured_with_the_vocabulary_of_the_run(tmp_path):
    path = as_json(tmp_path, ROWS)
    inputs = opened(path, text_column="say", label_column="kind", length=5).inputs
    config = TableConfig(path=path, text_column="say", label_column="kind")
    data = open_labelled(config, TrainedOn(inputs, CLASSES, ["dog", "cat"]), {}, 0)
    batch = join(make_eval_batches(data, batch=8))
    assert batch["inputs"].tolist() == [padded(text[:5], 5) for text in TEXTS]
    assert batch["targets"].tolist() == [0, 1] * 4


def test_numbers_are_no_texts(tmp_path):
    with pytest.raises(DataError, match=r"t.jsonl: column 3 \(age\) holds values of type double: give texts"):
        opened(as_json(tmp_path, ROWS), text_column="age", label_column="kind")


# ---- numbers ----


@pytest.mark.parametrize("write", FORMATS)
def test_numbers_are_standardised_by_the_rows_to_train_on(tmp_path, write):
    columns = ROWS | {"same": [3.0] * 8, "part": ["train"] * 5 + ["val"] + ["test"] * 2}
    names = ["age", "size", "same"]
    data = opened(write(tmp_path, columns), number_columns=names, label_column="kind", split_column="part")
    values = np.array([columns[name] for name in names], float).T
    mean, std = values[:5].mean(axis=0), values[:5].std(axis=0)
    std[2] = 1.0
    assert data.inputs == Arrays((3,), tuple(names), tuple(mean.tolist()), tuple(std.tolist()))
    for split, rows in (("train", slice(5)), ("val", slice(5, 6)), ("test", slice(6, 8))):
        batch = join(make_eval_batches(data, batch=len(values[rows]), split=split))
        np.testing.assert_allclose(batch["inputs"], ((values - mean) / std)[rows], rtol=1e-6)
    assert Arrays.from_facts(json.loads(json.dumps(data.inputs.facts())), TableConfig(path="")) == data.inputs


def test_those_held_out_to_validate_on_do_not_standardise(tmp_path):
    data = opened(as_json(tmp_path, ROWS), NUMBERS, number_columns=["size"], label_column="age", val_fraction=0.3)
    rows, _ = data.train.read(tf.range(data.train.size, dtype=tf.int64))
    assert (data.sizes, data.inputs.mean) == ("4 training, 2 validation and 2 test", (float(np.mean(rows)),))


def test_all_other_columns_may_be_numbers(tmp_path):
    path = as_json(tmp_path, {name: ROWS[name] for name in ("age", "kind", "size")} | {"who": list("aabbccdd")})
    data = opened(path, number_columns=["*"], label_column="kind", group="who")
    assert data.inputs.columns == ("age", "size")
    assert sorted(examples(data)) == sorted(
        ([a, s], int(k == "dog")) for a, s, k in zip(ROWS["age"], ROWS["size"], KINDS, strict=True)
    )


def test_tables_of_numbers_may_have_their_columns_in_another_order(tmp_path):
    (tmp_path / "test.csv").write_text("more,b,a,y\n0,4,3,1\n0,6,5,0")
    (tmp_path / "train.csv").write_text("a,y,b\n1,0,2\n3,1,4\n5,0,6\n7,1,8")
    keys = {"number_columns": ["*"], "label_column": "y", "test_path": str(tmp_path / "test.csv")}
    data = opened(str(tmp_path / "train.csv"), **keys)
    assert data.inputs.columns == ("a", "b")
    assert data.test.read(tf.constant([0, 1], tf.int64))[0].numpy().tolist() == [[3, 4], [5, 6]]
    (tmp_path / "test.csv").write_text("a,y\n3,1\n5,0")
    with pytest.raises(DataError, match=r"data.number_columns=b: .*test.csv has no column b, only a, y; give"):
        opened(str(tmp_path / "train.csv"), **keys)


def test_rows_of_numbers_may_repeat_and_the_fingerprint_tells_values(tmp_path):
    columns = {"x": [1, 1, 1, 1, 2, 2], "y": [0, 0, 1, 1, 5, 6]}
    keys = {"number_columns": ["x"], "label_column": "y"}
    data = opened(as_json(tmp_path, columns), NUMBERS, **keys)
    assert len(examples(data)) == 6
    other = opened(as_json(tmp_path, columns | {"x": [1, 1, 1, 1, 2, 3]}), NUMBERS, **keys)
    assert {key for key, value in data.fingerprint.items() if other.fingerprint[key] != value} == {"data.train.rows"}


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("empty", ["", "nan", None])
def test_an_empty_cell_among_numbers_is_refused_with_its_row(tmp_path, write, empty):
    cell = "" if empty is None and write is as_csv else empty
    columns = {"x": ["1", "2", "3", cell, "5"], "y": [1, 2, 3, 4, 5]}
    with pytest.raises(DataError, match=rf"row {5 if write is as_csv else 4}: column x is empty, and the numbers"):
        opened(write(tmp_path, columns), NUMBERS, number_columns=["x"], label_column="y")


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        (
            [1_700_000_000 + number for number in range(8)],  # one value in float32
            r"between 1700000000 and 1700000007, .* apart: subtract 1700000000 from all of them, in rows to predict",
        ),
        (
            [1_700_000_000 + 1000 * number for number in range(8)],  # eight, all rounded
            r"between 1700000000 and 1700007000, .* apart: subtract 1700000000 from all of them, in rows to predict",
        ),
        (
            [1e-50 * number for number in range(8)],  # zeros
            r"between 0 and 7e-50, .* apart: multiply all of them, so that they differ by about 1, in rows to predict",
        ),
        (
            [1e-40 * number for number in range(8)],  # below the normal numbers
            r"between 0 and 7e-40, .* apart: multiply all of them, so that they differ by about 1, in rows to predict",
        ),
    ],
)
def test_a_column_that_float32_rounds_to_few_values_is_not_trained_on(tmp_path, write, numbers, fault):
    keys = {"number_columns": ["t"], "label_column": "y", "split_column": "part", "val_fraction": None}
    rows = {"y": [0, 1] * 5, "part": ["train"] * 8 + ["test"] * 2}
    with pytest.raises(DataError, match=rf"^column t is {fault}"):
        opened(write(tmp_path, rows | {"t": [*numbers, 0, 0]}), **keys)
    moved = [(number - numbers[0]) / (numbers[1] - numbers[0]) for number in numbers]  # as the message says
    data = opened(write(tmp_path, rows | {"t": [*moved, 0, 0]}), **keys)
    assert sorted(inputs for inputs, _ in examples(data)) == [[float(number)] for number in (0, 0, *range(8))]


def test_a_column_whose_deviation_is_too_small_to_divide_by_is_not_trained_on(tmp_path):
    """Its numbers reach far enough for float32, but few of them do."""
    columns = {"x": [0.0] * 19_999 + [1.3e-36], "size": [1, 2] * 10_000, "y": [0, 1] * 10_000}
    keys = {"number_columns": ["size", "x"], "label_column": "y", "split_column": "part"}
    rows = columns | {"part": ["test"] * 2 + ["train"] * 19_998}
    message = r"^column x has the standard deviation 9.19e-39, and float32 can't divide by less than 1.18e-38: multiply"
    with pytest.raises(DataError, match=message):
        opened(as_parquet(tmp_path, rows), **keys)
    larger = [1e36 * number for number in columns["x"]]
    assert opened(as_parquet(tmp_path, rows | {"x": larger}), **keys).inputs.std[1] == pytest.approx(9.19e-3, rel=1e-3)


def test_rows_that_are_not_trained_on_may_be_few_and_close(tmp_path):
    """A column whose training rows float32 tells apart has any two of its values in another table."""
    close = {"t": [1_700_000_000, 1_700_000_001], "y": [0, 1]}
    config = TableConfig(path=as_json(tmp_path, close), number_columns=["t"], label_column="y")
    inputs = Arrays((1,), ("t",), (1.6e9,), (1e8,))
    data = open_labelled(config, TrainedOn(inputs, CLASSES, ["0", "1"]), {}, 0)
    np.testing.assert_allclose(join(make_eval_batches(data, batch=2))["inputs"], [[1.0], [1.0]], atol=1e-6)
    asked = inputs.open_named([config.path], config, "predict.input")
    np.testing.assert_allclose(join(make_eval_batches(asked.data, batch=2))["inputs"], [[1.0], [1.0]], atol=1e-6)
    test = tmp_path / "more"
    test.mkdir()
    path = as_json(test, {"t": [1_600_000_000 + 10_000 * number for number in range(8)], "y": [0, 1] * 4})
    keys = {"number_columns": ["t"], "label_column": "y", "test_path": config.path}
    assert opened(path, **keys).test.size == 2


def test_a_row_that_is_left_out_may_be_empty(tmp_path):
    path = as_json(tmp_path, {"x": [1.0, 2.0, None, 4.0], "y": [1, 2, None, 4]})
    assert len(examples(opened(path, NUMBERS, number_columns=["x"], label_column="y"))) == 3


def test_new_rows_are_asked_by_the_names_of_the_columns(tmp_path):
    config = TableConfig(path=as_json(tmp_path, ROWS), number_columns=["*"], label_column="say")
    inputs = Arrays((2,), ("size", "age"), (1.0, 2.0), (3.0, 4.0))
    asked = inputs.open_named([as_csv(tmp_path, {"age": [5, 6], "x": [0, 0], "size": [7, 8]})], config, "predict.input")
    assert asked.names == [f"{tmp_path}/t.csv, row 2", f"{tmp_path}/t.csv, row 3"]
    batch = join(make_eval_batches(asked.data, batch=2))
    np.testing.assert_allclose(batch["inputs"], [[2.0, 0.75], [7 / 3, 1.0]], rtol=1e-6)
    with pytest.raises(DataError, match=r"predict.input=.*t.jsonl lacks the columns size that .* call its columns so"):
        inputs.open_named([as_json(tmp_path, {"age": [5, 6]})], config, "predict.input")


def test_a_name_that_looks_like_a_number_is_a_name(tmp_path):
    """A table that lacks the column 2 is not read in its second column."""
    config = TableConfig(path=as_json(tmp_path, ROWS), number_columns=["*"], label_column="say")
    inputs = Arrays((1,), ("2",), (0.0,), (1.0,))
    other = as_csv(tmp_path, {"1": [5, 6], "x": [7, 8], "kind": ["cat", "dog"]})
    with pytest.raises(DataError, match=r"t.csv lacks the columns 2 that the run has learned from, and has 1, x, kind"):
        inputs.open_named([other], config, "predict.input")
    with pytest.raises(DataError, match=r"data.number_columns=2: .*; give the name of one, .* or call one of them 2$"):
        open_labelled(
            TableConfig(path=other, number_columns=["*"], label_column="kind"),
            TrainedOn(inputs, CLASSES, ["cat", "dog"]),
            {},
            0,
        )


def test_new_rows_are_not_measured_by_other_columns(tmp_path):
    config = TableConfig(path=as_json(tmp_path, ROWS), number_columns=["size", "weight"], label_column="kind")
    trained_on = TrainedOn(Arrays((2,), ("size", "age"), (0.0, 0.0), (1.0, 1.0)), CLASSES, ["cat", "dog"])
    with pytest.raises(ConfigError, match=r"data.number_columns=\[size,weight\]: the run has learned from size, age"):
        open_labelled(config, trained_on, {}, 0)


@pytest.mark.parametrize("header", [True, False])
def test_columns_in_a_list_are_chosen_by_their_numbers(tmp_path, header):
    (tmp_path / "t.csv").write_text(("x,y,a,b\n" if header else "") + "1,2,0,1\n3,4,1,0\n5,6,0,1\n7,8,1,0")
    keys = {"number_columns": [2, 1], "label_column": [3, 4], "header": header}
    data = opened(str(tmp_path / "t.csv"), **keys)
    assert data.inputs.columns == (("y", "x") if header else ("2", "1"))
    assert sorted(examples(data)) == [([2.0, 1.0], 1), ([4.0, 3.0], 0), ([6.0, 5.0], 1), ([8.0, 7.0], 0)]


@pytest.mark.parametrize("cell", ["true", "2020-01-01", "inf"])
def test_what_is_no_number_is_told_a_remedy_that_works(tmp_path, cell):
    """An empty cell would end the run, too."""
    columns = {"x": [cell, "2", "3", "4"], "y": [1, 2, 3, 4]}
    with pytest.raises(DataError, match=r"row 1: .*(name the columns of numbers without it|or remove the row)") as told:
        opened(as_json(tmp_path, columns), NUMBERS, number_columns=["*"], label_column="y")
    assert "nothing" not in str(told.value)
    assert "empty" not in str(told.value)


def test_new_rows_with_labels_are_measured(tmp_path):
    config = TableConfig(path=as_json(tmp_path, ROWS), number_columns=["*"], label_column="kind")
    inputs = Arrays((2,), ("size", "age"), (0.0, 0.0), (1.0, 1.0))
    data = open_labelled(config, TrainedOn(inputs, CLASSES, ["cat", "dog"]), {}, 0)
    assert join(make_eval_batches(data, batch=8))["inputs"].tolist() == list(
        map(list, zip(ROWS["size"], ROWS["age"], strict=True))
    )


def test_new_rows_of_one_class_are_measured(tmp_path):
    """A training would need two."""
    path = as_json(tmp_path, {"age": [1, 2], "kind": ["cat", "cat"]})
    config = TableConfig(path=path, number_columns=["age"], label_column="kind")
    run = TrainedOn(Arrays((1,), ("age",), (0.0,), (1.0,)), CLASSES, ["ape", "cat"])
    assert join(make_eval_batches(open_labelled(config, run, {}, 0), batch=2))["targets"].tolist() == [1, 1]


def test_data_of_another_kind_is_not_measured(tmp_path):
    config = TableConfig(path=as_json(tmp_path, ROWS), text_column="say", label_column="kind")
    run = TrainedOn(Arrays((1,), ("age",), (0.0,), (1.0,)), CLASSES, ["cat", "dog"])
    with pytest.raises(DataError, match="data=table: its inputs are tokens, those that the run was trained on arrays"):
        open_labelled(config, run, {}, 0)


@pytest.mark.parametrize("text", ["a;b", "a\tb", 'says ""x;y"", and', "one line;\nanother"])
def test_a_separator_in_the_quotes_of_the_first_row_is_none(tmp_path, text):
    (tmp_path / "t.csv").write_text("\n".join(f'"{text} {number}",{KINDS[number]}' for number in range(8)))
    data = opened(str(tmp_path / "t.csv"), text_column=1, label_column=2, header=False)
    assert (data.class_names, data.sizes) == (["cat", "dog"], "6 training and 2 test")


# ---- labels ----

ONE_HOT = {"name": [f"{number}" for number in range(4)], "x": [1, 0, 0, 1], "y": [0, 1, 1, 0]}


@pytest.fixture
def pictures(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    return tmp_path


def targets_of(data: Dataset) -> dict[str, Any]:
    """The target of each image by its name."""
    return {
        split.files[index].stem: label
        for split in data.splits.values()
        for index, label in enumerate(np.asarray(split.known_labels).tolist())
    }


def images(write: Any, folder: Path, columns: dict[str, list[Any]], form: str = CLASSES, **keys: Any) -> Dataset:
    return opened(write(folder, columns), form, image_column="name", **{**PLAIN, "val_fraction": 0.0, **keys})


@pytest.mark.parametrize("write", FORMATS)
def test_a_class_may_be_a_1_in_its_column(pictures, write):
    data = images(write, pictures, ONE_HOT, label_column=["y", "x"])
    assert data.class_names == ["y", "x"]
    assert targets_of(data) == {"0": 1, "1": 0, "2": 0, "3": 1}


@pytest.mark.parametrize(
    ("x", "y", "told"), [(1, 1, "y, x"), (0, 0, "none"), (1, None, "x")], ids=["two", "none", "an empty cell"]
)
def test_a_row_without_a_single_1_is_refused(pictures, x, y, told):
    columns = ONE_HOT | {"x": [1, x, 0, 1], "y": [0, y, 1, 0]}
    with pytest.raises(DataError, match=rf"t.jsonl, row 2: the columns y, x are classes, and hold 1 for {told}: write"):
        images(as_json, pictures, columns, label_column=["y", "x"])


def test_a_row_of_empty_cells_has_no_class(pictures):
    (pictures / "4.png").write_bytes(png(4))
    columns = {"name": list("01234"), "x": [1, None, 0, 1, 0], "y": [0, None, 1, 0, 1]}
    assert targets_of(images(as_json, pictures, columns, label_column=["y", "x"])) == {"0": 1, "2": 0, "3": 1, "4": 0}


@pytest.mark.parametrize(
    ("separator", "cells"), [(",", ["a,b", "b", "", "a , b"]), (" and ", ["a and b", "b", "", "b and a"])]
)
def test_labels_have_the_separator_that_is_given(pictures, separator, cells):
    columns = {"name": ONE_HOT["name"], "tags": cells}
    data = images(as_csv, pictures, columns, LABELS, label_column="tags", label_separator=separator)
    assert (data.class_names, targets_of(data)) == (["a", "b"], {"0": [1, 1], "1": [0, 1], "2": [0, 0], "3": [1, 1]})


def test_numbers_with_a_separator_are_labels(pictures):
    columns = {"name": ONE_HOT["name"], "tags": ["1,0", "1", "0", ""]}
    data = images(as_csv, pictures, columns, LABELS, label_column="tags", label_separator=",")
    assert (data.class_names, targets_of(data)["0"]) == (["0", "1"], [1, 1])


@pytest.mark.parametrize("write", FORMATS)
def test_a_row_for_each_label(pictures, write):
    columns = {"name": ["0", "1", "0.png", "2", "2", "3"], "tag": ["a", "b", "b", "c", "c", ""]}
    data = images(write, pictures, columns, LABELS, rows="labels", label_column="tag")
    assert data.class_names == ["a", "b", "c"]
    assert targets_of(data) == {"0": [1, 1, 0], "1": [0, 1, 0], "2": [0, 0, 1], "3": [0, 0, 0]}
    assert not any("more than once" in note for note in data.notes)


@pytest.mark.parametrize("key", ["split_column", "group"])
def test_rows_of_an_image_agree_in_all_else(pictures, key):
    columns = {"name": ["0", "1", "0", "2"], "tag": ["a", "b", "b", "c"], "more": ["train", "test", "test", "test"]}
    with pytest.raises(DataError, match=r"row 3, gives 0 the label .* test, and .*row 1, the label .* train: an image"):
        images(as_json, pictures, columns, LABELS, rows="labels", label_column="tag", **{key: "more"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rows": "labels"}, "data.rows=labels: is for several labels of an example; choose task=multilabel"),
        ({"label_separator": ","}, "data.label_separator=,: is for several labels"),
    ],
)
def test_keys_of_several_labels_are_refused_for_classes(pictures, keys, message):
    with pytest.raises(ConfigError, match=message):
        images(as_json, pictures, {"name": ["0", "1"], "tag": ["a", "b"]}, label_column="tag", **keys)


def test_labels_in_columns_have_no_row_each(pictures):
    with pytest.raises(DataError, match=r"data.rows=labels: .*t.jsonl has the labels x, y: give a column of names"):
        images(as_json, pictures, ONE_HOT, LABELS, rows="labels", label_column=["x", "y"])


# ---- keys ----


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"text_column": "t", "number_columns": ["*"]},
            r"data.text_column=t and data.number_columns=\[\*\]: an example is an image, a text or numbers; give one",
        ),
        ({"number_columns": []}, r"data.number_columns=\[\]: must hold the names of different columns, or \[\*\]"),
        ({"number_columns": ["a", "a"]}, r"data.number_columns=\[a,a\]: must hold the names of different columns"),
        ({"rows": "labels", "text_column": "t"}, "data.rows=labels and data.text_column=t: rows of the same image"),
        ({"label_separator": ""}, "data.label_separator='': must be a text"),
    ],
)
def test_keys_that_contradict_each_other(keys, message):
    with pytest.raises(ConfigError, match=message):
        TableConfig(path="t.csv", **keys).check()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"text_column": "say", "image_size": 8}, "data.image_size=8: is for images"),
        ({"text_column": "say", "augment": "shift"}, "data.augment=shift: is for images"),
        ({"number_columns": ["size"], "length": 8}, "data.length=8: is for texts"),
        ({"number_columns": ["size"], "mixup": 0.1}, "data.mixup=0.1: is for images"),
    ],
)
def test_keys_of_other_inputs_are_refused(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        opened(as_json(tmp_path, ROWS), label_column="kind", **keys)


def test_the_columns_of_numbers_are_said(tmp_path):
    with pytest.raises(DataError, match=r"say which of them hold the labels, data.label_column=<name>"):
        opened(as_json(tmp_path, ROWS), number_columns=["size", "age"])
    assert isinstance(opened(as_json(tmp_path, {"say": TEXTS, "kind": KINDS}), text_column="say").inputs, Tokens)
