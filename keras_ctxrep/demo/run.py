"""The whole way from the shipped weights to a tagger on the edge, on data that comes with the package.

It takes about 5 minutes on 2 cores: models with answers fill in words and find names; a smaller encoder is distilled
for a minute; a tagger of named entities is fine-tuned, and compared with one that counts words; the documentation of
this package is searched by meaning and by words; the senses of one word are separated; the tagger is exported, and runs
in every engine and on a web page.
"""

import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import recipes, saving, zoo
from keras_ctxrep.commands.printing import table
from keras_ctxrep.demo.report import write_report
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.inference.model import load
from keras_ctxrep.plots.words import concordance, neighbours, senses
from keras_ctxrep.tasks.classify import Classify
from keras_ctxrep.tasks.tag import Tag, Tagged
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.corpus import documents, hold_out, without
from keras_ctxrep.text.features import Features
from keras_ctxrep.text.scores import bootstrap
from keras_ctxrep.text.search import Index
from keras_ctxrep.text.tokens import split_words, words
from keras_ctxrep.version import __version__
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, page, quantize

__all__ = ["run"]

ENCODER = "bert_3_384_12/books_wiki_en"
DATA = Path(__file__).with_name("data")
ENTITIES = DATA / "wnut17"  # WNUT-2017: train, dev and test
SENSES = DATA / "bank.tsv"  # sentences with the word "bank", labelled with its sense
MARKER = ".ctxrep-demo"  # in a folder that a demo has written
TRAINING = {"max_length": 64, "epochs": 3.0, "learning_rate": 3e-4, "evaluations": 3}  # of the taggers
EXAMPLES = {"train": 2000, "dev": 400, "test": 1287}  # drawn from the data; all there are to test on
COMPARED = 200  # test sentences that every engine tags
METHODS = ("shipped weights", "words alone")
MASKED = ("She opened the [MASK] and looked out.", "Deep learning [MASK] fun.")
NAMED = "Angela Merkel met Tim Cook in Berlin to talk about the new iPhone."
STUDENT = "0,2"  # layers of the shipped encoder that the distilled one starts with
FOUND = 3  # hits among which the right one has to be
# what one might ask, in other words than the documentation's -> where the answer is
QUESTIONS = {
    "make the network smaller for a phone": ("keras_ctxrep_tflite.quantize", "keras_ctxrep.commands.tflite"),
    "let a little student learn from a big teacher": (
        "keras_ctxrep.commands.distill",
        "keras_ctxrep.recipes.distilling",
        "keras_ctxrep.recipes.encoder_dist",
    ),
    "find people and places in a sentence": ("keras_ctxrep.tasks.tag", "keras_ctxrep.text.decode"),
    "whom does this she mean?": ("keras_ctxrep.tasks.coreference",),
    "open a spreadsheet": ("keras_ctxrep.tasks.reading", "keras_ctxrep.text.files", "keras_ctxrep.recipes.reading"),
    "continue after the computer crashed": ("keras_ctxrep.training.checkpoints",),
    "how quickly does each version reply?": ("keras_ctxrep_tflite.compare", "keras_ctxrep.plots.engines"),
    "several graphics cards at once": ("keras_ctxrep.training.strategy",),
    "turn letters into numbers": ("keras_ctxrep.text.tokens", "keras_ctxrep.text.features"),
    "fetch something from the internet": ("keras_ctxrep.zoo", "keras_ctxrep.transport"),
    "draw what the network looks at": ("keras_ctxrep.plots.attention",),
    "get predictions from a remote machine": ("keras_ctxrep.inference.client",),
}
Data = dict[str, list[Tagged]]
BOLD, RED, GREEN = 1, 31, 32  # codes of ANSI terminals


