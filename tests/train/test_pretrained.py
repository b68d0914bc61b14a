"""Runs that begin with a published folder: they load and keep it, resume to the bit, and go out again."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.process.program import own_program
from tests.models.published.folders import CLASSES, DECODERS, MASKED, NEXT, write_folder
from tests.train.conftest import assert_error, assert_same_tensors, json_of, records_of, tensors_of

SHORT = ("data=table", "data.path=mails.csv", "data.length=12", "batch_size=8", "accum.steps=2", "train.steps=4")
MAILS = (*SHORT, "data.text_column=text", "data.label_column=kind", "optim=adamw", "optim.lr=1e-3", "log.every=1")
MODEL = ("model=pretrained", "model.path=bert")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a published BERT and a table of mails."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "bert", "bert")
    random = np.random.default_rng(0)
    words = np.array(["the", "cat", "sat", "a", "b"])
    rows = [f"{' '.join(random.choice(words, 2 + row % 9))},{'ab'[row % 2]}" for row in range(60)]
    (tmp_path / "mails.csv").write_text("\n".join(["text,kind", *rows]) + "\n")
    return tmp_path


def test_a_folder_and_a_table_become_a_run(here, command):
    answer = command(*MODEL, *MAILS, "run.name=one")
    assert answer.code == 0, answer
    assert "bert: 39 of 41 variables loaded" in answer.out.replace("\n", " ")
    report, config = json_of(here / "runs/one", "weights"), yaml.safe_load((here / "runs/one/config.yaml").read_text())
    assert [path.rpartition("/")[2] for path in report["left"]] == ["bias", "kernel"]
    assert config["model"]["architecture"] == json.loads((here / "bert/config.json").read_text())
    assert config["data"]["tokenizer"] == "bert"
    shutil.rmtree(here / "bert")  # neither of the two needs it
    for job in (("job=export",), ("job=predict", "predict.input=mails.csv")):
        answer = command("run.name=one", *job)
        assert answer.code == 0, answer


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("model.lora_rank=2",), ("model.memory=recompute", "model.dropout=0.3")])
def test_a_run_resumes_to_the_bit(keys, here, command):
    run = (*MODEL, *MAILS, *keys, "schedule=constant")
    for name, steps in (("whole", 4), ("parts", 2), ("parts", 4)):
        answer = command(*run, f"run.name={name}", f"train.steps={steps}")
        assert answer.code == 0, answer
    for part in ("model/", "optimizer/"):
        parts, whole = (tensors_of(here / "runs" / name / "checkpoints/step-4", part) for name in ("parts", "whole"))
        assert_same_tensors(parts, whole)
    assert records_of(here / "runs/whole", "train") == records_of(here / "runs/parts", "train")


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("model.lora_rank=2",)])
@pytest.mark.parametrize("family", ["bert", *DECODERS])
def test_an_export_goes_in_again_with_its_head(family, keys, here, command):
    if family != "bert":
        write_folder(here / family, family)
    assert command("model=pretrained", f"model.path={family}", *MAILS, *keys, "run.name=one").code == 0
    answer = command("run.name=one", "job=export", "export.format=safetensors", "export.output=out")
    assert answer.code == 0, answer
    config = json.loads((here / "out/config.json").read_text())
    assert (config["id2label"], config["problem_type"]) == ({"0": "a", "1": "b"}, "single_label_classification")
    assert "lora" not in " ".join(load_file(here / "out/model.safetensors"))
    first = command("model=pretrained", "model.path=out", *MAILS, "run.name=two", "train.steps=1", "optim.lr=1e-12")
    assert first.code == 0, first
    assert json_of(here / "runs/two", "weights")["left"] == {}
    before, after = (json_of(here / f"runs/{name}")["test"]["loss"] for name in ("one", "two"))
    assert abs(before - after) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_of_next_tokens_goes_out(family, here, command):
    write_folder(here / family, family, head=NEXT)
    given = ("model=pretrained", f"model.path={family}", *SHORT, "data.text_column=text", "task=next_token")
    assert command(*given, "run.name=one").code == 0
    assert json_of(here / "runs/one", "weights")["left"] == {}
    for kind in ("safetensors", "savedmodel"):
        answer = command("run.name=one", "job=export", f"export.format={kind}", f"export.output={kind}")
        assert answer.code == 0, answer
    config, before = (json.loads((here / folder / "config.json").read_text()) for folder in ("safetensors", family))
    assert config["architectures"] == before["architectures"]
    tensors = [load_file(here / folder / "model.safetensors") for folder in ("safetensors", family)]
    assert {name: array.shape for name, array in tensors[0].items()} == {
        name: array.shape for name, array in tensors[1].items()
    }
    (here / "asked.txt").write_text("the cat\n")
    assert command("run.name=one", "job=predict", "predict.input=asked.txt", "predict.tokens=3").code == 0


@pytest.mark.slow
def test_numbers_of_a_decoder_do_not_go_out(here, command):
    write_folder(here / "gpt2", "gpt2")
    rows = (here / "mails.csv").read_text().replace(",a", ",1.5").replace(",b", ",2.5")
    (here / "mails.csv").write_text(rows)
    given = ("model=pretrained", "model.path=gpt2", *MAILS, "task=regress", "run.name=one")
    assert command(*given).code == 0
    refused = command("run.name=one", "job=export", "export.format=safetensors")
    assert_error(refused, ConfigError, "the last layer of GPT2 has no bias, so it can't tell numbers in your units")


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("model.lora_rank=2",), ("model.memory=recompute",)])
def test_two_replicas_and_jax_train_the_same(keys, here):
    pytest.importorskip("jax")
    devices = {"one": (), "two": ("device=mirrored", "device.virtual=2"), "jax": ("device.runtime=jax",)}
    for name, device in devices.items():
        given = (*MODEL, *MAILS, *keys, *device, "precision=float64", "model.dropout=0", f"run.name={name}")
        subprocess.run([*own_program(), *given], cwd=here, check=True, stdout=subprocess.DEVNULL)
    losses = {name: json_of(here / f"runs/{name}")["test"]["loss"] for name in devices}
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-12)
    assert losses["jax"] == pytest.approx(losses["one"], rel=1e-12)


@pytest.mark.slow
def test_the_import_is_checked_with_jax(here, command):
    pytest.importorskip("jax")
    assert command(*MODEL, *MAILS, "job=verify", "device.runtime=jax", "model.dropout=0").code == 0
    (report,) = here.glob("runs/trials/verify-*/verify.json")
    rows = {row["check"]: row for row in json.loads(report.read_text())["checks"]}
    assert rows["hidden states against those of the files, in float64"]["passed"]


@pytest.mark.slow
def test_texts_of_other_lengths_are_measured_and_answered(here, command):
    """Up to the positions of the model."""
    cut = [key.replace("length=12", "length=8") for key in MAILS]
    assert command(*MODEL, *cut, "run.name=one").code == 0
    trained = json_of(here / "runs/one")["test"]
    assert command("run.name=one", "job=evaluate", "data.length=8").code == 0
    same = json_of(here / "runs/one", "evaluation")
    assert same["test"]["loss"] == trained["loss"]
    answer = command("run.name=one", "job=evaluate", "data.length=40")
    assert answer.code == 0, answer
    longer = json_of(here / "runs/one", "evaluation-length40")
    counts = [sum(row["examples"] for row in each["classes"]) for each in (same, longer)]
    assert (longer["own_data"], counts[1]) == (True, counts[0])
    assert longer["test"]["loss"] != same["test"]["loss"]
    assert "on the test examples of mails, of up to 40 tokens" in answer.out.replace("\n", " ")
    assert command("run.name=one", "job=predict", "predict.input=mails.csv", "data.length=40").code == 0
    refused = command("run.name=one", "job=evaluate", "data.length=41")
    assert_error(refused, ConfigError, "positions for 40 tokens; give data.length=40 or less")
    assert command("run.name=one", "job=evaluate", "data.length=7").code == 0
    assert json_of(here / "runs/one", "evaluation-length7")["test"]["loss"] != same["test"]["loss"]
    refused = command("run.name=one", "job=evaluate", "data.length=null")
    assert_error(refused, CheckpointError, "data.length=8 there and null here")
    refused = command("run.name=one", "job=predict", "predict.input=mails.csv", "data.length=null")
    assert_error(refused, ConfigError, "with data.length=8")
    (here / "other.csv").write_text((here / "mails.csv").read_text().replace("the", "cat"))
    assert command("run.name=one", "job=evaluate", "data.path=other.csv", "data.length=40").code == 0
    assert (here / "runs/one/evaluation-other.csv-length40.json").exists()
    (here / "runs/one/inputs.json").unlink()
    assert command("run.name=one", "job=evaluate", "data.length=7").code == 0
    assert command("run.name=one", "data.length=40", *MODEL, *MAILS[:2]).code != 0, "a training goes on as it began"


@pytest.mark.slow
def test_adapters_go_out_and_in_again(here, command):
    adapted = (*MODEL, *MAILS, "model.lora_rank=2")
    assert command(*adapted, "run.name=one").code == 0
    answer = command("run.name=one", "job=export", "export.format=peft", "export.output=adapters")
    assert answer.code == 0, answer
    again = command(*adapted, "run.name=two", "model.weights=adapters", "train.steps=1", "optim.lr=1e-12")
    assert again.code == 0, again
    before, after = (json_of(here / f"runs/{name}")["test"]["loss"] for name in ("one", "two"))
    assert abs(before - after) < 1e-6
    assert command(*MODEL, *MAILS, "run.name=whole", "train.steps=1").code == 0
    assert_error(command("run.name=whole", "job=export", "export.format=peft"), ConfigError, "has no adapters")


@pytest.mark.slow
def test_the_head_of_masked_tokens_is_that_of_the_file(here, command):
    write_folder(here / "masked", "roberta", head=MASKED)
    (here / "texts").mkdir()
    for name in ("one", "two", "three", "four"):
        (here / f"texts/{name}.txt").write_text("the cat sat " * 60)
    data = (
        "task=masked_tokens",
        "data=texts",
        "data.path=texts",
        "task.share=0.7",
        "data.length=12",
        "train.steps=2",
        "batch_size=8",
    )
    answer = command("model=pretrained", "model.path=masked", *data, "run.name=one")
    assert answer.code == 0, answer
    assert json_of(here / "runs/one", "weights")["left"] == {}
    refused = command("run.name=one", "job=evaluate", "data.length=3")
    assert_error(refused, ConfigError, "data.length=3: the run was trained on up to 8 masks")


@pytest.mark.slow
def test_images_are_those_of_the_training(here, command):
    write_folder(here / "vit", "vit", head=CLASSES)
    data = ("data=synthetic", "data.num_classes=3", "data.train_examples=32", "data.test_examples=8", "batch_size=8")
    answer = command("model=pretrained", "model.path=vit", *data, "train.steps=1", "run.name=one", "data.augment=none")
    assert answer.code == 0, answer
    kept = yaml.safe_load((here / "runs/one/config.yaml").read_text())["data"]
    assert (kept["image_size"], kept["mean"], kept["std"]) == (16, [0.5] * 3, [0.5] * 3)
    assert json_of(here / "runs/one", "weights")["left"] == {}, "three classes, as in the file"


@pytest.mark.parametrize(
    ("break_it", "error", "words"),
    [
        (lambda folder: shutil.rmtree(folder), ConfigError, "model.path=bert is no folder"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99),
            CheckpointError,
            "bert/model.safetensors",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), ConfigError, "data.tokenizer=bert"),
    ],
)
def test_a_bad_folder_is_a_message(break_it, error, words, here, command):
    break_it(here / "bert")
    assert_error(command(*MODEL, *MAILS, "run.name=one"), error, words)
    assert not (here / "runs/one/checkpoints").exists()


def test_a_given_key_stays(here, command):
    shutil.copyfile(here / "bert/tokenizer.json", here / "mine.json")
    assert command(*MODEL, *MAILS, "run.name=one", "data.tokenizer=mine.json", "train.steps=1").code == 0
    assert yaml.safe_load((here / "runs/one/config.yaml").read_text())["data"]["tokenizer"] == "mine.json"


def test_a_folder_in_the_place_of_a_choice_is_told(here, command):
    assert_error(command("model=bert"), ConfigError, "model=pretrained model.path=bert")
