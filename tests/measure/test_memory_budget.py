"""model.memory=<MB>: the search against made-up memory, and a run that must stay within its budget."""

import json
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from accumtrain.config.jobs import JOBS
from accumtrain.dispatch import settle_kept_activations
from accumtrain.errors import CheckpointError, ConfigError, OutOfMemoryError
from accumtrain.measure import settle
from accumtrain.measure.probe import ProbeResult
from accumtrain.measure.settle import FILE, FILLED, choose_kept_activations, find_kept_activations
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from tests.programs import output_of, with_path

MB = 2**20
SIZE = ("data=synthetic", "batch_size=8", "accum.steps=2")


class Memory:
    """Takes the place of `probe`. The memory steps up to one of them cost nothing."""

    def __init__(self, config, seed):
        draw = random.Random(seed)
        dial = config.model.memory_steps()
        free = draw.randrange(len(dial))
        steps = np.cumsum([draw.uniform(0.2, 3) * (place > free) for place in range(len(dial))])
        self.peaks = {model.kept_in_words: 20 + step for model, step in zip(dial, steps, strict=True)}
        self.peaks[dial[-1].kept_in_words] += draw.uniform(0, 60)
        self.probed = []

    def probe(self, config, micro_batch, note=""):
        assert micro_batch == 4
        self.probed.append(config.model.kept_in_words)
        peak = self.peaks[config.model.kept_in_words]
        return ProbeResult(config.model.policy, micro_batch, fits=True, peak_bytes=int(peak * MB))

    def largest_within(self, budget):
        """Return the last memory step that takes at most `budget` MB."""
        return [name for name, peak in self.peaks.items() if int(peak * MB) <= FILLED * budget * MB][-1]


@pytest.fixture
def config(compose, tmp_path):
    return partial(compose, *SIZE, f"run.dir={tmp_path}", "run.name=mine")


@pytest.mark.parametrize("model", ["revnet38", "resnet50", "lenet5"])
@pytest.mark.parametrize("seed", range(8))
def test_as_much_is_kept_as_fits(config, model, seed):
    budget = random.Random(seed).randint(21, 110)
    run = config(f"model={model}", f"model.memory={budget}")
    memory = Memory(run, seed)
    settled, peak = choose_kept_activations(run, memory.probe)
    assert settled.model.kept_in_words == memory.largest_within(budget)
    assert peak == int(memory.peaks[settled.model.kept_in_words] * MB) <= FILLED * budget * MB
    assert replace(settled, model=run.model) == run
    assert len(memory.probed) == len(set(memory.probed)) <= 9


@pytest.mark.parametrize("fitting", [1, 10, 40])
def test_few_probes_where_what_does_not_fit_tells_no_peak(config, fitting):
    run = config("model=revnet104", "model.memory=100000")
    names, probed = [model.kept_in_words for model in run.model.memory_steps()], []

    def attempt(config, micro_batch, note=""):
        place = names.index(config.model.kept_in_words)
        probed.append(place)
        return ProbeResult("reverse", 4, fits=place < fitting, peak_bytes=(place + 1) * MB if place < fitting else None)

    settled, _ = choose_kept_activations(run, attempt)
    assert settled.model.kept_in_words == names[fitting - 1]
    assert len(names) > 90
    assert len(probed) <= 12


def test_a_place_that_crashes_does_not_fit(config):
    run = config("model=revnet38", "model.memory=100")
    memory = Memory(run, 1)

    def attempt(config, micro_batch, note=""):
        trial = memory.probe(config, micro_batch)
        fits = (config.model.kept_convs or 0) < 5 and config.model.memory != "store"
        return trial if fits else replace(trial, fits=False, peak_bytes=None)

    assert choose_kept_activations(run, attempt)[0].model.kept_convs == 4


def test_too_small_a_budget_is_refused_with_what_would_do(config):
    run = config("model=revnet38", "model.memory=19")
    memory = Memory(run, 3)
    least = memory.peaks["reverse with 0 of 32 convolutions kept"]
    with pytest.raises(OutOfMemoryError, match=r"model.memory=19: micro-batches of 4 need at least 20 MB; ") as error:
        choose_kept_activations(run, memory.probe)
    assert f"; model.memory={int(np.ceil(least / FILLED))} works. Less would take: accum.steps=4" in str(error.value)


