"""`ctxrep try`: its answers are those of the models; its requests, its page in a browser, and its terminal session."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.commands.trying import HELP, Session
from keras_ctxrep.plots import attention
from keras_ctxrep.recipes import trying
from keras_ctxrep.recipes.serving import listening
from keras_ctxrep.recipes.trying import FIELDS, MODELS, Models
from tests import server_thread, tiny

pytest.importorskip("uvicorn", reason="Uvicorn is missing: pip install '.[serve]'")
from keras_ctxrep.recipes.serving import server_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SENTENCES = ["the cat fell", "she fell . the cat", "rain the cat rain", "a b cat c"]
CONTEXT = "😀 The cat fell. She rain: a b c d."
REQUESTS = {
    "fill": {"text": "the [MASK] fell [MASK]"},
    "names": {"text": "😀 The cat, she fell."},
    "sentiment": {"text": "the rain"},
    "nearest": {"text": "the rain", "sentences": SENTENCES},
    "senses": {"word": "cat", "sentences": SENTENCES},
    "answers": {"question": "she fell", "context": CONTEXT},
    "attention": {"text": "The cat fell"},
}


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory):
    """Name of `MODELS` -> a model folder, of large random weights."""
    root = tmp_path_factory.mktemp("trying")
    fields = {"tag": {"labels": ("B-PER", "O", "I-PER")}, "embed": {"sizes": {"layers": 2}}}
    for task in ("tag", "classify", "answer", "embed"):
        saving.save(root / task, *tiny_model(task, **fields.get(task, {})))
    bundle = replace(tiny.bundle("embed"), task="pretrainer")
    saving.save(root / "mlm", tiny.filled(saving.build(bundle), np.random.default_rng(0), 1.0), bundle)
    kinds = ("mlm", "tag", "classify", "embed", "embed", "answer", "embed")
    return {name: str(root / kind) for name, kind in zip(MODELS, kinds, strict=True)}


@pytest.fixture(scope="module")
def models(folders):
    return Models(folders)


def running(app):
    return server_thread.running(server_of(app))


def send(url, body=None, **headers):
    """Status and content of an answer."""
    body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as response:
            status, content = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read().decode()
    return status, content if content.startswith("<") else json.loads(content)


def test_masks_names_sentiment_and_answers(folders, models):
    answers = {name: models.answer(name, REQUESTS[name]) for name in ("fill", "names", "sentiment", "answers")}
    (masks,) = ctx.load(folders["fill"]).fill([REQUESTS["fill"]["text"]])
    assert answers["fill"]["masks"] == [[each._asdict() for each in pieces] for pieces in masks] and len(masks) == 2
    text = REQUESTS["names"]["text"]
    expected = ctx.load(folders["names"]).predict(text)
    assert answers["names"] == {"entities": expected["entities"]} and expected["entities"]
    assert all(text[each["start"] : each["end"]] == each["text"] for each in expected["entities"])
    expected = ctx.load(folders["sentiment"]).predict("the rain")
    probabilities = {each["label"]: each["probability"] for each in answers["sentiment"]["probabilities"]}
    assert probabilities == expected["probabilities"] and answers["sentiment"]["label"] == expected["label"]
    assert [*probabilities.values()] == sorted(probabilities.values(), reverse=True)
    expected, answer = ctx.load(folders["answers"]).predict("she fell", CONTEXT), answers["answers"]
    assert answer["answer"] == expected["answer"] == CONTEXT[answer["start"] : answer["end"]] != ""
    assert answer["score"] == expected["score"] - expected["null_score"]
    assert 0 < len(answer["others"]) <= trying.TOP and answer["start"] not in [o["start"] for o in answer["others"]]


def test_a_text_that_is_cut(models):
    """The model reads 40 pieces."""
    text = "the cat " * 30
    assert all(models.answer(name, {"text": text})["truncated"] is True for name in ("names", "sentiment"))
    assert all("longer than the model reads" in line for line in Session(models, pytest.fail).lines(text))


def test_nearest_sentences(folders, models):
    nearest = models.answer("nearest", REQUESTS["nearest"])["nearest"]
    query, *vectors = ctx.load(folders["nearest"]).encode(["the rain", *SENTENCES])
    expected = [query @ each / np.linalg.norm(query) / np.linalg.norm(each) for each in vectors]
    assert [each["number"] for each in nearest] == np.argsort(expected)[::-1].tolist()
    for each in nearest:
        assert each["cosine"] == pytest.approx(expected[each["number"]], abs=1e-5)


def test_senses_of_a_word(folders, models):
    """Distances of the points are those of the vectors in the plane of most variance; nearest is in all axes."""
    answer = models.answer("senses", REQUESTS["senses"])
    read = ctx.load(folders["senses"]).words(SENTENCES)
    vectors = np.array([each.vectors[-1, each.words.index("cat")] for each in read], np.float64)
    for point, sentence in zip(answer["points"], SENTENCES, strict=True):
        assert sentence[point["start"] : point["end"]] == "cat"
    values, axes = np.linalg.eigh(np.cov(vectors.T))
    flat = (vectors - vectors.mean(0)) @ axes[:, :-3:-1]
    drawn = np.array([[point["x"], point["y"]] for point in answer["points"]])
    np.testing.assert_allclose(np.abs(drawn), np.abs(flat), atol=1e-4)
    np.testing.assert_allclose(answer["variance"], values[:-3:-1] / values.sum(), atol=1e-4)
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    for number, point in enumerate(answer["points"]):
        others = np.delete(np.arange(4), number)
        assert point["nearest"] == others[cosines[number, others].argmax()]
        assert point["cosine"] == pytest.approx(cosines[number, point["nearest"]])
    assert len(answer["pairs"]) == 6
    assert [pair["cosine"] for pair in answer["pairs"]] == pytest.approx(sorted(cosines[np.triu_indices(4, 1)])[::-1])
    assert all(pair["cosine"] == pytest.approx(cosines[pair["a"], pair["b"]]) for pair in answer["pairs"])


def test_attention(folders, models, tmp_path):
    """In its second request too, by the encoder of the first."""
    expected = attention.attention(folders["attention"], "The cat fell", tmp_path / "a.html")
    for answer in (models.answer("attention", {"text": text}) for text in ("rain", "The cat fell")):
        weights = np.frombuffer(base64.b64decode(answer["weights"]), "<u2").reshape(answer["shape"]) / 65535
        assert answer["shape"] == [2, 2, *[len(answer["pieces"])] * 2]
    assert answer["pieces"] == expected["pieces"]
    np.testing.assert_allclose(weights, expected["attention"], atol=1e-5)


def test_a_model_is_loaded_when_it_is_first_asked_and_once(folders):
    lines = []
    models = Models(folders, lines.append)
    assert not lines and not models.loaded("nearest")
    for name in ("nearest", "senses", "nearest", "sentiment"):
        models.answer(name, REQUESTS[name])
    assert lines == [f"loading {folders[name]}" for name in ("nearest", "sentiment")]
    assert [name for name in MODELS if models.loaded(name)] == ["sentiment", "nearest", "senses", "attention"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fill", {"text": "the cat"}, "no [MASK] in it"),
        ("names", {"text": " "}, '"text" is empty'),
        ("names", {"text": 3}, '"text" is empty'),
        ("names", {"more": "a"}, '"more": a request for names has text'),
        ("sentiment", {"text": "\u200b\x00"}, "no words in this text"),
        ("nearest", {"sentences": "a"}, '"sentences" is a list of texts'),
        ("nearest", {"sentences": []}, '"sentences" is a list of texts'),
        ("nearest", {"sentences": ["a", ""]}, '"sentences" is a list of texts'),
        ("nearest", {"sentences": ["a"] * 201}, '"sentences" has 201; at most 200'),
        ("senses", {"sentences": SENTENCES[:2]}, "at least three sentences"),
        ("senses", {"word": "rain"}, "sentence 1: the word 'rain' does not occur in 'the cat fell'"),
        ("senses", {"word": "the cat"}, "choose one of them"),
        ("answers", {"question": None}, '"question" is empty'),
        ("attention", {"text": "cat " * 50}, "longer than the 40 pieces"),
    ],
)
def test_requests_that_are_refused(name, changes, message, models):
    with pytest.raises(ValueError, match=re.escape(message)):
        models.answer(name, REQUESTS[name] | changes)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        (
            "names",
            "classify",
            "a model of the task classify does not answer this: there is no 'entities' in its answers",
        ),
        ("sentiment", "embed", "there is no 'probabilities' in its answers"),
        ("answers", "tag", "this model reads one text at a time"),
        ("fill", "embed", "no masked language model"),
    ],
)
def test_a_model_of_another_task(name, model, message, folders):
    models = Models(folders | {name: str(Path(folders[name]).with_name(model))})
    with pytest.raises(ValueError, match=message):
        models.answer(name, REQUESTS[name])


def test_a_missing_model_is_one_sentence_and_the_others_answer(folders, tmp_path):
    models = Models({**folders, "names": tmp_path / "gone", "attention": "no_such_name"})
    with running(trying.application(models)) as url:
        status, answer = send(f"{url}/v1/try/names", REQUESTS["names"])
        start, end = f"{tmp_path / 'gone'} cannot be loaded: ", "; give another: --models names=MODEL"
        assert status == 404 and answer["error"].startswith(start) and answer["error"].endswith(end)
        status, answer = send(f"{url}/v1/try/attention", REQUESTS["attention"])
        assert status == 404 and answer["error"].startswith("no_such_name cannot be loaded: no such folder")
        assert send(f"{url}/v1/try/sentiment", REQUESTS["sentiment"])[0] == 200


def test_the_protocol(models, capfd):
    with running(trying.application(models, ["127.0.0.1"])) as url:
        for name, request in REQUESTS.items():
            assert send(f"{url}/v1/try/{name}", request) == (200, json.loads(json.dumps(models.answer(name, request))))
        assert send(f"{url}/healthz") == (200, {"status": "ok"})
        for path in ("/v1/try", "/v1/try/", "/v1/try/_model", "/v1/try/fill/more", "/v1/models/m:predict", "/other"):
            assert send(url + path, {})[0] == 404 and send(url + path)[0] == 404
        assert send(f"{url}/v1/try/fill")[0] == 404
        for body in (b"", b"{", b"[]", b'{"text": "\\ud800"}', b'{"text": {}}', b'{"text": "a", "\\ud800": 1}'):
            status, answer = send(f"{url}/v1/try/fill", body)
            assert status == 400 and answer["error"].isprintable()
        assert send(f"{url}/v1/try/sentiment", {"text": "\ud800 rain"})[0] == 200
        assert send(f"{url}/v1/try/fill", {"text": "[MASK] " * 200_000})[0] == 413
        status, answer = send(f"{url}/", Host="rebound.example")
        assert status == 403 and "--host" in answer["error"]
    assert capfd.readouterr().err == ""


def test_the_page_is_one_file(models):
    with running(trying.application(models)) as url:
        status, page = send(url)
    assert status == 200 and "default-src 'none'" in page and page.count("<script>") == page.count("</script>") == 1
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|src=|@import|url\(", page)
    of_page = json.loads(re.search(r"const models = (.*);", page)[1])
    assert {name: entry["model"] for name, entry in of_page.items()} == models.models
    asked = re.findall(r'^  \["(\w+)", "[^"]+", "[^"]+", \[(.*)\],$', page, re.MULTILINE)
    assert {name: tuple(re.findall(r'\["(\w+)"', fields)) for name, fields in asked} == {**FIELDS}


# ---------------------------------------------------------------------------------------------------------- terminal


def typed(folders, lines, monkeypatch, capsys, *argv):
    """What the session prints for some lines of standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    capsys.readouterr()
    given = [f"{name}={folder}" for name, folder in folders.items()]
    status = main.main(["try", "--terminal", *argv, "--models", *given])
    printed = capsys.readouterr()
    return status, printed.out.splitlines(), printed.err.splitlines()


