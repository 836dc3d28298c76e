"""The main job on a small text: pretrain, fine-tune, export, predict without TensorFlow, and report what came of it."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import keras
import numpy as np
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize

from keras_ctxrep import __version__, recipes, train
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.corpus import documents, hold_out, open_binary, without
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.text.ngrams import KneserNey
from keras_ctxrep.text.pretraining import Vocabulary
from keras_ctxrep.text.scores import accuracy, standard_error
from keras_ctxrep.text.tokens import WordPiece, vocab_text, words

MAX_LENGTH = 64  # tokens of a sentence that is classified
PRETRAINED_LENGTH = {
    "elmo": 64,
    "bert": 32,
}  # tokens of an example in pretraining; BERT learns more from many short ones
MAX_SENTENCES = 20_000  # of a user's corpus
MARKER = ".ctxrep-demo"  # in a folder that a demo has written
SIZES = {"elmo": "elmo_2x128_64_256cnn_1xhighway", "bert": "bert_2_128_2"}
RATES = {"elmo": (1e-2, 5e-3), "bert": (2e-3, 1e-3)}  # learning rates of pretraining and fine-tuning
DROPOUTS = {"elmo": (0.2, 0.3), "bert": (0.0, 0.1)}  # likewise
SHARES = {"elmo": 0.58, "bert": 0.42}  # of the time for pretraining
COMPARED = 200  # held-out sentences that every engine predicts
NAMES = {"elmo": "ELMo biLM", "bert": "BERT"}

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


def run(
    corpus: Sequence[str | Path] | None = None, out: str | Path = "demo", minutes: float = 3.2, seed: int = 0
) -> dict:
    """Runs the whole way and writes OUT/report.md.

    Args:
        corpus: text files, one sentence a line, an empty line between documents; None: Python's language reference.
        out: written anew; it must be missing, empty, or the folder of an earlier demo.
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
    (out / MARKER).write_text("This folder is written anew by each `ctxrep demo`.\n")
    figures: dict = {"source": source, "seed": seed}

    _title(f"Text: {source}")
    text = _split(parts, out / "corpus", seed)
    sizes = {name: len(text[name]) for name in ("train", "dev", "test")}
    figures["text"] = sizes | {"labels": sorted(parts)}
    print(
        f"{sizes['train'] + sizes['dev']} sentences to learn from, {sizes['test']} held out; parts: {', '.join(parts)}"
    )

    figures["pretraining"], figures["tasks"], figures["engines"] = {}, {}, {}
    for family in ("elmo", "bert"):
        _title(f"{NAMES[family]}: pretraining for {minutes * SHARES[family]:.1f} minutes ({SIZES[family]})")
        figures["pretraining"][family] = _pretrain(family, out, minutes * SHARES[family], seed)

    _title("Which part of the text does a sentence come from? Accuracy on the held-out sentences")
    figures["tasks"]["bag of words"] = _bag_of_words(text, seed)
    for family in ("elmo", "bert"):
        for from_scratch in (False, True):
            name = f"{NAMES[family]}, {'random weights' if from_scratch else 'pretrained'}"
            folder = out / family / ("random" if from_scratch else "classifier")
            figures["tasks"][name] = _finetune(family, folder, text, out / family / "pretrained", from_scratch, seed)
    count = len(text["test"])
    for name, share in figures["tasks"].items():
        print(f"  {name:28} {share:6.1%} +- {standard_error(share, count):.1%}")

    for family in ("elmo", "bert"):
        _title(f"{NAMES[family]}: exporting, and predicting in every engine")
        figures["engines"][family] = _engines(family, out, text["test"][:COMPARED])
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
        raise ValueError("two corpus files have the same name; they are to be told apart by it")
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
    kept = list(without(blocks, held))
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in (("train", kept), ("valid", held)):
        (folder / f"{name}.txt").write_text("\n\n".join("\n".join(block) for block in side) + "\n", encoding="utf-8")

    def labelled(side):
        return [Example(s, label_of[s]) for block in side for s in block if len(words(s)) >= 5]

    order = np.random.default_rng(seed).permutation(len(seen := labelled(kept)))
    tenth = len(seen) // 10
    test = labelled(held)
    test = [test[i] for i in np.random.default_rng(seed).permutation(len(test))]
    return {"train": [seen[i] for i in order[tenth:]], "dev": [seen[i] for i in order[:tenth]], "test": test}


