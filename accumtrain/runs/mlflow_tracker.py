"""log.tracker=mlflow: records as metrics of an MLflow run, where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accumtrain.kinds.values import show
from accumtrain.runs.tracker import identifier, metrics, numbers

EXPERIMENT = "accumtrain"  # unless MLFLOW_EXPERIMENT_NAME says another
STATUS = {"completed": "FINISHED", "preempted": "KILLED"}  # by that of a summary
FAILED = "FAILED"
LONGEST = 6000  # characters of a parameter
EPOCH = "/epoch"  # ends the name of a metric that each record has, after its split


class MlflowTracker:
    """An MLflow run. A continued run of ours continues it; what it has been told already stays."""

    def __init__(self, name: str, folder: Path, hyperparameters: Mapping[str, Any]):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self._run = identifier(folder, "mlflow", lambda: self._create(name))
        self._status = FAILED
        self._client.update_run(self._run, status="RUNNING")
        known = self._client.get_run(self._run).data
        # by split: a killed run makes updates again whose records have been sent
        self._told = {key.removesuffix(EPOCH): self._last(key) for key in known.metrics if key.endswith(EPOCH)}
        # parameters can't be changed
        new = {key: show(value)[:LONGEST] for key, value in hyperparameters.items() if key not in known.params}
        self._client.log_batch(self._run, params=[Param(key, value) for key, value in new.items()])

    def _create(self, name: str) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def _last(self, key: str) -> int:
        """The last step of a metric."""
        return max(int(each.step) for each in self._client.get_metric_history(self._run, key))

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] > self._told.get(record["split"], -1):
            self._log(metrics(record), record["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._log(dict(numbers(summary, "summary")), summary["step"])
        self._status = STATUS.get(summary["status"], FAILED)

    def close(self) -> None:
        self._client.set_terminated(self._run, status=self._status)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            self._run, metrics=[self._metric(key, value, now, step) for key, value in values.items()]
        )
