"""Files and folders that are written whole or not at all, by processes that are killed too."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_ctxrep.atomic import atomic_folder, atomic_write, lock_folder, temporary_folder

ROOT = Path(__file__).parents[1]
# Writes a folder of two files, and is killed by SIGKILL at the n-th event: a file written, a rename before or after it.
SWAP = """
import os, signal, sys
from pathlib import Path
from keras_ctxrep.atomic import atomic_folder

left, replace = int(sys.argv[2]), os.replace

def event():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def killed(source, target):
    event()
    replace(source, target)
    event()

os.replace = killed
with atomic_folder(sys.argv[1], without=["stale"]) as folder:
    for name in ("a", "b"):
        (folder / name).write_text("new")
        event()
"""


def run(code, *arguments):
    """The exit code of a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


OLD = {"a": "old", "b": "old", "notes": "mine", "stale": "old"}
NEW = {"a": "new", "b": "new", "notes": "mine"}


@pytest.mark.parametrize("event", range(1, 12))
def test_a_folder_is_old_or_new_wherever_its_writer_is_killed(tmp_path, event):
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in OLD.items():
        (folder / name).write_text(text)
    ended = run(SWAP, folder, event)
    assert ended == (0 if event == 11 else -signal.SIGKILL)
    if folder.exists():
        state = contents(folder)
        assert state == OLD or {state.get("a"), state.get("b")} == {"new"}
    with pytest.raises(ZeroDivisionError), atomic_folder(folder):
        raise ZeroDivisionError  # the next write, which fails
    assert contents(folder) | {"stale": "old"} in (OLD, NEW | {"stale": "old"})
    assert run(SWAP, folder, 0) == 0 and contents(folder) == NEW
    assert os.listdir(tmp_path) == ["model"]


def test_files_of_a_killed_writer_are_removed_by_the_next(tmp_path):
    code = """
import os, signal, sys
from keras_ctxrep.atomic import atomic_write
with atomic_write(sys.argv[1]) as path:
    path.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "model.weights.h5"
    path.write_text("old")
    assert run(code, path) == -signal.SIGKILL
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
    with atomic_write(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == [path.name]


def test_temporary_folders_of_others_stay(tmp_path):
    """Of a process that lives, of another machine, and of another path."""
    with temporary_folder(tmp_path / "model") as mine:
        others = {f".model.elsewhere-{2**22 + 1}-abc", f".models.{platform.node()}-{2**22 + 1}-abc"}
        others.add(f".model.{platform.node()}-{2**22 + 1}-9-abc")  # of a machine whose name begins like ours
        for name in others:
            (tmp_path / name).mkdir()
        with temporary_folder(tmp_path / "model") as second:
            assert {path.name for path in tmp_path.iterdir()} == {mine.name, second.name, *others}
    assert {path.name for path in tmp_path.iterdir()} == others


def test_a_new_folder_in_a_new_parent_folder(tmp_path):
    with atomic_folder(tmp_path / "new" / "model") as folder:
        (folder / "a").write_text("new")
    assert contents(tmp_path / "new" / "model") == {"a": "new"} and os.listdir(tmp_path / "new") == ["model"]
    assert (tmp_path / "new" / "model").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    with atomic_folder(tmp_path / "link") as folder:
        (folder / "a").write_text("new")
    assert (tmp_path / "link").is_symlink() and contents(tmp_path / "model") == {"a": "new"}


def test_paths_that_cannot_be_replaced_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(ValueError, match=r"file: a file; name a folder$"),
        atomic_folder(tmp_path / "file"),
    ):
        pass
    assert contents(tmp_path) == {"file": "mine"}
    with (
        pytest.raises(ValueError, match="/: a mount point, which cannot be replaced"),
        atomic_folder("/"),
    ):
        pass


def test_a_lock_within_a_lock_is_that(tmp_path):
    """And is not left behind: neither the lock nor an empty folder."""
    folder, link = tmp_path / "new", tmp_path / "link"
    link.symlink_to("new")
    code = "import sys; from keras_ctxrep.atomic import lock_folder\nwith lock_folder(sys.argv[1]): pass"
    with lock_folder(folder):
        with lock_folder(link):
            pass
        assert folder.is_dir() and run(code, folder) == 1
    assert os.listdir(tmp_path) == ["link"] and run(code, folder) == 0
    with lock_folder(folder):
        (folder / "a").write_text("mine")
    assert contents(folder) == {"a": "mine"}


def test_a_locked_folder_that_cannot_be_written_is_named(tmp_path):
    folder = tmp_path / "model"
    named = pytest.raises(OSError, match=r"model: make it a folder that can be written, and start again: \[Errno")
    with named, lock_folder(folder):
        folder.rmdir()
        folder.write_text("mine")
        os.listdir(folder)
    assert contents(tmp_path) == {"model": "mine"}
    folder.unlink()
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: 'a'"), lock_folder(folder):
        os.listdir("a")
