"""The data sources: the keys and rules of each. Their openers are in sources/config.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, ClassVar

from accumtrain.data.masks.config import MaskKeys
from accumtrain.errors import ConfigError
from accumtrain.fields import (
    COUNT,
    FRACTION,
    LOCAL_PATH,
    SHARE,
    ImageSize,
    NotEmpty,
    OneOf,
    Range,
    Role,
    Word,
    format_value,
    normal_form,
)
from accumtrain.registry import ComponentConfig, required

_CLASSES = Range(2)
_MIX_ALPHA = Range(0, 100)
_SCALE = "must be auto, 1 or 255"
_PATH = NotEmpty("say where the data is, data.path=<value>")
_AUGMENT = OneOf(("none", "shift", "crop_flip", "inception", "flip", "dihedral"))


@dataclass(kw_only=True)
class DataConfig(ComponentConfig):
    """Keys of every source.

    Pixels are scaled to 0..1, then normalised to (x - mean) / std. Training images are augmented; 0 turns an
    augmentation off.

    `augment`: crops and flips. shift: move by up to one pixel. crop_flip: pad, crop at random and mirror. inception:
    cut a window of random size and shape, resize it, mirror it and change its colours. flip: mirror. dihedral: mirror
    and turn by a multiple of 90 degrees.
    `jitter`: brightness, contrast and saturation are each multiplied by a random factor from 1 - jitter to 1 + jitter.
    `randaugment`: number of RandAugment operations drawn for each image.
    `magnitude`: strength of the operations of data.randaugment.
    `erasing`: probability that a rectangle of the image is erased.
    `mixup`, `cutmix`: strength of MixUp and CutMix: the share of the other image is drawn from Beta(alpha, alpha), and
    this is alpha. If both keys are set, one of the two is drawn at random.
    `sampling`: shuffled: each epoch is a shuffled pass over all examples. balanced: every class appears equally often.
    `image_size`: resize images to this height and width, or to [height,width]; null: keep their size.
    `max_pixels`: images with more pixels than this are not decoded.
    `mean`: number subtracted from the pixels: one, or one for each channel.
    `std`: number that the pixels are divided by: one, or one for each channel.
    `on_error`: raise: an example that can't be read or decoded ends the run. skip: it is left out.
    `val_fraction`: share of the training examples held out for validation. null: 0.1 for data=folder, table, npz
    and texts without a validation split of their own. Other sources validate on their test split.
    """

    augment: Annotated[str, _AUGMENT, Role.RULE | Role.SEEN] = "none"
    jitter: Annotated[float, FRACTION, Role.RULE] = 0.0
    randaugment: Annotated[int, Range(0, 17), Role.RULE] = 0
    magnitude: Annotated[float, Range(0, 10, closed=True), Role.RULE] = 9.0
    erasing: Annotated[float, SHARE, Role.RULE] = 0.0
    mixup: Annotated[float, _MIX_ALPHA, Role.RULE] = 0.0
    cutmix: Annotated[float, _MIX_ALPHA, Role.RULE] = 0.0
    sampling: Annotated[str, OneOf(("shuffled", "balanced")), Role.RULE] = "shuffled"
    image_size: Annotated[int | list[int] | None, ImageSize(), Role.LEARNED | Role.SEEN] = None
    max_pixels: Annotated[int, COUNT, Role.PLACE] = 89_478_485
    mean: Annotated[list[float], Role.RULE | Role.SEEN] = field(default_factory=lambda: [0.5])
    std: Annotated[list[float], Role.RULE | Role.SEEN] = field(default_factory=lambda: [0.25])
    on_error: Annotated[str, OneOf(("raise", "skip")), Role.PLACE] = "raise"
    val_fraction: Annotated[float | None, Range(0, 1), Role.RULE | Role.HELD_OUT] = None

    OF_INPUTS: ClassVar[Mapping[str, Sequence[str]]] = {  # by a kind of inputs, the keys that others have no use for
        "pixels": (
            *("augment", "jitter", "randaugment", "magnitude", "erasing", "mixup", "cutmix"),
            *("image_size", "max_pixels", "mean", "std"),
        )
    }
    VAL_SHARE: ClassVar[float] = 0.0  # of val_fraction=null
    WHITE: ClassVar[int] = 255  # of integer pixels that a program gives

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Height and width to which images are resized; None keeps their size."""
        size = self.image_size
        return (size[0], size[1]) if isinstance(size, list) else None if size is None else (size, size)

    @property
    def known_pixels(self) -> tuple[int, int] | None:
        """Height and width of all images, if the configuration tells them."""
        return self.pixels

    @property
    def varies_in_shape(self) -> bool:
        """True if examples of different micro-batches differ in shape."""
        return False

    @property
    def val_share(self) -> float:
        """The share of the training examples that is held out, if the source has no validation split of its own."""
        return self.VAL_SHARE if self.val_fraction is None else self.val_fraction

    def check(self) -> None:
        for key, values in (("mean", self.mean), ("std", self.std)):
            if not values:
                raise ConfigError(f"data.{key}=[]: must hold one number, or one per channel")
        if len({len(self.mean), len(self.std)} - {1}) > 1:
            raise ConfigError(
                f"data.mean={format_value(self.mean)} and data.std={format_value(self.std)} differ in length; "
                "give one number per channel"
            )
        if any(value <= 0 for value in self.std):
            raise ConfigError(
                f"data.std={format_value(self.std)}: must be above 0, pixels are divided by it; 1 leaves them alone"
            )


