"""The whole pipeline on a small text: pretrain, fine-tune, export, predict without TensorFlow, and write a report."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize
from tabulate import tabulate

from keras_ctxrep import __version__, recipes, train
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.corpus import documents, hold_out, open_binary, without
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.text.ngrams import KneserNey
from keras_ctxrep.text.pretraining import Vocabulary
from keras_ctxrep.text.scores import accuracy, standard_error
from keras_ctxrep.text.tokens import WordPiece, vocab_text, words

MAX_LENGTH = 64  # tokens of a sentence that is classified
MAX_SENTENCES = 20_000  # of a user's corpus
MARKER = ".ctxrep-demo"  # in a folder that a demo has written
COMPARED = 200  # held-out sentences that every engine predicts
# The chapter of the language reference that a topic of `pydoc_data.topics` is taken from.
CHAPTERS = {
    "data model": "types specialnames objects customization attribute-access callable-types sequence-types"
    " numeric-types context-managers typesfunctions typesmethods typesmodules specialattrs",
    "statements": "compound class function with try for while if else async assert assignment augassign break continue"
    " del global import nonlocal pass raise return yield",
    "expressions": "calls comparisons operator-summary binary bitwise booleans conversions dict exprlists lambda lists"
    " power shifting slicings subscriptions truth unary attribute-references await in",
    "lexical analysis": "strings identifiers id-classes atom-identifiers atom-literals integers floating imaginary"
    " numbers",
    "execution model": "execmodel naming dynamic-features exceptions",
    "built-in types": "typesseq typesmapping string-methods typesseq-mutable",
    "format strings": "formatstrings",
    "debugger": "debugger",
}


@dataclass(frozen=True)
class Encoder:
    """One of the two encoders of the demo.

    Attributes:
        name: shown in the report.
        family, size: as of `recipes.pretrain`.
        fraction: of the time for pretraining.
        max_length: tokens of an example in pretraining; BERT learns more from many short ones.
        rates, dropouts: of pretraining and of fine-tuning.
        metric: of pretraining, in the evaluations.
        label: description of the metric.
        form: its format.
        scale: of its axis.
        baselines: documents to learn from and held out, and a folder -> the metric of n-gram models by name.
    """

    name: str
    family: str
    size: str
    fraction: float
    max_length: int
    rates: tuple[float, float]
    dropouts: tuple[float, float]
    metric: str
    label: str
    form: str
    scale: str
    baselines: Callable[[list, list, Path], dict[str, float]]
    has_vocabulary: bool  # learned by `baselines`, which writes pieces.txt

    def shown(self, value: float) -> str:
        """The metric as it is printed."""
        return format(value, self.form)


def run(
    corpus: Sequence[str | Path] | None = None, out: str | Path = "demo", minutes: float = 3.2, seed: int = 0
) -> dict:
    """Runs the whole pipeline and writes OUT/report.md.

    Args:
        corpus: text files, one sentence a line, an empty line between documents; None: Python's language reference.
        out: its contents are replaced; it must be missing, empty, or the folder of an earlier demo.
        minutes: for the two pretrainings together.
        seed: of every random choice.

    Returns: all figures of the report.

    Raises:
        ValueError: the folder holds something else, or there is too little text.
    """
    begin = time.monotonic()
    out = Path(out)
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise ValueError(f"{out}: not empty, and no earlier demo; choose another --out")
    parts, source = _reference() if corpus is None else _own_text(corpus)
    for child in ("corpus", "elmo", "bert", "plots"):
        shutil.rmtree(out / child, ignore_errors=True)
    (out / "plots").mkdir(parents=True)
    (out / MARKER).write_text("Each `ctxrep demo` replaces the contents of this folder.\n")
    figures: dict = {"source": source, "seed": seed}

    _title(f"Text: {source}")
    text = _split(parts, out / "corpus", seed)
    sizes = {name: len(text[name]) for name in ("train", "dev", "test")}
    figures["text"] = sizes | {"labels": sorted(parts)}
    print(
        f"{sizes['train'] + sizes['dev']} sentences to learn from, {sizes['test']} held out; parts: {', '.join(parts)}"
    )

    figures["pretraining"], figures["tasks"], figures["engines"] = {}, {}, {}
    for key, encoder in ENCODERS.items():
        _title(f"{encoder.name}: pretraining for {minutes * encoder.fraction:.1f} minutes ({encoder.size})")
        figures["pretraining"][key] = _pretrain(encoder, out, minutes * encoder.fraction, seed)

    _title("Which part of the text does a sentence come from? Accuracy on the held-out sentences")
    figures["tasks"]["bag of words"] = _bag_of_words(text)
    for encoder in ENCODERS.values():
        for from_scratch in (False, True):
            name = f"{encoder.name}, {'random weights' if from_scratch else 'pretrained'}"
            figures["tasks"][name] = _finetune(encoder, out / encoder.family, text, from_scratch, seed)
    count = len(text["test"])
    for name, value in figures["tasks"].items():
        print(f"  {name:28} {value:6.1%} +- {standard_error(value, count):.1%}")

    for key, encoder in ENCODERS.items():
        _title(f"{encoder.name}: exporting, and predicting in every engine")
        figures["engines"][key] = _engines(out / key, text["test"][:COMPARED])
    mix, _ = train.load(out / "elmo" / "classifier")
    w, gamma = mix.get_layer("scalar_mix").get_weights()
    figures["mix"] = {"weights": (np.exp(w) / np.exp(w).sum()).tolist(), "gamma": float(gamma)}
    figures["minutes"] = (time.monotonic() - begin) / 60
    _report(figures, out)
    return figures


# ------------------------------------------------------------------------------------------------------------- text


def _reference() -> tuple[dict[str, list[list[str]]], str]:
    """The prose of the language reference: chapter -> documents of sentences."""
    from pydoc_data.topics import topics

    chapter_of = {topic: chapter for chapter, names in CHAPTERS.items() for topic in names.split()}
    parts: dict[str, list[list[str]]] = {chapter: [] for chapter in CHAPTERS}
    # Long topics first: they hold many of the short ones, whose repeated sentences are dropped later.
    for topic, body in sorted(topics.items(), key=lambda item: -len(item[1])):
        if topic in chapter_of:
            parts[chapter_of[topic]].append(list(_prose(body)))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return parts, f"the language reference of Python {version} (pydoc_data.topics)"


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


def _own_text(corpus: Sequence[str | Path]) -> tuple[dict[str, list[list[str]]], str]:
    """A user's files, a part each; a single file in four quarters."""
    parts: dict[str, list[list[str]]] = {}
    for path in corpus:
        open_binary(path).close()
        parts[Path(path).name] = list(documents([path]))
    if len(parts) < len(corpus):
        raise ValueError("two corpus files have the same name; their names must differ")
    if len(corpus) == 1:
        blocks = [doc[i : i + 20] for doc in next(iter(parts.values())) for i in range(0, len(doc), 20)]
        if len(blocks) < 40:
            raise ValueError(f"{corpus[0]}: {len(blocks)} blocks of 20 sentences; the demo needs at least 40")
        bounds = np.linspace(0, len(blocks), 5).astype(int)
        parts = {f"quarter {i + 1}": blocks[bounds[i] : bounds[i + 1]] for i in range(4)}
    return parts, ", ".join(Path(path).name for path in corpus)


