"""The store of checkpoints: each is whole or absent, damage of any kind is found, and nothing is deleted for it."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from accumtrain.errors import CheckpointError
from accumtrain.runs import checkpoint_store
from accumtrain.runs.checkpoint_store import CheckpointStore, DamagedError, seal_manifest
from tests.manifests import FACTS as EMPTY

FACTS = EMPTY | {"learned": {"optim.lr": 0.1}}


def write_two_files(prefix: str) -> None:
    step = int(Path(prefix).parent.name.rpartition("-")[2])
    Path(f"{prefix}.index").write_bytes(bytes([step]) * 300)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(random.Random(step).randbytes(5000))


def add(store: CheckpointStore, step: int, write=write_two_files):
    return store.write(step, write, lambda prefix: None, FACTS)


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in (9, 10):
        add(store, step)
    return store


def newest_whole(store: CheckpointStore) -> int | None:
    for saved in store.newest_first():
        try:
            saved.check()
        except DamagedError:
            continue
        return saved.step
    return None


def test_the_newest_comes_first_by_number(store):
    assert [saved.step for saved in store.newest_first()] == [10, 9]
    manifest = store.newest_first()[0].check()
    assert (manifest["step"], manifest["learned"]) == (10, FACTS["learned"])
    assert set(manifest["files"]) == {"state.index", "state.data-00000-of-00001"}


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointStore(tmp_path / "absent").newest_first() == []


def files_of_the_newest(store):
    return sorted(store.newest_first()[0].path.iterdir())


@pytest.mark.parametrize("file", range(3))
def test_a_truncated_file_is_found(store, file):
    path = files_of_the_newest(store)[file]
    content = path.read_bytes()
    for length in {len(content) * part // 20 for part in range(20)}:
        path.write_bytes(content[:length])
        assert newest_whole(store) == 9, (path.name, length)
    path.write_bytes(content)
    assert newest_whole(store) == 10


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


@pytest.mark.parametrize(
    ("file", "every"),
    [*((file, False) for file in range(3)), pytest.param(0, True, id="each of the manifest", marks=pytest.mark.slow)],
)
def test_a_flipped_bit_is_found(store, file, every):
    path = files_of_the_newest(store)[file]
    assert path.name == "manifest.json" or not every
    content = path.read_bytes()
    places = range(8 * len(content))
    for place in places if every else random.Random(0).sample(places, 50):
        path.write_bytes(flipped(content, place))
        assert newest_whole(store) == 9, (path.name, place)


@pytest.mark.parametrize("fact", ["step", "learned", "written"])
def test_a_fact_that_was_changed_is_found(store, fact):
    path = store.newest_first()[0].path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, fact: 10.5}, indent=2) + "\n")
    assert newest_whole(store) == 9


@pytest.mark.parametrize("file", range(3))
def test_a_missing_file_is_found(store, file):
    files_of_the_newest(store)[file].unlink()
    assert newest_whole(store) == 9


@pytest.mark.parametrize("file", range(2))
def test_a_file_of_another_update_is_found(store, file):
    ours = [each for each in files_of_the_newest(store) if each.suffix != ".json"][file]
    shutil.copy(store.directory / "step-9" / ours.name, ours)
    assert newest_whole(store) == 9


def test_a_checkpoint_under_the_name_of_another_is_found(store):
    shutil.rmtree(store.directory / "step-10")
    shutil.copytree(store.directory / "step-9", store.directory / "step-10")
    with pytest.raises(DamagedError, match="that of update 9"):
        store.newest_first()[0].check()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "null", "NaN", '{"step": 10, "format": 2, "files": {}}', "\xff", "[" * 100_000, '{"a":' * 100_000],
    ids=lambda content: repr(content[:12]),
)
def test_a_manifest_of_another_kind_is_found(store, content):
    (store.directory / "step-10/manifest.json").write_bytes(content.encode("latin-1"))
    assert newest_whole(store) == 9


def test_a_failed_save_leaves_nothing_and_the_others_alone(store):
    def fail(prefix):
        write_two_files(prefix)
        raise OSError(28, "No space left on device")

    before = sorted(store.directory.rglob("*"))
    with pytest.raises(CheckpointError, match="no space is left"):
        add(store, 11, fail)
    assert sorted(store.directory.rglob("*")) == before


def test_what_was_written_is_read_back_before_it_counts(store):
    def differs(prefix):
        raise DamagedError("not as written")

    with pytest.raises(DamagedError):
        store.write(11, write_two_files, differs, FACTS)
    assert [saved.step for saved in store.newest_first()] == [10, 9]


def test_a_checkpoint_that_is_there_is_not_written_again(store):
    add(store, 10, write=lambda prefix: pytest.fail("written"))


def test_only_those_kept_stay(store):
    add(store, 11)
    store.keep(lambda newest_first: newest_first[:2])
    assert [saved.step for saved in store.newest_first()] == [11, 10]


def test_what_a_killed_process_left_is_swept(store):
    for name in (".unfinished-11", ".unfinished-9-old"):
        (store.directory / name).mkdir()
        (store.directory / name / "part").write_text("x")
    store.sweep()
    assert sorted(path.name for path in store.directory.iterdir()) == ["step-10", "step-9"]


def test_quarantine_keeps_every_damaged_checkpoint(store):
    places = []
    for _ in range(3):
        saved = store.newest_first()[0]
        places.append(store.quarantine(saved, "torn"))
        add(store, 10)
    assert [place.name for place in places] == ["step-10", "step-10.1", "step-10.2"]
    assert all((place / "reason.txt").read_text() == "torn\n" for place in places)
    assert all((place / "state.index").exists() for place in places)


@pytest.mark.parametrize(
    "error", [errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.ESTALE], ids=lambda number: errno.errorcode[number]
)
def test_an_error_of_the_moment_is_no_damage(store, monkeypatch, error):
    def fails(path, flags):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(checkpoint_store, "open_regular", fails)
    with pytest.raises(CheckpointError, match=r"manifest.json can't be read: .*run the same command again"):
        store.newest_first()[0].check()


def test_a_checkpoint_of_another_format_is_no_damage(store):
    file = store.newest_first()[0].path / "manifest.json"
    file.write_text(seal_manifest(json.loads(file.read_text()) | {"format": 99, "versions": {"accumtrain": "9.8"}}))
    with pytest.raises(CheckpointError, match=r"has the format 99, .* reads the format 2: go on with version 9\.8"):
        store.newest_first()[0].check()


def test_an_old_damaged_checkpoint_has_a_time_as_well(store):
    (store.newest_first()[-1].path / "manifest.json").write_text("")
    assert store.newest_first()[-1].written_at > 0


def test_a_link_in_the_place_of_the_folder_is_not_followed(store, tmp_path):
    elsewhere = store.directory.rename(tmp_path / "elsewhere")
    before = sorted(elsewhere.rglob("*"))
    store.directory.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="checkpoints is a link"):
        add(store, 11)
    assert sorted(elsewhere.rglob("*")) == before


def test_a_link_with_the_name_of_a_checkpoint_is_none(store):
    (store.directory / "step-11").symlink_to(store.directory / "step-9")
    assert [saved.step for saved in store.newest_first()] == [10, 9]
    with pytest.raises(CheckpointError, match="step-11 is a link"):
        add(store, 11)


MANIFESTS = [  # keys, a value, and the message about it
    ("step", "10", "step=10: must be a whole number"),
    ("step", True, "step=true: must be a whole number"),
    ("step", -1, "step=-1: must be at least 0 and below 9223372036854775808"),
    ("step", 2**63, "step=9223372036854775808: must be at least 0 and below 9223372036854775808"),
    ("written", 1e300, "written=1e+300: must be at least 0 and below 137438953472"),
    ("versions", {}, "versions.accumtrain is missing: must be text"),
    ("learned", None, "learned=null: must be a mapping"),
    ("learned", {"task.kind": "\ud800"}, "\\ud800 is half a character"),
    ("learned", {"loss.kind": ["a"]}, "learned.loss.kind=[a]: must be text"),
    ("data", {"data.classes": -3, "data.train.examples": 8}, "data.data.classes=-3: must be at least 0"),
    ("data", {"data.classes": ["a", None], "data.train.examples": 8}, "data.data.classes[1]=null: must be text"),
    ("inputs", {"kind": "pixels", "shape": [2**31], "vocabulary": 0}, "inputs.shape[0]=2147483648: must be at least 1"),
    ("inputs", {"kind": "pixels", "shape": "8", "vocabulary": 0}, "inputs.shape=8: must be a list"),
    ("files", {}, "files is empty: must name the files of the checkpoint"),
    ("examples", 0.5, "examples=0.5: must be a whole number"),
    ("epochs", "1/0", "epochs=1/0: must be a fraction such as 3/4"),
    ("epochs", "1e999999999", "epochs=1e999999999: must be a fraction such as 3/4"),
    ("epoch_sums", [["weight"]], "epoch_sums[0]=[weight]: must be a list of 2"),
    ("epoch_sums", [["loss", 1.0]], "epoch_sums=[[loss,1.0]]: must have a weight above 0"),
    ("recovery", {"skipped": 0}, "recovery.rollbacks is missing: must be a whole number"),
    ("hooks", {"kept": [], "finished": None, "total": 1}, "hooks.kept=[]: must be a mapping"),
    ("hooks", {"kept": {}, "finished": 1, "total": 1}, "hooks.finished=1: must be text or null"),
    ("files", {"../state": {"bytes": 1, "crc32c": "00000000"}}, "files.../state: must be the name of a file"),
    ("files", {"state": {"bytes": 1, "crc32c": "x"}}, "files.state.crc32c=x: must be 8 hexadecimal digits"),
    ("answers", None, "answers=null: must be a mapping"),
    ("other", eval("[" * 60 + "]" * 60), "it is nested more than 50 deep"),
]


@pytest.mark.parametrize(("key", "value", "message"), MANIFESTS)
def test_a_value_that_no_training_writes_is_found_though_the_checksum_is_right(store, key, value, message):
    file = store.newest_first()[0].path / "manifest.json"
    file.write_text(seal_manifest(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(DamagedError) as caught:
        store.newest_first()[0].check()
    assert str(caught.value).startswith("manifest.json is damaged: ")
    assert message in str(caught.value)
    assert newest_whole(store) == 9


def test_a_key_that_is_not_there_is_named(store):
    file = store.newest_first()[0].path / "manifest.json"
    content = json.loads(file.read_text())
    for key in content.keys() - {"inputs", "crc32c"}:
        file.write_text(seal_manifest({name: value for name, value in content.items() if name != key}))
        with pytest.raises(DamagedError, match=rf"^manifest.json is damaged: {key} is missing: must be "):
            store.newest_first()[0].check()


def test_a_far_larger_file_is_not_read(store, monkeypatch):
    os.truncate(store.newest_first()[0].path / "state.index", 2**40)
    with pytest.raises(
        DamagedError, match=r"state\.index is not the file that was written \(1099511627776 of 300 bytes\)"
    ):
        store.newest_first()[0].check()
