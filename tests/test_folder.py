"""Nothing a user made is lost: a folder is claimed before anything is written in it."""

from __future__ import annotations

import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.folder import LOCK, claimed, held, remove_leftovers


def no_other(path):
    if path.read_text() != "mine":
        raise BadConfig("another")


def claim(folder, text="mine"):
    with claimed(folder, "mark.toml", text, no_other):
        return {entry.name for entry in folder.iterdir()}


@pytest.mark.parametrize("name", ["metrics.csv", "test.npz", ".mine.tmp", ".hidden", "ckpt.pt"])
def test_a_folder_with_files_of_others_is_refused_and_left_as_it_was(tmp_path, name):
    (tmp_path / name).write_text("do not lose me")
    with pytest.raises(BadConfig, match="choose an empty or a new folder"):
        claim(tmp_path)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [(name, "do not lose me")]


def test_new_empty_and_own_folders_are_claimed(tmp_path):
    assert "mark.toml" in claim(tmp_path / "new" / "deep")
    assert "mark.toml" in claim(tmp_path / "new" / "deep")


def test_a_kill_in_the_first_write_leaves_a_folder_that_can_be_claimed(tmp_path):
    (tmp_path / ".mark.toml.123.tmp").write_text("half")
    (tmp_path / LOCK).touch()
    assert "mark.toml" in claim(tmp_path)


def test_another_marker_is_refused(tmp_path):
    (tmp_path / "mark.toml").write_text("yours")
    with pytest.raises(BadConfig, match="another"):
        claim(tmp_path)
    assert (tmp_path / "mark.toml").read_text() == "yours"


def test_a_place_that_cannot_be_a_folder_is_refused_in_words(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadConfig, match="cannot be made"):
            claim(place)


def test_only_one_holds_a_folder(tmp_path):
    with held(tmp_path), pytest.raises(BadConfig, match="at work here"), held(tmp_path):
        pass


def test_only_leftovers_of_the_named_files_are_removed(tmp_path):
    for name in (".state.pt.7.tmp", ".notes.7.tmp", ".state.pt.tmp", "state.pt"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, {"state.pt"})
    assert {entry.name for entry in tmp_path.iterdir()} == {".notes.7.tmp", ".state.pt.tmp", "state.pt"}
