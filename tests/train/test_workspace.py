"""Workspace: what an operation takes and gives back itself, and by how much that raises a peak."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accumtrain.train.memory import Allocation, Change, paired, peak_bytes

MB = 2**20


def allocation(size, began, ended, operation_ended=None):
    return Allocation(size, began, ended, operation_ended)


@pytest.mark.parametrize(
    ("ended", "operation_ended", "is_workspace"),
    [(5, 6, True), (6, 6, True), (7, 6, False), (None, 6, False), (5, None, False)],
)
def test_workspace_is_given_back_before_the_end_of_its_operation(ended, operation_ended, is_workspace):
    assert allocation(8, 1, ended, operation_ended).is_workspace is is_workspace


def test_the_peak_is_what_is_held_at_once():
    kept, first, second = allocation(4, 0, None), allocation(8, 1, 3), allocation(16, 3, 5)
    assert peak_bytes([kept, first, second]) == 4 + 16, "what is given back at a moment makes room for what is taken"
    assert peak_bytes([]) == 0


def test_a_piece_is_from_its_begin_to_its_end():
    changes = [
        Change(10, True, 1, 8, 5, 30),
        Change(20, False, 1, 8, 5, 30),
        Change(25, False, 3, 4, 4, None),  # taken before the log begins
        Change(40, True, 1, 16, 16, None),
    ]
    assert list(paired(changes)) == [allocation(8, 10, 20, 30), allocation(16, 40, None)]


MEASURED = """
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment
environment.prepare(CpuConfig())
import tensorflow as tf
from accumtrain.train.memory import workspace_at_peak

def convolve(images):
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=[3, 3, 16, 16], out_backprop=images, strides=[1, 1, 1, 1], padding="SAME"
    )

@tf.function(autograph=False)
def of_one_operation(images):
    return tf.reduce_sum(convolve(images))

@tf.function(autograph=False)
def of_tensors(images):
    return tf.reduce_sum(tf.exp(images) * tf.exp(-images))

images = tf.random.stateless_normal([16, 32, 32, 16], [1, 2])
for work in (of_one_operation, of_tensors):
    work(images)
    print(workspace_at_peak(lambda: work(images)))
"""


def test_the_workspace_of_a_convolution_is_found():
    """TensorFlow's own kernel copies patches, nine times its input, into a workspace; elementwise operations have none.

    In a process of its own: which kernels are used is settled before TensorFlow is imported.
    """
    env = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", MEASURED], env=env, capture_output=True, text=True, check=True)
    of_convolution, of_tensors = map(int, done.stdout.split())
    assert of_convolution >= MB  # one image's patches are 0.6 MB; as many images as a cache holds share a workspace
    assert of_tensors == 0
