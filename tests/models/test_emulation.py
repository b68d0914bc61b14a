"""The notice, before the first update, of a precision that this CPU only emulates."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.models import kernels
from accumtrain.models.kernels import tell_emulation
from accumtrain.process.environment import KERNELS_16BIT


def said(capsys):
    return [" ".join(text.split()) for text in capsys.readouterr()]


@pytest.fixture
def emulating(monkeypatch):
    monkeypatch.setattr(kernels, "is_emulated", lambda dtype: dtype == tf.bfloat16)
    monkeypatch.setattr(kernels, "kernel_dtype", lambda dtype: tf.float32)


def test_layers_of_others_compute_in_what_is_emulated(emulating, capsys):
    tell_emulation("bfloat16", own_layers=False)
    _, err = said(capsys)
    assert err.startswith("warning: this CPU only emulates bfloat16, in which layers of Keras and your own compute")
    assert "precision=float32 is faster" in err


def test_what_is_computed_in_float32_is_said_without_a_warning(emulating, capsys):
    tell_emulation("bfloat16", own_layers=True)
    out, err = said(capsys)
    assert out.startswith("precision=bfloat16 saves memory here, not time: convolutions and matrix products are")
    assert out.endswith("computed in float32, as this CPU has no kernels for it")
    assert not err


def test_a_precision_that_is_slower_here_is_said_to_save_no_time(monkeypatch, capsys):
    monkeypatch.setenv(KERNELS_16BIT, "0")
    monkeypatch.setattr(kernels, "is_emulated", lambda dtype: False)
    tell_emulation("bfloat16", own_layers=True)
    out, err = said(capsys)
    assert out.endswith("computed in float32, by ACCUMTRAIN_16BIT_KERNELS=0")
    assert not err


@pytest.mark.parametrize("own_layers", [True, False])
def test_nothing_is_said_of_float32(emulating, capsys, own_layers):
    tell_emulation("float32", own_layers=own_layers)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("own_layers", [True, False])
def test_nothing_is_said_where_the_cpu_computes_in_16_bits(monkeypatch, capsys, own_layers):
    monkeypatch.setattr(kernels, "is_emulated", lambda dtype: False)
    monkeypatch.setattr(kernels, "kernel_dtype", lambda dtype: dtype)
    tell_emulation("bfloat16", own_layers=own_layers)
    assert capsys.readouterr() == ("", "")
