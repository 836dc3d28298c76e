"""Answers of a model server that are none of TF Serving: each is one line that says so, and nothing is printed raw."""

import json
import re
import struct
import time
from concurrent import futures

import numpy as np
import pytest

from keras_ctxrep.cli.main import main
from keras_ctxrep.inference import client, messages
from keras_ctxrep.inference.client import Target
from keras_ctxrep.text import bundle as bundles
from tests import tiny
from tests.hostile import ESCAPES, drip, endless, http, server

TEXTS = ["one", "two", "three"]
NOT = "not an answer of TF Serving"
GOOD = [{"label": "yes", "score": 0.75, "probabilities": [0.25, 0.75]}] * 3


def predictions(*rows, **more):
    return http(json.dumps({"predictions": rows} | more).encode())


def changed(**fields):
    return predictions(*GOOD[:2], GOOD[2] | fields)


# name -> (the answer to a request, what the message says)
ANSWERS = {
    "nothing": (b"", "cannot be reached"),
    "empty": (http(), NOT),
    "html": (http(b"<html>Sign in</html>"), f"{NOT}: <html>Sign in</html>"),
    "not utf-8": (http(b'{"predictions": "\xff\xfe"}'), NOT),
    "null": (http(b"null"), f"{NOT}: null"),
    "number": (http(b"3"), NOT),
    "text": (http(b'"predictions"'), NOT),
    "list": (http(b"[1, 2, 3]"), NOT),
    "object": (http(b"{}"), f"{NOT}: {{}}"),
    "outputs": (http(b'{"outputs": [1, 2, 3]}'), NOT),
    "cut json": (http(b'{"predictions": [1, 2'), NOT),
    "two objects": (http(b'{"predictions": [1, 2, 3]} {}'), NOT),
    "predictions null": (http(b'{"predictions": null}'), NOT),
    "predictions text": (http(b'{"predictions": "abc"}'), NOT),
    "predictions object": (http(b'{"predictions": {"0": 1, "1": 2, "2": 3}}'), NOT),
    "no rows": (predictions(), f"{NOT}: .*predictions of 3 texts are needed"),
    "fewer rows": (predictions(*GOOD[:2]), f"{NOT}: .*predictions of 3 texts are needed"),
    "more rows": (predictions(*GOOD, *GOOD[:2]), f"{NOT}: .*predictions of 3 texts are needed"),
    "empty rows": (predictions({}, {}, {}), NOT),
    "row without a key": (predictions(*GOOD[:2], {"label": "yes"}), f"{NOT}: .*the same outputs of each"),
    "row with another key": (changed(extra=1), f"{NOT}: .*the same outputs of each"),
    "row of another kind": (predictions(*GOOD[:2], 3), NOT),
    "rows of other shapes": (changed(probabilities=[0.1, 0.2, 0.7]), f"{NOT}: .*different shapes"),
    "rows of other types": (changed(score="0.7"), NOT),
    "null value": (changed(score=None), NOT),
    "object value": (changed(score={"a": 1}), NOT),
    "nan": (http(json.dumps({"predictions": [float("nan")] * 3}).encode()), f"{NOT}: .*not JSON: NaN"),
    "infinity": (http(b'{"predictions": [Infinity, 1, 2]}'), f"{NOT}: .*not JSON: Infinity"),
    "1e999": (http(b'{"predictions": [1e999, 1, 2]}'), f"{NOT}: .*not finite"),
    "1e300": (http(b'{"predictions": [1e300, 1, 2]}'), f"{NOT}: .*not finite"),
    "2 ** 40": (http(b'{"predictions": [1099511627776, 1, 2]}'), f"{NOT}: .*too large for 32 bits"),
    "5,000 digits": (http(b'{"predictions": [' + b"9" * 5000 + b", 1, 2]}"), NOT),
    "deep": (http(b"[" * 100_000), f"{NOT}: .*nested too deeply"),
    "deep rows": (http(b'{"predictions": ' + b"[" * 90 + b"1" + b"]" * 90 + b"}"), NOT),
    "cut http": (http(b'{"predictions": ', length=1000), f"{NOT}: .*the connection closed before the end"),
    "cut chunks": (http(b'5\r\n{"pre', length="", Transfer_Encoding="chunked"), f"{NOT}: .*closed before the end"),
    "garbled chunks": (http(b"zz\r\nhello", length="", Transfer_Encoding="chunked"), NOT),
    "not http": (b"SSH-2.0-OpenSSH_9.6\r\n", f"{NOT}: .*not HTTP"),
    "binary": (bytes(range(256)), f"{NOT}: .*not HTTP"),
    "no status": (b"HTTP/1.1 abc\r\n\r\n", f"{NOT}: .*not HTTP"),
    "cut headers": (b"HTTP/1.1 200 OK\r\nContent-Le", NOT),
    "long header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n{}", f"{NOT}: .*not HTTP"),
    "many headers": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n{}", f"{NOT}: .*not HTTP"),
    "length abc": (http(b"{}", length="abc"), NOT),
    "length -5": (http(b"{}", length="-5"), NOT),
    "gzip": (http(b"\x1f\x8b\x08\x00", Content_Encoding="gzip"), NOT),
    "moved in a circle": (http(status="302 Found", Location="/"), "302"),
    "moved to a file": (http(status="302 Found", Location="file:///etc/passwd"), "302: Found"),
    "moved to nowhere": (http(status="302 Found", Location="http://[::1"), "cannot be reached: redirected"),
    "moved, without an end": (lambda: endless(http(status="302 Found", length="", Location="/")), "302"),
    "error": (http(b'{"error": "no such signature"}', "400 Bad Request"), "400: no such signature"),
    "error null": (http(b'{"error": null}', "500 X"), "500: None"),
    "error html": (http(b"<html>Bad gateway", "502 Bad Gateway"), "502: <html>Bad gateway"),
    "error empty": (http(b"", "503 Service Unavailable"), "503: Service Unavailable"),
    "error cut": (http(b"{", "500 X", length=99), f"{NOT}: .*closed before the end"),
    "error of 10 MB": (http(b'{"error": "' + b"x" * 10_000_000 + b'"}', "400 Bad Request"), "400: x{200}"),
    "error with escapes": (
        http(json.dumps({"error": ESCAPES * 9}).encode(), "400 Bad Request"),
        r"400: \\x1b\]0;pwned",
    ),
    "reason with escapes": (http(b"", "500 \x1b[2Jx\x9b31m"), r"500: \\x1b\[2Jx"),
    "endless": (lambda: endless(http(b'{"predictions": [', length="")), "an answer longer than 1 MB: send fewer"),
    "endless error": (lambda: endless(http(b"{", "500 X", length="")), "an answer longer than 1 MB"),
    "endless headers": (lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), NOT),
    "endless continue": (lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "no answer within"),
    "dripping": (lambda: drip(http(b'{"predictions": [', length="")), "no answer within"),
    "dripping error": (lambda: drip(http(b"{", "500 X", length="")), "no answer within"),
    "silent": (lambda: iter(time.sleep(3) or [b""]), "no answer within"),
}