def _split(parts: dict[str, list[list[str]]], folder: Path, seed: int) -> dict[str, list[Example]]:
    """Writes train.txt and valid.txt; gives labelled sentences of the same split, a tenth of the former as dev."""
    label_of: dict[str, str] = {}
    blocks = []
    for label, docs in parts.items():
        for document in docs:
            if len(label_of) < MAX_SENTENCES:
                blocks.append([sentence for sentence in document if sentence not in label_of])
                for sentence in blocks[-1]:
                    label_of.setdefault(sentence, label)
    held = hold_out(blocks, seed=seed)
    remaining = list(without(blocks, held))
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in (("train", remaining), ("valid", held)):
        (folder / f"{name}.txt").write_text("\n\n".join("\n".join(block) for block in side) + "\n", encoding="utf-8")

    def labelled(side):
        return [Example(s, label_of[s]) for block in side for s in block if len(words(s)) >= 5]

    order = np.random.default_rng(seed).permutation(len(seen := labelled(remaining)))
    tenth = len(seen) // 10
    test = labelled(held)
    test = [test[i] for i in np.random.default_rng(seed).permutation(len(test))]
    return {"train": [seen[i] for i in order[tenth:]], "dev": [seen[i] for i in order[:tenth]], "test": test}


# --------------------------------------------------------------------------------------------------------- training


