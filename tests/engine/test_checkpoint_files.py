"""How much of a checkpoint is in memory when it is read back."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.engine.checkpoint_files import TensorReader

MB = 2**20


def test_a_check_reads_a_megabyte_at_a_time(tmp_path, monkeypatch):
    """It runs beside an update, at whose peak even 20 MB are 8 % of a RevNet-56's."""
    written = [tf.Variable(tf.zeros([100_000])) for _ in range(10)] + [tf.Variable(tf.zeros([1_000_000]))]
    prefix = tf.train.Checkpoint(written=written).write(str(tmp_path / "state"))
    restore, together = tf.raw_ops.RestoreV2, []

    def noted(**arguments):
        tensors = restore(**arguments)
        together.append([tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors])
        return tensors

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", noted)
    TensorReader()(prefix)
    assert all(len(sizes) == 1 or sum(sizes) <= MB for sizes in together)
    assert sorted(size for sizes in together for size in sizes if size > 1000) == [400_000] * 10 + [4_000_000]
