"""data=texts, and tokens of data=npz: the right tokens from each kind of file, and a word for each that is bad."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import NpzConfig, TableConfig, TextsConfig
from accumtrain.data.inputs.tokens import read_texts
from accumtrain.data.local_files import find_paths
from accumtrain.data.open_data import open_data
from accumtrain.data.source import ArraySplit
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, TOKENS

DOGS = ["bark", "wag the tail", "fetch"]
CATS = ["purr", "a paw", "meow meow meow", "fur"]


def padded(text: str, length: int) -> list[int]:
    own = list(text.encode())[:length]
    return own + [-1] * (length - len(own))


def rows_of(split) -> list[tuple[list[int], int]]:
    tokens, labels = split.read(tf.range(split.size, dtype=tf.int64))
    return [(row, label) for row, label in zip(tokens.numpy().tolist(), labels.numpy().tolist(), strict=True)]


def open_all(config, targets="classes"):
    """The examples of all splits, each split's in its order, and the data."""
    data = open_data(config, 0, targets)
    return [row for split in data.splits.values() for row in rows_of(split)], data


def write_folder(root):
    for kind, texts in (("dog", DOGS), ("cat", CATS)):
        (root / kind).mkdir(parents=True)
        for number, text in enumerate(texts):
            (root / kind / f"{number}").write_text(text)
    return root


EXPECTED = sorted([(padded(text, 8), 1) for text in DOGS] + [(padded(text, 8), 0) for text in CATS])


def test_a_folder_of_classes(tmp_path):
    rows, data = open_all(TextsConfig(path=str(write_folder(tmp_path / "pets")), length=8))
    assert sorted(rows) == EXPECTED
    assert data.class_names == ["cat", "dog"]
    assert data.shape == (8,)
    assert data.inputs.vocabulary.size == 257
    positions = 7 * 8
    filled = sum(min(8, len(text)) for text in DOGS + CATS)
    assert f"2 of 7 texts are cut to the first 8 tokens (data.length); {1 - filled / positions:.1%}" in data.notes[0]
    again = open_all(TextsConfig(path=str(tmp_path / "pets"), length=8))[0]
    assert again == rows, "what is held out never changes"


def test_folders_of_splits(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / "all" / split)
    (tmp_path / "all" / "test" / "cat" / "0").write_text("only here")
    (tmp_path / "all" / "about.txt").write_text("a word on the data")
    data = open_data(TextsConfig(path=str(tmp_path / "all"), length=9, val_fraction=0.0), 0)
    assert (padded("only here", 9), 0) in rows_of(data.test)
    assert (padded("only here", 9), 0) not in rows_of(data.train)
    assert any("not read" in note and "about.txt" in note for note in data.notes)


def test_lines_of_a_text_file_are_texts(tmp_path):
    (tmp_path / "words.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n  two \nthree")
    rows, data = open_all(TextsConfig(path=str(tmp_path / "words.txt"), length=4), TOKENS)
    assert sorted(rows) == sorted(
        (row, row) for row in map(list, [padded(t, 4) for t in ("one", "two")] + [padded("thre", 4), padded("e", 4)])
    )
    assert data.num_classes == 257
    assert "3 texts are cut into 4 pieces of up to 4 tokens" in data.notes[0]


def test_pieces_of_a_text_are_not_torn_apart(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"{number:02}" * (1 + number))
    data = open_data(TextsConfig(path=str(tmp_path), length=4), 0, TOKENS)
    texts = {name: {bytes(row[:2]) for row, _ in rows_of(split)} for name, split in data.splits.items()}
    assert sum(map(len, texts.values())) == 20, "each text is in one split"
    assert all(texts.values())


def test_pieces_of_one_text_are_not_divided_to_validate_on(tmp_path):
    for number in range(2):  # of which one is held out to test on
        (tmp_path / f"{number}.txt").write_text("a text of several pieces")
    with pytest.raises(DataError, match=r"of one group, such as the pieces of one text.*set data\.val_fraction=0"):
        open_data(TextsConfig(path=str(tmp_path), length=4), 0, TOKENS)
    data = open_data(TextsConfig(path=str(tmp_path), length=4, val_fraction=0.0), 0, TOKENS)
    assert data.train.size == data.test.size == 6


