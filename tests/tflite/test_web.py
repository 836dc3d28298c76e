"""The runtime of the browser: golden strings in Node, and real models in Chromium."""

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pretraining import MARKERS
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep_tflite import page, quantize, runtime
from tests import golden, golden_text, tiny
from tests.reference import unicode_tables

LITERTJS = os.environ.get("CTXREP_LITERTJS")  # node_modules/@litertjs
needs_litertjs = pytest.mark.skipif(LITERTJS is None, reason="CTXREP_LITERTJS names no node_modules/@litertjs")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

TEXTS = ("She fell. Rain, rain – café!", "the cat 😀 fell 中 cat", "", "a b c d e f g h a b c d e f g h cat rain")
SENTENCES = [*(f"the cat {a} rain {b}." for a in "abcd" for b in ("fell", "she", "cab")), "中 cat", "RAIN fell!"]
CONTEXT = " ".join(["😀 the cat fell. She rain: a b c d."] * 6)


@pytest.mark.release  # asks for each of a million code points
def test_unicode_tables_are_those_of_tokenizers(tmp_path):
    """Made in a process of their own: they take half a gigabyte."""
    command = [sys.executable, "-m", unicode_tables.__name__, tmp_path / "unicode.json"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    made, file = (json.loads(path.read_text("ascii")) for path in (tmp_path / "unicode.json", unicode_tables.FILE))
    assert made.keys() == file.keys()
    assert [name for name in file if made[name] != file[name]] in ([], ["tokenizers"])


@pytest.mark.trains
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_golden_strings(golden_strings):
    counts = golden_counts(golden_strings)
    assert counts["cases"] > 12_000 and counts["vectors"] > 50 and counts["searches"] > 10


def golden_counts(folder):
    """What was compared in Node, with no difference."""
    command = ["node", str(Path(__file__).with_name("web_golden.mjs")), str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.trains
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_subwords(golden_subwords):
    """Pieces of texts, and models over them for every kind of input."""
    assert min(compared_subwords(golden_subwords)) > 560
    counts = golden_counts(golden_subwords / "models")
    assert counts["cases"] > 400 and counts["answers"] > 300 and counts["vectors"] > 50


def compared_subwords(folder):
    """How many texts were compared in Node by each tokenizer, with no difference."""
    command = ["node", str(Path(__file__).with_name("subword_golden.mjs")), str(folder / "pieces")]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    counts = re.findall(r"^\w+: (\d+) texts, 0 differences$", process.stdout, re.M)
    assert len(counts) == len(list((folder / "pieces").iterdir())) > 3, process.stdout + process.stderr
    return [*map(int, counts)]


@pytest.mark.trains
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_texts_for_texts(golden_translation):
    counts = golden_counts(golden_translation / "golden")
    assert counts["cases"] == 60 + len(golden.long_texts()) and counts["answers"] == 63


@pytest.mark.trains
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_texts_and_fillings(golden_generation):
    """One seed draws what it draws in Python, texts go on as there, and masks have the same words."""
    command = ["node", str(Path(__file__).with_name("web_generation.mjs")), str(golden_generation)]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stdout + process.stderr
    counts = json.loads(process.stdout.splitlines()[-1])
    assert counts["draws"] == 1200 and counts["texts"] > 400 and counts["masks"] > 400


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_texts_that_are_read_apart_are_refused():
    script = f"""
        import {{ featuresOf }} from {json.dumps((page.WEB / "features.js").as_uri())};
        featuresOf({{ family: "elmo", config: {{}}, stack: {{ kind: "bidaf" }} }}, [], null);
    """
    command = ["node", "--input-type=module", "--eval", script]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode and "the task network bidaf, which reads the texts of a pair apart" in process.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_one_of_several_models(tmp_path):
    """Its bundle, the vocabulary of all, a tokenizer and its signatures, of a file that a stub of LiteRT runs."""
    several = {"names": tiny.bundle("tag"), "films": tiny.bundle("classify", labels=("bad", "good"))}
    letters = golden_text.letters()
    several["roles"] = tiny.bundle("tag", "roberta", vocab=letters.pieces, tokenizer=letters.to_json())
    bundles.write_several(tmp_path / "answers.tflite", b"model", several)
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ load }} from {json.dumps((page.WEB / "ctxrep.js").as_uri())};
        globalThis.fetch = async (url) => new Response(readFileSync(url));
        const bytes = new Uint8Array(readFileSync({json.dumps(str(tmp_path / "answers.tflite"))}));
        const signature = (name) => ({{ getInputDetails: () => [], run: async () => {{ throw new Error(name); }} }});
        const names = ["names/length_16", "films/length_16", "roles/length_16"];
        const signatures = Object.fromEntries(names.map((name) => [name, signature(name)]));
        class Tensor {{ delete() {{}} }}
        const litert = {{ Tensor, getGlobalLiteRtPromise: () => true, loadAndCompile: async () => ({{ signatures }}) }};
        for (const model of ["names", "films", "roles", undefined]) {{
          try {{
            const made = await load(bytes, {{ litert, model }});
            console.log(made.bundle.task, made.bundle.labels.length);
            await made.predict("the cat");
          }} catch (error) {{ console.log(error.message); }}
        }}
    """
    command = ["node", "--input-type=module", "--eval", script]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
    expected = ["tag 3", "names/length_16", "classify 2", "films/length_16", "tag 3", "roles/length_16"]
    assert process.stdout.splitlines() == [*expected, "several models in this file: name one of names, films, roles"]


def of_predictor(folder, bundle, script):
    """What a script prints in Node, as JSON, that begins with the parts of a `Predictor`."""
    for name, data in bundle.files_as_bytes().items():
        (folder / name).write_bytes(data)
    (folder / "script.mjs").write_text(
        f"""
        import {{ readFileSync }} from "node:fs";
        import {{ Predictor }} from {json.dumps((page.WEB / "ctxrep.js").as_uri())};
        import {{ Unicode }} from {json.dumps((page.WEB / "text.js").as_uri())};
        const read = (path) => readFileSync(path, "utf-8");
        const unicode = new Unicode(JSON.parse(read({json.dumps(str(page.WEB / "unicode.json"))})));
        const vocab = read({json.dumps(str(folder / "vocab.txt"))}).trimEnd().split("\\n");
        const bundle = JSON.parse(read({json.dumps(str(folder / "bundle.json"))}));
        {script}
        """
    )
    process = subprocess.run(["node", folder / "script.mjs"], capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_a_page_reacts_while_texts_are_encoded(tmp_path):
    """100 texts, each of which keeps the processor busy for 4 ms, are interrupted about every 20 ms."""
    result = of_predictor(
        tmp_path,
        tiny.bundle("embed"),
        """
        const model = new Predictor(bundle, vocab, unicode, () => {
          const end = performance.now() + 4;
          while (performance.now() < end);
          return { vector: { data: [1, 2], shape: [2] } };
        });
        let [reactions, done] = [0, false];
        const react = () => done || (reactions++, setImmediate(react));
        setImmediate(react);
        const vectors = await model.encode(Array(100).fill("the cat"));
        done = true;
        console.log(JSON.stringify({ reactions, vectors: vectors.map((vector) => [...vector]) }));
        """,
    )
    assert result["vectors"] == [[1, 2]] * 100
    assert result["reactions"] >= 10


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_roles(tmp_path):
    """Vectors that are the ids of a text, of each role, and of a search."""
    bundle = tiny.bundle("embed", max_length=8, roles={"query": "she: ", "passage": "the ", "": "a "})
    result = of_predictor(
        tmp_path,
        bundle,
        """
        const model = new Predictor(bundle, vocab, unicode, ({ token_ids: ids }) => {
          return { vector: { data: [...ids, 0, 0, 0, 0].slice(0, 8), shape: [8] } };
        });
        const texts = ["the cat", ""];
        const vectors = [];
        for (const role of ["query", "passage", null]) vectors.push(...(await model.encode(texts, role)));
        const [{ score }] = await model.search(texts[0], texts.slice(0, 1));
        const error = await model.encode(texts, "title").catch(({ message }) => message);
        console.log(JSON.stringify({ vectors: vectors.map((vector) => [...vector]), score, error }));
        """,
    )
    rows = bundle.features.encode([f"{prefix}the cat" for prefix in bundle.roles.values()])
    ids = bundle.features.collate(rows, length=8)["token_ids"]
    assert result["vectors"] == [vector for row in ids.tolist() for vector in (row, [0] * 8)]
    query, passage = unit(ids[:2])
    assert result["score"] == pytest.approx(query @ passage)
    assert result["error"] == "role=title: this model has query, passage"


@pytest.fixture(scope="module")
def files(tiny_model, tflite_in_process, tmp_path_factory):
    """{name: .tflite file}: a tagger, an answerer and an encoder over BERT, a tagger and an encoder over ELMo."""
    root = tmp_path_factory.mktemp("web")
    bundles = {task: tiny_model(task)[1] for task in ("tag", "answer")}
    bundles["elmo"] = tiny.bundle("tag", "elmo", labels=("X", "Y", "Z"), sizes={"layers": 2, "max_characters": 12})
    for name, bundle in bundles.items():
        tiny.save(root / name, bundle)
    encoders = {"embed": ("bert", "mean", True), "elmo_embed": ("elmo", "max", False)}
    for name, (family, pooling, normalize) in encoders.items():
        model, bundles[name] = tiny.model("embed", family, max_length=40, pooling=pooling, normalize=normalize)
        saving.save(root / name, model, bundles[name])
    for name, bundle in bundles.items():
        quantize.convert(root / name, root / f"{name}.tflite", lengths=(8, bundle.max_length))
    return {name: root / f"{name}.tflite" for name in bundles}


def imported():
    """The files of the page that its modules and index.html import."""
    sources = (path.read_text(encoding="utf-8") for path in page.WEB.iterdir() if path.suffix in (".js", ".html"))
    return {name for source in sources for name in re.findall(r'"\./(\w+\.js)"', source)}


def test_the_folder_loads_litert_from_a_cdn_or_from_itself(files, tmp_path):
    page.write_page(files["tag"], tmp_path / "page")
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert names == {"index.html", "model.tflite", *page.FILES} and imported() <= names
    assert (tmp_path / "page" / "model.tflite").read_bytes() == files["tag"].read_bytes()
    assert page.CDN in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    litertjs = tmp_path / "litertjs"
    for package in ("core", "wasm-utils"):
        (litertjs / package / "dist").mkdir(parents=True)
        (litertjs / package / "dist" / "index.js").write_text("")
        (litertjs / package / "package.json").write_text(json.dumps({"version": "2.9.1"}))
    page.write_page(files["tag"], tmp_path / "page", litertjs)
    html = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "https:" not in html and '"./litertjs/core/dist/index.js"' in html
    assert (tmp_path / "page" / "litertjs" / "wasm-utils" / "dist" / "index.js").is_file()

    (litertjs / "core" / "package.json").write_text('{"version": "3.0.0"}')
    with pytest.raises(ValueError, match=r"version 3\.0\.0; npm install @litertjs/core@2"):
        page.write_page(files["tag"], tmp_path / "page", litertjs)
    with pytest.raises(ValueError, match="no core in it; name node_modules/@litertjs"):
        page.write_page(files["tag"], tmp_path / "page", tmp_path)


@pytest.mark.parametrize(
    ("task", "labels", "title", "facts"),
    [
        ("classify", ("<b>", "neg"), "Which label does the text have?", "It chooses one of: &lt;b&gt;, neg."),
        ("multilabel", tuple(map(str, range(20))), "Which labels does the text have?", "10, 11 and 8 more."),
        ("tag", ("O", "B-PER", "I-PER", "B-LOC"), "What is in the text?", "It marks words as one of: PER, LOC."),
        ("tag", ("NOUN", "VERB"), "What is in the text?", "It marks words as one of: NOUN, VERB."),
        ("answer", (), "Ask a text", "It finds the answer to a question in the text."),
        (
            "translate",
            ("<S>", "a"),
            "A text for a text",
            "It writes a text for what is typed, and shows where it looked.",
        ),
        ("embed", (), "Which sentences are like a query?", "by cosine similarity to a query."),
        ("causal_language_model", (), "How does the text go on?", "It writes on from a prompt, token by token."),
        ("pretrainer", (), "Which word is missing?", "the most probable words for each [MASK] of a text."),
    ],
)
def test_the_page_says_what_the_model_does(task, labels, title, facts):
    html = (page.WEB / "index.html").read_text(encoding="utf-8")
    text = page._described(html, Bundle("lm" if task == "causal_language_model" else "bert", task, {}, 8, labels))
    assert f"<title>{title}</title>" in text and f"<h1>{title}</h1>" in text
    assert f"{facts} The text stays on this machine" in text


@pytest.mark.filterwarnings("default")  # the command prints it
def test_a_cut_is_not_told_of_a_file_that_is_not_written(files, tmp_path, capsys):
    folder, out = str(files["tag"].with_suffix("")), str(tmp_path / "page")
    assert main.main(["tflite", folder, "--web", out, "--lengths", "8"]) == 0
    error = capsys.readouterr().err
    assert "ctxrep: lengths=[8]: the file reads 8 tokens of a text, and the model 40" in error and out not in error


def test_the_command(files, tmp_path, capsys):
    out = tmp_path / "a page"
    assert main.main(["tflite", str(files["tag"]), "--web", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: serve it with `python -m http.server --directory '{out}'`\n"
    folder = files["tag"].with_suffix("")
    kept = tmp_path / "kept.tflite"
    assert main.main(["tflite", str(folder), "--web", str(out), "--out", str(kept), "--lengths", "8,40"]) == 0
    assert kept.read_bytes() == (out / "model.tflite").read_bytes()


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ("{tag}", 2, "--out FILE.tflite or --web FOLDER is needed"),
        ("{tag} --out x.tflite --litertjs a", 2, "--litertjs is for --web"),
        ("{tag} --web {tmp}/page --lengths 8", 1, "converted already; leave out lengths"),
        ("{tmp}/missing --web {tmp}/page", 1, "no such folder"),
        ("{words} --web {tmp}/page", 1, "a tagger over a language model is not supported"),
        ("{roles} --web {tmp}/page", 1, "no page answers semantic_roles"),
        ("{folder} --web {tag} --out {tmp}/page", 1, "a file; name a folder"),
    ],
)
def test_wrong_arguments(argv, status, message, files, tiny_model, tmp_path, capsys):
    saving.save(tmp_path / "roles", *tiny_model("semantic_roles"))
    characters = {"config": {"units": "characters"}, "vocab": (*MARKERS, "a"), "max_length": 16}
    bundles.save(Bundle("lm", labels=("X", "Y"), **characters, **tasks.bundle_fields("tag")), tmp_path)
    tag = files["tag"]
    argv = argv.format(
        tag=tag, folder=tag.with_suffix(""), tmp=tmp_path, roles=tmp_path / "roles", words=tmp_path
    ).split()
    try:
        result = main.main(["tflite", *argv])
    except SystemExit as end:
        result = end.code
    assert result == status and message in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what a page posts."""

    def do_POST(self):
        self.server.posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.server.done.set()

    def end_headers(self):
        """With the headers that threads in a browser need."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format, *values):
        pass


def browse(folder: Path, profile: Path, name: str):
    """What the page of this name posts."""
    with contextlib.ExitStack() as stack:
        handler = functools.partial(Handler, directory=str(folder))
        server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        server.done = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        log = stack.enter_context(open(profile.with_suffix(".log"), "w"))
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        browser = subprocess.Popen([CHROMIUM, *flags, url], stdout=log, stderr=log, start_new_session=True)
        try:
            assert server.done.wait(100), Path(log.name).read_text()[-2000:]
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
        return server.posted


ASKING = """
<!doctype html>
<body>
IMPORTS
<script type="module">
import { Index, load } from "./ctxrep.js";
const answers = {};
try {
  for (const [name, queries] of Object.entries(await (await fetch("queries.json")).json())) {
    const bytes = new Uint8Array(await (await fetch(name)).arrayBuffer());
    const model = await load(THREADS > 1 ? name : bytes, { threads: THREADS });
    answers[name] = await Promise.all(queries.map((query) => model.predict(...query)));
    bytes[1000] ^= 1;
    answers.errors = [];
    for (const wrong of [bytes, bytes.subarray(0, 5000), "missing.tflite"]) {
      answers.errors.push(await load(wrong).catch((error) => error.message));
    }
    answers.isolated = crossOriginIsolated;
  }
  const { files, texts } = await (await fetch("texts.json")).json();
  for (const name of files) {
    const model = await load(name, { threads: THREADS });
    const vectors = await model.encode(texts);
    const index = new Index(vectors);
    const found = [await model.search(texts[0], texts, 4), await model.search(texts[0], index, 4)];
    answers[name] = [vectors.map((vector) => [...vector]), ...found];
  }
} catch (error) {
  answers.error = String(error?.stack ?? error);
}
await fetch("answers", { method: "POST", body: JSON.stringify(answers) });
</script>
"""

TYPING = """
<!doctype html>
<body>
<iframe src="index.html?text=She%20fell"></iframe>
<script type="module">
const frame = document.querySelector("iframe");
const wait = () => new Promise((resolve) => setTimeout(resolve, 50));
const page = () => frame.contentDocument;
while (page()?.documentElement?.dataset.ready === undefined) await wait();
const texts = [page().getElementById("result").textContent];
const field = page().getElementById("text");
for (const letter of ". Rain <b> fell") {
  field.value += letter;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
while (!page().getElementById("result").textContent.replaceAll("PER", "").includes("<b>")) await wait();
texts.push(page().getElementById("result").textContent);
const marks = [...page().querySelectorAll("mark")].map((mark) => mark.textContent);
const [time, status] = ["time", "status"].map((name) => page().getElementById(name).textContent);
await fetch("answers", { method: "POST", body: JSON.stringify({ texts, marks, time, status }) });
</script>
"""


RANKING = """
<!doctype html>
<body>
<iframe src="index.html?query=the%20cat&text=Rain%20fell.%0D%0AThe%20cat%20fell.%20***%0Acat"></iframe>
<script type="module">
const frame = document.querySelector("iframe");
const wait = () => new Promise((resolve) => setTimeout(resolve, 50));
const page = () => frame.contentDocument;
while (page()?.documentElement?.dataset.ready === undefined) await wait();
const [query, text, file] = ["query", "text", "file"].map((id) => page().getElementById(id));
const input = (field, type = "input") => field.dispatchEvent(new Event(type, { bubbles: true }));
const until = async (done) => { while (!done()) await wait(); };
const texts = (nodes) => [...nodes].map((node) => node.textContent);
const items = () => [...page().querySelectorAll("#result li")].map((item) => texts(item.children));
const marks = () => [...page().querySelectorAll("[data-note]")].map((node) => [node.textContent, node.dataset.note]);
const view = () => texts(page().querySelector(".view").children);
const status = () => page().getElementById("status").textContent;
const shown = () => ({ items: items(), marks: marks(), view: view(), status: status() });
const states = [shown()];

for (const letter of ". She") {
  query.value += letter;
  input(query);
}
await until(() => items().some(([name]) => name === "***") || states[0].status !== status());
for (let last = null; JSON.stringify(last) !== JSON.stringify(items()); await wait()) last = items();
states.push(shown());

const given = await (await fetch("texts.json")).json();
const dropped = new DataTransfer();
dropped.items.add(new File([given.texts.join("\\n")], "texts.txt"));
const drop = new frame.contentWindow.DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true });
page().body.dispatchEvent(drop);
query.value = given.texts[0];
input(query);
await until(() => items().length === 10 && page().querySelector("progress").hidden);
await wait();
states.push({ ...shown(), value: text.value, prevented: drop.defaultPrevented });

