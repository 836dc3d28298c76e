"""TF Serving's REST interface on the desk: the same answers as Keras through the client, its formats and its errors."""

import json
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from keras_ctxrep.cli import main
from keras_ctxrep.commands.serve import serve
from keras_ctxrep.inference import client, keras_engine
from keras_ctxrep.inference.client import Target
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.recipes import serving
from keras_ctxrep.recipes.serving import http_server, opened
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import quantize
from tests import server_thread, tiny

pytest.importorskip("uvicorn", reason="Uvicorn is missing: pip install '.[serve]'")
pytestmark = pytest.mark.trains

TASKS = ("multilabel", "regress", "tag", "answer", "coreference", "embed")
TEXTS = ["The rain fell. She left.", "中 she the cats"]
MARKS = [[(0, 3), (4, 8), (16, 19)], [(2, 5), (6, 9), (0, 1)]]


def running(path, name=None):
    return server_thread.running(http_server(opened(path, name)))


def rounded(answer):
    answer = {name: value for name, value in answer.items() if name != "n_best"}
    return json.loads(json.dumps(answer), parse_float=lambda number: pytest.approx(float(number), abs=1e-5))


@pytest.fixture(scope="module")
def made(tiny_model, tflite_in_process, tmp_path_factory):
    """A function from a task to its Predictor on Keras, a version folder, a model folder and a .tflite file."""
    base, known = tmp_path_factory.mktemp("served"), {}

    def make(task):
        if task not in known:
            pair = task in ("answer", "regress")
            model, bundle = tiny_model(task, pair=pair)
            folder = tiny.save(base / "folders" / task, bundle)
            from keras_ctxrep import saving

            model, bundle = saving.load(folder)
            version = saved_model.export(model, bundle, base / task)
            file = quantize.convert(folder, base / f"{task}.tflite", "none")
            known[task] = Predictor(bundle, keras_engine.runner(model)), version, folder, file
        return known[task]

    return make


@pytest.mark.parametrize("task", TASKS)
def test_the_client_gets_the_answers_of_keras(task, made):
    predictor, version, _, file = made(task)
    bundle = predictor.bundle
    marks = MARKS if bundle.reads.marks else None
    query = (TEXTS, TEXTS if bundle.pairs else None, marks)
    expected = [rounded(answer) for answer in predictor(*query)]
    with running(version.parent) as url:
        answers = client.load(url, Target(task, timeout=60), bundles.load(version))(*query)
    assert [{n: v for n, v in answer.items() if n != "n_best"} for answer in answers] == expected
    names = predictor.task.inputs(bundle)
    rows = [
        dict(zip(names, (text, text) if bundle.pairs else (text, spans), strict=False))
        for text, spans in zip(TEXTS, MARKS, strict=True)
    ]
    with running(file) as url:
        answers = send(url, f"/v1/models/{task}:predict", {"instances": rows})[1]["predictions"]
    for answer, row in zip(expected, answers, strict=True):
        row = row if isinstance(row, dict) else {"vector" if task == "embed" else "value": row}
        if "words" in answer:
            of_words = zip(*(row[name] for name in ("words", "starts", "ends", "labels")), strict=True)
            words = [(word["word"], word["start"], word["end"], word["label"]) for word in answer["words"]]
            assert [word for word in of_words if word[0]] == words
        else:
            known = {name: value for name, value in row.items() if name in answer and name != "labels"}
            known |= (
                {"probabilities": dict(zip(bundle.labels, row["probabilities"], strict=True))}
                if "probabilities" in row
                else {}
            )
            assert known and known == {name: answer[name] for name in known}


@pytest.fixture(scope="module")
def url(made):
    with running(made("classify")[1].parent) as address:
        yield address


