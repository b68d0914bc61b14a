"""task=masked_tokens: its batches, its means over tokens, and what runs of it tell."""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.backprop.mode import EVALUATION
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Source
from accumtrain.devices.resolve import resolve_devices
from accumtrain.dispatch import run
from accumtrain.engine import losses
from accumtrain.engine.step import Step
from accumtrain.errors import DataError, VerificationError
from accumtrain.export import reload
from accumtrain.tasks.objective import open_objective
from accumtrain.tasks.texts import tokens as of_tokens
from accumtrain.train.build import build_window
from accumtrain.train.evaluator import build_evaluator
from tests.tasks import texts
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

TASK = ("task=masked_tokens", "data=sentences", "model=mixer")
SMALL = (*TASK, "batch_size=32", "accum.steps=2", "optim=adam", "optim.lr=0.02", "schedule=constant", "run.name=one")
POSITIONS = max(1, round(0.15 * texts.LENGTH))


@pytest.fixture
def config(compose):
    return lambda *overrides: compose(*TASK, "batch_size=48", "optim=adam", *overrides)


def taken(batches, count):
    """Some batches as one, of NumPy arrays."""
    found = list(batches.take(count).as_numpy_iterator())
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *found)


def assert_same(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)


# ---- batches ----


def test_a_batch_has_tokens_places_ids_and_a_weight_for_each_place(config):
    data = open_objective(config()).data
    batch = taken(make_train_batches(data, batch=48, first=0, seed=0), 1)
    tokens, positions = batch["inputs"]["tokens"], batch["inputs"]["positions"]
    assert (tokens.shape, positions.shape, batch["targets"].shape) == (
        (48, texts.LENGTH),
        (48, POSITIONS),
        (48, POSITIONS),
    )
    assert {each.dtype for each in (tokens, positions, batch["targets"])} == {np.dtype(np.int32)}
    assert batch["weight"].dtype == np.float32
    np.testing.assert_array_equal(batch["weight"], (batch["targets"] >= 0).sum(axis=1))
    assert len(set(batch["weight"].tolist())) > 1, "sentences differ in length"


def test_half_lives_count_the_mean_number_of_places(config):
    objective = open_objective(config())
    size = objective.stored.train.size
    told = taken(make_train_batches(objective.data, batch=size, first=0, seed=0), 1)["weight"]
    assert objective.told_per_example == told.sum(dtype=np.float64) / size > 1


def test_the_stream_is_the_same_in_micro_batches_and_after_a_stop(config):
    data = open_objective(config()).data
    whole = taken(make_train_batches(data, batch=48, first=0, seed=0), 8)
    assert_same(whole, taken(make_train_batches(data, batch=12, first=0, seed=0), 32))
    later = tf.nest.map_structure(lambda array: array[96:], whole)
    assert_same(later, taken(make_train_batches(data, batch=48, first=96, seed=0), 6))


def test_masks_are_drawn_anew_in_each_epoch_and_the_same_in_each_evaluation(config):
    data = open_objective(config()).data
    size = data.train.size
    of_epochs = [taken(make_train_batches(data, batch=size, first=first, seed=0), 1) for first in (0, size)]
    rows = [{tuple(row) for row in batch["inputs"]["positions"]} for batch in of_epochs]
    assert len(rows[0] & rows[1]) < len(rows[0])
    whole = taken(make_eval_batches(data, batch=50), 1)
    parts = taken(make_eval_batches(data, batch=16), 4)
    assert parts["weight"][50:].tolist() == [0.0] * 14, "copies that fill up the last batch"
    assert_same(whole, tf.nest.map_structure(lambda array: array[:50], parts))


# ---- losses ----


def reference_of(ids, logits):
    """Loss and accuracy, the means over all tokens that are to be told, by a loop in Python."""
    losses, right = [], []
    for row, scores in zip(ids.tolist(), logits, strict=True):
        for number, own in zip(row, scores.astype(np.float64), strict=True):
            if number >= 0:
                total = math.fsum(math.exp(value - own.max()) for value in own)
                losses.append(math.log(total) + float(own.max() - own[number]))
                right.append(own.argmax() == number)
    return math.fsum(losses) / len(losses), float(np.mean(right))