const binary = new DataTransfer();
binary.items.add(new File([new Uint8Array([80, 75, 0, 1])], "a.zip"));
file.files = binary.files;
input(file, "change");
await until(() => status().includes("a.zip"));
states.push(shown());

query.value = " ";
input(query);
await until(() => !items().length);
states.push(shown());
const labels = [...page().querySelectorAll("input, textarea, progress, [role=region]")].map((field) =>
  field.labels?.[0]?.textContent ?? field.getAttribute("aria-label") ?? field.getAttribute("aria-labelledby"));
await fetch("answers", { method: "POST", body: JSON.stringify({ states, labels }) });
</script>
"""


WRITING = """
<!doctype html>
<body>
<iframe src="index.html?QUERY"></iframe>
<script type="module">
const frame = document.querySelector("iframe");
const wait = () => new Promise((resolve) => setTimeout(resolve, 50));
const page = () => frame.contentDocument;
while (page()?.documentElement?.dataset.ready === undefined) await wait();
const [field, result] = ["FIELD", "result"].map((id) => page().getElementById(id));
const states = [];
const settled = async () => {
  for (let last = null; last !== result.textContent; await wait()) last = result.textContent;
  const list = [...result.querySelectorAll("li")].map((item) => [...item.children].map((node) => node.textContent));
  const rows = [...result.querySelectorAll("tr")].map((row) => [...row.children].map((node) => node.textContent));
  states.push({ text: result.textContent, list, rows, status: page().getElementById("status").textContent });
};
await settled();
for (const letter of "MORE") {
  field.value += letter;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
await settled();
const time = page().getElementById("time").textContent;
await fetch("answers", { method: "POST", body: JSON.stringify({ states, time }) });
</script>
"""


def in_code_points(value, text):
    """An answer with its offsets in code points instead of UTF-16 units."""
    if isinstance(value, list):
        return [in_code_points(entry, text) for entry in value]
    if not isinstance(value, dict):
        return value
    units = text.encode("utf-16-le")
    return {
        name: len(units[: 2 * entry].decode("utf-16-le")) if name in ("start", "end") else in_code_points(entry, text)
        for name, entry in value.items()
    }


def assert_near(answer, expected):
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name, value in expected.items():
            assert_near(answer[name], value)
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for pair in zip(answer, expected, strict=True):
            assert_near(*pair)
    else:
        assert answer == (pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else expected)


@pytest.fixture(scope="module")
def served(files, tmp_path_factory):
    """A page's folder with all of the models, and the pages of the tests."""
    folder = page.write_page(files["tag"], tmp_path_factory.mktemp("served") / "page", LITERTJS)
    (folder / "typing.html").write_text(TYPING)
    for path in files.values():
        shutil.copy(path, folder / path.name)
    return folder


def imports_of(folder):
    imports = re.search(r'<script type="importmap">.*?</script>', (folder / "index.html").read_text(), re.DOTALL)
    assert imports is not None
    return imports.group()


@needs_litertjs
@needs_chromium
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_in_chromium_are_those_of_the_edge(threads, files, served, tmp_path):
    contexts = (CONTEXT, "She fell 😀", "")
    queries = {name: [[text] for text in TEXTS] for name in ("tag", "elmo")}
    queries["answer"] = [["the cat", context] for context in contexts]
    encoders = [files[name].name for name in ("embed", "elmo_embed")]
    (served / "texts.json").write_text(json.dumps({"files": encoders, "texts": SENTENCES}))
    (served / "queries.json").write_text(json.dumps({files[name].name: given for name, given in queries.items()}))
    (served / "asking.html").write_text(ASKING.replace("IMPORTS", imports_of(served)).replace("THREADS", str(threads)))
    answers = browse(served, tmp_path / "profile", "asking.html")
    assert "error" not in answers, answers["error"]
    assert answers["isolated"]
    for message, start in zip(
        answers["errors"], ("the model in this file is damaged", "no bundle", "missing"), strict=True
    ):
        assert message.startswith(start)
    for name in ("embed", "elmo_embed"):
        expected = np.array([answer["vector"] for answer in runtime.load(files[name])(SENTENCES)], np.float32)
        vectors, matches, again = answers[files[name].name]
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
        scores = cosines(expected, expected[0])
        assert matches == again and matches[0]["row"] == 0
        own = [match["score"] for match in matches]
        np.testing.assert_allclose(own, [scores[match["row"]] for match in matches], atol=1e-5)
        np.testing.assert_allclose(own, np.sort(scores)[:-5:-1], atol=1e-5)
    for name, given in queries.items():
        pairs = [pair for _, pair in given] if name == "answer" else None
        expected = runtime.load(files[name])([query[0] for query in given], pairs)
        for query, answer, reference in zip(given, answers[files[name].name], expected, strict=True):
            assert_near(in_code_points(answer, query[-1]), reference)


@needs_litertjs
@needs_chromium
def test_the_page_answers_as_one_types(files, served, tmp_path):
    shown = browse(served, tmp_path / "profile", "typing.html")
    before, text = "She fell", "She fell. Rain <b> fell"
    entities = runtime.load(files["tag"])([text])[0]["entities"]
    assert shown["marks"] == [f"{entity['text']}{entity['type']}" for entity in entities] and entities
    for shown_text, typed in zip(shown["texts"], (before, text), strict=True):
        assert shown_text.replace("PER", "") == typed
    assert re.fullmatch(r"\d+ ms", shown["time"]) and shown["status"] == ""


@needs_litertjs
@needs_chromium
def test_the_page_of_an_encoder_ranks_sentences(files, tmp_path):
    folder = page.write_page(files["embed"], tmp_path / "page", LITERTJS)
    (folder / "ranking.html").write_text(RANKING)
    (folder / "texts.json").write_text(json.dumps({"texts": SENTENCES}))
    shown = browse(folder, tmp_path / "profile", "ranking.html")
    predictor = runtime.load(files["embed"])

    few = ["Rain fell.", "The cat fell.", "***", "cat"]
    asked = (("the cat", few), ("the cat. She", few), (SENTENCES[0], SENTENCES))
    for state, (query, sentences) in zip(shown["states"], asked, strict=False):
        vectors = np.array([answer["vector"] for answer in predictor([query, *sentences])])
        scores = cosines(vectors[1:], vectors[0])
        own, marks = [], {}
        for place, (sentence, note) in enumerate(state["items"], 1):
            score, number = re.fullmatch(r"(\S+), sentence (\d+)", note).groups()
            assert sentence == sentences[int(number) - 1]
            assert float(score) == pytest.approx(scores[int(number) - 1], abs=2e-3)
            own.append(float(score))
            marks[f"{place}: {score}"] = sentence
        np.testing.assert_allclose(own, np.sort(scores)[::-1][:10], atol=2e-3)
        assert {note: sentence for sentence, note in state["marks"]} == marks
        assert re.match(r"Best: sentence \d+, cosine ", state["status"])
    few_state, _, dropped, binary, nothing = shown["states"]
    assert few_state["view"] == ["Rain fell.", "The cat fell. ***", "cat"]
    assert dropped["value"].split("\n") == SENTENCES and dropped["prevented"]
    assert binary["status"] == "a.zip: not a text file." and binary["items"] == dropped["items"]
    assert nothing["items"] == nothing["marks"] == [] and nothing["status"] == "Type a query, and give a text."
    assert None not in shown["labels"] and len(shown["labels"]) == 6


@needs_litertjs
@needs_chromium
def test_the_page_of_a_language_model_writes(tflite_in_process, rng, tmp_path):
    bundle = Bundle("lm", "causal_language_model", {"units": "characters", "width": 16}, 16, vocab=(*MARKERS, *"abc d"))
    saving.save(tmp_path / "lm", drawn(saving.build(bundle), rng), bundle)
    assert main.main(["tflite", str(tmp_path / "lm"), "--web", str(tmp_path / "page"), "--litertjs", LITERTJS]) == 0
    query = "prompt=a%20bad&length=30&seed=5&temperature=0.9&top_k=5&top_p="
    script = WRITING.replace("QUERY", query).replace("FIELD", "prompt").replace("MORE", " cab")
    (tmp_path / "page" / "writing.html").write_text(script)
    shown = browse(tmp_path / "page", tmp_path / "profile", "writing.html")
    generate = ctx.load(tmp_path / "page" / page.MODEL).generate
    prompts = ["a bad", "a bad cab"]
    texts = [generate([prompt], length=30, seed=5, temperature=0.9, top_k=5)[0] for prompt in prompts]
    assert [state["text"] for state in shown["states"]] == [a + b for a, b in zip(prompts, texts, strict=True)]
    assert re.fullmatch(r"30 tokens, \d+ ms", shown["time"]) and len(set(texts[0])) > 2


@needs_litertjs
@needs_chromium
def test_the_page_of_a_masked_language_model_fills(tflite_in_process, rng, tmp_path):
    bundle = replace(tiny.bundle("embed"), task="pretrainer")
    saving.save(tmp_path / "bert", drawn(saving.build(bundle), rng), bundle)
    folder = tmp_path / "page"
    command = ["tflite", str(tmp_path / "bert"), "--fill", "--lengths", "8,16", "--web", str(folder)]
    assert main.main([*command, "--litertjs", LITERTJS]) == 0
    text, more = "the [MASK] fell", " [MASK][MASK] [MASK]. [MASK]"
    script = WRITING.replace("QUERY", f"text={text}").replace("FIELD", "text").replace("MORE", more)
    (folder / "writing.html").write_text(script)
    shown = browse(folder, tmp_path / "profile", "writing.html")
    expected = ctx.load(folder / page.MODEL).fill([text, text + more])
    for state, masks in zip(shown["states"], expected, strict=True):
        pieces = [[each.piece, f"{100 * each.probability:.1f} %"] for own in masks for each in own]
        assert [piece for piece, _ in state["list"]] == [piece for piece, _ in pieces]
        for (_, chance), (_, other) in zip(state["list"], pieces, strict=True):
            assert float(chance[:-2]) == pytest.approx(float(other[:-2]), abs=0.11)
        assert state["text"].count("Mask ") == (len(masks) if len(masks) > 1 else 0) and state["status"] == ""


@needs_litertjs
@needs_chromium
def test_the_page_of_a_translator_writes_and_shows_where_it_looked(golden_translation, tmp_path):
    folder = page.write_page(golden_translation / "model.tflite", tmp_path / "page", LITERTJS)
    texts = ["ab\U0001f600", "ab\U0001f600 cd dd"]
    script = WRITING.replace("QUERY", f"text={texts[0]}").replace("FIELD", "text").replace("MORE", texts[1][3:])
    (folder / "writing.html").write_text(script, encoding="utf-8")
    shown = browse(folder, tmp_path / "profile", "writing.html")
    expected = runtime.load(folder / page.MODEL)(texts)
    for state, text, answer in zip(shown["states"], texts, expected, strict=True):
        best = [[each["text"] or "(nothing)", f"{each['score']:.2f}"] for each in answer["n_best"]]
        assert state["list"] == best and state["text"].startswith(answer["text"])
        assert ("no end" in state["status"]) == ("unfinished" in answer)
        head, *rows = state["rows"]
        assert head == ["", *text.replace(" ", "·")] and len(rows) == len(answer["alignment"]) > 0
        for (token, *cells), aligned in zip(rows, answer["alignment"], strict=True):
            weights = [int(cell.removesuffix(" %")) for cell in cells]
            assert token == aligned["token"] and weights[aligned["start"]] == max(weights)
            assert max(weights) == pytest.approx(100 * aligned["weight"], abs=0.6)
    assert re.fullmatch(r"\d+ ms", shown["time"])


def drawn(model, rng):
    """A model with random weights."""
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    return model


def cosines(vectors, query):
    return vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))