def test_a_folder_of_any_depth_is_read_without_classes(tmp_path):
    write_folder(tmp_path / "a" / "b")
    rows, _ = open_all(TextsConfig(path=str(tmp_path), length=20), TOKENS)
    assert sorted(rows) == sorted((padded(text, 20), padded(text, 20)) for text in DOGS + CATS)


# ---- arrays ----

ROWS = np.array([[5, 3, 0, 0], [1, 2, 3, 4], [0, 0, 6, 1], [2, 2, 0, 0]])
LABELS = np.array([0, 1, 0, 1])


def write_arrays(file, **arrays):
    np.savez(file, **{"tokens": ROWS, "labels": LABELS, **arrays})
    return NpzConfig(path=str(file), val_fraction=0.0)


def test_arrays_have_their_padding_at_the_end(tmp_path):
    config = write_arrays(tmp_path / "t.npz", mask=(ROWS != 0).astype(np.uint8))
    rows, data = open_all(config)
    by_hand = [([5, 3, -1, -1], 0), ([1, 2, 3, 4], 1), ([6, 1, -1, -1], 0), ([2, 2, -1, -1], 1)]
    assert sorted(rows) == sorted(by_hand)
    assert data.shape == (4,)
    assert (data.inputs.vocabulary.size, data.inputs.vocabulary.mask) == (8, 7)


def test_a_number_may_be_the_padding_and_the_vocabulary_larger(tmp_path):
    np.savez(tmp_path / "t.npz", tokens=ROWS, labels=LABELS, test_tokens=ROWS[:1, :3], test_labels=LABELS[:1])
    config = NpzConfig(path=str(tmp_path / "t.npz"), padding=0, vocabulary=100, length=3, val_fraction=0.0)
    data = open_data(config, 0)
    assert rows_of(data.test) == [([5, 3, -1], 0)]
    assert rows_of(data.train)[1] == ([1, 2, 3], 1)
    assert data.inputs.vocabulary.size == 101


