"""The server on a bad day: odd requests, slow clients and those that leave, other hosts, models that are loading."""

import base64
import json
import random
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from keras_ctxrep.inference.server import Limits, Served, Versions

pytest.importorskip("uvicorn", reason="Uvicorn is missing: pip install '.[serve]'")
from keras_ctxrep.recipes.serving import http_server

STRINGS = {"dtype": "string", "shape": [-1]}
SIGNATURES = {
    "serving_default": {"inputs": {"text": STRINGS}, "outputs": {"label": STRINGS}},
    "ids": {"inputs": {"ids": {"dtype": "int32", "shape": [-1, -1]}}, "outputs": {"sum": STRINGS}},
    "classify": {"inputs": {"inputs": STRINGS}, "outputs": {"classes": STRINGS, "scores": STRINGS}},
}
PREDICT = "/v1/models/m:predict"
GOOD = {"instances": [{"text": "a"}]}


def run(signature, inputs):
    if signature == "ids":
        return {"sum": inputs["ids"].sum(1)}
    if signature == "classify":
        return {"classes": np.array([[b"no"]] * len(inputs["inputs"]), object), "scores": np.ones((1, 1))}
    return {"label": inputs["text"]}


def served(run=run, version=1):
    return Served("m", version, SIGNATURES, run)


@contextmanager
def running(model, limits=None, hosts=None):
    """The port of a server in a thread."""
    server, listener = http_server(model, limits, hosts), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def connect(port, sent=b""):
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(sent)
    return client


def request(path=PREDICT, body=b"", method="POST", host="localhost", **headers):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    headers = {"Content-Length": len(body)} | {name.replace("_", "-"): value for name, value in headers.items()}
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body


def received(client):
    """Status, headers and body of an answer, which ends with the connection."""
    data = b""
    with client:
        while part := client.recv(1 << 16):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


def asked(port, sent=None):
    status, headers, body = received(connect(port, request(body=json.dumps(GOOD).encode()) if sent is None else sent))
    return status, headers, json.loads(body)


def odd_bodies():
    """Requests with something odd in each place, and pieces of JSON put together at random."""
    odd = ["\ud800", "", None, True, -1, 2**63, 10**400, 1.5, [], {}, [[]], [["a"]], {"b64": "?"}, {"b64": "\ud800"}]
    odd += [{"b64": base64.b64encode(b"\xff\x00").decode()}, "\x00", "\ud83d\ude00" * 3, {"\ud800": "\ud800"}]
    bodies = [b"", b"{", b"\xff\xfe", b"null", b"[" * 100_000, b'{"a":' * 50_000, b'{"instances": [1e999]}']
    bodies += [b'{"instances": ["a"], "instances": ["b"]}', b'{"instances": [NaN]}', b"1" * 5000, b'"\\ud800"']
    for value in odd:
        bodies += [
            value,
            {"instances": value},
            {"instances": [value]},
            {"instances": [value, "a"]},
            {"instances": [{"text": value}]},
            {"instances": [{"text": "a"}, {"text": value}]},
            {"instances": [{str(value): "a"}]},
            {"inputs": value},
            {"inputs": {"text": value}},
            {"signature_name": value, "instances": ["a"]},
            {"signature_name": "ids", "instances": [value]},
            {"signature_name": "ids", "inputs": {"ids": [[1], value]}},
            {"examples": value},
            {"examples": [value]},
            {"examples": [{"text": value}], "context": value},
            {str(value): value},
        ]
    chooser = random.Random(0)
    words = ["instances", "inputs", "examples", "context", "text", "b64", "signature_name", "ids", "\ud800"]

    def made(depth):
        kind = chooser.randrange(4 if depth else 2)
        if kind == 0:
            return chooser.choice(odd)
        if kind == 1:
            return chooser.choice(words)
        parts = [made(depth - 1) for _ in range(chooser.randrange(4))]
        return parts if kind == 2 else {chooser.choice(words): part for part in parts}

    return bodies + [made(4) for _ in range(200)]


