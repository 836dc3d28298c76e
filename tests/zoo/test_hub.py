"""Models of the Hugging Face Hub, from a local server that speaks its protocol."""

import base64
import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving, zoo
from keras_ctxrep.atomic import sha256
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import huggingface
from keras_ctxrep.text.bundle import load as bundle_of
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep.zoo import hub
from tests import tiny

constants = pytest.importorskip("huggingface_hub.constants")
snapshot_download = pytest.importorskip("huggingface_hub").snapshot_download
COMMIT = "1234567890abcdef1234567890abcdef12345678"
VOCAB = (*SPECIAL_PIECES, "x", "y")


class Server:
    """Repositories over the Hub's HTTP API: what a revision holds, and its files.

    Attributes:
        repositories: "OWNER/NAME" -> file name -> contents.
        fetched: names of the files whose contents were sent.
        created: (name, private, visibility) of the repositories that were made.
        writable: whether tokens may write.
    """

    def __init__(self, repositories):
        self.repositories, self.fetched = repositories, []
        self.created, self.large, self.writable = [], {}, True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self, True)

            def do_HEAD(self):
                outer.answer(self, False)

            def do_POST(self):
                outer.write(self)

            def do_PUT(self):
                outer.write(self)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request, body):
        parts = urlsplit(request.path).path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        owner, name, kind, revision, *rest = [*(parts[2:] if is_api else parts), "revision", "main"]
        files = self.repositories.get(f"{owner}/{name}")
        if files is None:
            return send(request, 401, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", COMMIT):
            return send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        if kind == "revision":
            about = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
            return send(request, 200, json.dumps(about).encode())
        if kind == "tree":
            return send(request, 200, json.dumps([listed(file, data) for file, data in files.items()]).encode())
        data = files["/".join(rest[:-2])]
        if body:
            self.fetched.append(rest[-3])
        send(request, 200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(data)):x}"'}, body)

    def write(self, request):
        """Creates repositories and takes commits, large files through Git LFS."""
        if request.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(request.rfile.readline(), 16):
                body += request.rfile.read(size)
                request.rfile.readline()
            request.rfile.readline()
        else:
            body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        path = urlsplit(request.path).path
        if not self.writable:
            return send(request, 403, b'{"error": "read only"}', {"Content-Type": "application/json"})
        answer = {}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join([asked.get("organization") or "some", asked["name"]])
            self.created.append((name, asked.get("private"), asked.get("visibility")))
            self.repositories.setdefault(name, {})
            answer = {"url": f"{self.address}/{name}"}
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = ("lfs" if file["path"].endswith(".safetensors") else "regular" for file in files)
            answer = {
                "files": [
                    {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
                    for file, mode in zip(files, modes, strict=True)
                ]
            }
        elif path.endswith("/info/lfs/objects/batch"):
            answer = {
                "transfer": "basic",
                "objects": [
                    wanted | {"actions": {"upload": {"href": f"{self.address}/lfs/{wanted['oid']}", "header": {}}}}
                    for wanted in json.loads(body)["objects"]
                ],
            }
        elif path.startswith("/lfs/"):
            self.large[path.rpartition("/")[2]] = body
        elif "/commit/" in path:
            repository = "/".join(path.split("/")[3:5])
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.repositories[repository][value["path"]] = base64.b64decode(value["content"])
                if entry["key"] == "lfsFile":
                    self.repositories[repository][value["path"]] = self.large[value["oid"]]
            answer = {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.address}/{repository}/commit/{COMMIT}"}
        send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


def listed(path, data):
    """A file as the Hub's listing has it."""
    entry = {"type": "file", "path": path, "size": len(data)}
    if path.endswith(".safetensors"):
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry | {"oid": "0" * 40, "lfs": lfs}
    return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}


def send(request, status, data, headers=None, body=True):
    request.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if body:
        request.wfile.write(data)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A classifier's files, and its model folder."""
    root = tmp_path_factory.mktemp("published")
    bundle = tiny.bundle("classify", labels=("bad", "good"), vocab=VOCAB, head={"dropout": 0.1})
    model = saving.build(bundle)
    saving.save(root / "model", model, bundle)
    huggingface.write(root / "files", model, bundle)
    return root


@pytest.fixture
def server(published, tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in (published / "files").iterdir()}
    pickled = {"config.json": files["config.json"], "pytorch_model.bin": b"a pickle", "vocab.txt": files["vocab.txt"]}
    server = Server({"some/bert": files | {"training_args.bin": b"a pickle"}, "some/pickle": pickled})
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_model_with_its_head(server, published, tmp_path):
    folder = hub.get("hf://some/bert", endpoint=server.address)
    assert folder == tmp_path / "cache" / "hf" / "some" / "bert" / COMMIT
    assert "model.safetensors" in server.fetched and "training_args.bin" not in server.fetched
    origin = json.loads((folder / "source.json").read_text())
    digest = sha256(published / "files" / "model.safetensors")
    assert (origin["name"], origin["verified"]) == (f"hf://some/bert@{COMMIT}", True)
    assert origin["found"]["model.safetensors"] == digest and digest in (folder / "card.md").read_text()
    model, bundle = saving.load(folder)
    expected, _ = saving.load(published / "model")
    assert (bundle.task, bundle.labels) == ("classify", ("bad", "good"))
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), expected.get_weights(), strict=True))