def _check_class_names(names: Sequence[str]) -> None:
    """Raise ConfigError if one is there twice."""
    twice = [name for name, count in Counter(map(normal_form, names)).items() if count > 1]
    if twice:
        raise ConfigError(
            f"data.class_names={format_value(names)}: names {twice[0]} more than once; name each class once"
        )


@dataclass(kw_only=True)
class DigitsConfig(DataConfig):
    """The UCI optical digits that ship with accumtrain."""

    WHITE: ClassVar[int] = 16  # a pixel is the number of set bits in a block of 4 x 4

    kind: str = "digits"
    mean: list[float] = field(default_factory=lambda: [0.305])
    std: list[float] = field(default_factory=lambda: [0.376])
    val_fraction: Annotated[float | None, Range(0, 1), Role.RULE | Role.HELD_OUT] = 0.1

    @property
    def known_pixels(self) -> tuple[int, int]:
        return self.pixels or (8, 8)


@dataclass(kw_only=True)
class SyntheticConfig(DataConfig):
    """Generated images of any shape, a learnable pattern for each class.

    `channels`: channels of an image.
    `num_classes`: number of classes.
    `train_examples`: number of training images.
    `test_examples`: number of test images.
    """

    kind: str = "synthetic"
    image_size: Annotated[int | list[int] | None, ImageSize()] = 32
    channels: Annotated[int, COUNT] = 3
    num_classes: Annotated[int, _CLASSES] = 10
    train_examples: Annotated[int, COUNT, Role.RULE] = 1024
    test_examples: Annotated[int, COUNT, Role.RULE] = 256


@dataclass(kw_only=True)
class RecordsConfig(DataConfig):
    """Keys of records.

    `image_feature`: feature that holds the image.
    `label_feature`: feature that holds the label: a whole number from 0 on, a one-hot vector, or a text.
    `num_classes`: number of classes. null: taken from the ClassLabel of the data set.
    `class_names`: names of the classes, in order. Labels that are texts must be among them.
    """

    image_feature: str = "image"
    label_feature: str = "label"
    num_classes: Annotated[int | None, _CLASSES] = None
    class_names: list[str] = field(default_factory=list)

    def check(self) -> None:
        super().check()
        _check_class_names(self.class_names)
        count = len(self.class_names)
        if count and count != self.num_classes:
            raise ConfigError(
                f"data.class_names={format_value(self.class_names)}: names {count} classes, and data.num_classes="
                f"{format_value(self.num_classes)}; set data.num_classes={count}, or name all classes"
            )

    def about_labels(self, num_classes: int) -> tuple[str, str]:
        """Return the rule of the labels, and the remedy for another one."""
        rule = f"with data.num_classes={num_classes} labels are 0..{num_classes - 1}"
        return rule, "correct the labels or data.num_classes"


