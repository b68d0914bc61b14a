"""Plan and accum.steps=auto: the search against made-up memory, the probes against real one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from accumtrain.config.arithmetic import divisors
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.jobs import dispatch
from accumtrain.planning import auto_steps, foreseen_plan, probed_plan
from accumtrain.planning.advice import policies
from accumtrain.planning.probe import Trial
from accumtrain.runs.run import Run

MB = 2**20


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        run = (f"run.dir={tmp_path}", "run.name=mine")
        return compose("model=lenet5", "batch_size=48", "accum.steps=auto", *run, *overrides)

    return of


@pytest.fixture(autouse=True)
def not_foreseen(monkeypatch):
    """Here memory is tried, as on a GPU; tests/planning/test_foreseen.py has the rest."""
    for module in (auto_steps, foreseen_plan):
        monkeypatch.setattr(module, "foresee", lambda variants, sizes: "a test tries it")


class Memory:
    """Takes the place of `probe`: a run takes `fixed` MB and `each` MB for every example of a micro-batch."""

    def __init__(self, limit, each, fixed=20.0, replicas=1, noise=0.0, batch_norm=False):
        self.limit, self.each, self.fixed, self.replicas, self.noise = limit, each, fixed, replicas, noise
        self.batch_norm = batch_norm
        self.asked = []

    def takes(self, micro_batch):
        wobble = random.Random(micro_batch).uniform(-self.noise, self.noise)
        return self.fixed + wobble + self.each * micro_batch

    def __call__(self, config, micro_batch, note=""):
        self.asked.append(micro_batch)
        out = Trial(config.model.memory, micro_batch, fits=False)
        if config.device.memory_limit_mb is not None and self.takes(micro_batch) > self.limit:
            return out
        steps = config.batch_size // (micro_batch * self.replicas)
        peak = int(self.takes(micro_batch) * MB)
        run = replace(out, fits=True, accum_steps=steps, replicas=self.replicas, batch_norm=self.batch_norm)
        return replace(run, peak_bytes=peak, rss_bytes=peak)


@pytest.mark.parametrize("seed", range(60))
def test_search_finds_the_largest_divisor_that_fits(config, seed):
    draw = random.Random(seed)
    replicas = draw.choice([1, 1, 2, 3])
    examples = draw.choice([1, 7, 12, 60, 64, 96, 97, 256, 360, 1000])
    limit = draw.randint(21, 400)
    each = draw.choice([0.01, 0.3, 1.0, 5.0])
    memory = Memory(limit, each, replicas=replicas, noise=draw.choice([0.0, 0.4 * each]))  # never turns the order
    batch = config(f"batch_size={examples * replicas}", f"device.memory_limit_mb={limit}")

    trials = auto_steps.search(batch, memory)

    fitting = [size for size in divisors(examples) if memory.takes(size) <= limit]
    assert [t.micro_batch for t in trials if t.fits] == [size for size in sorted(memory.asked) if size in fitting]
    assert max((t.micro_batch for t in trials if t.fits), default=0) == max(fitting, default=0)
    assert len(memory.asked) == len(set(memory.asked)), "no micro-batch is tried twice"


@pytest.mark.parametrize("foreseen", [False, True])
@pytest.mark.parametrize(("limit", "fits"), [(30, []), (45, [2]), (1000, [2, 48])])
def test_batch_norm_never_gets_micro_batches_of_1(config, limit, fits, foreseen):
    memory = Memory(limit, each=12.0, batch_norm=True)
    chosen = config(f"device.memory_limit_mb={limit}")
    if foreseen:
        trials = auto_steps.search_foreseen(chosen, memory, lambda size: memory.takes(size) * MB, batch_norm=True)
    else:
        trials = auto_steps.search(chosen, memory)
    assert [trial.micro_batch for trial in trials if trial.fits][-1:] == fits[-1:]
    assert all(trial.micro_batch > 1 for trial in trials if trial.fits)


def test_a_batch_of_1_is_left_to_the_rule_of_batch_norm(config):
    one = config("batch_size=1", "device.memory_limit_mb=99")
    (trial,) = auto_steps.search(one, Memory(99, each=1.0, batch_norm=True))
    assert trial.accum_steps == 1


def test_search_needs_few_probes(config):
    memory = Memory(limit=1000, each=2.0)
    auto_steps.search(config("batch_size=4096", "device.memory_limit_mb=1000"), memory)
    assert memory.asked == [1, 2, 256, 512]


def test_search_takes_the_whole_batch_where_memory_does_not_grow(config):
    memory = Memory(limit=1000, each=0.0)
    auto_steps.search(config("batch_size=64", "device.memory_limit_mb=1000"), memory)
    assert memory.asked == [1, 2, 16, 64]


def test_search_halves_where_the_process_does_not_show_what_is_used(config):
    """A GPU without a limit: the resident memory of the process hardly grows."""
    asked = []

    def attempt(config, micro_batch, note=""):
        asked.append(micro_batch)
        rss = 500 * MB + micro_batch
        return Trial("store", micro_batch, fits=micro_batch <= 16, accum_steps=1, replicas=1, rss_bytes=rss)

    auto_steps.search(config("batch_size=65536"), attempt)
    assert asked == [1, 2, 65536, 256, 16, 64, 32]


def test_auto_becomes_a_number(config, monkeypatch, capsys):
    monkeypatch.setattr(auto_steps, "probe", Memory(limit=45, each=2.0))
    before = config("device.memory_limit_mb=45")
    after = auto_steps.with_accum_steps_resolved(before)
    assert after == replace(before, accum=replace(before.accum, steps=4))  # micro-batch 12; 16 would take 52 MB
    shown = capsys.readouterr().out
    assert "accum.steps for batch_size=48 in device.memory_limit_mb=45" in shown
    assert "accum.steps=4: micro-batch 12" in shown


def test_a_number_is_left_alone_and_a_run_keeps_its_own(config, monkeypatch):
    monkeypatch.setattr(auto_steps, "probe", lambda config, micro_batch: pytest.fail("nothing to probe"))
    given = config("accum.steps=6")
    assert auto_steps.with_accum_steps_resolved(given) is given
    with Run(given) as run:
        run.save_config(given)
    assert auto_steps.with_accum_steps_resolved(config()).accum.count == 6
    assert auto_steps.with_trained_accum_steps(config()).accum.count == 6


def test_a_number_under_a_limit_is_probed_once(config, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    memory = Memory(limit=45, each=2.0)
    monkeypatch.setattr(auto_steps, "probe", memory)
    fitting = config("accum.steps=4", "device.memory_limit_mb=45")
    assert auto_steps.with_accum_steps_resolved(fitting) is fitting
    assert memory.asked == [12]
    with pytest.raises(
        OutOfMemoryError, match=r"device\.memory_limit_mb=45 is not enough for this run.*accum\.steps=6"
    ):
        auto_steps.with_accum_steps_resolved(config("accum.steps=3", "device.memory_limit_mb=45"))
    with Run(fitting) as run:
        run.save_config(fitting)
    auto_steps.with_accum_steps_resolved(fitting)
    auto_steps.with_accum_steps_resolved(replace(fitting, train=replace(fitting.train, epochs=9)))
    assert memory.asked == [12, 16], "a run that has begun fits"
    other = [config("accum.steps=4", "device.memory_limit_mb=46"), config("accum.steps=6", "device.memory_limit_mb=45")]
    for each in (*other, replace(fitting, model=replace(fitting.model, memory="recompute"))):
        auto_steps.with_accum_steps_resolved(each)
    assert memory.asked == [12, 16, 12, 8, 12], "but not under another limit, nor with other micro-batches"


def test_a_number_is_probed_under_a_limit_of_the_users_own(config, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "45")
    memory = Memory(limit=45, each=2.0)
    monkeypatch.setattr(auto_steps, "probe", memory)
    auto_steps.with_accum_steps_resolved(config("accum.steps=4"))
    assert memory.asked == [12]


@pytest.mark.parametrize("change", ["data.on_error=skip", "train.epochs=9", "schedule=cosine", "an older version"])
def test_auto_goes_on_where_what_takes_memory_is_the_same(config, monkeypatch, change):
    monkeypatch.setattr(auto_steps, "probe", lambda config, micro_batch: pytest.fail("nothing to probe"))
    begun = config("accum.steps=6")
    with Run(begun) as run:
        run.save_config(begun)
        if change == "an older version":
            values = yaml.safe_load((run.path / "config.yaml").read_text())
            del values["optim"]["rates"], values["model"]["freeze"], values["device"]["virtual"]
            (run.path / "config.yaml").write_text(yaml.safe_dump(values))
    now = config(*([] if change == "an older version" else [change]))
    assert auto_steps.with_accum_steps_resolved(now).accum.count == 6


@pytest.mark.parametrize("other", ["batch_size=96", "device.memory_limit_mb=30", "model=resnet20"])
def test_auto_looks_again_for_another_run_in_the_same_folder(config, monkeypatch, other):
    memory = Memory(limit=45, each=2.0)
    monkeypatch.setattr(auto_steps, "probe", memory)
    begun = config("accum.steps=6")
    with Run(begun) as run:
        run.save_config(begun)
    assert auto_steps.with_accum_steps_resolved(config()).accum.count == 6
    assert not memory.asked
    auto_steps.with_accum_steps_resolved(config(other))
    assert memory.asked


def test_evaluating_what_was_never_trained(config):
    with pytest.raises(CheckpointError, match="train first"):
        auto_steps.with_trained_accum_steps(config())


def test_nothing_fits_says_what_would(config, monkeypatch):
    def memory(config, micro_batch, note=""):
        fixed = {"adam": 60.0, "adafactor": 30.0}[config.optim.kind]
        return Memory(limit=40, each=10.0 if config.precision == "bfloat16" else 20.0, fixed=fixed)(config, micro_batch)

    monkeypatch.setattr(auto_steps, "probe", memory)
    with pytest.raises(OutOfMemoryError) as error:
        auto_steps.with_accum_steps_resolved(config("optim=adam", "device.memory_limit_mb=40"))
    message = str(error.value)
    assert "not even a micro-batch of 1 fits in device.memory_limit_mb=40" in message
    assert "as it is: 80.0 MB" in message
    assert "model.memory=recompute: 80.0 MB" in message
    assert "optim=adafactor: 50.0 MB" in message
    assert "precision=bfloat16: 70.0 MB" in message
    assert "all of these: 40.0 MB" in message
    assert "(fits)" not in message, "a probe has 95 % of the limit"
    assert message.endswith("So raise device.memory_limit_mb to 85 at least")


def test_help_that_fits_is_marked(config):
    def memory(config, micro_batch, note=""):
        return Memory(limit=55, each=20.0, fixed={"adam": 60.0, "adafactor": 30.0}[config.optim.kind])(config, 1)

    message = auto_steps.what_would_help(config("optim=adam", "device.memory_limit_mb=55"), memory, 1)
    assert "optim=adafactor: 50.0 MB (fits)" in message
    assert "all of these: 50.0 MB (fits)" in message
    assert message.count("(fits)") == 2
    assert message.endswith("Choose what fits, or raise device.memory_limit_mb to 85 at least")


def test_help_is_tried_under_the_limit(config):
    """Peaks of 50 MB with room, but no room for them in 55."""

    def attempt(config, micro_batch, note=""):
        limited = config.device.memory_limit_mb is not None
        return Trial("store", 1, fits=not limited, peak_bytes=None if limited else 50 * MB)

    message = auto_steps.what_would_help(config("optim=adam", "device.memory_limit_mb=55"), attempt, 1)
    assert "optim=adafactor: 50.0 MB" in message
    assert "(fits)" not in message


def test_help_without_a_limit(config):
    message = auto_steps.what_would_help(
        config(), lambda config, micro_batch, note="": Trial("store", 1, fits=False), 1
    )
    assert "as it is: more than is free here" in message
    assert "(fits)" not in message
    assert message.endswith("So take a smaller model or smaller images")


def test_policies_are_those_the_model_has(config):
    def names(*overrides):
        return [policy.model.memory for policy in policies(config(*overrides))]

    assert names() == ["store", "recompute"]
    assert names("model=revnet38") == ["store", "recompute", "reverse"]


@pytest.mark.parametrize(
    ("examples", "sizes"), [(64, [1, 2, 4, 8, 16, 32, 64]), (50, [1, 2, 5, 10, 25, 50]), (7, [1, 7]), (1, [1])]
)
def test_ladder(examples, sizes):
    assert auto_steps.ladder(examples) == sizes


def test_plan_stops_climbing_where_memory_ends(config, monkeypatch, capsys, tmp_path):
    memory = Memory(limit=27, each=1.0)
    monkeypatch.setattr(probed_plan, "probe", memory)
    dispatch.run(config("job=plan", "device.memory_limit_mb=27"))
    written = json.loads((tmp_path / "mine/plan.json").read_text())
    assert [(t["memory"], t["micro_batch"], t["fits"], t["expected_bytes"]) for t in written["trials"]] == [
        (policy, size, size < 8, None) for policy in ("store", "recompute") for size in (1, 2, 4, 8)
    ]
    assert (tmp_path / "mine/plan.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "the memory of this run can't be foreseen, so it is tried: a test tries it" in shown
    assert "lenet5, adafactor, float32, batch_size=48 in device.memory_limit_mb=27" in shown


def test_plan_does_not_probe_what_is_clearly_beyond(config, monkeypatch, capsys):
    memory = Memory(limit=60, each=8.0)  # 4 examples take 52 MB, 8 would take 84
    monkeypatch.setattr(probed_plan, "probe", memory)
    trials = dispatch.run(config("job=plan", "device.memory_limit_mb=60"))["trials"]
    assert memory.asked == [1, 2, 4] * 2
    assert [(t["fits"], t["peak_bytes"], t["expected_bytes"]) for t in trials[3::4]] == [(False, None, 84 * MB)] * 2
    assert "beyond (some 84.0 MB)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("batch", "each", "largest"),
    [(256, 0.1, 32), (48, 0.1, None), (32, 0.1, None), (256, 2.0, None)],  # MB for each example, of 60
)
def test_plan_says_that_larger_micro_batches_were_not_looked_at(config, monkeypatch, capsys, batch, each, largest):
    monkeypatch.setattr(probed_plan, "probe", Memory(limit=60, each=each))
    dispatch.run(config("job=plan", f"batch_size={batch}", "device.memory_limit_mb=60"))
    shown = capsys.readouterr().out
    expected = f"micro-batches above {largest} may fit, too, and were not looked at: accum.steps=auto does"
    assert (expected in shown) if largest else ("were not looked at" not in shown)


def test_plan_says_which_probe_it_is_of_how_many(config):
    notes = []

    def attempt(config, micro_batch, note):
        notes.append(note)
        return Memory(limit=100, each=0.0)(config, micro_batch)

    probed_plan.climb(config("batch_size=4"), attempt, policies_after=1)
    probed_plan.climb(config("batch_size=4"), attempt, done=3)
    assert notes == [f" ({number} of about 6)" for number in range(1, 7)]


@pytest.mark.slow
def test_auto_trains_and_continues_with_its_choice(tmp_path):
    """ResNet-20 at batch 64 under a limit that the whole batch exceeds: two runs of the same command."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from accumtrain.shell.main import main; main()",
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