# --------------------------------------------------------------------------------------------------------- training


def _pretrain(family: str, out: Path, minutes: float, seed: int) -> dict:
    text, held = (list(documents([out / "corpus" / f"{name}.txt"])) for name in ("train", "valid"))
    if family == "elmo":
        baselines = _counted_perplexity(text, held)
        metric, label = "val_forward_logits_perplexity", "held-out perplexity"
    else:
        wordpiece = WordPiece.train((s for block in text for s in block), 2000)
        vocab = out / "corpus" / "pieces.txt"
        vocab.write_text(vocab_text(wordpiece.vocab), encoding="utf-8")
        baselines = _counted_accuracy(wordpiece, text, held)
        metric, label = "val_mlm_logits_accuracy", "held-out accuracy on masked pieces"
    beside = ", ".join(f"{name} {_figure(family, value)}" for name, value in baselines.items())
    print(f"  {label}; counted on the same text: {beside}")

    def show(entry: dict) -> None:
        print(f"  step {entry['step']:>5}  {entry['minutes']:4.1f} min  {_figure(family, entry[metric])}", flush=True)

    history = recipes.pretrain(
        family,
        [out / "corpus" / "train.txt"],
        out / family / "pretrained",
        size=SIZES[family],
        valid=out / "corpus" / "valid.txt",
        vocab=None if family == "elmo" else out / "corpus" / "pieces.txt",
        max_length=PRETRAINED_LENGTH[family],
        minutes=minutes,
        learning_rate=RATES[family][0],
        dropout=DROPOUTS[family][0],
        seed=seed,
        report=show,
    )
    best = min(history, key=lambda entry: entry["val_loss"])
    return {"history": history, "metric": metric, "label": label, "baselines": baselines, "best": best[metric]}


def _figure(family: str, value: float) -> str:
    return f"{value:.1f}" if family == "elmo" else f"{value:.1%}"


def _counted_perplexity(text, held) -> dict[str, float]:
    """Perplexity of counted models on the same words, cut at the same length, with the same vocabulary."""
    features = CharacterFeatures(PRETRAINED_LENGTH["elmo"])
    seen, unseen = ([row.tokens for block in side for row in features.encode(block)] for side in (text, held))
    vocabulary = Vocabulary.count(seen, size=8000)
    ids = [[vocabulary.ids(sentence).tolist() for sentence in side] for side in (seen, unseen)]
    return {
        name: KneserNey(ids[0], order, len(vocabulary), 0, 1).perplexity(ids[1])
        for order, name in ((1, "unigram"), (2, "bigram"))
    }


def _counted_accuracy(wordpiece: WordPiece, text, held) -> dict[str, float]:
    """How often the commonest piece, and the commonest one after the true piece before, is right."""
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


def _finetune(family: str, folder: Path, text: dict, encoder: Path, from_scratch: bool, seed: int) -> float:
    recipes.finetune(
        text["train"],
        text["dev"],
        encoder,
        folder,
        max_length=MAX_LENGTH,
        epochs=5,
        learning_rate=RATES[family][1],
        dropout=DROPOUTS[family][1],
        mix=True,
        freeze=False,
        from_scratch=from_scratch,
        seed=seed,
    )
    answers = train.predictor(folder)([example.text for example in text["test"]])
    return accuracy([example.label for example in text["test"]], [answer.get("label") for answer in answers])


