"""Counted operations against a count by hand, and the operations of a traced function that run."""

import time

import pytest
import tensorflow as tf

from accumtrain.backprop.linear_logits import LinearLogits
from accumtrain.engine.step import Step
from accumtrain.measure import flops
from accumtrain.measure.flops import PEAK_REPEATS, count_flops, live_operations, matmul_flops_per_second
from accumtrain.optim.config import SgdConfig
from tests.engine.small import CLASSES, examples, resnet20, revnet38, window_for

SHAPE, BATCH = (8, 8, 3), 4
DENSE = 16 * CLASSES


def micro_step_flops(config, batch=BATCH):
    window = window_for(config, SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0), SHAPE)
    batches = iter(tf.data.Dataset.from_tensors(examples(batch, SHAPE)).repeat())
    step = Step(window)
    return count_flops(step.programs.compiled_micro_steps.get_concrete_function(batches, tf.constant(3)).graph, batch)


STEM, CONV = 8 * 8 * 9 * 3 * 16, 8 * 8 * 9 * 16 * 16  # multiply-adds of an image, forward


@pytest.mark.parametrize(
    ("memory", "by_hand"),
    [
        # Backward takes each product twice, for kernel and input. The image itself needs no gradient.
        ("store", (2 * STEM) + 3 * (2 * CONV + DENSE)),
        # Once more the stem and the unit's first convolution. No gradient asks for the output of the second one, and
        # the head is stored.
        ("recompute", (3 * STEM) + 3 * (2 * CONV) + CONV + 3 * DENSE),
    ],
)
def test_a_residual_network(memory, by_hand):
    assert micro_step_flops(resnet20(units=(1,), memory=memory)) == 2 * BATCH * by_hand


@pytest.mark.slow
def test_reversal_replays_a_forward_pass():
    stored, again, reversed_ = (
        micro_step_flops(revnet38(memory=memory, units=(3,))) for memory in ("store", "recompute", "reverse")
    )
    assert stored < reversed_ < 1.34 * stored
    assert stored < again < reversed_, "reversal needs the outputs that recomputing leaves out"


def test_a_spared_replay_takes_over_what_was_kept():
    stored, reversed_ = (micro_step_flops(revnet38(memory=memory, units=(1, 1))) for memory in ("store", "reverse"))
    stem = 2 * STEM  # of twice the filters
    # The whole first stage, and nothing of the second one. There the first convolutions are spared, and nobody asks for
    # the outputs of the second ones, as the stage's input is kept.
    assert reversed_ - stored == 2 * BATCH * (stem + 4 * CONV)


def test_it_is_proportional_to_the_batch():
    one, three = (micro_step_flops(resnet20(units=(1,)), batch) for batch in (2, 6))
    assert three == 3 * one


def convolution(x, kernel):
    return tf.nn.conv2d(x, kernel, 2, "SAME")


KERNEL, DEPTHWISE = [3, 5, 6, 8], [3, 5, 6, 2]
# 3 images of 8 x 8 x 6, convolved with stride 2 to 4 x 4
OPERATIONS = {
    "matrices": (lambda a, b: tf.matmul(a, b, transpose_a=True), [[5, 2], [5, 7]], 5 * 2 * 7),
    "batches of matrices": (lambda a, b: tf.matmul(a, b, transpose_b=True), [[3, 2, 5], [3, 7, 5]], 3 * 5 * 2 * 7),
    "convolution": (convolution, [[3, 8, 8, 6], KERNEL], 3 * 16 * 15 * 6 * 8),
    "groups": (convolution, [[3, 8, 8, 12], KERNEL], 3 * 16 * 15 * 6 * 8),
    "depthwise": (
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 2, 2, 1], "SAME"),
        [[3, 8, 8, 6], DEPTHWISE],
        3 * 16 * 15 * 12,
    ),
    "open batch": (convolution, [[None, 8, 8, 6], KERNEL], 3 * 16 * 15 * 6 * 8),
    "an open number of values": (
        lambda x, y: tf.matmul(tf.reshape(x, [6, -1]), tf.reshape(y, [-1, 5])),
        [[None, 8, 8, 6], [None, 8, 8, 5]],
        3 * 8 * 8 * 6 * 5,
    ),
    "sum over the pixels of an open batch": (
        lambda x, y: tf.matmul(tf.reshape(x, [-1, 6]), tf.reshape(y, [-1, 5]), transpose_a=True),
        [[None, 8, 8, 6], [None, 8, 8, 5]],
        3 * 8 * 8 * 6 * 5,
    ),
}


