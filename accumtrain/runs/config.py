"""The keys of the folder of a run, of a report about runs, and of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from accumtrain.fields import COUNT, LOCAL_PATH, NOT_NEGATIVE, Duration, OneOf, Range, Role, Word, parse_duration

BEST_STATE = "best"
STATES = (BEST_STATE, "last")  # of a run


@dataclass(kw_only=True)
class RunConfig:
    """The folder of a run, and what stops it.

    `name`: name of the run's folder; null: made from the command. A command that names an existing run uses the run's
    settings for all keys that it does not give. These are not kept, and are always the command's own: device, debug,
    sweep, state, job, run.dir, run.resume and run.walltime.
    `dir`: the folder that holds the runs.
    `seed`: seed of the initial weights, of the order of the examples and of augmentation.
    `resume`: true: continue the run in the folder if there is one. false: refuse such a folder. force: continue even if
    keys have changed that decide what is learned.
    `walltime`: time after which the job will be killed, counted from its start, as in SLURM's --time. The run saves its
    state and stops before that. null: no limit.
    `hang_timeout`: seconds without progress after which a run counts as hung; 0 turns the watch off.
    `on_nonfinite`: what to do after an infinite or NaN update: stop, skip it, or rollback to the last checkpoint.
    `max_nonfinite`: number of skipped updates in a row, or of rollbacks, after which the run stops anyway.
    """

    ROLE: ClassVar[Role] = Role.SESSION

    name: Annotated[str | None, Role.SESSION | Role.COMMAND] = None
    dir: Annotated[str, LOCAL_PATH, Role.SESSION | Role.COMMAND] = "runs"
    seed: Annotated[int, Range(0, 2**31), Role.RULE] = 0
    resume: Annotated[bool | str, Word("force", "must be true, false or force"), Role.SESSION | Role.COMMAND] = True
    walltime: Annotated[str | int | None, Duration(), Role.SESSION | Role.COMMAND] = None
    hang_timeout: Annotated[float, NOT_NEGATIVE] = 1800.0
    on_nonfinite: Annotated[str, OneOf(("stop", "skip", "rollback"))] = "stop"
    max_nonfinite: Annotated[int, COUNT] = 10

    @property
    def walltime_seconds(self) -> float | None:
        """Return `walltime` in seconds; null is None. Raise ConfigError if it can't be read."""
        return None if self.walltime is None else parse_duration("run.walltime", self.walltime)


@dataclass(kw_only=True)
class ReportConfig:
    """The runs that job=report compares.

    `runs`: names of the runs; empty: all in run.dir.
    """

    ROLE: ClassVar[Role] = Role.SESSION

    runs: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class SweepConfig:
    """Settings of a sweep. They do not affect its runs.

    `fail_fast`: true: once a run fails, no further run of the sweep starts. false: the others go on.
    """

    ROLE: ClassVar[Role] = Role.COMMAND | Role.UNNAMED

    fail_fast: bool = False