BAD_ARRAYS = {
    "floats": ({"tokens": ROWS * 1.0}, r"tokens is of type float64: tokens are ids"),
    "one dimension": ({"tokens": ROWS[0], "labels": LABELS}, r"tokens has the shape \[4\]: give \[N, T\]"),
    "negative": ({"tokens": np.where(ROWS == 6, -7, ROWS)}, r"holds -7 at row 2, column 2: ids are 0\.\."),
    "huge": ({"tokens": np.where(ROWS == 6, 2**40, ROWS)}, r"holds 1099511627776 at row 2, column 2"),
    "mask of another shape": ({"mask": ROWS[:, :2]}, r"mask has the shape \[4, 2\].*give a mask of that shape"),
    "mask of other values": ({"mask": ROWS}, r"mask holds 5 at row 0, column 0: write 1 for a token"),
    "too few labels": ({"labels": LABELS[:3]}, r"tokens has 4 rows, labels has 3 labels"),
    "a class without texts": ({"labels": LABELS * 2}, r"there is no text to train on of class 1: number the classes"),
    "one class": ({"labels": LABELS * 0}, r"all texts are of one class"),
    "a row without tokens": ({"mask": np.array([[1] * 4, [0] * 4, [1] * 4, [1] * 4])}, r"row 1 holds no token: "),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_told_with_their_place(tmp_path, case):
    arrays, message = BAD_ARRAYS[case]
    with pytest.raises(DataError, match=message):
        open_data(write_arrays(tmp_path / "t.npz", **arrays), 0)


def test_an_id_beyond_the_declared_ones_names_the_number_that_works(tmp_path):
    config = write_arrays(tmp_path / "t.npz")
    config.vocabulary = 4
    with pytest.raises(
        DataError, match=r"holds 5 at row 0, column 0: with data.vocabulary=4 ids are 0\.\.3; .*set data"
    ):
        open_data(config, 0)
    config.vocabulary = 7
    assert open_data(config, 0).inputs.vocabulary.size == 8


def test_labels_may_be_missing_where_tokens_are_the_targets(tmp_path):
    np.savez(tmp_path / "t.npz", tokens=ROWS)
    config = NpzConfig(path=str(tmp_path / "t.npz"))
    assert open_data(config, 0, TOKENS).num_classes == 8
    with pytest.raises(DataError, match="has no array labels: it has tokens"):
        open_data(config, 0)


def test_a_source_of_ones_own_keeps_its_ids():
    tokens, _ = ArraySplit(np.array([[300, -1], [70_000, 2]]), np.array([0, 1])).read(tf.constant([1, 0], tf.int64))
    assert tokens.dtype == tf.int32
    assert tokens.numpy().tolist() == [[70_000, 2], [300, -1]]


# ---- files that are bad ----

BAD_FILES = {
    "empty": (b"", "is empty"),
    "binary": (b"\x89PNG\xff", "is not UTF-8: byte 0x89 at 0"),
    "cut off": ("caf\u00e9".encode()[:-1], "is not UTF-8: byte 0xc3 at 3"),
    "null characters": (b"a\0b", "is no text: there is a null character at 1"),
    "UTF-16": ("text".encode("utf-16-le"), "is no text: there is a null character at 1"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_told_or_left_out(tmp_path, case):
    content, message = BAD_FILES[case]
    root = write_folder(tmp_path / "pets")
    (root / "cat" / "bad").write_bytes(content)
    with pytest.raises(DataError, match=rf"cat/bad {message}.*data.on_error=skip"):
        open_data(TextsConfig(path=str(root)), 0)
    data = open_data(TextsConfig(path=str(root), on_error="skip"), 0)
    assert [example["name"] for example in data.skipped] == [str(root / "cat" / "bad")]


def test_a_class_that_lacks_texts_names_those_that_are_left_out(tmp_path):
    mask = np.ones([6, 2], int)
    mask[5] = 0
    np.savez(tmp_path / "t.npz", tokens=np.arange(12).reshape(6, 2), labels=[0, 0, 0, 2, 2, 1], mask=mask)
    with pytest.raises(DataError, match=r"of class 1: number.*; 1 of 6 can't be used, the first: .*row 5 holds no"):
        open_data(NpzConfig(path=str(tmp_path / "t.npz"), on_error="skip"), 0)
    root = write_folder(tmp_path / "pets")
    for file in ("dog/1", "dog/2"):
        (root / file).unlink()
    (root / "cat" / "bad").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"class dog has a single text.*; 1 of 6 can't be used, the first: .*cat/bad is"
    ):
        open_data(TextsConfig(path=str(root), on_error="skip"), 0)


def test_a_huge_line_is_cut(tmp_path):
    (tmp_path / "t.txt").write_text("x" * 3_000_000 + "\ny\nz")
    data = open_data(TextsConfig(path=str(tmp_path / "t.txt"), length=10**6, val_fraction=0.0), 0, TOKENS)
    assert sum(split.lengths.sum() for split in data.splits.values()) == 3_000_002


def test_what_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t.txt").write_text("a text of many bytes\n" * 9)
    monkeypatch.setattr("accumtrain.data.text.texts.spare_bytes", lambda: 100)
    with pytest.raises(DataError, match=r"their tokens take up to .* of memory are free: give a smaller file"):
        open_data(TextsConfig(path=str(tmp_path / "t.txt")), 0, TOKENS)


def test_a_length_whose_padding_does_not_fit_in_memory_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("one\ntwo\nthree")
    with pytest.raises(DataError, match=r"data.length=10000000000000: 2 examples of so many tokens take .*give"):
        open_data(TextsConfig(path=str(tmp_path / "t.txt"), length=10**13, val_fraction=0.0), 0, TOKENS)


def test_other_structures_are_refused(tmp_path):
    (tmp_path / "lines.txt").write_text("one\ntwo")
    with pytest.raises(DataError, match="has a text a line, and no classes: give a folder with a sub-folder"):
        open_data(TextsConfig(path=str(tmp_path / "lines.txt")), 0)
    with pytest.raises(DataError, match=r"data\.path=.*absent can't be read: No such file"):
        open_data(TextsConfig(path=str(tmp_path / "absent")), 0)
    with pytest.raises(DataError, match=r"has 0 class folder\(s\) with texts"):
        open_data(TextsConfig(path=str(tmp_path)), 0)
    (tmp_path / "void" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"class folder .*a holds no file"):
        open_data(TextsConfig(path=str(tmp_path / "void")), 0)
    with pytest.raises(DataError, match="holds no file: give a file of texts"):
        open_data(TextsConfig(path=str(tmp_path / "void")), 0, TOKENS)


def test_texts_to_predict_are_found_by_a_glob(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.jsonl").write_text('{"words": "three"}\n{"words": null}')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "any").write_text("four")
    keys = TableConfig(path="of_the_run", text_column="words")
    found = [text for path in find_paths(str(tmp_path / "*")) for text in read_texts(path, keys, "predict.input")]
    assert [text.content for text in found] == ["one", "two", "three", "", "four"]
    assert [text.name for text in found if text.fault] == [f"{tmp_path}/b.jsonl, row 2"]
    with pytest.raises(DataError, match="no such file or folder"):
        find_paths(str(tmp_path / "*.md"))
    of_run = "has no column {0}, in which the run finds its texts, only words: call that of its texts {0}$"
    for run, column in (
        (TextsConfig(path="of_the_run"), "text"),
        (TableConfig(path="of_the_run", text_column="review"), "review"),
        (TableConfig(path="of_the_run", text_column=2), "2"),
    ):
        with pytest.raises(DataError, match=rf"^predict.input={tmp_path}/b.jsonl {of_run.format(column)}"):
            list(read_texts(tmp_path / "b.jsonl", run, "predict.input"))


def rows(first: int, count: int) -> list[dict[str, str]]:
    return [
        {"text": f"{number} of all", "label": ("good", "bad")[number % 2]} for number in range(first, first + count)
    ]


def write_lines(file, values, form):
    """JSON lines, a table with commas, or texts alone."""
    if form == "jsonl":
        lines = map(json.dumps, values)
    elif form == "csv":
        lines = ["text,label", *(f"{row['text']},{row['label']}" for row in values)]
    else:
        lines = [row["text"] for row in values]
    file.write_text("\n".join(lines))


def texts_of(split) -> list[str]:
    return sorted(bytes(token for token in row if token >= 0).decode() for row, _ in rows_of(split))


SPLITS = {"train": rows(0, 8), "dev": rows(8, 2), "test": rows(10, 3)}


@pytest.mark.parametrize("name", ["{}", "ptb.{}", "{}_data", "{}-00000-of-00001"])
@pytest.mark.parametrize("beside", ["README.md", "LICENSE", "dataset_infos.json", "vocab.txt", "raw/corpus.txt"])
@pytest.mark.parametrize("form", ["jsonl", "csv", "txt"])
def test_files_of_splits_count_whatever_lies_beside_them(tmp_path, name, beside, form):
    for split, values in SPLITS.items():
        write_lines(tmp_path / f"{name.format(split)}.{form}", values, form)
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).write_text("{}")
    data = open_data(TextsConfig(path=str(tmp_path), length=20), 0, TOKENS)
    found = {split: texts_of(getattr(data, split)) for split in ("train", "val", "test")}
    assert found == {
        split: sorted(row["text"] for row in values)
        for split, values in zip(("train", "val", "test"), SPLITS.values(), strict=True)
    }
    assert any(f"beside the files of the splits: {tmp_path / beside.split('/')[0]}" in note for note in data.notes)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_tables_of_texts_have_their_classes(tmp_path, form):
    for split, values in SPLITS.items():
        write_lines(tmp_path / f"{split}.{form}", values, form)
    (tmp_path / "README.md").write_text("by hand")
    data = open_data(TextsConfig(path=str(tmp_path), length=20), 0)
    assert data.class_names == ["bad", "good"]
    assert [split.size for split in (data.train, data.val, data.test)] == [8, 2, 3]
    single = open_data(TextsConfig(path=str(tmp_path / f"train.{form}"), length=20, val_fraction=0.0), 0)
    assert sorted(texts_of(single.train) + texts_of(single.test)) == texts_of(data.train)


def test_a_table_to_test_on_without_labels_is_for_predictions(tmp_path):
    for split in ("train", "dev"):
        write_lines(tmp_path / f"{split}.csv", SPLITS[split], "csv")
    (tmp_path / "test.csv").write_text("id,text\n1,one\n2,two")
    told = f"^{tmp_path}/test.csv has no column label, and the split test needs labels: train without it, and give it"
    with pytest.raises(DataError, match=told):
        open_data(TextsConfig(path=str(tmp_path)), 0)
    (tmp_path / "test.csv").rename(tmp_path / "new.csv")
    assert open_data(TextsConfig(path=str(tmp_path)), 0).test is None
    assert [text.content for text in read_texts(tmp_path / "new.csv", TextsConfig(path=""), "key")] == ["one", "two"]


@pytest.mark.parametrize("targets", [TOKENS, CLASSES])
def test_a_table_with_other_columns_is_told_the_command_that_takes_it(tmp_path, targets):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("review,kind\none,a\ntwo,a\nthree,b\nfour,b")
    label = " data.label_column=<name>" if targets == CLASSES else ""
    with pytest.raises(DataError) as refused:
        open_data(TextsConfig(path=str(tmp_path)), 0, targets)
    keys = f"data.path={tmp_path}/train.csv data.test_path={tmp_path}/test.csv data.text_column=<name>{label}"
    assert str(refused.value).endswith(f"columns review, kind: say which of them hold what, data=table {keys}")


@pytest.mark.parametrize(
    "files",
    [
        ["train.txt", "README.md"],
        ["test.txt", "a.txt"],
        ["train.txt", "training.txt", "test.txt"],
        ["train.txt", "train.jsonl", "test.txt"],
        ["train-00000-of-00002.txt", "train-00001-of-00002.txt", "test-00000-of-00001.txt"],
        ["train_journey.txt", "test_anxiety.txt", "poem.txt"],
        ["en.train.txt", "en.test.txt", "de.train.txt", "de.test.txt"],
        ["train.txt", "test.txt", "train/a.txt", "test/a.txt"],
    ],
)
def test_a_folder_that_reads_two_ways_is_refused_with_both(tmp_path, files):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("one\ntwo\nthree")
    no_tables = not any(file.endswith("jsonl") for file in files)
    second = r"\. If each file is a text, move all of them into a folder" if no_tables else "$"
    with pytest.raises(DataError, match=rf"read in more than one way\. If .* are splits, .* as data\.path{second}"):
        open_data(TextsConfig(path=str(tmp_path)), 0, TOKENS)
    (tmp_path / "all" / "all").mkdir(parents=True)
    for number, file in enumerate(files):
        (tmp_path / file).rename(tmp_path / "all" / "all" / f"{number}{(tmp_path / file).name}")
    if no_tables:
        read, _ = open_all(TextsConfig(path=str(tmp_path / "all"), val_fraction=0.0), TOKENS)
        assert len(read) == len(files), "each file is a text"


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_tables_named_after_splits_count_beside_a_folder_of_something_else(tmp_path, form):
    for split, values in SPLITS.items():
        write_lines(tmp_path / f"{split}.{form}", values, form)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.py").write_text("pass")
    (tmp_path / "empty").mkdir()
    data = open_data(TextsConfig(path=str(tmp_path), length=20), 0)
    assert [split.size for split in (data.train, data.val, data.test)] == [8, 2, 3]
    assert any(f"beside the files of the splits: {tmp_path}/empty, {tmp_path}/scripts" in note for note in data.notes)


def test_tables_named_after_splits_beside_folders_of_classes_are_refused_with_both_readings(tmp_path):
    write_folder(tmp_path)
    for split, values in SPLITS.items():
        write_lines(tmp_path / f"{split}.jsonl", values, "jsonl")
    both = (
        "can be read in more than one way. If dev.jsonl, test.jsonl, train.jsonl are splits, make one file of each, "
        "with names that are alike otherwise, such as train.jsonl and test.jsonl, or give a single one as data.path, "
        "and move cat/, dog/ away. If cat/, dog/ are classes or splits, move these files away"
    )
    with pytest.raises(DataError, match=f"{re.escape(both)}$"):
        open_data(TextsConfig(path=str(tmp_path)), 0)
    for split in SPLITS:
        (tmp_path / f"{split}.jsonl").rename(tmp_path / f"{split}.txt")  # whose lines have no classes
    assert open_data(TextsConfig(path=str(tmp_path)), 0).class_names == ["cat", "dog"]


@pytest.mark.parametrize("targets", [CLASSES, TOKENS])
def test_splits_in_a_folder_further_in_are_named(tmp_path, targets):
    (tmp_path / "data").mkdir()
    for split, values in SPLITS.items():
        write_lines(tmp_path / "data" / f"{split}.jsonl", values, "jsonl")
    (tmp_path / "README.md").write_text("by hand")
    told = rf"if dev\.jsonl, test\.jsonl, train\.jsonl are splits, give data\.path={tmp_path}/data"
    with pytest.raises(DataError, match=told):
        open_data(TextsConfig(path=str(tmp_path)), 0, targets)
    assert open_data(TextsConfig(path=f"{tmp_path}/data"), 0, targets).val.size == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda file: file.symlink_to("nowhere"), "is a link to a file that is not there"),
        (lambda file: file.write_bytes(b"\x1f\x8b text"), "is compressed: unpack it"),
    ],
)
def test_a_file_of_a_folder_that_is_no_text_is_a_bad_text(tmp_path, make, message):
    (tmp_path / "a.txt").write_text("a text")
    make(tmp_path / "b.txt")
    with pytest.raises(DataError, match=f"b.txt {message}"):
        open_data(TextsConfig(path=str(tmp_path)), 0, TOKENS)


