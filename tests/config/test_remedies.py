"""Each remedy in a message of the command line and of the rules, followed to the letter, is accepted."""

import re

import pytest

from accumtrain.config.jobs import JOBS
from tests.config.remedies import is_accepted, remedied, wrong_key
from tests.config.test_config import MISTAKES

MORE = [
    *("predict.input={a'b", "predict.input=${a", "predict.input=[it's", "optim.rates={a:0}", "experiment={a:1}"),
    *("report.runs=1e3", "report.runs=a,b", "run.dir=a,b", "accum.steps=a,b", "run.name=", "device.index=1"),
    *("model=keras", "optim=keras", "data=folder", "schedule=step"),
    *("model.kept_convs=3 model.memory=store", "optim.warmup_init=true optim.lr=0.1"),
]
TABLE = [*(arguments for arguments, _ in MISTAKES), *MORE]
# rules in prose, which say what the value must be or what to do, and no word of a command
IN_PROSE = ("must ", "give ", "name one", "add --cfg", "--config-dir", "with commas", "--cfg job lists")
IN_PROSE += ("--cfg job with one override", "leave out all but one")
SLOW = re.compile(r"model\.memory=\d|range\(")  # probes; several jobs


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(each, marks=pytest.mark.slow) if place % 16 or SLOW.search(each) else each
        for place, each in enumerate(TABLE)
    ],
)
def test_remedies_work(arguments, command, fake_job):
    for job in JOBS.names:
        fake_job(lambda config: {"status": "completed"}, job)

    def run(*words):
        answer = command(*words)
        warned = [line for line in answer.err.splitlines() if line.startswith("error: ")]
        return answer.code, "\n".join(warned).removeprefix("error: ")

    words = arguments.split(" ")
    code, message = run(*words)
    assert code == 2
    followed = remedied(words, message)
    assert followed or any(each in message for each in IN_PROSE), message
    for each in followed:
        assert is_accepted(run, each, wrong_key(message)), (message, each)
