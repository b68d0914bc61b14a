"""The balanced stream: every class equally often, every example of a class in turn, from any position."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import DigitsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.source import ArraySplit, Split, class_counts, read_labels
from accumtrain.data.stream import ORDER, UNREADABLE, balanced_order, hash64, permute

LABELS = np.repeat([0, 3, 1, 2], [5, 1, 17, 4])[np.random.default_rng(0).permutation(27)]


def stream(first: int, count: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    turn, index = balanced_order(LABELS, seed)(tf.range(first, first + count, dtype=tf.int64))
    return turn.numpy(), index.numpy()


def test_each_block_holds_every_class_once():
    blocks = LABELS[stream(0, 400)[1]].reshape(-1, 4)
    assert (np.sort(blocks, axis=1) == np.arange(4)).all()
    assert len(np.unique(blocks, axis=0)) > 10, "in orders of their own"


def test_a_class_has_shuffled_passes():
    turn, index = stream(0, 4 * 17 * 3)
    own = LABELS[index] == 1
    passes = index[own].reshape(3, 17)
    assert (np.sort(passes, axis=1) == np.flatnonzero(LABELS == 1)).all()
    assert (turn[own].reshape(3, 17) == np.arange(3)[:, None]).all()
    assert not np.array_equal(passes[0], passes[1])


def test_it_can_be_entered_anywhere_and_depends_on_the_seed():
    np.testing.assert_array_equal(stream(0, 90)[1][37:], stream(37, 53)[1])
    assert not np.array_equal(stream(0, 90)[1], stream(0, 90, seed=4)[1])


def test_sizes_as_tensors_permute_as_numbers_do():
    place = tf.range(40, dtype=tf.int64)
    for size in (1, 2, 15, 16, 17, 40):
        key = hash64(ORDER, 5, place // size)
        by_number = permute(place % size, size, key)
        np.testing.assert_array_equal(by_number, permute(place % size, tf.fill([40], tf.constant(size, tf.int64)), key))


def test_labels_are_read_once_in_order():
    split = ArraySplit(np.zeros([27, 2, 2, 1], np.uint8), LABELS)
    assert class_counts(split, 6) == [5, 17, 4, 1, 0, 0]
    assert split.known_labels is not None
    np.testing.assert_array_equal(split.known_labels, LABELS)
    assert sum(class_counts(open_data(DigitsConfig(val_fraction=None), 0).train, 10)) == 1437


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([4, 5, 6], np.int32), np.array([4, UNREADABLE, 6], np.int32)),
        (
            np.array([[1, 0], [0, 1], [1, np.nan]], np.float32),
            np.array([[1, 0], [np.nan] * 2, [1, np.nan]], np.float32),
        ),
    ],
    ids=["classes", "labels"],
)
def test_targets_of_examples_that_are_left_out_are_unknown(labels, expected):
    class Encoded(Split):
        size = 3

        def read(self, index):
            return tf.gather(tf.constant([b"a", b"", b"c"]), index), tf.gather(tf.constant(labels), index)

    found = read_labels(Encoded())
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_unreadable_examples_never_appear():
    labels = np.where(np.arange(27) % 5 == 0, UNREADABLE, LABELS)
    index = balanced_order(labels, 3)(tf.range(400, dtype=tf.int64))[1].numpy()
    readable = np.flatnonzero(labels != UNREADABLE)
    assert set(index) == set(readable)
    blocks = labels[index].reshape(-1, len(np.unique(labels[readable])))
    assert (np.sort(blocks, axis=1) == np.unique(labels[readable])).all()
