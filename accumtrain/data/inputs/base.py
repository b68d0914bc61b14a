"""`Inputs`: what a model takes of an example. A subclass is a kind, which `INPUTS` of data/sources/config.py names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_type_hints

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import convert, shorten
from accumtrain.runs.schema import InputsInShort

if TYPE_CHECKING:
    from accumtrain.data.source import Dataset, Split


class Asked(NamedTuple):
    """The examples that a trained run is asked: their names, the examples as a test split, and files left aside.

    The target of an example is its index. The rows of tables have other cells, by their columns.
    """

    names: list[str]
    data: Dataset
    ignored: list[str]
    others: Sequence[Mapping[str, Any]] = ()


Answered = tuple[Sequence[int] | np.ndarray, Sequence[np.ndarray] | np.ndarray]  # indices, and the answer to each


@dataclass(frozen=True)
class Inputs(ABC):
    """The inputs of a model, from the stored examples to an export.

    A new kind needs `open_named`, and what differs of the others.

    Attributes:
        kind: The name of the kind.
        examples: The word for examples of a data set.
        asked: The word for what a trained run is asked, and for what job=check reads.
        sizes: The names of the sizes of an example, such as height and width.
        alike: How two examples are the same, in words.
        is_seen: A person can look at an example.
        shape: That of an example in a batch; () of nested arrays.
    """

    kind: ClassVar[str]
    examples: ClassVar[str] = "examples"
    asked: ClassVar[str] = "inputs"
    sizes: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[str] = "byte for byte"
    is_seen: ClassVar[bool] = False

    shape: tuple[int, ...]

    def fitted(self, train: Split) -> Inputs:
        """Return the inputs with what they take from the examples to train on."""
        return self

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Return the kind, then those of which this is a subclass: a model that takes these takes it, too."""
        return tuple(base.__dict__["kind"] for base in cls.__mro__ if "kind" in base.__dict__)

    # ---- in training and evaluation; called in graphs

    def by_example(self, *, training: bool) -> bool:
        """Return whether stored examples pass through `example` one by one, even if they need no decoding."""
        return False

    def example(self, stored: Any, key: tf.Tensor, orientation: tf.Tensor | None = None, *, training: bool) -> Any:
        """Return one example as `batch` takes it.

        Args:
            stored: As `Split.read` returns it.
            key: Of its random numbers, uint64 [].
            orientation: That of an image file, by EXIF.
        """
        return stored

    def batch(self, inputs: Any, key: tf.Tensor | None, *, training: bool) -> Any:
        """Return examples [n, ...], with keys uint64 [n], as the model takes them."""
        return inputs

    def evaluated(self, split: Split) -> Split:
        """Return a split as evaluations take it."""
        return split

    @property
    def longest(self) -> Inputs:
        """The same with all batches as long as the longest, to measure the memory that they take."""
        return self

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens; 0 if they are no tokens."""
        return 0

    @property
    def of_bytes(self) -> bool:
        """True if they are the bytes of texts, which no tokenizer has read."""
        return False

    @property
    def adds_mask(self) -> bool:
        """True if the last token is a mask that no text has."""
        return False

    @property
    def is_checked(self) -> bool:
        """True if job=check reads them."""
        return bool(self.sizes)

    def describe(self) -> str:
        """Return the shape of an example in words."""
        return " x ".join(map(str, self.shape))

    # ---- in the files of a run

    def facts(self) -> dict[str, Any]:
        """Return JSON values, from which `from_facts` makes the inputs again."""
        return {"kind": self.kind, **{key.name: _plain(getattr(self, key.name)) for key in fields(self)}}

    @property
    def in_short(self) -> InputsInShort:
        """The facts that the checkpoints of a run have in common with its inputs.json."""
        return {"kind": self.kind, "shape": tuple(self.shape), "vocabulary": self.vocabulary_size}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Inputs:
        """Return the inputs of a trained run.

        Args:
            facts: Those of `facts`.
            config: The data keys of the run.

        Raises:
            ConfigError: They are not those of `facts`. The message begins with the key.
        """
        hints = get_type_hints(cls, include_extras=True)
        names = [key.name for key in fields(cls)]
        if odd := sorted({*facts} ^ {*names, "kind"}):
            raise ConfigError(f"inputs.{shorten(odd[0])}: must be {', '.join(names)} of inputs of the kind {cls.kind}")
        return cls(**{name: convert(hints[name], facts[name], f"inputs.{name}") for name in names})

    # ---- asked of a trained run

    def with_length(self, config: DataConfig) -> Inputs:
        """Return the same for texts of data.length tokens, if that is given. Raise ConfigError if these are too few."""
        return self

    def adapt(self, config: DataConfig) -> DataConfig:
        """Return the keys by which other data with targets is read as the run read its own.

        Raises:
            ConfigError: A key asks for other inputs.
        """
        return config

    def match(self, split: Split, config: DataConfig) -> Inputs:
        """Return the inputs of other data with targets, in a split that was read by the keys of `adapt`.

        Raises:
            DataError: They are not of the run's shape.
        """
        if split.shape != self.shape:
            raise DataError(
                f"data={config.kind}: its inputs have the shape {list(split.shape or ())}, the run was trained on "
                f"{list(self.shape)}; give such data"
            )
        return self

    @abstractmethod
    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Return the examples that texts name.

        Args:
            named: Paths of files or folders, or globs.
            config: The data keys of the run.
            key: That gives the texts, for messages.

        Raises:
            ConfigError: The kind reads no files.
            DataError: There are none, or they are not such inputs.
        """

    def join(self, split: Split, answers: Iterable[Answered]) -> Iterable[Answered]:
        """Return the answers to what was asked, from those to the examples of a split."""
        return answers

    def beginnings(self, split: Split, indices: Sequence[int]) -> list[str]:
        """Return how examples of a split begin, to be shown beside their names; none if the names say enough."""
        return []

    @abstractmethod
    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        """Return the examples of an array [N, ...]. Raise DataError if it is none of such inputs."""

    def check_one(self) -> None:
        """Raise ConfigError if an example is several arrays, or one without a known shape."""
        if not self.shape:
            raise ConfigError(
                "predictions and exports take a model of one array [N, ...], and this one takes several, or numbers "
                "[N]; let the data give one array, whose split has its shape"
            )

    # ---- in an export

    @property
    @abstractmethod
    def signature(self) -> tf.TensorSpec:
        """The array that an export takes, with its name."""

    def serve(self, given: tf.Tensor) -> Any:
        """Return what the model takes of an array as `signature` has it. Called in graphs, which exports hold."""
        return self.batch(given, None, training=False)

    @abstractmethod
    def samples(self) -> list[np.ndarray]:
        """Return arrays as `signature` has them, the same in every call."""

    def prepare(self, given: np.ndarray) -> Any:
        """Return an array as `signature` has it as an evaluation prepares it, with which `serve` is compared."""
        key = tf.zeros([], tf.uint64)
        examples = [self.example(tf.constant(one), key, training=False) for one in given]
        return self.batch(tf.stack(examples), tf.fill([len(given)], key), training=False)

    def texts(self) -> dict[str, Any]:
        """Return what goes along with an export, as JSON values by name."""
        return {}

    @property
    def resized_to(self) -> tuple[int, ...] | None:
        """The size to which an export resizes what it takes; None if it takes one size."""
        return None

    # ---- for a person to look at

    def pictures(self, inputs: tf.Tensor) -> list[bytes]:
        """Return a batch as PNG files; none of what can't be seen."""
        return []

    def show(self, inputs: np.ndarray) -> np.ndarray:
        """Return a batch as it was before it was normalised."""
        return inputs


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
