"""The command from outside: the limits and the locale of the shell that starts it."""

import resource

import pytest

from accumtrain.process import machine
from tests.programs import run_python, with_path

SMALL = ("model=lenet5", "data=synthetic", "data.image_size=8", "batch_size=8", "train.steps=2", "log.every=1")


@pytest.fixture
def command(tmp_path):
    """Run `accumtrain *arguments` in an empty folder, with so many MB of addresses."""

    def run(*arguments, addresses_mb=None, **environment):
        def limit():
            if addresses_mb is not None:
                resource.setrlimit(resource.RLIMIT_AS, (addresses_mb * 2**20, addresses_mb * 2**20))

        options = {"cwd": tmp_path, "env": with_path(**environment), "text": False, "timeout": 300}
        return run_python("-m", "accumtrain", *arguments, preexec_fn=limit, **options)

    return run


NEEDED_MB = (machine.LIBRARIES + machine.count_thread_addresses()) // 2**20


@pytest.mark.parametrize("megabytes", [600, 1000, 2000, 3000, NEEDED_MB - 1])
def test_too_few_addresses_are_told_before_anything_can_crash(command, megabytes):
    done = command(*SMALL, addresses_mb=megabytes)
    (error,) = done.stderr.decode().splitlines()
    assert (done.returncode, error[:24]) == (6, "error: `ulimit -v` allow")
    assert "`ulimit -v unlimited`" in error


@pytest.mark.slow
def test_the_first_piece_of_memory_is_smaller_under_a_limit_of_addresses(command):
    for megabytes in (NEEDED_MB, NEEDED_MB + 500):
        assert command(*SMALL, addresses_mb=megabytes).returncode == 0


# Python without its own remedies takes another encoding than UTF-8 from this locale, as from one of ISO-8859-1
OTHER_ENCODING = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_of_files_are_utf8_in_any_locale(command):
    done = command("--cfg", "job", "predict.input=café", "--package", "predict", **OTHER_ENCODING)
    assert done.returncode == 0, done.stderr
    assert rb"input: caf\xe9" in done.stdout, "which this locale can't show"


@pytest.mark.slow
def test_a_run_in_another_locale_finds_its_files(command, tmp_path):
    done = command(*SMALL, "run.dir=café/runs", "run.name=x", **OTHER_ENCODING)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["café"]
    assert (tmp_path / "café" / "runs" / "x" / "checkpoints" / "step-2").is_dir()
