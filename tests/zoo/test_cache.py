"""The published models: the list, downloads from a server of our own, archives, the cache, and the command."""

import errno
import gzip
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from dataclasses import asdict, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.request import HTTPSHandler
from urllib.response import addinfourl

import h5py
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import places, saving, updates, zoo
from keras_ctxrep.atomic import sha256
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import allennlp
from keras_ctxrep.models import bert, elmo
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.zoo import cache as cache_module
from keras_ctxrep.zoo import download, folders
from keras_ctxrep.zoo import entries as entries_module

NAME = "elmo_1x8_4_2048cnn_0xhighway/test"
FILES = ("tiny_weights.hdf5", "tiny_options.json")
ROOT = Path(__file__).parents[2]
PUBLISHER = "https://publisher.invalid/models/"


class Server:
    """Files over HTTP, with the faults that a test asks for.

    Attributes:
        files: path -> contents.
        ranges: whether parts are served.
        validators: whether answers carry an ETag.
        cut: bytes after which an answer breaks off.
        log: (path, Range header) of every request.
    """

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.ranges, self.validators, self.cut = True, True, None
        self.log: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.log.append((request.path, wanted))
        if request.path.startswith("/moved/"):
            request.send_response(302)
            request.send_header("Location", request.path.removeprefix("/moved"))
            request.end_headers()
            return
        data = self.files.get(request.path)
        if data is None:
            request.send_error(404)
            return
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        if begin and begin >= len(data):
            request.send_error(416)
            return
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if self.validators:
            request.send_header("ETag", f'"{hash(data)}"')
        request.send_header("Content-Length", str(len(data) - begin))
        request.end_headers()
        request.wfile.write(data[begin:] if self.cut is None else data[begin : begin + self.cut])

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published files of a tiny biLM."""
    folder = tmp_path_factory.mktemp("published") / "tiny"
    config = elmo.Config(cells=8, projection=4, layers=1, highways=0)
    allennlp.write(folder, elmo.encoder(config), Bundle("elmo", "embed", asdict(config), 128))
    for name, ours in zip(FILES, (allennlp.WEIGHTS, allennlp.OPTIONS), strict=True):
        (folder / ours).rename(folder / name)
    return folder


@pytest.fixture
def entry(monkeypatch):
    """Makes an entry the whole list."""

    def make(**changes):
        urls = tuple(PUBLISHER + name for name in FILES)
        made = replace(zoo.Entry(NAME, "allennlp", urls, "unrestricted", "https://arxiv.org/abs/1802.05365"), **changes)
        monkeypatch.setattr(entries_module, "ENTRIES", (made,))
        return made

    return make


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(places.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def serve(server, folder):
    server.files = {f"/models/{path.name}": path.read_bytes() for path in folder.iterdir()}


def same_weights(folder, published):
    ours, theirs = saving.load(folder)[0].get_weights(), allennlp.read(published)[0].get_weights()
    return len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def left(cache):
    """Files in the cache, temporary ones too, but for the empty files of locks, which stay."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(cache)) for path in files if path.suffix != ".lock" or path.stat().st_size)


MODEL = [f"{NAME}/{file}" for file in ("bundle.json", "model.weights.h5", "source.json")]


# ------------------------------------------------------------------------------------------------------------- list


def test_every_entry_is_complete():
    names = [entry.name for entry in zoo.ENTRIES]
    assert len(set(names)) == len(names) >= 48
    for entry in zoo.ENTRIES:
        assert (
            re.fullmatch(r"(elmo|bert|static|glove|g2p|ernie|sentiment|names|answers|similar)_[^/]+/[^/]+", entry.name)
            and entry.licence
        )
        assert entry.citation.startswith("https://")
        assert all(re.fullmatch(r"https://\S+\.(zip|tar\.gz|hdf5|json|safetensors|txt)", url) for url in entry.urls)
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in entry.sha256.values())
        assert bool(entry.urls) == (entry.format not in ("", "shipped")) and (entry.urls or entry.note)
        assert bool(entry.use) == entry.shipped
        assert (entry.lowercase is None) == (entry.family in ("elmo", "g2p")) == (entry.vocabulary_size == 0)
    digests = [digest for entry in zoo.ENTRIES for file, digest in entry.sha256.items() if file != "vocab.txt"]
    assert len(set(digests)) == len(digests) == 21


@pytest.mark.parametrize("name", ["bert_2_128_2", "bert_4_512_8", "bert_8_128_2", "elmo_2x1024_128_2048cnn_1xhighway"])
def test_parameters_are_those_of_our_models(name):
    result = zoo.lookup(name)
    model = (elmo if result.family == "elmo" else bert).encoder
    config = (elmo if result.family == "elmo" else bert).SIZES[name]
    assert result.parameters == model(config).count_params()
    assert result.config.items() <= asdict(config).items() | {("filters", 2048)}