def test_a_session(folders, models, monkeypatch, capsys):
    lines = ["The cat fell.", "She rain: a b c d.", "? she fell", "? the cat", "", "the [MASK] fell", "~ the rain"]
    status, out, err = typed(folders, [*lines, "help"], monkeypatch, capsys)
    answers = {}
    for line in out:
        if line.startswith("# "):
            answers[line[2:]] = []
        else:
            answers[[*answers][-1]].append(line)
    assert status == 0 and [*answers] == [line for line in [*lines, "help"] if line]
    names, sentiment = answers["The cat fell."]
    entities = models.answer("names", {"text": "The cat fell."})["entities"]
    assert names.startswith("names      ") and entities
    assert all(f"[{each['text']} {each['type']}]" in names for each in entities)
    assert re.sub(r"\[(.*?) PER\]", r"\1", names.removeprefix("names      ")) == "The cat fell."
    best = models.answer("sentiment", {"text": "The cat fell."})["probabilities"][0]
    assert sentiment.startswith(f"sentiment  {best['label']} {best['probability']:.1%}  ")
    for question in ("she fell", "the cat"):
        asked = {"question": question, "context": "The cat fell.\nShe rain: a b c d."}
        answer = models.answer("answers", asked)
        assert answers[f"? {question}"] == [f"{answer['answer']}  (score {answer['score']:.2f})"]
    assert [line.split()[1] for line in answers["the [MASK] fell"]] == [
        each["piece"] for each in models.answer("fill", {"text": "the [MASK] fell"})["masks"][0]
    ]
    sentences = ["The cat fell.", "She rain: a b c d."]
    nearest = models.answer("nearest", {"text": "the rain", "sentences": sentences})["nearest"]
    assert answers["~ the rain"] == [f"{each['cosine']:6.3f}  {sentences[each['number']]}" for each in nearest]
    assert answers["help"] == HELP.splitlines()
    assert [line for line in err if "loading" not in line] == []