def graph_of(function, shapes):
    return tf.function(function).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes)).graph


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation(name):
    function, shapes, products = OPERATIONS[name]
    assert count_flops(graph_of(function, shapes), batch=3) == 2 * products


@pytest.mark.parametrize("name", ["convolution", "depthwise"])
def test_its_gradient_is_twice_that(name):
    function, shapes, products = OPERATIONS[name]

    def gradient(x, kernel):
        return tf.gradients(function(x, kernel), [x, kernel])

    assert count_flops(graph_of(gradient, shapes), batch=3) == 2 * 2 * products


def test_the_largest_branch_counts():
    def either(a, b):
        return tf.cond(a[0, 0] > 0, lambda: a @ b, lambda: (a @ b) @ b)

    assert count_flops(graph_of(either, [[4, 4], [4, 4]]), batch=1) == 2 * 2 * 4**3


def test_an_open_image_is_refused():
    with pytest.raises(ValueError, match="open shape"):
        count_flops(graph_of(convolution, [[1, None, 8, 6], KERNEL]), batch=1)


def test_the_device_can_do_something(monkeypatch):
    matmul, products = tf.matmul, []
    monkeypatch.setattr(tf, "matmul", lambda a, b: products.append(matmul(a, b)))
    started = time.perf_counter()
    found = matmul_flops_per_second(tf.float32)
    size, seconds = products[0].shape[0], time.perf_counter() - started
    assert len(products) == 1 + PEAK_REPEATS
    assert found >= max(1e9, 2 * size**3 / seconds)


def test_the_speed_of_products_is_the_median_of_all_but_the_first(monkeypatch):
    monkeypatch.setattr(flops, "PEAK_SIZE", 4)
    monkeypatch.setattr(flops, "PEAK_REPEATS", 3)
    moments = iter([0.0, 9.0, 10.0, 10.5, 20.0, 22.0, 30.0, 33.0])  # 9, 0.5, 2 and 3 seconds
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(moments))
    matmul, dtypes = tf.matmul, []
    monkeypatch.setattr(tf, "matmul", lambda a, b: dtypes.append(matmul(a, b).dtype))
    assert matmul_flops_per_second(tf.bfloat16) == 2 * 4**3 / 2.0
    assert dtypes == [tf.bfloat16] * 4


def test_operations_that_a_control_dependency_waits_for_run():
    def function(x):
        tf.sin(x)
        with tf.control_dependencies([tf.exp(x)]):
            return x + x

    found = {operation.type for operation in live_operations(graph_of(function, [[2, 2]]))}
    assert found & {"Exp", "Sin"} == {"Exp"}


def test_logits_in_chunks_count_for_all_rows():
    rows, channels, classes = 9000, 4, 2000
    hidden, kernel = tf.zeros([rows, channels]), tf.zeros([channels, classes])

    @tf.function(autograph=False)
    def differentiate():
        with tf.GradientTape() as tape:
            tape.watch([hidden, kernel])
            logits = LinearLogits(hidden, kernel, None, tf.float32)
            loss, _ = logits.compute_sum([lambda logits, _: tf.reduce_mean(logits, axis=1)], (), tf.ones([rows]))
        return tape.gradient(loss, [hidden, kernel])

    counted = count_flops(differentiate.get_concrete_function().graph, 1)
    assert 0 <= counted - 2 * 3 * rows * channels * classes < 2 * 3 * 10 * channels * classes  # rows are padded
