"""The order by length is a permutation, a function of the position alone; buckets cut padding and nothing else."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import TextsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import HostShard, make_eval_batches, make_train_batches
from accumtrain.data.stream import example_at
from accumtrain.data.text.by_length import BLOCK, WINDOW, order_by_length, trim

SIZES = (7, BLOCK, BLOCK + 1, WINDOW, WINDOW + 40)


def lengths_of(size):
    return np.random.default_rng(size).integers(1, 100, size).astype(np.int32)


def indices(order, first, count):
    return order(tf.range(first, first + count, dtype=tf.int64))[1].numpy()


@pytest.mark.parametrize("size", SIZES)
def test_an_epoch_is_a_permutation_of_the_same_windows(size):
    base = partial(example_at, size=size, seed=3)
    order = order_by_length(base, lengths_of(size), seed=3)
    for epoch in (0, 2):
        for start in range(0, size, WINDOW):
            count = min(WINDOW, size - start)
            first = epoch * size + start
            assert sorted(indices(order, first, count)) == sorted(indices(base, first, count))


@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_those_of_the_sorted_window(size):
    """Against plain Python: the window sorted by length, in blocks."""
    lengths = lengths_of(size)
    base = partial(example_at, size=size, seed=3)
    count = min(WINDOW, size)
    shuffled = indices(base, 0, count).tolist()
    ranked = sorted(shuffled, key=lambda index: (lengths[index], shuffled.index(index)))
    blocks = [ranked[start : start + BLOCK] for start in range(0, count, BLOCK)]
    found = indices(order_by_length(base, lengths, seed=3), 0, count).tolist()
    parts = [found[start : start + BLOCK] for start in range(0, count, BLOCK)]
    assert sorted(parts) == sorted(blocks)
    assert len(blocks) < 100 or parts != blocks, "blocks come in a random order"


def test_a_position_is_the_whole_state():
    size = WINDOW + 40
    order = order_by_length(partial(example_at, size=size, seed=3), lengths_of(size), seed=3)
    whole = indices(order, 0, 2 * size)
    for first in (1, WINDOW - 3, size - 5):
        np.testing.assert_array_equal(indices(order, first, 20), whole[first : first + 20])
    other = indices(order_by_length(partial(example_at, size=size, seed=4), lengths_of(size), seed=4), 0, size)
    assert (other != whole[:size]).any()


@pytest.fixture
def texts(tmp_path):
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for number in range(40):
            (tmp_path / kind / f"{number}").write_text(kind * (1 + number))
    return str(tmp_path)


def stream(data, batch, count, shard=None):
    rows = []
    for element in make_train_batches(data, batch=batch, first=5, seed=1, shard=shard or HostShard()).take(count):
        tokens = element["inputs"].numpy()
        rows += [np.pad(row, (0, 64 - len(row)), constant_values=-1).tolist() for row in tokens]
    return rows


def test_batches_of_any_size_hold_the_same_examples(texts):
    data = open_data(TextsConfig(path=texts, length=64, by_length=True, buckets=[8, 16, 32]), 0)
    whole = stream(data, 48, 2)
    assert stream(data, 8, 12) == whole
    parts = [stream(data, 48, 2, HostShard(index, 2, 2)) for index in range(2)]
    assert parts[0][:24] + parts[1][:24] == whole[:48]


def test_a_batch_is_cut_to_the_first_bucket_that_holds_it(texts):
    plain = open_data(TextsConfig(path=texts, length=64, by_length=True), 0)
    cut = open_data(TextsConfig(path=texts, length=64, by_length=True, buckets=[8, 16, 32]), 0)
    assert stream(plain, 8, 20) == stream(cut, 8, 20)
    widths = set()
    for batches in (make_train_batches(cut, batch=8, first=0, seed=1).take(20), make_eval_batches(cut, batch=4)):
        for element in batches:
            tokens = element["inputs"].numpy()
            longest = (tokens >= 0).sum(axis=1).max()
            assert tokens.shape[1] == min(width for width in (8, 16, 32, 64) if width >= longest)
            widths.add(tokens.shape[1])
    assert len(widths) == 4
    assert next(iter(make_train_batches(cut.longest, batch=8, first=0, seed=1)))["inputs"].shape == (8, 64)


@pytest.mark.parametrize(("longest", "width"), [(1, 2), (2, 2), (3, 5), (5, 5), (6, 7), (7, 7)])
def test_trim(longest, width):
    tokens = np.full([3, 7], -1, np.int32)
    tokens[1, :longest] = 4
    np.testing.assert_array_equal(trim(tf.constant(tokens), [2, 5]), tokens[:, :width])


def test_the_shares_of_padding_on_the_page():
    """docs/text.md: of 100,000 texts of 1 to 127 tokens, in batches of 32."""
    size, batch = 100_000, 32
    lengths = np.random.default_rng(0).integers(1, 128, size).astype(np.int32)
    base = partial(example_at, size=size, seed=1)
    shares = []
    for order in (base, order_by_length(base, lengths, seed=1)):
        batches = lengths[indices(order, 0, size)].reshape(-1, batch)
        shares.append(1 - lengths.sum() / (batches.max(axis=1).sum() * batch))
    assert [f"{share:.0%}" for share in shares] == ["48%", "1%"]
