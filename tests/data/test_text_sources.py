"""data=tokens: the right tokens from each kind of file, and a word for each that is bad."""

import json

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import TokensConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.source import ArraySplit
from accumtrain.data.text.unlabelled import read_texts
from accumtrain.errors import ConfigError, DataError
from accumtrain.tasks.config import CLASSES, TOKENS

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


def write_lines(file, rows):
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def write_folder(root):
    for kind, texts in (("dog", DOGS), ("cat", CATS)):
        (root / kind).mkdir(parents=True)
        for number, text in enumerate(texts):
            (root / kind / f"{number}").write_text(text)
    return root


EXPECTED = sorted([(padded(text, 8), 1) for text in DOGS] + [(padded(text, 8), 0) for text in CATS])


def test_a_folder_of_classes(tmp_path):
    rows, data = open_all(TokensConfig(path=str(write_folder(tmp_path / "pets")), length=8))
    assert sorted(rows) == EXPECTED
    assert data.class_names == ["cat", "dog"]
    assert data.shape == (8,)
    assert data.vocabulary.size == 257
    places = 7 * 8
    filled = sum(min(8, len(text)) for text in DOGS + CATS)
    assert f"2 of 7 texts are cut to their first 8 tokens (data.length); {1 - filled / places:.1%}" in data.notes[0]
    again = open_all(TokensConfig(path=str(tmp_path / "pets"), length=8))[0]
    assert again == rows, "what is held out never changes"


def test_folders_of_splits(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / "all" / split)
    (tmp_path / "all" / "test" / "cat" / "0").write_text("only here")
    (tmp_path / "all" / "about.txt").write_text("a word on the data")
    data = open_data(TokensConfig(path=str(tmp_path / "all"), length=9, val_fraction=0.0), 0)
    assert (padded("only here", 9), 0) in rows_of(data.test)
    assert (padded("only here", 9), 0) not in rows_of(data.train)
    assert any("not read" in note and "about.txt" in note for note in data.notes)


def test_lines_of_json(tmp_path):
    rows = [{"say": text, "kind": kind} for kind, texts in (("dog", DOGS), ("cat", CATS)) for text in texts]
    config = TokensConfig(path=str(write_lines(tmp_path / "p.jsonl", rows)), length=8, text_key="say", label_key="kind")
    assert sorted(open_all(config)[0]) == EXPECTED


def test_files_of_splits(tmp_path):
    write_lines(
        tmp_path / "train.jsonl", [{"text": text, "label": 0} for text in CATS] + [{"text": "x", "label": 1}] * 2
    )
    write_lines(tmp_path / "test.jsonl", [{"text": "bark", "label": 1}])
    data = open_data(TokensConfig(path=str(tmp_path), length=4, val_fraction=0.0), 0)
    assert rows_of(data.test) == [(padded("bark", 4), 1)]
    assert data.train.size == 6


def test_lines_of_a_text_file_are_texts(tmp_path):
    (tmp_path / "words.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n  two \nthree")
    rows, data = open_all(TokensConfig(path=str(tmp_path / "words.txt"), length=4), TOKENS)
    assert sorted(rows) == sorted(
        (row, row) for row in map(list, [padded(t, 4) for t in ("one", "two")] + [padded("thre", 4), padded("e", 4)])
    )
    assert data.num_classes == 257
    assert "3 texts are cut into 4 pieces of up to 4 tokens" in data.notes[0]


def test_pieces_of_a_text_are_not_torn_apart(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"{number:02}" * (1 + number))
    data = open_data(TokensConfig(path=str(tmp_path), length=4), 0, TOKENS)
    texts = {name: {bytes(row[:2]) for row, _ in rows_of(split)} for name, split in data.splits.items()}
    assert sum(map(len, texts.values())) == 20, "each text is in one split"
    assert all(texts.values())


def test_pieces_of_one_text_are_not_divided_to_validate_on(tmp_path):
    for number in range(2):  # of which one is held out to test on
        (tmp_path / f"{number}.txt").write_text("a text of several pieces")
    with pytest.raises(DataError, match=r"of one group, such as the pieces of one text.*set data\.val_fraction=0"):
        open_data(TokensConfig(path=str(tmp_path), length=4), 0, TOKENS)
    data = open_data(TokensConfig(path=str(tmp_path), length=4, val_fraction=0.0), 0, TOKENS)
    assert data.train.size == data.test.size == 6


def test_a_folder_of_any_depth_is_read_without_classes(tmp_path):
    write_folder(tmp_path / "a" / "b")
    rows, _ = open_all(TokensConfig(path=str(tmp_path), length=20), TOKENS)
    assert sorted(rows) == sorted((padded(text, 20), padded(text, 20)) for text in DOGS + CATS)


# ---- arrays ----

ROWS = np.array([[5, 3, 0, 0], [1, 2, 3, 4], [0, 0, 6, 1], [2, 2, 0, 0]])
LABELS = np.array([0, 1, 0, 1])