@pytest.mark.parametrize("targets", [CLASSES, TOKENS])
@pytest.mark.parametrize("name", ["texts.txt.gz", "reviews.csv.gz", "all.zip"])
def test_compressed_files_are_to_be_unpacked(tmp_path, name, targets):
    (tmp_path / name).write_bytes(b"\x1f\x8b text\n")
    unpack = f"data.path={tmp_path}/{name} is compressed: unpack it, or"
    with pytest.raises(DataError, match=unpack):
        open_data(TextsConfig(path=f"{tmp_path}/{name}"), 0, targets)
    with pytest.raises(DataError, match=unpack):
        open_data(TableConfig(path=f"{tmp_path}/{name}", text_column="text"), 0, targets)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("fault", ["is a link to a file that is not there", "is not a regular file", "is empty"])
def test_files_of_splits_that_can_not_be_read_are_named(tmp_path, split, fault):
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("one\ntwo\nthree")
    file = tmp_path / f"{split}.txt"
    file.unlink()
    if "link" in fault:
        file.symlink_to(tmp_path / "absent")
    elif "regular" in fault:
        os.mkfifo(file)
    else:
        file.touch()
    with pytest.raises(DataError, match=f"^data.path={file} {fault}: give a file of texts, or a folder of them$"):
        open_data(TextsConfig(path=str(tmp_path)), 0, TOKENS)