def _bag_of_words(text: dict, seed: int) -> float:
    """Logistic regression over tf-idf weighted words, stopped early on the dev set."""
    keras.utils.set_random_seed(seed)
    labels = sorted({example.label for example in text["train"]})
    bags = {name: [Counter(w.text.lower() for w in words(e.text)) for e in text[name]] for name in text}
    frequency = Counter(word for bag in bags["train"] for word in bag)
    columns = {word: index for index, (word, count) in enumerate(frequency.most_common(10_000)) if count > 1}
    idf = {word: np.log(len(bags["train"]) / frequency[word]) for word in columns}

    def matrix(name: str) -> np.ndarray:
        found = np.zeros((len(bags[name]), len(columns)), np.float32)
        for row, bag in enumerate(bags[name]):
            for word, count in bag.items():
                if word in columns:
                    found[row, columns[word]] = (1 + np.log(count)) * idf[word]
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)

    targets = {name: np.array([labels.index(example.label) for example in text[name]]) for name in text}
    model = keras.Sequential([keras.Input((len(columns),)), keras.layers.Dense(len(labels))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True)
    validation = (matrix("dev"), targets["dev"])
    fit = {"batch_size": 64, "epochs": 60, "verbose": 0, "callbacks": [stop], "validation_data": validation}
    model.fit(matrix("train"), targets["train"], **fit)
    return float((model.predict(matrix("test"), verbose=0).argmax(1) == targets["test"]).mean())


# ----------------------------------------------------------------------------------------------------------- engines

_EDGE = """
import json, sys, time
from keras_ctxrep_tflite import runtime
texts = json.load(sys.stdin)
found = {}
for path in sys.argv[1:]:
    predictor = runtime.load(path)
    found[path] = predictor.probabilities(texts).argmax(1).tolist()
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "torch", "jax"})
print(json.dumps({"labels": found, "loaded": loaded}))
"""


def _engines(family: str, out: Path, test: list[Example]) -> dict:
    folder = out / family / "classifier"
    saved_model.export(*train.load(folder), out / family / "serving" / "classifier")
    files = {name: out / family / f"classifier.{name}.tflite" for name in ("float32", "int8")}
    quantize.convert(folder, files["float32"], "none")
    quantize.convert(folder, files["int8"], "int8")
    engines = [compare.open_engine(p) for p in (folder, out / family / "serving" / "classifier", *files.values())]
    texts = [example.text for example in test]
    names = ("Keras", "SavedModel, raw string", "TFLite float32", "TFLite int8")
    engines = [engine._replace(name=name) for engine, name in zip(engines, names, strict=True)]
    rows = compare.compare(engines, test)

    command = [sys.executable, "-c", _EDGE, *map(str, files.values())]
    edge = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    if edge.returncode:
        raise RuntimeError(f"the edge runtime failed in its own process:\n{edge.stderr[-2000:]}")
    found = json.loads(edge.stdout)
    here = {str(e.path): e.predictor.probabilities(texts).argmax(1).tolist() for e in engines[2:]}
    print(_table([["engine", *compare.HEADER[1:]], *compare.table(rows)]))
    print(f"  of TensorFlow, Keras, PyTorch and JAX the edge process loaded: {found['loaded'] or 'none'}")
    if found["loaded"]:
        raise RuntimeError(f"the edge runtime loaded {found['loaded']}")
    return {"rows": rows, "loaded": found["loaded"], "same_on_edge": found["labels"] == here, "sentences": len(texts)}


# ------------------------------------------------------------------------------------------------------------ report


def _checks(figures: dict) -> list[tuple[bool, str]]:
    """What the demo set out to show, and whether it did."""
    bilm = figures["pretraining"]["elmo"]
    best, bigram = bilm["best"], bilm["baselines"]["bigram"]
    checks = [(best < bigram, f"biLM's held-out perplexity {best:.1f} is below the bigram's {bigram:.1f}")]
    bert = figures["pretraining"]["bert"]
    best, bigram = bert["best"], bert["baselines"]["bigram"]
    checks.append((best > bigram, f"BERT's accuracy on masked pieces {best:.1%} is above the bigram's {bigram:.1%}"))
    for family, found in figures["engines"].items():
        count = found["sentences"]
        for row in found["rows"][1:3]:
            to = f"to {row['difference']:.1e} (1e-4 asked for)"
            text = f"{NAMES[family]}: {row['engine']} gives Keras' probabilities on {count} sentences, {to}"
            checks.append((row["difference"] <= 1e-4, text))
        row = found["rows"][3]
        text = f"{NAMES[family]}: {row['engine']} gives Keras' label for {row['agreement']:.1%} of them (99% asked for)"
        checks.append((row["agreement"] >= 0.99, text))
        checks.append((found["same_on_edge"], f"{NAMES[family]}: the same labels in a process without TensorFlow"))
    return checks


def _report(figures: dict, out: Path) -> None:
    checks = _checks(figures)
    _title("What came of it")
    for passed, text in checks:
        print(f"  {'yes' if passed else 'NO ':3}  {text}")
    rows = [
        [NAMES[family] if index == 0 else "", *row]
        for family, found in figures["engines"].items()
        for index, row in enumerate(compare.table(found["rows"]))
    ]
    engine_table = [["model", *compare.HEADER], *rows]
    print("\n" + _table(engine_table))
    plots = _plots(figures, out / "plots")
    count = figures["text"]["test"]
    lines = [
        "# From raw text to int8 on the edge",
        "",
        f"keras_ctxrep {__version__}, `ctxrep demo`, seed {figures['seed']}, {figures['minutes']:.1f} minutes on "
        f"{os.cpu_count()} cores ({_processor()}). Text: {figures['source']}; {figures['text']['train']} sentences to "
        f"learn from, {figures['text']['dev']} to choose weights by, {count} held out.",
        "",
        "## What it shows",
        "",
        *(f"- **{'yes' if passed else 'no'}**: {text}" for passed, text in checks),
        "",
        "## Pretraining",
        "",
    ]
    for family, found in figures["pretraining"].items():
        header = ["step", "minutes", found["label"]]
        body = [[str(e["step"]), f"{e['minutes']:.1f}", _figure(family, e[found["metric"]])] for e in found["history"]]
        counted = [[name, "", _figure(family, value)] for name, value in found["baselines"].items()]
        lines += [f"### {NAMES[family]}, `{SIZES[family]}`", "", _markdown([header, *body, *counted]), ""]
    lines += [f"![{path.stem}](plots/{path.name})" for path in plots if path.stem == "learning_curves"]
    lines += [
        "",
        "## Which part of the text a sentence comes from",
        "",
        f"Accuracy on {count} held-out sentences, {len(figures['text']['labels'])} classes, with its standard error.",
        "",
        _markdown(
            [
                ["model", "accuracy"],
                *([n, f"{s:.1%} ± {standard_error(s, count):.1%}"] for n, s in figures["tasks"].items()),
            ]
        ),
        "",
        "## Engines",
        "",
        "Latency is that of one sentence, from string to label, in turns over the engines. Agreement is with Keras.",
        "",
        _markdown(engine_table),
        "",
        "## ELMo's mixing weights",
        "",
        _markdown(
            [
                ["layer", "weight"],
                *(
                    [f"{i}" + (" (characters)" if not i else ""), f"{w:.3f}"]
                    for i, w in enumerate(figures["mix"]["weights"])
                ),
                ["gamma", f"{figures['mix']['gamma']:.3f}"],
            ]
        ),
        "",
    ]
    lines += [f"![{path.stem}](plots/{path.name})" for path in plots if path.stem == "mixing_weights"]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "report.json").write_text(json.dumps(figures, indent=1, default=str), encoding="utf-8")
    print(f"\n{out / 'report.md'}: written after {figures['minutes']:.1f} minutes")


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
    for ax, (family, found) in zip(axes, figures["pretraining"].items(), strict=True):
        history = found["history"]
        ax.plot([e["minutes"] for e in history], [e[found["metric"]] for e in history], marker="o", label=NAMES[family])
        for style, (name, value) in zip((":", "--"), found["baselines"].items(), strict=True):
            ax.axhline(value, color="grey", linestyle=style, label=name)
        ax.set(xlabel="minutes", ylabel=found["label"], yscale="log" if family == "elmo" else "linear")
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
    """The CPU and those of its instructions that decide how fast int8 and bfloat16 are."""
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
    """Cells in aligned columns: text to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = [not rows[-1][i][:1].isdigit() for i in range(len(widths))]
    return "\n".join(
        "  " + "  ".join(c.ljust(w) if l else c.rjust(w) for c, w, l in zip(row, widths, left, strict=True)).rstrip()
        for row in rows
    )


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