def given(answer):
    return answer() if callable(answer) else answer


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_to_a_request(name, capfd):
    answer, message = ANSWERS[name]
    with server(lambda target: given(answer)) as url:
        asked = client.connect(
            url,
            Target("m", timeout=0.5 if message == "no answer within" else 20, largest=1 if "endless" in name else 20),
        )
        begin = time.monotonic()
        with pytest.raises((ValueError, OSError), match=message) as caught:
            asked.run({"text": np.array(TEXTS, object)})
    assert time.monotonic() - begin < 30
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


METADATA = {
    "list": http(b"[]"),
    "list within": http(b'{"metadata": []}'),
    "null within": http(b'{"metadata": {"signature_def": null}}'),
    "signatures as a list": http(b'{"metadata": {"signature_def": {"signature_def": ["serving_default"]}}}'),
    "no inputs": http(b'{"metadata": {"signature_def": {"signature_def": {"serving_default": {}}}}}'),
    "inputs as text": http(
        b'{"metadata": {"signature_def": {"signature_def": {"serving_default": {"inputs": "text"}}}}}'
    ),
    "html": http(b"<html>Sign in"),
    "deep": http(b'{"metadata": ' * 50_000),
    "cut": http(b"{", length=50),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata(name, capsys):
    with server(lambda target: METADATA[name]) as url:
        assert main(["client", "--url", url, "--model", "m", "text"]) == 1
    printed = capsys.readouterr()
    assert f"{NOT}: " in printed.err and printed.out == "" and printed.err.count("\n") == 1


def test_names_of_signatures_are_escaped(capsys):
    signatures = {"metadata": {"signature_def": {"signature_def": {ESCAPES * 40: {"inputs": {"text": {}}}}}}}
    with server(lambda target: http(json.dumps(signatures).encode())) as url:
        assert main(["client", "--url", url, "--model", "m", "text"]) == 1
    err = capsys.readouterr().err
    assert "it has \\x1b]0;pwned\\x07" in err and err.strip().isprintable() and len(err) < 500


def test_outputs_with_escapes_are_json(capsys):
    with server(lambda target: predictions({ESCAPES: ESCAPES}) if "predict" in target else http(b"", "404 X")) as url:
        assert main(["client", "--url", url, "--model", "m", "text"]) == 0
    out = capsys.readouterr().out
    assert out.strip().isprintable() and json.loads(out) == {ESCAPES: ESCAPES}


# ---------------------------------------------------------------------------------------------------- with a bundle

TAGGED = {"words": ["one"], "starts": [0], "ends": [3], "labels": ["O"], "scores": [0.5]}
ANSWERED = {"answer": "on", "start": 0, "end": 2, "score": 1.5, "null_score": -1.0}
ROWS = {
    "classify": {
        "no probabilities": {"label": "yes", "score": 0.7},
        "three of two labels": {"probabilities": [0.1, 0.2, 0.7]},
        "one of two labels": {"probabilities": [1.0]},
        "a number": {"probabilities": 0.5},
        "a table": {"probabilities": [[0.5, 0.5]]},
        "texts": {"probabilities": ["0.5", "0.5"]},
        "above one": {"probabilities": [5.0, 0.5]},
        "below zero": {"probabilities": [-0.5, 1.5]},
        "another model's": {"value": 0.5},
    },
    "regress": {"a list": {"value": [1.0, 2.0]}, "a text": {"value": "one"}, "missing": {"score": 1.0}},
    "embed": {
        "a number": {"pooled": 1.0},
        "a table": {"pooled": [[1.0]]},
        "texts": {"pooled": ["a"]},
        "none": {"x": 1},
    },
    "tag": {
        "a label of none": TAGGED | {"labels": ["B-\x1b[2J"]},
        "fewer labels": TAGGED | {"labels": []},
        "behind the text": TAGGED | {"ends": [99]},
        "backwards": TAGGED | {"starts": [2], "ends": [1]},
        "before the text": TAGGED | {"starts": [-2]},
        "offsets as texts": TAGGED | {"starts": ["a"]},
        "labels as numbers": TAGGED | {"labels": [1]},
        "not lists": dict.fromkeys(TAGGED, 1),
        "no words": {name: value for name, value in TAGGED.items() if name != "words"},
    },
    "answer": {
        "no start": {name: value for name, value in ANSWERED.items() if name != "start"},
        "behind the context": ANSWERED | {"end": 1000},
        "a number": ANSWERED | {"answer": 5},
        "a list": ANSWERED | {"answer": ["on"]},
        "start as a list": ANSWERED | {"start": [0]},
    },
}


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, rows in ROWS.items() for name in rows])
def test_answers_that_do_not_fit_the_bundle(task, name):
    bundle = tiny.bundle(task, pair=task == "answer")
    with server(lambda target: predictions(ROWS[task][name])) as url:
        asked = client.load(url, Target("m"), bundle)
        with pytest.raises(ValueError, match=f"{NOT}: .*is --bundle that of this model") as caught:
            asked(["one"], ["on"] if task == "answer" else None)
    assert str(caught.value).isprintable()
    assert not re.search("object|convert|argument|index|integer", str(caught.value))


