"""Generated overrides, most of them wrong: each is a valid configuration or one message, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from accumtrain.config.read import list_known_keys
from accumtrain.config.registries import REGISTRIES

KEYS = [*list_known_keys(), *REGISTRIES, "accum", "experiment", "train", "run"]
KEYS += ["optim.args.a", "optim.args.a.b", "nothing"]
PREFIXES = ["", "", "", "", "+", "++", "~"]
ODD_KEYS = """
hydra.mode hydra/launcher hydra.launcher.n_jobs hydra.verbose hydra.run.dir hydra/sweeper hydra
"""
TEXTS = """
x null true no ??? _target_ ü 日本 \u202e \udcff ' " '' ../../x / ~ . .. - -- \\ \\$ % # @ & * ! : ; = a=b a:b
1:30:00 2024-01-01 0x10 1_000 1e e5 inf -inf nan .5 5. +5 00 0b1
"""
NUMBERS = "0 -1 1 7 64 0.1 -0.0 1e-46 1e39 1e308 1e999 " + " ".join("9" * digits for digits in (19, 400, 5000))
SPECIAL = """
${batch_size} ${nothing} ${run.dir} ${ ${} ${oc.env:HOME} ${oc.env:NOTHING} ${oc.decode:'[1'} ${now:%Y} ${.x} $ $x
${hydra:runtime.cwd} ${hydra:} ${model} ${a:${b:${c}}} ${oc.create:'{a:1}'} ${oc.create:{a:1}}
range(2,5) range(5,2) range(0,1e9) interval(0,1) choice(1,2) glob(*) glob(r*) sort(3,1) tag(a,b) cast(1)
shuffle(range(1,3)) int(x) str(5) json_str({a:1}) extend_list(1) float(1e5) f(x)
"""
SPACED = ["", "a b", "\t", "a\nb", "A" * 5000]


def value(draw: random.Random, depth: int = 0) -> str:
    """The text of a value: of any type, and nested up to three deep."""
    kind = draw.randrange(10 if depth < 3 else 6)
    if kind < 2:
        return draw.choice([*TEXTS.split(), *SPACED])
    if kind < 4:
        return draw.choice(NUMBERS.split())
    if kind < 6:
        return draw.choice(SPECIAL.split())
    items = [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind < 8:
        return f"[{','.join(items)}]"
    if kind < 9:
        return "{" + ",".join(f"{draw.choice(['a', 'b', '1', 'kind', '_target_'])}:{item}" for item in items) + "}"
    return f"'{','.join(items)}'"


def override(draw: random.Random) -> str:
    keys = ODD_KEYS.split() if draw.random() < 0.05 else KEYS
    key = draw.choice(keys)
    if draw.random() < 0.05:
        key += draw.choice([".", "..a", ".a.b.c", "[0]", "@x", "@_global_", "/x", ":y", " ", "\u00e9", "."])
    prefix = draw.choice(PREFIXES)
    if draw.random() < 0.03:
        return prefix + key
    one = draw.choice([value(draw), *REGISTRIES[key].names]) if key in REGISTRIES else value(draw)
    return f"{prefix}{key}={one}{',' + value(draw) if draw.random() < 0.1 else ''}"


def commands(seed: int, count: int) -> Iterator[list[str]]:
    draw = random.Random(seed)
    for _ in range(count):
        given = [override(draw) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
        job = draw.choice([[], [], [], ["job=evaluate", "run.name=x"], ["-m"], ["-m", "job=report"]])
        if any("run.dir" in each for each in given):
            job = []  # a sweep would write there, which may be anywhere
        yield [*(["--cfg", "job"] if draw.random() < 0.1 and "-m" not in job else []), *job, *given]


def check(arguments: list[str], command: Callable, seen: list, folder) -> None:
    before = set(folder.iterdir())
    answer = command(*arguments)
    assert answer.code in (0, 2, 5, 6), (arguments, answer)  # 6: a memory limit that no probe fits into
    assert "Traceback" not in answer.err + answer.out, arguments
    assert "this is a bug" not in answer.err, arguments
    if answer.code == 2 and "-m" not in arguments:
        assert answer.err.startswith(("error: ", "usage: ")), (arguments, answer)
    allowed = {folder / config.run.dir.split("/")[0] for config in seen}
    assert set(folder.iterdir()) - before <= allowed | {folder / "runs"}, arguments


@pytest.fixture
def check_generated(command, fake_job, seen, tmp_path):
    def run(seed: int, count: int) -> None:
        for name in ("evaluate", "report"):
            fake_job(lambda config: None, name)
        for arguments in commands(seed, count):
            check(arguments, command, seen, tmp_path)

    return run


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 14))])
def test_generated_overrides(seed, check_generated):
    check_generated(seed, 50 if seed < 4 else 100)
