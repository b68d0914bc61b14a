"""The digest of the package's own files."""

from __future__ import annotations

from accumtrain.process import own_source


def test_the_source_digest_sees_a_changed_line(monkeypatch, tmp_path):
    (tmp_path / "room").mkdir()
    file = tmp_path / "room" / "a.py"
    file.write_text("x = 1\n")
    monkeypatch.setattr(own_source, "PACKAGE", tmp_path)
    before = own_source.source_digest.__wrapped__()
    file.write_text("x = 2\n")
    assert own_source.source_digest.__wrapped__() != before
