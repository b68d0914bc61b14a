"""job=memory: a row and a bar for each policy, with made-up probes, and refusals."""

import json
from dataclasses import replace

import pytest

from accumtrain.dispatch import run
from accumtrain.errors import ConfigError
from accumtrain.measure import memory
from accumtrain.measure.memory import draw_memory
from accumtrain.measure.probe import ProbeResult
from accumtrain.models.config import LeNetConfig

MB = 2**20
ACTIVATIONS = {"store": 100, "recompute": 30, "reverse": 16}


@pytest.fixture
def probed(monkeypatch):
    """Put made-up trials in the place of probes: 4 MB of state. Return the list of requests."""
    asked = []

    def probe(config, micro_batch, note=""):
        asked.append((config.model.memory, micro_batch, note))
        peak = (4 + ACTIVATIONS[config.model.memory]) * MB
        return ProbeResult(config.model.memory, micro_batch, True, 2, 1, peak_bytes=peak, static_bytes=4 * MB)

    monkeypatch.setattr(memory, "probe", probe)
    return asked


@pytest.mark.slow
def test_policies_side_by_side(compose, probed, tmp_path, capsys):
    result = run(compose("job=memory", "batch_size=64", "accum.steps=2", f"run.dir={tmp_path}", "run.name=one"))
    assert probed == [("store", 32, " (1 of 3)"), ("recompute", 32, " (2 of 3)"), ("reverse", 32, " (3 of 3)")]
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "MB" in line]
    assert ["reverse", "20.0", "MB", "4.0", "MB", "16.0", "MB", "-", "yes"] in rows
    assert "model.memory=reverse takes 16% of the memory of stored activations" in out
    assert json.loads((tmp_path / "trials/memory-one" / "memory.json").read_text()) == json.loads(json.dumps(result))
    assert (tmp_path / "trials/memory-one" / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_with_one_policy(compose, probed, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(LeNetConfig, "policies", ("store",))
    run(compose("job=memory", "model=lenet5", f"run.dir={tmp_path}", "run.name=one"))
    assert [name for name, *_ in probed] == ["store"]
    assert "of stored activations" not in capsys.readouterr().out


@pytest.mark.parametrize("fits", [True, False])
def test_what_was_not_measured_is_said(fits, compose, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(memory, "probe", lambda config, size, note="": ProbeResult(config.model.memory, size, fits))
    run(compose("job=memory", f"run.dir={tmp_path}", "run.name=one"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["store", "-", "-", "-", "-", "yes" if fits else "no"] in rows
    assert (tmp_path / "trials/memory-one" / "memory.png").exists()


def test_the_bars_add_up_to_the_peak(monkeypatch, tmp_path):
    from matplotlib.axes import Axes

    drawn = []
    original = Axes.barh

    def barh(self, *arguments, **options):
        drawn.append(original(self, *arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(Axes, "barh", barh)
    trial = ProbeResult("store", 8, True, 1, 1, static_bytes=MB, peak_bytes=10 * MB)
    draw_memory([trial, replace(trial, memory="reverse", peak_bytes=3 * MB)], "small $x$", tmp_path / "memory.png")
    widths = [[bar.get_width() for bar in bars] for bars in drawn]
    assert widths == [[1, 1], [9, 2]]


@pytest.mark.parametrize(
    ("override", "message"),
    [("accum.steps=auto", "job=memory compares at one micro-batch"), ("device=tpu", "use job=plan")],
)
def test_what_it_refuses(override, message, compose, probed, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(compose("job=memory", override, f"run.dir={tmp_path}/runs"))
    assert probed == []
    assert not (tmp_path / "runs").exists()
