"""job=plan and accum.steps=auto against made-up memory, and one run against the real one."""

import json
import random
from dataclasses import replace
from functools import partial

import pytest
import yaml

from accumtrain import dispatch
from accumtrain.config.arithmetic import divisors
from accumtrain.config.jobs import JOBS
from accumtrain.errors import CheckpointError, OutOfMemoryError
from accumtrain.measure import auto_steps, plan
from accumtrain.measure.plan import draw_plan
from accumtrain.measure.probe import ProbeResult
from accumtrain.measure.search import doubled, micro_batches
from accumtrain.train.tell.remedies import with_each_policy
from tests.begun import leave_run, save_config
from tests.programs import output_of

MB = 2**20


@pytest.fixture
def config(compose, tmp_path):
    run = (f"run.dir={tmp_path}", "run.name=mine")
    return partial(compose, "model=lenet5", "batch_size=48", "accum.steps=auto", *run)


def settle(config):
    return dispatch.settle_accum_steps(config, JOBS["train"])


@pytest.fixture
def probing(monkeypatch):
    """Put a Memory in the place of all probes."""

    def put(memory):
        for module in (auto_steps, plan):
            monkeypatch.setattr(module, "probe", memory)
            monkeypatch.setattr(module, "probe_smallest", getattr(memory, "smallest", lambda config, note="": []))
        return memory

    return put


class Memory:
    """Takes the place of `probe`: a run takes `fixed` MB and `each` MB for every example of a micro-batch.

    A limit of None is what the configuration leaves to a probe.
    """

    def __init__(self, limit, each, fixed=20.0, replicas=1, noise=0.0, batch_norm=False):
        self.limit, self.each, self.fixed, self.replicas, self.noise = limit, each, fixed, replicas, noise
        self.batch_norm = batch_norm
        self.asked = []

    def takes(self, micro_batch):
        wobble = random.Random(micro_batch).uniform(-self.noise, self.noise)
        return self.fixed + wobble + self.each * micro_batch

    def __call__(self, config, micro_batch, note=""):
        self.asked.append(micro_batch)
        out = ProbeResult(config.model.memory, micro_batch, fits=False)
        limit = config.device.memory_limit_mb
        if limit is not None and self.takes(micro_batch) > (0.95 * limit if self.limit is None else self.limit):
            return out
        steps = config.batch_size // (micro_batch * self.replicas)
        peak = int(self.takes(micro_batch) * MB)
        run = replace(out, fits=True, accum_steps=steps, replicas=self.replicas, batch_norm=self.batch_norm)
        return replace(run, peak_bytes=peak, rss_bytes=peak)

    def smallest(self, config, note=""):
        """Take the place of `probe_smallest`. Its trials are not in `asked`."""
        examples = config.batch_size // self.replicas
        before = len(self.asked)
        sizes = doubled(micro_batches(examples, 2 if self.batch_norm else 1))[:2]
        trials = [self(config, size) for size in sizes]
        del self.asked[before:]
        return trials if all(trial.fits for trial in trials) else []


@pytest.mark.parametrize("seed", range(60))
def test_search_finds_the_largest_divisor_that_fits(config, seed):
    draw = random.Random(seed)
    replicas = draw.choice([1, 1, 2, 3])
    examples = draw.choice([1, 7, 12, 60, 64, 96, 97, 256, 360, 1000])
    limit = draw.randint(21, 400)
    each = draw.choice([0.01, 0.3, 1.0, 5.0])
    memory = Memory(limit, each, replicas=replicas, noise=draw.choice([0.0, 0.4 * each]))  # never turns the order
    batch = config(f"batch_size={examples * replicas}", f"device.memory_limit_mb={limit}")

    trials = auto_steps.search(batch, memory.smallest, memory)

    fitting = [size for size in divisors(examples) if memory.takes(size) <= limit]
    assert all(t.fits == (t.micro_batch in fitting) for t in trials)
    assert max((t.micro_batch for t in trials if t.fits), default=0) == max(fitting, default=0)
    assert len(memory.asked) == len(set(memory.asked)), "no micro-batch is tried twice"