@pytest.fixture
def node(tmp_path):
    """Runs a script with Node, and returns what it prints as JSON; the modules of the page are under "WEB"."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node")

    def run(script):
        (tmp_path / "t.mjs").write_text(script.replace("WEB", page.WEB.resolve().as_posix()), encoding="utf-8")
        process = subprocess.run(["node", tmp_path / "t.mjs"], capture_output=True, text=True, encoding="utf-8")
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    return run


@pytest.mark.parametrize("segmenter", ["undefined", "null"])
def test_sentences_in_javascript(node, segmenter):
    """By Unicode's rules in Node, and by the simpler ones of browsers without Intl.Segmenter."""
    text = 'The sky is\u00a0blue.  "Is it?" (Yes!) Men of 3.5 m e.g. asked.\r\n\n \t\n第一句。第二句！\u2028😀 no end'
    sentences = node(f"""
        import {{ sentencesOf }} from "WEB/search.js";
        console.log(JSON.stringify(sentencesOf({json.dumps(text)}, {segmenter})));
    """)
    units = text.encode("utf-16-le")
    assert [units[2 * s["start"] : 2 * s["end"]].decode("utf-16-le") for s in sentences] == [
        s["text"] for s in sentences
    ]
    assert [sentence["text"] for sentence in sentences] == [
        *(
            "The sky is\u00a0blue.",
            '"Is it?"',
            "(Yes!)",
            "Men of 3.5 m e.g. asked.",
            "第一句。",
            "第二句！",
            "😀 no end",
        )
    ]


