"""job=train: the only training loop."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from accumtrain.config.arithmetic import micro_batch_size, total_steps
from accumtrain.config.schema import Config
from accumtrain.console import Progress, format_seconds, say, table
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import Share, distributed, train_batches
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve
from accumtrain.engine.all_reduce import same_on_all_replicas
from accumtrain.engine.build_window import build_window
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_loss
from accumtrain.engine.loss_scale import SMALLEST
from accumtrain.engine.memory_meter import Meter, state_bytes, tensor_bytes
from accumtrain.engine.pace import WORTH_TOGETHER, Pace
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import CheckpointError, DivergedError, Preempted
from accumtrain.jobs.opening import show_opening
from accumtrain.planning.auto_steps import with_accum_steps_resolved
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.interrupt import Interrupt
from accumtrain.runs.curves import draw_curves
from accumtrain.runs.due import Due
from accumtrain.runs.events import Events
from accumtrain.runs.logbook import Logbook
from accumtrain.runs.run import Bystander, Run


def run(config: Config) -> dict[str, Any] | None:
    """Trains from the last saved update, or from the start, to the end.

    Returns:
        The summary; None on a worker that is not the chief.

    Raises:
        AccumtrainError: the training did not finish; it can be continued from the last saved update.
    """
    config = with_accum_steps_resolved(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    data = open_data(config.data, config.run.seed)
    total = total_steps(config, data.train.size)
    with in_user_words(config, data, devices.replicas, devices.workers):
        window = build_window(config, data, total, devices.strategy)
        if not devices.chief:
            return Training(config, Bystander(config), None, data, devices, window, total, micro_batch).run()
        with Run(config) as run, Events(run.path / "tensorboard") as events:
            return Training(config, run, events, data, devices, window, total, micro_batch).run()


class Training:
    """One run, or one worker's part of it."""

    def __init__(
        self,
        config: Config,
        run: Run,
        events: Events | None,
        data: Data,
        devices: Devices,
        window: Window,
        total: int,
        micro_batch: int,
    ):
        self.config, self.run_folder, self.data, self.devices, self.window = config, run, data, devices, window
        self.total, self.micro_batch = total, micro_batch
        self.global_micro_batch = micro_batch * devices.replicas
        with devices.strategy.scope():
            self.step = Step(window, devices.strategy, xla=devices.xla, eager=config.debug.eager)
            self.evaluator = Evaluator(
                window.model, window.ema, build_loss(config.loss), data, self.global_micro_batch, devices.strategy
            )
        self.alone = devices.workers == 1
        self.checkpoints = Checkpoints(run.checkpoints, window, config.checkpoint.keep, writes=devices.chief)
        self.resumed = self.checkpoints.restore()
        self.done = int(window.step.numpy())
        self._check_workers_agree()
        run.truncate(self.done)
        self.logbook = Logbook(run, events, config.batch_size, data.train.size)
        self.due = Due(config, total, data.train.size)
        self.micro_steps_pace, self.updates_pace = Pace(), Pace(WORTH_TOGETHER)
        self.meter, self.interrupt = Meter(), Interrupt()

    def run(self) -> dict[str, Any] | None:
        show_opening(self.config, self.run_folder, self.data, self.devices, self.window, self.total, self.micro_batch)
        finished = self.done >= self.total and self.logbook.tested(self.done)
        if finished and (summary := self.run_folder.read_summary()):
            say(f"nothing left to do: all {self.done} updates are made (train.epochs or train.steps sets how many)")
            self._show_closing(summary)
            return summary if self.devices.chief else None
        self.run_folder.save_config()
        if self.resumed:
            say(f"continuing after update {self.done} of {self.total}")

        # ---- train -----------------------------------------------------------------------------------------------
        batches = iter(distributed(self.devices.strategy, self._stream))
        self.meter.start()
        with self.interrupt, self._progress() as self.progress:
            self._evaluate_if_due()  # if the run was stopped during an evaluation
            if self.done < self.total:
                self.step.trace(batches)
            while self.done < self.total:
                most = self.due.next(self.done) - self.done if self.alone and not self.step.eager else 1
                count = self.updates_pace.next(most)
                with self.logbook.timed_updates(count), self.updates_pace.timed(count):
                    update = self._updates(batches, count) if count > 1 else self._update(batches)
                if not update["finite"]:
                    self._skip_or_stop(update)
                    continue
                self._report(update)
                self._evaluate_if_due()
                if self.due.checkpoint(self.done):
                    self.checkpoints.save()
                if update["stop"] and self.done < self.total:
                    self._stop()

        # ---- close -----------------------------------------------------------------------------------------------
        summary = self._result("completed")
        if summary is None:
            return None
        draw_curves({self.run_folder.path.name: self.logbook.records}, self.run_folder.path / "results.png")
        self._show_closing(summary)
        return summary

    # ---- updates -------------------------------------------------------------------------------------------------

    def _updates(self, batches: Any, count: int) -> dict[str, float]:
        """Makes `count` short updates in one call, or fewer if one is not finite. Returns the scalars of the last."""
        self._stop_if_asked()
        return self._read(self.step.updates(batches, count))

    def _update(self, batches: Any) -> dict[str, float]:
        self._accumulate(batches)
        if self.interrupt.requested:
            self.window.ask_to_stop(self.devices.strategy)  # others wait for this worker in the commit
        return self._read(self.step.commit())

    def _accumulate(self, batches: Any) -> None:
        """The micro-steps of one window, in calls short enough to show progress and to be interrupted."""
        steps, taken = self.config.accum.count, 0
        while taken < steps:
            self._stop_if_asked()  # the window is dropped, as only the commit changes the state
            count = self.micro_steps_pace.next(steps - taken)
            with self.micro_steps_pace.timed(count):
                self.step.accumulate(batches, count)
            taken += count
            self.progress.window(taken, steps)

    def _stream(self, share: Share) -> tf.data.Dataset:
        first = self._windows_taken() * self.config.batch_size
        seed = self.config.run.seed
        return train_batches(self.data, batch=self.global_micro_batch, first=first, seed=seed, share=share)

    def _check_workers_agree(self) -> None:
        if not self.alone and not same_on_all_replicas(self.devices.strategy, self.done):
            raise CheckpointError(
                f"worker {self.devices.worker} read the state after update {self.done} from {self.run_folder.path}, "
                "others that of another one: run.dir must be a folder that all workers share"
            )

    def _windows_taken(self) -> int:
        """Number of windows taken from the stream: one for each update, and those that the loss scale has skipped."""
        scale = self.window.loss_scale
        return self.done + (0 if scale is None else int(scale.skipped.numpy()))

    def _read(self, scalars: dict[str, tf.Tensor]) -> dict[str, float]:
        update = {name: value.numpy().item() for name, value in scalars.items()}
        self.done = update["step"]  # which does not count an update that is not finite
        return update

    def _report(self, update: dict[str, float]) -> None:
        self.progress.update(
            self.done,
            loss=update["loss"],
            accuracy=update["accuracy"],
            examples_per_second=self.logbook.examples_per_second,
            peak_bytes=self.meter.read()["tensor_peak_bytes"],
        )
        if self.due.log(self.done):
            self.logbook.train(self.done, update)

    def _progress(self) -> Progress:
        per_epoch = self.data.train.size / self.config.batch_size
        return Progress(first=self.done, total=self.total, updates_per_epoch=per_epoch, log_every=self.config.log.every)

    # ---- evaluation ----------------------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        if not self.due.evaluation(self.done) or self.logbook.tested(self.done):
            return
        result = self.evaluator(stop=lambda: self.interrupt.requested and self.alone, report=self.progress.evaluating)
        if result is None:
            self._stop()
        self.logbook.test(self.done, result)
        best = self.checkpoints.save_if_best(result["loss"], result["accuracy"])
        self.progress.event(
            f"update {self.done}: test loss {result['loss']:.4f}, test accuracy {result['accuracy']:.4f}"
            + (" (best)" if best else "")
        )

    # ---- ways out ------------------------------------------------------------------------------------------------

    def _stop_if_asked(self) -> None:
        if self.interrupt.requested and self.alone:
            self._stop()

    def _stop(self) -> NoReturn:
        if self.done > 0:
            self.checkpoints.save()
        raise Preempted(
            f"stopped after update {self.done} of {self.total}; its state is saved in {self.run_folder.path}: "
            "run the same command again to continue",
            self._result("preempted"),
        )

    def _skip_or_stop(self, update: dict[str, float]) -> None:
        """Goes on after a window that is not finite if the commit has lowered a loss scale; else the run diverged."""
        if update.get("loss_scale", SMALLEST) <= SMALLEST:
            self._diverged(update)
        self.progress.event(
            f"update {self.done + 1}: float16 overflowed, this window is skipped (number {update['skipped']}); "
            f"loss scale {update['loss_scale']:g} -> {update['loss_scale'] / 2:g}"
        )

    def _diverged(self, update: dict[str, float]) -> NoReturn:
        if self.done > 0:
            self.checkpoints.save()
        raise DivergedError(
            f"update {self.done + 1} is not finite (loss {update['loss']}, gradient norm {update['grad_norm']}) and "
            f"was not made; the state after update {self.done} is saved in {self.run_folder.path}: "
            "lower optim.lr, lengthen schedule.warmup or set optim.clip_norm=1, under another run.name",
            self._result("diverged"),
        )

    def _result(self, status: str) -> dict[str, Any] | None:
        """The summary; None on a worker that is not the chief."""
        return self._summary(status) if self.devices.chief else None

    def _summary(self, status: str) -> dict[str, Any]:
        memory = self.meter.read()
        return {
            "status": status,
            "step": self.done,
            "epoch": round(self.done * self.config.batch_size / self.data.train.size, 4),
            "params": self.window.model.params,
            "optimizer_state_bytes": tensor_bytes(self.window.optimizer.state),
            "train": self.logbook.last("train"),
            "test": self.logbook.last("test"),
            "best": self.checkpoints.best,
            "examples_per_second": self.logbook.examples_per_second,
            "seconds": round(self.logbook.seconds, 3),
            "seconds_to_first_update": self.logbook.seconds_to_first_update,
            "memory": memory,
            "memory_by_kind": {
                **state_bytes(self.window),
                "activations": memory["tensor_peak_bytes"] - memory["tensor_static_bytes"],
            },
            "batch_size": self.config.batch_size,
            "micro_batch_size": self.micro_batch,
            "accum_steps": self.config.accum.count,
            "replicas": self.devices.replicas,
        }

    def _show_closing(self, summary: dict[str, Any]) -> None:
        rows = [
            (split, f"{values['loss']:.4f}", f"{values['accuracy']:.4f}")
            for split in ("train", "test", "best")
            if (values := summary.get(split)) is not None
        ]
        speed = summary["examples_per_second"]
        table(f"{self.run_folder.path.name}: {summary['step']} updates", ("", "loss", "accuracy"), rows)
        say(
            f"{format_seconds(summary['seconds'])}"
            + (f", {speed:.0f} examples/s" if speed else "")
            + f"; results in {self.run_folder.path}"
        )