def test_values_of_examples_are_means_over_their_places():
    random = np.random.default_rng(0)
    logits = random.normal(size=[5, 4, 9])
    ids = random.integers(0, 9, [5, 4])
    ids[1, 2:], ids[2] = -1, -1
    arguments = tf.constant(ids, tf.int32), tf.constant(logits)
    for row, (loss, accuracy) in enumerate(
        zip(of_tokens.token_cross_entropy(*arguments), of_tokens.token_accuracy(*arguments), strict=True)
    ):
        expected = (0.0, 0.0) if row == 2 else reference_of(ids[row : row + 1], logits[row : row + 1])
        assert (float(loss), float(accuracy)) == pytest.approx(expected, rel=1e-14)


def test_a_perplexity_beyond_all_numbers_is_infinite():
    found = [of_tokens.perplexity(loss) for loss in (0.0, 1.0, 1000.0, math.inf)]
    assert found == [1.0, math.e, math.inf, math.inf]
    assert math.isnan(of_tokens.perplexity(math.nan))


# ---- means over tokens ----


def updated(config, count=3):
    """The scalars of some updates in float64, and the weights after each."""
    objective, strategy = open_objective(config), tf.distribute.get_strategy()
    data, window = objective.data, build_window(config, objective, count, strategy)
    step, found = Step(window), []
    batches = iter(make_train_batches(data, batch=config.batch_size // config.accum.count, first=0, seed=0))
    weights = [[variable.numpy() for variable in window.variables_]]
    for _ in range(count):
        step.accumulate(batches, config.accum.count)
        found.append({name: float(value) for name, value in step.commit().items()})
        weights.append([variable.numpy() for variable in window.variables_])
    return found, weights, window.model, data


def assert_near(one, other):
    for own, theirs in zip(one, other, strict=True):
        assert own.dtype == np.float64
        np.testing.assert_allclose(theirs, own, rtol=0, atol=1e-12 * np.abs(own).max())


def test_micro_batches_learn_what_one_batch_does(config):
    """In float64, with another number of masked tokens in each micro-batch."""
    whole, weights, model, data = updated(config("precision=float64"))
    stream = make_train_batches(data, batch=6, first=0, seed=0)
    of_micro_batches = {batch["weight"].sum() for batch in stream.take(24).as_numpy_iterator()}
    assert len(of_micro_batches) > 3
    for steps in (2, 8):
        split, others, *_ = updated(config("precision=float64", f"accum.steps={steps}"))
        for one, other in zip(whole, split, strict=True):
            assert {name: other[name] for name in ("weight", "examples")} == {"weight": one["weight"], "examples": 48.0}
            assert [other[name] for name in ("loss", "token_accuracy", "grad_norm")] == pytest.approx(
                [one[name] for name in ("loss", "token_accuracy", "grad_norm")], rel=1e-12
            )
        assert_near(weights[-1], others[-1])
    for variable, first in zip(model.trainable_variables, weights[0], strict=True):
        variable.assign(first)
    batch = taken(make_train_batches(data, batch=48, first=0, seed=0), 1)
    logits = model(batch["inputs"], EVALUATION).numpy()
    assert whole[0]["weight"] == (batch["targets"] >= 0).sum()
    assert (whole[0]["loss"], whole[0]["token_accuracy"]) == pytest.approx(
        reference_of(batch["targets"], logits), rel=1e-12
    )


@pytest.mark.slow
def test_two_replicas_learn_what_one_does(compose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exact = (*SMALL, "train.steps=6", "eval.every=3", "log.every=1", "precision=float64", "accum.dtype=float64")
    run(compose(*exact, "run.dir=alone"))
    run_program(*exact, "run.dir=mirrored", "device=mirrored", "device.virtual=2")
    alone, together = (tensors_of(Path(name, "one/checkpoints/step-6")) for name in ("alone", "mirrored"))
    kept = {name: value for name, value in alone.items() if value.dtype == np.float64}
    assert kept
    for name, own in kept.items():
        np.testing.assert_allclose(together[name], own, rtol=0, atol=1e-12 * np.abs(own).max(), err_msg=name)
    for one, other in zip(*(records_of(Path(name, "one")) for name in ("alone", "mirrored")), strict=True):
        assert_near_records(one, other, rel=1e-12)


def assert_near_records(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name] == (value if isinstance(value, str) else pytest.approx(value, **tolerance)), name


def evaluated(config, batch):
    objective = open_objective(config)
    devices = resolve_devices(config.device)
    window = build_window(config, objective, 1, devices.strategy)
    evaluator = build_evaluator(config, objective, "test", batch, window.model, devices.runtime)
    found = evaluator(stop=lambda: False, report=lambda done, batches: None)
    return {name: value for name, value in found.items() if name != "seconds"}, window.model, objective.data


def test_an_evaluation_is_that_of_all_tokens_for_every_batch(config):
    given = config("precision=float64")
    found, model, data = evaluated(given, 16)
    batch = taken(make_eval_batches(data, batch=50), 1)
    loss, accuracy = reference_of(batch["targets"], model(batch["inputs"], EVALUATION).numpy())
    expected = {"loss": loss, "token_accuracy": accuracy, "perplexity": math.exp(loss), "examples": 50}
    assert found == pytest.approx(expected, rel=1e-12)
    for size in (7, 50):
        assert evaluated(given, size)[0] == pytest.approx(expected, rel=1e-12)


def open_with_padding(config, seed):
    """The fourth of ten examples, and all from the seventh on, are padding alone."""
    tokens = texts.encode(texts.write_sentences(10, seed))
    tokens[3], tokens[6:] = -1, -1
    split = texts.Tokens(tokens)
    return Source(split, split, texts.VOCABULARY.size, inputs=accumtrain.Tokens((texts.LENGTH,), texts.VOCABULARY))


def test_examples_of_padding_alone_count_in_nothing(compose):
    accumtrain.register_data("with_padding", open_with_padding, targets="tokens")
    given = compose(TASK[0], "data=with_padding", TASK[2], "batch_size=10", "precision=float64")
    found, model, data = evaluated(given, 10)
    batch = taken(make_eval_batches(data, batch=10), 1)
    assert (batch["weight"] > 0).tolist() == [True] * 3 + [False] + [True] * 2 + [False] * 4
    assert found["examples"] == 5
    loss, _ = reference_of(batch["targets"], model(batch["inputs"], EVALUATION).numpy())
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    (update,), *_ = updated(given, 1)
    assert (update["examples"], update["finite"]) == (5.0, True)


def test_a_guess_is_the_loss_of_the_shares_of_tokens(config):
    given = config("data.test_examples=40")
    sentences = texts.write_sentences(192, 0), texts.write_sentences(40, 1)
    shares = Counter("".join(sentences[0]).encode())
    total = sum(shares.values())
    expected = [-np.mean([math.log(shares[token] / total) for token in "".join(part).encode()]) for part in sentences]
    found = open_objective(given).guess()
    assert [found["train"], found["test"]] == pytest.approx(expected, rel=1e-12)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task.masked=0.8", "task.random=0.3"), "task.masked=0.8 and task.random=0.3: must be at most 1 together"),
        (("task.share=0.0",), "task.share=0.0: must be above 0 and at most 1"),
        (("data=digits",), "task=masked_tokens: data=digits has no tokens for it; choose"),
        (
            ("loss=cross_entropy",),
            "loss=cross_entropy: takes classes, and the targets of task=masked_tokens are tokens",
        ),
        (("eval.metrics=[accuracy]",), "eval.metrics: accuracy takes classes"),
    ],
)
def test_what_does_not_go_with_it_is_refused(command, overrides, message):
    answer = command(*SMALL, *overrides)
    assert (answer.code, message in answer.err) == (2, True), answer.err


def test_data_without_a_vocabulary_is_refused(compose):
    def opened(config, seed):
        split = texts.Tokens(texts.encode(texts.write_sentences(4, 0)))
        return Source(split, split, 257, inputs=accumtrain.Arrays((texts.LENGTH,)))

    accumtrain.register_data("without_vocabulary", opened, targets="tokens")
    with pytest.raises(DataError, match="examples of without_vocabulary are no splits of tokens"):
        open_objective(compose(TASK[0], "data=without_vocabulary", TASK[2]))


# ---- the jobs of a run ----


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory, registered):
    folder = tmp_path_factory.mktemp("trained")
    run(compose(*SMALL, "train.epochs=60", "data.val_fraction=0.1", f"run.dir={folder}"))
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """Copies the run into runs/ of an empty folder, in which the test is, beside lines of text."""
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("the c[MASK]t sees it\n\nno do[MASK] e[MASK]ts hay\n")
    return shutil.copytree(trained, tmp_path / "runs") / "one"


