"""Plan and accum.steps=auto: the search against made-up memory, the probes against real one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from accumtrain.config import to_mapping
from accumtrain.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError
from accumtrain.jobs import auto, plan, probe
from accumtrain.jobs.probe import Trial
from accumtrain.runs import Run

MB = 2**20


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        run = (f"run.dir={tmp_path}", "run.name=mine")
        return compose("model=lenet5", "batch_size=48", "accum.steps=auto", *run, *overrides)

    return of


class Memory:
    """Takes the place of `probe`: a run takes `fixed` MB and `each` MB for every example of a micro-batch."""

    def __init__(self, limit, each, fixed=20.0, replicas=1, noise=0.0):
        self.limit, self.each, self.fixed, self.replicas, self.noise = limit, each, fixed, replicas, noise
        self.asked = []

    def takes(self, micro_batch):
        wobble = random.Random(micro_batch).uniform(-self.noise, self.noise)
        return self.fixed + wobble + self.each * micro_batch

    def __call__(self, config, micro_batch):
        self.asked.append(micro_batch)
        out = Trial(config.model.memory, micro_batch, fits=False)
        if config.device.memory_limit_mb is not None and self.takes(micro_batch) > self.limit:
            return out
        steps = config.batch_size // (micro_batch * self.replicas)
        peak = int(self.takes(micro_batch) * MB)
        return replace(out, fits=True, accum_steps=steps, replicas=self.replicas, peak_bytes=peak, rss_bytes=peak)


@pytest.mark.parametrize("seed", range(60))
def test_search_finds_the_largest_divisor_that_fits(config, seed):
    draw = random.Random(seed)
    replicas = draw.choice([1, 1, 2, 3])
    examples = draw.choice([1, 7, 12, 60, 64, 96, 97, 256, 360, 1000])
    limit = draw.randint(21, 400)
    each = draw.choice([0.01, 0.3, 1.0, 5.0])
    memory = Memory(limit, each, replicas=replicas, noise=draw.choice([0.0, 0.4 * each]))  # never turns the order
    batch = config(f"batch_size={examples * replicas}", f"device.memory_limit_mb={limit}")

    trials = auto.search(batch, memory)

    fitting = [size for size in auto.divisors(examples) if memory.takes(size) <= limit]
    assert [t.micro_batch for t in trials if t.fits] == [size for size in sorted(memory.asked) if size in fitting]
    assert max((t.micro_batch for t in trials if t.fits), default=0) == max(fitting, default=0)
    assert len(memory.asked) == len(set(memory.asked)), "no micro-batch is tried twice"


def test_search_needs_few_probes(config):
    memory = Memory(limit=1000, each=2.0)
    auto.search(config("batch_size=4096", "device.memory_limit_mb=1000"), memory)
    assert memory.asked == [1, 2, 256, 512]


def test_search_takes_the_whole_batch_where_memory_does_not_grow(config):
    memory = Memory(limit=1000, each=0.0)
    auto.search(config("batch_size=64", "device.memory_limit_mb=1000"), memory)
    assert memory.asked == [1, 2, 16, 64]


def test_auto_becomes_a_number(config, monkeypatch, capsys):
    monkeypatch.setattr(auto, "probe", Memory(limit=45, each=2.0))
    before = config("device.memory_limit_mb=45")
    after = auto.settled(before)
    assert after == replace(before, accum=replace(before.accum, steps=4))  # micro-batch 12; 16 would take 52 MB
    shown = capsys.readouterr().out
    assert "accum.steps for batch_size=48 in device.memory_limit_mb=45" in shown
    assert "accum.steps=4: micro-batch 12" in shown


def test_a_number_is_left_alone_and_a_run_keeps_its_own(config, monkeypatch):
    monkeypatch.setattr(auto, "probe", lambda config, micro_batch: pytest.fail("nothing to probe"))
    given = config("accum.steps=6")
    assert auto.settled(given) is given
    with Run(given) as run:
        run.save_config()
    assert auto.settled(config()).accum.count == 6
    assert auto.as_trained(config()).accum.count == 6


def test_evaluating_what_was_never_trained(config):
    with pytest.raises(CheckpointError, match="train first"):
        auto.as_trained(config())


def test_nothing_fits_says_what_would(config, monkeypatch):
    def memory(config, micro_batch):
        fixed = {"adam": 60.0, "adafactor": 30.0}[config.optim.kind]
        return Memory(limit=40, each=10.0 if config.precision == "bfloat16" else 20.0, fixed=fixed)(config, micro_batch)

    monkeypatch.setattr(auto, "probe", memory)
    with pytest.raises(OutOfMemoryError) as error:
        auto.settled(config("optim=adam", "device.memory_limit_mb=40"))
    message = str(error.value)
    assert "not even a micro-batch of 1 fits in device.memory_limit_mb=40" in message
    assert "as it is: 80.0 MB" in message
    assert "model.memory=recompute: 80.0 MB" in message
    assert "optim=adafactor: 50.0 MB" in message
    assert "precision=bfloat16: 70.0 MB" in message
    assert "(fits)" not in message


def test_help_that_fits_is_marked(config):
    def memory(config, micro_batch):
        return Memory(limit=55, each=20.0, fixed={"adam": 60.0, "adafactor": 30.0}[config.optim.kind])(config, 1)

    message = auto.what_would_help(config("optim=adam", "device.memory_limit_mb=55"), memory)
    assert "optim=adafactor: 50.0 MB (fits)" in message
    assert message.count("(fits)") == 1


def test_policies_are_those_the_model_has(config):
    def names(*overrides):
        return [policy.model.memory for policy in auto.policies(config(*overrides))]

    assert names() == ["store", "recompute"]
    assert names("model=revnet38") == ["store", "recompute", "reverse"]


@pytest.mark.parametrize(
    ("examples", "sizes"), [(64, [1, 2, 4, 8, 16, 32, 64]), (50, [1, 2, 5, 10, 25, 50]), (7, [1, 7]), (1, [1])]
)
def test_ladder(examples, sizes):
    assert plan.ladder(examples) == sizes


def test_plan_stops_climbing_where_memory_ends(config, monkeypatch, capsys, tmp_path):
    memory = Memory(limit=27, each=1.0)
    monkeypatch.setattr(plan, "probe", memory)
    plan.run(config("job=plan", "device.memory_limit_mb=27"))
    written = json.loads((tmp_path / "mine/plan.json").read_text())
    assert [(t["memory"], t["micro_batch"], t["fits"]) for t in written["trials"]] == [
        (policy, size, size < 8) for policy in ("store", "recompute") for size in (1, 2, 4, 8)
    ]
    assert (tmp_path / "mine/plan.png").read_bytes().startswith(b"\x89PNG")
    assert "lenet5, adafactor, float32, batch_size=48 in device.memory_limit_mb=27" in capsys.readouterr().out


# --- real probes ------------------------------------------------------------------------------------------------


def test_probe_measures_a_run_without_tensorflow_here(config, tmp_path):
    asked = config("batch_size=32")
    program = (
        "import json, sys; from accumtrain.config import from_mapping; from accumtrain.jobs.probe import probe;"
        f"trial = probe(from_mapping(json.loads({json.dumps(to_mapping(asked))!r})), 8);"
        "assert 'tensorflow' not in sys.modules;"
        "print(json.dumps(vars(trial)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True, check=True)
    trial = json.loads(done.stdout.splitlines()[-1])
    assert (trial["fits"], trial["accum_steps"], trial["replicas"], trial["memory"]) == (True, 4, 1, "store")
    assert 0 < trial["static_bytes"] < trial["peak_bytes"] < trial["rss_bytes"]
    assert trial["examples_per_second"] > 0
    assert trial["seconds_to_first_update"] > 0


def test_probe_without_memory_does_not_fit(config):
    trial = probe.probe(config("device.memory_limit_mb=1"), 48)
    assert trial == Trial("store", 48, fits=False)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [(2, "sizes", ConfigError), (3, "no data", DataError), (-signal.SIGILL, None, RuntimeError)],
)
def test_other_failures_are_not_taken_for_memory(config, monkeypatch, code, message, expected):
    def child(command, **options):
        if message is not None:
            Path(command[-1], probe.ANSWER).write_text(json.dumps({"message": message}))
        return SimpleNamespace(returncode=code, stderr="last words")

    monkeypatch.setattr(probe.subprocess, "run", child)
    with pytest.raises(expected, match=message or "last words"):
        probe.probe(config(), 1)


@pytest.mark.parametrize("code", [6, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV])
def test_ways_to_die_of_memory(config, monkeypatch, code):
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code, stderr=""))
    assert not probe.probe(config(), 1).fits


@pytest.mark.slow
def test_auto_trains_and_continues_with_its_choice(tmp_path):
    """ResNet-20 at batch 64 under a limit that the whole batch exceeds: two runs of the same command."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from accumtrain.cli import main; main()",
        *("data=synthetic", "data.train_examples=128", "data.test_examples=64", "accum.steps=auto", "run.name=mine"),
        *("model=resnet20", "device.memory_limit_mb=110", "batch_size=64", f"run.dir={tmp_path}"),
    ]
    first = subprocess.run([*command, "train.steps=2"], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    steps = yaml.safe_load((tmp_path / "mine/config.yaml").read_text())["accum"]["steps"]
    assert 1 < steps < 64
    assert f"accum.steps={steps}: micro-batch {64 // steps}" in first.stdout
    again = subprocess.run([*command, "train.steps=3"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "probing" not in again.stdout
    summary = json.loads((tmp_path / "mine/summary.json").read_text())
    assert (summary["step"], summary["accum_steps"], summary["batch_size"]) == (3, steps, 64)
    assert summary["memory"]["tensor_peak_bytes"] < 110 * MB