@pytest.mark.parametrize(("task", "row"), [("tag", TAGGED), ("answer", ANSWERED), ("regress", {"value": 2})])
def test_answers_that_fit_the_bundle(task, row):
    bundle = tiny.bundle(task, pair=task == "answer")
    with server(lambda target: predictions(row)) as url:
        (answer,) = client.load(url, Target("m"), bundle)(["one"], ["on"] if task == "answer" else None)
    assert "error" not in answer


@pytest.mark.parametrize("version", [None, 2])
def test_the_folder_of_a_model_with_its_versions(tmp_path, version, capsys):
    """As in `compare`, `predict` and `export --check`."""
    for number in (2, 9, 10):
        extra = tmp_path / "stars" / str(number) / "assets.extra"
        extra.mkdir(parents=True)
        bundles.save(tiny.bundle("classify", labels=("no", f"yes {number}")), extra)
    with server(lambda target: predictions({"probabilities": [0.25, 0.75]})) as url:
        argv = ["client", "--url", url, "--model", "m", "--bundle", str(tmp_path / "stars"), "one"]
        assert main(argv + (["--version", str(version)] if version else [])) == 0
    assert json.loads(capsys.readouterr().out)["label"] == f"yes {version or 10}"
    assert client.bundle_of(tmp_path / "stars" / "9").labels == ("no", "yes 9")