def run_program(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "tests.tasks.texts", *arguments], env=environment, check=True)


@pytest.mark.slow
def test_it_learns_far_beyond_the_shares_of_tokens(trained):
    summary = json_of(trained / "one", "summary")
    assert summary["best_by"] == {"metric": "loss", "higher_is_better": False}
    assert summary["test"]["loss"] < 0.5
    assert summary["test"]["perplexity"] == math.exp(summary["test"]["loss"])
    assert [record["examples"] for record in records_of(trained / "one", "test")] == [50]


@pytest.mark.slow
def test_an_evaluation_tells_the_tokens_that_make_up_the_loss(here):
    found = accumtrain.load_run("one").evaluate()
    assert found["test"] == json_of(here, "summary")["test"]
    positions = sum(each["positions"] for each in found["tokens"])
    assert sum(each["positions"] * each["loss"] for each in found["tokens"]) / positions == pytest.approx(
        found["test"]["loss"], rel=1e-5
    )
    assert sum(each["positions"] * each["accuracy"] for each in found["tokens"]) / positions == pytest.approx(
        found["test"]["token_accuracy"], rel=1e-5
    )
    parts = [each["part_of_loss"] for each in found["tokens"]]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) == pytest.approx(1.0)


@pytest.mark.slow
def test_masks_in_lines_are_told(here, command):
    answer = command("job=predict", *TASK, "run.name=one", "predict.input=lines.txt", "predict.top=2")
    assert answer.code == 0, answer.err
    first, second = map(json.loads, (here / "predictions.jsonl").read_text().splitlines())
    assert [first["file"], second["file"]] == ["lines.txt, line 1", "lines.txt, line 3"]
    assert [each["token"] for each in (*first["masks"], *second["masks"])] == ["a", "g", "a"]
    assert [len(each["top"]) for each in second["masks"]] == [2, 2]
    with (here / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["token"], row["token_2"]) for row in rows] == [("a", ""), ("g", "a")]
    loaded = accumtrain.load_run("one").predict("lines.txt")
    assert [record["masks"][0]["token"] for record in loaded.records] == ["a", "g"]
    np.testing.assert_allclose(loaded.answers.sum(axis=-1), [[1, 0, 0, 0], [1, 1, 0, 0]], atol=1e-6)


