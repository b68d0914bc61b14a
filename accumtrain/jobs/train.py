"""job=train: the only training loop."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.engine.all_reduce import same_on_all_replicas
from accumtrain.engine.checkpoint import ACCURACY
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss_scale import SMALLEST
from accumtrain.engine.nonfinite import describe_state, describe_window
from accumtrain.errors import DivergedError, Preempted
from accumtrain.jobs.opening import show_opening
from accumtrain.jobs.patience import evaluations_since_best
from accumtrain.jobs.place import epochs_of
from accumtrain.jobs.recovery import out_of_range, remedy
from accumtrain.jobs.session import Session
from accumtrain.jobs.starting import show_start
from accumtrain.jobs.summary import losses_of_a_guess, show_closing, summary_of_the_end
from accumtrain.jobs.trained import images_of
from accumtrain.progress import Progress
from accumtrain.runs.curves import draw_curves

RESERVE = 10.0  # seconds of run.walltime that are left for the last checkpoint and the end of the process


def run(config: Config) -> dict[str, Any] | None:
    """Trains from the last saved update, or from the start, to the end.

    Returns:
        The summary; None on a worker that is not the chief.

    Raises:
        AccumtrainError: the training did not finish; it can be continued from the last saved update.
    """
    with Training.opened(config) as training:
        return training.run()


class Training(Session):
    """The loop over the updates of a run."""

    def run(self) -> dict[str, Any] | None:
        show_opening(self.config, self.run_folder, self.data, self.devices, self.window, self.total, self.epochs)
        self.repeats.tell()
        if self.started is not None:
            show_start(self.config, self.started, self.window, self.run_folder.path, writes=self.devices.chief)
        if self.data.num_classes:  # examples that reach the model as they are given have none that is known here
            self.run_folder.save_images(images_of(self.data))
        if self._nothing_left() and (summary := summary_of_the_end(self.run_folder, self.done)):
            say(self._why_finished())
            self._show_closing(summary)
            return summary if self.devices.chief else None
        self.run_folder.save_config(self.config)
        if self.devices.chief:
            self.open_trackers()
        if self.resumed:
            say(f"continuing after update {self.done} of {self.total}, epoch {self.epoch}")

        # ---- train -----------------------------------------------------------------------------------------------
        batches = self.batches()
        self.meter.start()
        with self.watchdog, self.interrupt, self.checkpoints, self._progress() as self.progress:
            self._evaluate_if_due()  # if the run was stopped during an evaluation
            if not self._finished():
                self.watchdog.beat("tracing the first update")
                self.prepare_step(batches)
            self.checkpoints.save()  # of update 0, during the first micro-steps: so saving is known to be possible
            while not self._finished():
                before = self.done
                most = self.due.next(self.done) - self.done if self.alone and not self.step.eager else 1
                count = self.updates_pace.next(most)
                with self.logbook.timed_updates(count), self.updates_pace.timed(count):
                    update = self._updates(batches, count) if count > 1 else self._update(batches)
                if not (update["finite"] and update["state_finite"]):
                    if self.done - before > (not update["state_finite"]):  # there were good ones before it
                        self.recovery.after_update()
                    batches = self._recover(update, batches)
                    continue
                self.recovery.after_update()
                self._report(update, self.done - before)
                self._evaluate_if_due()
                if self.due.checkpoint(self.done):
                    self.checkpoints.save()
                if update["stop"] and not self._finished():
                    self._stop()
            self.checkpoints.save()
            if self.done < self.total:
                self.progress.event(self._why_finished())
            self._test_best()
            self.measure_workspace(batches)

        # ---- close -----------------------------------------------------------------------------------------------
        self.skipped.note(say)
        if (summary := self.result("completed")) is None:
            return None
        draw_curves({self.run_folder.path.name: self.logbook.records}, self.run_folder.path / "results.png")
        self._show_closing(summary)
        return summary

    def _show_closing(self, summary: dict[str, Any]) -> None:
        show_closing(summary, self.run_folder, losses_of_a_guess(self.config, self.data), self.window.model.norms)

    def _finished(self) -> bool:
        """Whether all updates are made, or the last evaluations were no better than one before (train.patience)."""
        patience = self.config.train.patience
        if self.done >= self.total or patience is None:
            return self.done >= self.total
        return evaluations_since_best(self.logbook.evaluations(self.data.watched)) >= patience

    def _nothing_left(self) -> bool:
        tested = self.tester is None or self.logbook.evaluated(self.done, "test")
        return self._finished() and self.logbook.evaluated(self.done, self.data.watched) and tested

    def _why_finished(self) -> str:
        if self.done < self.total:
            return (
                f"stopping early after update {self.done}, epoch {self.epoch}: {self.config.train.patience} "
                "evaluations in a row were no better than the best (train.patience)"
            )
        made = f"{self.done} updates, {self.epoch} epochs"
        return f"nothing left to do: all {made}, are made (train.epochs or train.steps sets how many)"

    # ---- updates -------------------------------------------------------------------------------------------------

    def _updates(self, batches: Any, count: int) -> dict[str, float]:
        """Makes `count` short updates in one call, or fewer if one is not finite. Returns the scalars of the last."""
        self._stop_if_asked()
        self.watchdog.beat(f"updates {self.done + 1} to {self.done + count}")
        self.checkpoints.wait()  # the updates change what it writes
        return self._read(self.step.updates(batches, count))

    def _update(self, batches: Any) -> dict[str, float]:
        self._accumulate(batches)
        if self._asked_to_stop():
            self.window.ask_to_stop(self.devices.strategy)  # others wait for this worker in the commit
        self.watchdog.beat(f"checkpoint before update {self.done + 1}")
        self.checkpoints.wait()  # the commit changes what it writes
        self.watchdog.beat(f"commit of update {self.done + 1}")
        return self._read(self.step.commit())

    def _accumulate(self, batches: Any) -> None:
        """The micro-steps of one window, in calls short enough to show progress and to be interrupted."""
        steps, taken = self.config.accum.count, 0
        while taken < steps:
            self._stop_if_asked()  # the window is dropped, as only the commit changes the state
            count = self.micro_steps_pace.next(steps - taken)
            self.watchdog.beat(f"update {self.done + 1}, micro-step {taken + 1} of {steps}")
            with self.micro_steps_pace.timed(count):
                self.step.accumulate(batches, count)
            taken += count
            self.progress.window(taken, steps)

    def _read(self, scalars: dict[str, tf.Tensor]) -> dict[str, float]:
        update = {name: value.numpy().item() for name, value in scalars.items()}
        self.place.advance(update["step"])  # which does not count an update that is not finite
        return update

    def _report(self, update: dict[str, float], count: int) -> None:
        self.recent.add(count, update)
        self.reversal.note(update, self.done)
        self.progress.update(
            self.done,
            means=self.recent.read(),
            examples_per_second=self.logbook.examples_per_second,
            peak_bytes=self.meter.read()["tensor_peak_bytes"],
        )
        if self.due.log(self.done):
            self.logbook.train(self.done, update)

    def _progress(self) -> Progress:
        epochs = {"updates_per_epoch": float(1 / self.epochs.per_update), "begin": float(self.epochs.begin)}
        return Progress(first=self.done, total=self.total, log_every=self.config.log.every, **epochs)

    # ---- evaluation ----------------------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        if not self.due.evaluation(self.done) or self.logbook.evaluated(self.done, self.data.watched):
            return
        self.checkpoints.wait()  # averages take the place of the weights that it writes
        result = self._evaluate(self.evaluator)
        best = self.checkpoints.save_if_best(result["loss"], result.get(ACCURACY))
        if best and self.resumed:
            self.checkpoints.wait()  # this update may be saved as not yet tested, and is not tested again once noted
        self.logbook.evaluation(self.done, self.data.watched, result)
        found = f"{self._means(self.data.watched, result)}{' (best)' if best else ''}"
        self.progress.event(f"update {self.done}, epoch {self.epoch}: {found}")

    def _test_best(self) -> None:
        """Evaluates the best state on the test split, once, at the end."""
        if self.tester is None or self.logbook.evaluated(self.done, "test"):
            return
        self.checkpoints.wait()
        if not self.alone:
            same_on_all_replicas(self.devices.strategy, self.done)  # the chief has written what the others read
        try:
            best, manifest = self.checkpoints.restore_best()
            result = self._evaluate(self.tester)
        finally:
            self.checkpoints.restore(needed=True)
        self.logbook.evaluation(self.done, "test", result)
        best_state = f"the best state, of update {best.step}, epoch {float(epochs_of(manifest)):.4g}"
        self.progress.event(f"{best_state}: {self._means('test', result)}")

    def _evaluate(self, evaluator: Evaluator) -> dict[str, float]:
        result = evaluator(stop=lambda: self._asked_to_stop() and self.alone, report=self._evaluating)
        if result is None:
            self._stop()
        self.skipped.note(self.progress.event)
        return result

    def _means(self, split: str, result: dict[str, float]) -> str:
        return ", ".join(f"{split} {name} {result[name]:.4f}" for name in self.evaluator.names)

    def _evaluating(self, done: int, batches: int) -> None:
        self.watchdog.beat(f"evaluation after update {self.done}, batch {done} of {batches}")
        self.progress.evaluating(done, batches)

    # ---- ways out ------------------------------------------------------------------------------------------------

    def _asked_to_stop(self) -> bool:
        """Whether a signal has come, or run.walltime leaves no more time than an update and an evaluation may take."""
        return self.interrupt.requested or self.walltime.due(RESERVE + 2 * self.logbook.longest)

    def _stop_if_asked(self) -> None:
        if self._asked_to_stop() and self.alone:
            self._stop()

    def _stop(self) -> NoReturn:
        self.checkpoints.save()
        self.skipped.note(self.progress.event)
        raise Preempted(
            f"stopped after update {self.done} of {self.total}, epoch {self.epoch}; its state is saved in "
            f"{self.run_folder.path}: run the same command again to continue",
            self.result("preempted"),
        )

    # ---- updates that are not finite -----------------------------------------------------------------------------

    def _recover(self, update: dict[str, float], batches: Any) -> Any:
        """After a window that is not finite: skips it, goes back to a checkpoint, or stops.

        Returns:
            The micro-batches to go on with.
        """
        if not update["examples"]:
            self.place.pass_over()
            self.recovery.skip_empty(self.window)
            self.skipped.note(self.progress.event)
            self.progress.event(f"update {self.done + 1} is skipped, its examples are bad (see {self.skipped.file})")
            return batches
        if update.get("loss_scale", SMALLEST) > SMALLEST and update["state_finite"]:
            self.place.pass_over()
            self.progress.event(
                f"update {self.done + 1}: float16 overflowed, this window is skipped (number {update['skipped']}); "
                f"loss scale {update['loss_scale']:g} -> {update['loss_scale'] / 2:g}"
            )
            return batches
        reason = self._what_is_not_finite(update)
        if not self.recovery.allows(state_finite=bool(update["state_finite"])):
            self._diverged(update, reason)
        if self.recovery.mode == "skip":
            self.place.pass_over()
            self.recovery.skip(self.window)
            self.progress.event(f"{reason}: this window is skipped (number {self.recovery.skipped})")
            return batches
        rollbacks = self.recovery.rollbacks + 1
        self.checkpoints.wait()
        self.restore(needed=True)
        self.recovery.roll_back(rollbacks)
        self.logbook.forget_after(self.done)
        self.progress.event(
            f"{reason}: back to update {self.done} with another order and {self.recovery.rate_factor:g} of the rate "
            f"(rollback {rollbacks})"
        )
        return self.batches()

    def _what_is_not_finite(self, update: dict[str, float]) -> str:
        if not update["state_finite"]:
            return f"update {self.done} left {describe_state(self.window)}, though loss and gradient were finite"
        if not update["in_range"]:
            return f"update {self.done + 1} is not finite: {out_of_range(self.config.model, self.window)}"
        where = describe_window(self.window, self.step, self.batches())
        return f"update {self.done + 1} is not finite, {where}"

    def _diverged(self, update: dict[str, float], reason: str) -> NoReturn:
        if update["state_finite"]:
            self.checkpoints.save()
            last = f"it was not made, and the state after update {self.done} is saved in {self.run_folder.path}"
        else:
            last = f"it is not saved, and the last checkpoint in {self.run_folder.path} is finite"
        what_to_do = remedy(self.config.model, self.run_folder.path.name, in_range=bool(update["in_range"]))
        raise DivergedError(
            f"{reason} (loss {update['loss']:.4g}, gradient norm {update['grad_norm']:.4g}); {last}: {what_to_do}",
            self.result("diverged"),
        )