def test_parameters_are_those_published():
    """Millions, of https://allennlp.org/elmo and https://arxiv.org/abs/1908.08962, table 1."""
    published = [entry for entry in zoo.ENTRIES if not entry.shipped]
    sizes = {entry.name.partition("/")[0]: round(entry.parameters / 1e6, 1) for entry in published}
    assert [sizes[name] for name in elmo.SIZES if name in sizes] == [13.6, 28.0, 93.6]
    assert [sizes[name] for name in ("bert_2_128_2", "bert_4_256_4", "bert_4_512_8", "bert_8_512_8")] == [
        4.4,
        11.2,
        28.8,
        41.4,
    ]


def test_a_model_that_was_replaced_names_its_successor():
    for name, successor in entries_module.SUCCESSORS.items():
        assert zoo.lookup(successor).shipped
        for use in (zoo.lookup, zoo.find, zoo.get):
            with pytest.raises(ValueError, match=f"no longer comes with the package; use {successor}"):
                use(name)


def test_lookup():
    full = "bert_12_768_12/biobert_v1.1_pubmed_cased"
    assert zoo.lookup(full).name == zoo.lookup("biobert_v1.1_pubmed_cased").name == full
    with pytest.raises(ValueError, match="gbw: 3 models have it; choose one of elmo_2x1024"):
        zoo.lookup("gbw")
    with pytest.raises(ValueError, match=r"no published model of that name; like it: .*book_corpus_wiki_en_uncased"):
        zoo.lookup("bert_12_768_12/bookcorpus_wiki_en_uncased")
    with pytest.raises(ValueError, match="zoo list"):
        zoo.lookup("word2vec")
    with pytest.raises(ValueError, match="no published model"):
        zoo.lookup("scibert_scivocab_uncas")  # the beginning of one name only
    with pytest.raises(ValueError, match=r"of the Hugging Face Hub: hf://OWNER/distilbert-base-uncased$"):
        zoo.lookup("distilbert-base-uncased")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("bert-base-uncased", "bert_12_768_12/book_corpus_wiki_en_uncased"),
        ("google-bert/bert-large-cased-whole-word-masking", "bert_24_1024_16/book_corpus_wiki_en_cased_wwm"),
        ("bert-base-multilingual-cased", "bert_12_768_12/wiki_multilingual_cased"),
        ("bert-base-chinese", "bert_12_768_12/wiki_cn_cased"),
        ("google/bert_uncased_L-4_H-512_A-8", "bert_4_512_8/book_corpus_wiki_en_uncased"),
        ("bert_base_en", "bert_12_768_12/book_corpus_wiki_en_cased"),  # KerasHub's
        ("bert_small_en_uncased", "bert_4_512_8/book_corpus_wiki_en_uncased"),
        ("bert_base_zh", "bert_12_768_12/wiki_cn_cased"),
    ],
)
def test_names_of_hugging_face_and_kerashub(name, entry, tmp_path):
    assert zoo.lookup(name).name == entry
    with pytest.raises(ValueError, match=f"^{entry}: not downloaded yet") as refused:
        zoo.find(name, tmp_path)
    assert str(refused.value).endswith(f", or give hf://google-bert/{name}") == name.startswith("bert-")


# --------------------------------------------------------------------------------------------------------- downloads


def test_download_and_cache(server, published, entry, cache):
    entry()
    serve(server, published)
    messages = []
    folder = zoo.get(NAME, mirror=server.address, report=messages.append)
    assert folder == cache / NAME and same_weights(folder, published)
    assert [path for path, _ in server.log] == [f"/models/{name}" for name in FILES]
    assert left(cache) == MODEL
    (line,) = messages  # nobody has published a hash of it
    assert "could not be verified" in line and sha256(published / FILES[0]) in line
    origin = json.loads((folder / folders.SOURCE).read_text())
    assert origin["found"] == {name: sha256(published / name) for name in FILES}
    assert not origin["verified"] and origin["licence"] == "unrestricted" and origin["from"] == server.address
    server.close()
    assert zoo.get(NAME) == zoo.get("test") == zoo.find(NAME) == folder  # without network


