"""task=next_token: its batches and means, packed rows against padded ones, and what runs of it tell."""

import csv
import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.backprop.mode import EVALUATION
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.devices.resolve import resolve_devices
from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.errors import ConfigError, DataError, VerificationError
from accumtrain.export import formats, reload
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from accumtrain.train.evaluator import build_evaluator
from tests.data.word_tokenizer import CLS_PAIR, make_tokenizer, save, template
from tests.tasks import texts
from tests.train.conftest import assert_error, assert_same_tensors, json_of, records_of, tensors_of

LENGTH = 16
TASK = ("task=next_token", "data=texts", "data.path=lines.txt", f"data.length={LENGTH}", "model=decoder_tiny")
MODEL = ("model.width=16", "model.depth=1")
SMALL = (*TASK, *MODEL, "batch_size=8", "accum.steps=2", "optim=adam", "optim.lr=0.02", "schedule=constant")
SENTENCES = texts.write_sentences(80, 0)
APART = "task.packing=false"
EXPORTS = {
    "savedmodel": (reload.load_saved_model, "savedmodel"),
    "tflite": (reload.load_tflite, "one.tflite"),
    "onnx": (reload.load_onnx, "one.onnx"),
}


@pytest.fixture(autouse=True)
def lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("\n".join(SENTENCES))


@pytest.fixture
def config(compose):
    return lambda *overrides: compose(*SMALL, "precision=float64", *overrides)


def taken(batches, count):
    """Some batches as one, of NumPy arrays."""
    found = list(batches.take(count).as_numpy_iterator())
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *found)


@pytest.mark.parametrize("rows", [(), (APART,)])
def test_half_lives_count_the_mean_number_of_targets(config, rows):
    objective = open_objective(config(*rows))
    size = objective.stored.train.size
    told = taken(make_train_batches(objective.data, batch=size, first=0, seed=0), 1)["weight"]
    assert objective.told_per_example == told.sum(dtype=np.float64) / size > 1
    keys = ("optim.half_life=1000", "ema.half_life=500")
    window = build_window(config(*rows, *keys), objective, 1, tf.distribute.get_strategy())
    assert window.optimizer.means[1].share == 2 ** (-8 * objective.told_per_example / 1000)
    assert window.ema.decay == 2 ** (-8 * objective.told_per_example / 500)


def reference_of(targets, logits):
    """Loss and accuracy, the means over all targets, by a loop in Python."""
    losses, right = [], []
    for target, scores in zip(targets.reshape(-1).tolist(), logits.reshape(-1, logits.shape[-1]), strict=True):
        if target >= 0:
            total = math.fsum(math.exp(value - scores.max()) for value in scores)
            losses.append(math.log(total) + float(scores.max() - scores[target]))
            right.append(scores.argmax() == target)
    return math.fsum(losses) / len(losses), float(np.mean(right))


# ---- batches and means ----


@pytest.mark.parametrize("more", [(), (APART,), (APART, "data.buckets=[4,8]", "data.by_length=true")])
def test_the_weight_of_an_example_is_its_number_of_targets(config, more):
    data = open_objective(config(*more)).data
    lengths = set()
    for batch in make_train_batches(data, batch=2, first=0, seed=0).take(20).as_numpy_iterator():
        tokens = batch["inputs"] if more else batch["inputs"]["tokens"]
        assert batch["targets"].shape == tokens.shape
        np.testing.assert_array_equal(batch["weight"], (batch["targets"] >= 0).sum(axis=1))
        np.testing.assert_array_equal(batch["targets"] >= 0, tokens >= 0)
        lengths.add(tokens.shape[1])
    assert lengths > {LENGTH} if "data.by_length=true" in more else lengths == {LENGTH}


def evaluated(config, batch):
    objective = open_objective(config)
    devices = resolve_devices(config.device)
    window = build_window(config, objective, 1, devices.strategy)
    evaluator = build_evaluator(config, objective, "test", batch, window.model, devices.runtime)
    found = evaluator(stop=lambda: False, report=lambda done, batches: None)
    return {name: value for name, value in found.items() if name != "seconds"}, window.model, objective.data