def test_wrong_vectors_in_javascript(node):
    messages = node("""
        import { Index, Predictor } from "WEB/ctxrep.js";
        const index = new Index([[1, 2]]);
        const model = Object.create(Predictor.prototype);
        model.bundle = { task: "embed" };
        const of = (act) => { try { return act(); } catch (error) { return error.message; } };
        const messages = [
          of(() => index.add([1, 2, 3])), of(() => index.search([1])), of(() => index.add([1, NaN])),
          of(() => index.add([1e39, 1])), of(() => index.search([1, 2], 0)), of(() => new Index([[]])),
          of(() => index.size), of(() => new Index().search([1])),
          await model.encode("text").catch((error) => error.message),
          await model.encode(["a", 3]).catch((error) => error.message),
          await model.search("a", ["b"], 1.5).catch((error) => error.message),
        ];
        model.bundle = { task: "tag" };
        messages.push(await model.encode(["text"]).catch((error) => error.message));
        console.log(JSON.stringify(messages));
    """)
    assert messages == [
        "vector 1 has 3 numbers, not 2: use one model for all",
        "the query's vector has 1 numbers, not 2: use one model for all",
        *["vector 1 has a value that is not a finite number"] * 2,
        "top=0: a whole number of at least 1 is needed",
        "vector 0 has 0 numbers, not at least 1: use one model for all",
        *(1, []),
        "encode reads a list of texts: encode([text])",
        "text 1 is not a string",
        "top=1.5: a whole number of at least 1 is needed",
        "this model's task is tag, not embed",
    ]