def run(
    corpus: Sequence[str | Path] | None = None, out: str | Path = "demo", minutes: float = 1.0, seed: int = 0
) -> dict:
    """Runs the demo and writes OUT/report.html, and its figures to OUT/report.json.

    Args:
        corpus: text files to distil on, one sentence a line, an empty line between documents; None: Python's language
            reference.
        out: its contents are replaced; it must be missing, empty, or the folder of an earlier demo.
        minutes: of distillation.
        seed: of every random choice.

    Returns: all figures of the report; "checks" holds (whether it passed, what was checked).

    Raises:
        ValueError: the folder holds something else, or there is too little text.
    """
    begin = time.monotonic()
    out, encoder = _empty_folder(Path(out)), zoo.find(ENCODER)
    data = _sample(seed)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    figures: dict[str, Any] = {"version": __version__, "seed": seed, "cores": cores, "processor": _processor()}
    figures |= {"encoder": ENCODER, "card": bundles.load(encoder).card}
    figures["ready"] = _ready()
    figures["distilling"] = _distilling(encoder, corpus, out, minutes, seed)
    figures["search"] = _search(encoder)
    figures["tagging"], tags = _tagging(encoder, data, out, seed)
    figures["senses"] = _senses(encoder, out)
    figures["engines"] = _engines(out, data["test"])
    figures["examples"] = _examples(data["test"], tags)
    figures["checks"] = _checks(figures)
    _title("Results")
    for passed, text in figures["checks"]:
        print(f"  {_coloured('yes', GREEN) if passed else _coloured('NO ', RED)}  {text}")
    figures["minutes"] = (time.monotonic() - begin) / 60
    (out / "report.json").write_text(json.dumps(figures, indent=1, default=str), encoding="utf-8")
    write_report(figures, out / "report.html")
    print(f"\n{out / 'report.html'}: written after {figures['minutes']:.1f} minutes")
    return figures


def _empty_folder(out: Path) -> Path:
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise ValueError(f"{out}: not empty, and no earlier demo; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    for entry in out.iterdir():  # not the folder itself, which may be a link, a mount, or the current one
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (out / MARKER).write_text("Each `ctxrep demo` replaces the contents of this folder.\n")
    return out


def _sample(seed: int) -> Data:
    """Random messages of each part of WNUT-2017."""
    rng = np.random.default_rng(seed)
    data = {name: [*Tag().read(ENTITIES / f"{name}.conll.xz")] for name in EXAMPLES}
    return {name: [data[name][i] for i in rng.permutation(len(data[name]))[:count]] for name, count in EXAMPLES.items()}


def _ready() -> dict:
    """Words for masks, and names, by models that need no training."""
    _title("Answers without training")
    masks = [*zip(MASKED, load("masked_en").fill(MASKED, 3), strict=True)]
    for text, (pieces,) in masks:
        print(f"  {text}  {', '.join(f'{_coloured(piece, BOLD)} {chance:.0%}' for piece, chance in pieces)}")
    answer = load("names_en").predict(NAMED)
    print(f"  {NAMED}  {', '.join(_coloured(entity['text'], BOLD) for entity in answer['entities']) or 'no names'}")
    tags = [(word["word"], word["label"]) for word in answer["words"]]
    return {"masks": [(text, pieces) for text, (pieces,) in masks], "names": tags}


def _distilling(encoder: Path, corpus: Sequence[str | Path] | None, out: Path, minutes: float, seed: int) -> dict:
    """Teaches two layers of the encoder the vectors of all of it."""
    text = [*_reference()] if corpus is None else [*documents(corpus)]
    name = _REFERENCE if corpus is None else ", ".join(Path(path).name for path in corpus)
    valid = hold_out(text, seed=seed)
    sides = {"train": [*without(text, valid)], "valid": valid}
    files = {side: out / f"{side}.txt" for side in sides}
    for side, blocks in sides.items():
        files[side].write_text("\n\n".join("\n".join(block) for block in blocks) + "\n", encoding="utf-8")
    count = sum(len(words(sentence)) for block in sides["train"] for sentence in block)
    length = "a minute" if minutes == 1 else f"{minutes:g} minutes"
    _title(f"A smaller encoder learns for {length} from the shipped one: {name}, {count:,} words")
    print(f"  layers {STUDENT} of 0,1,2; cosine of its vectors of words and the teacher's, in held-out text:")
    curve: list[tuple[float, float]] = []

    def show(entry: dict) -> None:
        curve.append((entry["minutes"], 1 - entry["val_words_loss"]))
        cosine = _coloured(f"{curve[-1][1]:.3f}", BOLD)
        print(f"  step {entry['step']:>5}  {entry['minutes']:4.1f} min  {cosine}", flush=True)

    options: dict[str, Any] = {"layers": STUDENT, "valid": files["valid"], "minutes": minutes, "seed": seed}
    options |= {"batch_size": 32, "learning_rate": 3e-4, "evaluations": 6}
    recipes.distill_encoder(encoder, [files["train"]], out / "smaller", show, **options)
    return {"text": name, "words": count, "curve": curve}


_REFERENCE = f"the language reference of Python {sys.version_info.major}.{sys.version_info.minor}"


def _reference() -> Iterator[list[str]]:
    """The prose of the language reference that comes with Python: documents of sentences, none of them twice."""
    from pydoc_data.topics import topics

    earlier: set[str] = set()
    # long topics first: they hold many of the short ones
    for body in sorted(topics.values(), key=len, reverse=True):
        sentences = [sentence for sentence in dict.fromkeys(_prose(body)) if sentence not in earlier]
        earlier.update(sentences)
        if len(sentences) > 1:
            yield sentences


def _prose(body: str) -> Iterable[str]:
    """Sentences of at least five words; grammar, examples and underlines are left out."""
    for paragraph in re.split(r"\n\s*\n", body):
        lines = [line.strip() for line in paragraph.split("\n")]
        joined = " ".join(line for line in lines if line and not re.fullmatch(r"[*=\-~^+\"']{3,}", line))
        if "::=" in joined or ">>>" in joined:
            continue
        joined = re.sub(r"  +", " ", re.sub(r"^[*•-] +", "", joined))
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"*(])", joined):
            if sentence.endswith((".", "!", "?", ":")) and len(words(sentence)) >= 5:
                yield sentence


