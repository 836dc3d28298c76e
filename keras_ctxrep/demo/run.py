"""The whole way from the shipped weights to a tagger on the edge, on data that comes with the package.

It takes about 7 minutes on 2 cores: pretraining goes on for a minute on a text of another domain; a tagger of
named entities is fine-tuned from the shipped and from random weights, and counted from words alone; the senses of
one word are separated; the tagger is exported, and runs in every engine.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from keras_ctxrep import recipes, saving, tasks, zoo
from keras_ctxrep.demo.report import write_report
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.engines import open_engine
from keras_ctxrep.plots.words import concordance, neighbours, senses
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.corpus import documents, hold_out, without
from keras_ctxrep.text.scores import accuracy, bootstrap
from keras_ctxrep.text.tokens import WordPiece, split_words, words
from keras_ctxrep.version import __version__
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize

__all__ = ["run"]

ENCODER = "bert_3_384_12/books_wiki_en"
DATA = Path(__file__).with_name("data")
ENTITIES = DATA / "wnut17"  # WNUT-2017: train, dev and test
SENSES = DATA / "bank.tsv"  # sentences with the word "bank", labelled with its sense
MARKER = ".ctxrep-demo"  # in a folder that a demo has written
TRAINING = {"max_length": 64, "epochs": 3.0, "learning_rate": 6e-4, "evaluations": 3}  # of the taggers
EXAMPLES = {"train": 2000, "dev": 400, "test": 1287}  # drawn from the data; all there are to test on
COMPARED = 200  # test sentences that every engine tags
METHODS = ("shipped weights", "random weights", "words alone")
Data = dict[str, list[Tagged]]
BOLD, RED, GREEN = 1, 31, 32  # codes of ANSI terminals


def run(
    corpus: Sequence[str | Path] | None = None, out: str | Path = "demo", minutes: float = 1.0, seed: int = 0
) -> dict:
    """Runs the demo and writes OUT/report.html, and its figures to OUT/report.json.

    Args:
        corpus: text files to pretrain on, one sentence a line, an empty line between documents; None: Python's language
            reference.
        out: its contents are replaced; it must be missing, empty, or the folder of an earlier demo.
        minutes: of pretraining.
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
    figures["pretraining"] = _pretraining(encoder, corpus, out, minutes, seed)
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
    data = {name: [*tasks.get("tag").read(ENTITIES / f"{name}.conll.xz")] for name in EXAMPLES}
    return {name: [data[name][i] for i in rng.permutation(len(data[name]))[:count]] for name, count in EXAMPLES.items()}


def _pretraining(encoder: Path, corpus: Sequence[str | Path] | None, out: Path, minutes: float, seed: int) -> dict:
    """Goes on with the encoder's pretraining on another text."""
    text = [*_reference()] if corpus is None else [*documents(corpus)]
    name = _REFERENCE if corpus is None else ", ".join(Path(path).name for path in corpus)
    valid = hold_out(text, seed=seed)
    sides = {"train": [*without(text, valid)], "valid": valid}
    files = {side: out / f"{side}.txt" for side in sides}
    for side, blocks in sides.items():
        files[side].write_text("\n\n".join("\n".join(block) for block in blocks) + "\n", encoding="utf-8")
    count = sum(len(words(sentence)) for block in sides["train"] for sentence in block)
    length = "a minute" if minutes == 1 else f"{minutes:g} minutes"
    _title(f"Pretraining goes on for {length}, from the shipped weights: {name}, {count:,} words")
    features: Any = bundles.load(encoder).features
    baselines = _frequency_baselines(features.wordpiece, sides["train"], valid)
    before = recipes.score(encoder, files["valid"])["mlm_accuracy"]
    unigram, bigram = baselines.values()
    print(f"  right guesses of masked pieces in held-out text: before {before:.1%}; by the most frequent piece")
    print(f"  {unigram:.1%}, by the most frequent one after the true previous piece {bigram:.1%}")

    def show(entry: dict) -> None:
        accuracy = _coloured(f"{entry['val_mlm_logits_accuracy']:.1%}", BOLD)
        print(f"  step {entry['step']:>5}  {entry['minutes']:4.1f} min  {accuracy}", flush=True)

    options: dict[str, Any] = {"init": encoder, "valid": files["valid"], "minutes": minutes, "seed": seed}
    options |= {"batch_size": 16, "learning_rate": 3e-4, "dropout": 0.0, "evaluations": 6}
    history = recipes.pretrain("bert", [files["train"]], out / "pretrained", report=show, **options)
    curve = [(0.0, before)] + [(entry["minutes"], entry["val_mlm_logits_accuracy"]) for entry in history]
    return {"text": name, "words": count, "curve": curve, "baselines": baselines}


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