STEP = """
    import { readFileSync } from "node:fs";
    import { Filler } from "WEB/filling.js";
    import { Generator } from "WEB/generator.js";
    import { Unicode } from "WEB/text.js";
    const unicode = new Unicode(JSON.parse(readFileSync("WEB/unicode.json", "utf-8")));
    const bundle = { task: "causal_language_model", config: { units: "characters" } };
    let calls = 0;
    const logits = { data: Float32Array.from([9, 0, 9, 5, 4]) };
    const run = async ({ state }) => ({ logits, state: { data: [(state?.[0] ?? 0) + ++calls] } });
    const model = new Generator(bundle, ["<S>", "</S>", "<UNK>", "a", "b"], unicode, run);
    const failed = (promise) => promise.then(() => "no error", (error) => `${error.name}: ${error.message}`);
"""


def test_a_text_ends_where_it_is_aborted_in_javascript(node):
    """No token is drawn from then on, nor a long prompt read to its end; the page reacts meanwhile."""
    result = node(f"""{STEP}
        const controller = new AbortController();
        let text = "";
        for await (const part of model.stream("ab", {{ length: 50, signal: controller.signal }})) {{
          text += part;
          if (text.length === 7) controller.abort();
        }}
        const read = calls;
        calls = 0;
        const busy = async (inputs) => {{
          for (const end = performance.now() + 4; performance.now() < end; );
          return run(inputs);
        }};
        const second = new AbortController();
        setImmediate(() => setTimeout(() => second.abort(), 30));
        const slow = new Generator(bundle, model.features.vocab, unicode, busy);
        const none = await slow.generate("a".repeat(1000), {{ signal: second.signal }});
        console.log(JSON.stringify({{ size: text.length, read, none, calls }}));
    """)
    assert (result["size"], result["read"], result["none"]) == (7, 3 + 6, "")
    assert 0 < result["calls"] < 1000


