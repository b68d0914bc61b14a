"""The kinds of weights that a run may begin with: a run, a file of Keras, what Keras publishes, a published folder."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.imagenet import IMAGENET, show_pixels
from accumtrain.config.schema import Config
from accumtrain.console import say, warn
from accumtrain.data.config import TokenKeys
from accumtrain.data.inputs.base import Inputs
from accumtrain.errors import ConfigError
from accumtrain.models.config import KerasModelConfig, ModelConfig
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.keras.hub_folder import PresetFolder, is_folder
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import ADAPTER_CONFIG, CONFIG, Folder
from accumtrain.models.transformers.config import TransformerConfig
from accumtrain.runs.checkpoint_store import best_first, crc32c_of
from accumtrain.runs.contents import read_run_config
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.train.checkpoint import again_if_changed, find_state

KEY = "model.weights"
Arrays = Mapping[str, np.ndarray]  # by the path of their variable


@dataclass(frozen=True)
class FirstWeights(ABC):
    """Weights that a run begins with."""

    config: Config

    @property
    def given(self) -> str:
        """The key and the value that name them."""
        return f"{KEY}={self.config.model.weights}"

    @abstractmethod
    def digest(self) -> str:
        """Return the checksum of their content, or a word that says it: not of their path."""

    def read(self, inputs: Inputs | None) -> Arrays | None:
        """Return the arrays before the model is built; None if they are read for its variables.

        Another model that is built for it is freed again, so a memory limit need not hold both.

        Args:
            inputs: those of the data; None if they are not known.

        Raises:
            AccumtrainError: there are none that can be read, or they are of another model.
        """
        return None

    def fit(self, model: Model, arrays: Arrays | None) -> Arrays:
        """Return the arrays for the variables of a model.

        Args:
            arrays: from `read`.

        Raises:
            AccumtrainError: they can't be read, or are for other data.
        """
        assert arrays is not None, "a kind that reads none beforehand reads them here"
        return arrays

    @property
    def note(self) -> str:
        """Another fact that they decide, for the screen; empty if there is none."""
        return ""


@dataclass(frozen=True)
class RunWeights(FirstWeights):
    """The weights of the best state of a run.

    Attributes:
        folder: of the run.
    """

    folder: Path

    def digest(self) -> str:
        checkpoints = self._checkpoints()
        _, manifest = again_if_changed(lambda: find_state(checkpoints))
        sums = [entry["crc32c"] for _, entry in sorted(manifest["files"].items())]
        return f"crc32c {' '.join(sums)}"

    def read(self, inputs: Inputs | None) -> Arrays:
        from accumtrain.train.trained.load import find_trained_on, trained_model  # here, as most runs begin with none

        self._checkpoints()
        source = read_run_config(self.folder)
        _check_heads(self.config, source)
        if show_pixels(source.data) != show_pixels(self.config.data):
            say(
                f"{self.config.model.weights} was trained on pixels with {show_pixels(source.data)}, and this run has "
                f"{show_pixels(self.config.data)}; where the images are alike, give the former"
            )
        with tf.device("CPU"):
            noted, fingerprint = find_trained_on(source)
            _warn_of_other_tokens(self.config, noted.inputs, inputs)
            model = trained_model(source, noted, fingerprint).model
            arrays = _copy_arrays(model, source.model, self.config.model)
            del model
            gc.collect()  # frees its memory, as a model's objects refer to each other
        return arrays

    def _checkpoints(self) -> Path:
        """Return the folder of the run's checkpoints. Raise ConfigError if it holds none."""
        folder = self.folder / CHECKPOINTS
        if not best_first(folder):
            raise ConfigError(f"{self.given}: no checkpoint in {folder}; train that run first")
        return folder


def _copy_arrays(model: Model, source: ModelConfig, own: ModelConfig) -> Arrays:
    """Return the arrays of a trained model. Its adapters are merged into their layers if ours are others."""
    if isinstance(source, PretrainedConfig) and isinstance(own, PretrainedConfig) and source.adapters != own.adapters:
        from accumtrain.models.published.build import PublishedModel
        from accumtrain.models.published.export import merge_adapters

        assert isinstance(model, PublishedModel)
        return merge_adapters(model)
    return {path: np.array(variable) for path, variable in model.named.items()}


