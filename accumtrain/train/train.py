"""job=train: one run from its first line to its last. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from accumtrain.backprop.kernels import tell_emulation
from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.read import flatten_keys, to_mapping
from accumtrain.config.registries import has_builtin_layers
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.data.checking.repeats import find_repeats
from accumtrain.data.images.damage import leave_out_damaged
from accumtrain.data.pipeline import make_train_stream
from accumtrain.devices.cluster import find_cluster
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.step import WORTH_TOGETHER, CallLength, Step
from accumtrain.errors import CheckpointError, DivergedError, Preempted
from accumtrain.fields import Role
from accumtrain.process.program import is_own_run
from accumtrain.process.signals import DeferredSignals
from accumtrain.process.watchdog import Deadline, Watchdog
from accumtrain.progress import Progress
from accumtrain.report.pictures import draw_curves
from accumtrain.runs.checkpoint_store import best_first, newest_manifest
from accumtrain.runs.names import differences, learned_values
from accumtrain.runs.provenance import provenance
from accumtrain.runs.run import ReadOnlyRun, Run
from accumtrain.tasks.objective import Objective, open_objective
from accumtrain.train.build import (
    agree_on_steps,
    build_window,
    check_micro_batch,
    check_sizes,
    check_workers_agree,
)
from accumtrain.train.checkpoint import Checkpoints
from accumtrain.train.config import BestBy
from accumtrain.train.evaluator import Evaluator, build_evaluator
from accumtrain.train.hooks import ADDED, Hooks
from accumtrain.train.memory import Meter
from accumtrain.train.metrics import Intervals, MetricsLogger, Position, RunningMeans, epochs_of, evaluations_since_best
from accumtrain.train.recovery import (
    Recovery,
    Reversal,
    SkippedExamples,
    describe_divergence,
    describe_update,
    warn_of_rate_jump,
)
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.tell.summary import (
    batch_facts,
    describe_batch,
    first_pictures,
    print_banner,
    print_summary,
    results,
    speed_and_memory,
    summary_of_the_end,
    tell_changes,
    why_finished,
    why_stopped,
)
from accumtrain.train.tell.trackers import Profile, TensorBoardTracker, open_service
from accumtrain.train.weights import Started, digest, show_start, window_with_weights

SECONDS_TO_END = 10.0  # of run.walltime, left for the last checkpoint and the end of the process


def train(config: Config) -> dict[str, Any] | None:
    """Train from the last saved update, or from the start, to the end.

    Args:
        config: with accum.steps as a number.

    Returns:
        The summary; None on a worker that is not the chief.

    Raises:
        AccumtrainError: the training did not finish. The same command continues it from the last saved update.
    """
    with open_trainer(config) as trainer:
        return trainer.train()


@contextmanager
def open_trainer(config: Config) -> Iterator[Trainer]:
    """Lock the folder of a run and build all its parts. Raise AccumtrainError if one of them can't be used."""
    follows = config.device.has_workers and find_cluster(config.device).index > 0
    with ReadOnlyRun(config) if follows else Run(config) as run:  # the chief of several workers locks it
        devices = resolve_devices(config.device)
        objective = open_objective(config)
        leave_out_damaged(objective.stored.whole_splits.values())
        with devices.watch, explain_errors(config, objective.stored, devices.replicas, devices.workers):
            trainer = Trainer(agree_on_steps(config, devices), run, devices, objective)
            with closing(trainer.logger):
                yield trainer