def _pretrain(encoder: Encoder, out: Path, minutes: float, seed: int) -> dict:
    text, held = (list(documents([out / "corpus" / f"{name}.txt"])) for name in ("train", "valid"))
    baselines = encoder.baselines(text, held, out / "corpus")
    ngrams = ", ".join(f"{name} {encoder.shown(value)}" for name, value in baselines.items())
    print(f"  {encoder.label}; n-gram models of the same text: {ngrams}")

    def show(entry: dict) -> None:
        value = encoder.shown(entry[encoder.metric])
        print(f"  step {entry['step']:>5}  {entry['minutes']:4.1f} min  {value}", flush=True)

    history = recipes.pretrain(
        encoder.family,
        [out / "corpus" / "train.txt"],
        out / encoder.family / "pretrained",
        size=encoder.size,
        valid=out / "corpus" / "valid.txt",
        vocab=out / "corpus" / "pieces.txt" if encoder.has_vocabulary else None,
        max_length=encoder.max_length,
        minutes=minutes,
        learning_rate=encoder.rates[0],
        dropout=encoder.dropouts[0],
        seed=seed,
        report=show,
    )
    best = min(history, key=lambda entry: entry["val_loss"])[encoder.metric]
    return {"history": history, "baselines": baselines, "best": best}


def _ngram_perplexity(text: list, held: list, folder: Path) -> dict[str, float]:
    """Perplexity of n-gram models on the same words, cut at the same length, with the same vocabulary."""
    features = CharacterFeatures(ENCODERS["elmo"].max_length)
    seen, unseen = ([row.tokens for block in side for row in features.encode(block)] for side in (text, held))
    vocabulary = Vocabulary.count(seen, size=8000)
    ids = [[vocabulary.ids(sentence).tolist() for sentence in side] for side in (seen, unseen)]
    return {
        name: KneserNey(ids[0], order, len(vocabulary), 0, 1).perplexity(ids[1])
        for order, name in ((1, "unigram"), (2, "bigram"))
    }


def _ngram_accuracy(text: list, held: list, folder: Path) -> dict[str, float]:
    """Accuracy of always predicting the most frequent piece, and the most frequent one after the true previous piece.

    The pieces are learned from the text, and written to pieces.txt in the folder.
    """
    wordpiece = WordPiece.train((sentence for block in text for sentence in block), 2000)
    (folder / "pieces.txt").write_text(vocab_text(wordpiece.vocab), encoding="utf-8")
    seen, unseen = ([ids for block in side for ids in wordpiece.ids_batch(block)] for side in (text, held))
    after: dict[int, Counter] = {}
    for ids in seen:
        for before, piece in zip([wordpiece.cls, *ids], ids, strict=False):
            after.setdefault(before, Counter())[piece] += 1
    commonest = Counter(piece for ids in seen for piece in ids).most_common(1)[0][0]
    guesses = {before: counter.most_common(1)[0][0] for before, counter in after.items()}
    pairs = [(before, piece) for ids in unseen for before, piece in zip([wordpiece.cls, *ids], ids, strict=False)]
    return {
        "unigram": accuracy([piece for _, piece in pairs], [commonest] * len(pairs)),
        "bigram": accuracy([piece for _, piece in pairs], [guesses.get(before, commonest) for before, _ in pairs]),
    }


ENCODERS = {
    "elmo": Encoder(
        "ELMo biLM",
        "elmo",
        "elmo_2x128_64_256cnn_1xhighway",
        0.58,
        64,
        (1e-2, 5e-3),
        (0.2, 0.3),
        "val_forward_logits_perplexity",
        "held-out perplexity",
        ".1f",
        "log",
        _ngram_perplexity,
        False,
    ),
    "bert": Encoder(
        "BERT",
        "bert",
        "bert_2_128_2",
        0.42,
        32,
        (2e-3, 1e-3),
        (0.0, 0.1),
        "val_mlm_logits_accuracy",
        "held-out accuracy on masked pieces",
        ".1%",
        "linear",
        _ngram_accuracy,
        True,
    ),
}


def _finetune(encoder: Encoder, folder: Path, text: dict, from_scratch: bool, seed: int) -> float:
    out = folder / ("random" if from_scratch else "classifier")
    recipes.finetune(
        text["train"],
        text["dev"],
        folder / "pretrained",
        out,
        max_length=MAX_LENGTH,
        epochs=5.0,
        learning_rate=encoder.rates[1],
        dropout=encoder.dropouts[1],
        mix=True,
        freeze=False,
        from_scratch=from_scratch,
        seed=seed,
    )
    answers = train.predictor(out)([example.text for example in text["test"]])
    return accuracy([example.label for example in text["test"]], [answer.get("label") for answer in answers])


