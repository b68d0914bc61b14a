"""Probes: the measurements of a child process, the ways it ends, and that it never outlives its parent."""

import json
import os
import re
import signal
import sys
from functools import partial

import psutil
import pytest

from accumtrain.config.read import to_mapping
from accumtrain.devices.config import CpuConfig
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.fields import format_value
from accumtrain.measure import probe
from accumtrain.measure.probe import ProbeResult
from accumtrain.process import environment
from tests.programs import eventually, output_of, start_python, with_path


@pytest.fixture
def config(compose, tmp_path):
    return partial(compose, "model=lenet5", "batch_size=48", f"run.dir={tmp_path}", "run.name=mine")


@pytest.mark.slow
def test_probe_measures_a_run_without_tensorflow_here(config, tmp_path):
    asked = config("batch_size=32")
    program = (
        "import json, sys; from accumtrain.config.read import from_mapping;"
        "from accumtrain.measure.probe import probe;"
        f"trial = probe(from_mapping(json.loads({json.dumps(to_mapping(asked))!r})), 8);"
        "assert 'tensorflow' not in sys.modules;"
        "print(json.dumps(vars(trial)))"
    )
    path = {"PYTHONPATH": with_path()["PYTHONPATH"]}
    trial = json.loads(output_of("-c", program, env=path).splitlines()[-1])
    assert (trial["fits"], trial["accum_steps"], trial["replicas"], trial["memory"]) == (True, 4, 1, "store")
    assert 0 < trial["static_bytes"] < trial["peak_bytes"] < trial["rss_bytes"]
    assert trial["examples_per_second"] > 0
    assert trial["seconds_to_first_update"] > 0


@pytest.mark.slow
def test_two_small_sizes_are_measured_in_one_process(config):
    first, second = probe.probe_smallest(config("model=revnet38", "batch_size=48"))
    assert (first.micro_batch, first.accum_steps, first.fits) == (2, 24, True)
    assert (second.micro_batch, second.accum_steps, second.fits) == (4, 12, True)
    assert second.static_bytes == first.static_bytes < first.peak_bytes
    assert second.peak_bytes == pytest.approx(first.peak_bytes, rel=0.1), "images of 8 pixels take little"
    assert (second.rss_bytes, second.seconds_to_first_update) == (None, None)
    assert second.expected_bytes - first.rss_bytes == second.peak_bytes - first.peak_bytes


@pytest.mark.parametrize(
    ("on_cpu", "resident"), [(True, {"rss_bytes": None, "expected_bytes": 912}), (False, {"rss_bytes": 990})]
)
def test_what_an_earlier_size_has_left_is_not_that_of_a_later_one(on_cpu, resident):
    first = {"static_bytes": 10, "peak_bytes": 20, "rss_bytes": 900, "seconds_to_first_update": 5.0}
    later = {"static_bytes": 14, "peak_bytes": 36, "rss_bytes": 990, "seconds_to_first_update": 9.0}
    probe._correct(later, first, on_cpu=on_cpu)
    assert later == {"static_bytes": 10, "peak_bytes": 32, "seconds_to_first_update": None} | resident


@pytest.mark.parametrize(
    ("overrides", "replicas", "sizes"),
    [
        ((), 1, [1, 2]),  # LeNet-5 has no norm
        (("model=revnet38",), 1, [2, 4]),
        (("model=revnet38", "model.norm=group"), 1, [1, 2]),
        (("model=revnet38",), 16, [3]),
        (("model=revnet38",), 48, [1]),
        (("model=revnet38", "batch_size=45"), 1, [3, 9]),
    ],
)
def test_the_two_smallest_are_those_that_can_be_trained(config, overrides, replicas, sizes):
    assert probe._smallest(config("accum.steps=1", *overrides), replicas) == sizes


@pytest.mark.slow
def test_probe_without_memory_does_not_fit(config):
    trial = probe.probe(config("model=resnet20", "device.memory_limit_mb=1"), 48)
    assert trial == ProbeResult("store", 48, fits=False)


@pytest.mark.parametrize(
    ("overrides", "gpu", "micro_batch"),
    [
        ((), False, 12),
        (("device=cpu",), True, 12),
        (("device=mirrored",), True, None),
        (("device=auto",), True, None),
        (("device=mirrored", "device.virtual=2"), True, 6),
    ],
)
def test_only_a_job_can_count_gpus(config, monkeypatch, overrides, gpu, micro_batch):
    monkeypatch.setattr(environment, "shows_gpu", lambda: gpu)
    assert probe.find_micro_batch(config("accum.steps=4", *overrides)) == micro_batch


def test_without_a_micro_batch_the_child_gets_the_number_of_steps(config, monkeypatch):
    requests = []
    monkeypatch.setattr(probe, "measure_in_child", lambda request, folder: requests.append(request))
    assert probe.probe(config("accum.steps=4"), None) == ProbeResult("store", 12, fits=False)
    probe.probe(config("accum.steps=auto"), 8)
    assert probe.probe_smallest(config("accum.steps=auto")) == []
    sent = [(request["micro_batches"], request["config"]["accum"]["steps"]) for request in requests]
    assert sent == [([None], 4), ([8], 1), (None, 1)]