def test_a_question_is_of_the_last_text(models):
    reports = []
    session = Session(models, reports.append)
    for line in ("the cat", "? she", "she fell.", "the rain", "help", "? she"):
        [*session.lines(line)]
    assert session.text == ["she fell.", "the rain"] and [*session.texts] == ["the cat", "she fell.", "the rain"]
    [*session.lines("rain")]
    assert session.text == ["rain"] and not reports


def test_a_session_goes_on_after_what_is_refused(folders, tmp_path, monkeypatch, capsys):
    """A model that is missing is reported once for texts, and whenever it is asked for."""
    folders = folders | {"names": str(tmp_path / "gone"), "fill": str(tmp_path / "gone")}
    lines = ["? she", "~ she", "?", "the cat", "the rain", "a [MASK]", "a [MASK] b", "~", "~ the cat"]
    status, out, err = typed(folders, lines, monkeypatch, capsys)
    shown = [line.partition(":")[0] for line in out if not line.startswith("#")]
    assert status == 0 and len(shown) == 4 and shown[0].startswith("sentiment") and "1.000  the cat" in out[-2]
    errors = [line.removeprefix("ctxrep: ") for line in err if "loading" not in line]
    assert errors[:3] == [
        "no text to answer from; give one before the question",
        "no lines to compare with; give some before",
        "no text to answer from; give one before the question",
    ]
    gone = f"{tmp_path / 'gone'} cannot be loaded: "
    assert [error.startswith(gone) for error in errors[3:]] == [True, True, True, False] and len(errors) == 7
    assert errors[6] == '"text" is empty'


