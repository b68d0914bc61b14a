"""What is known of the processor."""

from __future__ import annotations

import pytest

from accumtrain.process import machine as module
from accumtrain.process.machine import cpu, read_vendor


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
    monkeypatch.setattr(module, "CPU_INFO", file)
    found = cpu()
    assert found["model"] == model if model else found["model"]
    assert len(found["instructions"]) == instructions


@pytest.mark.parametrize(
    ("text", "known"), [("processor: 0\nvendor_id\t: GenuineIntel\n", "GenuineIntel"), ("Features: asimd\n", "")]
)
def test_the_vendor(tmp_path, monkeypatch, text, known):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(module, "CPU_INFO", file)
    assert read_vendor() == known
