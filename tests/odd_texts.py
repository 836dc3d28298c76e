"""Odd texts through every engine: `python -m tests.odd_texts [--count 5000] [--seed 0] [MODEL...]`.

A BERT and an ELMo that classify, a tagger and an answerer, tiny, with random weights and vocabularies of thousands of
pieces, answer the same texts in Keras, as a SavedModel, as a .tflite file and in JavaScript, where there is Node. In
JavaScript text is prepared and answers are decoded; between the two stand the outputs of Keras. Labels, words, offsets
and answers must be equal, and scores within `TOLERANCE`: where two labels are as near to each other, either is right.

Prints a line of JSON for each model, {"model", "texts", "errors", "labels", engine: [compared, ties, different]}, and
before it one for each difference; the exit code is 1 if there is one. "errors" are texts that are not answered,
"labels" the numbers of texts or words of each label, "ties" labels that differ with scores within the tolerance.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import quantize, runtime
from tests import golden, tiny
from tests.tflite import fuzz

TOLERANCE = 1e-4  # absolute, of probabilities; of an answer's score relative to it too
LONGEST = 3000  # characters of a text
MODELS = ("bert", "elmo", "tagger", "answerer")
GOLDEN = Path(__file__).parent / "tflite" / "web_golden.mjs"


# --------------------------------------------------------------------------------------------------------------- texts


def texts(count: int, seed: int) -> list[str]:
    """Texts of every kind in turn, the same ones for a seed."""
    draw = random.Random(seed)
    words = [word for text in (*golden.ODDITIES, *golden.SENTENCES) for word in (text.split() or [text])]
    return [KINDS[number % len(KINDS)](draw, words)[:LONGEST] for number in range(count)]


def mixed(draw: random.Random, words: list[str]) -> str:
    """Words of many scripts, in other cases and normal forms, with marks and punctuation."""
    size = draw.choice((1, 2, 4, 8, 16, 32, 64))
    return draw.choice((" ", " ", "", "\n", "\t")).join(golden._changed(draw, draw.choice(words)) for _ in range(size))


def odd(draw: random.Random, words: list[str]) -> str:
    """Any code points, lone surrogates among them, special pieces and long runs."""
    return fuzz.odd_text(draw)


def markup(draw: random.Random, words: list[str]) -> str:
    parts = []
    for _ in range(draw.randrange(1, 12)):
        name, word = draw.choice(("b", "a href='x'", "script", "p class=y", "svg/onload=1")), draw.choice(words)
        parts.append(
            draw.choice((f"<{name}>{word}</{name[:1]}>", f"<{name}/>{word}", f"&amp;{word}&#x{ord('é'):x};", "<!--"))
        )
    return draw.choice(("", " ", "\n")).join(parts)


def address(draw: random.Random, words: list[str]) -> str:
    path = "/".join(draw.choice(words) for _ in range(draw.randrange(5)))
    host = draw.choice(("example.org", "xn--bcher-kva.example", "192.0.2.1", "[2001:db8::1]", "bücher.example"))
    return f"{draw.choice(('https://', 'http://', 'mailto:me@', 'file:///', ''))}{host}/{path}?q={draw.random()}&%20#f"


def number(draw: random.Random, words: list[str]) -> str:
    forms = ("{:,.2f}", "{:e}", "{:.0f}", "-{:.3f}%", "${:,.0f}", "{:.1f}°C", "{:.0f}½", "№{:.0f}", "{:.0f}²")
    digits = str.maketrans(
        "0123456789", draw.choice(("0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"))
    )
    parts = [draw.choice(forms).format(10 ** draw.uniform(-3, 20)) for _ in range(draw.randrange(1, 10))]
    return draw.choice((" ", "", "/", "\u00a0")).join(parts).translate(digits)


def run(draw: random.Random, words: list[str]) -> str:
    """Punctuation, or one word, again and again; words of the lengths at which they have no pieces."""
    piece = draw.choice(
        (*".,!?-_'\"…。・¿§", "?!", "--", "\x00", "\ufffd", "\u200b", "\u202e", "e\u0301", draw.choice(words))
    )
    return piece * draw.choice((1, 2, 3, 49, 50, 51, 99, 100, 101, 200))


def limit(draw: random.Random, words: list[str]) -> str:
    """As many words as fit into a model, or one or two more or fewer."""
    words = [draw.choice(words) for _ in range(draw.choice((13, 14, 15, 16, 17, 21, 22, 23, 24, 25)))]
    return " ".join(word if draw.randrange(3) else draw.choice("abcé中.") for word in words)


def short(draw: random.Random, words: list[str]) -> str:
    """One character, or none."""
    letter = chr(draw.choice((draw.randrange(0x250), draw.randrange(0x3000), draw.randrange(0x110000))))
    return draw.choice(("", letter, letter, letter * 2, f" {letter}", f"{letter}\n", f"a{letter}", f"{letter}a"))


KINDS: tuple[Callable[[random.Random, list[str]], str], ...] = (
    *(mixed, mixed, mixed, odd, odd, markup, address, number, run, limit, short),
)


# -------------------------------------------------------------------------------------------------------------- models


def model_of(name: str) -> tuple[keras.Model, Bundle]:
    """A tiny model of `MODELS`, whose answers differ from text to text."""
    if name == "elmo":
        fields: dict[str, Any] = {"sizes": {"max_characters": 12}, "labels": tuple("ABCDE")}
        return spread(*tiny.model("classify", "elmo", max_length=16, **fields))
    special = (*SPECIAL_PIECES[::-1], "[unused1]")
    lowercase = name != "tagger"  # half of the letters, and few pieces: words have several, and some none
    pieces = WordPiece.train(texts(1500, seed=-1), 3000, lowercase, None, True, alphabet=1200, special=special).vocab
    fields = {"vocab": tuple(pieces), "max_length": 24, "lowercase": lowercase}
    if name == "answerer":
        return spread(*tiny.model("answer", pair=True, settings={"stride": 5, "max_answer": 4}, **fields))
    task = {"bert": "classify", "tagger": "tag"}[name]
    return spread(*tiny.model(task, labels=golden.SPANS if task == "tag" else tuple("ABCDE"), **fields))


def spread(model: keras.Model, bundle: Bundle) -> tuple[keras.Model, Bundle]:
    """The model with other biases of its labels, so that none is that of nearly all texts."""
    if bundle.labels:
        batch = bundle.features.collate(bundle.features.encode(texts(200, seed=-2), None, bundle.reads.words))
        logits = keras.ops.convert_to_numpy(model(batch)["logits"]).reshape(-1, len(bundle.labels))
        (bias,) = (weight for weight in model.weights if weight.path == "logits/bias")
        bias.assign(bias - np.median(logits[logits.any(-1)], 0))
    return model, bundle


def engines(model: keras.Model, bundle: Bundle, folder: Path) -> dict[str, Predictor]:
    saving.save(folder / "m", model, bundle)
    file = quantize.convert(folder / "m", folder / "m.tflite", lengths=(8, bundle.max_length))
    exported = saved_model.export(model, bundle, folder / "served")
    return {
        "keras": keras_engine.predictor_of(model, bundle),
        "saved_model": saved_model.load(exported),
        "tflite": runtime.load(file),
    }


# ---------------------------------------------------------------------------------------------------------- comparison


def compared(answer: dict, expected: dict) -> str:
    """How an answer compares with the expected one: "equal", "a tie" or "different"."""
    if "error" in answer or "error" in expected:
        return "equal" if ("error" in answer) == ("error" in expected) else "different"
    if "words" in expected:
        return _worst(_compared_words(answer["words"], expected["words"]))
    if not np.isclose(answer["score"], expected["score"], TOLERANCE, TOLERANCE):
        return "different"
    if not np.allclose(answer.get("probabilities", 0), expected.get("probabilities", 0), 0, TOLERANCE):
        return "different"
    same = all(answer.get(key) == expected.get(key) for key in ("label", "answer", "start", "end"))
    return "equal" if same else "a tie"


def _compared_words(words: Sequence[dict], expected: Sequence[dict]) -> Iterator[str]:
    if len(words) != len(expected):
        yield "different"
        return
    for word, other in zip(words, expected, strict=True):
        near = abs(word["score"] - other["score"]) <= TOLERANCE
        exact = all(word[key] == other[key] for key in ("word", "start", "end"))
        yield "different" if not (near and exact) else "equal" if word["label"] == other["label"] else "a tie"


def _worst(outcomes: Iterator[str]) -> str:
    return max(outcomes, key=("equal", "a tie", "different").index, default="equal")


def plain(answer: dict) -> dict:
    """An answer as JSON has it, without its probabilities as a mapping."""
    answer = json.loads(json.dumps(answer, default=lambda value: value.tolist()))
    if isinstance(answer.get("probabilities"), dict):
        answer["probabilities"] = list(answer["probabilities"].values())
    return answer


def valid(query: Query) -> Query:
    """A query whose lone surrogates are what UTF-8 makes of them."""

    def encoded(text: Any) -> Any:
        return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text and tuple(map(encoded, text))

    return query._replace(text=encoded(query.text), pair=encoded(query.pair))


def in_javascript(folder: Path, model: keras.Model, bundle: Bundle, queries: list[Query]) -> dict:
    """The counts of web_golden.mjs, whose lines of differences are printed."""
    golden.write_queries(folder / "golden" / "model", bundle, queries, keras_engine.answering(model, bundle))
    # the outputs of a text alone, where the answers are those of a batch
    command = ["node", str(GOLDEN), str(folder / "golden"), "1e-5"]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    lines = process.stdout.splitlines()
    if process.returncode not in (0, 1) or not lines:
        raise RuntimeError(process.stderr[-2000:])
    for line in lines[:-1]:
        print(line, file=sys.stderr)
    return json.loads(lines[-1])


def compare(name: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """What comes of so many texts in every engine; differences are printed."""
    model, bundle = model_of(name)
    queries = [valid(query) for query in golden._queries(bundle, texts(count, seed))]
    given = [query.text for query in queries], [query.pair for query in queries] if bundle.reads.pair else None
    answers = {
        engine: [plain(answer) for answer in predictor(*given)]
        for engine, predictor in engines(model, bundle, folder).items()
    }
    expected = answers.pop("keras")
    labels = Counter(
        str(part.get("label", "no answer" if part.get("answer") == "" else "an answer"))
        for answer in expected
        for part in answer.get("words", [answer])
        if "error" not in answer
    )
    errors = sum("error" in answer for answer in expected)
    result: dict[str, Any] = {"model": name, "texts": count, "errors": errors, "labels": dict(labels.most_common())}
    for engine, others in answers.items():
        outcomes = Counter[str]()
        for query, answer, other in zip(queries, expected, others, strict=True):
            outcomes[outcome := compared(other, answer)] += 1
            if outcome == "different":
                print(json.dumps({"model": name, "query": query, "keras": answer, engine: other}))
        result[engine] = [sum(outcomes.values()), outcomes["a tie"], outcomes["different"]]
    if shutil.which("node"):
        counts = in_javascript(folder, model, bundle, queries)
        result["javascript"] = [counts["answers"], 0, counts["different"]]
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[*MODELS])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if shutil.which("node") is None:
        print("there is no Node: nothing runs in JavaScript", file=sys.stderr)
    different = 0
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = compare(name, options.count, options.seed, Path(folder))
        print(json.dumps(result), flush=True)
        different += sum(value[2] for value in result.values() if isinstance(value, list))
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