def test_interrupted_download_resumes(server, published, entry, cache):
    entry()
    serve(server, published)
    whole = len(server.files[f"/models/{FILES[0]}"])
    server.cut = 300_000
    with pytest.raises(OSError, match=r"interrupted after 0\.3 MB.*the same command goes on from there"):
        zoo.get(NAME, mirror=server.address)
    assert left(cache) == [f"downloads/{NAME}/{FILES[0]}.part", f"downloads/{NAME}/{FILES[0]}.part.of"]
    with pytest.raises(OSError, match=r"interrupted after 0\.6 MB"):
        zoo.get(NAME, mirror=server.address)
    server.cut = None
    assert same_weights(zoo.get(NAME, mirror=server.address), published)
    assert [wanted for path, wanted in server.log if path.endswith(FILES[0])] == [
        None,
        "bytes=300000-",
        "bytes=600000-",
    ]
    assert whole > 600_000 and left(cache) == MODEL


@pytest.mark.parametrize("missing", ["ranges", "validators"])
def test_server_that_can_not_resume(server, published, entry, cache, missing):
    entry()
    serve(server, published)
    setattr(server, missing, False)
    server.cut = 300_000
    with pytest.raises(OSError, match="interrupted"):
        zoo.get(NAME, mirror=server.address)
    server.cut = None
    assert same_weights(zoo.get(NAME, mirror=server.address), published)
    asked = [wanted for path, wanted in server.log if path.endswith(FILES[0])]
    assert asked == ([None, "bytes=300000-"] if missing == "ranges" else [None, None])


@pytest.mark.parametrize("kind", ["same_length", "shorter", "much_shorter"])
def test_file_that_changed_meanwhile(server, published, entry, cache, kind):
    """The part that is here is the beginning of another file."""
    entry()
    serve(server, published)
    path, new = f"/models/{FILES[0]}", server.files[f"/models/{FILES[0]}"]
    other = bytes(len(new)) if kind == "same_length" else bytes(len(new) + 1000)
    server.cut = len(new) - 1000
    server.files[path] = other
    if kind == "much_shorter":
        server.cut = len(new) + 500
    with pytest.raises(OSError, match="interrupted"):
        zoo.get(NAME, mirror=server.address)
    server.cut, server.files[path] = None, new
    assert same_weights(zoo.get(NAME, mirror=server.address), published)


def test_download_killed_before_the_rename(server, published, entry, cache):
    entry()
    serve(server, published)
    part = cache / "downloads" / NAME / f"{FILES[0]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((published / FILES[0]).read_bytes())
    part.with_name(f"{part.name}.of").write_text(f'{part.stat().st_size} "x"')
    assert same_weights(zoo.get(NAME, mirror=server.address), published)
    assert [path for path, _ in server.log] == [f"/models/{FILES[1]}"]


def test_redirects_and_own_address(server, published, entry, cache):
    entry(urls=tuple(f"{server.address}/moved/models/{name}" for name in FILES))
    serve(server, published)
    assert same_weights(zoo.get(NAME), published)
    assert len(server.log) == 4


def test_redirects_from_https_to_http_are_refused(server, published, entry, cache, monkeypatch):
    """Not even one that leads back."""
    entry()
    served = []

    def https_open(self, request):
        served.append(request.full_url)
        moved, headers = len(served) == 1, Message()
        headers["Location"] = f"{server.address}/back"
        answer = addinfourl(io.BytesIO(b"x"), headers, request.full_url, 302 if moved else 200)
        answer.msg = ""
        return answer

    monkeypatch.setattr(HTTPSHandler, "https_open", https_open)
    with pytest.raises(OSError, match=rf"redirected to {server.address}/back, which is not encrypted"):
        zoo.get(NAME)
    assert server.log == [] and len(served) == 1


def test_servers_that_do_not_answer(server, published, entry, cache):
    entry()
    with pytest.raises(OSError, match=r"/models/tiny_weights.hdf5: the server answers 404 Not Found; --mirror URL"):
        zoo.get(NAME, mirror=server.address)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match=r"no answer: .*refused; without network, --from PATH"):
            zoo.get(NAME, mirror=f"http://127.0.0.1:{unused.getsockname()[1]}")
    with pytest.raises(ValueError, match="a mirror is an address that begins with https://"):
        zoo.get(NAME, mirror=str(published))
    assert left(cache) == []


def test_disk_full(server, published, entry, cache, monkeypatch):
    entry()
    serve(server, published)
    with monkeypatch.context() as patched:
        patched.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        with pytest.raises(OSError, match=r"no room on the disk: 1 MB to come, 0 MB free; .*--cache FOLDER"):
            zoo.get(NAME, mirror=server.address)

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(download, "open", Full, raising=False)
        with pytest.raises(OSError, match="no room on the disk: No space left"):
            zoo.get(NAME, mirror=server.address)
    assert same_weights(zoo.get(NAME, mirror=server.address), published)


