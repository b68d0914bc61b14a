"""What is foreseen: rehearsals of small runs, the plan and accum.steps=auto that use them, and the cache."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from accumtrain.config.convert import to_mapping
from accumtrain.jobs import dispatch
from accumtrain.planning import auto_steps, foreseen_plan, foresight, plan_cache
from accumtrain.planning.foresight import Foreseen, ForeseenPoint
from accumtrain.planning.plan_picture import draw
from accumtrain.planning.probe import Trial, probe
from accumtrain.process.environment import KERNELS_16BIT

MB = 2**20


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCUMTRAIN_PROGRAM", '["-m", "accumtrain"]')


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        given = ("model=lenet5", "data=synthetic", "batch_size=48", "accum.steps=auto", *overrides)
        return compose(*given, f"run.dir={tmp_path}", "run.name=mine")

    return of


def foreseen(peaks, memory="store", beside=100 * MB):
    moment = {"kind": "forward", "layer": "segments/0", "operation": "conv", "words": "forward of segment 0 (conv)"}
    points = [
        ForeseenPoint(
            size, peak * MB, [{**moment, "bytes": peak * MB, "held": {"state": 2 * MB, "forward": (peak - 2) * MB}}]
        )
        for size, peak in peaks.items()
    ]
    return Foreseen(memory, 2 * MB, beside, 0, points)


class Real:
    """Takes the place of `probe`: what each micro-batch takes in MB."""

    def __init__(self, limit, base, each):
        self.limit, self.base, self.each, self.asked = limit, base, each, []

    def __call__(self, config, micro_batch, note=""):
        self.asked.append(micro_batch)
        peak = int((self.base + self.each * micro_batch) * MB)
        if peak > self.limit * MB:
            return Trial("store", micro_batch, fits=False)
        steps = config.batch_size // micro_batch
        return Trial("store", micro_batch, True, steps, 1, peak_bytes=peak, rss_bytes=peak)


# --- accum.steps=auto -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "each", "asked", "chosen"),
    [
        (20, 2.0, [12], 12),  # as foreseen: 12 take 44 MB of 45.6, 16 would take 52
        (20, 2.1, [12], 12),
        (20, 1.3, [12, 16], 16),  # less than foreseen: 24 would take 51 MB
        (20, 0.5, [12, 16, 24, 48], 48),
        (20, 3.0, [12, 8], 8),  # more than foreseen: 12 would take 56 MB
        (20, 4.5, [12, 8, 1, 2, 4, 6], 4),  # far more
        (60, 3.0, [12, 8, 1], None),
    ],
)
def test_one_probe_confirms_a_choice_that_is_right(config, monkeypatch, base, each, asked, chosen):
    limited = config("device.memory_limit_mb=48")
    real = Real(48 * 0.95, base, each)
    expected = {size: 20 + 2 * size for size in auto_steps.ladder(48)}
    monkeypatch.setattr(auto_steps, "foresee", lambda variants, sizes: [foreseen(expected)])
    monkeypatch.setattr(auto_steps, "probe", real)
    monkeypatch.setattr(auto_steps, "what_would_help", lambda config, attempt, least: "nothing fits")
    if chosen is None:
        with pytest.raises(auto_steps.OutOfMemoryError, match="nothing fits"):
            auto_steps.with_accum_steps_resolved(limited)
    else:
        assert auto_steps.with_accum_steps_resolved(limited).accum.count == 48 // chosen
    assert real.asked == asked


@pytest.mark.parametrize(("free", "warned"), [(1.9, True), (2.1, False)])
def test_a_search_in_little_memory_says_how_to_leave_it_out(config, monkeypatch, capsys, free, warned):
    monkeypatch.setattr(auto_steps, "foresee", lambda variants, sizes: [foreseen({1: 22, 48: 116})])
    monkeypatch.setattr(auto_steps, "probe", Real(1000, 20, 2))
    monkeypatch.setattr(auto_steps, "free_bytes", lambda: int(free * 2**30))
    assert auto_steps.with_accum_steps_resolved(config()).accum.count == 1
    shown = " ".join(capsys.readouterr().out.split())
    for text in (f"only {free} GB of memory is free", "give accum.steps as a number"):
        assert (text in shown) == warned


def test_without_a_limit_resident_memory_counts(config, monkeypatch):
    real = Real(950, 920, 2)
    monkeypatch.setattr(auto_steps, "foresee", lambda variants, sizes: [foreseen({1: 22, 48: 116}, beside=900 * MB)])
    monkeypatch.setattr(auto_steps, "probe", real)
    monkeypatch.setattr(auto_steps, "free_bytes", lambda: 1000 * MB)  # 950 may be used: 50 for tensors
    assert auto_steps.with_accum_steps_resolved(config()).accum.count == 4
    assert real.asked == [12]


def test_sizes_between_points_lie_on_lines():
    found = foreseen({1: 10, 4: 22, 8: 30})
    assert [found.peak_bytes(size) / MB for size in (1, 2, 4, 6, 8, 16)] == [10, 14, 22, 26, 30, 46]
    assert foreseen({1: 10}).peak_bytes(1) == 10 * MB


# --- job=plan ---------------------------------------------------------------------------------------------------


def test_the_table_and_the_moments(config, monkeypatch, capsys, tmp_path):
    peaks = {1: 22, 2: 24, 4: 28, 8: 36, 16: 52, 48: 116}
    found = [foreseen(peaks), foreseen(dict.fromkeys(peaks, 20), "recompute")]
    monkeypatch.setattr(foreseen_plan, "foresee", lambda variants, sizes: found)
    monkeypatch.setattr(foreseen_plan, "probe", measuring([]))
    result = dispatch.run(config("job=plan", "device.memory_limit_mb=48"))
    trials = json.loads((tmp_path / "mine/plan.json").read_text())["trials"]
    assert [(t["memory"], t["micro_batch"], t["accum_steps"], t["fits"]) for t in trials] == [
        (memory, size, 48 // size, memory == "recompute" or size <= 8)
        for memory in ("store", "recompute")
        for size in peaks
    ]
    measured = [t for t in trials if t["measured"]]
    assert [(t["memory"], t["micro_batch"], t["peak_bytes"] / MB) for t in measured] == [
        ("store", 8, 33),
        ("recompute", 48, 33),
    ]
    assert all((t["rss_bytes"], t["examples_per_second"]) == (900 * MB, 12.5) for t in measured)
    others = [t for t in trials if not t["measured"]]
    assert all(t["rss_bytes"] is None and t["examples_per_second"] is None for t in others)
    assert [t["expected_bytes"] / MB for t in others[:4]] == [122, 124, 128, 152]
    assert trials[3]["moments"][0]["held"] == {"state": 2 * MB, "forward": 34 * MB}
    assert result["trials"] == trials
    shown = capsys.readouterr().out
    assert shown.index("are measured, and only then") < shown.index("in device.memory_limit_mb=48, foreseen\n")
    lines = [" ".join(line.split()) for line in shown[shown.rindex("in device.memory_limit_mb=48\n") :].splitlines()]
    assert "store 6 8 33.0 MB 0 bytes 900.0 MB 12.5 yes measured" in lines
    assert "store 3 16 52.0 MB 0 bytes some 152.0 MB - no foreseen" in lines
    assert "largest moments of store, micro-batch 8:\n  36.0 MB in forward of segment 0 (conv): state 2.0 MB" in shown
    assert (tmp_path / "mine/plan.png").exists()
    assert "were not looked at" not in shown  # the whole batch was


def test_the_table_says_where_it_ends(config, monkeypatch, capsys):
    monkeypatch.setattr(foreseen_plan, "foresee", lambda variants, sizes: [foreseen(dict.fromkeys(sizes, 20))])
    monkeypatch.setattr(foreseen_plan, "probe", measuring([]))
    dispatch.run(config("job=plan", "batch_size=64", "device.memory_limit_mb=48"))
    assert "micro-batches above 32 may fit, too" in capsys.readouterr().out


def measuring(asked, too_large=()):
    """A function in the place of `probe`, which notes what is asked for."""

    def attempt(config, micro_batch, note=""):
        asked.append((config.model.memory, micro_batch, note))
        trial = Trial(config.model.memory, micro_batch, fits=False)
        if (config.model.memory, micro_batch) in too_large:
            return trial
        sizes = {"peak_bytes": 33 * MB, "workspace_bytes": 0, "rss_bytes": 900 * MB}
        return replace(trial, fits=True, accum_steps=48 // micro_batch, replicas=1, examples_per_second=12.5, **sizes)

    return attempt


@pytest.mark.parametrize(
    ("too_large", "asked", "results"),
    [
        ([], [8], [("foreseen", True)] * 3 + [("measured", True), ("foreseen", False)]),
        ([8], [8, 4], [("foreseen", True)] * 2 + [("measured", True), ("measured", False), ("foreseen", False)]),
        ([8, 4], [8, 4], [("foreseen", True)] * 2 + [("measured", False)] * 2 + [("foreseen", False)]),
    ],
)
def test_the_largest_that_should_fit_is_measured(config, too_large, asked, results):
    trials = [
        Trial("store", size, size <= 8, 48 // size, 1, peak_bytes=MB, measured=False, moments=[{"bytes": size}])
        for size in (1, 2, 4, 8, 16)
    ]
    made = []
    probe_ = measuring(made, {("store", size) for size in too_large})
    found = foreseen_plan.with_largest_measured([config()], trials, probe_)
    assert made == [("store", size, " (policy 1 of 1)") for size in asked]
    assert [("measured" if t.measured else "foreseen", t.fits) for t in found] == results
    assert [(t.micro_batch, t.accum_steps, t.moments) for t in found] == [
        (t.micro_batch, t.accum_steps, t.moments) for t in trials
    ]
    assert [t.peak_bytes for t in found if t.measured and not t.fits] == [None] * len(too_large)


def test_where_nothing_should_fit_nothing_is_measured(config):
    trials = [Trial("store", 1, fits=False, peak_bytes=MB, measured=False)]
    assert foreseen_plan.with_largest_measured([config()], trials, pytest.fail) == trials


def test_an_interrupt_while_measuring_leaves_nothing(config, monkeypatch, tmp_path):
    def stopped(config, micro_batch, note=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(foreseen_plan, "foresee", lambda variants, sizes: [foreseen({1: 22})])
    monkeypatch.setattr(foreseen_plan, "probe", stopped)
    with pytest.raises(KeyboardInterrupt):
        dispatch.run(config("job=plan", "device.memory_limit_mb=48"))
    assert not (tmp_path / "mine").exists()


def test_the_picture_tells_measured_from_foreseen(saved_figures, tmp_path):
    trials = [Trial("store", size, True, peak_bytes=size * MB, measured=size == 4) for size in (1, 2, 4)]
    draw(trials, 8, tmp_path / "plan.png")
    lines = saved_figures[0].axes[0].get_lines()
    rings = {
        tuple(line.get_xdata()): line.get_markerfacecolor() == "white" for line in lines if line.get_ls() == "None"
    }
    assert (rings[4,], rings[1, 2]) == (False, True)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("device=mirrored", "device.virtual=2"), "it is not on one CPU"),
        (("device.xla=true",), "XLA compiles it"),
        ((), None),
    ],
)
def test_what_is_tried_instead(config, monkeypatch, overrides, reason):
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS", raising=False)
    monkeypatch.setattr(foresight.environment, "shows_gpu", lambda: False)
    assert foresight.why_not(config(*overrides)) == reason


@pytest.mark.parametrize(("device", "reason"), [("auto", "it is not on one CPU"), ("cpu", None)])
def test_a_gpu_is_no_matter_for_a_run_on_the_cpu(config, monkeypatch, device, reason):
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS", raising=False)
    monkeypatch.setattr(foresight.environment, "shows_gpu", lambda: True)
    assert foresight.why_not(config(f"device={device}")) == reason


def test_operations_side_by_side_are_tried(config, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    assert "side by side" in foresight.why_not(config())


# --- the cache --------------------------------------------------------------------------------------------------


def request(config, **changed):
    asked = {"config": to_mapping(config.with_accum_steps(1)), "sizes": [1, 2], "commit": True}
    return asked | {"free_mb": 4000} | changed


def test_an_answer_is_kept_for_the_same_request_only(config, monkeypatch):
    asked = request(config())
    plan_cache.write(asked, {"found": 1})
    assert plan_cache.read(asked) == {"found": 1}
    assert plan_cache.read(request(replace(config(), run=replace(config().run, name="another")))) == {"found": 1}
    assert plan_cache.read(request(config("precision=bfloat16"))) is None
    assert plan_cache.read(request(config("model.memory=recompute"))) is None
    assert plan_cache.read(request(config(), sizes=[1, 2, 4])) is None
    assert plan_cache.read(request(config(), free_mb=8000)) == {"found": 1}
    assert plan_cache.read(request(config(), free_mb=700)) is None, "the allocator begins with less"
    monkeypatch.setattr(plan_cache, "_program", lambda: ["another version"])
    assert plan_cache.read(asked) is None


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", KERNELS_16BIT])
def test_an_answer_is_kept_for_the_same_kernels_only(config, monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    asked = request(config())
    plan_cache.write(asked, {"found": 1})
    monkeypatch.setenv(variable, "another")
    assert plan_cache.read(asked) is None


@pytest.mark.parametrize("own", [("data=folder", "data.path=photos"), ("model=keras", "model.name=MobileNetV2")])
def test_nothing_is_kept_where_files_of_the_user_s_or_layers_of_keras_count(config, own):
    asked = request(config(*own))
    plan_cache.write(asked, {"found": 1})
    assert plan_cache.read(asked) is None
    assert not plan_cache.folder().exists()


def test_nothing_is_kept_for_a_program_of_the_user_s(config, monkeypatch):
    monkeypatch.setenv("ACCUMTRAIN_PROGRAM", '["mine.py"]')
    plan_cache.write(request(config()), {"found": 1})
    assert not plan_cache.folder().exists()


def test_a_damaged_answer_is_none(config):
    asked = request(config())
    plan_cache.write(asked, {"found": 1})
    (file,) = plan_cache.folder().iterdir()
    file.write_text("{")
    assert plan_cache.read(asked) is None


# --- a rehearsal ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rehearsal_foresees_what_a_probe_finds_and_is_kept(config, capsys):
    """ResNet-20 at 48 images of 32 pixels; TensorFlow starts twice."""
    asked = config("model=resnet20", "data.train_examples=256", "data.test_examples=48")
    (found,) = foresight.foresee([asked], [1, 48])
    real = probe(asked, 48)
    assert found.static_bytes == pytest.approx(real.static_bytes, rel=0.02)
    assert found.points[1].peak_bytes == pytest.approx(real.peak_bytes, rel=0.1), "packing differs from run to run"
    peak = found.points[1].moments[0]
    assert sum(peak["held"].values()) == peak["bytes"]
    assert max(peak["held"], key=peak["held"].get) == "forward", "activations that are stored"
    assert "rehearsing store" in capsys.readouterr().out
    assert foresight.foresee([asked], [1, 48]) == [found]
    shown = capsys.readouterr().out
    assert "rehearsing" not in shown
    assert "left it" in shown