@pytest.mark.parametrize("more", [(), (APART,)])
def test_an_evaluation_is_that_of_all_tokens_for_every_batch(config, more):
    given = config(*more)
    found, model, data = evaluated(given, 3)
    size = data.test.size
    batch = taken(make_eval_batches(data, batch=size), 1)
    loss, accuracy = reference_of(batch["targets"], model(batch["inputs"], EVALUATION).numpy())
    expected = {"loss": loss, "token_accuracy": accuracy, "perplexity": math.exp(loss), "examples": size}
    expected["bits_per_byte"] = loss / math.log(2)
    assert found == pytest.approx(expected, rel=1e-12)
    assert evaluated(given, size)[0] == pytest.approx(expected, rel=1e-12)


def test_bits_are_those_of_the_bytes_of_words(config, tmp_path):
    tokenizer = save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json")
    found, _, data = evaluated(config(f"data.tokenizer={tokenizer}"), 4)
    told = int((data.test.tokens[:, 1] >= 0).sum())
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * told / data.test.bytes_told / math.log(2), rel=1e-12)
    np.savez("t.npz", tokens=np.arange(60).reshape(10, 6) % 7)
    ids = config("data=npz", "data.path=t.npz")
    assert evaluated(ids, 4)[0].keys() == {"loss", "token_accuracy", "perplexity", "examples"}