def test_what_was_found_is_used_again_for_the_same_run_only(config, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    run = config("model=revnet38", "model.memory=60")
    memory = Memory(run, 5)
    monkeypatch.setattr(settle, "probe", memory.probe)
    first = find_kept_activations(run)
    probes = len(memory.probed)
    assert find_kept_activations(run) == first
    assert len(memory.probed) == probes > 0
    (tmp_path / "mine" / FILE).write_text("{")  # damaged
    assert find_kept_activations(run) == first
    assert len(memory.probed) > probes
    probes = len(memory.probed)
    find_kept_activations(replace(run, optim=replace(run.optim, clip_norm=1.0)))
    assert len(memory.probed) > probes
    find_kept_activations(run)
    for variable in (ONEDNN, KERNELS_16BIT):
        probes = len(memory.probed)
        monkeypatch.setenv(variable, "another")
        find_kept_activations(run)
        assert len(memory.probed) > probes


def test_what_was_found_on_a_full_disk_is_used_and_not_kept(config, monkeypatch, tmp_path):
    def full(file, value):
        raise CheckpointError("no space is left")

    run = config("model=revnet38", "model.memory=60")
    memory = Memory(run, 5)
    monkeypatch.setattr(settle, "probe", memory.probe)
    monkeypatch.setattr(settle, "write_json", full)
    assert find_kept_activations(run).model.kept_in_words == memory.largest_within(60)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_budget_stays_as_it_is(config):
    run = config("model=revnet38")
    assert settle_kept_activations(run, JOBS["train"]) is settle_kept_activations(run, JOBS["verify"]) is run


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.memory=0",), "model.memory=0: must be at least 1"),
        (("model.memory=true",), "model.memory=true: must be a whole number or text"),
        (("model.memory=revers",), "did you mean reverse"),
        (("model.memory=900MB",), "or a number of MB"),
        (("model.memory=60", "accum.steps=auto"), "give a number of micro-batches"),
        (("model.memory=60", "model.kept_convs=3"), "leave model.kept_convs out, or use"),
        (("model.memory=store", "model.kept_convs=3"), "model.memory=store keeps everything"),
        (("model.kept_convs=37",), "has 32 convolutions that can be kept"),
        (("model.kept_convs=-1",), "must be at least 0"),
        (("model.memory=60", "device=mirrored", "device.virtual=3"), "is not divisible"),
    ],
)
def test_what_contradicts_a_budget_is_refused(config, overrides, message):
    with pytest.raises(ConfigError) as error:
        config("model=revnet38", *overrides)
    assert message in str(error.value)


def test_jobs_that_train_nothing_take_what_keeps_least(config):
    run = config("model=revnet38", "model.memory=60", "job=verify")
    assert not JOBS["verify"].probed
    assert settle_kept_activations(run, JOBS["verify"]) == config("model=revnet38", "job=verify")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "budget"), [("revnet38", 55), ("revnet38", 80), ("resnet32", 70), ("lenet5", 13)])
def test_a_run_stays_within_its_budget_and_learns_the_same(tmp_path, model, budget):
    """Each run has a process of its own, so that only its tensors count."""

    def train(name, *overrides):
        size = ("data.image_size=32", "data.train_examples=512", "data.test_examples=64", "batch_size=128")
        run = (f"model={model}", "data=synthetic", *size, "accum.steps=2", "train.steps=12")
        kernels = with_path(TF_ENABLE_ONEDNN_OPTS="1")  # the others take 20 MB more
        output_of("-m", "accumtrain", *run, f"run.dir={tmp_path}", f"run.name={name}", *overrides, env=kernels)
        return json.loads((tmp_path / name / "summary.json").read_text())

    filled = train("filled", f"model.memory={budget}")
    assert filled["memory"]["tensor_peak_bytes"] <= budget * MB
    assert filled["test"] == train("plain")["test"]


@pytest.mark.slow
def test_a_job_goes_on_with_a_run_that_had_a_budget(command, monkeypatch, tmp_path):
    def found(config, attempt):
        return replace(config, model=replace(config.model, memory="reverse", kept_convs=2)), 10 * MB

    monkeypatch.setattr(settle, "choose_kept_activations", found)
    here = ("run.name=mine", "model=revnet38", *SIZE, "data.image_size=8", "data.train_examples=32")
    small = (*here, "data.test_examples=8", "log.images=0")
    assert command(*small, "train.steps=1", "model.memory=60").code == 0
    assert json.loads((tmp_path / "runs/mine" / FILE).read_text())["model"]["kept_convs"] == 2
    for memory in ((), ("model.memory=60",), ("model.memory=store",), ("model.memory=reverse", "model.kept_convs=1")):
        answer = command("job=evaluate", "run.name=mine", *memory)
        assert answer.code == 0, answer.err