def test_endings_that_differ_are_told(tmp_path):
    for name in ("a.txt", "b.txt", "c.md", "d"):
        (tmp_path / name).write_text(name)
    _, data = open_all(TextsConfig(path=str(tmp_path), val_fraction=0.0), TOKENS)
    assert "files with different endings are read as texts: 2 .txt, 1 .md, 1 without ending" in data.notes
    (tmp_path / "infos.json").write_text("{}")
    with pytest.raises(DataError, match=r"infos.json is a table, whose lines are no texts: .*or move it away"):
        open_data(TextsConfig(path=str(tmp_path)), 0, TOKENS)


@pytest.mark.parametrize("targets", [TOKENS, CLASSES])
def test_arrays_are_not_taken_for_texts(tmp_path, targets):
    (tmp_path / "t.npz").write_text("text")
    with pytest.raises(DataError, match=r"data=npz data\.path=.*t\.npz"):
        open_data(TextsConfig(path=str(tmp_path / "t.npz")), 0, targets)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train/a.txt", "test/b.txt"], "train has no class folder: give a folder with a sub-folder for each class"),
        (["val/x/a.txt", "test/x/b.txt"], "has test, val, named after splits, and no train"),
        (["train/x/a.txt", "training/x/b.txt"], "has train/ and training/: keep one of them"),
    ],
)
def test_splits_are_not_taken_for_classes(tmp_path, files, message):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("text")
    with pytest.raises(DataError, match=message):
        open_data(TextsConfig(path=str(tmp_path)), 0)