def test_colours_and_escapes(models):
    """What a text has of the terminal's own escapes is not printed."""
    text = "\x1b[31mThe cat, she fell."
    names, _ = Session(models, pytest.fail, coloured=True).lines(text)
    assert names.count("\x1b[1;34m") == names.count("\x1b[34mPER\x1b[0m") > 0 and "\x1b[31m" not in names
    plain, _ = Session(models, pytest.fail).lines(text)
    assert "\x1b" not in plain


def test_wrong_usage(capsys):
    for argv, message in [
        (["--models", "x=y"], "--models x: choose fill, names, sentiment, nearest, senses, answers, attention"),
        (["--models", "fill"], "fill: write NAME="),
        (["--port", "web"], "web: a whole number from 0 to 65535"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main.main(["try", *argv])
        assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_port_that_is_taken(capsys):
    with listening("127.0.0.1", 0) as taken:
        assert main.main(["try", "--port", str(taken.getsockname()[1])]) == 1
    assert "another program has this port" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- browser

WATCHING = """<script>
const post = (content) => fetch("/v1/try/done", {method: "POST", body: JSON.stringify(content)});
addEventListener("error", (event) => post({wrong: event.message}));
const watch = setInterval(() => {
  const outputs = Object.entries(forms).map(([name, {output}]) => [name, output]);
  if (!outputs.every(([, output]) => output.ariaBusy === "false")) return;
  clearInterval(watch);
  const seen = Object.fromEntries(outputs.map(([name, output]) => [name, output.innerText]));
  const marks = [...document.querySelectorAll("#names mark, #answers mark")].map((mark) => mark.firstChild.data);
  const parts = ["#senses circle", "#senses li", "#attention line"];
  const counts = parts.map((each) => document.querySelectorAll(each).length);
  const wide = document.documentElement.scrollWidth > innerWidth;
  post({seen, marks, counts, wide});
}, 50);
</script></body>"""


@contextmanager
def browsed(app, profile, width):
    """What the page of an application posts, in a browser of this width."""
    described, answering, posted, done = app.described, app.answering, {}, threading.Event()

    def keep(body):
        posted.update(json.loads(body))
        done.set()
        return {}

    def page(path):
        status, content = described(path)
        return status, content.replace(b"</body>", WATCHING.encode()) if path == "/" else content

    app.described = page
    app.answering = lambda method, path: keep if path == "/v1/try/done" else answering(method, path)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(running(app))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        log = stack.enter_context(open(profile.with_suffix(".log"), "w"))
        command = [CHROMIUM, *flags, f"--window-size={width},6000", url]
        browser = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            assert done.wait(100), Path(log.name).read_text()[-2000:]
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
        yield posted


@pytest.mark.trains
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1300, 500])
def test_every_panel_shows_its_example(width, folders, tmp_path, monkeypatch):
    """With one model that is missing."""
    asked, models = {}, Models({**folders, "sentiment": tmp_path / "gone"})
    answer = models.answer
    monkeypatch.setattr(models, "answer", lambda name, request: answer(name, asked.setdefault(name, request)))
    with browsed(trying.application(models), tmp_path / "profile", width) as posted:
        assert "wrong" not in posted, posted
        seen = posted["seen"]
    assert {name: {*request} for name, request in asked.items()} == {name: {*FIELDS[name]} for name in MODELS}
    assert re.fullmatch(r".*gone cannot be loaded: .*--models sentiment=MODEL", seen["sentiment"].strip())
    assert seen["fill"].count("%") == 5 and len(re.findall(r"\d\.\d{3}", seen["nearest"])) == 8
    circles, lines, weights = posted["counts"]
    assert circles == lines == 8 and weights > 10 and "Nearest pairs" in seen["senses"]
    assert "above no answer" in seen["answers"] and "mean of the heads" in seen["attention"]
    entities = [each["text"] for each in answer("names", asked["names"])["entities"]]
    assert posted["marks"] == [*entities, answer("answers", asked["answers"])["answer"]] and not posted["wide"]
