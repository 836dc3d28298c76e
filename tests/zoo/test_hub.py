"""Models of the Hugging Face Hub, from a local server that speaks its protocol."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
import pytest

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
    """

    def __init__(self, repositories):
        self.repositories, self.fetched = repositories, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self, True)

            def do_HEAD(self):
                outer.answer(self, False)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request, body):
        parts = urlsplit(request.path).path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        owner, name, kind, revision, *rest = parts[2:] if is_api else parts
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
        data = files["/".join(rest)]
        if body:
            self.fetched.append(rest[-1])
        send(request, 200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(data)):x}"'}, body)


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
    lines = []
    folder = hub.get("hf://some/bert", endpoint=server.address, report=lines.append)
    assert bundle_of(folder).max_length == 7
    assert any("added tokens, which are not looked for in texts: <user>" in line for line in lines)
    assert any("2_Dense, weights of sentence-transformers" in line for line in lines)


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
