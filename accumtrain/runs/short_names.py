"""Short names of runs that stand side by side: without the words with which all begin."""

from __future__ import annotations

from collections.abc import Sequence

KEY_MARKS = (".", "_")  # a word of a derived name that has one is a key, which its value needs to be understood


def labels(names: Sequence[str]) -> tuple[str, list[str]]:
    """The common beginning of `names`, and what follows it in each: at least a word. Keys keep their values.

    `("lenet5-digits-", ["batch_size-32", "batch_size-64"])`; the beginning of a single name is empty.
    """
    words = [name.split("-") for name in names]
    common = 0
    while len(names) > 1 and all(len(each) > common + 1 and each[common] == words[0][common] for each in words):
        if any(mark in words[0][common] for mark in KEY_MARKS):
            break
        common += 1
    return "".join(f"{word}-" for word in words[0][:common]), ["-".join(each[common:]) for each in words]
