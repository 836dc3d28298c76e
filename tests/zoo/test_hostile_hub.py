"""Answers of a Hub that lies: nothing is written outside its folder, every failure is one printable line, and ends."""

import hashlib
import json
import time

import pytest

from keras_ctxrep.zoo import download, hub
from tests.hostile import ESCAPES, drip, endless, http, server

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "1234567890abcdef1234567890abcdef12345678"
FILES = {"config.json": b"{}", "model.safetensors": b"weights " * 1000}
REVISION, TREE = "/api/models/o/n/revision/main", f"/api/models/o/n/tree/{COMMIT}"
WEIGHTS, OPTIONS = (f"/o/n/resolve/{COMMIT}/{name}" for name in ("model.safetensors", "config.json"))
CONVERTED = "not a whole safetensors file"  # what the converter says of these files: all were taken


def reply(value, **headers):
    return http(json.dumps(value).encode(), **headers)


def lfs(path="model.safetensors", **changes):
    data = FILES["model.safetensors"]
    stored = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134} | changes
    return {"type": "file", "path": path, "oid": "0" * 40, "size": len(data), "lfs": stored}


def plain(path="config.json", **changes):
    digest = hashlib.sha1(b"blob %d\0" % len(FILES["config.json"]) + FILES["config.json"]).hexdigest()
    return {"type": "file", "path": path, "oid": digest, "size": len(FILES["config.json"])} | changes


def tree(*more, **headers):
    return {TREE: reply([plain(), lfs(), *more], **headers)}


def listed(*entries):
    return {TREE: reply(entries)}


def sha(value):
    return {REVISION: reply({"sha": value})}