UNTOLD = [
    (b"no mask", "has 0 [MASK]: write 1 to 4 of them"),
    (b"[MASK]" * 5, "has 5 [MASK]: write 1 to 4 of them"),
    (b"[MASK]" + b"a" * 24, "has 25 tokens, and the model takes 24: shorten it"),
    (b"[MASK] \xff", "is not UTF-8: byte 0xff at 7: save it as UTF-8"),
]


@pytest.fixture
def opened(config):
    """Opens what predict.input names, or an array, for a run of texts that is not trained."""
    inputs = open_objective(config()).trained_on.inputs

    def open_given(given):
        if isinstance(given, np.ndarray):
            return inputs.open_array(given, config().data)
        return inputs.open_named([given], config().data, "predict.input")

    return open_given


@pytest.mark.parametrize(("content", "message"), UNTOLD)
def test_lines_that_can_not_be_told_are_named_and_the_others_are_told(opened, tmp_path, content, message):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a [MASK]\n" + content + b"\n")
    given = opened(str(file))
    assert {position: str(fault).split(": ", 1)[0] for position, fault in given.data.test.skipped.items()} == {
        1: f"{file}, line 2 {message.split(': ', 1)[0]}"
    }
    file.write_bytes(content)
    with pytest.raises(DataError) as refused:
        opened(str(file))
    assert f"none of 1 texts can be used, the first: {file}, line 1 {message}" in str(refused.value)
    assert "data.on_error" not in str(refused.value), "nothing would be left"