@pytest.mark.parametrize(("own", "used"), [(None, "900"), ("300", "300"), ("5000", "900"), ("much", "900")])
@pytest.mark.parametrize("limit_of_job", [None, 50])
def test_a_limit_of_the_users_own_holds_in_a_probe(config, monkeypatch, tmp_path, own, used, limit_of_job):
    seen = []
    monkeypatch.setattr(probe, "_measure", lambda *_: seen.append(environment.read_users_limit()))
    monkeypatch.setattr(environment, "prepare", lambda device, probed: None)
    limits = (environment.CPU_LIMIT, environment.USERS_LIMIT)
    others = {name: value for name, value in os.environ.items() if name not in limits}
    monkeypatch.setattr(os, "environ", others | ({} if own is None else {environment.CPU_LIMIT: own}))
    request = {"config": to_mapping(config("accum.steps=1")), "micro_batches": [8], "free_mb": 900}
    if limit_of_job:  # of the parent, which looks for what would help without it
        environment._set_limit(CpuConfig(memory_limit_mb=limit_of_job))
    probe.run_probe_request(request, tmp_path)
    assert seen == [used]


@pytest.mark.parametrize(
    ("runtime", "limit", "used"), [("tensorflow", 8, 7), ("tensorflow", 1, 1), ("jax", 7, 7), ("jax", None, None)]
)
def test_a_probe_with_jax_gets_the_whole_limit(config, monkeypatch, tmp_path, runtime, limit, used):
    """The run itself compares the same figure of the compiler with it."""
    seen = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(environment, "prepare", lambda device, probed: None)
    monkeypatch.setattr(probe, "_measure", lambda config, *_: seen.append(config.device.memory_limit_mb))
    asked = config("device=cpu", f"device.runtime={runtime}", f"device.memory_limit_mb={format_value(limit)}")
    probe.run_probe_request({"config": to_mapping(asked), "micro_batches": [8], "free_mb": 900}, tmp_path)
    assert seen == [used]


@pytest.fixture
def child(monkeypatch):
    """Put a short program in the place of the probe's."""

    def put(program):
        head = "import json, os, pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
        monkeypatch.setattr(probe, "child_command", lambda: [sys.executable, "-c", head + program])

    return put


@pytest.mark.parametrize(("code", "expected"), [(2, ConfigError), (3, DataError), (5, CheckpointError)])
def test_a_failure_of_the_run_is_that_of_the_probe(config, child, code, expected):
    child(f"(folder / 'answer.json').write_text('{{\"message\": \"why\"}}'); sys.exit({code})")
    with pytest.raises(expected, match="why"):
        probe.probe(config(), 1)


def test_a_bug_shows_the_last_words(config, child):
    child("os.write(2, b'last words'); os.kill(os.getpid(), 4)")
    with pytest.raises(RuntimeError, match="code -4:\nlast words"):
        probe.probe(config(), 1)


@pytest.mark.parametrize("end", ["sys.exit(6)", *(f"os.kill(os.getpid(), {number})" for number in (9, 6, 11))])
def test_ways_to_die_of_memory(config, child, end):
    child(end)
    assert not probe.probe(config(), 1).fits


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_that_is_told_to_stop_stops_the_command(config, child, number):
    child(f"import signal; signal.signal({number:d}, signal.SIG_DFL); os.kill(os.getpid(), {number:d})")
    with pytest.raises(KeyboardInterrupt):
        probe.probe(config(), 1)


def test_a_long_probe_says_what_it_is_doing(config, child, monkeypatch, capsys):
    monkeypatch.setattr(probe.child, "SILENCE", 0.2)
    child("(folder / 'doing').write_text('timing'); time.sleep(0.7); sys.exit(6)")
    probe.probe(config(), 1, " (2 of about 4)")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "probing store, adafactor, float32, micro-batch 1 (2 of about 4)"
    assert re.fullmatch(r"  \d+\.\d s: timing", lines[-1])


def runs(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("job", "stopped"), [("job=plan", 130), pytest.param("accum.steps=auto", 75, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT, signal.SIGKILL]
)
def test_a_probe_ends_with_its_command(tmp_path, job, stopped, number):
    """Stopped in the middle of a probe, a command takes the children and their folders with it."""
    arguments = ("-m", "accumtrain", "model=lenet5", job, f"run.dir={tmp_path / 'runs'}")
    command = start_python(*arguments, env=with_path(TMPDIR=str(tmp_path)))
    assert eventually(lambda: list(tmp_path.glob("accumtrain-probe-*/doing")))  # TensorFlow starts twice
    children = psutil.Process(command.pid).children()
    command.send_signal(number)
    command.communicate(timeout=60)
    assert command.returncode == (-9 if number == signal.SIGKILL else stopped)
    assert children
    assert eventually(lambda: not any(map(runs, children)), seconds=20)
    assert eventually(lambda: not list(tmp_path.glob("accumtrain-probe-*")), seconds=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (("data=folder", "data.path=nowhere"), 3),
        (("data=tfds", "data.name=mnist", "data.dir=nowhere"), 3),
        (("device=mirrored",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_plan_fails_as_the_run_would(command, overrides, code):
    jobs = ("accum.steps=1", "accum.steps=auto", "job=plan")
    ends = [command("model=lenet5", "train.steps=1", *overrides, job) for job in jobs]
    assert [end.code for end in ends] == [code] * 3
    messages = {end.err.splitlines()[-1] for end in ends}
    assert len(messages) == 1