# ---------------------------------------------------------------------------------------------------- what was loaded


def test_hashes(server, published, entry, cache):
    right = {name: sha256(published / name) for name in FILES}
    entry(sha256=right)
    serve(server, published)
    path = f"/models/{FILES[0]}"
    server.files[path] = server.files[path][:-1] + b"!"
    with pytest.raises(ValueError, match=rf"{FILES[0]} is not the published file: SHA-256 .*, not {right[FILES[0]]}"):
        zoo.get(NAME, mirror=server.address)
    assert left(cache) == []  # so that the next command loads it again
    serve(server, published)
    messages = []
    folder = zoo.get(NAME, mirror=server.address, report=messages.append)
    assert messages == [] and json.loads((folder / folders.SOURCE).read_text())["verified"]


def test_hashes_of_local_files(published, entry, cache, tmp_path):
    entry(sha256={FILES[0]: "0" * 64})
    with pytest.raises(ValueError, match="is not the published file"):
        zoo.get(NAME, source=published)
    assert sorted(path.name for path in published.iterdir()) == sorted(FILES) and left(cache) == []


@pytest.mark.parametrize("renamed", ["weights", "another_format"])
def test_hashes_are_not_evaded(server, published, entry, cache, tmp_path, renamed):
    """A file under another name, or other weights beside, has no hash to be held against."""
    folder = tmp_path / "renamed"
    shutil.copytree(published, folder)
    hashes = {name: sha256(published / name) for name in FILES}
    if renamed == "weights":
        for name in FILES:
            (folder / name).rename(folder / f"other_{name}")
    else:
        (folder / "model.safetensors").write_bytes(b"other weights")
    archive = packed(None, folder, tmp_path / "tiny.zip")
    entry(urls=(f"{PUBLISHER}tiny.zip",), sha256=hashes)
    server.files = {"/models/tiny.zip": archive.read_bytes()}
    with pytest.raises(ValueError, match="not the published archive: no "):
        zoo.get(NAME, mirror=server.address)
    assert left(cache) == []
    if renamed == "weights":
        messages = []
        assert same_weights(zoo.get(NAME, source=archive, report=messages.append), published)
        assert "not the published files, so not verified" in messages[0]


def packed(kind, folder, path, inside="tiny/"):
    """An archive of a folder's files, or one with a bad member."""
    files = {f"{inside}{file.name}": file.read_bytes() for file in folder.iterdir()}
    if inside:
        files |= {f"__MACOSX/{inside}._{name}": b"" for name in FILES} | {f"__MACOSX/._{FILES[0]}": b""}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
            if kind in ("../escaped", "/tmp/escaped", "tiny/../../escaped", "..\\escaped", "C:\\escaped"):
                archive.writestr(kind, b"x")
            if kind == "symlink":
                link = zipfile.ZipInfo("tiny/link")
                link.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(link, "/etc/passwd")
        return path
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        if kind:
            member = tarfile.TarInfo(kind if "escaped" in kind else "tiny/link")
            member.type = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}.get(
                kind, tarfile.REGTYPE
            )
            member.linkname = "/etc/passwd" if kind in ("symlink", "hardlink") else ""
            member.pax_headers = {"path": kind} if "\0" in kind else {}
            archive.addfile(member, io.BytesIO(b""))
    return path


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize("inside", ["tiny/", ""])
def test_archives(server, published, entry, cache, tmp_path, suffix, inside):
    archive = packed(None, published, tmp_path / f"tiny{suffix}", inside)
    entry(urls=(f"{PUBLISHER}tiny{suffix}",), sha256={FILES[0]: sha256(published / FILES[0])})
    server.files = {f"/models/tiny{suffix}": archive.read_bytes()}
    messages = []
    folder = zoo.get(NAME, mirror=server.address, report=messages.append)
    assert same_weights(folder, published) and left(cache) == MODEL and messages == []
    assert json.loads((folder / folders.SOURCE).read_text())["found"][archive.name] == sha256(archive)