def _search(encoder: Path) -> dict:
    """Questions to the documentation of this package, answered by the vectors of texts and by BM25."""
    names, texts = zip(*_documentation(), strict=True)
    _title(f"Search by meaning: {len(QUESTIONS)} questions to {len(texts)} texts, this package's documentation")
    model = load(encoder)
    index = Index.of_texts(texts, model, ids=names)
    by_words = _bm25(texts, [*QUESTIONS])
    hits = index.search([*QUESTIONS], FOUND)
    entries, right = [], {"meaning": 0, "words": 0}
    for number, (question, targets) in enumerate(QUESTIONS.items()):
        found = {"meaning": [hit.id for hit in hits[number]], "words": [names[i] for i in by_words[number]]}
        is_right = {way: any(name.startswith(targets) for name in ids) for way, ids in found.items()}
        for way in right:
            right[way] += is_right[way]
        entries.append({"question": question, "found": found, "right": is_right})
        mark = _coloured("yes", GREEN) if is_right["meaning"] else _coloured("no ", RED)
        print(f"  {mark}  {question:48} {hits[number][0].id}")
    of = f"of {len(QUESTIONS)}: by meaning {right['meaning']}, by words (BM25) {right['words']}"
    print(f"  the right place is among the first {FOUND} hits, {of}")
    return {"texts": len(texts), "entries": entries, "right": right}


def _documentation() -> Iterator[tuple[str, str]]:
    """The modules of this package, and the first paragraphs of their documentation."""
    for package in ("keras_ctxrep", "keras_ctxrep_export", "keras_ctxrep_tflite"):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            name = ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            if text := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
                yield name, " ".join(text.partition("\n\n")[0].split())