def send(url, path, body=None):
    request = urllib.request.Request(
        url + path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_rows_and_columns(url):
    rows = [{"text": text} for text in TEXTS]
    status, answer = send(url, "/v1/models/classify:predict", {"instances": rows})
    assert status == 200 and answer["predictions"][0].keys() >= {"label", "score", "probabilities"}
    assert send(url, "/v1/models/classify/versions/1:predict", {"instances": TEXTS})[1] == answer
    columns = send(url, "/v1/models/classify:predict", {"inputs": {"text": TEXTS}})[1]["outputs"]
    assert columns["label"] == [row["label"] for row in answer["predictions"]]
    assert send(url, "/v1/models/classify:predict", {"inputs": TEXTS})[1]["outputs"] == columns
    coded = {"b64": "VGhlIHJhaW4gZmVsbC4gU2hlIGxlZnQu"}
    assert (
        send(url, "/v1/models/classify:predict", {"instances": [coded]})[1]["predictions"] == answer["predictions"][:1]
    )
    embedded = send(url, "/v1/models/classify:predict", {"signature_name": "embed", "instances": rows[:1]})
    assert len(embedded[1]["predictions"][0]["vector"]) == 8


def test_classify_and_regress_take_features(url, made):
    label = send(url, "/v1/models/classify:predict", {"instances": TEXTS})[1]["predictions"][0]
    status, answer = send(url, "/v1/models/classify:classify", {"examples": [{"text": text} for text in TEXTS]})
    assert status == 200 and [pair[0] for pair in answer["results"][0]] == ["no", "yes"]
    assert [pair[1] for pair in answer["results"][0]] == pytest.approx(label["probabilities"])
    status, answer = send(url, "/v1/models/classify:regress", {"examples": [{"text": "a"}]})
    assert status == 400 and 'no "regress"' in answer["error"]
    with running(made("regress")[1].parent) as other:
        status, answer = send(
            other, "/v1/models/regress:regress", {"context": {"pair": "a"}, "examples": [{"text": "b"}]}
        )
    assert status == 200 and len(answer["results"]) == 1


def test_status_metadata_and_page(url):
    assert send(url, "/v1/models/classify")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    metadata = send(url, "/v1/models/classify/metadata")[1]
    assert metadata["model_spec"] == {"name": "classify", "signature_name": "", "version": "1"}
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert inputs["text"]["dtype"] == "DT_STRING" and inputs["text"]["tensor_shape"]["dim"][0]["size"] == "-1"
    with urllib.request.urlopen(url) as response:
        page = response.read().decode()
    assert '"model": "classify"' in page and "TensorFlow Serving" in page and "$" + "name" not in page


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/models/other:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(other)"),
        ("/v1/models/classify/versions/7", None, 404, "Specific(classify, 7)"),
        ("/v1/models/classify:explain", {"instances": ["a"]}, 404, "Malformed request: POST"),
        ("/v1/models/classify:predict", None, 404, "Malformed request: GET"),
        ("/v1/models/classify:predict", b"{", 400, "JSON Parse error"),
        ("/v1/models/classify:predict", [], 400, "a request is an object"),
        ("/v1/models/classify:predict", {}, 400, 'give "instances" or "inputs"'),
        ("/v1/models/classify:predict", {"instances": []}, 400, "at least one row"),
        ("/v1/models/classify:predict", {"instances": ["a"], "signature_name": "x"}, 404, '"x" not found'),
        (
            "/v1/models/classify:predict",
            {"instances": [{"txt": "a"}]},
            400,
            "has the inputs text, and the request has txt",
        ),
        ("/v1/models/classify:predict", {"instances": [{"text": 3}]}, 400, "text: 3 is no string"),
        ("/v1/models/classify:predict", {"instances": [{"text": ["a"]}]}, 400, "of shape [1, 1]"),
        ("/v1/models/classify:predict", {"instances": ["a", ["b"]]}, 400, "rows of different shapes"),
        ("/v1/models/classify:predict", {"instances": [{"b64": "?"}]}, 400, "is not base64"),
        ("/v1/models/classify:classify", {"examples": [{"text": 0.5}]}, 400, "strings or whole numbers"),
        ("/v1/models/classify:classify", {"examples": [{"label": "x"}]}, 400, "tf.Example with the features text"),
        ("/v1/models/classify:classify", {"examples": {}}, 400, '"examples" is a list'),
    ],
)
def test_errors_have_the_form_of_tf_serving(url, path, body, status, message):
    given, answer = send(url, path, body)
    assert (given, answer.keys()) == (status, {"error"}) and message in answer["error"]


def test_the_command_line_client_and_a_model_folder(made, capsys):
    _, version, folder, file = made("classify")
    printed = []
    for path in (version, folder, file):
        with running(path, "mine") as url:
            assert main.main(["client", "--url", url, "--model", "mine", *TEXTS]) == 0
        printed.append([json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1] == printed[2] and len(printed[0]) == 2


@pytest.mark.parametrize("task", ["classify", *TASKS])
def test_texts_without_words(task, made):
    """A request is answered, with the same rows by a .tflite file as by a SavedModel, and so is the client."""
    predictor, version, _, file = made(task)
    bundle, texts = predictor.bundle, ["", "the rain", "\u200b"]
    names = predictor.task.inputs(bundle)
    marks = [[(0, 0)] * 3, [(0, 3), (4, 8), (0, 8)], [(0, 0)] * 3] if bundle.reads.marks else None
    rows = [
        dict(zip(names, (text, *([text] if bundle.pairs else []), *([marks[number]] if marks else [])), strict=True))
        for number, text in enumerate(texts)
    ]
    answered = []
    for path in (version.parent, file):
        with running(path, "mine") as url:
            status, answer = send(url, "/v1/models/mine:predict", {"instances": rows})
            assert status == 200, answer
            answered.append(answer["predictions"])
            if path != file:
                given = client.load(url, Target("mine", timeout=60), bundles.load(version))
                answers = given(texts, texts if bundle.pairs else None, marks)
    assert [{**answer, "n_best": 0} for answer in answers] == [
        {**rounded(answer), "n_best": 0} for answer in predictor(texts, texts if bundle.pairs else None, marks)
    ]
    for of_model, of_file in zip(*answered, strict=True):
        for name, value in of_file.items():
            flat = value if isinstance(value, list) else [value]
            own = of_model[name] if isinstance(of_model[name], list) else [of_model[name]]
            assert flat == [pytest.approx(x, abs=1e-5) if isinstance(x, float) else x for x in own], name
    for answers in answered:
        assert [row["error"] for row in answers] == ["no words in this text", "", "no words in this text"]
        empty = json.dumps([{**answers[0], "error": 0}, {**answers[2], "error": 0}])
        assert not set(empty) & {*"123456789"} and "NaN" not in empty and "no" not in empty
    with running(file) as url:  # and where no row has words
        status, answer = send(url, f"/v1/models/{task}:predict", {"instances": rows[:1]})
        assert status == 200
        for name, value in answer["predictions"][0].items():
            assert name in ("words", "labels", "starts", "ends", "scores") or value == answered[1][0][name]


def test_labels_that_are_numbers_in_python_are_strings(tmp_path, tflite_in_process):
    """As a SavedModel has them."""
    folder = tiny.save(tmp_path / "m", tiny.bundle("classify", labels=("0", "1"), settings={"label_type": "int"}))
    with running(quantize.convert(folder, tmp_path / "m.tflite", "none")) as url:
        _, answer = send(url, "/v1/models/m:predict", {"instances": TEXTS})
    assert {row["label"] for row in answer["predictions"]} <= {"0", "1"}


def test_what_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="no SavedModel in it"):
        opened(tmp_path)