@pytest.mark.parametrize(("limit", "fits"), [(30, []), (45, [2]), (1000, [2, 48])])
def test_batch_norm_never_gets_micro_batches_of_1(config, limit, fits):
    memory = Memory(limit, each=12.0, batch_norm=True)
    trials = auto_steps.search(config(f"device.memory_limit_mb={limit}"), memory.smallest, memory)
    assert [trial.micro_batch for trial in trials if trial.fits][-1:] == fits[-1:]
    assert all(trial.micro_batch > 1 for trial in trials if trial.fits)


def test_a_batch_of_1_is_left_to_the_rule_of_batch_norm(config):
    memory = Memory(99, each=1.0, batch_norm=True)
    (trial,) = auto_steps.search(config("batch_size=1", "device.memory_limit_mb=99"), memory.smallest, memory)
    assert trial.accum_steps == 1


def test_two_sizes_that_do_not_fit_one_after_the_other_are_tried_apart(config):
    memory = Memory(limit=85, each=20.0)
    auto_steps.search(config("device.memory_limit_mb=85"), lambda config: [], memory)
    assert memory.asked == [1, 2, 3], "4 is clearly beyond a line through 2 and 3"


def test_search_needs_few_probes(config):
    memory = Memory(limit=1000, each=2.1)
    limited = config("batch_size=4096", "device.memory_limit_mb=1000")
    assert [t.micro_batch for t in auto_steps.search(limited, memory.smallest, memory)] == [1, 2, 256]
    assert memory.asked == [256], "512 would take 1095 MB, clearly more than 950"
    auto_steps.search(limited, memory.smallest, close := Memory(limit=1000, each=1.94))
    assert close.asked == [256, 512], "512 would take 1013 MB"


def test_search_takes_the_whole_batch_where_memory_does_not_grow(config):
    memory = Memory(limit=1000, each=0.0)
    auto_steps.search(config("batch_size=64", "device.memory_limit_mb=1000"), memory.smallest, memory)
    assert memory.asked == [16, 64]


def test_a_size_below_one_that_fits_is_not_tried(config):
    """Batch norm that is frozen: the keys allow 2 and 4 as small sizes, the model 1."""

    def smallest(config):
        return [memory(config, 2), memory(config, 4)]

    memory = Memory(limit=1000, each=0.0)
    auto_steps.search(config("batch_size=8", "device.memory_limit_mb=1000"), smallest, memory)
    assert memory.asked == [2, 4, 8]


def test_search_halves_where_the_process_does_not_show_what_is_used(config):
    """A GPU without a limit: the resident memory of the process hardly grows."""
    asked = []

    def attempt(config, micro_batch, note=""):
        asked.append(micro_batch)
        rss = 500 * MB + micro_batch
        return ProbeResult("store", micro_batch, fits=micro_batch <= 16, accum_steps=1, replicas=1, rss_bytes=rss)

    auto_steps.search(config("batch_size=65536"), lambda config: [], attempt)
    assert asked == [1, 2, 65536, 256, 16, 64, 32]


@pytest.mark.parametrize(("free", "warned"), [(1.9, True), (2.1, False)])
def test_a_search_in_little_memory_says_how_to_leave_it_out(config, monkeypatch, probing, capsys, free, warned):
    probing(Memory(limit=1000, each=2.0))
    monkeypatch.setattr(auto_steps, "free_bytes", lambda: int(free * 2**30))
    assert settle(config()).accum.count == 1
    shown = " ".join(capsys.readouterr().out.split())
    for text in (f"only {free} GB of memory is free", "give accum.steps as a number"):
        assert (text in shown) == warned