@pytest.mark.parametrize(
    ("suffix", "kind", "message"),
    [
        (".zip", "../escaped", "outside"),
        (".zip", "tiny/../../escaped", "outside"),
        (".zip", "/tmp/escaped", "outside"),
        (".zip", "..\\escaped", "outside"),
        (".zip", "C:\\escaped", "outside"),
        (".zip", "symlink", "is a link"),
        (".tar.gz", "../escaped", "outside"),
        (".tar.gz", "/tmp/escaped", "outside"),
        (".tar.gz", "a\0escaped", "outside"),
        (".tar.gz", "symlink", "is a link"),
        (".tar.gz", "hardlink", "is a link"),
        (".tar.gz", "device", "is a link or a device"),
    ],
)
def test_archives_that_would_escape(published, entry, cache, tmp_path, suffix, kind, message):
    archive = packed(kind, published, tmp_path / f"bad{suffix}")
    before = sorted(tmp_path.rglob("*"))
    entry()
    with pytest.raises(ValueError, match=message):
        zoo.get(NAME, source=archive)
    assert left(cache) == [] and not Path("/tmp/escaped").exists()
    assert [path for path in sorted(tmp_path.rglob("*")) if cache not in (path, *path.parents)] == before


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_archive_too_large_or_damaged(published, entry, cache, tmp_path, suffix, monkeypatch):
    archive = packed(None, published, tmp_path / f"tiny{suffix}")
    with monkeypatch.context() as patched, pytest.raises(ValueError, match="unpacked; not the published archive"):
        patched.setattr(zoo.Entry, "parameters", property(lambda self: -(100 << 20) // 16 + 1000))
        entry()
        zoo.get(NAME, source=archive)
    data = archive.read_bytes()
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(data[: len(data) // 2] + bytes(100) + data[len(data) // 2 + 100 :])
    with pytest.raises(ValueError, match="a damaged archive"):
        zoo.get(NAME, source=damaged)
    damaged.write_bytes(b"<html>Sign in</html>")
    with pytest.raises(ValueError, match="neither weights nor a zip or tar archive"):
        zoo.get(NAME, source=damaged)
    assert left(cache) == []


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize("kind", ["long_name", "extended", "many", "endless"])
def test_archives_that_would_fill_the_memory(entry, cache, tmp_path, suffix, kind, monkeypatch):
    """The headers of a tar archive are bounded too."""
    entry()
    archive = tmp_path / f"tiny{suffix}"
    with gzip.open(archive, "wb", 1) if suffix == ".tar.gz" else open(archive, "wb") as file:
        if kind == "many":
            for number in range(download.MEMBERS + 1):
                file.write(tarfile.TarInfo(f"{number}").tobuf())
        else:
            member = tarfile.TarInfo("x")
            member.size = 64 << 20
            member.type = {"long_name": tarfile.GNUTYPE_LONGNAME, "extended": tarfile.XHDTYPE}.get(
                kind, tarfile.REGTYPE
            )
            member.size = 0 if kind == "endless" else member.size
            file.write(member.tobuf() + bytes(64 << 20))
    if kind == "endless":
        monkeypatch.setattr(zoo.Entry, "parameters", property(lambda self: -(100 << 20) // 16 + 1000))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1000 files" if kind == "many" else "a damaged archive"):
        zoo.get(NAME, source=archive)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20 and left(cache) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENAMETOOLONG, None])
def test_archives_that_can_not_be_unpacked(server, published, entry, cache, tmp_path, code, monkeypatch):
    """The disk is full: the download stays. Anything else: it goes, so that the next one is another."""
    archive = packed(None, published, tmp_path / "tiny.tar.gz")
    entry(urls=(f"{PUBLISHER}tiny.tar.gz",))
    server.files = {"/models/tiny.tar.gz": archive.read_bytes()}
    error = OSError("Invalid data stream") if code is None else OSError(code, os.strerror(code))
    message = "no room on the disk: No space left" if code == errno.ENOSPC else "a damaged archive; get it again"
    with monkeypatch.context() as patched, pytest.raises((OSError, ValueError), match=message):
        patched.setattr(tarfile.TarFile, "extract", lambda *args, **kwargs: (_ for _ in ()).throw(error))
        zoo.get(NAME, mirror=server.address)
    assert bool(left(cache)) == (code == errno.ENOSPC)
    assert same_weights(zoo.get(NAME, mirror=server.address), published)


@pytest.mark.parametrize("form", ["folder", "folder_above", "file", "folder_of_the_archive", "hidden_files"])
def test_from(published, entry, cache, tmp_path, form, monkeypatch):
    monkeypatch.setattr(download, "open_url", None)  # no network
    entry()
    source = {"folder": published, "folder_above": published.parent, "file": published / FILES[0]}.get(form)
    if form == "hidden_files":
        shutil.copytree(published, tmp_path / "tiny")
        for path in (tmp_path / f"._{FILES[0]}", tmp_path / "tiny" / f"._{FILES[0]}", tmp_path / "._x.index"):
            path.write_bytes(b"Mac OS X")
        source = tmp_path
    if form == "folder_of_the_archive":
        packed(None, published, tmp_path / "tiny.zip")
        (tmp_path / "other_weights.hdf5").write_bytes(b"")
        entry(urls=(f"{PUBLISHER}tiny.zip",))
        source = tmp_path
    assert same_weights(zoo.get(NAME, source=source), published)


def test_from_other_models_and_missing_files(published, entry, cache, tmp_path):
    entry(name="elmo_1x8_4_2048cnn_1xhighway/test")
    with pytest.raises(ValueError, match=r"not elmo_1x8_4_2048cnn_1xhighway/test: highways 0, not 1"):
        zoo.get("test", source=published)
    with pytest.raises(ValueError, match="missing: no such file or folder"):
        zoo.get("test", source=tmp_path / "missing")
    with pytest.raises(ValueError, match=r"no weights of .* in it; looked for model\*.safetensors, "):
        zoo.get("test", source=tmp_path)
    assert left(cache) == []


def test_google_checkpoint(entry, cache, tmp_path):
    """A zip archive of a TensorFlow 1 checkpoint, whose casing only the list knows."""
    from keras_ctxrep.convert import google
    from keras_ctxrep.convert.weights import arrays

    config = replace(bert.SIZES["bert_2_64_2"], vocabulary_size=12)
    folder = tmp_path / "uncased"
    folder.mkdir()
    model = bert.pretrainer(config)
    names, values = zip(*arrays(model, google.weight_map(config)), strict=True)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )
    sizes = {"vocab_size": 12, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 256, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 2}
    sizes |= {"attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "initializer_range": 0.02}
    (folder / "bert_config.json").write_text(json.dumps(sizes))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    for lowercase, name in ((True, "bert_2_64_2/uncased"), (False, "bert_2_64_2/cased")):
        entry(name=name, format="google", lowercase=lowercase, vocabulary_size=12)
        source = folder / "bert_model.ckpt" if lowercase else packed(None, folder, tmp_path / "x.zip", "uncased/")
        read, bundle = saving.load(zoo.get(name, source=source))
        assert bundle.lowercase is lowercase and bundle.vocab == tuple(pieces)
        for ours, theirs in zip(read.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("form", ["folder", "file"])
def test_hugging_face_folder(entry, cache, tmp_path, form):
    """Of a model that the list has in another format; what the converter warns of is reported."""
    from keras_ctxrep.convert import huggingface

    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg")
    config = replace(bert.SIZES["bert_2_64_2"], vocabulary_size=len(pieces))
    model = bert.pretrainer(config)
    written = Bundle("bert", "pretrainer", asdict(config), 512, vocab=pieces, lowercase=False)
    huggingface.write(tmp_path / "hub", model, written)
    options = json.loads((tmp_path / "hub" / "config.json").read_text())
    options["architectures"] = ["BertForTokenClassification"]
    (tmp_path / "hub" / "config.json").write_text(json.dumps(options))
    entry(name="bert_2_64_2/hub", format="google", lowercase=True, vocabulary_size=12, sha256={"vocab.txt": "0" * 64})
    messages, digest = [], sha256(tmp_path / "hub" / "model.safetensors")
    source = tmp_path / "hub" / "model.safetensors" if form == "file" else tmp_path / "hub"
    read, bundle = saving.load(zoo.get("hub", source=source, report=messages.append))
    assert bundle.vocab == pieces and bundle.lowercase is False  # the files say it
    for ours, theirs in zip(read.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(messages) == 2 and "BertForTokenClassification" in messages[0]
    assert f"not the published files, so not verified; found: model.safetensors {digest}" in messages[1]


# ------------------------------------------------------------------------------------------------------------- cache


def test_nothing_is_left_of_a_conversion_that_failed(server, published, entry, cache, monkeypatch):
    entry(sha256={name: sha256(published / name) for name in FILES})
    serve(server, published)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(saving, "save", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        zoo.get(NAME, mirror=server.address)
    assert zoo.cached(zoo.lookup(NAME)) is None
    assert left(cache) == sorted(f"downloads/{NAME}/{name}" for name in FILES)
    with monkeypatch.context() as patched, pytest.raises(ValueError, match="can not read"):
        patched.setattr(allennlp, "read", lambda place: (_ for _ in ()).throw(ValueError("can not read")))
        zoo.get(NAME, mirror=server.address)
    assert left(cache) == sorted(f"downloads/{NAME}/{name}" for name in FILES)  # they are the published ones
    server.close()
    assert same_weights(zoo.get(NAME), published)  # of what was downloaded


@pytest.mark.parametrize("fault", ["cut", "missing", "garbled"])
def test_a_damaged_folder_is_made_again(published, entry, cache, fault):
    entry()
    folder = zoo.get(NAME, source=published, report=lambda line: None)
    weights, messages = folder / "model.weights.h5", []
    if fault == "missing":
        weights.unlink()
    elif fault == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        (folder / "bundle.json").write_text("{")
    assert same_weights(zoo.get(NAME, source=published, report=messages.append), published) and left(cache) == MODEL
    assert messages[0].startswith(f"{folder}: ") and messages[0].endswith("; it is made again")
    messages.clear()
    assert zoo.get(NAME, source=published, report=messages.append) == folder
    assert messages == [f"{NAME}: it is cached already, so {published} is not read; to read it delete {folder}"]


def test_two_processes_at_once(server, published, entry, cache, monkeypatch):
    """The second waits, and uses what the first has made."""
    entry()
    serve(server, published)
    second_came, lines, made, fetch = threading.Event(), [], [], cache_module.fetch

    def slow(*args, **options):
        second_came.wait(20)
        fetch(*args, **options)

    def waiting(line):
        lines.append(line)
        second_came.set()

    def second():
        made.append(zoo.get(NAME, mirror=server.address, report=waiting))

    monkeypatch.setattr(cache_module, "fetch", slow)
    first = threading.Thread(target=lambda: made.append(zoo.get(NAME, mirror=server.address, report=lambda line: None)))
    first.start()
    while not server.log and not list(cache.rglob("*.lock")) and first.is_alive():
        time.sleep(0.01)
    time.sleep(0.2)
    second()
    first.join()
    assert made == [cache / NAME] * 2 and same_weights(made[0], published) and left(cache) == MODEL
    assert [path for path, _ in server.log] == [f"/models/{name}" for name in FILES]  # each once
    assert lines == [f"{NAME}: another process is making it; waiting for that one"]


@pytest.mark.slow  # a process that is killed
def test_files_of_a_killed_conversion_are_removed_by_the_next(published, entry, cache, monkeypatch):
    entry()
    code = """
import os, signal, sys
from dataclasses import replace
from keras_ctxrep import places, saving, zoo
from keras_ctxrep.zoo import entries
entry = zoo.Entry(sys.argv[1], "allennlp", ("https://publisher.invalid/models/tiny_weights.hdf5",), "x", "https://x")
entries.ENTRIES = (entry,)
save = saving.save
def killed(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
saving.save = killed
zoo.get(entry.name, source=sys.argv[2])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "export", ROOT / "tflite")))}
    done = subprocess.run([sys.executable, "-c", code, NAME, str(published)], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL and zoo.cached(zoo.lookup(NAME)) is None and left(cache)
    assert same_weights(zoo.get(NAME, source=published), published) and left(cache) == MODEL


def test_find(entry, cache, tmp_path, published):
    entry()
    assert zoo.find(tmp_path) == tmp_path
    with pytest.raises(ValueError, match=f"{NAME}: not downloaded yet: `ctxrep zoo get {NAME}`"):
        zoo.find("test")
    with pytest.raises(ValueError, match=r"^nowhere: no such folder; as a published model: no published model"):
        zoo.find("nowhere")
    other = zoo.get("test", source=published, cache=tmp_path / "other")
    assert zoo.find("test", tmp_path / "other") == other == tmp_path / "other" / NAME


def test_no_source():
    with pytest.raises(ValueError, match="no source: its pieces are SentencePiece's"):
        zoo.get("kobert_news_wiki_ko_cased")


# ----------------------------------------------------------------------------------------------------------- shipped

SHIPPED = [entry for entry in zoo.ENTRIES if entry.shipped]


def test_shipped_models_come_first():
    assert SHIPPED and zoo.ENTRIES[: len(SHIPPED)] == tuple(SHIPPED)


@pytest.mark.trains
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)
def test_shipped_models_need_no_network_and_no_cache(shipped, cache, capsys):
    folder = zoo.get(shipped.name)
    assert folder == zoo.find(shipped.name) == zoo.cached(shipped) and folder.is_relative_to(Path(zoo.__file__).parent)
    model, bundle = zoo.load(shipped.name)
    encoder = model if shipped.family == "g2p" else saving.load_encoder(zoo.find(shipped.base or shipped.name)).model
    assert encoder.count_params() == shipped.parameters
    assert (shipped.vocabulary_size or len(bundle.vocab)) == len(bundle.vocab)
    assert all(np.isfinite(array).all() for array in model.get_weights())
    assert not cache.exists()
    if shipped.base:
        assert all(part.dtype == np.float16 for parts in updates.read(folder).values() for part in parts)
        assert (folder / "updates.npz").stat().st_size < 1.5e6
    else:
        with h5py.File(folder / "model.weights.h5") as file:
            sizes: dict = {}
            file.visititems(lambda name, item: sizes.setdefault(item.dtype, item) if hasattr(item, "dtype") else None)
        assert set(sizes) == {np.dtype("float16")}
        assert (folder / "model.weights.h5").stat().st_size < 32e6
    assert main(["zoo", "show", shipped.name]) == 0
    shown = capsys.readouterr().out
    assert (
        bundle.card
        and bundle.card.strip() in shown
        and ("CC BY-SA" in bundle.card or "PDDL 1.0" in bundle.card or shipped.family == "g2p")
        and str(folder) in shown
    )


def test_names_where_folders_are_read(tmp_path, capsys):
    name = "bert_3_384_12/books_wiki_en"
    (tmp_path / "text.txt").write_text("She sat on the bank of the river.\nHe keeps his money in the bank.\n")
    text = str(tmp_path / "text.txt")
    for argv in (
        ["embed", name, "--input", text, "--layers", "mean", "--out", str(tmp_path / "vectors.npz")],
        ["neighbours", name, "--word", "bank", "--input", text],
        ["convert", name, "--to", "huggingface", "--out", str(tmp_path / "converted")],
        ["export", name, "--out", str(tmp_path / "served")],
    ):
        assert main(argv) == 0, capsys.readouterr().err
    assert (tmp_path / "converted" / "model.safetensors").exists()
    assert (tmp_path / "served" / "1" / "assets.extra" / "card.md").exists()


def test_a_shipped_model_is_not_read_from_elsewhere(published):
    with pytest.raises(ValueError, match=r"it comes with the package, so .* is not read"):
        zoo.get(SHIPPED[0].name, source=published)


def test_an_installation_without_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    for use in (zoo.find, zoo.get, zoo.load):
        with pytest.raises(ValueError, match="missing from this installation of keras_ctxrep: install it again"):
            use(SHIPPED[0].name)


# ----------------------------------------------------------------------------------------------------------- command


def test_command(server, published, entry, cache, capsys):
    serve(server, published)
    assert main(["zoo", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shipped, published_lines = lines[: 9 + len(SHIPPED)], lines[9 + len(SHIPPED) :]
    assert shipped[0].split()[-6:] == ["STS-B", "SST-2", "WNUT-17", "MB", "ms", "for"]
    assert all(line.endswith(entry.use) for line, entry in zip(shipped[2:], SHIPPED, strict=False))
    assert [line.split()[0] for line in shipped[2 : 2 + len(SHIPPED)]] == [entry.name for entry in SHIPPED]
    assert len(published_lines) == len(zoo.ENTRIES) + 2
    assert published_lines[0].split()[:3] == ["name", "family", "parameters"]
    (line,) = (line for line in lines if line.startswith("bert_12_768_12/scibert_scivocab_uncased "))
    assert "109.9 M" in line
    assert main(["zoo", "show", "bert_12_768_12/book_corpus_wiki_en_cased"]) == 0
    out = capsys.readouterr().out
    assert "bert_config.json f11dfb75" in out and "cased_L-12_H-768_A-12.zip" in out and "108,310,272" in out
    entry()
    assert main(["zoo", "get", "test", "--mirror", server.address]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{cache / NAME}\n" and "could not be verified" in printed.err
    assert main(["zoo", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == NAME and row["cached"] == str(cache / NAME)
    assert main(["zoo", "show", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == row
    arguments = ["zoo", "get", "test", "--from", str(published), "--cache", str(cache / "other")]
    assert main(arguments) == 0 and (cache / "other" / NAME / "bundle.json").is_file()


@pytest.mark.parametrize(
    "argv",
    [
        ["zoo"],
        ["zoo", "get"],
        ["zoo", "list", "test"],
        ["zoo", "fetch", "test"],
        ["zoo", "show", "test", "--from", "x"],
        ["zoo", "get", "test", "--json"],
    ],
)
def test_wrong_usage(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2


def test_failures_are_one_line(server, entry, cache, capsys):
    for argv in (["show", "nothing"], ["get", "kobert_news_wiki_ko_cased"]):
        assert main(["zoo", *argv]) == 1
        err = capsys.readouterr().err
        assert err.startswith("ctxrep: ") and err.count("\n") == 1
    entry()
    assert main(["zoo", "get", "test", "--mirror", server.address]) == 1
    assert "404" in capsys.readouterr().err


def test_the_list_needs_neither_tensorflow_nor_keras():
    code = "import sys; from keras_ctxrep import zoo; [entry.as_dict() for entry in zoo.ENTRIES]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert not {"tensorflow", "keras", "h5py", "tqdm"} & set(done.stdout.split())