def test_a_model_folder_answers_as_its_export(made):
    _, version, folder, _ = made("tag")
    export, written = opened(version.parent), opened(folder)
    assert written.signatures == export.signatures
    texts = np.array([text.encode() for text in TEXTS], object)
    inputs = {"text": texts, "words": np.array([[b"the", b"cats"], [b"she", b""]], object)}
    for name, signature in export.signatures.items():
        if {*signature["inputs"]} <= {*inputs}:
            batch = {key: inputs[key] for key in signature["inputs"]}
            expected, outputs = export.run(name, batch), written.run(name, batch)
            assert outputs.keys() == expected.keys()
            for key, value in outputs.items():
                np.testing.assert_array_equal(value, expected[key])


def test_a_signature_is_traced_when_it_is_asked_for(made, monkeypatch):
    """So that a model folder answers texts sooner."""
    traced, described = [], serving._described
    monkeypatch.setattr(serving, "_described", lambda tensors: traced.append(sorted(tensors)) or described(tensors))
    served = opened(made("classify")[2])
    assert traced == [["text"], ["error", "label", "logits", "probabilities", "score"]]
    assert "embed" in served.signatures and [*served.signatures][:2] == ["classify", "embed"]
    assert (
        served.signatures["embed"]["outputs"]["vector"] == {"dtype": "float32", "shape": [-1, 8]} and len(traced) == 4
    )
    with pytest.raises(KeyError):
        served.signatures["words"]


def test_an_address_that_cannot_be_had(made, capsys):
    file = str(made("classify")[3])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: another program has this port: --port 0 takes any"):
            serve(file, port=port)
        assert main.main(["serve", file, "--port", str(port)]) == 1
        error = capsys.readouterr().err
        assert "another program has this port" in error and error.count("\n") == 1
    for value in ("99999", "-1", "web"):
        with pytest.raises(SystemExit) as ended:
            main.main(["serve", file, f"--port={value}"])
        assert ended.value.code == 2 and f"{value}: a whole number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_version_replaces_the_one_that_answers(made, tmp_path):
    """A broken one does not; the first line comes before the model is loaded."""
    base = tmp_path / "stars"
    shutil.copytree(made("classify")[1], base / "1")
    command = [sys.executable, "-m", "keras_ctxrep.cli", "serve", str(base), "--port", "0", "--poll", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            assert "loading a SavedModel" in line
            url = re.search(r"http://\S+", line)[0]
            status, answer = send(url, "/v1/models/stars:predict", {"instances": ["a"]})
            assert status == 503 and "loading" in answer["error"]
            assert process.stdout.readline().strip() == f"{url}/v1/models/stars"
            lines = queue.Queue()
            threading.Thread(target=lambda: [lines.put(line) for line in process.stderr], daemon=True).start()
            assert send(url, "/v1/models/stars:predict", {"instances": ["a"]})[0] == 200

            def told(text):
                while text not in (line := lines.get(timeout=60)):
                    pass
                return line

            shutil.copytree(made("classify")[1], tmp_path / "broken")
            (tmp_path / "broken" / "saved_model.pb").write_bytes(b"damaged")
            (tmp_path / "broken").rename(base / "2")
            assert "cannot be loaded, and version 1 goes on" in told("goes on")
            assert send(url, "/v1/models/stars:predict", {"instances": ["a"]})[0] == 200
            shutil.copytree(made("classify")[1], tmp_path / "good")
            (tmp_path / "good").rename(base / "3")
            told("version 3 answers")
            states = send(url, "/v1/models/stars")[1]["model_version_status"]
            assert [(state["version"], state["state"]) for state in states] == [
                ("3", "AVAILABLE"),
                ("2", "END"),
                ("1", "END"),
            ]
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