def test_without_a_limit_resident_memory_counts(config, monkeypatch, probing):
    """The expected memory of the second small size counts too."""

    def attempt(config, size, note=""):
        resident = (920 + 2 * size) * MB
        return ProbeResult("store", size, resident <= 950 * MB, 48 // size, 1, peak_bytes=size, rss_bytes=resident)

    def smallest(config, note=""):
        first, second = attempt(config, 1), attempt(config, 2)
        return [first, replace(second, rss_bytes=None, expected_bytes=second.rss_bytes)]

    probing(attempt)
    monkeypatch.setattr(auto_steps, "probe_smallest", smallest)
    monkeypatch.setattr(auto_steps, "free_bytes", lambda: 1000 * MB)  # 950 may be used: 30 for tensors
    assert settle(config()).accum.count == 4


def test_auto_becomes_a_number(config, probing, capsys):
    probing(Memory(limit=45, each=2.0))
    before = config("device.memory_limit_mb=45")
    after = settle(before)
    assert after == replace(before, accum=replace(before.accum, steps=4))  # micro-batch 12; 16 would take 52 MB
    shown = capsys.readouterr().out
    assert "accum.steps for batch_size=48 in device.memory_limit_mb=45" in shown
    assert "accum.steps=4: micro-batch 12" in shown


def test_a_number_is_left_alone_and_a_run_keeps_its_own(config, monkeypatch):
    monkeypatch.setattr(auto_steps, "probe", lambda config, micro_batch: pytest.fail("nothing to probe"))
    given = config("accum.steps=6")
    assert settle(given) is given
    leave_run(given)
    assert settle(config()).accum.count == 6
    assert dispatch.settle_accum_steps(config(), JOBS["evaluate"]).accum.count == 6


def test_a_number_under_a_limit_is_probed_once(config, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    memory = Memory(limit=45, each=2.0)
    monkeypatch.setattr(auto_steps, "probe", memory)
    fitting = config("accum.steps=4", "device.memory_limit_mb=45")
    assert settle(fitting) is fitting
    assert memory.asked == [12]
    told = r"device\.memory_limit_mb=45 \(MB of tensors\) is not enough for this run.*accum\.steps=6"
    with pytest.raises(OutOfMemoryError, match=told):
        settle(config("accum.steps=3", "device.memory_limit_mb=45"))
    save_config(fitting)
    settle(fitting)
    assert memory.asked == [12, 16, 12], "a run without an update may be what did not fit"
    leave_run(fitting)
    memory.asked.clear()
    settle(fitting)
    settle(replace(fitting, train=replace(fitting.train, epochs=9)))
    assert not memory.asked, "a run that has made an update fits"
    settle(config("accum.steps=4", "device.memory_limit_mb=46"))
    settle(config("accum.steps=6", "device.memory_limit_mb=45"))
    settle(replace(fitting, model=replace(fitting.model, memory="recompute")))
    assert memory.asked == [12, 8, 12], "but not under another limit, nor with other micro-batches"


def test_a_number_is_probed_under_a_limit_of_the_users_own(config, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "45")
    memory = Memory(limit=45, each=2.0)
    monkeypatch.setattr(auto_steps, "probe", memory)
    settle(config("accum.steps=4"))
    assert memory.asked == [12]


@pytest.mark.parametrize("change", ["data.on_error=skip", "train.epochs=9", "schedule=cosine"])
def test_auto_goes_on_where_what_takes_memory_is_the_same(config, monkeypatch, change):
    monkeypatch.setattr(auto_steps, "probe", lambda config, micro_batch: pytest.fail("nothing to probe"))
    leave_run(config("accum.steps=6"))
    assert settle(config(change)).accum.count == 6


def test_auto_looks_again_where_the_first_update_did_not_fit(config, probing):
    """As the message of that run says: the same command with accum.steps=auto."""
    memory = probing(Memory(limit=45, each=2.0))
    limit = "device.memory_limit_mb=45"
    save_config(config(limit, "accum.steps=1"))
    assert settle(config(limit)).accum.count > 1
    assert memory.asked


@pytest.mark.parametrize("other", ["batch_size=96", "device.memory_limit_mb=30", "model=resnet20"])
def test_auto_looks_again_for_another_run_in_the_same_folder(config, probing, other):
    memory = probing(Memory(limit=45, each=2.0))
    leave_run(config("accum.steps=6"))
    assert settle(config()).accum.count == 6
    assert not memory.asked
    settle(config(other))
    assert memory.asked


def test_evaluating_what_was_never_trained(config):
    with pytest.raises(CheckpointError, match="train first"):
        dispatch.settle_accum_steps(config(), JOBS["evaluate"])


def test_nothing_fits_says_what_would(config, probing):
    def memory(config, micro_batch, note=""):
        fixed = {"adam": 60.0, "adafactor": 30.0}[config.optim.kind]
        each = 10.0 if config.precision == "bfloat16" else 20.0
        return Memory(limit=None, each=each, fixed=fixed)(config, micro_batch)

    probing(memory)
    with pytest.raises(OutOfMemoryError) as error:
        settle(config("optim=adam", "device.memory_limit_mb=40"))
    message = str(error.value)
    for part in (
        "not even a micro-batch of 1 fits in device.memory_limit_mb=40",
        *("as it is: 80.0 MB", "model.memory=recompute: 80.0 MB", "optim=adafactor: 50.0 MB"),
        *("precision=bfloat16: 70.0 MB", "all of these: 40.0 MB"),
    ):
        assert part in message
    assert "(fits)" not in message, "a probe has 95 % of the limit"
    assert message.endswith("So raise device.memory_limit_mb to 85 at least")


def test_help_that_fits_is_marked(config):
    def memory(config, micro_batch, note=""):
        return Memory(limit=None, each=20.0, fixed={"adam": 60.0, "adafactor": 30.0}[config.optim.kind])(config, 1)

    message = auto_steps.describe_remedies(config("optim=adam", "device.memory_limit_mb=55"), memory, 1)
    assert "optim=adafactor: 50.0 MB (fits)" in message
    assert "all of these: 50.0 MB (fits)" in message
    assert message.count("(fits)") == 2
    assert message.endswith("Choose what fits, or raise device.memory_limit_mb to 85 at least")


def test_help_is_tried_under_the_limit(config):
    """A peak of 50 MB with room does not fit into 55."""

    def attempt(config, micro_batch, note=""):
        limited = config.device.memory_limit_mb is not None
        return ProbeResult("store", 1, fits=not limited, peak_bytes=None if limited else 50 * MB)

    message = auto_steps.describe_remedies(config("optim=adam", "device.memory_limit_mb=55"), attempt, 1)
    assert "optim=adafactor: 50.0 MB" in message
    assert "(fits)" not in message


def test_help_without_a_limit(config):
    message = auto_steps.describe_remedies(config(), lambda *_: ProbeResult("store", 1, fits=False), 1)
    assert "as it is: more than is free here" in message
    assert "(fits)" not in message
    assert message.endswith("So take a smaller model or smaller images")


@pytest.mark.parametrize(("runtime", "limit"), [("tensorflow", 8), ("jax", 7)])
def test_the_limit_that_a_message_names_is_enough_for_a_probe(config, runtime, limit):
    """Probes get whole MB: 95 % of 7 MB with TensorFlow are 6, and a peak of 6.5 MB does not fit."""
    asked = config(f"device.runtime={runtime}", "device=cpu", "device.memory_limit_mb=6")
    message = auto_steps.describe_remedies(asked, Memory(limit=None, each=0.5, fixed=6.0), 1)
    assert message.endswith(f"So raise device.memory_limit_mb to {limit} at least")
    assert auto_steps.budget(config("device.memory_limit_mb=7", f"device.runtime={runtime}", "device=cpu")) == (
        7 * MB if runtime == "jax" else 0.95 * 7 * MB
    )


def test_with_batch_norm_a_message_is_about_micro_batches_of_2(config):
    """One of 1 is never trained, so a limit that is enough for it helps nobody."""
    memory = Memory(limit=None, each=10.0, batch_norm=True)
    message = auto_steps.describe_remedies(config("device.memory_limit_mb=25"), memory, 1)
    assert "not even a micro-batch of 2 fits" in message
    assert "as it is: 40.0 MB" in message
    assert message.endswith("So raise device.memory_limit_mb to 43 at least")


@pytest.mark.parametrize(
    ("needed", "end"), [(43, "to 43 at least"), (60, "to 65 at least"), (95, "and take a smaller")]
)
def test_the_limit_that_a_message_names_was_tried(config, needed, end):
    """The allocator needs more room under a limit than the peak of 40 MB, and never more than twice as much."""

    def attempt(config, micro_batch, note=""):
        limit = config.device.memory_limit_mb
        return ProbeResult("store", 1, fits=limit is None or limit >= needed, peak_bytes=40 * MB)

    message = auto_steps.describe_remedies(config("device.memory_limit_mb=30"), attempt, 1)
    assert f"So raise device.memory_limit_mb {end}" in message


def test_policies_are_those_the_model_has(config):
    def names(*overrides):
        return [policy.model.memory for policy in with_each_policy(config(*overrides))]

    assert names() == ["store", "recompute"]
    assert names("model=revnet38") == ["store", "recompute", "reverse"]


# ---- job=plan ----


@pytest.mark.parametrize(
    ("limit", "each", "asked", "rows"),
    [
        (60, 2.0, [16], ["measured yes", "measured yes", "line yes", "line yes", "measured yes", "line no"]),  # of 24
        (1000, 2.0, [48], ["measured yes", "measured yes", "line yes", "line yes", "line yes", "measured yes"]),
        (28, 8.0, [1], ["measured no"]),  # 26.6 MB may be used
        (30, 8.0, [1, 2], ["measured yes", "measured no"]),
        (35, 6.0, [], ["measured yes", "measured yes", "line no"]),  # of 3
    ],
)
def test_one_probe_confirms_the_largest_that_should_fit(config, probing, tmp_path, limit, each, asked, rows):
    memory = probing(Memory(limit=0.95 * limit, each=each))
    result = dispatch.run(config("job=plan", f"device.memory_limit_mb={limit}"))
    trials = json.loads((tmp_path / "trials/plan-mine/plan.json").read_text())["trials"]
    assert result["trials"] == trials
    assert memory.asked == asked * 2
    assert [f"{'measured' if t['measured'] else 'line'} {'yes' if t['fits'] else 'no'}" for t in trials] == rows * 2
    sizes = (1, 2, 3) if limit == 35 else (1, 2, 4, 8, 16, 24 if limit == 60 else 48)[: len(rows)]
    assert [(t["memory"], t["micro_batch"]) for t in trials] == [
        (policy, size) for policy in ("store", "recompute") for size in sizes
    ]
    for t in (trial for trial in trials if trial["replicas"]):
        assert t["peak_bytes"] == pytest.approx(memory.takes(t["micro_batch"]) * MB, abs=2)
        assert t["accum_steps"] == 48 // t["micro_batch"]
        if not t["measured"]:
            assert (t["rss_bytes"], t["examples_per_second"]) == (None, None)
            assert t["expected_bytes"] == t["peak_bytes"]
    assert "moments" not in trials[0]
    assert (tmp_path / "trials/plan-mine/plan.png").read_bytes().startswith(b"\x89PNG")


class Bent(Memory):
    """Takes more, or less, for each example than the two small sizes tell."""

    def __init__(self, limit, each, later):
        super().__init__(limit, each)
        self.later = later

    def takes(self, micro_batch):
        return self.fixed + self.each * min(micro_batch, 2) + self.later * max(0, micro_batch - 2)


@pytest.mark.parametrize(
    ("each", "later", "asked", "largest"),
    [
        (2.0, 1.0, [16, 24], 24),  # 48 would take 70 MB, by a line through 2 and 16, too
        (2.0, 0.6, [16, 48], 48),  # 16 take 32 MB, so 48 take 52
        (1.0, 2.2, [24, 6, 16, 8, 12], 12),  # 24 would take 70 MB in place of 44
    ],
)
def test_a_line_that_is_wrong_costs_another_probe(config, probing, each, later, asked, largest):
    memory = Bent(52.5, each, later)
    limited = config("device.memory_limit_mb=56")  # 53.2 may be used
    if largest == 12:
        memory.limit = 45
    trials = plan.plan_policy(limited, memory.smallest, memory)
    assert memory.asked == asked
    assert max(t.micro_batch for t in trials if t.fits) == largest
    assert all(t.fits for t in trials if t.micro_batch <= largest)


def test_the_screen_tells_a_line_from_what_was_measured(config, probing, capsys):
    def attempt(config, size, note=""):
        assert note == f" (policy {1 + ('store', 'recompute').index(config.model.memory)} of 2)"
        found = memory(config, size)
        return replace(found, rss_bytes=900 * MB, examples_per_second=12.5) if found.fits else found

    memory = Memory(limit=60, each=2.0)
    attempt.smallest = memory.smallest
    probing(attempt)
    dispatch.run(config("job=plan", "device.memory_limit_mb=60"))
    shown = capsys.readouterr().out
    assert "lenet5, adafactor, float32, batch_size=48 in device.memory_limit_mb=60" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "store 3 16 52.0 MB 900.0 MB 12.5 yes measured" in lines
    assert "store 6 8 36.0 MB ~399.4 MB - yes line" in lines
    assert "store 2 24 68.0 MB ~1.4 GB - no line" in lines


@pytest.mark.parametrize(
    ("batch", "each", "largest"),
    [(256, 0.1, 256), (256, 0.5, 64), (96, 1.0, 32), (256, 2.0, 16)],  # MB for each example beside 20, of 57
)
def test_plan_shows_what_auto_takes_and_the_first_that_does_not_fit(config, probing, batch, each, largest):
    probing(Memory(limit=57, each=each))
    given = (f"batch_size={batch}", "device.memory_limit_mb=60")
    trials = [trial for trial in dispatch.run(config("job=plan", *given))["trials"] if trial["memory"] == "store"]
    assert max(trial["micro_batch"] for trial in trials if trial["fits"]) == largest
    assert [trial["micro_batch"] > largest for trial in trials if not trial["fits"]] == [True] * (largest < batch)
    auto = config("accum.steps=auto", *given)
    assert auto_steps.find_accum_steps(auto, auto) == batch // largest


def test_an_interrupt_while_probing_leaves_nothing(config, probing, tmp_path):
    def stopped(config, micro_batch, note=""):
        raise KeyboardInterrupt

    probing(stopped)
    with pytest.raises(KeyboardInterrupt):
        dispatch.run(config("job=plan", "device.memory_limit_mb=48"))
    assert not (tmp_path / "trials").exists()


def test_the_picture_tells_measured_from_what_lies_on_a_line(saved_figures, tmp_path):
    trials = [ProbeResult("store", size, True, peak_bytes=size * MB, measured=size == 4) for size in (1, 2, 4)]
    draw_plan(trials, 8, tmp_path / "plan.png")
    lines = saved_figures[-1].axes[0].get_lines()
    faces = {tuple(line.get_xdata()): line.get_markerfacecolor() for line in lines if line.get_ls() == "None"}
    assert (faces[4,] == "white", faces[1, 2] == "white") == (False, True)


@pytest.mark.slow
def test_auto_trains_and_continues_with_its_choice(tmp_path):
    """ResNet-20 at batch 64 under a limit that the whole batch exceeds: two runs of the same command."""
    command = (
        *("-m", "accumtrain", "data=synthetic", "data.train_examples=128", "data.test_examples=64", "accum.steps=auto"),
        *("model=resnet20", "device.memory_limit_mb=110", "batch_size=64", f"run.dir={tmp_path}", "run.name=mine"),
    )
    first = output_of(*command, "train.steps=2")
    steps = yaml.safe_load((tmp_path / "mine/config.yaml").read_text())["accum"]["steps"]
    assert 1 < steps < 64
    assert f"accum.steps={steps}: micro-batch {64 // steps}" in first
    assert "probing" not in output_of(*command, "train.steps=3")
    summary = json.loads((tmp_path / "mine/summary.json").read_text())
    assert (summary["step"], summary["accum_steps"], summary["batch_size"]) == (3, steps, 64)
    assert summary["memory"]["tensor_peak_bytes"] < 110 * MB