def test_a_class_of_a_test_folder_that_is_not_trained_is_refused(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / split)
    (tmp_path / "test" / "cow").mkdir()
    (tmp_path / "test" / "cow" / "0").write_text("moo")
    with pytest.raises(DataError, match=r"test has the class cow, which train/ lacks \(it has cat, dog\)"):
        open_data(TextsConfig(path=str(tmp_path)), 0)


def test_one_spelling_of_two_class_folders_is_one_class(tmp_path):
    for name in ("caf\u00e9", "cafe\u0301", "tea"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / str(number)).write_text(f"{name} {number}")
    assert open_data(TextsConfig(path=str(tmp_path), val_fraction=0.0), 0).class_names == ["caf\u00e9", "tea"]


@pytest.mark.parametrize("given", [{"image_size": 9}, {"augment": "shift"}, {"mixup": 0.1}])
def test_keys_of_images_are_refused(tmp_path, given):
    (key,) = given
    with pytest.raises(ConfigError, match=rf"data\.{key}="):
        open_data(TextsConfig(path=str(write_folder(tmp_path / "pets")), **given), 0)


@pytest.mark.parametrize(("key", "value"), [("scale", 255), ("image_size", 9)])
def test_keys_of_images_are_refused_for_tokens_of_a_file(tmp_path, key, value):
    config = replace(write_arrays(tmp_path / "t.npz"), **{key: value})
    with pytest.raises(ConfigError, match=rf"data\.{key}={value}: is for images"):
        open_data(config, 0)