def _bag_of_words(text: dict) -> float:
    """Logistic regression over tf-idf weighted words; the regularization strength is chosen on the dev set."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    bags = TfidfVectorizer(analyzer=lambda text: [w.text.lower() for w in words(text)], min_df=2, sublinear_tf=True)
    texts, labels = ({name: [getattr(e, key) for e in text[name]] for name in text} for key in ("text", "label"))
    seen = bags.fit_transform(texts["train"])
    models = [LogisticRegression(C=c, max_iter=1000).fit(seen, labels["train"]) for c in (1.0, 10.0, 100.0)]
    best = max(models, key=lambda model: model.score(bags.transform(texts["dev"]), labels["dev"]))
    return float(best.score(bags.transform(texts["test"]), labels["test"]))


# ----------------------------------------------------------------------------------------------------------- engines

_EDGE = """
import json, sys, time
from keras_ctxrep_tflite import runtime
texts = json.load(sys.stdin)
labels = {}
for path in sys.argv[1:]:
    predictor = runtime.load(path)
    labels[path] = predictor.probabilities(texts).argmax(1).tolist()
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "torch", "jax"})
print(json.dumps({"labels": labels, "loaded": loaded}))
"""


def _engines(out: Path, test: list[Example]) -> dict:
    folder = out / "classifier"
    saved_model.export(*train.load(folder), out / "serving" / "classifier")
    files = {name: out / f"classifier.{name}.tflite" for name in ("float32", "int8")}
    quantize.convert(folder, files["float32"], "none")
    quantize.convert(folder, files["int8"], "int8")
    engines = [compare.open_engine(p) for p in (folder, out / "serving" / "classifier", *files.values())]
    texts = [example.text for example in test]
    names = ("Keras", "SavedModel, raw string", "TFLite float32", "TFLite int8")
    engines = [engine._replace(name=name) for engine, name in zip(engines, names, strict=True)]
    rows = compare.compare(engines, test)

    command = [sys.executable, "-c", _EDGE, *map(str, files.values())]
    edge = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    if edge.returncode:
        raise RuntimeError(f"the edge runtime failed in its own process:\n{edge.stderr[-2000:]}")
    answers = json.loads(edge.stdout)
    in_process = {str(e.path): e.predictor.probabilities(texts).argmax(1).tolist() for e in engines[2:]}
    loaded = answers["loaded"]
    print(_table([["engine", *compare.HEADER[1:]], *compare.table(rows)]))
    print(f"  of TensorFlow, Keras, PyTorch and JAX the edge process loaded: {loaded or 'none'}")
    if loaded:
        raise RuntimeError(f"the edge runtime loaded {loaded}")
    return {"rows": rows, "loaded": loaded, "same_on_edge": answers["labels"] == in_process, "sentences": len(texts)}


# ------------------------------------------------------------------------------------------------------------ report


def _checks(figures: dict) -> list[tuple[bool, str]]:
    """The expected results, and whether each one holds."""
    bilm = figures["pretraining"]["elmo"]
    best, bigram = bilm["best"], bilm["baselines"]["bigram"]
    checks = [(best < bigram, f"biLM's held-out perplexity {best:.1f} is below the bigram's {bigram:.1f}")]
    bert = figures["pretraining"]["bert"]
    best, bigram = bert["best"], bert["baselines"]["bigram"]
    checks.append((best > bigram, f"BERT's accuracy on masked pieces {best:.1%} is above the bigram's {bigram:.1%}"))
    for key, results in figures["engines"].items():
        count, name = results["sentences"], ENCODERS[key].name
        for row in results["rows"][1:3]:
            to = f"to {row['difference']:.1e} (1e-4 asked for)"
            text = f"{name}: {row['engine']} gives Keras' probabilities on {count} sentences, {to}"
            checks.append((row["difference"] <= 1e-4, text))
        row = results["rows"][3]
        text = f"{name}: {row['engine']} gives Keras' label for {row['agreement']:.1%} of them (99% asked for)"
        checks.append((row["agreement"] >= 0.99, text))
        checks.append((results["same_on_edge"], f"{name}: the same labels in a process without TensorFlow"))
    return checks


def _report(figures: dict, out: Path) -> None:
    checks = _checks(figures)
    _title("Results")
    for passed, text in checks:
        print(f"  {'yes' if passed else 'NO ':3}  {text}")
    rows = [
        [ENCODERS[key].name if index == 0 else "", *row]
        for key, results in figures["engines"].items()
        for index, row in enumerate(compare.table(results["rows"]))
    ]
    engines = [["model", *compare.HEADER], *rows]
    print("\n" + _table(engines))
    plots = {path.stem: f"![{path.stem}](plots/{path.name})" for path in _plots(figures, out / "plots")}
    parts = [
        _introduction(figures, checks),
        _pretraining_part(figures, plots.get("learning_curves", "")),
        _tasks_part(figures),
        "## Engines\n\nLatency is that of one sentence, from string to label, alternating between the engines. "
        f"Agreement is with Keras.\n\n{_markdown(engines)}",
        _mix_part(figures, plots.get("mixing_weights", "")),
    ]
    (out / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    (out / "report.json").write_text(json.dumps(figures, indent=1, default=str), encoding="utf-8")
    print(f"\n{out / 'report.md'}: written after {figures['minutes']:.1f} minutes")


def _introduction(figures: dict, checks: list[tuple[bool, str]]) -> str:
    text = figures["text"]
    results = "\n".join(f"- **{'yes' if passed else 'no'}**: {check}" for passed, check in checks)
    return (
        "# From raw text to int8 on the edge\n\n"
        f"keras_ctxrep {__version__}, `ctxrep demo`, seed {figures['seed']}, {figures['minutes']:.1f} minutes on "
        f"{os.cpu_count()} cores ({_processor()}). Text: {figures['source']}; {text['train']} sentences to "
        f"learn from, {text['dev']} to choose weights by, {text['test']} held out.\n\n"
        f"## Results\n\n{results}"
    )


def _pretraining_part(figures: dict, plot: str) -> str:
    parts = ["## Pretraining"]
    for key, run in figures["pretraining"].items():
        encoder = ENCODERS[key]
        rows = [["step", "minutes", encoder.label]]
        rows += [
            [str(entry["step"]), f"{entry['minutes']:.1f}", encoder.shown(entry[encoder.metric])]
            for entry in run["history"]
        ]
        rows += [[name, "", encoder.shown(value)] for name, value in run["baselines"].items()]
        parts += [f"### {encoder.name}, `{encoder.size}`", _markdown(rows)]
    return "\n\n".join([*parts, plot] if plot else parts)


def _tasks_part(figures: dict) -> str:
    count = figures["text"]["test"]
    rows = [[name, f"{value:.1%} ± {standard_error(value, count):.1%}"] for name, value in figures["tasks"].items()]
    return (
        "## Which part of the text a sentence comes from\n\n"
        f"Accuracy on {count} held-out sentences, {len(figures['text']['labels'])} classes, with its standard "
        "error.\n\n" + _markdown([["model", "accuracy"], *rows])
    )


def _mix_part(figures: dict, plot: str) -> str:
    rows = [
        [f"{layer} (characters)" if layer == 0 else str(layer), f"{weight:.3f}"]
        for layer, weight in enumerate(figures["mix"]["weights"])
    ]
    rows.append(["gamma", f"{figures['mix']['gamma']:.3f}"])
    part = "## ELMo's mixing weights\n\n" + _markdown([["layer", "weight"], *rows])
    return f"{part}\n\n{plot}" if plot else part


def _plots(figures: dict, folder: Path) -> list[Path]:
    """Learning curves and mixing weights as PNG; none where matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        print("no plots: pip install matplotlib")
        return []
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for ax, (key, run) in zip(axes, figures["pretraining"].items(), strict=True):
        encoder, history = ENCODERS[key], run["history"]
        values = [entry[encoder.metric] for entry in history]
        ax.plot([entry["minutes"] for entry in history], values, marker="o", label=encoder.name)
        for style, (name, value) in zip((":", "--"), run["baselines"].items(), strict=True):
            ax.axhline(value, color="grey", linestyle=style, label=name)
        ax.set(xlabel="minutes", ylabel=encoder.label, yscale=encoder.scale)
        ax.legend()
    paths = [folder / "learning_curves.png"]
    figure.savefig(paths[0], dpi=120)
    weights = figures["mix"]["weights"]
    figure, ax = plt.subplots(figsize=(4, 3), layout="constrained")
    ax.bar(["characters", *(f"biLSTM {i}" for i in range(1, len(weights)))], weights)
    ax.set(ylabel="mixing weight", ylim=(0, 1))
    paths.append(folder / "mixing_weights.png")
    figure.savefig(paths[1], dpi=120)
    plt.close("all")
    return paths


def _processor() -> str:
    """The CPU and its instruction sets that matter for the speed of int8 and bfloat16."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"model name\s*:\s*(.+)", info)
    flags = [
        flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp") if f" {flag}" in info
    ]
    return " ".join([model.group(1) if model else platform.machine(), *flags])


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Cells in aligned columns under a header."""
    return tabulate(rows[1:], rows[0], disable_numparse=True, colalign=_alignment(rows))


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows[1:], rows[0], "pipe", disable_numparse=True, colalign=_alignment(rows))


def _alignment(rows: Sequence[Sequence[str]]) -> list[str]:
    """Figures to the right, text to the left."""
    return ["right" if cell[:1].isdigit() else "left" for cell in rows[-1]]