@dataclass(kw_only=True)
class TfdsConfig(RecordsConfig):
    """A data set of tensorflow-datasets.

    `name`: name of the data set.
    `dir`: folder of prepared data sets; null: the default folder of tensorflow-datasets.
    `download`: true: download and prepare the data set once, if data.dir does not have it.
    `train_split`: split to train on.
    `test_split`: split to test on.
    """

    kind: str = "tfds"
    name: Annotated[str, NotEmpty("say which data set, data.name=<value>")] = required("cifar10")
    dir: Annotated[str | None, LOCAL_PATH, Role.PLACE] = None
    download: Annotated[bool, Role.PLACE | Role.SESSION] = False
    train_split: Annotated[str, Role.RULE] = "train"
    test_split: Annotated[str, Role.RULE] = "test"

    def about_labels(self, num_classes: int) -> tuple[str, str]:
        if self.num_classes is not None:
            return super().about_labels(num_classes)
        rule = f"and those of {self.name} are 0..{num_classes - 1}"  # -1 in a split without labels
        return rule, "choose another data.train_split, data.test_split or data.label_feature"

    @property
    def label(self) -> str:
        return self.name


@dataclass(kw_only=True)
class FolderConfig(MaskKeys, DataConfig):
    """Your own image files, a folder for each class; with task=segment, images and their masks.

    `path`: a folder with train/ and with test/ or val/ or both. Or a folder with one sub-folder for each class, or with
    images/ and masks/.
    `test_fraction`: share of the images held out for testing, if the folder holds one sub-folder for each class.
    """

    OF_INPUTS: ClassVar[Mapping[str, Sequence[str]]] = {**DataConfig.OF_INPUTS, **MaskKeys.OF_SCENES}
    VAL_SHARE: ClassVar[float] = 0.1

    kind: str = "folder"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("photos")
    test_fraction: Annotated[float, Range(0, 1, above=True), Role.RULE | Role.HELD_OUT] = 0.2

    @property
    def label(self) -> str:
        return PurePath(self.path).name or self.kind


@dataclass(kw_only=True)
class TokenKeys(DataConfig):
    """Keys of sources whose examples may be texts.

    `tokenizer`: bytes: tokens are the bytes of UTF-8. Or the tokenizer.json of the library tokenizers, or the folder of
    a published model. Its post-processor puts special tokens around texts.
    `length`: tokens of an example, special ones among them: longer texts are cut, shorter ones padded. With
    task=next_token: of a row. null: 128, or the columns of an .npz file.
    `by_length`: blocks of 32 texts have a similar length. The order of the blocks is random.
    `buckets`: lengths, increasing: each micro-batch is cut to the first of them that holds its longest text. Empty:
    every batch has data.length.
    """

    tokenizer: Annotated[
        str, NotEmpty("give bytes, or the path of a tokenizer.json or its folder"), LOCAL_PATH, Role.PLACE
    ] = "bytes"
    length: Annotated[int | None, COUNT, Role.LEARNED | Role.MEASURED] = None
    by_length: Annotated[bool, Role.RULE] = False
    buckets: Annotated[list[int], Role.RULE] = field(default_factory=list)

    OF_INPUTS: ClassVar[Mapping[str, Sequence[str]]] = {
        **DataConfig.OF_INPUTS,
        "tokens": ("tokenizer", "length", "by_length", "buckets"),
    }
    VAL_SHARE: ClassVar[float] = 0.1
    LENGTH: ClassVar[int] = 128  # of data.length=null

    @property
    def varies_in_shape(self) -> bool:
        return bool(self.buckets)

    def check(self) -> None:
        super().check()
        if self.buckets and (self.buckets[0] < 1 or sorted(set(self.buckets)) != self.buckets):
            raise ConfigError(
                f"data.buckets={format_value(self.buckets)}: must be increasing lengths of at least 1; for example "
                "data.buckets=[32,64]"
            )