STRANGE, UNREACHED = "does not answer as the Hub does", "the Hub cannot be reached"
OUTSIDE, HASH = f"{STRANGE}: .*a path within the repository", f"{STRANGE}: .*a size and a hash"
RIGHT, OTHER = FILES["model.safetensors"], b"WEIGHTS " * 1000
# name -> (what is answered in place of the truth, what the message says)
ANSWERS = {
    "the truth": ({}, CONVERTED),
    "commit ../..": (sha("../../.."), f"{STRANGE}: .*a commit of 40"),
    "commit /tmp": (sha("/tmp/x"), STRANGE),
    "commit of 39 digits": (sha(COMMIT[1:]), STRANGE),
    "commit of 41 digits": (sha(f"{COMMIT}0"), STRANGE),
    "commit with a line end": (sha(f"{COMMIT}\n"), STRANGE),
    "commit null": (sha(None), STRANGE),
    "commit number": (sha(int("1" * 40)), STRANGE),
    "commit list": (sha([COMMIT]), STRANGE),
    "commit with escapes": (sha(ESCAPES), STRANGE),
    "no commit": ({REVISION: reply({})}, STRANGE),
    "a list": ({REVISION: reply([])}, STRANGE),
    "html": ({REVISION: http(b"<html>\x1b[2JSign in")}, f"{STRANGE}: <html>.*not JSON"),
    "nothing": ({REVISION: b""}, UNREACHED),
    "empty": ({REVISION: http()}, STRANGE),
    "not http": ({REVISION: b"SSH-2.0\r\n"}, f"{UNREACHED}.*not HTTP"),
    "deep": ({REVISION: http(b"[" * 100_000)}, STRANGE),
    "not utf-8": ({REVISION: http(b'"\xff\xfe')}, STRANGE),
    "cut": ({REVISION: http(b"{", length=99)}, f"{UNREACHED}.*closed before the end"),
    "garbled chunks": ({REVISION: http(b"zz\r\n", length="", Transfer_Encoding="chunked")}, UNREACHED),
    "endless": ({REVISION: lambda: endless(http(b"{", length=""))}, f"{STRANGE}.*longer than 1 MB"),
    "dripping": ({REVISION: lambda: drip(http(b"{", length=""))}, UNREACHED),
    "dripping headers": ({REVISION: lambda: drip(b"", b"HTTP/1.1 200 OK\r\nX: ")}, UNREACHED),
    "500": ({REVISION: http(status="500 \x1b[2Jno")}, r"answers 500 \\x1b\[2Jno"),
    "401": ({REVISION: http(status="401 X")}, "no such repository, or a private one"),
    "moved in a circle": ({REVISION: http(status="302 Found", Location=REVISION)}, "answers 302"),
    "moved to a file": ({REVISION: http(status="302 Found", Location="file:///etc/passwd")}, "answers 302"),
    "moved to nowhere": ({REVISION: http(status="302 Found", Location="http://[::1")}, UNREACHED),
    "files: an object": ({TREE: reply({})}, f"{STRANGE}: .*a list of files"),
    "files: texts": ({TREE: reply(["config.json"])}, STRANGE),
    "files: no path": (tree({"type": "file"}), STRANGE),
    "files: path null": (tree(plain(None)), STRANGE),
    "files: path list": (tree(plain(["config.json"])), STRANGE),
    "files: deep": ({TREE: http(b'[{"a":' * 50_000)}, STRANGE),
    "files: endless": ({TREE: lambda: endless(http(b"[", length=""))}, f"{STRANGE}.*longer than 1 MB"),
    "files: dripping": ({TREE: lambda: drip(http(b"[", length=""))}, UNREACHED),
    "files: endless pages": (tree(Link='<{}/again>; rel="next"'), f"{STRANGE}: .*more than 20 pages"),
    "files: page of a file": (tree(Link='<file:///etc/passwd>; rel="next"'), CONVERTED),
    "files: none": (listed(), "no safetensors in this repository"),
    "files: a pickle": (listed(plain(), plain("pytorch_model.bin")), "no safetensors in this repository"),
    "path ../..": (tree(lfs("../../../x.safetensors")), OUTSIDE),
    "path /": (tree(lfs("/tmp/x.safetensors")), OUTSIDE),
    "path a/../..": (tree(lfs("a/../../x.safetensors")), OUTSIDE),
    "path a//b": (tree(lfs("a//x.safetensors")), OUTSIDE),
    "path of windows": (tree(lfs("..\\x.safetensors")), OUTSIDE),
    "path of a drive": (tree(lfs("C:x.safetensors")), OUTSIDE),
    "path with a null byte": (tree(lfs("a\0b.safetensors")), OUTSIDE),
    "path with escapes": (tree(lfs(f"{ESCAPES}.safetensors")), OUTSIDE),
    "path half a character": (tree(lfs("\ud800.safetensors")), OUTSIDE),
    "path too long": (tree(lfs("x" * 5000 + ".safetensors")), OUTSIDE),
    "path in a file": (tree(lfs("config.json/x.safetensors")), f"{STRANGE}: .*a file is no folder"),
    "size text": (listed(plain(size="abc"), lfs()), HASH),
    "size below zero": (listed(plain(size=-1), lfs()), HASH),
    "size true": (listed(plain(size=True), lfs()), HASH),
    "size missing": (listed(plain(size=None), lfs()), HASH),
    "size of another file": (listed(plain(), lfs(size=7)), "8,000 bytes; no more than 7 were expected"),
    "hash ../..": (listed(plain(oid="../../.."), lfs()), HASH),
    "hash missing": (listed(plain(oid=None), lfs()), HASH),
    "hash list": (listed(plain(oid=["0" * 40]), lfs()), HASH),
    "LFS hash ../..": (listed(plain(), lfs(oid="../../..")), HASH),
    "LFS hash missing": (listed(plain(), lfs(oid=None)), HASH),
    "LFS hash of git": (listed(plain(), lfs(oid="0" * 40)), HASH),
    "LFS list": (listed(plain(), lfs() | {"lfs": []}), HASH),
    "LFS empty": (listed(plain(), lfs() | {"lfs": {}}), HASH),
    "file: headers ../..": ({WEIGHTS: http(RIGHT, X_Repo_Commit="../../..", ETag='"../../.."')}, CONVERTED),
    "file: headers /": ({OPTIONS: http(b"{}", X_Repo_Commit="/tmp", ETag='"/tmp/x"', X_Linked_Etag="/x")}, CONVERTED),
    "file: other weights": ({WEIGHTS: http(OTHER)}, "not the file that the Hub lists: its hash is"),
    "file: other options": ({OPTIONS: http(b"[]")}, "not the file that the Hub lists: its hash is"),
    "file: shorter": ({WEIGHTS: http(RIGHT[:-1])}, "not the file that the Hub lists: 7,999 bytes, not 8,000"),
    "file: longer": ({WEIGHTS: http(RIGHT + b"!")}, "8,001 bytes; no more than 8,000 were expected"),
    "file: longer than it says": ({WEIGHTS: http(RIGHT + b"!", length="")}, "does not end"),
    "file: length abc": ({WEIGHTS: http(OTHER, length="abc")}, "its hash is"),
    "file: length of 5,000 digits": ({WEIGHTS: http(OTHER, length="9" * 5000)}, "its hash is"),
    "file: endless": ({WEIGHTS: lambda: endless(http(length=""))}, "does not end"),
    "file: dripping": (
        {WEIGHTS: lambda: drip(http(RIGHT[:5000], length=8000))},
        "interrupted after .* MB: too slow: .*the same command goes on",
    ),
    "file: dripping headers": ({WEIGHTS: lambda: drip(b"", b"HTTP/1.1 200 OK\r\nX: ")}, "no answer"),
    "file: cut": ({WEIGHTS: http(RIGHT[:5000], length=8000)}, "interrupted after .*the same command goes on"),
    "file: a part": ({WEIGHTS: http(RIGHT, "206 X", Content_Range="bytes 0-1/8000")}, "which was not asked for"),
    "file: 404": ({WEIGHTS: http(status="404 \x1b[2JX")}, r"answers 404 \\x1b\[2JX"),
    "file: gated": ({WEIGHTS: http(status="403 X", X_Error_Code="GatedRepo")}, "access must be granted on its page"),
    "file: moved to a file": ({WEIGHTS: http(status="302 X", Location="file:///etc/passwd")}, "answers 302"),
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Folders so deep that ../../.. of them is still in that of the test."""
    for name in ("HF_HUB_CACHE", "CTXREP_CACHE"):
        (tmp_path / "a" / "b" / "c" / name).mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "a" / "b" / "c" / "HF_HUB_CACHE"))
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path / "a" / "b" / "c" / "CTXREP_CACHE"))
    monkeypatch.setattr(hub, "LARGEST", 1_000_000)
    return tmp_path / "a" / "b" / "c"


def serve(answers):
    """A Hub that tells the truth but for `answers`."""
    truth = {REVISION: reply({"sha": COMMIT}), WEIGHTS: http(RIGHT), OPTIONS: http(FILES["config.json"])}
    answers = truth | tree() | answers
    addresses = []

    def answer(target):
        content = answers.get(target.partition("?")[0], answers[TREE])
        content = content() if callable(content) else content
        return content.replace(b"<{}", b"<" + addresses[0].encode()) if isinstance(content, bytes) else content

    running = server(answer)
    return running, addresses


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name, folders, tmp_path, monkeypatch):
    answers, message = ANSWERS[name]
    if "dripping" in name:
        monkeypatch.setattr(hub, "SECONDS", 0.3 if "file:" not in name else 60)
        monkeypatch.setattr(download, "SLOWEST", (60_000, 0.3))
    running, addresses = serve(answers)
    with running as url:
        addresses.append(url)
        begin = time.monotonic()
        with pytest.raises((ValueError, OSError), match=message) as caught:
            hub.get("hf://o/n", endpoint=url, report=lambda line: None)
    assert time.monotonic() - begin < 30
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700
    written = [path.relative_to(folders) for path in tmp_path.rglob("*") if path.is_file()]
    inside = ("HF_HUB_CACHE/models--o--n/snapshots/" + COMMIT, "CTXREP_CACHE/hf/o/n")
    assert [path for path in written if not path.as_posix().startswith(inside)] == []
    taken = {path.name for path in written} & FILES.keys()
    assert all((folders / inside[0] / name).read_bytes() == FILES[name] for name in taken)


def test_a_token_stays_with_its_server(folders, monkeypatch):
    """Neither a redirect nor the next page of a listing takes it elsewhere."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen = []

    def elsewhere(target, headers):
        seen.append(("elsewhere", "authorization" in headers))
        return http(RIGHT) if target == "/file" else reply([lfs()])

    with server(elsewhere, headers=True) as other:
        answers = {
            REVISION: reply({"sha": COMMIT}),
            TREE: reply([plain()], Link=f'<{other}/page>; rel="next"'),
            WEIGHTS: http(status="302 Found", Location=f"{other}/file"),
            OPTIONS: http(status="307 Moved", Location="/cached"),
            "/cached": http(b"{}"),
        }

        def here(target, headers):
            seen.append(("here", "authorization" in headers))
            return answers[target.partition("?")[0]]

        with server(here, headers=True) as url, pytest.raises(ValueError, match=CONVERTED):
            hub.get("hf://o/n", endpoint=url, report=lambda line: None)
    assert {*seen} == {("here", True), ("elsewhere", False)} and len(seen) == 7


def test_an_interrupted_download_goes_on(folders):
    """What came is kept, and the next command asks for the rest only."""
    ranges = []

    def answer(target, headers):
        wanted = headers.get("range")
        if target != WEIGHTS:
            return {REVISION: reply({"sha": COMMIT}), OPTIONS: http(b"{}")}.get(target) or tree()[TREE]
        ranges.append(wanted)
        if wanted:
            return http(RIGHT[5000:], "206 X", Content_Range="bytes 5000-7999/8000", ETag='"x"')
        return http(RIGHT[:5000], length=8000, ETag='"x"')

    with server(answer, headers=True) as url:
        for message in ("interrupted after 0.0 MB.*the same command goes on", CONVERTED):
            with pytest.raises((ValueError, OSError), match=message):
                hub.get("hf://o/n", endpoint=url, report=lambda line: None)
    assert ranges == [None, "bytes=5000-"]