def _bm25(texts: Sequence[str], queries: Sequence[str], k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """The first hits of each query by the words that they share, int (queries, `FOUND`).

    Robertson & Zaragoza 2009, eq. 3.15, https://doi.org/10.1561/1500000019, with Lucene's inverse document frequency.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(texts).toarray()  # (texts, words)
    lengths = counts.sum(1, keepdims=True)
    frequency = (counts > 0).sum(0)
    inverse = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
    weights = inverse * counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / lengths.mean()))
    scores = (vectorizer.transform(queries).toarray() > 0) @ weights.T
    return np.argsort(-scores, axis=1, kind="stable")[:, :FOUND]


def _tagging(encoder: Path, data: Data, out: Path, seed: int) -> tuple[dict, list[list[str]]]:
    """Figures of the two taggers, and the tags of the first on the test set."""
    sizes = {name: len(side) for name, side in data.items()}
    _title(f"Named entities in messages: {sizes['train']:,} to learn from, {sizes['test']:,} to test on (WNUT-2017)")
    recipes.finetune(data["train"], data["dev"], encoder, out / "shipped", task="tag", seed=seed, **TRAINING)
    answers = {METHODS[0]: open_model(out / "shipped").answer.ask(data["test"])}
    answers[METHODS[1]] = [{"words": [{"label": tag} for tag in tags]} for tags in _tags_by_words(data)]
    metrics = {method: Tag().compute_metrics(data["test"], answers[method], ()) for method in METHODS}
    figures: dict[str, Any] = {"sizes": sizes, "methods": {}, "gains": {}}
    count = sizes["test"]
    for method, metric in metrics.items():
        low, high = bootstrap(metric.statistic, count)
        figures["methods"][method] = metric.scores | {"interval": (low, high)}
        f1 = _coloured(f"{metric.scores['span_f1']:6.1%}", BOLD)
        print(f"  {method:16} F1 {f1}   95% interval {low:.1%} to {high:.1%}")
    first = metrics[METHODS[0]]
    for method in METHODS[1:]:
        other = metrics[method]
        low, high = compare.interval(first.statistic, other.statistic, count)
        gain = first.scores["span_f1"] - other.scores["span_f1"]
        figures["gains"][method] = {"gain": gain, "interval": (low, high)}
        points = f"{100 * gain:+.1f} points, 95% interval {100 * low:+.1f} to {100 * high:+.1f}"
        print(f"  shipped weights against {method}: {points}")
    return figures, [[word["label"] or "O" for word in answer["words"]] for answer in answers[METHODS[0]]]


def _tags_by_words(data: Data) -> list[list[str]]:
    """Tags of the test set by logistic regression over each word and its two neighbours, lower-cased.

    The strength of the regularization is chosen on the dev set.
    """
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    def windows(side: list[Tagged]) -> Iterator[dict[str, str]]:
        for example in side:
            padded = ["", *(word.lower() for word in example.words), ""]
            for before, word, after in zip(padded, padded[1:], padded[2:], strict=False):
                yield {"before": before, "word": word, "after": after}

    vectorizer = DictVectorizer()
    inputs = vectorizer.fit_transform(windows(data["train"]))
    labels = [tag for example in data["train"] for tag in example.tags or ()]
    models = [LogisticRegression(C=c, max_iter=200).fit(inputs, labels) for c in (10.0, 100.0)]

    def dev_f1(model: Any) -> float:
        tags = iter(model.predict(vectorizer.transform(windows(data["dev"]))))
        answers = [{"words": [{"label": next(tags)} for _ in example.words]} for example in data["dev"]]
        return Tag().compute_metrics(data["dev"], answers, ()).scores["span_f1"]

    tags = iter(max(models, key=dev_f1).predict(vectorizer.transform(windows(data["test"]))))
    return [[str(next(tags)) for _ in example.words] for example in data["test"]]


def _examples(test: list[Tagged], tags: list[list[str]], count: int = 8) -> list[list[tuple[str, str]]]:
    """The first test messages with three or more words in entities: (word, its predicted tag)."""
    pairs = zip(test, tags, strict=True)
    messages = (list(zip(example.words, predicted, strict=True)) for example, predicted in pairs)
    return list(islice((message for message in messages if sum(tag != "O" for _, tag in message) >= 3), count))


def _senses(encoder: Path, out: Path) -> dict:
    """Nearest contextual neighbours of "bank" in two senses, and how often the nearest one has the same sense."""
    _title("Two senses of “bank”: the nearest words in context")
    examples = [*Classify().read(SENSES)]
    texts = [example.text for example in examples]
    queries = []
    for sense in dict.fromkeys(example.label for example in examples):
        query = next(example.text for example in examples if example.label == sense)
        entries = neighbours(encoder, "bank", texts, k=4, sentence=query, layer="mean")
        print(f"  {_coloured(query, BOLD)}")
        print("\n".join(f"  {line}" for line in concordance(entries, 100).splitlines()[1:]))
        queries.append({"sentence": query, "neighbours": entries})
    figures = senses(encoder, "bank", SENSES, out / "bank.svg", layer="mean")
    chance = f"{figures['majority']:.0%} by chance"
    print(f"  nearest sentence of the same sense: {figures['accuracy']:.1%} of {len(texts)} ({chance})")
    return {"queries": queries, "sentences": len(texts)} | {name: figures[name] for name in ("accuracy", "majority")}


_EDGE = """
import json, sys
from keras_ctxrep_tflite import runtime
texts = json.load(sys.stdin)
answers = [runtime.load(path)(texts) for path in sys.argv[1:]]
labels = [[[word["label"] for word in answer["words"]] for answer in engine] for engine in answers]
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "torch", "jax"})
print(json.dumps({"labels": labels, "loaded": loaded}))
"""


def _comparable(test: list[Tagged], features: Features) -> list[Tagged]:
    """Messages whose words are those that raw text is split into, and are not cut, so that every engine tags them."""
    rows = features.encode([example.words for example in test])
    texts = [tuple(split_words(" ".join(example.words))) for example in test]
    pairs = zip(test, texts, rows, strict=True)
    return [example for example, text, row in pairs if text == example.words and not row.truncated]


def _engines(out: Path, test: list[Tagged]) -> dict:
    """The tagger in every engine, and on the edge in a process of its own."""
    _title("Exports, and the same messages in every engine")
    folder = out / "shipped"
    test = _comparable(test, bundles.load(folder).features)[:COMPARED]
    with ThreadPoolExecutor() as pool:
        names = [(out / f"tagger.{form}.tflite", form) for form in ("none", "dynamic")]
        conversions = [pool.submit(quantize.convert, folder, *name, (32, 64)) for name in names]
        serving = saved_model.export(*saving.load(folder), out / "serving" / "tagger", source=folder)
        files = [conversion.result() for conversion in conversions]
    page.write_page(files[1], out / "page")
    names = ("Keras", "SavedModel, raw strings", "TFLite float32", "TFLite int8")
    engines = [open_model(path) for path in (folder, serving, *files)]
    rows = compare.compare(engines, test)
    rows = [row | {"engine": name} for row, name in zip(rows, names, strict=True)]
    print(table(compare.engines_table(rows)))

    texts = [list(example.words) for example in test]
    command = [sys.executable, "-c", _EDGE, *map(str, files)]
    edge = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    if edge.returncode:
        raise RuntimeError(f"the edge runtime failed in its own process:\n{edge.stderr[-2000:]}")
    answers = json.loads(edge.stdout)
    labels = [[[word["label"] for word in answer["words"]] for answer in e.answer(texts)] for e in engines[2:]]
    print(f"  of TensorFlow, Keras, PyTorch and JAX the edge process loaded: {', '.join(answers['loaded']) or 'none'}")
    same = answers["labels"] == labels
    return {"rows": rows, "loaded": answers["loaded"], "same_on_edge": same, "sentences": len(test)}


def _checks(figures: dict) -> list[tuple[bool, str]]:
    """The expected results, and whether each one holds."""
    curve = [value for _, value in figures["distilling"]["curve"]]
    text = f"distillation: the cosine with the teacher rises from {curve[0]:.3f} to {curve[-1]:.3f}"
    checks = [(curve[-1] > curve[0], text)]
    right, asked = figures["search"]["right"], len(figures["search"]["entries"])
    text = f"search: {right['meaning']} of {asked} questions find their place by meaning, {right['words']} by words"
    checks.append((right["meaning"] > right["words"], text))
    for method, gain in figures["tagging"]["gains"].items():
        low, high = gain["interval"]
        text = f"entities: the shipped weights gain {100 * gain['gain']:.1f} points of F1 on {method}"
        checks.append((low > 0, f"{text} (95% interval {100 * low:.1f} to {100 * high:.1f})"))
    senses = figures["senses"]
    right = round(senses["accuracy"] * senses["sentences"])
    text = f"“bank”: the nearest sentence has the same sense for {right} of {senses['sentences']}"
    checks.append((senses["accuracy"] > 0.75, f"{text} (more than 75% asked for)"))
    rows, count = figures["engines"]["rows"], figures["engines"]["sentences"]
    for row in rows[1:3]:
        text = f"{row['engine']} gives Keras' probabilities on {count} messages, to {row['difference']:.1e}"
        checks.append((row["difference"] <= 1e-4, f"{text} (1e-4 asked for)"))
    text = f"TFLite int8 gives Keras' tag for {rows[3]['agreement']:.2%} of the words (99% asked for)"
    checks.append((rows[3]["agreement"] >= 0.99, text))
    same = figures["engines"]["same_on_edge"] and not figures["engines"]["loaded"]
    return [*checks, (same, "a process without TensorFlow gives the same tags")]


def _processor() -> str:
    """The CPU and its instruction sets that matter for the speed of int8 and bfloat16."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"model name\s*:\s*(.+)", info)
    names = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp")
    flags = [name for name in names if f" {name}" in info]
    return " ".join([model.group(1) if model else platform.machine(), *flags])


def _title(text: str) -> None:
    print(f"\n{_coloured(text, BOLD)}\n{'-' * len(text)}", flush=True)


def _coloured(text: str, code: int) -> str:
    """The text in a colour or style of ANSI terminals; plain in a file, or with NO_COLOR set (https://no-color.org)."""
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