@dataclass(kw_only=True)
class TableConfig(TokenKeys):
    """Your own table, with an example and its labels in each row: CSV, TSV, JSON lines or Parquet.

    An example is an image, a text, or the numbers of some columns. A column is given by its name, or by its number from
    1 on.

    `path`: the table, or a folder that save_to_disk of the library datasets wrote. It names image files by paths
    relative to its folder, or by file names, with or without extension; Parquet and datasets may hold the images.
    `header`: true: the first row of text with separators names the columns. false: their names are 1, 2 and so on.
    `root`: folder from which the names of image files begin. They may begin with other folders, as on another machine,
    which are left out. null: the folder of the table.
    `rows`: examples: each row is an example. labels: each row has a label of an image, and an image may have several.
    `image_column`: column of the images. null: in a table of two columns without texts and numbers, the one that does
    not hold the labels, or else the first.
    `text_column`: column of the texts; or a list of two, for pairs of texts. null: the only one whose texts have five
    words or more on average, if it is clear which columns have their labels. Without one the examples are no texts.
    `prompt_column`: column of the prompts, to which the texts of data.text_column are the answers that task=next_token
    learns. null: there are none.
    `number_columns`: columns of the numbers that are an example. [*]: all columns that no other key asks for. They are
    standardised by the rows to train on. null: the examples are no numbers.
    `label_column`: column of the labels; or a list, for several labels or numbers, or a class as a 1 beside zeros.
    null: in a table of two columns, the one that does not hold the examples. Beside texts the only one that has at most
    100 different values, and half as many as rows.
    `label_separator`: what stands between the labels in a cell of several. list: the cell is a written list, such as
    ['a', 'b']. null: ; or |. With task=classify ; says that a cell is one class, however it is written.
    `missing`: texts in any case, and numbers, that mean, as an empty cell does, that a target is unknown.
    `decimal`: sign before the decimals of numbers: . or ,. The other one may stand between thousands. null: a point,
    and nothing stands between thousands.
    `val_path`: another table, of the examples to validate on. null: there is none.
    `test_path`: another table, of the examples to test on. null: there is none.
    `split_column`: column with train, val or test in each row. null: there is none.
    `group`: column of what must not be torn apart, such as a patient. Rows with the same value are all trained on or
    all held out. null: each row is by itself.
    `test_fraction`: share of the examples held out for testing, if nothing says which these are.
    """

    kind: str = "table"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("labels.csv")
    header: Annotated[bool, Role.PLACE] = True
    root: Annotated[str | None, LOCAL_PATH, Role.PLACE] = None
    rows: Annotated[str, OneOf(("examples", "labels"))] = "examples"
    image_column: Annotated[str | int | None, COUNT] = None
    text_column: Annotated[str | int | list[str | int] | None, COUNT] = None
    prompt_column: Annotated[str | int | None, COUNT] = None
    number_columns: list[str | int] | None = None
    label_column: Annotated[str | int | list[str | int] | None, COUNT] = None
    label_separator: str | None = None
    missing: list[str] = field(default_factory=lambda: [*TableConfig.MISSING])
    decimal: Annotated[str | None, OneOf((".", ",")), Role.PLACE] = None
    val_path: Annotated[str | None, LOCAL_PATH, Role.RULE] = None
    test_path: Annotated[str | None, LOCAL_PATH, Role.PLACE] = None
    split_column: Annotated[str | int | None, COUNT] = None
    group: Annotated[str | int | None, COUNT] = None
    test_fraction: Annotated[float, Range(0, 1, above=True), Role.RULE | Role.HELD_OUT] = 0.2

    ALL: ClassVar[list[str | int]] = ["*"]  # number_columns
    LIST: ClassVar[str] = "list"  # label_separator
    MISSING: ClassVar[tuple[str, ...]] = ("nan", "nat", "na", "n/a", "#n/a", "<na>", "null", "none")

    @property
    def label(self) -> str:
        return PurePath(self.path).stem or self.kind

    @property
    def text_columns(self) -> list[str | int]:
        """The column of the texts, or both of pairs, or of prompts and answers; empty if the examples are no texts."""
        asked = self.text_column
        named = asked if isinstance(asked, list) else [] if asked is None else [asked]
        return named if self.prompt_column is None else [self.prompt_column, *named]

    @property
    def asked_columns(self) -> list[str | int]:
        """Those of `text_columns` that a trained run is asked."""
        return self.text_columns if self.prompt_column is None else [self.prompt_column]

    def check(self) -> None:
        super().check()
        if isinstance(self.text_column, list) and not len(self.text_column) == len(set(self.text_column)) == 2:
            raise ConfigError(
                f"data.text_column={format_value(self.text_column)}: must be a column of texts, or two different ones, "
                "of pairs; for example data.text_column=[premise,hypothesis]"
            )
        if self.prompt_column is not None and (self.text_column is None or isinstance(self.text_column, list)):
            raise ConfigError(
                f"data.prompt_column={self.prompt_column} and data.text_column={format_value(self.text_column)}: each "
                "prompt has one answer; name their column, data.text_column=<name>"
            )
        names = self.label_column if isinstance(self.label_column, list) else [self.label_column]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"data.label_column={format_value(names)}: must hold the names of different columns; for example "
                "data.label_column=[smoke,fire]"
            )
        numbers = self.number_columns
        if numbers is not None and (not numbers or len(set(numbers)) < len(numbers)):
            raise ConfigError(
                f"data.number_columns={format_value(numbers)}: must hold the names of different columns, or [*] for "
                "all that no other key asks for"
            )
        if self.label_separator == "":
            raise ConfigError("data.label_separator='': must be a text; give one, such as ',', or leave it out")
        if self.label_separator is not None and self.rows == "labels":
            raise ConfigError(
                f"data.label_separator={self.label_separator} and data.rows=labels: a row has one label, or a list of "
                "them; leave one of the two out"
            )
        self._check_inputs()
        paths = [f"data.{key}={path}" for key in ("val_path", "test_path") if (path := getattr(self, key)) is not None]
        if paths and self.split_column is not None:
            raise ConfigError(
                f"data.split_column={self.split_column} and {paths[0]}: both say which examples are held out; leave "
                "one of the two out"
            )

    def _check_inputs(self) -> None:
        given = [
            f"data.{key}={format_value(value)}"
            for key in ("image_column", "text_column", "number_columns")
            if (value := getattr(self, key)) is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: an example is an image, a text or numbers; give one of them")
        if self.rows == "labels" and (self.text_column is not None or self.number_columns is not None):
            raise ConfigError(
                f"data.rows=labels and {given[0]}: rows of the same image are joined, and texts and numbers may be "
                "there twice; leave data.rows out, and write the labels of an example into one row"
            )


@dataclass(kw_only=True)
class NpzConfig(MaskKeys, TokenKeys):
    """Your own arrays in a NumPy file: images, or tokens of texts.

    `path`: the file.
    `scale`: value of white in the arrays of the file: 1 or 255. auto: found from the values.
    `padding`: id that is padding in the tokens; null: padding is only where the array mask is 0.
    `vocabulary`: number of ids of the tokens, without the mask token; null: the largest one that is found, plus 1. A
    tokenizer says it, too.
    `test_fraction`: share of the examples held out for testing, if the file has no test or val arrays.
    """

    kind: str = "npz"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("mine.npz")
    scale: Annotated[int | str, Word("auto", _SCALE)] = "auto"
    padding: int | None = None
    vocabulary: Annotated[int | None, Range(1, 2**31 - 1)] = None
    test_fraction: Annotated[float, Range(0, 1, above=True), Role.RULE | Role.HELD_OUT] = 0.2

    OF_INPUTS: ClassVar[Mapping[str, Sequence[str]]] = {
        **MaskKeys.OF_SCENES,
        "pixels": (*TokenKeys.OF_INPUTS["pixels"], "scale"),
        "tokens": (*TokenKeys.OF_INPUTS["tokens"], "padding", "vocabulary"),
    }

    def check(self) -> None:
        super().check()
        if isinstance(self.scale, int) and self.scale not in (1, 255):
            raise ConfigError(f"data.scale={self.scale}: {_SCALE}")

    @property
    def label(self) -> str:
        return PurePath(self.path).stem or self.kind


@dataclass(kw_only=True)
class TextsConfig(TokenKeys):
    """Your own texts as files.

    `path`: a folder of files, each a text. There each class has a sub-folder, and train/, test/ and val/ above these
    are the splits. Where tokens are learned, also a file with a text a line, or a folder of such files by the names of
    splits.
    `test_fraction`: share of the texts held out for testing, if there are no test or val texts.
    """

    kind: str = "texts"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("texts")
    test_fraction: Annotated[float, Range(0, 1, above=True), Role.RULE | Role.HELD_OUT] = 0.2

    @property
    def label(self) -> str:
        return PurePath(self.path).stem or self.kind


@dataclass(kw_only=True)
class CifarBinaryConfig(DataConfig):
    """CIFAR-10 or CIFAR-100 as its authors publish it: binary files of 3,072 bytes per image after one or two labels.

    `path`: folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or with train.bin and test.bin.
    """

    kind: str = "cifar_binary"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("cifar-10-batches-bin")
    mean: list[float] = field(default_factory=lambda: [0.4914, 0.4822, 0.4465])
    std: list[float] = field(default_factory=lambda: [0.2470, 0.2435, 0.2616])
    augment: Annotated[str, _AUGMENT] = "crop_flip"

    @property
    def label(self) -> str:
        return PurePath(self.path).name or self.kind


@dataclass(kw_only=True)
class IdxConfig(DataConfig):
    """The IDX files of MNIST, or of a data set in its format such as Fashion-MNIST, plain or .gz.

    `path`: folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and the two t10k files. Or a folder with train/
    and test/ that hold them.
    `class_names`: names of the classes, in order; empty: they are numbered.
    """

    kind: str = "idx"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("MNIST_Data")
    class_names: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=lambda: [0.1307])
    std: list[float] = field(default_factory=lambda: [0.3081])

    def check(self) -> None:
        super().check()
        _check_class_names(self.class_names)
        if len(self.class_names) == 1:
            raise ConfigError(
                f"data.class_names={format_value(self.class_names)}: names 1 class; name two or more, or leave it out"
            )

    @property
    def label(self) -> str:
        return PurePath(self.path).name or self.kind


