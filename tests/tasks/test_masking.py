"""Masking against its definition, written here in Python, and its statistics over many examples."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.inputs.tokens import find_masks
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.tasks.config import MaskedTokensConfig
from accumtrain.tasks.texts.masking import mask_tokens, most_positions

MASK, SPECIAL = 11, (0, 10, 11)
VOCABULARY = Vocabulary(12, MASK, SPECIAL, "")
PLAIN = sorted(set(range(12)) - set(SPECIAL))
LENGTH = 40
SIGMAS = 5.0


def made_tokens(examples, seed=0):
    """Tokens of all kinds; examples of all lengths from 0 on, and the rest of a row is padding."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 12, [examples, LENGTH]).astype(np.int32)
    lengths = random.integers(0, LENGTH + 1, examples)
    lengths[:2] = 0, LENGTH
    return np.where(np.arange(LENGTH) < lengths[:, None], tokens, -1)


def masked(tokens, keys=None, **shares):
    config = MaskedTokensConfig(**shares)
    keys = tf.range(len(tokens), dtype=tf.int64) if keys is None else tf.constant(keys, tf.int64)
    found = mask_tokens(
        tf.constant(tokens), tf.cast(keys, tf.uint64), VOCABULARY, config, most_positions(config.share, LENGTH)
    )
    return [tensor.numpy() for tensor in found]


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 1.0])
def test_each_example_has_as_many_places_as_its_plain_tokens_ask_for(share):
    tokens = made_tokens(300)
    seen, positions, ids, counts = masked(tokens, share=share)
    assert positions.shape == ids.shape == (300, max(1, round(share * LENGTH)))
    for row, own, other, told, count in zip(tokens, seen, positions, ids, counts, strict=True):
        may = [position for position, token in enumerate(row) if token in PLAIN]
        expected = max(1, round(share * len(may))) if may else 0
        chosen = other[:expected].tolist()
        assert count == expected
        assert len(set(chosen)) == expected
        assert set(chosen) <= set(may), "neither padding nor a special token"
        assert set(other[expected:]) | set(told[expected:]) <= {-1}
        assert told[:expected].tolist() == [row[position] for position in chosen]
        left = [position for position in range(LENGTH) if position not in chosen]
        np.testing.assert_array_equal(own[left], row[left])
        assert all(own[position] in (MASK, *PLAIN) for position in chosen)


def test_an_example_of_padding_alone_has_no_place():
    *_, positions, ids, counts = masked(np.full([1, LENGTH], -1, np.int32))
    assert (set(positions.flat), set(ids.flat), counts.tolist()) == ({-1}, {-1}, [0])


def within(count, trials, share):
    """Whether a count of successes is that of a binomial distribution, as far as chance goes."""
    return abs(count - trials * share) <= SIGMAS * np.sqrt(trials * share * (1 - share))


@pytest.mark.parametrize(("hidden", "random"), [(0.8, 0.1), (0.5, 0.5), (0.0, 0.25)])
def test_the_shares_of_masks_random_tokens_and_tokens_as_they_are(hidden, random):
    """A random token is that which was there in one of nine cases."""
    tokens = np.full([3000, LENGTH], PLAIN[0], np.int32)
    seen, positions, *_ = masked(tokens, share=0.25, masked=hidden, random=random)
    shown = Counter(np.take_along_axis(seen, positions, axis=1).flat)
    trials = positions.size
    assert within(shown[MASK], trials, hidden)
    for token in PLAIN[1:]:
        assert within(shown[token], trials, random / len(PLAIN))
    assert within(shown[PLAIN[0]], trials, 1 - hidden - random + random / len(PLAIN))
    assert sum(shown.values()) == trials
    assert shown.keys() <= {MASK, *PLAIN}


def test_every_place_is_chosen_equally_often_and_independently_of_its_neighbour():
    tokens = np.full([6000, LENGTH], PLAIN[0], np.int32)
    _, positions, *_ = masked(tokens, share=0.25)
    chosen = np.zeros(tokens.shape, bool)
    np.put_along_axis(chosen, positions, values=True, axis=1)
    for position in range(LENGTH):
        assert within(chosen[:, position].sum(), len(chosen), 0.25)
    both = 10 * 9 / (LENGTH * (LENGTH - 1))  # without repetition
    for position in range(LENGTH - 1):
        assert within((chosen[:, position] & chosen[:, position + 1]).sum(), len(chosen), both)


def test_an_example_is_masked_by_its_key_alone():
    tokens = made_tokens(50)
    whole = masked(tokens)
    order = np.random.default_rng(1).permutation(50)
    for one, other in zip(whole, masked(tokens[order], order), strict=True):
        np.testing.assert_array_equal(one[order], other)
    for start in range(0, 50, 7):
        part = slice(start, start + 7)
        for one, other in zip(whole, masked(tokens[part], np.arange(50)[part]), strict=True):
            np.testing.assert_array_equal(one[part], other)
    _, positions, *_ = masked(tokens, np.arange(50) + 50)
    assert (positions != whole[1]).any(axis=1).sum() > 40


def test_masks_are_found_in_their_order():
    tokens = made_tokens(200, seed=3)
    found = find_masks(tf.constant(tokens), MASK, 4).numpy()
    for row, positions in zip(tokens, found, strict=True):
        expected = np.flatnonzero(row == MASK)[:4].tolist()
        assert positions.tolist() == expected + [-1] * (4 - len(expected))
