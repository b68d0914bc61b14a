"""Free memory within a container, by made-up folders of control groups, and the processor."""

from types import SimpleNamespace

import pytest

from accumtrain.process import machine
from accumtrain.process.machine import V1, V2, cpu, list_cgroup_bytes, read_vendor
from tests.programs import output_of

NO_LIMIT_V1 = 2**63 - 4096


@pytest.fixture
def group(tmp_path):
    """Make one group: its limit, what is used of it and how much of that is file cache."""

    def make(folder, names, limit, used, cache):
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / names[0]).write_text(f"{limit}\n")
        (path / names[1]).write_text(f"{used}\n")
        (path / "memory.stat").write_text(f"anon {used}\n{names[2]} {cache}\n")

    return make


@pytest.fixture
def own(tmp_path):
    def name(text):
        (tmp_path / "own").write_text(text)
        return tmp_path / "own"

    return name


OUTSIDE = "9:cpu:/docker/abc\n8:memory:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "lines", "left"),
    [
        pytest.param(
            [("user/job", V2, "max", 300, 0), ("user", V2, 1000, 400, 50)],
            "0::/user/job\n",
            650,
            id="version 2: limits on the way up",
        ),
        pytest.param([(".", V2, 1000, 990, 0)], "0::/\n", 10, id="version 2 in a container"),
        pytest.param([(".", V2, 1000, 1200, 0)], "0::/\n", 0, id="more used than allowed leaves nothing"),
        pytest.param(
            [("memory", V1, 1000, 100, 20), ("cpu", V1, 1, 1, 0)],
            OUTSIDE,
            920,
            id="version 1: a path outside of the container",
        ),
    ],
)
def test_what_control_groups_leave(tmp_path, group, own, groups, lines, left):
    for each in groups:
        group(*each)
    assert list(list_cgroup_bytes(tmp_path, own(lines))) == [left]


def test_no_control_groups(tmp_path):
    assert list(list_cgroup_bytes(tmp_path, tmp_path / "own")) == []


@pytest.mark.parametrize(("limit", "expected"), [(1000, 700 + 30), (10**6, 5000 + 30), (NO_LIMIT_V1, 5000 + 30)])
def test_the_smaller_of_machine_and_container(tmp_path, group, own, monkeypatch, limit, expected):
    group("memory/a", V1, limit, 300, 0)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", own("8:memory:/a\n"))
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=30))
    monkeypatch.setattr(machine.psutil, "Process", lambda: process)
    assert machine.free_bytes() == expected


def test_a_limit_of_addresses_counts():
    """`ulimit -v`, in a process of its own, as it can't be raised again."""
    output_of(
        "-c",
        """
import resource
from accumtrain.process.machine import count_free_addresses, free_bytes
import psutil
assert count_free_addresses() is None
taken = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, resource.RLIM_INFINITY))
assert 0 < count_free_addresses() <= 2**28
assert free_bytes() <= 2**28 + psutil.Process().memory_info().rss
""",
    )


# ---- processor ----


@pytest.mark.parametrize(
    ("text", "model", "instructions"),
    [
        ("processor: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 sse4_2 fma\n", "Some CPU @ 2 GHz", 3),
        ("processor: 0\nFeatures: fp asimd sve\n\nprocessor: 1\nmodel name: another\n", None, 2),
        (None, None, 0),
    ],
)
def test_model_and_instructions(tmp_path, monkeypatch, text, model, instructions):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", file)
    found = cpu()
    assert found["model"] == model if model else found["model"]
    assert len(found["instructions"]) == instructions


@pytest.mark.parametrize(
    ("text", "known"), [("processor: 0\nvendor_id\t: GenuineIntel\n", "GenuineIntel"), ("Features: asimd\n", "")]
)
def test_the_vendor(tmp_path, monkeypatch, text, known):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", file)
    assert read_vendor() == known
