"""What one of several workers probes: its part of the batch, on its own devices."""

import pytest

from accumtrain.errors import ConfigError
from accumtrain.planning.worker_share import own_share

WORKERS = ("device=multiworker", "device.workers=[a:1,b:1,c:1]", "device.index=0")


def test_the_share_of_a_worker_needs_no_other(compose):
    config = compose(*WORKERS, "batch_size=96", "accum.steps=auto", "device.memory_limit_mb=50", "device.virtual=2")
    share = own_share(config)
    assert share.batch_size == 32
    assert (share.device.kind, share.device.virtual, share.device.memory_limit_mb) == ("auto", 2, 50)
    assert share.run == config.run


def test_one_process_does_all(compose):
    config = compose("accum.steps=auto")
    assert own_share(config) is config


def test_a_batch_that_the_workers_cannot_share(compose, monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    config = compose("device=multiworker", "batch_size=64", "accum.steps=auto")
    with pytest.raises(ConfigError, match=r"batch_size=64 does not divide by accum\.steps=1 x 3 replicas"):
        own_share(config)