# ------------------------------------------------------------------------------------------------------------- gRPC


def tensor(values, kind=1, shape=None, content=b""):
    made = messages._CLASSES["Tensor"](dtype=kind, tensor_content=content)
    getattr(made, messages._TYPES.get(kind, messages._TYPES[1])[2]).extend(values)
    for size in [len(values)] if shape is None else shape:
        made.tensor_shape.dim.add(size=size)
    return made


def response(**outputs):
    made = messages.PredictResponse()
    for name, value in outputs.items():
        made.outputs[name].CopyFrom(value)
    return made.SerializeToString()


METADATA_BYTES = messages.MetadataResponse()
METADATA_BYTES.metadata["signature_def"].value = b"\xff\xff garbled"
MESSAGES = {
    "empty": (b"", NOT),
    "garbled": (b"\xff" * 50, NOT),
    "fewer rows": (response(x=tensor([1.0, 2.0])), f"{NOT}: .*outputs of 3 texts"),
    "more rows": (response(x=tensor([1.0] * 5)), f"{NOT}: .*outputs of 3 texts"),
    "a scalar": (response(x=tensor([1.0], shape=[])), f"{NOT}: .*outputs of 3 texts"),
    "nan": (response(x=tensor([1.0, float("nan"), 2.0])), f"{NOT}: .*not finite"),
    "infinity": (response(x=tensor([1.0, float("inf"), 2.0])), f"{NOT}: .*not finite"),
    "no values": (response(x=tensor([], shape=[3])), NOT),
    "too many values": (response(x=tensor([1.0] * 7, shape=[3, 2])), NOT),
    "below zero": (response(x=tensor([1.0] * 6, shape=[-3, -2])), NOT),
    "of another type": (response(x=tensor([1.0] * 3, kind=22)), f"{NOT}: .*TensorFlow's type 22"),
    "strings as bytes": (response(x=tensor([], 7, [3], b"abc")), NOT),
    "bytes of another length": (response(x=tensor([], 1, [3], struct.pack("ff", 1, 2))), NOT),
    "a bomb": (response(x=tensor([1.0], shape=[3, 1 << 40])), NOT),
    "too long": (response(x=tensor([1.0] * 300_000)), "an answer longer than 1 MB: send fewer texts"),
    "slow": (None, "no answer within"),
}


@pytest.fixture(scope="module")
def grpc_server():
    """(address, what it answers: name -> bytes)."""
    grpc = pytest.importorskip("grpc")
    answers = {}

    def answer(request, context):
        if answers["content"] is None:
            time.sleep(1)
        if isinstance(answers["content"], str):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, answers["content"])
        return answers["content"] or b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            return grpc.unary_unary_rpc_method_handler(answer)

    running = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Handler(),))
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield f"grpc://127.0.0.1:{port}", answers
    running.stop(None).wait()


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_grpc(name, grpc_server):
    url, answers = grpc_server
    answers["content"], message = MESSAGES[name]
    asked = client.connect(url, Target("m", timeout=0.3 if name == "slow" else 10, largest=1))
    with pytest.raises((ValueError, TimeoutError), match=message) as caught:
        asked.run({"text": np.array(TEXTS, object)})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize("content", [b"\xff" * 20, METADATA_BYTES.SerializeToString()])
def test_metadata_of_grpc(content, grpc_server):
    url, answers = grpc_server
    answers["content"] = content
    with pytest.raises(ValueError, match=NOT):
        client.connect(url, Target("m")).inputs()


def test_errors_of_grpc_are_escaped(grpc_server):
    url, answers = grpc_server
    answers["content"] = ESCAPES * 90
    with pytest.raises(ValueError, match=r"INVALID_ARGUMENT: \\x1b\]0;pwned") as caught:
        client.connect(url, Target("m")).run({"text": np.array(TEXTS, object)})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_the_largest_answer_is_an_option(capsys):
    with server(lambda target: predictions("x" * 5000) if "predict" in target else http(b"", "404 X")) as url:
        argv = ["client", "--url", url, "--model", "m", "text"]
        assert main(argv) == 0 and len(capsys.readouterr().out) > 5000
        assert main([*argv, "--max-answer", "0.001"]) == 1
    assert "an answer longer than 0.001 MB: send fewer texts at once" in capsys.readouterr().err
