"""Labels as people store them: whole numbers, one-hot rows, or texts."""

from __future__ import annotations

import numpy as np

from accumtrain.fields import normal_form

_EXACT = 2**53  # floats below hold every whole number


class BadLabels(Exception):
    """Labels that can't be used: `reason` is read after their name, `remedy` is the way out."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy


def class_numbers(labels: np.ndarray) -> np.ndarray:
    """Return the class of each example, int64 [N].

    Args:
        labels: whole numbers of any dtype, [N] or [N, 1], or one-hot rows [N, classes].

    Raises:
        BadLabels: a number is not whole or below 0, or a row has not a single 1 beside zeros.
    """
    if labels.ndim == 2 and labels.shape[1] > 1:
        return _read_one_hot(labels)
    labels = labels.reshape(len(labels))
    if labels.dtype.kind == "f":
        whole = (labels == np.floor(labels)) & (np.abs(labels) < _EXACT)
        if not whole.all():
            raise BadLabels(f"holds {labels[~whole][0]}", "give the classes as whole numbers from 0")
    labels = labels.astype(np.int64)
    if labels.size and labels.min() < 0:
        raise BadLabels(f"holds {labels.min()}", "number the classes from 0")
    return labels


def class_texts(labels: np.ndarray) -> np.ndarray:
    """Return the class of each example as text, str [N], of texts or UTF-8, [N] or [N, 1].

    Texts are in `normal_form`, in which é is one character.

    Raises:
        BadLabels: bytes are no UTF-8, or a text is empty.
    """
    names, places = np.unique(labels.reshape(len(labels)), return_inverse=True)
    try:
        texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]
    except UnicodeDecodeError as error:
        raise BadLabels(
            "holds bytes that are not UTF-8", "save texts, or the classes as whole numbers from 0"
        ) from error
    if "" in texts:
        raise BadLabels("holds an empty text", "give each image a class")
    return np.array([normal_form(text) for text in texts], str)[places]


def _read_one_hot(labels: np.ndarray) -> np.ndarray:
    ones = labels == 1
    one_hot = (ones.sum(axis=1) == 1) & (ones | (labels == 0)).all(axis=1)
    if not one_hot.all():
        row = int(np.argmin(one_hot))
        shown = ",".join(f"{value:g}" for value in labels[row, :8].tolist()) + (",..." if labels.shape[1] > 8 else "")
        raise BadLabels(
            f"has the row [{shown}] at {row}",
            "an image has one class here, so give a single 1 beside zeros, or a whole number from 0",
        )
    return ones.argmax(axis=1)