def _check_heads(config: Config, source: Config) -> None:
    """Raise ConfigError if kernels of attention fit, and would be divided among another number of heads."""
    own, theirs = config.model, source.model
    if isinstance(own, TransformerConfig) and isinstance(theirs, TransformerConfig) and own.heads != theirs.heads:
        raise ConfigError(
            f"model.heads={own.heads}: the run that {KEY}={own.weights} names has {theirs.heads}, and its attention is "
            f"another one with {own.heads}; give model.heads={theirs.heads}"
        )


def _warn_of_other_tokens(config: Config, before: Inputs, now: Inputs | None) -> None:
    """Warn if the ids of tokens are those of another tokenizer, whose table may have the same size."""
    vocabularies = [inputs.texts().get("vocabulary") for inputs in (before, now) if inputs is not None]
    tokenizers = [vocabulary["tokenizer"] for vocabulary in vocabularies if vocabulary is not None]
    if len(tokenizers) < 2 or len(set(tokenizers)) == 1:
        return
    theirs, own = map(_name_tokenizer, tokenizers)
    own = "those of another" if own == theirs else own
    warn(
        f"{config.model.weights} was trained on {theirs}, and this run has {own}: where an id is another token, "
        "it begins with the weights of that; give the data and data.tokenizer as there"
    )


def _name_tokenizer(tokenizer: str) -> str:
    return {TokenKeys.tokenizer: "bytes", "": "ids of no tokenizer"}.get(tokenizer, "the tokens of a tokenizer.json")


@dataclass(frozen=True)
class KerasFile(FirstWeights):
    """A file of Keras weights.

    Attributes:
        file: a .keras, .weights.h5 or .h5 file.
    """

    file: Path

    def digest(self) -> str:
        with self.file.open("rb") as content:
            return f"crc32c {crc32c_of(content)}"

    def fit(self, model: Model, arrays: Arrays | None) -> Arrays:
        # Keras takes a second to import, and no other run needs it
        from accumtrain.models.keras.applications import read_keras_file
        from accumtrain.models.keras.model import KerasModel

        assert isinstance(model, KerasModel), "find_weights refuses others"
        return read_keras_file(self.file, model.whole())


@dataclass(frozen=True)
class WeightsOfKeras(FirstWeights):
    """The weights that Keras publishes for a model. Their name, and that of the model, say their content."""

    def digest(self) -> str:
        return IMAGENET

    def read(self, inputs: Inputs | None) -> Arrays:
        from accumtrain.models.keras.applications import read_published

        assert isinstance(self.config.model, KerasModelConfig), "check_config refuses others"
        with tf.device("CPU"):
            arrays = read_published(self.config.model)
            gc.collect()
        return arrays

    def fit(self, model: Model, arrays: Arrays | None) -> Arrays:
        arrays = super().fit(model, arrays)
        path = next(path for path, variable in model.named.items() if len(variable.shape) == 4)
        channels, theirs = model.named[path].shape[2], arrays[path].shape[2]
        if channels != theirs:
            raise ConfigError(
                f"{self.given}: weights of {self.config.model.label} are for images of {theirs} channels, and these "
                f"have {channels}; give colour images, or leave {KEY} out"
            )
        return arrays

    @property
    def note(self) -> str:
        return f"{self.config.model.label} expects pixels with {show_pixels(self.config.data)}: they are set"


@dataclass(frozen=True)
class HubPreset(FirstWeights):
    """The weights of a preset of KerasHub.

    Attributes:
        model: its keys.
    """

    model: KerasHubConfig

    @property
    def given(self) -> str:
        return self.model.given

    def digest(self) -> str:
        if not is_folder(self.model.preset):
            return self.model.preset
        return f"crc32c {digest_files(PresetFolder(Path(self.model.preset)))}"

    def read(self, inputs: Inputs | None) -> Arrays:
        from accumtrain.models.keras.hub import read_preset

        with tf.device("CPU"):
            arrays = read_preset(self.model)
            gc.collect()
        return arrays

    @property
    def note(self) -> str:
        folder = PresetFolder(Path(self.model.preset))
        if is_folder(folder.path) and folder.tells_data:
            return ""
        return (
            f"{self.given} tells no keys of data: data.tokenizer, or data.image_size, data.mean and data.std, are yours"
        )


