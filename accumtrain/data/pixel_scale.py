"""The value of white in arrays of pixels: 1 or 255, one decision for all arrays of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accumtrain.errors import DataError

_SCALES = (1, 255)
_BEYOND = 0.25  # share of the largest values by which floats may overshoot, as after a resize with cubic weights


@dataclass(frozen=True)
class Pixels:
    """What is known of an array: its name, its dtype, its smallest and its largest value."""

    name: str
    dtype: np.dtype
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name} has pixels of {self.low} to {self.high}"

    @property
    def are_floats(self) -> bool:
        return self.dtype.kind == "f"

    def fit(self, white: int) -> bool:
        """Whether these may be pixels of 0 to `white`."""
        beyond = _BEYOND if self.are_floats else 0
        return bool(-beyond * self.high <= self.low and self.high <= white + beyond * white)  # False for NaN

    @property
    def meaning(self) -> int | None:
        """The value of white, as far as these pixels alone tell; None if they may mean either."""
        if self.are_floats and self.fit(1):
            return 1
        whole_range = self.low >= 0 and (self.high > 1 if not self.are_floats else 128 <= self.high <= 255)
        return 255 if whole_range else None


def find_white(file: str, arrays: Sequence[Pixels], scale: int | str) -> tuple[int, list[str]]:
    """The value of white in all arrays of a file, and what the user should know about it.

    Args:
        scale: data.scale: 1, 255, or auto for what the arrays tell.

    Raises:
        DataError: An array has other pixels, or the arrays do not tell the same.
    """
    told = {each.meaning for each in arrays} - {None}
    white = scale if isinstance(scale, int) else told.pop() if len(told) == 1 else None
    wrong = [each for each in arrays if white is not None and not each.fit(white)]
    fitting = [each for each in _SCALES if all(pixels.fit(each) for pixels in arrays)]
    if white is None or wrong:
        remedies = [f"set data.scale={each} if {each} is white in all arrays" for each in fitting]
        raise DataError(
            f"{file}: {', '.join(map(str, wrong or arrays))}, "
            + ("which does not tell the value of white" if white is None else f"and white is taken as {white}")
            + f": {', or '.join([*remedies, 'save all arrays as 0..255, or all as floats of 0..1'])}"
        )
    return white, [_note(each, white) for each in arrays if each.are_floats or white == 1]


def _note(pixels: Pixels, white: int) -> str:
    note = f"{pixels.name} is {pixels.dtype} with a maximum of {pixels.high}: taken as 0..{white}"
    return note if pixels.low >= 0 and pixels.high <= white else f"{note}, what is beyond is cut off"
