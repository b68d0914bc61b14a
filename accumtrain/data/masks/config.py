"""The keys of sources of images with masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import NOT_NEGATIVE, ImageSize, Role, format_value
from accumtrain.registry import ComponentConfig

MOST = 65535  # of a value in a mask
_TILES = 8  # margins in a tile, where none is given


@dataclass(kw_only=True)
class MaskKeys(ComponentConfig):
    """Keys of sources whose images may have masks, for task=segment.

    `mask_classes`: the value in the masks, or the colour [r,g,b], of each class by its name. {}: the values are
    numbers of classes from 0 on; 0 and 255 are two classes.
    `ignore`: a value or colour of pixels that have no class, or a list of several. []: each pixel has a class.
    `crop`: height and width of random crops to train on, or [height,width]. Images are evaluated and answered whole, in
    tiles of this size. null: images are taken whole.
    `margin`: pixels at the inner edges of a tile that another tile decides, which sees more around them. null: an
    eighth of the crop.
    `balanced_crops`: true: each crop holds a pixel of a class that is drawn from those of the image.
    """

    mask_classes: Annotated[dict[str, int | list[int]], Role.LEARNED | Role.SEEN] = field(default_factory=dict)
    ignore: Annotated[int | list[int | list[int]], Role.RULE | Role.SEEN] = field(default_factory=list)
    crop: Annotated[int | list[int] | None, ImageSize(), Role.LEARNED | Role.SEEN] = None
    margin: Annotated[int | None, NOT_NEGATIVE, Role.PLACE | Role.SEEN] = None
    balanced_crops: Annotated[bool, Role.RULE] = False

    OF_SCENES: ClassVar[Mapping[str, Sequence[str]]] = {
        "scenes": ("mask_classes", "ignore", "crop", "margin", "balanced_crops")
    }

    @property
    def crop_size(self) -> tuple[int, int] | None:
        """Height and width of a crop; None takes images whole."""
        size = self.crop
        return (size[0], size[1]) if isinstance(size, list) else None if size is None else (size, size)

    @property
    def tile_margin(self) -> int:
        """Pixels at the inner edges of a tile that another tile decides."""
        if self.crop_size is None:
            return 0
        return min(self.crop_size) // _TILES if self.margin is None else self.margin

    @property
    def ignored(self) -> list[int | tuple[int, ...]]:
        """The values and colours of pixels that have no class."""
        return list(map(_freeze, self._listed))

    @property
    def _listed(self) -> list[Any]:
        given: Any = self.ignore if isinstance(self.ignore, list) else [self.ignore]
        is_colour = len(given) == 3 and bool(self.mask_classes) and all(map(_is_colour, self.mask_classes.values()))
        return [given] if is_colour and not any(map(_is_colour, given)) else given

    @property
    def named_values(self) -> dict[str, int | tuple[int, ...]]:
        """The value or colour of each class that mask_classes names."""
        return {name: _freeze(value) for name, value in self.mask_classes.items()}

    def check(self) -> None:
        super().check()
        for name, value in self.mask_classes.items():
            _check_value(f"data.mask_classes.{name}", value)
        for value in self._listed:
            _check_value("data.ignore", value)
        values = [*self.named_values.values(), *self.ignored]
        if twice := [value for value in values if values.count(value) > 1]:
            raise ConfigError(
                f"data.mask_classes={format_value(self.mask_classes)} and data.ignore={format_value(self.ignore)}: "
                f"{_show(twice[0])} is there twice; give each class a value of its own"
            )
        if len(self.mask_classes) == 1:
            raise ConfigError(
                f"data.mask_classes={format_value(self.mask_classes)}: names one class, and it takes two to tell "
                "apart; name another"
            )
        if self.crop_size is None and (self.margin is not None or self.balanced_crops):
            key = "margin" if self.margin is not None else "balanced_crops"
            raise ConfigError(f"data.{key}={format_value(getattr(self, key))}: there are no crops; add data.crop=256")
        if self.crop_size is not None and 2 * self.tile_margin >= min(self.crop_size):
            raise ConfigError(
                f"data.margin={self.margin}: leaves nothing of a tile of {self.crop_size[0]} x {self.crop_size[1]}; "
                f"use less than {(min(self.crop_size) + 1) // 2}"
            )


def _is_colour(value: Any) -> bool:
    return isinstance(value, list)


def _freeze(value: Any) -> int | tuple[int, ...]:
    """Return a value or colour of the keys. A grey colour is its grey value, as in masks."""
    if not isinstance(value, list):
        return value
    return value[0] if len(value) == 3 and len(set(value)) == 1 else tuple(value)


def _show(value: int | tuple[int, ...]) -> str:
    return format_value(list(value) if isinstance(value, tuple) else value)


def _check_value(key: str, value: Any) -> None:
    """Raise ConfigError for what is neither a value nor a colour of a mask."""
    numbers, most = (value, 255) if isinstance(value, list) else ([value], MOST)
    if (isinstance(value, list) and len(value) != 3) or not all(0 <= number <= most for number in numbers):
        raise ConfigError(
            f"{key}={format_value(value)}: must be a value from 0 to {MOST}, or a colour of three from 0 to 255; for "
            "example 1, or [255,0,0]"
        )