@dataclass(kw_only=True)
class TfrecordConfig(RecordsConfig):
    """Your own TFRecord files of tf.train.Example.

    `path`: glob of the files to train on.
    `test_path`: glob of the files to test on.
    `num_classes`: number of classes.
    `raw_shape`: height, width and channels of images stored as raw 8-bit pixels, row by row. null: images are files
    such as PNG or JPEG.
    """

    kind: str = "tfrecord"
    path: Annotated[str, _PATH, LOCAL_PATH, Role.PLACE] = required("'path/to/train-*.tfrecord'")
    test_path: Annotated[str, NotEmpty("say where the data is, data.test_path=<value>"), LOCAL_PATH, Role.PLACE] = (
        required("'path/to/test-*.tfrecord'")
    )
    image_feature: str = "image/encoded"
    label_feature: str = "image/class/label"
    num_classes: Annotated[int, _CLASSES] = required("10")
    raw_shape: list[int] | None = None

    @property
    def known_pixels(self) -> tuple[int, int] | None:
        return self.pixels or ((self.raw_shape[0], self.raw_shape[1]) if self.raw_shape else None)

    def check(self) -> None:
        super().check()
        shape = self.raw_shape
        if shape is not None and (len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3)):
            raise ConfigError(
                f"data.raw_shape={format_value(shape)}: must be height, width and 1 or 3 channels; for example "
                "data.raw_shape=[28,28,1]"
            )