def write_arrays(file, **arrays):
    np.savez(file, **{"tokens": ROWS, "labels": LABELS, **arrays})
    return TokensConfig(path=str(file), val_fraction=0.0)


def test_arrays_have_their_padding_at_the_end(tmp_path):
    config = write_arrays(tmp_path / "t.npz", mask=(ROWS != 0).astype(np.uint8))
    rows, data = open_all(config)
    by_hand = [([5, 3, -1, -1], 0), ([1, 2, 3, 4], 1), ([6, 1, -1, -1], 0), ([2, 2, -1, -1], 1)]
    assert sorted(rows) == sorted(by_hand)
    assert data.shape == (4,)
    assert (data.vocabulary.size, data.vocabulary.mask) == (8, 7)


def test_a_number_may_be_the_padding_and_the_vocabulary_larger(tmp_path):
    np.savez(tmp_path / "t.npz", tokens=ROWS, labels=LABELS, test_tokens=ROWS[:1, :3], test_labels=LABELS[:1])
    config = TokensConfig(path=str(tmp_path / "t.npz"), padding=0, vocabulary=100, length=3, val_fraction=0.0)
    data = open_data(config, 0)
    assert rows_of(data.test) == [([5, 3, -1], 0)]
    assert rows_of(data.train)[1] == ([1, 2, 3], 1)
    assert data.vocabulary.size == 101


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
    assert open_data(config, 0).vocabulary.size == 8


def test_labels_may_be_missing_where_tokens_are_the_targets(tmp_path):
    np.savez(tmp_path / "t.npz", tokens=ROWS)
    config = TokensConfig(path=str(tmp_path / "t.npz"))
    assert open_data(config, 0, TOKENS).num_classes == 8
    with pytest.raises(DataError, match="has no array labels: it has tokens"):
        open_data(config, 0)


def test_a_source_of_ones_own_keeps_its_ids():
    tokens, _ = ArraySplit(np.array([[300, -1], [70_000, 2]]), np.array([0, 1])).read(tf.constant([1, 0], tf.int64))
    assert tokens.dtype == tf.int32
    assert tokens.numpy().tolist() == [[70_000, 2], [300, -1]]


# ---- files that are bad ----

