"""report.html: its content, and that text of runs stays text."""

import json
import re

import pytest

from accumtrain.errors import CheckpointError
from accumtrain.report.compare import ComparedRun, find_differing_keys
from accumtrain.report.page import MOST_POINTS, thin_curve, write_page
from accumtrain.report.pictures import shorten_run_names

SUMMARY = {"status": "completed", "step": 4, "test": {"loss": 0.5, "accuracy": 0.75}}


def record(step, split="train", **values):
    return {"step": step, "epoch": step / 10, "split": split, "seconds": 1.0, "loss": 1.0, **values}


def compared(name, records=(), summary=SUMMARY, **config):
    return ComparedRun(name, summary, list(records), config)


def written(tmp_path, *runs):
    write_page(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return page, json.loads(data)


def test_the_page_needs_no_network(tmp_path):
    page, _ = written(tmp_path, compared("mine"))
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']""", page)
    assert "@@" not in page


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "</script><!--", "@@data@@", "${x}\\1", "ü\u2028"])
def test_text_of_a_run_stays_text(text, tmp_path):
    plain, _ = written(tmp_path, compared("mine"))
    odd = compared(text, [record(1, split=text)], SUMMARY | {"status": text}, **{"optim.kind": text})
    page, data = written(tmp_path, odd, compared("mine", **{"optim.kind": "sgd"}))
    shown = {column["title"]: cell[0] for column, cell in zip(data["columns"], data["runs"][0]["cells"], strict=True)}
    assert (data["runs"][0]["name"], shown["status"], shown["optim.kind"]) == (text, text, text)
    assert page.count("<script") == plain.count("<script"), "no element is added"
    assert page.count("<!--") == plain.count("<!--")


def test_of_long_curves_the_peaks_stay(tmp_path):
    records = [record(step, loss=1 + step % 7) for step in range(10_000)]
    records[1234]["loss"], records[5678]["loss"], records[77]["loss"] = 99.0, 0.001, float("nan")
    _, data = written(tmp_path, compared("long", records))
    curve = data["runs"][0]["curves"]["train"]
    assert len(curve["loss"]) == len(curve["step"]) <= MOST_POINTS
    assert (curve["step"][0], curve["step"][-1]) == (0, 9999)
    assert (curve["step"][curve["loss"].index(99.0)], curve["step"][curve["loss"].index(0.001)]) == (1234, 5678)
    assert data["points"] == {"shown": len(curve["step"]), "of": 10_000}


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    records = [record(1, loss=None), record(2, loss=10**400, accuracy="high"), record(3, loss=0.5)]
    records.append(record(4) | {"step": "last"})
    _, data = written(tmp_path, compared("odd", records, SUMMARY | {"memory_by_kind": {"weights": "much"}, "test": 3}))
    assert data["runs"][0]["curves"]["train"] == {"step": [3], "epoch": [0.3], "seconds": [1.0], "loss": [0.5]}
    assert data["kinds"] == []


def test_the_noise_scale_is_a_curve_of_updates(tmp_path):
    noises = [record(1, noise_scale=None), record(2, noise_scale=30.0), record(2, "val", accuracy=0.5)]
    _, data = written(tmp_path, compared("with", noises), compared("without", [record(1)]))
    assert data["metrics"] == ["loss", "accuracy", "noise_scale"]
    curves = data["runs"][0]["curves"]
    assert curves["train"]["noise_scale"] == [None, 30.0]
    assert curves["val"]["noise_scale"] == [None]
    _, data = written(tmp_path, compared("without a scale", noises[:1]))
    assert data["metrics"] == ["loss"]


def test_memory_and_speed(tmp_path):
    kinds = {"weights": 1024, "ema": 0, "activations": 2048}
    _, data = written(tmp_path, compared("a", (), SUMMARY | {"memory_by_kind": kinds, "examples_per_second": 12.5}))
    assert data["kinds"] == ["weights", "activations"]
    assert data["runs"][0]["memory"]["weights"] == [1024, "1.0 KB"]
    assert data["runs"][0]["speed"] == 12.5


