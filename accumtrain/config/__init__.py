"""The configuration: `schema` and `groups` name the keys, `convert` reads a mapping, `rules` checks the values.

YAML in conf/ holds the values. `from_mapping` turns what Hydra composed into a `Config` once; everything below the
command line sees dataclasses only. No TensorFlow here.
"""

from pathlib import Path

from accumtrain.config.arithmetic import micro_batch_size, total_steps
from accumtrain.config.convert import from_mapping, known_keys, to_mapping
from accumtrain.config.groups import (
    AUGMENTS,
    MEMORIES,
    NORMS,
    STEMS,
    AdafactorConfig,
    AdamConfig,
    CosineConfig,
    DataConfig,
    DigitsConfig,
    FolderConfig,
    KerasModelConfig,
    KerasOptimConfig,
    LeNetConfig,
    ModelConfig,
    OptimConfig,
    ResNetConfig,
    RevNetConfig,
    RsqrtConfig,
    ScheduleConfig,
    SgdConfig,
    StepConfig,
    SyntheticConfig,
    TfdsConfig,
    TfrecordConfig,
)
from accumtrain.config.names import show, suggest
from accumtrain.config.schema import (
    JOBS,
    PRECISIONS,
    AccumConfig,
    BenchConfig,
    CheckpointConfig,
    Config,
    DeviceConfig,
    EmaConfig,
    EvalConfig,
    LogConfig,
    LossScaleConfig,
    ReportConfig,
    RunConfig,
    TrainConfig,
)

__all__ = [
    "AUGMENTS",
    "CONF_DIR",
    "JOBS",
    "MEMORIES",
    "NORMS",
    "PRECISIONS",
    "STEMS",
    "AccumConfig",
    "AdafactorConfig",
    "AdamConfig",
    "BenchConfig",
    "CheckpointConfig",
    "Config",
    "CosineConfig",
    "DataConfig",
    "DeviceConfig",
    "DigitsConfig",
    "EmaConfig",
    "EvalConfig",
    "FolderConfig",
    "KerasModelConfig",
    "KerasOptimConfig",
    "LeNetConfig",
    "LogConfig",
    "LossScaleConfig",
    "ModelConfig",
    "OptimConfig",
    "ReportConfig",
    "ResNetConfig",
    "RevNetConfig",
    "RsqrtConfig",
    "RunConfig",
    "ScheduleConfig",
    "SgdConfig",
    "StepConfig",
    "SyntheticConfig",
    "TfdsConfig",
    "TfrecordConfig",
    "TrainConfig",
    "from_mapping",
    "known_keys",
    "micro_batch_size",
    "show",
    "suggest",
    "to_mapping",
    "total_steps",
]


def _find_conf_dir() -> Path:
    package = Path(__file__).resolve().parents[1]
    inside_wheel = package / "conf"
    return inside_wheel if inside_wheel.is_dir() else package.parent / "conf"


CONF_DIR = _find_conf_dir()