class Trainer:
    """The training of a run, or one worker's part of it, restored from the newest whole checkpoint.

    Raises:
        AccumtrainError: the model can't be built, or a checkpoint can't be used.
    """

    def __init__(self, config: Config, run: Run, devices: Devices, objective: Objective):
        # ---- what is trained
        self.config, self.run, self.devices, self.objective = config, run, devices, objective
        self.data = data = objective.data
        self.alone = devices.workers == 1
        self.epochs = Epochs(config, data.train.size)
        if newest := newest_manifest(run.checkpoints):
            self.epochs.restore(newest["step"], epochs_of(newest))
            check_sizes(config, newest)
        self.total = total_steps(config, self.epochs)
        self.position = Position(self.epochs)
        parts = config.accum.count, devices.replicas
        self.global_micro_batch = micro_batch_size(config.batch_size, *parts) * devices.replicas
        continued = bool(best_first(run.checkpoints))
        self.started: Started | None = None
        if continued:
            # Code of the user may compute with initial weights, though others will be restored.
            self.window = build_window(config, objective, self.total, devices.strategy, draws=not is_own_run(config))
        else:
            self.window, self.started = window_with_weights(config, objective, self.total, devices.strategy)
        check_micro_batch(config, self.window.model, devices.replicas)
        # before the commit is traced
        self.recovery = Recovery(config.run.on_nonfinite, config.run.max_nonfinite, config.run.seed, self.window)
        with devices.strategy.scope():
            self.step = self._build_step()
            self.evaluator = self._build_evaluator(data.evaluated_split)
            self.tester = self._build_evaluator("test") if data.val and data.test else None  # of the best state
        chosen, monitor = config.eval.metrics, config.train.monitor
        self.best_by = BestBy.of(config.task, config.loss, chosen, monitor, self.evaluator.names)

        self.hooks = Hooks(
            ADDED if devices.chief else (),
            lambda step, values: self.logger.hook(step, values),
            position=self.position,
            within=self._calling_hooks,
            alone=self.alone,
            total_steps=self.total,
            model=self.window.model,
            folder=run.path,
        )

        # ---- where it begins
        self._weights_digest = digest(config)
        self.answer_facts: dict[str, Any] = {}  # of the evaluation before this session
        self.checkpoints = Checkpoints(
            run.checkpoints,
            self.window,
            config.checkpoint.keep,
            keep_hours=config.checkpoint.keep_hours,
            facts=self._manifest_facts,
            writes=devices.chief,
            frees_first=not config.device.as_it_is,  # there the weights are those of a model of the user's
            best_by=self.best_by,
            runtime=devices.runtime,
        )
        self.resumed = self._restore(needed=continued)
        check_workers_agree(devices, self.done, run.path)
        run.truncate(self.done)

        # ---- what is told of it
        self.logger = MetricsLogger(run, self.epochs, self.evaluator.names)
        self.tensorboard = TensorBoardTracker(
            run.path / "tensorboard", dict(flatten_keys(to_mapping(config))), self.done
        )
        self.due = Intervals(
            self.total,
            self.epochs,
            log=config.log.every,
            evaluate=config.eval.every,
            checkpoint=config.checkpoint.every,
            hooks=self.hooks.intervals,
            at_epochs=self.hooks.follow_epochs,
        )
        self.recent = RunningMeans(("loss", *self.window.metrics), config.log.every)
        self.progress = Progress(
            first=self.done,
            total=self.total,
            log_every=config.log.every,
            epochs_at=self.epochs.at,
            evaluation_work=self._evaluation_work,
        )
        profiled = config.debug.profile if devices.chief else None
        self.profile = Profile(self.tensorboard.directory, profiled, self.done, self.progress.event)
        self.meter = Meter(devices.runtime)
        self.reversal = Reversal(config.model.policy)
        self.repeats = find_repeats(data)
        self.skipped = SkippedExamples(run.path, data, writes=devices.chief)
        # Read now, as files of the repository may change during the training.
        self.provenance = provenance(devices.description) if devices.chief else {}

        # ---- how long one call is, and what ends the loop early
        self.micro_steps_pace, self.updates_pace = CallLength(), CallLength(WORTH_TOGETHER)
        self.interrupt = DeferredSignals()
        self.walltime = Deadline(config.run.walltime_seconds)
        self.watchdog = Watchdog(config.run.hang_timeout, run.path)

    # ---- the loop ------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any] | None:
        """Make all updates that are left. Return the summary; None on a worker that is not the chief."""
        self._show_opening()
        if self._is_complete() and (summary := summary_of_the_end(self.run, self.done)):
            say(why_finished(self.config, self.position, self.total, self.hooks.reason_to_finish))
            self._show_closing(summary)
            return summary if self.devices.chief else None
        if self.resumed:
            say(f"continuing after update {self.done} of {self.total}, epoch {self.epoch}")
            tell_changes(self.config, self.run)
        self.run.save_config(self.config)
        if self.devices.chief:
            self.logger.trackers = [self.tensorboard, *open_service(self.config, self.run.path)]
        batches = self._batches()
        self.meter.start()
        with self.watchdog, self.interrupt, self.checkpoints, self.progress, self.profile:
            self.hooks.call("begin")
            self._end_update()  # the run may have been stopped during an evaluation
            if not self._is_trained():
                self._follow_batch()
                self._prepare_step(batches)
            self.checkpoints.save()  # of a new run, so that a full disk shows now
            while not self._is_trained():
                done_before = self.done
                self._follow_batch()
                self.profile.turn(self.done)
                self.hooks.begin_update()
                update = self._make_updates(batches)
                if not (update["finite"] and update["state_finite"]):
                    # The last update was made, but a state that is not finite can't be used.
                    lost = 0 if update["state_finite"] else 1
                    if self.done - done_before > lost:
                        self.recovery.after_update()
                    batches = self._recover(update, batches)
                    continue
                self.recovery.after_update()
                self._report(update, self.done - done_before)
                values = self.logger.values(update)
                self.hooks.call("update", values)
                self._end_update()
                if self.due.checkpoint(self.done) and self.checkpoints.save():
                    self.hooks.call("checkpoint", values)
                if update["stop"] and not self._is_trained():
                    self._stop()
            self.profile.close(self.done)
            self.checkpoints.save()
            if self.done < self.total:
                self.progress.event(why_finished(self.config, self.position, self.total, self.hooks.reason_to_finish))
            self._test_best_state()
            self.hooks.call("end", self.logger.last(self.data.evaluated_split) or {})
        return self._finish()

    @property
    def done(self) -> int:
        return self.position.done

    @property
    def epoch(self) -> str:
        """The epochs made, as text."""
        return self.position.shown_epoch

    def _is_trained(self) -> bool:
        """Return whether all updates are made, a hook has ended them, or the last evaluations have not been better."""
        patience, min_delta = self.config.train.patience, self.config.train.min_delta
        at_end = self.done >= self.total or self.hooks.reason_to_finish is not None
        if at_end or patience is None:
            return at_end
        records = self.logger.records_of(self.data.evaluated_split)
        return evaluations_since_best(records, self.best_by, min_delta) >= patience

    def _is_complete(self) -> bool:
        """Return whether neither an update nor an evaluation is left."""
        is_tested = self.tester is None or self.logger.evaluated(self.done, "test")
        return self._is_trained() and self.logger.evaluated(self.done, self.data.evaluated_split) and is_tested

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _build_step(self) -> Step:
        return self.devices.runtime.build_step(self.window, eager=self.config.debug.eager)

    def _build_evaluator(self, split: str) -> Evaluator:
        batch, runtime = self.global_micro_batch, self.devices.runtime
        return build_evaluator(self.config, self.objective, split, batch, self.window.model, runtime, self.window.ema)

    def _manifest_facts(self) -> dict[str, Any]:
        """Return the facts about this run for the manifest of a checkpoint."""
        return {
            "learned": learned_values(self.config),
            "data": dict(self.data.fingerprint),
            "inputs": self.objective.asked.in_short,
            "contents": self.objective.trained_on.digests,
            "weights": self._weights_digest,
            **self.position.facts,
            "total_steps": self.total,
            "recovery": self.recovery.counts,
            "hooks": self.hooks.facts,
            "shares": [mean.shares for mean in self.window.optimizer.means],
            **({"noise": noise.facts} if (noise := self.window.noise) else {}),
            **({"answers": facts} if (facts := self.evaluator.facts or self.answer_facts) else {}),
        }

    def _restore(self, *, needed: bool) -> bool:
        """Restore the newest whole checkpoint. Return whether there is one, which is an error if it is `needed`."""
        manifest = self.checkpoints.restore(self.run.make_manifest_check(self._manifest_facts()), needed=needed)
        if manifest is None:
            self.run.check_not_begun()
            return False
        self.recovery.restore(manifest["recovery"])
        self.answer_facts = manifest.get("answers", {})
        if self.window.noise is not None and "noise" in manifest:
            with self.devices.runtime.assigning():
                self.window.noise.restore(manifest["noise"])
        for mean, shares in zip(self.window.optimizer.means, manifest.get("shares", []), strict=False):
            mean.shares = shares
        self.position.restore(manifest)
        self.hooks.restore(manifest["hooks"])
        chosen = learned_values(self.config)
        best = {key: chosen[key] for key in keys_with(Role.BEST, to_mapping(self.config))}
        if differences(manifest["learned"], best):  # run.resume=force
            self.checkpoints.forget_best()
        if total_steps(self.config, self.epochs) != self.total:  # as another checkpoint was the newest before
            raise CheckpointError(
                f"the newest checkpoint in {self.checkpoints.directory} is damaged, and the one before it has made "
                "other epochs: run the same command again"
            )
        warn_of_rate_jump(self.config, manifest["total_steps"], self.total, self.done)
        return True

    def _batches(self) -> Any:
        """Return the micro-batches from the next window on."""
        batch, first = self.global_micro_batch, self.position.examples
        return make_train_stream(self.devices.strategy, self.data, batch=batch, seed=self.recovery.seed, first=first)

    # ---- updates -------------------------------------------------------------------------------------------------

    def _follow_batch(self) -> None:
        """Let the window be of the next update's batch. If that is another one, the programs are traced again."""
        batch, before = self.epochs.batch_after(self.done), self.window.micro_steps
        steps, replicas = batch // self.global_micro_batch, self.devices.replicas
        if self.window.follow(self.done, batch, steps):
            if steps != before:
                words = describe_batch(batch, self.global_micro_batch // replicas, replicas)
                self.progress.event(f"update {self.done + 1}: batches of {words}")
            self.logger.forget_compiled()
            with self.devices.strategy.scope():
                self.step = self._build_step()

    def _make_updates(self, batches: Any) -> dict[str, float]:
        """Make one update, or several short ones in one call. Return the scalars of the last."""
        together = self.alone and self.step.makes_updates_together and not (self.profile.runs or self._is_trained())
        due = min(self.due.next(self.done), self.profile.next(self.done) or self.total)
        count = self.updates_pace.next(due - self.done if together else 1)
        batch = self.epochs.batch_after(self.done)
        with self.profile.update(), self.logger.timed_updates(count, batch), self.updates_pace.timed(count):
            return self._make_in_one_call(batches, count) if count > 1 else self._make_update(batches)

    def _make_in_one_call(self, batches: Any, count: int) -> dict[str, float]:
        """Make `count` short updates, or fewer if one is not finite."""
        self._stop_if_asked()
        self.watchdog.beat(f"updates {self.done + 1} to {self.done + count}")
        self.checkpoints.wait()  # the updates change what it writes
        return self._read(self.step.updates(batches, count))

    def _make_update(self, batches: Any) -> dict[str, float]:
        self._accumulate(batches)
        if self._is_asked_to_stop() and not self.alone:
            self.window.ask_to_stop(self.devices.strategy)  # others wait for this worker in the commit
        self.watchdog.beat(f"checkpoint before update {self.done + 1}")
        self.checkpoints.wait()  # the commit changes what it writes
        self.watchdog.beat(f"commit of update {self.done + 1}")
        return self._read(self.step.commit())

    def _accumulate(self, batches: Any) -> None:
        """Make the micro-steps of one window, in calls short enough to show progress and to be interrupted."""
        steps, taken = self.window.micro_steps, 0
        while taken < steps:
            self._stop_if_asked()  # the window is dropped, as only the commit changes the state
            count = self.micro_steps_pace.next(steps - taken)
            self.watchdog.beat(f"update {self.done + 1}, micro-step {taken + 1} of {steps}")
            with self.micro_steps_pace.timed(count):
                self.step.accumulate(batches, count)
            taken += count
            self.progress.window(taken, steps)

    def _read(self, scalars: dict[str, tf.Tensor]) -> dict[str, float]:
        update = {name: np.asarray(value).item() for name, value in scalars.items()}
        self.position.advance(update["step"])  # the step does not count an update that is not finite
        return update

    @contextmanager
    def _calling_hooks(self, assigning: bool) -> Iterator[None]:
        self.watchdog.beat(f"hooks after update {self.done}")
        self.checkpoints.wait()  # hooks read its files, and `reading` changes what it writes
        with self.devices.runtime.assigning() if assigning else self.devices.runtime.reading():
            yield

    def _end_update(self) -> None:
        """Evaluate and end the epoch, if that is due after the last update."""
        split = self.data.evaluated_split
        self._evaluate_if_due()
        if self.position.in_epoch and (self.due.epoch_end(self.done) or self._is_trained()):
            self.hooks.end_epoch((self.logger.evaluated(self.done, split) and self.logger.last(split)) or {})

    def _report(self, update: dict[str, float], count: int) -> None:
        self.position.add(self.recent.add(count, update))
        self.reversal.note(update, self.done)
        self.progress.update(
            self.done,
            means=self.recent.read(),
            examples_per_second=self.logger.examples_per_second,
            peak_bytes=self.meter.read()["tensor_peak_bytes"],
        )
        if self.due.log(self.done):
            self.logger.train(self.done, update)

    # ---- evaluation and the best state ---------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        due = self.due.evaluation(self.done) or self.hooks.reason_to_finish is not None
        if not due or self.logger.evaluated(self.done, self.data.evaluated_split):
            return
        self.hooks.call("evaluation_begin")
        self.checkpoints.wait()  # averages take the place of the weights that it writes
        result = self._evaluate(self.evaluator)
        self.hooks.call("evaluation", {name: result[name] for name in self.evaluator.names})
        best = self.checkpoints.save_if_best(result)
        if best and self.resumed:
            self.checkpoints.wait()  # this update may be saved as not yet tested, and is not tested again once noted
        self.logger.evaluation(self.done, self.data.evaluated_split, result)
        found = f"{self.logger.describe(self.data.evaluated_split, result)}{' (best)' if best else ''}"
        self.progress.event(f"update {self.done}, epoch {self.epoch}: {found}")

    def _test_best_state(self) -> None:
        """Evaluate the best state on the test split, once, at the end."""
        if self.tester is None or self.logger.evaluated(self.done, "test"):
            return
        self.checkpoints.wait()
        if not self.alone:
            self.devices.values_of_workers(self.done)  # the chief has written what the others read
        try:
            best, manifest = self.checkpoints.restore_best()
            result = self._evaluate(self.tester)
        finally:
            self.checkpoints.restore(needed=True)
        self.logger.evaluation(self.done, "test", result)
        best_state = f"the best state, of update {best.step}, epoch {self.epochs.shown(epochs_of(manifest))}"
        self.progress.event(f"{best_state}: {self.logger.describe('test', result)}")

    def _evaluate(self, evaluator: Evaluator) -> dict[str, float]:
        result = evaluator(stop=lambda: self._is_asked_to_stop() and self.alone, report=self._show_evaluation)
        if result is None:
            self._stop()
        self.progress.evaluated(result["examples"] / self.epochs.batch_after(self.done), result["seconds"])
        self.skipped.note(self.progress.event)
        return result

    def _evaluation_work(self, done: int) -> float:
        """Return the examples that are evaluated from update `done` on, as a number of updates."""
        tested = 0 if self.tester is None else self.data.splits["test"].size
        evaluated = self.due.evaluations_from(done) * self.data.splits[self.data.evaluated_split].size
        return (evaluated + tested) / self.epochs.batch_after(done)

    def _show_evaluation(self, done: int, batches: int) -> None:
        self.watchdog.beat(f"evaluation after update {self.done}, batch {done} of {batches}")
        self.progress.evaluating(done, batches)

    # ---- updates that are not finite -----------------------------------------------------------------------------

    def _recover(self, update: dict[str, float], batches: Any) -> Any:
        """Skip a window that is not finite, go back to a checkpoint, or stop.

        Returns:
            The micro-batches to go on with.
        """
        if event := self.recovery.pass_over(update, self.done + 1, self.window, self.skipped.file):
            self.position.pass_over()
            self.skipped.note(self.progress.event)
            self.progress.event(event)
            return batches
        runtime = self.devices.runtime
        with runtime.reading():
            reason = describe_update(
                update, self.done, self.config.model, self.window, self.step, runtime, self._batches
            )
        if not self.recovery.allows(state_finite=bool(update["state_finite"])):
            self._diverged(update, reason)
        if self.recovery.mode == "skip":
            self.position.pass_over()
            self.recovery.skip(self.window)
            self.progress.event(f"{reason}: this batch is skipped (number {self.recovery.skipped})")
            return batches
        rollbacks = self.recovery.rollbacks + 1
        self.checkpoints.wait()
        with runtime.assigning():
            self._restore(needed=True)
            self.recovery.roll_back(rollbacks)
        self.logger.forget_after(self.done)
        self.progress.event(
            f"{reason}: back to update {self.done} with another order and {self.recovery.rate_factor:g} of the rate "
            f"(rollback {rollbacks})"
        )
        return self._batches()

    def _diverged(self, update: dict[str, float], reason: str) -> NoReturn:
        if update["state_finite"]:
            self.checkpoints.save()
        said = describe_divergence(update, self.done, self.config.model, self.run.path)
        raise DivergedError(f"{reason} {said}", self._summarize("diverged"))

    # ---- stopping ------------------------------------------------------------------------------------------------

    def _is_asked_to_stop(self) -> bool:
        """Return whether a signal or a hook asks to stop, or run.walltime leaves too little time.

        The time must suffice for an update and an evaluation.
        """
        too_late = self.walltime.due(SECONDS_TO_END + 2 * self.logger.longest)
        return self.interrupt.requested or self.hooks.reason_to_stop is not None or too_late

    def _stop_if_asked(self) -> None:
        if self._is_asked_to_stop() and self.alone:
            self._stop()

    def _stop(self) -> NoReturn:
        self.checkpoints.save()
        self.skipped.note(self.progress.event)
        why = why_stopped(self.config, self.position, self.total, self.hooks.reason_to_stop, self.run)
        raise Preempted(why, self._summarize("preempted"))

    # ---- the beginning and the end on the screen -----------------------------------------------------------------

    def _show_opening(self) -> None:
        print_banner(self.config, self.run, self.objective, self.devices, self.window, self.total, self.epochs)
        self.repeats.tell()
        if self.started is not None:
            show_start(self.config, self.started, self.window, self.run.path, writes=self.devices.chief)
        if self.data.num_classes:  # examples that reach the model as they are given have none that is known here
            self.run.save_inputs(self.objective.trained_on.as_json())

    def _prepare_step(self, batches: Any) -> None:
        """Trace the micro-step, and say what its precision costs here. The commit is traced in another thread."""
        self.watchdog.beat("tracing the first update")
        if self.devices.xla:
            self.progress.event("XLA compiles the update: seconds for a small model, minutes for a large one")
        self.step.prepare(batches)
        if not (self.devices.xla or self.config.debug.eager):
            tell_emulation(self.config.precision, own_layers=has_builtin_layers(self.config))
        if self.devices.chief and self.done == 0 and self.config.log.images:
            pictures = first_pictures(self.data, self.config.log.images, self.recovery.seed)
            self.tensorboard.images("first images, augmented", pictures)

    def _finish(self) -> dict[str, Any] | None:
        self.skipped.note(say)
        summary = self._summarize("completed")
        if summary is not None:
            draw_curves({self.run.path.name: self.logger.records}, self.run.path / "results.png")
            self._show_closing(summary)
        return summary

    def _summarize(self, status: str) -> dict[str, Any] | None:
        """Return the content of summary.json; None on a worker that is not the chief."""
        if not self.devices.chief:
            return None
        summary = {
            "status": status,
            "step": self.done,
            "epoch": self.position.counted_epoch,
            **results(self.window, self.logger, self.checkpoints, self.data.evaluated_split),
            "best_by": asdict(self.best_by),
            **speed_and_memory(self.window, self.logger, self.meter),
            **batch_facts(self.config, self.devices.replicas),
            "recovery": self.recovery.counts,
            "skipped_windows": self.recovery.windows_without_update,
            "reversal": self.reversal.known,
            "skipped_examples": self.skipped.count,
            "data": dict(self.data.fingerprint),
            "repeated_examples": self.repeats.counts,
            "provenance": self.provenance,
        }
        self.logger.finish(summary)
        return summary

    def _show_closing(self, summary: dict[str, Any]) -> None:
        print_summary(summary, self.run, self.epoch, self.objective.guess(), self.window.model.norms)