def digest_files(folder: Folder) -> str:
    """Return the checksums of the files of tensors of a folder. Raise ConfigError if one is not there."""
    sums = []
    for file in folder.files:
        folder.check_is_file(file)
        with file.open("rb") as content:
            sums.append(crc32c_of(content))
    return " ".join(sums)


@dataclass(frozen=True)
class PublishedFolder(FirstWeights):
    """The tensors of the folder of a published model.

    Attributes:
        model: its keys.
    """

    model: PretrainedConfig

    @property
    def given(self) -> str:
        return self._folder.given

    @property
    def _folder(self) -> Folder:
        return Folder(Path(self.model.path))

    def digest(self) -> str:
        return f"crc32c {digest_files(self._folder)}"

    def read(self, inputs: Inputs | None) -> None:
        from accumtrain.models.published.stored import StoredTensors

        if self._folder.architecture != self.model.found:
            raise ConfigError(
                f"{self._folder.given}: its {CONFIG} is another one than that of the run; give the folder that the run "
                "began with, or another run.name"
            )
        StoredTensors(self._folder).check_shapes(self.model.found)  # before memory is taken for the model

    def fit(self, model: Model, arrays: Arrays | None) -> Arrays:
        from accumtrain.models.published.build import PublishedModel
        from accumtrain.models.published.stored import StoredTensors
        from accumtrain.models.published.tensors import StoredArrays

        assert isinstance(model, PublishedModel)
        return StoredArrays(StoredTensors(self._folder), model.tensors, self.model.found.prefix)


@dataclass(frozen=True)
class PublishedAdapters(PublishedFolder):
    """The tensors of the folder of a published model, with adapters on top that PEFT has written.

    Attributes:
        adapters: their folder.
    """

    adapters: Path

    @property
    def given(self) -> str:
        return f"{KEY}={self.adapters}"

    def digest(self) -> str:
        from accumtrain.models.published.adapter_files import AdapterFolder

        return f"{super().digest()} {digest_files(AdapterFolder(self.adapters))}"

    def fit(self, model: Model, arrays: Arrays | None) -> Arrays:
        from accumtrain.models.published.adapter_files import AdapterFolder
        from accumtrain.models.published.build import PublishedModel

        assert isinstance(model, PublishedModel)
        on_top = dict(AdapterFolder(self.adapters).read_arrays(model, self.model.adapters))
        return ChainMap(on_top, super().fit(model, arrays))  # type: ignore[arg-type]  # nothing is written


def find_weights(config: Config) -> FirstWeights | None:
    """Return the weights that a run begins with; None if these are initial values.

    Raises:
        ConfigError: model.weights names none, or the run itself.
    """
    text = config.model.weights
    if text is None:
        if isinstance(config.model, KerasHubConfig):
            return HubPreset(config, config.model)
        return PublishedFolder(config, config.model) if isinstance(config.model, PretrainedConfig) else None
    if text == IMAGENET:
        return WeightsOfKeras(config)
    given, named = Path(text), Path(config.run.dir) / text
    found = next((path for path in (given, named) if path.is_file() or _holds_weights(path)), None)
    if found is None:
        raise ConfigError(
            f"{KEY}={text}: neither a file, nor a run's folder, nor the name of a run in {config.run.dir}; give one of "
            "these"
        )
    if found.resolve() == folder_of(config).resolve():
        raise ConfigError(f"{KEY}={text}: that is this run itself; leave it out to continue the run")
    if (found / ADAPTER_CONFIG).is_file():
        if not isinstance(config.model, PretrainedConfig):
            raise ConfigError(
                f"{KEY}={text}: a folder of adapters is for the published model that they were trained on; give "
                "model=pretrained and model.path"
            )
        return PublishedAdapters(config, config.model, found)
    if not found.is_file():
        return RunWeights(config, found)
    if config.model.kind != "keras":
        raise ConfigError(
            f"{KEY}={text}: a file holds weights of keras.applications, for model=keras; give a run for "
            f"{config.model.label}"
        )
    return KerasFile(config, found)


def _holds_weights(folder: Path) -> bool:
    """Return whether a folder is a run's, or one of adapters."""
    return any((folder / name).is_file() for name in ("config.yaml", ADAPTER_CONFIG))
