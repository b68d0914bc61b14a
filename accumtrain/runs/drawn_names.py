"""Names of classes as a picture can show them."""

from __future__ import annotations

from collections.abc import Sequence


def drawn_names(names: Sequence[str], width: int) -> list[str]:
    """The names, cut to `width` characters. One with characters that the font lacks becomes "class" and its number."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))

    def told(name: str) -> bool:
        return bool(name.strip()) and all(font.get_char_index(ord(character)) for character in name)

    return [_cut(name, width) if told(name) else f"class {number}" for number, name in enumerate(names)]


def _cut(name: str, width: int) -> str:
    """Without its middle, as long names often begin or end alike."""
    half = (width - 3) // 2
    short = name if len(name) <= width else f"{name[:half]}...{name[-half:]}"
    return short.replace("$", r"\$")  # between two of them stands a formula