def test_rows_of_tokens_without_masks_or_with_too_many_are_named(opened, tmp_path):
    rows = np.full([4, texts.LENGTH], 97)
    rows[1, 5], rows[2, :5], rows[3] = 256, 256, -1
    data = opened(rows)
    assert {position: fault.reason for position, fault in data.test.skipped.items()} == {
        0: "has 0 [MASK]",
        2: "has 5 [MASK]",
        3: "holds no token",
    }
    np.savez(tmp_path / "rows.npz", tokens=rows[:3])
    given = opened(str(tmp_path / "rows.npz"))
    assert {position: fault.reason for position, fault in given.data.test.skipped.items()} == {
        0: "has 0 [MASK]",
        2: "has 5 [MASK]",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a [MASK]\nno mask\n", "lines.txt, line 2 has 0 [MASK]"),
        (b"\n\n", "holds no text; give a file with a text a line"),
        (b"", "is empty: give a file with a text a line"),
    ],
)
def test_lines_that_can_not_be_told_end_a_prediction(here, command, content, message):
    Path("lines.txt").write_bytes(content)
    answer = command("job=predict", *TASK, "run.name=one", "predict.input=lines.txt")
    assert (answer.code, message in answer.err) == (3, True), answer.err


EXPORTS = {
    "savedmodel": (reload.load_saved_model, "savedmodel"),
    "tflite": (reload.load_tflite, "one.tflite"),
    "onnx": (reload.load_onnx, "one.onnx"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:\s+Warning")  # of the interpreter in TensorFlow
@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_answers_as_the_run(kind, here, command):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    answer = command("job=export", *TASK, "run.name=one", f"export.format={kind}")
    assert answer.code == 0, answer.err
    assert f"float32 [N, {POSITIONS}, 257], probabilities of" in answer.out
    load, name = EXPORTS[kind]
    names, predict = load(str(here / name))
    assert names == of_tokens.name_tokens(texts.VOCABULARY)
    tokens = texts.encode(["the c t sees it", "no dog e ts hay"])
    tokens[0, 5], tokens[1, 8] = 256, 256
    expected = accumtrain.load_run("one").predict(tokens).answers
    found = predict(tokens)
    assert [names[number] for number in found[:, 0].argmax(axis=-1)] == ["a", "a"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    if kind == "savedmodel":
        told = (here / name / "assets" / "vocabulary.json").read_text()
    elif kind == "tflite":
        told = ZipFile(here / name).read("vocabulary.json")
    else:
        import onnx

        told = {each.key: each.value for each in onnx.load(str(here / name)).metadata_props}["vocabulary"]
    assert json.loads(told) == {"size": 257, "mask": 256, "special": [256], "tokenizer": "bytes"}


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_bits(compose, tmp_path, train_until_killed):
    given = (*SMALL, "train.steps=8", "checkpoint.every=1", "eval.every=3", "log.every=1")
    run(compose(*given, f"run.dir={tmp_path / 'whole'}"))
    config = compose(*given, f"run.dir={tmp_path / 'killed'}")
    train_until_killed(config, 4)
    run(config)
    whole, killed = (tmp_path / name / "one" for name in ("whole", "killed"))
    assert records_of(killed) == records_of(whole)
    assert_same_tensors(*(tensors_of(each / "checkpoints/step-8") for each in (killed, whole)))


@pytest.mark.slow
@pytest.mark.xla
def test_jax_trains_and_evaluates(compose, tmp_path):
    pytest.importorskip("jax")
    given = (*SMALL, "train.steps=6", "eval.every=3", "log.every=1", "device=cpu")
    for runtime in ("tensorflow", "jax"):
        run(compose(*given, f"device.runtime={runtime}", f"run.dir={tmp_path / runtime}"))
    one, other = (records_of(tmp_path / runtime / "one") for runtime in ("tensorflow", "jax"))
    for expected, found in zip(one, other, strict=True):
        assert_near_records(expected, found, rel=1e-4, abs=1e-6)


VERIFY = (*TASK, "job=verify", "optim=sgd", "batch_size=8", "accum.steps=2", "run.name=one")


@pytest.mark.slow
def test_verify_passes(compose, tmp_path):
    checks = run(compose(*VERIFY, f"run.dir={tmp_path}"))["checks"]
    assert "loss against an independent formula, in float64" in [each["check"] for each in checks if each["passed"]]


@pytest.mark.slow
def test_verify_finds_a_loss_that_counts_places_without_a_token(compose, tmp_path, monkeypatch):
    def wrong(ids, dtype):
        return tf.ones_like(ids, dtype) / ids.shape[1]

    monkeypatch.setattr(losses, "_shares_of_positions", wrong)
    with pytest.raises(VerificationError, match="loss against an independent formula, in float64"):
        run(compose(*VERIFY, f"run.dir={tmp_path}"))
