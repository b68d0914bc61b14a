"""Runs on texts from the first update to the export, by a program with a model of its own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_text_vocabulary import write_tokenizer
from tests.data.word_tokenizer import CLS_PAIR, make_tokenizer, save, template
from tests.programs import run_python

PROGRAM = Path(__file__).parent / "bag_of_tokens.py"
TRAINING = (
    *(
        "data=table",
        "data.path=pets.jsonl",
        "data.text_column=text",
        "model=bag",
        "optim=adam",
        "optim.lr=0.05",
        "schedule=constant",
    ),
    *("batch_size=16", "accum.steps=2", "data.length=32", "data.by_length=true", "data.buckets=[8,16]"),
)
WORDS = {"cat": ["purr", "meow", "fur"], "dog": ["bark", "leash", "bone"]}
pytestmark = pytest.mark.slow


def call(folder, *arguments, code=0):
    done = run_python(PROGRAM, *arguments, cwd=folder)
    assert done.returncode == code, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def write_pets(file, count, seed=0):
    random = np.random.default_rng(seed)
    lines = [
        json.dumps({"text": " ".join(random.choice(WORDS[kind], random.integers(1, 5))), "label": kind})
        for _ in range(count)
        for kind in WORDS
    ]
    file.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_pets(folder / "pets.jsonl", 60)
    call(folder, *TRAINING, "train.steps=30", "run.name=one")
    return folder


def predict(folder, text, *more, run="one"):
    output = folder / f"{run}.jsonl"
    call(folder, "job=predict", f"run.name={run}", f"predict.input={text}", f"predict.output={output}", *more)
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_it_learns_and_a_continued_run_has_the_same_bits(folder):
    assert json.loads((folder / "runs/one/summary.json").read_text())["test"]["accuracy"] > 0.9
    call(folder, *TRAINING, "train.steps=13", "run.name=two")
    assert "update 30/30" in call(folder, *TRAINING, "train.steps=30", "run.name=two")
    (folder / "new.txt").write_text("purr bark\nfur")
    first, second = (predict(folder, "new.txt", "state=last", run=run) for run in ("one", "two"))
    assert first == second


def test_lines_files_and_folders_are_predicted_and_named(folder):
    (folder / "lines.txt").write_text("purr meow\n\nbark bone leash\n")
    found = predict(folder, "lines.txt")
    assert [(record["file"], record["class"]) for record in found] == [
        ("lines.txt, line 1", "cat"),
        ("lines.txt, line 3", "dog"),
    ]
    (folder / "lines.jsonl").write_text('{"text": "purr meow"}\n{"text": "bark bone leash"}')
    assert [record["top"] for record in predict(folder, "lines.jsonl")] == [record["top"] for record in found]
    (folder / "files").mkdir()
    (folder / "files" / "a").write_text("purr meow")
    (folder / "files" / "b").write_bytes(b"\xff")
    assert "files/b is not UTF-8" in call(
        folder, "job=predict", "run.name=one", "predict.input=files", "data.on_error=skip"
    )
    np.savez(folder / "ids.npz", tokens=np.frombuffer(b"purr meow", np.uint8)[None])
    (alone,) = predict(folder, "ids.npz")
    assert alone["class"] == "cat"
    assert alone["probability"] == pytest.approx(found[0]["probability"], rel=1e-5)
    refused = call(folder, "job=predict", "run.name=one", "predict.input=absent", code=3)
    assert "predict.input=absent: no such file or folder" in refused


def test_an_export_takes_tokens_and_has_their_vocabulary(folder):
    assert "int32 [N, 32]" in call(folder, "job=export", "run.name=one")
    vocabulary = json.loads((folder / "runs/one/savedmodel/assets/vocabulary.json").read_text())
    assert vocabulary == {"size": 257, "mask": 256, "special": [256], "tokenizer": "bytes"}


def test_it_is_evaluated_on_its_own_and_on_other_texts(folder):
    call(folder, "job=evaluate", "run.name=one")
    own = json.loads((folder / "runs/one/evaluation.json").read_text())
    assert own["test"]["accuracy"] == json.loads((folder / "runs/one/summary.json").read_text())["test"]["accuracy"]
    write_pets(folder / "others.jsonl", 10, seed=1)
    call(folder, "job=evaluate", "run.name=one", "data.path=others.jsonl")
    other = json.loads((folder / "runs/one/evaluation-others.jsonl.json").read_text())
    assert (other["own_data"], other["test"]["accuracy"] > 0.8) == (False, True)
    assert sum(row["examples"] for row in other["classes"]) == 20
    shown = call(folder, "job=evaluate", "run.name=one", "data.length=20", code=5)
    assert "data.length=32 there and 20 here" in shown


def test_a_check_names_lengths_classes_and_repeats(folder):
    rows = [("a b", "x"), ("a b", "y"), *[(f"text {number}", "xy"[number % 2]) for number in range(20)]]
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    (folder / "checked.jsonl").write_text("\n".join([*lines, '{"text": "", "label": "x"}']))
    table = ("data=table", "data.path=checked.jsonl", "data.text_column=text")
    shown = call(folder, "job=check", "run.name=checked", *table, code=3)
    found = json.loads((folder / "runs/trials/check-checked/check.json").read_text())
    assert found["bad"]["examples"][0]["name"] == "checked.jsonl, row 23"
    assert found["two_classes"]["count"] == 1
    assert min(found[split]["tokens"]["min"] for split in ("train", "test")) == 3
    assert "texts of each class" in shown
    assert "1 text in two classes, token for token" in shown


def test_a_moved_run_needs_no_file_of_its_tokenizer(folder, tmp_path):
    pytest.importorskip("tokenizers")
    file = write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "t.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "label": text[:3]}) for text in ["the cat", "cat sat"] * 10)
    )
    training = [*TRAINING, "data.path=t.jsonl", "data.buckets=[]", f"data.tokenizer={file}", "run.name=words"]
    call(tmp_path, *training, "train.steps=2")
    other = write_tokenizer(tmp_path / "other.json", mask="<mask>")
    assert "the data is not what" in call(tmp_path, *training, f"data.tokenizer={other}", "train.steps=4", code=3)
    shutil.move(tmp_path / "runs", tmp_path / "elsewhere")
    file.unlink()
    (tmp_path / "new.txt").write_text("cat")
    call(tmp_path, "job=predict", "run.dir=elsewhere", "run.name=words", "predict.input=new.txt")
    call(tmp_path, "job=export", "run.dir=elsewhere", "run.name=words")
    kept = json.loads((tmp_path / "elsewhere/words/savedmodel/assets/vocabulary.json").read_text())
    assert json.loads(kept["tokenizer"])["model"]["vocab"]["sat"] == 3


PAIRS = (
    *("data=table", "data.path=rows.csv", "data.text_column=[one,other]", "data.length=12", "data.by_length=true"),
    *("data.buckets=[9]", "model=encoder_tiny", "optim=adam", "schedule=constant"),
    *("batch_size=16", "accum.steps=2"),
)


@pytest.mark.parametrize("columns", ["[one,other]", "one"])
def test_a_run_with_special_tokens_continues_and_copies_the_cells_of_a_table(tmp_path, columns):
    save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json")
    random = np.random.default_rng(0)
    rows = [[" ".join(random.choice(list("abc"), random.integers(1, 8))) for _ in "ab"] for _ in range(80)]
    lines = [f"{number},{one},{other},{one[0]}" for number, (one, other) in enumerate(rows)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,one,other,label", *lines]))
    training = [*PAIRS, f"data.text_column={columns}", "data.label_column=label", "data.tokenizer=tokenizer.json"]
    call(tmp_path, *training, "train.steps=6", "run.name=whole")
    call(tmp_path, *training, "train.steps=3", "run.name=two")
    call(tmp_path, *training, "train.steps=6", "run.name=two")
    whole, two = (predict(tmp_path, "rows.csv", "state=last", run=run) for run in ("whole", "two"))
    assert whole == two
    assert [record["id"] for record in whole] == [str(number) for number in range(80)]
    assert whole[7]["label"] == rows[7][0][0]
    call(tmp_path, "job=evaluate", "run.name=two")
    assert json.loads((tmp_path / "runs/two/evaluation.json").read_text())["own_data"]
    shown = call(tmp_path, "job=export", "run.name=two")
    assert ("int32 [N, 2, 12]" if columns != "one" else "int32 [N, 12]") in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("device.xla=true",), "data.buckets: batches differ in length, and XLA compiles for one"),
        (("device.runtime=jax",), "device.runtime=jax: data.buckets gives batches that differ in length"),
    ],
)
def test_buckets_are_refused_where_one_shape_is_compiled(folder, given, message):
    assert message in call(folder, *TRAINING, *given, code=2)


def test_replicas_may_have_batches_of_different_lengths(folder):
    """And compute the same update as one."""
    more = ("train.steps=3", "checkpoint.keep=1", "data.val_fraction=0.1")
    call(folder, *TRAINING, *more, "run.name=alone")
    call(folder, *TRAINING, *more, "device=mirrored", "device.virtual=2", "run.name=both")
    (folder / "new.txt").write_text("purr bark\nfur")
    first, second = (predict(folder, "new.txt", "state=last", run=run) for run in ("alone", "both"))
    for one, other in zip(first, second, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
