"""Answers of a mirror that lies: nothing but the download is written, every failure is one printable line, and ends."""

import time
from types import SimpleNamespace

import pytest

from keras_ctxrep import places, zoo
from keras_ctxrep.zoo import cache as cache_module
from keras_ctxrep.zoo import download, entries
from tests.hostile import ESCAPES, drip, endless, http, server

NAME = "elmo_1x8_4_2048cnn_0xhighway/test"
PATH = "/models/tiny.zip"
DATA = b"weights " * 10_000
PART = {"ETag": '"x"', "length": 80_000}
DAMAGED, AGAIN = "neither weights nor a zip or tar archive", "interrupted after .*the same command goes on"

# name -> (the answer, what the message says, whether what came is kept)
ANSWERS = {
    "garbage": (http(DATA), DAMAGED, False),
    "empty": (http(), DAMAGED, False),
    "html": (http(b"<html>\x1b[2JSign in"), DAMAGED, False),
    "nothing": (b"", "no answer: ", False),
    "not http": (b"SSH-2.0-OpenSSH\r\n", "no answer: not HTTP", False),
    "binary": (bytes(range(256)), "no answer: not HTTP", False),
    "no status": (b"HTTP/1.1 abc\r\n\r\n", "no answer: not HTTP", False),
    "long header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "no answer: not HTTP", False),
    "many headers": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "no answer: not HTTP", False),
    "404": (http(status="404 Not Found"), "the server answers 404 Not Found; --mirror URL", False),
    "500 with escapes": (http(status="500 \x1b[2Jx\x9b31m"), r"the server answers 500 \\x1b\[2Jx\\u009b31m", False),
    "endless error": (lambda: endless(http(status="500 X", length="")), "the server answers 500", False),
    "cut": (http(DATA[:50_000], **PART), AGAIN, True),
    "cut chunks": (http(b"5\r\nhe", length="", Transfer_Encoding="chunked"), AGAIN, True),
    "garbled chunks": (http(b"zz\r\nhe", length="", Transfer_Encoding="chunked"), "no answer", True),
    "longer than it says": (http(DATA, length=9), DAMAGED, False),
    "length abc": (http(DATA, length="abc"), DAMAGED, False),
    "length below zero": (http(DATA, length=-1), DAMAGED, False),
    "length of 5,000 digits": (http(DATA, length="9" * 5000), DAMAGED, False),
    "length of a petabyte": (
        http(DATA, length=10**15),
        "1,000,000,000,000,000 bytes; no more than 1,000,000 were expected",
        False,
    ),
    "endless": (lambda: endless(http(length="")), "it does not end after the 1,000,000 bytes", False),
    "endless headers": (lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "no answer: not HTTP", False),
    "endless continue": (lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "no answer: ", False),
    "dripping": (lambda: drip(http(DATA[:9000], **PART)), AGAIN, True),
    "dripping headers": (lambda: drip(b"", b"HTTP/1.1 200 OK\r\nX: "), "no answer: ", False),
    "silent": (lambda: drip(b"", pause=2), "no answer: ", False),
    "a part": (http(DATA, "206 X", Content_Range="bytes 0-79999/80000"), "which was not asked for", False),
    "a part of nothing": (http(DATA, "206 X", Content_Range="\x1b[2J"), "which was not asked for", False),
    "416": (http(status="416 X"), "the server answers 416", False),
    "ETag ../..": (http(DATA, ETag='"../../.."'), DAMAGED, False),
    "long ETag": (http(DATA[:5000], length=9000, ETag="x" * 60_000), AGAIN, True),
    "gzip": (http(b"\x1f\x8b\x08\x00" * 9, Content_Encoding="gzip"), "a damaged archive", False),
    "moved in a circle": (http(status="302 X", Location=PATH), "the server answers 302", False),
    "moved to a file": (http(status="302 X", Location="file:///etc/passwd"), "the server answers 302", False),
    "moved to nowhere": (http(status="302 X", Location="http://[::1"), "no answer: redirected to what", False),
    "moved to escapes": (http(status="302 X", Location=f"ftp://x/{ESCAPES[:5]}"), "which is not encrypted|302", False),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    url = f"https://publisher.invalid{PATH}"
    made = zoo.Entry(NAME, "allennlp", (url,), "unrestricted", "https://arxiv.org/abs/1802.05365")
    monkeypatch.setattr(entries, "ENTRIES", (made,))
    monkeypatch.setattr(cache_module, "_largest", lambda entry: 1_000_000)
    monkeypatch.setenv(places.CACHE, str(tmp_path / "a" / "b" / "cache"))
    return tmp_path / "a" / "b" / "cache"


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name, cache, tmp_path, monkeypatch):
    answer, message, kept = ANSWERS[name]
    if any(word in name for word in ("dripping", "silent", "continue")):
        monkeypatch.setattr(download, "SLOWEST", (60_000, 0.3))
    with server(lambda target: answer() if callable(answer) else answer) as url:
        begin = time.monotonic()
        with pytest.raises((ValueError, OSError), match=message) as caught:
            zoo.get(NAME, mirror=url, report=lambda line: None)
    assert time.monotonic() - begin < 30
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700
    part = cache / "downloads" / NAME / "tiny.zip.part"
    written = {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert written == ({part, part.with_name(f"{part.name}.of")} if kept else set())


@pytest.mark.parametrize("answer", [
    http(DATA, "206 X", Content_Range="bytes 9-79999/80000"),
    http(DATA, "206 X", Content_Range="bytes 50000-79999/" + "9" * 5000),
    http(DATA, "206 X", Content_Range="bytes 50000-79999/80000", ETag='"y"'),
    http(status="416 X"),
])  # fmt: skip
def test_the_rest_of_another_file(answer, cache):
    """A part that does not fit is not joined: the file is asked for as a whole, once."""
    asked = []

    def answers(target, headers):
        asked.append(headers.get("range"))
        first = len(asked) == 1
        return answer if headers.get("range") else http(DATA[:50_000] if first else DATA, length=80_000, ETag='"x"')

    with server(answers, headers=True) as url:
        for message in (AGAIN, DAMAGED):
            with pytest.raises((ValueError, OSError), match=message):
                zoo.get(NAME, mirror=url, report=lambda line: None)
    assert asked == [None, "bytes=50000-", None]


def test_an_answer_of_unknown_size_does_not_fill_the_disk(cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_largest", lambda entry: 1 << 30)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=download.RESERVE + 500_000))
    with server(lambda target: endless(http(length=""))) as url, pytest.raises(OSError, match="no room on the disk"):
        zoo.get(NAME, mirror=url, report=lambda line: None)