def test_it_is_downloaded_and_converted_once(server, tmp_path, monkeypatch):
    folder = zoo.get("hf://some/bert@main", mirror=server.address)
    fetched, written = list(server.fetched), (folder / "bundle.json").stat().st_mtime_ns
    assert zoo.get(f"hf://some/bert@{COMMIT}", mirror=server.address) == folder
    server.http.shutdown()
    server.http.server_close()
    assert zoo.find("hf://some/bert") == folder  # without a network
    assert zoo.load("hf://some/bert")[1].task == "classify"
    assert server.fetched == fetched and (folder / "bundle.json").stat().st_mtime_ns == written
    (folder / "model.weights.h5").write_bytes(b"damaged")
    assert saving.load(zoo.find("hf://some/bert"))[1].task == "classify"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("hf://some/pickle", ValueError, "hf://some/pickle: no safetensors in this repository"),
        ("hf://some/other", ValueError, "hf://some/other: no such repository, or a private one"),
        ("hf://some/bert@v2", ValueError, "the repository has no branch, tag or commit 'v2'"),
        ("hf://", ValueError, "hf://: give hf://OWNER/NAME"),
        ("hf://a/b/c", ValueError, "hf://a/b/c: give hf://OWNER/NAME"),
        ("hf://a/../../b", ValueError, "give hf://OWNER/NAME"),
        ("hf://some/bert@../../main", ValueError, "give hf://OWNER/NAME"),
    ],
)
def test_what_is_refused(server, name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        hub.get(name, endpoint=server.address)
    assert not list((tmp_path / "cache").rglob("bundle.json"))


def test_without_a_network(server, monkeypatch):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(OSError, match="hf://some/bert: the Hub cannot be reached, and the model is not in its cache"):
        hub.get("hf://some/bert", endpoint=server.address)


def test_the_offline_mode(server, monkeypatch):
    """The cache of `huggingface_hub` is read, and no server is asked."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="hf://some/bert: HF_HUB_OFFLINE is set, and the model is not in "):
        hub.get("hf://some/bert", endpoint=server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = hub.get("hf://some/bert", endpoint=server.address)
    server.repositories.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.get("hf://some/bert") == hub.get(f"hf://some/bert@{COMMIT}") == folder


def test_what_other_libraries_downloaded(server, tmp_path, monkeypatch):
    """Files in the layout of `huggingface_hub`, as links to blobs, are not downloaded again; damaged ones are."""
    files = server.repositories["some/bert"]
    assert snapshot_download("some/bert", endpoint=server.address) == str(snapshot(tmp_path))
    server.fetched.clear()
    (tmp_path / "hub" / "models--some--bert" / "refs" / "main").unlink()
    weights = snapshot(tmp_path) / "model.safetensors"
    weights.unlink()
    weights.write_bytes(bytes(len(files["model.safetensors"])))
    folder = hub.get("hf://some/bert", endpoint=server.address)
    assert server.fetched == ["model.safetensors"] and weights.read_bytes() == files["model.safetensors"]
    assert snapshot_download("some/bert", local_files_only=True) == str(snapshot(tmp_path))
    (folder / "model.weights.h5").write_bytes(b"damaged")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert saving.load(hub.get("hf://some/bert"))[1].task == "classify"
    origin = json.loads((folder / "source.json").read_text())
    assert not origin["verified"] and origin["found"]["model.safetensors"] == sha256(weights)


def snapshot(tmp_path):
    return tmp_path / "hub" / "models--some--bert" / "snapshots" / COMMIT


def test_a_pickle_beside_other_safetensors_is_not_read(server):
    server.repositories["some/pickle"]["adapter.safetensors"] = b"others"
    with pytest.raises(
        ValueError, match="no safetensors in this repository; pickled weights are not read from the Hub"
    ):
        hub.get("hf://some/pickle", endpoint=server.address)


def test_what_is_read_beside_the_weights(server):
    """The files of a repository give the same model as a folder of them."""
    files = server.repositories["some/bert"]
    files["sentence_bert_config.json"] = b'{"max_seq_length": 7}'
    files["modules.json"] = b'[{"path": ""}, {"path": "2_Dense"}]'
    files["2_Dense/model.safetensors"] = b"of another library"
    files["added_tokens.json"] = b'{"<user>": 7}'
    files["config_sentence_transformers.json"] = b'{"prompts": {"query": "query: "}}'
    lines = []
    folder = hub.get("hf://some/bert", endpoint=server.address, report=lines.append)
    assert bundle_of(folder).max_length == 7 and bundle_of(folder).roles == {"query": "query: ", "passage": ""}
    assert any("added tokens, which are not looked for in texts: <user>" in line for line in lines)
    assert any("2_Dense, weights of sentence-transformers" in line for line in lines)


@pytest.fixture
def downloaded(published, tmp_path, monkeypatch):
    """A folder as the clients of the Hub give it, and a cache."""
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(published / "files", tmp_path / "downloaded"))


def test_a_folder_of_transformers_is_loaded(downloaded, published, tmp_path, monkeypatch):
    lines = []
    folder = hub.converted(downloaded, report=lines.append)
    assert lines == [f"{downloaded} is converted, once, into {folder}"]
    with monkeypatch.context() as patch:
        patch.setattr(huggingface, "read", None)  # not called again, for another place of the same files either
        model = ctx.load(downloaded, engine="keras")
        assert zoo.find(downloaded.rename(tmp_path / "moved")) == model.engine.path == folder
    assert model("x y") == ctx.load(published / "model", engine="keras")("x y")
    assert model.bundle.labels == ("bad", "good")
    assert sha256(tmp_path / "moved" / "model.safetensors") in model.bundle.card
    (tmp_path / "moved" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    other = hub.converted(tmp_path / "moved", report=lines.append)
    assert other != folder and not bundle_of(other).lowercase


@pytest.mark.filterwarnings("ignore:.*is converted, once")
def test_a_folder_that_is_not_supported(downloaded, capsys):
    options = json.loads((downloaded / "config.json").read_text())
    (downloaded / "config.json").write_text(json.dumps(options | {"model_type": "t5"}))
    with pytest.raises(ValueError, match=r"config\.json: the option model_type is 't5'; only 'bert' or "):
        ctx.load(downloaded)
    assert main(["predict", str(downloaded), "--input", str(downloaded / "vocab.txt")]) == 1
    assert "the option model_type is 't5'" in capsys.readouterr().err
    (downloaded / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"downloaded: .*bundle\.json"):
        ctx.load(downloaded)


def test_predictions_by_name(server, tmp_path, capsys):
    hub.get("hf://some/bert", endpoint=server.address)
    (tmp_path / "texts.txt").write_text("x y\n")
    assert main(["predict", "hf://some/bert", "--input", str(tmp_path / "texts.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("bad", "good")


def test_commands(server, capsys):
    assert main(["zoo", "get", "hf://some/bert", "--mirror", server.address]) == 0
    assert capsys.readouterr().out.strip().endswith(COMMIT)
    assert main(["zoo", "get", "hf://some/bert", "--from", "folder"]) == 1
    assert "ctxrep convert folder --from huggingface" in capsys.readouterr().err


@pytest.fixture
def uploads(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return server


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # huggingface_hub's, of its HTTP library
def test_a_bert_is_pushed_in_the_form_of_transformers(uploads, published, capsys):
    folder = str(published / "model")
    assert main(["zoo", "push", folder, "hf://some/new", "--dry-run"]) == 0
    assert "model.safetensors" in capsys.readouterr().out and not uploads.created
    sizes = hub.push(folder, "hf://some/new", private=True, endpoint=uploads.address, report=lambda line: None)
    stored = uploads.repositories["some/new"]
    assert {name: len(data) for name, data in stored.items()} == sizes
    assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} <= stored.keys() and "run.json" not in stored
    assert uploads.created[0][0] == "some/new" and (uploads.created[0][1] or uploads.created[0][2] == "private")
    again, bundle = saving.load(hub.get("hf://some/new", endpoint=uploads.address))
    texts = bundle.features(["x y", "y"])
    expected = saving.load(folder)[0](texts)["logits"]
    np.testing.assert_allclose(again(texts)["logits"], expected, atol=1e-6)


def test_other_families_are_pushed_as_model_folders(uploads, tmp_path):
    folder = tiny.save(tmp_path / "static", tiny.bundle("embed", "static"))
    hub.push(folder, "hf://some/table", endpoint=uploads.address, report=lambda line: None)
    stored = uploads.repositories["some/table"]
    assert stored.keys() == {"bundle.json", "model.weights.h5", "vocab.txt", "README.md"}
    assert b"library_name: keras_ctxrep" in stored["README.md"]
    model, bundle = saving.load(hub.get("hf://some/table", endpoint=uploads.address))
    assert bundle.family == "static" and bundle.vocab == bundle_of(folder).vocab
    for a, b in zip(model.get_weights(), saving.load(folder)[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_token_that_may_not_write(uploads, published):
    uploads.writable = False
    with pytest.raises(OSError, match=r"hf://some/new: .*log in with a token that may write"):
        hub.push(published / "model", "hf://some/new", endpoint=uploads.address, report=lambda line: None)


def test_a_hub_that_is_not_there(uploads, published):
    with pytest.raises(OSError, match=r"hf://some/new: http://127\.0\.0\.1:9: .*refused; try again later"):
        hub.push(published / "model", "hf://some/new", endpoint="http://127.0.0.1:9", report=lambda line: None)


def test_what_cannot_be_pushed(uploads, published, tmp_path, capsys):
    with pytest.raises(ValueError, match="give hf://OWNER/NAME"):
        hub.push(published / "model", "some/new")
    with pytest.raises(ValueError, match=r"no bundle\.json in it"):
        hub.push(tmp_path, "hf://some/new")
    for words in (["push", str(published / "model")], ["list", "--dry-run"]):
        with pytest.raises(SystemExit, match="2"):
            main(["zoo", *words])
    assert not uploads.created
