"""The types of what the files of a run hold. Each file is checked where it is read, so its users need no guards.

`parse_json` and `read_json` of runs/files.py take these types. The types of inputs.json that a kind of inputs or a task
has are theirs (data/inputs/, tasks/), and that of config.yaml is `Config`. Keys that no type names are kept.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, TypedDict

from accumtrain.errors import ConfigError
from accumtrain.fields import NOT_NEGATIVE, WEIGHT, Constraint, Matches, OneOf, Other, Range, format_value, shorten

Count = Annotated[int, Range(0, 2**63)]
Size = Annotated[int, Range(1, 2**31)]  # of a dimension, which 32 bits hold
Checksum = Annotated[str, Matches(re.compile("[0-9a-f]{8}"), "must be 8 hexadecimal digits")]
# As long runs over data of several sizes have large denominators, the digits are many.
Epochs = Annotated[str, Matches(re.compile("[0-9]{1,100}(/[1-9][0-9]{0,99})?"), "must be a fraction such as 3/4")]
Numbers = dict[str, float | None]
Keys = dict[str, Any]  # values by dotted key, which are compared and not used

MOST_VALUES = 2**31  # of an example


class ShapeOfExample(Constraint):
    """Sizes whose product 32 bits hold, as kernels count values with these."""

    def check(self, key: str, value: Any) -> None:
        product = 1
        for size in value:
            product *= size
        if product >= MOST_VALUES:
            raise ConfigError(f"{key}={shorten(format_value(value))}: must be sizes of fewer than 2**31 values")


class EpochSums(Constraint):
    """Sums over examples, with the weight of these, unless an epoch has just begun."""

    def check(self, key: str, value: Any) -> None:
        if value and not (dict(value).get(WEIGHT) or 0.0) > 0:
            raise ConfigError(f"{key}={shorten(format_value(list(map(list, value))))}: must have a {WEIGHT} above 0")


class NamesOfFiles(Constraint):
    """Files of one folder, and at least one: without any a checkpoint would be whole whatever it holds."""

    def check(self, key: str, value: Any) -> None:
        if not value:
            raise ConfigError(f"{key} is empty: must name the files of the checkpoint")
        for name in value:
            if name != PurePath(name).name:
                raise ConfigError(f"{key}.{shorten(name)}: must be the name of a file in the folder")


Shape = Annotated[tuple[Size, ...], ShapeOfExample()]

# ---- manifest.json of a checkpoint -----------------------------------------------------------------------------------


class OfFile(TypedDict):
    """The size and the checksum of a file."""

    bytes: Count
    crc32c: Checksum


class Versions(TypedDict):
    accumtrain: str


class Recovered(TypedDict):
    """The skipped windows and rollbacks of a run."""

    skipped: Count
    rollbacks: Annotated[int, Range(0, 2**31)]


class KeptByHooks(TypedDict):
    """Values that hooks keep, the reason for which one has ended the run, and the updates that it was to have."""

    kept: dict[str, Any]
    finished: str | None
    total: Count


class InputsInShort(TypedDict):
    """The facts that inputs.json has in common with a checkpoint. `vocabulary`: the number of tokens, 0 of others."""

    kind: str
    shape: tuple[Size | None, ...]  # null: it varies
    vocabulary: Count


class AnyFormat(TypedDict):
    """The keys that a manifest of each format has."""

    format: int
    versions: Versions


_Classes = TypedDict("_Classes", {"data.classes": Count | list[str]}, total=False)  # their names, or their number
_Examples = TypedDict("_Examples", {"data.train.examples": Annotated[int, Range(1, 2**63)]})


class Fingerprint(_Classes, _Examples):
    """The facts of the data that a run was trained on."""


Learned = TypedDict("Learned", {"loss.kind": str}, total=False)  # and all other values that decide what is learned


class _Manifest(AnyFormat):
    step: Count
    written: Annotated[float, Range(0, 2**37)]  # seconds since the epoch, up to the year 6325
    learned: Learned
    data: Fingerprint
    weights: Keys
    examples: Count
    epochs: Epochs
    epoch_sums: Annotated[list[tuple[str, float | None]], EpochSums()]  # null: NaN
    total_steps: Count
    recovery: Recovered
    hooks: KeptByHooks
    files: Annotated[dict[str, OfFile], NamesOfFiles()]
    crc32c: Checksum


class Manifest(_Manifest, total=False):
    """The manifest of a checkpoint: `_Manifest`, and keys that some do not have.

    Attributes:
        answers: Facts about the answers of its state, which evaluations of some tasks find.
        inputs: Older ones have none.
        noise: The means of the noise scale, of runs that measure it.
        shares: Of each running mean of the optimizer the stages: updates made before, and the share that one keeps.
            Older ones have none.
        contents: Digests of the values of inputs.json by dotted key. Older ones have none.
    """

    answers: dict[str, Any]
    inputs: InputsInShort
    shares: list[list[tuple[Count, Annotated[float, Range(0, 1)]]]]
    noise: tuple[float, float, float]
    contents: dict[str, str]


# ---- summary.json ----------------------------------------------------------------------------------------------------


class ChosenBy(TypedDict):
    metric: str
    higher_is_better: bool


class GitState(TypedDict, total=False):
    commit: str
    dirty: bool


class Processor(TypedDict, total=False):
    model: str | None
    instructions: list[str]


class Provenance(TypedDict, total=False):
    versions: dict[str, str | None]
    git: GitState | None
    command: list[str]
    cpu: Processor
    started: str
    host: str
    platform: str
    device: str


class Memory(TypedDict, total=False):
    peak_by_compiler: bool


class WaitedFor(TypedDict):
    median: Annotated[float, NOT_NEGATIVE]
    most: Annotated[float, NOT_NEGATIVE]


class CheckpointsWritten(TypedDict, total=False):
    """The checkpoints of a session, and the seconds that the training has waited for one."""

    written: Count
    seconds_waited: WaitedFor


class _Summary(TypedDict):
    status: str
    step: Count


class Summary(_Summary, total=False):
    """summary.json. That of a run without an evaluation lacks keys."""

    epoch: Annotated[float, NOT_NEGATIVE] | None
    train: Numbers | None
    val: Numbers | None
    test: Numbers | None
    best: Numbers | None
    best_on: Annotated[str, OneOf(("val", "test"))]
    best_step: Count | None
    best_by: ChosenBy | None
    checkpoints: CheckpointsWritten
    seconds: Annotated[float, NOT_NEGATIVE]
    examples_per_second: Annotated[float, NOT_NEGATIVE] | None
    memory: Annotated[Memory, Other(Count | None)]
    memory_by_kind: dict[str, Count]
    batch_size: Count
    micro_batch_size: Count
    accum_steps: Count
    replicas: Count
    params: Count
    optimizer_state_bytes: Count
    seconds_to_first_update: Annotated[float, NOT_NEGATIVE] | None
    recovery: Recovered
    reversal: str | None
    skipped_windows: Count
    skipped_examples: Count
    data: Fingerprint
    repeated_examples: dict[str, Count]
    provenance: Provenance


# ---- metrics.jsonl, and other files ----------------------------------------------------------------------------------


class _Record(TypedDict):
    step: Count
    split: str
    seconds: float


Record = Annotated[_Record, Other(float | None)]  # a line of metrics.jsonl


class NotEmptyList(Constraint):
    """A list that holds something."""

    def check(self, key: str, value: Any) -> None:
        if not value:
            raise ConfigError(f"{key} is empty: must hold something")


class OfKind(TypedDict):
    """The facts of inputs: their kind, which checks all others, and the shape of an example."""

    kind: str
    shape: Shape


class NamedTargets(TypedDict):
    """The form of the targets, and the names of the classes, labels or numbers."""

    form: str
    names: Annotated[list[str], NotEmptyList()]


class InputsFile(TypedDict):
    """inputs.json. The task checks `facts`."""

    inputs: OfKind
    targets: NamedTargets
    facts: dict[str, Any]


class SkippedFile(TypedDict):
    """skipped.json."""

    count: Count
    examples: list[Any]


class KeptActivations(TypedDict):
    """memory_budget.json. `from_mapping` checks the keys of the model."""

    model: dict[str, Any]
    peak_bytes: Count
    digest: str


TrackerIds = dict[str, str]  # tracker.json
