"""The folder of things that can be made anew."""

from pathlib import Path

from accumtrain.data.sources.records.record_index import find_user_cache


def test_xdg_then_home_then_nowhere(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert find_user_cache() == Path("/there/accumtrain")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ada")
    assert find_user_cache() == Path("/home/ada/.cache/accumtrain")

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert find_user_cache() is None