def test_wrong_options_in_javascript(node):
    messages = node(f"""{STEP}
        const wrong = {{ length: 0, temperature: -1, top_k: 1.5, top_p: 0, min_p: "x", seed: 2.5 }};
        const options = Object.entries(wrong).map(([name, value]) => ({{ [name]: value }}));
        const filler = new Filler(
          {{ max_length: 4, reads: {{}}, lowercase: true, split_cjk: true }},
          ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], unicode, () => 0, 4,
        );
        console.log(JSON.stringify([
          ...(await Promise.all(options.map((given) => failed(model.generate("", given))))),
          await failed(model.generate("", {{ topK: 3 }})),
          await failed(filler.fill("a")),
          await failed(filler.fill("a a [MASK]")),
          await model.generate("a", {{ length: 3, temperature: 0, top_k: null }}),
        ]));
    """)
    assert messages == [
        "RangeError: length=0: a whole number above 0 is needed",
        "RangeError: temperature=-1: a number of at least 0 is needed",
        "RangeError: top_k=1.5: a whole number above 0 is needed",
        "RangeError: top_p=0: above 0 and at most 1 is needed",
        "RangeError: min_p=x: a number from 0 to 1 is needed",
        "RangeError: seed=2.5: a whole number is needed",
        "TypeError: option topK: not one of length, lines, seed, temperature, top_k, top_p, min_p, signal",
        "RangeError: no [MASK] in this text: write [MASK] where a word is to be found",
        "RangeError: 5 pieces; the model reads 4: shorten the text",
        "aaa",
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_a_file_for_mediapipe_in_javascript(tiny_model, tflite_in_process, tmp_path):
    saving.save(tmp_path / "m", *tiny_model("classify"))
    file = quantize.convert(tmp_path / "m", tmp_path / "m.tflite", mediapipe=True)
    web = page.WEB.resolve()
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ Unicode }} from "{web}/text.js";
        import {{ Predictor, unzipped }} from "{web}/ctxrep.js";
        const unicode = new Unicode(JSON.parse(readFileSync("{web}/unicode.json", "utf-8")));
        const {{ files }} = unzipped(new Uint8Array(readFileSync("{file}")));
        const text = (name) => new TextDecoder().decode(files[name]);
        const run = async () => ({{ probabilities: {{ data: [0.25, 0.75], shape: [2] }} }});
        const vocab = text("vocab.txt").trimEnd().split("\\n");
        const model = new Predictor(JSON.parse(text("bundle.json")), vocab, unicode, run);
        console.log(JSON.stringify(await model.predict("the cat")));
    """
    (tmp_path / "t.mjs").write_text(script)
    result = subprocess.run(["node", tmp_path / "t.mjs"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["score"] == pytest.approx(0.75)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
@pytest.mark.parametrize("text", ["'A'.repeat(300000)", "'a' + '\\u0301\\u0323'.repeat(150000)"])
def test_long_texts_in_javascript(tmp_path, text):
    web = page.WEB.resolve()
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ featuresOf }} from "{web}/features.js";
        import {{ Unicode }} from "{web}/text.js";
        const unicode = new Unicode(JSON.parse(readFileSync("{web}/unicode.json", "utf-8")));
        const fields = {{ max_length: 8, reads: {{}}, settings: {{}}, lowercase: true, split_cjk: true }};
        const vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"];
        const bert = featuresOf({{ family: "bert", config: {{ heads: 1 }}, ...fields }}, vocab, unicode);
        const table = featuresOf({{ family: "static", config: {{ lowercase: true }}, ...fields }}, ["<UNK>"], unicode);
        for (const features of [bert, table]) features.inputs(features.encode({text}, null));
    """
    (tmp_path / "t.mjs").write_text(script)
    result = subprocess.run(["node", tmp_path / "t.mjs"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