def test_keys_of_tokens_are_refused_for_images_of_a_file(tmp_path):
    np.savez(tmp_path / "t.npz", images=np.full([8, 4, 4], 9, np.uint8), labels=[0, 1] * 4)
    for given in ({"padding": 0}, {"vocabulary": 9}, {"length": 4}, {"by_length": True}):
        with pytest.raises(ConfigError, match=rf"data\.{next(iter(given))}=.*: is for texts"):
            open_data(NpzConfig(path=str(tmp_path / "t.npz"), **given), 0)
    with pytest.raises(DataError, match="holds no tokens, which are learned"):
        open_data(NpzConfig(path=str(tmp_path / "t.npz")), 0, TOKENS)
    np.savez(tmp_path / "t.npz", images=np.zeros([8, 4, 4], np.uint8), test_tokens=ROWS, labels=[0, 1] * 4)
    with pytest.raises(
        DataError, match=r"t\.npz has images and test_tokens: save images or tokens, in a file of their"
    ):
        open_data(NpzConfig(path=str(tmp_path / "t.npz")), 0)


@pytest.mark.parametrize("buckets", [[4, 4], [8, 4], [0, 2]])
def test_buckets_increase(buckets):
    with pytest.raises(ConfigError, match=r"data\.buckets=.*must be increasing lengths of at least 1"):
        TextsConfig(path="texts", buckets=buckets).check()


def test_buckets_are_below_the_length(tmp_path):
    config = TextsConfig(path=str(write_folder(tmp_path / "pets")), length=8, buckets=[4, 8])
    with pytest.raises(ConfigError, match=r"data\.buckets=\[4,8\]: must be below the 8 tokens of an example"):
        open_data(config, 0)
