"""Folders that the worker processes of pytest-xdist share."""

import pytest


def test_a_shared_folder_is_made_once_and_whole_or_not_at_all(made_once):
    calls = []

    def make(folder):
        calls.append(folder)
        (folder / "part.txt").write_text("a part")
        if len(calls) == 1:
            raise OSError("disk full")
        (folder / "rest.txt").write_text("the rest")

    with pytest.raises(OSError, match="disk full"):
        made_once("shared_by_workers", make)
    folder = made_once("shared_by_workers", make)
    assert sorted(path.name for path in folder.iterdir()) == ["part.txt", "rest.txt"]
    assert made_once("shared_by_workers", make) == folder and len(calls) == 2
    assert not [path for path in calls if path.exists()]