def _frequency_baselines(wordpiece: WordPiece, train: list[list[str]], valid: list[list[str]]) -> dict[str, float]:
    """Accuracy of the most frequent piece, and of the most frequent one after the true previous piece."""

    def bigrams(side: list[list[str]]) -> list[tuple[int, int]]:
        sentences = (ids for block in side for ids in wordpiece.ids_batch(block))
        return [pair for ids in sentences for pair in zip([wordpiece.cls, *ids], ids, strict=False)]

    followers: dict[int, Counter] = {}
    for before, piece in bigrams(train):
        followers.setdefault(before, Counter())[piece] += 1
    commonest = Counter(piece for _, piece in bigrams(train)).most_common(1)[0][0]
    guesses = {before: counter.most_common(1)[0][0] for before, counter in followers.items()}
    previous, pieces = zip(*bigrams(valid), strict=True)
    bigram = accuracy(pieces, [guesses.get(before, commonest) for before in previous])
    return {"unigram": accuracy(pieces, [commonest] * len(pieces)), "bigram": bigram}


def _tagging(encoder: Path, data: Data, out: Path, seed: int) -> tuple[dict, list[list[str]]]:
    """Figures of the three taggers, and the tags of the best on the test set."""
    sizes = {name: len(side) for name, side in data.items()}
    _title(f"Named entities in messages: {sizes['train']:,} to learn from, {sizes['test']:,} to test on (WNUT-2017)")
    answers = {}
    for method in METHODS[:2]:
        folder = out / method.partition(" ")[0]
        from_scratch = method == "random weights"
        options = TRAINING | {"task": "tag", "from_scratch": from_scratch, "seed": seed}
        recipes.finetune(data["train"], data["dev"], encoder, folder, **options)
        answers[method] = keras_engine.predictor(folder).ask(data["test"])
    answers[METHODS[2]] = [{"words": [{"label": tag} for tag in tags]} for tags in _tags_by_words(data)]
    metrics = {method: tasks.get("tag").compute_metrics(data["test"], answers[method], ()) for method in METHODS}
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
        low, high = bootstrap(partial(_difference, first.statistic, other.statistic), count)
        gain = first.scores["span_f1"] - other.scores["span_f1"]
        figures["gains"][method] = {"gain": gain, "interval": (low, high)}
        points = f"{100 * gain:+.1f} points, 95% interval {100 * low:+.1f} to {100 * high:+.1f}"
        print(f"  shipped weights against {method}: {points}")
    return figures, [[word["label"] or "O" for word in answer["words"]] for answer in answers[METHODS[0]]]


def _difference(first: Callable, second: Callable, drawn: np.ndarray) -> float:
    """The difference of two statistics of the same drawn examples."""
    return first(drawn) - second(drawn)


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
        return tasks.get("tag").compute_metrics(data["dev"], answers, ()).scores["span_f1"]

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
    examples = [*tasks.get("classify").read(SENSES)]
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


def _comparable(test: list[Tagged], features: Any) -> list[Tagged]:
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
    names = ("Keras", "SavedModel, raw strings", "TFLite float32", "TFLite int8")
    engines = [open_engine(path) for path in (folder, serving, *files)]
    engines = [engine._replace(name=name) for engine, name in zip(engines, names, strict=True)]
    rows = compare.compare(engines, test)
    print(_table(compare.engines_table(rows)))

    texts = [list(example.words) for example in test]
    command = [sys.executable, "-c", _EDGE, *map(str, files)]
    edge = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    if edge.returncode:
        raise RuntimeError(f"the edge runtime failed in its own process:\n{edge.stderr[-2000:]}")
    answers = json.loads(edge.stdout)
    labels = [[[word["label"] for word in answer["words"]] for answer in e.predictor(texts)] for e in engines[2:]]
    print(f"  of TensorFlow, Keras, PyTorch and JAX the edge process loaded: {', '.join(answers['loaded']) or 'none'}")
    same = answers["labels"] == labels
    return {"rows": rows, "loaded": answers["loaded"], "same_on_edge": same, "sentences": len(test)}


def _checks(figures: dict) -> list[tuple[bool, str]]:
    """The expected results, and whether each one holds."""
    curve, baselines = figures["pretraining"]["curve"], figures["pretraining"]["baselines"]
    before, after = curve[0][1], curve[-1][1]
    bigram = baselines["bigram"]
    text = f"{before:.1%} of the masked pieces right before, {after:.1%} after, {bigram:.1%} by the previous piece"
    checks = [(after > before and after > bigram, f"pretraining: {text}")]
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


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Cells in aligned columns under a header: figures to the right, text to the left."""
    alignment = ["right" if cell[:1].isdigit() else "left" for cell in rows[-1]]
    return tabulate(rows[1:], rows[0], disable_numparse=True, colalign=alignment)
