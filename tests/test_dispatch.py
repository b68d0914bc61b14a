"""The dispatch: the part of a worker that is probed, and the modules that a run enters."""

import pytest

from accumtrain import dispatch
from accumtrain.config.jobs import JOBS
from accumtrain.dispatch import config_of_worker, settle_accum_steps
from accumtrain.errors import ConfigError
from accumtrain.measure import auto_steps
from accumtrain.measure.probe import ProbeResult
from tests.begun import leave_run
from tests.programs import output_of

WORKERS = ("device=multiworker", "device.workers=[a:1,b:1,c:1]", "device.index=0")
ENTERED = """
import atexit, sys, accumtrain

atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("accumtrain."))))
accumtrain.main()
"""
MOST_MODULES = 180  # packages, and a file of keys for each room, included


@pytest.mark.run
def test_a_run_of_given_steps_enters_no_measuring(tmp_path):
    keys = ("model=lenet5", "data=digits", "batch_size=32", "accum.steps=2", "train.steps=2", f"run.dir={tmp_path}")
    entered = output_of("-c", ENTERED, *keys).splitlines()[-1].split()
    assert "accumtrain.train.train" in entered
    keys_of_measuring = {"accumtrain.measure", "accumtrain.measure.config"}
    measuring = {name for name in entered if name.startswith(("accumtrain.measure", "accumtrain.pjrt"))}
    assert measuring <= keys_of_measuring
    assert len(entered) <= MOST_MODULES


def test_the_share_of_a_worker_needs_no_other(compose):
    config = compose(*WORKERS, "batch_size=96", "accum.steps=auto", "device.memory_limit_mb=50", "device.virtual=2")
    own_part = config_of_worker(config)
    assert own_part.batch_size == 32
    assert (own_part.device.kind, own_part.device.virtual, own_part.device.memory_limit_mb) == ("auto", 2, 50)
    assert own_part.run == config.run


def test_a_worker_goes_on_as_its_run_began_and_probes_its_share_alone(compose, tmp_path, monkeypatch):
    asked = []

    def attempt(config, micro_batch, note=""):
        asked.append((config.batch_size, micro_batch))
        steps = config.batch_size // micro_batch
        return ProbeResult("store", micro_batch, fits=True, accum_steps=steps, replicas=1, rss_bytes=1)

    monkeypatch.setattr(dispatch, "silence", lambda: None)
    monkeypatch.setattr(auto_steps, "probe", attempt)
    monkeypatch.setattr(auto_steps, "probe_smallest", lambda config: [attempt(config, 1)])
    own = (f"run.dir={tmp_path}", "run.name=mine", "batch_size=96")
    config = compose(*WORKERS, *own, "accum.steps=auto")
    found = settle_accum_steps(config, JOBS["train"])
    assert (found.batch_size, found.accum.count, found.device) == (96, 1, config.device)
    assert {size for size, _ in asked} == {32}
    leave_run(found)
    asked.clear()
    other = compose(*WORKERS[:-1], "device.index=2", *own, "accum.steps=auto")
    assert settle_accum_steps(other, JOBS["train"]).accum.count == 1
    assert not asked


def test_one_process_does_all(compose):
    config = compose("accum.steps=auto")
    assert config_of_worker(config) is config


def test_a_batch_that_the_workers_cannot_share(compose, monkeypatch):
    cluster = '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    config = compose("device=multiworker", "batch_size=64", "accum.steps=auto")
    with pytest.raises(ConfigError, match=r"batch_size=64 is not divisible by accum\.steps=1 x 3 replicas"):
        config_of_worker(config)
