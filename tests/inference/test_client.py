"""The client of TF Serving, against test doubles of its REST and gRPC interfaces; test_servers.py has a real server."""

import http.server
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent import futures
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.inference import client, keras_engine
from keras_ctxrep.inference.client import Target
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_export import saved_model

TEXTS = ["The rain fell.", "中 she the cats", "a b c d e f g h " * 6]
PAIRS = ["the cats a ab. " * 8, "中", "the rain fell. she"]
CASES = {"classify": None, "tag": None, "answer": PAIRS}  # every task is in test_servers.py


@pytest.fixture(scope="module")
def served(tiny_model, tmp_path_factory):
    """Task -> version folder and loaded SavedModel, made once."""
    base, made = tmp_path_factory.mktemp("served"), {}

    def version(task):
        if task not in made:
            folder = saved_model.export(*tiny_model(task, pair=task == "answer"), base / task)
            made[task] = folder, tf.saved_model.load(folder)
        return made[task]

    return version


# ---------------------------------------------------------------------------------------------------- test doubles


@contextmanager
def rest_double(loaded, delay=0.0):
    """A test double of TF Serving's REST interface: predict in row format and metadata, of version 1 of "m"."""
    signatures = loaded.signatures
    predicts = [f"/v1/models/m{version}:predict" for version in ("", "/versions/1", "/labels/stable")]

    def text(value):
        if isinstance(value, list):
            return [text(part) for part in value]
        return value.decode() if isinstance(value, bytes) else value

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status, content):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path != "/v1/models/m/metadata":
                self.answer(404, {"error": "Could not find any versions of model x"})
                return
            inputs = {
                name: {"inputs": dict.fromkeys(each.structured_input_signature[1])} for name, each in signatures.items()
            }
            self.answer(200, {"metadata": {"signature_def": {"signature_def": inputs}}})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(delay)
            if self.path not in predicts:
                self.answer(404, {"error": "Servable not found for request: Latest(x)"})
                return
            name = body.get("signature_name", "serving_default")
            if name not in signatures:
                self.answer(400, {"error": f'Serving signature name: "{name}" not found in signature def'})
                return
            rows = body["instances"]
            spec = signatures[name].structured_input_signature[1]
            inputs = {key: tf.constant([row[key] for row in rows], spec[key].dtype) for key in rows[0]}
            columns = {key: text(value.numpy().tolist()) for key, value in signatures[name](**inputs).items()}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            self.answer(200, {"predictions": [next(iter(row.values())) if len(row) == 1 else row for row in rows]})

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def grpc_double(loaded, delay=0.0):
    """A test double of TF Serving's PredictionService, over the generated classes of tensorflow-serving-api."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving.apis", reason="tensorflow_serving is not installed: extra [dev]")
    from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

    signatures = loaded.signatures

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def checked(self, spec, context):
            time.sleep(delay)
            if spec.name != "m" or spec.version.value not in (0, 1) or spec.version_label not in ("", "stable"):
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(x)")
            return spec.signature_name

        def Predict(self, request, context):
            name = self.checked(request.model_spec, context)
            if name not in signatures:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f'Serving signature name: "{name}" not found')
            inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            for key, value in signatures[name](**inputs).items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value.numpy()))
            return response

        def GetModelMetadata(self, request, context):
            self.checked(request.model_spec, context)
            defs = get_model_metadata_pb2.SignatureDefMap()
            for name, each in signatures.items():
                for key in each.structured_input_signature[1]:
                    defs.signature_def[name].inputs[key].name = key
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.metadata["signature_def"].Pack(defs)
            return response

    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


DOUBLES = pytest.mark.parametrize("double", [rest_double, grpc_double], ids=["rest", "grpc"])


@pytest.mark.trains
@DOUBLES
@pytest.mark.parametrize("task", CASES)
def test_same_answers_as_the_saved_model(double, task, served):
    folder, loaded = served(task)
    bundle = bundles.load(folder)
    expected = saved_model.load(folder)(TEXTS, CASES[task])
    with double(loaded) as url:
        answers = client.load(url, Target("m", timeout=100), bundle, batch_size=2)(TEXTS, CASES[task])
        engine = open_model(url, target=Target("m", timeout=100), bundle=bundle)
        assert rounded(engine.answer(TEXTS, CASES[task])) == rounded(answers) == rounded(expected)
    with pytest.raises(ValueError, match=f"{url}: not a Keras model; load the model folder"):
        _ = engine.keras
    with pytest.raises(ValueError, match=f"{url}: a model on a server: give its target and its bundle"):
        open_model(url)


def rounded(value):
    return json.loads(json.dumps(value), parse_float=lambda number: round(float(number), 4))


@DOUBLES
def test_errors(double, served):
    with double(served("classify")[1]) as url:
        texts = {"text": np.array(["rain"], object)}
        for target in (Target("x"), Target("m", version=7), Target("m", label="canary")):
            with pytest.raises(ValueError, match=f"no model '{target.model}' .*: .*Servable not found"):
                client.connect(url, target).run(texts)
        with pytest.raises(ValueError, match='Serving signature name: "fly" not found'):
            client.connect(url, Target("m", "fly")).run(texts)
        with pytest.raises(
            ValueError, match="'m' has no signature 'fly'; it has classify, embed, ids, serving_default"
        ):
            client.connect(url, Target("m", "fly")).inputs()
        assert client.connect(url, Target("m")).inputs() == ("text",)
        for target in (Target("m", version=1), Target("m", label="stable")):
            assert client.connect(url, target).run(texts)["probabilities"].shape == (1, 2)
    with double(served("classify")[1], delay=1.0) as url, pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        client.connect(url, Target("m", timeout=0.1)).run(texts)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_no_server(kind):
    pytest.importorskip("grpc")
    with pytest.raises(ConnectionError, match=f"{kind}://127.0.0.1:1: cannot be reached"):
        client.connect(f"{kind}://127.0.0.1:1", Target("m")).run({"text": np.array(["rain"], object)})


def test_a_server_of_another_kind():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello")

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = client.connect(f"http://127.0.0.1:{server.server_port}", Target("m"))
        with pytest.raises(ValueError, match="not an answer of TF Serving: <html>hello"):
            asked.run({"text": np.array(["rain"], object)})
        assert asked.inputs() is None  # no metadata, as of kserve
        server.shutdown()


@pytest.mark.parametrize("url", ["localhost:8501", "ftp://host", "http://"])
def test_addresses(url):
    with pytest.raises(ValueError, match="HOST:PORT is needed"):
        client.connect(url, Target("m"))


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        (["a"], ("text", "pair"), "2 needed, text and pair"),
        (["a\tb", "c"], None, "2 needed, text and pair"),
        (["a"], ("text", "marks"), "inputs marks, text: give JSON for marks"),
    ],
)
def test_lines_that_do_not_fit(texts, names, message):
    with pytest.raises(ValueError, match=message):
        client.inputs_of(texts, names)


def test_a_tab_in_a_single_text():
    assert client.inputs_of(["a\tb"], ("text",))["text"].tolist() == ["a\tb"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "not JSON"),
        (["[" * 100_000], "^.{1,250}: not JSON: nested too deeply$"),
        (['{"ids": NaN}'], "ids: a number is not finite"),
        (["[1]"], "a JSON object is needed"),
        (['{"text": "a"}', '{"words": "a"}'], "the same keys"),
        (['{"ids": [1]}', '{"ids": [1, 2]}'], "ids: values of different shapes"),
    ],
)
def test_json_that_does_not_fit(lines, message):
    with pytest.raises(ValueError, match=message):
        client.inputs_of_json(lines)


# ------------------------------------------------------------------------------------------------------- the command


def lines_of(capsys) -> list:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@DOUBLES
def test_command(double, served, capsys):
    expected = saved_model.load(served("classify")[0])(TEXTS)
    with double(served("classify")[1]) as url:
        assert main.main(["client", "--url", url, "--model", "m", *TEXTS, "--batch-size", "2"]) == 0
        answers = lines_of(capsys)
        assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
        assert np.allclose(answers[0]["probabilities"], [*expected[0]["probabilities"].values()])
        folder = ["--bundle", str(served("classify")[0])]
        assert main.main(["client", "--url", url, "--model", "m", *TEXTS, *folder]) == 0
        assert [answer["probabilities"].keys() for answer in lines_of(capsys)] == [{"no", "yes"}] * 3
        ids = json.dumps({"token_ids": [2, 5, 3], "segment_ids": [0, 0, 0], "mask": [1, 1, 1]})
        assert main.main(["client", "--url", url, "--model", "m", "--signature", "ids", "--json", ids]) == 0
        (row,) = lines_of(capsys)  # REST leaves out the name of a single output
        assert {*row} == ({"output"} if double is rest_double else {"logits"}) and np.shape([*row.values()]) == (1, 2)


@pytest.mark.trains
def test_pairs_and_standard_input(served, tmp_path):
    expected = saved_model.load(served("answer")[0])(TEXTS, PAIRS)
    command = [sys.executable, "-m", "keras_ctxrep.cli", "client", "--model", "m"]
    text = "".join(f"{text}\t{pair}\n" for text, pair in zip(TEXTS, PAIRS, strict=True))
    with rest_double(served("answer")[1]) as url:
        for argv, stdin in (([*TEXTS, "--pair", *PAIRS], ""), ([], text)):
            process = subprocess.run([*command, "--url", url, *argv], input=stdin, capture_output=True, text=True)
            assert (process.returncode, process.stderr) == (0, "")
            answers = [json.loads(line) for line in process.stdout.splitlines()]
            assert [answer["answer"] for answer in answers] == [answer["answer"] for answer in expected]


def test_dry_run(capsys):
    argv = [
        "client",
        "--url",
        "http://nowhere.invalid:8501",
        *["--model", "m", "--dry-run", "b", "é", "--pair", "c", "d"],
    ]
    assert main.main(argv) == 0
    instances = [{"text": "b", "pair": "c"}, {"text": "é", "pair": "d"}]
    assert json.loads(capsys.readouterr().out) == {"instances": instances}
    pytest.importorskip("grpc")
    from google.protobuf import text_format

    argv[2] = "grpc://nowhere.invalid:8500"
    assert main.main([*argv, "--signature", "s", "--version", "3"]) == 0
    out = capsys.readouterr().out
    apis = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    request = text_format.Parse(out, apis.PredictRequest())
    assert (request.model_spec.signature_name, request.model_spec.version.value) == ("s", 3)
    assert request.inputs["pair"].string_val == [b"c", b"d"]


@pytest.mark.parametrize(
    "argv",
    [
        ["a", "b", "--pair", "c"],
        ["{}", "--json", "--pair", "c"],
        ["a", "--bundle", "x", "--dry-run"],
        ["a", "--version", "1", "--label", "stable"],
        ["a", "--timeout", "0"],
    ],
)
def test_wrong_usage(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["client", "--url", "http://127.0.0.1:1", "--model", "m", *argv])
    assert stop.value.code == 2


def test_without_tensorflow():
    code = "import sys, keras_ctxrep.inference.client; print('tensorflow' in sys.modules, 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"
    code = (
        "import sys; from keras_ctxrep.cli import main\n"
        "main.main(['client', '--url', 'grpc://127.0.0.1:1', '--model', 'm', '--dry-run', 'rain'])\n"
        "print('tensorflow' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.endswith("False\n"), out.stderr


def test_numbers_of_a_request():
    with pytest.raises(ValueError, match="marks: a number is too large"):
        client.inputs_of_json(['{"marks": [[0, 4294967297]]}'])
    for line in ('{"a": [1, "x"]}', '{"a": ["x", 1]}', '{"a": null}', '{"a": {"b": 1}}'):
        with pytest.raises(ValueError, match="a: "):
            client.inputs_of_json([line])


def test_strings_of_a_request_take_little_memory():
    rows = [["x" * 20_000] + [""] * 399] + [["a"] * 400] * 7
    tracemalloc.start()
    assert client._array(rows).shape == (8, 400)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_line_breaks_within_a_text_of_the_client(monkeypatch, tiny_model, tmp_path, capsys):
    saving.save(tmp_path / "m", *tiny_model("classify"))
    predictor = keras_engine.predictor(tmp_path / "m")
    monkeypatch.setattr(client, "load", lambda *args: predictor)
    argv = ["client", "--url", "http://x:1", "--model", "m", "--bundle", str(tmp_path / "m"), "the cat\nrain"]
    assert main.main(argv) == 0 and len(capsys.readouterr().out.splitlines()) == 1