@pytest.mark.parametrize("verb", ["predict", "classify", "regress"])
def test_no_request_makes_an_error_of_the_server(verb, capfd):
    with running(served()) as port:
        for body in odd_bodies():
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            status, headers, answer = asked(port, request(f"/v1/models/m:{verb}", content))
            shown = ascii((content[:200], answer))
            assert status in (200, 400, 404), shown
            assert headers["content-type"] == "application/json"
            assert status == 200 or (answer.keys() == {"error"} and answer["error"].isprintable()), shown
            inside = ("Traceback", "unhashable", "recursion", "int_max_str_digits", "KeyError", "object at 0x", "codec")
            assert not any(part.lower() in str(answer).lower() for part in inside), shown
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/v1/models/m/labels/stable:predict", json.dumps(GOOD).encode()), 404),
        (request("/v1/models/m/labels/stable", method="GET"), 404),
        (request("/v1/models/m/versions/9:predict", json.dumps(GOOD).encode()), 404),
        (request("/v1/models/m/versions/" + "9" * 40, method="GET"), 404),
        (request("/v1/models/%00%ff:predict", json.dumps(GOOD).encode()), 404),
        (request("/v1/models/../m:predict", json.dumps(GOOD).encode()), 404),
        (request("/" + "a" * 5000, method="GET"), 404),
        (request(method="DELETE"), 404),
        (request(method="PUT", body=b"{}"), 404),
        (request("/healthz", method="GET"), 200),
        (request("/readyz", method="GET"), 200),
    ],
)
def test_paths_and_methods(sent, status):
    with running(served()) as port:
        assert asked(port, sent)[0] == status


def test_what_is_no_http_is_answered_and_not_told(caplog):
    with running(served()) as port:
        assert received(connect(port, b"SSH-2.0\r\n\r\n"))[0] == 400
        assert asked(port)[0] == 200
    assert caplog.text == ""


def test_answers_that_json_has_no_number_for_are_errors():
    with running(served(lambda signature, inputs: {"score": np.array([np.nan])})) as port:
        status, _, answer = asked(port)
    assert (
        status == 400 and answer["error"] == "score: of these inputs the model makes nan, which JSON has no number for"
    )


def test_an_error_of_the_model_names_nothing_inside(caplog):
    def fails(signature, inputs):
        raise KeyError("qas")

    with running(served(fails)) as port:
        status, _, answer = asked(port)
    assert status == 500 and answer["error"] == "an error of the server, which has printed it"
    assert "KeyError" in caplog.text  # for who runs the server


# ------------------------------------------------------------------------------------------------------------ bodies