def test_bits_are_those_of_all_splits_or_of_none(config, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    of_bytes = {token: number for number, token in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(of_bytes, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    file = save(tokenizer, tmp_path / "letters.json")
    Path("train.txt").write_text("\n".join(SENTENCES))
    for last, is_known in (("ab", True), ("\u00e9b", False)):
        Path("test.txt").write_text(f"a b c\n{last}")
        objective = open_objective(config(f"data.tokenizer={file}", f"data.path={tmp_path}"))
        assert {"bits_per_byte" in objective.of_means(split) for split in ("train", "val", "test")} == {is_known}
        told = "bits_per_byte is not measured: the first token of a text ends within a character, or stands for none"
        assert (told in objective.notes) != is_known


def test_a_guess_is_the_loss_of_the_shares_of_targets(config):
    Path("train.txt").write_text("\n".join(SENTENCES[:50]))
    Path("test.txt").write_text("\n".join(SENTENCES[50:]))
    Path("lines.txt").unlink()
    found = open_objective(config("data.path=.", "data.val_fraction=0")).guess()
    told = ["".join(text[1:] for text in part).encode() for part in (SENTENCES[:50], SENTENCES[50:])]
    shares = Counter(told[0])
    expected = [-np.mean([math.log(shares[token] / len(told[0])) for token in part]) for part in told]
    assert [found["train"], found["test"]] == pytest.approx(expected, rel=1e-12)


# ---- packed rows against padded ones ----


def learned(config):
    """The weights before and after one update from all training rows, and its scalars."""
    objective, strategy = open_objective(config), tf.distribute.get_strategy()
    data, window = objective.data, build_window(config, objective, 1, strategy)
    for number, variable in enumerate(window.model.trainable_variables):  # so that all of them matter
        variable.assign_add(0.2 * tf.random.stateless_normal(variable.shape, [number, 7], dtype=variable.dtype))
    before = [variable.numpy() for variable in window.model.trainable_variables]
    step = Step(window)
    steps = config.accum.count
    step.accumulate(iter(make_train_batches(data, batch=data.train.size // steps, first=0, seed=0)), steps)
    scalars = {name: float(value) for name, value in step.commit().items()}
    return before, [variable.numpy() for variable in window.model.trainable_variables], scalars, data.train.size


@pytest.mark.parametrize("keys", [(), ("model.positions=learned", "model.norm=layer", "model.activation=gelu")])
def test_packed_rows_learn_what_padded_ones_do(config, keys):
    """In float64, of documents that end with their rows."""
    counts = [16, 4, 12, 9, 7, 1, 15, 8, 8, 5, 5, 6]
    random = np.random.default_rng(0)
    letters = [list(map(chr, random.integers(97, 122, 1 + count))) for count in counts]
    Path("train.txt").write_text("\n".join(map("".join, letters)))
    Path("test.txt").write_text("ab\nbc")
    Path("lines.txt").unlink()
    given = ("data.path=.", "data.val_fraction=0", "model.depth=2", "optim=sgd", "optim.lr=1.0", "accum.steps=2", *keys)
    before, packed, scalars, rows = learned(config(*given))
    again, apart, others, documents = learned(config(*given, APART))
    assert (rows, documents) == (6, len(counts))
    assert scalars["weight"] == others["weight"] == sum(counts)
    for name in ("loss", "token_accuracy", "grad_norm"):
        assert scalars[name] == pytest.approx(others[name], rel=1e-12)
    for first, own, same, other in zip(before, packed, again, apart, strict=True):
        np.testing.assert_array_equal(first, same)
        assert own.dtype == np.float64
        moved = np.abs(own - first).max()
        assert moved > 0
        np.testing.assert_allclose(other, own, rtol=0, atol=1e-12 * max(moved, 1.0))


def test_micro_batches_learn_what_one_batch_does(config):
    _, whole, scalars, _ = learned(config("accum.steps=1", "optim=sgd", "optim.lr=1.0", "data.val_fraction=0.01"))
    size = int(scalars["examples"])
    steps = next(number for number in range(2, size + 1) if size % number == 0)
    _, split, others, _ = learned(
        config(f"accum.steps={steps}", f"batch_size={size}", "optim=sgd", "optim.lr=1.0", "data.val_fraction=0.01")
    )
    assert others["loss"] == pytest.approx(scalars["loss"], rel=1e-12)
    for one, other in zip(whole, split, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("model=encoder_tiny",),
            "its tokens attend to the next ones, and can't learn to tell them; use model=decoder",
        ),
        (("task=masked_tokens",), "learns tokens from both sides; use model=encoder_tiny"),
        (("model=lenet5",), "takes pixels, and an example of the data is tokens"),
        (("data=digits",), "task=next_token: data=digits has no tokens for it; choose"),
        (("data.buckets=[4]",), "data.buckets=[4]: packed rows are full; leave it out, or give task.packing=false"),
        (("data.by_length=true",), "data.by_length=true: packed rows are full"),
        (("loss=cross_entropy",), "takes classes, and the targets of task=next_token are tokens; choose"),
        (("task.end=x",), "task.end=x: bytes have no such token; leave it out"),
    ],
)
def test_what_does_not_go_with_it_is_refused(command, overrides, message):
    of_model = () if overrides[0].startswith("model=") else MODEL
    kept = [each for each in TASK if each.partition("=")[0] not in {one.partition("=")[0] for one in overrides}]
    kept = [each for each in kept if "data=digits" not in overrides or not each.startswith("data.")]
    answer = command(*kept, *of_model, *overrides, "run.name=one", "train.steps=1")
    assert (answer.code, message in answer.err) == (2, True), answer.err


def test_tokens_of_a_program_are_refused(compose):
    with pytest.raises(DataError, match="task=next_token: the examples of sentences are no rows of documents; choose"):
        open_objective(compose("task=next_token", "data=sentences", "model=mixer"))


# ---- the jobs of a run ----


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "lines.txt").write_text("\n".join(SENTENCES))
    given = (*SMALL, "train.steps=150", "eval.every=50", "run.name=one", f"data.path={folder}/lines.txt")
    run(compose(*given, f"run.dir={folder}"))
    return folder


@pytest.fixture
def here(trained):
    """A copy of the run in runs/."""
    return Path(shutil.copytree(trained, "runs"), "one")


@pytest.mark.slow
def test_records_have_bits_of_bytes(trained):
    for record in records_of(trained / "one"):
        if record["split"] != "train":
            assert record["bits_per_byte"] == pytest.approx(record["loss"] / math.log(2))
            assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
    summary = json_of(trained / "one", "summary")
    assert summary["test"]["bits_per_byte"] == pytest.approx(summary["test"]["loss"] / math.log(2))
    assert summary["test"]["loss"] < 1.5


@pytest.mark.slow
def test_an_evaluation_tells_the_tokens_that_make_up_the_loss(here):
    found = accumtrain.load_run("one").evaluate()
    assert found["test"] == json_of(here, "summary")["test"]
    targets = sum(each["positions"] for each in found["tokens"])
    losses = sum(each["positions"] * each["loss"] for each in found["tokens"])
    assert losses / targets == pytest.approx(found["test"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_other_texts_are_measured_whole(here, command):
    Path("more.txt").write_text("\n".join(texts.write_sentences(20, 5)))
    answer = command("job=evaluate", *SMALL, "data.path=more.txt", "run.name=one")
    assert answer.code == 0, answer.err
    (file,) = here.glob("evaluation*.json")
    found = json.loads(file.read_text())
    assert not found["own_data"]
    told = Path("more.txt").read_text().split("\n")
    assert sum(each["positions"] for each in found["tokens"]) == sum(len(text) - 1 for text in told)
    assert found["test"]["bits_per_byte"] == pytest.approx(found["test"]["loss"] / math.log(2))


@pytest.mark.slow
def test_the_token_behind_a_text_is_told(here, command):
    Path("new.txt").write_text("the c\nthe\n" + 17 * "x")
    keys = ("predict.input=new.txt", "predict.tokens=0", "predict.top=2", "data.on_error=skip")
    answer = command("job=predict", "run.name=one", *keys)
    assert answer.code == 0, answer.err
    first, second = map(json.loads, (here / "predictions.jsonl").read_text().splitlines())
    assert [first["file"], second["file"]] == ["new.txt, line 1", "new.txt, line 2"]
    assert first["token"] == "a"
    assert first["top"][0] == {"token": "a", "probability": first["probability"]}
    with (here / "predictions.csv").open() as file:
        assert next(csv.reader(file)) == ["file", "token", "probability", "token_2", "probability_2"]
    assert "has 17 tokens, and the model takes 16" in answer.err


@pytest.mark.slow
def test_texts_are_continued_as_each_would_be_alone(here, command):
    beginnings = ["the c", "a", "n"]
    Path("new.txt").write_text("\n".join(beginnings))
    answer = command("job=predict", "run.name=one", "predict.input=new.txt", "predict.tokens=13")
    assert answer.code == 0, answer.err
    found = list(map(json.loads, (here / "predictions.jsonl").read_text().splitlines()))
    model = accumtrain.load_run("one").model
    for beginning, record in zip(beginnings, found, strict=True):
        text = list(beginning.encode())
        while len(text) < min(LENGTH, len(beginning) + 13):
            text.append(int(np.argmax(model(tf.constant([text]), EVALUATION)[0, -1])))
        assert beginning + record["continuation"] == bytes(text).decode()
        assert record["tokens"] == len(record["continuation"])
    assert json_of(here, "predict")["tokens"] == 11 + 13 + 13
    with (here / "predictions.csv").open() as file:
        assert next(csv.reader(file)) == ["file", "continuation"]


@pytest.mark.slow
def test_texts_of_other_lengths_are_continued_and_measured(here, command):
    def write(length):
        answer = command("job=predict", "run.name=one", "predict.input=new.txt", f"data.length={length}")
        assert answer.code == 0, answer.err
        return [json.loads(line)["continuation"] for line in (here / "predictions.jsonl").read_text().splitlines()]

    Path("new.txt").write_text("the c\na\nn")
    whole, shorter, longer = (write(length) for length in (LENGTH, 12, 2 * LENGTH))
    assert [len(text) for text in shorter] == [12 - 5, 11, 11]
    for some, more in (*zip(shorter, whole, strict=True), *zip(whole, longer, strict=True)):
        assert more.startswith(some)
        assert len(more) > len(some)
    counts = set()
    for length in (LENGTH, 12, 2 * LENGTH):
        answer = command("run.name=one", "job=evaluate", f"data.length={length}")
        assert answer.code == 0, answer.err
        found = json_of(here, "evaluation" if length == LENGTH else f"evaluation-length{length}")
        assert found["own_data"]
        counts.add(sum(each["positions"] for each in found["tokens"]))
    assert len(counts) == 1
    answer = command("run.name=one", "job=export", "data.length=20", "predict.tokens=3")
    assert answer.code == 0, answer.err
    assert "int32 [N, 20]" in answer.out


@pytest.mark.slow
def test_learned_positions_are_of_one_length(command):
    assert command(*SMALL, "model.positions=learned", "train.steps=1", "run.name=learned").code == 0
    answer = command("run.name=learned", "job=predict", "predict.input=lines.txt", "data.length=20")
    assert_error(answer, ConfigError, "data.length=20: the run in runs/learned was trained with data.length=16; leave")


@pytest.mark.slow
def test_draws_depend_on_the_seed_and_the_number_of_the_text(here, command):
    def write(*lines, seed=1):
        Path("new.txt").write_text("\n".join(lines))
        keys = (f"predict.draw={seed}", "predict.temperature=2", "predict.tokens=8")
        answer = command("job=predict", "run.name=one", "predict.input=new.txt", *keys)
        assert answer.code == 0, answer.err
        return [json.loads(line)["continuation"] for line in (here / "predictions.jsonl").read_text().splitlines()]

    first = write("the", "the", "a dog")
    assert first[0] != first[1]
    assert write("the", "the", "a dog", *(9 * ["a"]))[:3] == first
    assert write("the", "the") == first[:2]
    assert write("the", "the", "a dog", seed=2) != first


@pytest.mark.parametrize("key", ["predict.top_k=3", "predict.top_p=0.5", "predict.draw=1"])
def test_keys_of_draws_without_draws_are_refused(compose, key):
    with pytest.raises(ConfigError, match=r"predict\.temperature=0: the most probable tokens are written"):
        compose(*SMALL, "job=predict", key)


@pytest.mark.slow
def test_answers_are_those_of_the_text_alone(here):
    loaded = accumtrain.load_run("one")
    rows = np.full([3, LENGTH], -1, np.int32)
    for row, text in zip(rows, ("the c", "a dog eat", "n"), strict=True):
        row[: len(text)] = list(text.encode())
    found = loaded.predict(rows).answers
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    for row, answer in zip(rows, found, strict=True):
        (logits,) = loaded.model(tf.constant(row[None, row >= 0]), EVALUATION)
        np.testing.assert_allclose(answer, tf.nn.softmax(logits[-1]), atol=1e-6)
    rows[0, 1] = -1
    with pytest.raises(DataError, match="padding before a token in row 0"):
        loaded.predict(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:\s+Warning")  # of the interpreter in TensorFlow
@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_gives_the_answers_of_the_run(here, command, kind):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    answer = command("job=export", "run.name=one", f"export.format={kind}")
    assert answer.code == 0, answer.err
    rows = np.full([2, LENGTH], -1, np.int32)
    rows[0, :3], rows[1, :5] = list(b"the"), list(b"a dog")
    load, name = EXPORTS[kind]
    _, predict = load(str(here / name))
    np.testing.assert_allclose(predict(rows), accumtrain.load_run("one").predict(rows).answers, atol=1e-5)


@pytest.mark.slow
def test_a_saved_model_continues_texts_as_predictions_do(here, command):
    Path("new.txt").write_text("the c\na\nn")
    for job in ("export", "predict"):
        answer = command(f"job={job}", "run.name=one", "predict.tokens=13", "predict.input=new.txt")
        assert answer.code == 0, answer.err
    rows = np.full([3, LENGTH], -1, np.int32)
    for row, text in zip(rows, Path("new.txt").read_bytes().split(b"\n"), strict=True):
        row[: len(text)] = list(text)
    _, predict = reload.load_saved_model(str(here / "savedmodel"))
    found = predict(rows, "continuation")
    assert (found.shape, found.dtype) == ((3, 13), np.int32)
    expected = [json.loads(line)["continuation"] for line in (here / "predictions.jsonl").read_text().splitlines()]
    assert [bytes(row[row >= 0].tolist()).decode() for row in found] == expected
    assert (found[0, LENGTH - 5 :] == -1).all()


@pytest.mark.slow
def test_an_export_that_continues_texts_otherwise_is_not_kept(here, command, monkeypatch):
    whole = formats.Exported.compute

    def compute(exported, inputs, signature=formats.SERVING):
        found = whole(exported, inputs, signature)
        is_written = signature == "continuation" and not tf.executing_eagerly()
        return tf.where(found == -1, found, 0) if is_written else found

    monkeypatch.setattr(formats.Exported, "compute", compute)
    answer = command("job=export", "run.name=one")
    assert_error(answer, VerificationError, "the signature continuation of what was written tells something else")
    assert not (here / "savedmodel").exists()


@pytest.mark.slow
def test_prompts_of_a_table_are_continued(command, tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(["</s>"])
    file = save(tokenizer, tmp_path / "tokenizer.json")
    table = [{"prompt": "a b" if number % 2 else "b a", "answer": "c" if number % 2 else "b"} for number in range(40)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, table)))
    keys = ("data=table", "data.path=t.jsonl", "data.text_column=answer", "data.prompt_column=prompt")
    given = (TASK[0], *keys, f"data.tokenizer={file}", "data.length=8", TASK[-1], *MODEL, "run.name=qa")
    answer = command(*given, "train.steps=60", "batch_size=4", "optim=adam", "optim.lr=0.02", "schedule=constant")
    assert answer.code == 0, answer.err
    Path("new.csv").write_text("prompt,number\na b,1\nb a,2\n")
    answer = command("job=predict", "run.name=qa", "predict.input=new.csv")
    assert answer.code == 0, answer.err
    found = list(map(json.loads, Path("runs/qa/predictions.jsonl").read_text().splitlines()))
    assert [(each["continuation"].strip(), each["tokens"], each["number"]) for each in found] == [
        ("c", 1, "1"),
        ("b", 1, "2"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), (APART, "data.by_length=true", "data.buckets=[8]")])
def test_a_killed_run_goes_on_with_the_same_bits(compose, train_until_killed, more):
    given = (*SMALL, "train.steps=8", "checkpoint.every=1", "eval.every=3", "log.every=1", "run.name=one", *more)
    run(compose(*given, "run.dir=whole"))
    config = compose(*given, "run.dir=killed")
    train_until_killed(config, 4)
    run(config)
    whole, killed = (Path(name, "one") for name in ("whole", "killed"))
    assert records_of(killed) == records_of(whole)
    assert_same_tensors(*(tensors_of(each / "checkpoints/step-8") for each in (killed, whole)))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), (APART,)])
def test_verify_passes(compose, more):
    checks = run(compose("job=verify", *TASK, *MODEL, "optim=sgd", "batch_size=8", "accum.steps=2", *more))["checks"]
    assert "loss against an independent formula, in float64" in [each["check"] for each in checks if each["passed"]]


@pytest.mark.slow
@pytest.mark.xla
def test_jax_trains_and_evaluates(compose):
    pytest.importorskip("jax")
    given = (*SMALL, "train.steps=6", "eval.every=3", "log.every=1", "device=cpu", "run.name=one")
    for runtime in ("tensorflow", "jax"):
        run(compose(*given, f"device.runtime={runtime}", f"run.dir={runtime}"))
    one, other = (records_of(Path(runtime, "one")) for runtime in ("tensorflow", "jax"))
    for expected, found in zip(one, other, strict=True):
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4, abs=1e-6)), name