GOOD = [{"text": text, "label": label} for label in "ab" for text in ("one", "two", "three")]
BAD_LINES = {
    "no JSON": ("{oops", "line 7 is no JSON"),
    "a list": ("[1]", "line 7 is no object of JSON"),
    "no text": ('{"label": "a"}', "line 7 has no key text, but label: data.text_key="),
    "a number": ('{"text": 3, "label": "a"}', "line 7 has the text 3, which is no text"),
    "no label": ('{"text": "one"}', "line 7 has no key label, and no class"),
    "an empty label": ('{"text": "one", "label": " "}', 'line 7 has the label " ", and no class'),
    "an empty text": ('{"text": "", "label": "a"}', "line 7 holds no token"),
    "half a character": ('{"text": "\\ud800", "label": "a"}', r"line 7 has a text with half a character, \\ud800"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_told_or_left_out(tmp_path, case):
    line, message = BAD_LINES[case]
    file = write_lines(tmp_path / "t.jsonl", GOOD)
    file.write_text(f"{file.read_text()}\n{line}\n")
    with pytest.raises(DataError, match=rf"t\.jsonl, {message}.*data.on_error=skip"):
        open_data(TokensConfig(path=str(file)), 0)
    data = open_data(TokensConfig(path=str(file), on_error="skip", val_fraction=0.0), 0)
    assert [example["name"] for example in data.skipped] == [f"{file}, line 7"]
    weights = [split.weights(tf.range(split.size, dtype=tf.int64)).numpy().sum() for split in data.splits.values()]
    assert sum(weights) == len(GOOD)


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
        open_data(TokensConfig(path=str(root)), 0)
    data = open_data(TokensConfig(path=str(root), on_error="skip"), 0)
    assert [example["name"] for example in data.skipped] == [str(root / "cat" / "bad")]


@pytest.mark.parametrize(
    ("labels", "message"),
    [("aax", "all texts are of one class"), ("abbx", "class a has a single text"), ("00022x", "of class 1: number")],
)
def test_a_class_that_lacks_texts_names_those_that_are_left_out(tmp_path, labels, message):
    ids = np.arange(len(labels) * 2).reshape(-1, 2)
    if labels.startswith("0"):
        padding = {"mask": np.array([[label != "x"] * 2 for label in labels]).astype(int)}
        numbers = [int(label.replace("x", "1")) for label in labels]
        np.savez(tmp_path / "t.npz", tokens=ids, labels=numbers, **padding)
        file, fault = tmp_path / "t.npz", "tokens, row 5 holds no token"
    else:
        rows = [{"text": f"t{place}", "label": label} for place, label in enumerate(labels) if label != "x"]
        file, fault = write_lines(tmp_path / "t.jsonl", [*rows, {"txt": "t"}]), f"line {len(labels)} has no key text"
    with pytest.raises(DataError, match=rf"{message}.*; 1 of {len(labels)} can't be used, the first: .*{fault}"):
        open_data(TokensConfig(path=str(file), on_error="skip"), 0)


def test_a_huge_line_is_cut(tmp_path):
    rows = [{"text": "x" * 3_000_000, "label": "a"}, {"text": "y", "label": "a"}, *[{"text": "z", "label": "b"}] * 2]
    rows, _ = open_all(TokensConfig(path=str(write_lines(tmp_path / "t.jsonl", rows)), length=5, val_fraction=0.0))
    assert (padded("xxxxx", 5), 0) in rows


def test_what_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "t.jsonl", GOOD)
    monkeypatch.setattr("accumtrain.data.text.texts.free_bytes", lambda: 100)
    with pytest.raises(DataError, match=r"its tokens take up to .* of memory are free: give a smaller file"):
        open_data(TokensConfig(path=str(file)), 0)


def test_other_structures_are_refused(tmp_path):
    (tmp_path / "lines.txt").write_text("one\ntwo")
    with pytest.raises(DataError, match="has a text a line, and no classes: give a folder with a sub-folder"):
        open_data(TokensConfig(path=str(tmp_path / "lines.txt")), 0)
    with pytest.raises(DataError, match=r"data\.path=.*absent can't be read: No such file"):
        open_data(TokensConfig(path=str(tmp_path / "absent")), 0)
    with pytest.raises(DataError, match=r"has 0 class folder\(s\) with texts"):
        open_data(TokensConfig(path=str(tmp_path)), 0)
    (tmp_path / "void" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"class folder .*a holds no file"):
        open_data(TokensConfig(path=str(tmp_path / "void")), 0)
    with pytest.raises(DataError, match="holds no file: give a file of texts"):
        open_data(TokensConfig(path=str(tmp_path / "void")), 0, TOKENS)


def test_texts_to_predict_are_found_by_a_glob(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    write_lines(tmp_path / "b.jsonl", [{"words": "three"}])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "any").write_text("four")
    keys = TokensConfig(path="of_the_run", text_key="words")
    assert [text.content for text in read_texts(str(tmp_path / "*"), keys)] == ["one", "two", "three", "four"]
    with pytest.raises(DataError, match="no such file or folder"):
        read_texts(str(tmp_path / "*.md"), keys)


@pytest.mark.parametrize("name", ["t.json", "T.CSV", "t.tsv"])
def test_the_lines_of_a_table_are_not_taken_for_texts(tmp_path, name):
    write_lines(tmp_path / name, GOOD)
    for reader in (TOKENS, CLASSES):
        with pytest.raises(
            DataError, match=r"file, whose lines are no texts: save a text a line as \.txt, or an object"
        ):
            open_data(TokensConfig(path=str(tmp_path / name)), 0, reader)
    with pytest.raises(DataError, match=r"whose lines are no texts"):
        read_texts(str(tmp_path / name), TokensConfig(path="of_the_run"))


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
        open_data(TokensConfig(path=str(tmp_path)), 0)


def test_a_class_of_a_test_folder_that_is_not_trained_is_refused(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / split)
    (tmp_path / "test" / "cow").mkdir()
    (tmp_path / "test" / "cow" / "0").write_text("moo")
    with pytest.raises(DataError, match=r"test has the class cow, which train/ lacks \(it has cat, dog\)"):
        open_data(TokensConfig(path=str(tmp_path)), 0)


def test_one_spelling_of_two_class_folders_is_one_class(tmp_path):
    for name in ("caf\u00e9", "cafe\u0301", "tea"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / str(number)).write_text(f"{name} {number}")
    assert open_data(TokensConfig(path=str(tmp_path), val_fraction=0.0), 0).class_names == ["caf\u00e9", "tea"]


@pytest.mark.parametrize("given", [{"padding": 0}, {"vocabulary": 9}, {"image_size": 9}, {"augment": "shift"}])
def test_keys_of_other_inputs_are_refused(tmp_path, given):
    (key,) = given
    with pytest.raises(ConfigError, match=rf"data\.{key}="):
        open_data(TokensConfig(path=str(write_folder(tmp_path / "pets")), **given), 0)


@pytest.mark.parametrize("buckets", [[4, 4], [8, 4], [0, 2]])
def test_buckets_increase(buckets):
    with pytest.raises(ConfigError, match=r"data\.buckets=.*must be increasing lengths of at least 1"):
        TokensConfig(path="texts", buckets=buckets).check()


def test_buckets_are_below_the_length(tmp_path):
    config = TokensConfig(path=str(write_folder(tmp_path / "pets")), length=8, buckets=[4, 8])
    with pytest.raises(ConfigError, match=r"data\.buckets=\[4,8\]: must be below the 8 tokens of an example"):
        open_data(config, 0)