def test_a_body_that_is_too_long_is_refused_before_it_is_sent():
    with running(served(), Limits(body=1000)) as port:
        status, _, answer = asked(port, request(body=b"", Content_Length=10**12))
        assert status == 413 and "more than" in answer["error"]
        status, _, _ = asked(port, request("/v1/models/other:predict", Content_Length=10**12))
        assert status == 404
        chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
        head = request(Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
        assert asked(port, head + chunk)[0] == 413  # the client would go on
        assert asked(port)[0] == 200


def test_a_body_is_read_in_time_that_grows_with_its_length():
    """16 MB in pieces of 64 KB; the processor's time, since a sum of copies would take a hundred times as long."""
    body = json.dumps({"instances": ["a " * (8 << 20)]}).encode()
    with running(served(lambda signature, inputs: {"label": np.array([b"x"], object)})) as port:
        begin = time.process_time()
        assert asked(port, request(body=body))[0] == 200
        assert time.process_time() - begin < 10


def test_bodies_that_wait_are_bounded():
    with running(served(), Limits(bodies=1000)) as port:
        status, headers, answer = asked(port, request(body=b" " * 2000))
        assert status == 503 and headers["retry-after"] == "1" and "too much memory" in answer["error"]
        assert asked(port)[0] == 200


# ----------------------------------------------------------------------------------------------------- slow and gone


def test_slow_connections_are_closed():
    with running(served(), Limits(header_seconds=0.3, body_seconds=0.3)) as port:
        silent = [
            connect(port, sent) for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n") for _ in range(20)
        ]
        for client in silent:
            with client:
                assert client.recv(100) == b""
        slow = connect(port, request(body=b"{", Content_Length=100))
        status, _, body = received(slow)
        assert status == 408 and b"was not there in 0.3 seconds" in body
        assert asked(port)[0] == 200


def test_work_of_clients_that_left_is_not_done(capfd):
    begun, go_on, texts = threading.Event(), threading.Event(), []

    def slow(signature, inputs):
        texts.append(inputs["text"][0])
        begun.set()
        assert go_on.wait(20)
        return {"label": inputs["text"]}

    def sent(text):
        return request(body=json.dumps({"instances": [text]}).encode())

    with running(served(slow)) as port:
        first = connect(port, sent("first"))
        assert begun.wait(20)
        for number in range(5):
            connect(port, sent(f"left {number}")).close()
        connect(port, request(body=b"{", Content_Length=100)).close()  # in the middle of its body
        last = connect(port, sent("last"))
        time.sleep(0.5)  # until the server has read all
        go_on.set()
        assert received(first)[0] == received(last)[0] == 200
    assert texts == [b"first", b"last"]
    assert capfd.readouterr().err == ""


def test_more_than_may_wait_are_told_to_come_back():
    begun, go_on = threading.Event(), threading.Event()

    def slow(signature, inputs):
        begun.set()
        assert go_on.wait(20)
        return {"label": inputs["text"]}

    sent = request(body=json.dumps(GOOD).encode())
    with running(served(slow), Limits(waiting=1)) as port:
        first = connect(port, sent)
        assert begun.wait(20)
        status, headers, answer = asked(port)
        assert status == 503 and headers["retry-after"] == "1" and "too many requests" in answer["error"]
        go_on.set()
        assert received(first)[0] == 200


# ------------------------------------------------------------------------------------------------- hosts and versions


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:8501", 200), ("127.0.0.1", 200), ("evil.example", 403), ("evil.example:8501", 403)]
)
def test_names_of_other_hosts_are_refused(host, status):
    """A page of a browser whose name gets this machine's address cannot ask the model."""
    sent = request(body=json.dumps(GOOD).encode(), host=host)
    with running(served(), hosts=["localhost", "127.0.0.1"]) as port:
        answer = asked(port, sent)
        assert answer[0] == status and ("another name needs --host" in str(answer)) == (status == 403)
    with running(served()) as port:
        assert asked(port, sent)[0] == 200


def test_a_model_that_is_loading():
    versions = Versions("m")
    with running(versions) as port:
        loading, go_on = threading.Event(), threading.Event()

        def open_version():
            loading.set()
            assert go_on.wait(20)
            return served()

        thread = threading.Thread(target=versions.load, args=(1, open_version))
        thread.start()
        assert loading.wait(20)
        status, headers, answer = asked(port)
        assert status == 503 and headers["retry-after"] == "1" and "loading" in answer["error"]
        assert asked(port, request("/readyz", method="GET"))[0] == 503
        assert asked(port, request("/healthz", method="GET"))[0] == 200
        states = asked(port, request("/v1/models/m", method="GET"))[2]["model_version_status"]
        assert [(state["version"], state["state"]) for state in states] == [("1", "LOADING")]
        status, _, page = received(connect(port, request("/", method="GET")))
        assert status == 503 and b"m is loading" in page
        go_on.set()
        thread.join()
        assert asked(port)[0] == asked(port, request("/readyz", method="GET"))[0] == 200


def test_a_version_that_cannot_answer_does_not_replace_the_old_one():
    def fails(signature, inputs):
        raise ValueError("no kernel")

    versions = Versions("m")
    versions.load(1, served)
    with running(versions) as port:
        with pytest.raises(ValueError, match="no kernel"):
            versions.load(2, lambda: served(fails, 2))
        assert asked(port)[0] == 200
        states = asked(port, request("/v1/models/m", method="GET"))[2]["model_version_status"]
        assert [(state["version"], state["state"]) for state in states] == [("2", "END"), ("1", "AVAILABLE")]
        assert states[0]["status"]["error_message"] == "no kernel"
        versions.load(3, lambda: served(version=3))
        assert asked(port, request("/v1/models/m/versions/3:predict", json.dumps(GOOD).encode()))[0] == 200
        assert asked(port, request("/v1/models/m/versions/1:predict", json.dumps(GOOD).encode()))[0] == 404
