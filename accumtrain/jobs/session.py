"""The parts of a training, opened, restored and ready: everything but the loop over the updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.convert import flat, to_mapping
from accumtrain.config.schema import Config
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import train_stream
from accumtrain.data.repeats import find_repeats
from accumtrain.data.source import Data
from accumtrain.devices.cluster import find_cluster
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve
from accumtrain.engine.all_reduce import same_on_all_replicas
from accumtrain.engine.build_window import build_window
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.emulation import tell_emulation
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_means, build_split_metrics
from accumtrain.engine.memory_meter import Meter
from accumtrain.engine.pace import WORTH_TOGETHER, Pace
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError
from accumtrain.jobs.first_images import first_images
from accumtrain.jobs.place import Place, epochs_of
from accumtrain.jobs.recovery import Recovery, warn_of_rate_jump
from accumtrain.jobs.reversal import Reversal
from accumtrain.jobs.skipped import SkippedExamples
from accumtrain.jobs.starting import digest, window_with_weights
from accumtrain.jobs.summary import batch_sizes, results, speed_and_memory
from accumtrain.kinds.groups import has_own_layers
from accumtrain.models.start import Started
from accumtrain.planning.auto_steps import with_accum_steps_resolved
from accumtrain.planning.batch_norm import check_micro_batch
from accumtrain.planning.kernel_choice import record_kernels
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.planning.worker_share import own_share, with_steps_for_all
from accumtrain.process.interrupt import Interrupt
from accumtrain.process.program import is_own_run
from accumtrain.process.walltime import Walltime
from accumtrain.process.watchdog import Watchdog
from accumtrain.runs.checkpoint_store import best_first, newest_manifest
from accumtrain.runs.due import Due
from accumtrain.runs.events import Events
from accumtrain.runs.identity import learned_values
from accumtrain.runs.logbook import Logbook
from accumtrain.runs.provenance import provenance
from accumtrain.runs.recent_means import RecentMeans
from accumtrain.runs.run import Bystander, Run
from accumtrain.runs.tracker import open_service

if TYPE_CHECKING:
    from typing_extensions import Self


class Session:
    """One run, or one worker's part of it: restored from its newest whole checkpoint."""

    @classmethod
    @contextmanager
    def opened(cls, config: Config) -> Iterator[Self]:
        """Takes the lock of the run's folder, then builds all parts.

        Raises:
            AccumtrainError: the folder, the data, the devices or a checkpoint can't be used.
        """
        with run_folder(config) as run:
            record_kernels(config)
            steps = with_accum_steps_resolved(config, own_share(config)).accum.count
            devices = resolve(config.device)
            data = open_data(config.data, config.run.seed)
            epochs = Epochs(config, data.train.size)
            if newest := newest_manifest(run.checkpoints):
                epochs.restore(newest["step"], epochs_of(newest))
            with devices.watch, in_user_words(config, data, devices.replicas, devices.workers):
                config = with_steps_for_all(config, devices, steps)
                continued = bool(best_first(run.checkpoints))
                started = None
                if continued:
                    # code that is not accumtrain's may compute with initial weights, though others will be restored
                    window = build_window(
                        config, data, total_steps(config, epochs), devices.strategy, draws=not is_own_run(config)
                    )
                else:
                    window, started = window_with_weights(config, data, total_steps(config, epochs), devices.strategy)
                check_micro_batch(config, window.model, devices.replicas)
                session = cls(config, run, data, devices, window, epochs, started, continued=continued)
                with closing(session.logbook):
                    yield session

    def __init__(
        self,
        config: Config,
        run: Run,
        data: Data,
        devices: Devices,
        window: Window,
        epochs: Epochs,
        started: Started | None,
        *,
        continued: bool,
    ):
        self.config, self.run_folder, self.data, self.devices, self.window = config, run, data, devices, window
        self.recovery = Recovery(config.run, window)
        self.epochs, self.total, self.started = epochs, total_steps(config, epochs), started
        self.place = Place(config.batch_size, epochs)
        self.micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
        self.global_micro_batch = self.micro_batch * devices.replicas
        with devices.strategy.scope():
            self.step = Step(window, devices.strategy, xla=devices.xla, eager=config.debug.eager)
            self.evaluator = self._evaluator(data.watched)
            both = data.val is not None and data.test is not None
            self.tester = self._evaluator("test") if both else None  # at the end, of the best state
        self.alone = devices.workers == 1
        self._weights = digest(config)
        self.checkpoints = Checkpoints(
            run.checkpoints,
            window,
            config.checkpoint.keep,
            keep_hours=config.checkpoint.keep_hours,
            facts=self._facts,
            writes=devices.chief,
            frees_first=not config.device.as_it_is,  # there the weights are those of a model of the user's
        )
        self.resumed = self.restore(needed=continued)
        self._check_workers_agree()
        run.truncate(self.done)
        self.logbook = Logbook(run, config.batch_size, epochs, self.evaluator.names)
        self.due = Due(config, self.total, epochs)
        self.recent = RecentMeans(("loss", *window.metrics), config.log.every)
        self.micro_steps_pace, self.updates_pace = Pace(), Pace(WORTH_TOGETHER)
        self.meter, self.interrupt = Meter(xla=devices.xla), Interrupt()
        self.walltime = Walltime(config.run.walltime_seconds)
        self.watchdog = Watchdog(config.run.hang_timeout, run.path)
        # now, as files of the repository may change while it trains
        self._provenance = provenance(devices.description) if devices.chief else {}
        self.reversal = Reversal(config.model.policy)
        self.repeats = find_repeats(data)
        self.skipped = SkippedExamples(run.path, data, writes=devices.chief)

    def _evaluator(self, split: str) -> Evaluator:
        return Evaluator(
            self.window.model,
            self.window.ema,
            build_means(self.config.loss),
            self.data,
            split,
            self.global_micro_batch,
            self.devices.strategy,
            build_split_metrics(self.config.loss),
        )

    def _facts(self) -> dict[str, Any]:
        """What the manifest of a checkpoint says of this run."""
        return {
            "learned": learned_values(self.config),
            "data": dict(self.data.fingerprint),
            "weights": self._weights,
            **self.place.facts,
            "total_steps": self.total,
            "recovery": self.recovery.counts,
        }

    def restore(self, *, needed: bool) -> bool:
        """Restores the newest whole checkpoint. Returns whether there is one, which is an error if it is `needed`."""
        manifest = self.checkpoints.restore(self.run_folder.accept(self._facts()), needed=needed)
        if manifest is None:
            self.run_folder.check_not_begun()
            return False
        self.recovery.restore(manifest["recovery"])
        self.place.restore(manifest)
        if total_steps(self.config, self.epochs) != self.total:  # as another checkpoint was the newest before
            raise CheckpointError(
                f"the newest checkpoint in {self.checkpoints.directory} is damaged, and the one before it has made "
                "other epochs: run the same command again"
            )
        warn_of_rate_jump(self.config, manifest["total_steps"], self.total, self.done)
        return True

    @property
    def done(self) -> int:
        """Updates made."""
        return self.place.done

    @property
    def epoch(self) -> str:
        """The epochs made, in four digits."""
        return f"{self.place.epoch:.4g}"

    def batches(self) -> Any:
        """The micro-batches from the next window on."""
        batch, first, seed = self.global_micro_batch, self.place.examples, self.recovery.seed
        return train_stream(self.devices.strategy, self.data, batch=batch, seed=seed, first=first)

    def _check_workers_agree(self) -> None:
        if not self.alone and not same_on_all_replicas(self.devices.strategy, self.done):
            raise CheckpointError(
                f"worker {self.devices.worker} read the state after update {self.done} from {self.run_folder.path}, "
                "others that of another one: run.dir must be a folder that all workers share"
            )

    def open_trackers(self) -> None:
        """Opens what the metrics are written to beside metrics.jsonl: TensorBoard and the service of log.tracker."""
        folder = self.run_folder.path
        self.events = Events(folder / "tensorboard", dict(flat(to_mapping(self.config))), self.done)
        self.logbook.trackers = [self.events, *open_service(self.config, folder)]

    def prepare_step(self, batches: Any) -> None:
        """Makes the graph of the micro-step, and says what its precision costs on this machine.

        While the commit is traced, the chief of a new run draws the first images.
        """
        self.step.prepare(batches)
        if not (self.devices.xla or self.step.eager):
            tell_emulation(self.config.precision, own_layers=has_own_layers(self.config))
        if self.devices.chief and self.done == 0 and self.config.log.images and self.data.image_shape:
            images = first_images(self.data, self.config.log.images, self.recovery.seed)
            self.events.images("first images, augmented", images)

    def measure_workspace(self, batches: Iterator[Any]) -> None:
        """Measures the workspaces of a micro-step, which changes nothing. Does nothing under a memory limit.

        A run must not fail for a measurement, and a kernel that is refused memory may end the process. Without an
        update in this session there is nothing compiled to measure.
        """
        compiled = self.logbook.seconds_to_first_update is not None and not self.step.eager
        if compiled and self.alone and self.config.device.memory_limit_mb is None:
            self.watchdog.beat("a micro-step that measures workspaces")
            self.meter.measure_workspace(lambda: self.step.accumulate(batches, 1))
            self.step.drop()

    def result(self, status: str) -> dict[str, Any] | None:
        """The summary; None on a worker that is not the chief."""
        if not self.devices.chief:
            return None
        summary = {
            "status": status,
            "step": self.done,
            "epoch": self.place.epoch,
            **results(self.window, self.logbook, self.checkpoints, self.data.watched),
            **speed_and_memory(self.window, self.logbook, self.meter),
            **batch_sizes(self.config, self.micro_batch, self.devices.replicas),
            "recovery": self.recovery.counts,
            "skipped_windows": self.recovery.windows_without_update,
            "reversal": self.reversal.known,
            "skipped_examples": self.skipped.count,
            "data": dict(self.data.fingerprint),
            "repeated_examples": self.repeats.counts,
            "provenance": self._provenance,
        }
        self.logbook.finish(summary)
        return summary


def run_folder(config: Config) -> Run:
    """The folder of the run, which the chief of several workers locks."""
    follows = config.device.has_workers and find_cluster(config.device).index > 0
    return Bystander(config) if follows else Run(config)
