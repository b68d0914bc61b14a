from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.stream import example_at, example_key, hash64, permute, random64, random_below, random_uniform

MASK = 2**64 - 1


def order(size: int, epoch: int, seed: int = 7) -> np.ndarray:
    position = epoch * size + tf.range(size, dtype=tf.int64)
    return example_at(position, size, seed)[1].numpy()


def splitmix64(seed: int, number: int) -> int:
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_random_numbers_are_those_of_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # seeded with 1234567
    assert [splitmix64(1234567, number) for number in range(3)] == published
    keys = [1234567, 0, MASK]
    tensor = tf.constant(keys, tf.uint64)
    assert random64(tensor[0], tf.range(3, dtype=tf.int64)).numpy().tolist() == published
    assert random64(tensor, 5).numpy().tolist() == [splitmix64(key, 5) for key in keys]


def test_keys_are_chained_outputs():
    def expected(*parts):
        state = 0
        for part in parts:
            state = splitmix64(state + part, 0)
        return state

    values = [0, 1, -1, 2**63 - 1]
    keys = hash64(3, -4, tf.constant(values, tf.int64), 5).numpy().tolist()
    assert keys == [expected(3, -4, value, 5) for value in values]


@pytest.mark.parametrize("size", [*range(1, 20), 97, 1437, 5000])
def test_every_epoch_is_a_permutation(size):
    for epoch in (0, 1, 10**9):
        np.testing.assert_array_equal(np.sort(order(size, epoch)), np.arange(size))


def test_positions_name_epoch_and_place():
    epoch, index = example_at(tf.constant([4, 5, 9, 10], tf.int64), 5, seed=0)
    assert epoch.numpy().tolist() == [0, 1, 1, 2]
    assert index.numpy().tolist() == [order(5, 0, 0)[4], order(5, 1, 0)[0], order(5, 1, 0)[4], order(5, 2, 0)[0]]


def test_one_key_for_each_element():
    keys = hash64(tf.range(50, dtype=tf.int64))
    place = tf.range(50, dtype=tf.int64) % 20
    together = permute(place, 20, keys).numpy()
    assert together.tolist() == [permute(place[i : i + 1], 20, keys[i : i + 1]).numpy()[0] for i in range(50)]


def test_orders_of_small_sets_are_uniform():
    position = tf.range(4 * 2400, dtype=tf.int64)
    orders = example_at(position, 4, seed=1)[1].numpy().reshape(2400, 4)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert np.sum((counts - 100) ** 2 / 100) < 49.7  # chi-square with 23 degrees of freedom, p = 0.001


def test_neighbouring_epochs_and_seeds_are_independent():
    size = 20_000
    orders = [order(size, epoch) for epoch in range(4)] + [order(size, 0, seed=8), np.arange(size)]
    correlation = np.corrcoef(orders) - np.eye(len(orders))
    assert np.abs(correlation).max() < 4 / size**0.5
    same_place = [np.sum(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(same_place) < 10  # one is expected


def test_draws_are_uniform_and_keyed_by_all_of_seed_epoch_index():
    index = tf.range(10_000, dtype=tf.int64)
    counts = np.bincount(random_below(9, example_key(index * 0, index, 0), 2).numpy(), minlength=9)
    assert np.sum((counts - 10_000 / 9) ** 2 / (10_000 / 9)) < 26.1  # 8 degrees of freedom, p = 0.001
    uniform = random_uniform(-2.0, 3.0, hash64(index), 0).numpy()
    assert -2 <= uniform.min() < -1.99
    assert 2.99 < uniform.max() < 3
    zero, one = tf.constant([0], tf.int64), tf.constant([1], tf.int64)
    keys = [example_key(*of) for of in ((zero, zero, 0), (one, zero, 0), (zero, one, 0), (zero, zero, 1))]
    assert len({int(key[0]) for key in keys}) == 4