def test_a_page_that_cannot_be_written(tmp_path):
    with pytest.raises(CheckpointError, match="can't be written"):
        write_page([compared("mine")], tmp_path / "missing" / "report.html")


def test_only_keys_that_differ_are_shown():
    same = {"batch_size": 8, "optim.weight_decay": 0.1}
    runs = [
        compared("a", **{**same, "optim.lr": 0.1, "optim.kind": "sgd", "run.name": "a", "optim.nesterov": True}),
        compared("b", **{**same, "optim.lr": 0.2, "optim.kind": "adam", "run.name": "b"}),
        compared("without a configuration"),
        compared("c", **{**same, "optim.lr": 0.3, "optim.kind": "adam", "run.name": "c"}),
    ]
    found = [(each.key, each.values, each.along) for each in find_differing_keys(runs)]
    assert found == [
        ("optim.kind", ("sgd", "adam", "-", "adam"), ("optim.nesterov",)),
        ("optim.lr", ("0.1", "0.2", "-", "0.3"), ()),
    ]


def test_keys_that_follow_from_a_choice_go_along_and_those_of_a_random_search_do_not():
    sgd, adam = {"optim.kind": "sgd", "optim.lr": 0.1}, {"optim.kind": "adam", "optim.lr": 0.01, "optim.beta2": 0.999}
    lion = {"optim.kind": "lion", "optim.lr": 0.01}
    draws = [{"data.cutmix": each, "data.mixup": each} for each in (0.1, 0.2, 0.3, 0.4)]
    runs = [compared("run", **values, **draw) for values, draw in zip((sgd, adam, lion, sgd), draws, strict=True)]
    assert [(each.key, each.along) for each in find_differing_keys(runs)] == [
        ("optim.kind", ("optim.lr", "optim.beta2")),
        ("data.cutmix", ()),
        ("data.mixup", ()),
    ]


def titles(tmp_path, *runs):
    _, data = written(tmp_path, *runs)
    return [column["title"] for column in data["columns"]]


def test_the_outcome_comes_first_then_the_configuration(tmp_path):
    runs = [compared(kind, **{"optim.kind": kind}, summary=SUMMARY | {"best_on": "test"}) for kind in ("sgd", "adam")]
    shown = titles(tmp_path, *runs)
    assert shown[:5] == ["best accuracy", "best loss", "seconds", "optim.kind", "step"]
    assert {"test accuracy", "test loss", "status", "batch"} < set(shown[5:])


def test_results_on_a_test_split_that_chose_nothing_are_part_of_the_outcome(tmp_path):
    shown = titles(tmp_path, compared("mine", summary=SUMMARY | {"best_on": "val"}))
    assert shown[:4] == ["best accuracy", "best loss", "test accuracy", "seconds"]


def test_the_status_of_a_run_that_is_not_completed_is_part_of_the_outcome(tmp_path):
    preempted = compared("mine", summary=SUMMARY | {"status": "preempted"})
    assert titles(tmp_path, compared("whole"), preempted)[4] == "status"


@pytest.mark.parametrize(("count", "most"), [(3, 4), (4, 4), (5, 4), (1000, 4), (1000, 300)])
def test_extremes(count, most):
    values = [(-1) ** place * place % 17 for place in range(count)]
    taken = thin_curve(values, most)
    assert taken == sorted(set(taken))
    assert len(taken) <= most or count <= most
    assert {0, count - 1} <= set(taken)
    assert {min(values), max(values)} <= {values[place] for place in taken}


@pytest.mark.parametrize(
    ("names", "beginning", "short"),
    [
        (["lenet5-digits-a", "lenet5-digits-b"], "lenet5-digits-", ["a", "b"]),
        (["x-batch_size-32", "x-batch_size-64"], "x-", ["batch_size-32", "batch_size-64"]),
        (["x", "x-optim-sgd"], "", ["x", "x-optim-sgd"]),
        (["only-one"], "", ["only-one"]),
        (["same-name", "same-name"], "same-", ["name", "name"]),
    ],
)
def test_labels(names, beginning, short):
    assert shorten_run_names(names) == (beginning, short)
