"""Compares the text preparation inside SavedModels with that of `bundle.features`: every id, every offset.

    python benchmarks/graph_text.py [--texts FILE ...] [--tokenizer FILE ...] [--count 100000] [--speed]

The strings are lines of the files; then every code point between letters; and random ones of all Unicode blocks with
controls, combining marks and very long words. Each goes through every path that a task's text
takes: whole, as a pair, as words with offsets, as words split already, in windows, and as a question's context; uncased
and cased pieces, ELMo's characters, a unigram model and a byte-level BPE that are learned from the strings, and those
of the tokenizer.json files. Prints a table, and the code points of strings that differ; with --speed instead how many
texts of 20 words, from the lines of the files, one core prepares in a second, by CPU time.

Left out of the uncased paths, which strip accents, since it is known to differ: a musical note of one character before
a virama, U+1D15E to U+1D164 and U+1D1BB to U+1D1C0, whose parts have canonical classes of their own.
"""

import argparse
import gc
import random
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tabulate import tabulate
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.normalizers import BertNormalizer

from keras_ctxrep import tasks
from keras_ctxrep.checks import of_kind
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import lines
from keras_ctxrep.text.features import Reads, WordPieceFeatures, words_of_pieces
from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Subwords, parse
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece, words
from keras_ctxrep_export import text_ops

BATCH = 500
POINTS = [
    chr(code)
    for code in range(0x110000)
    if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs") or (code % 1000 == 0 and not 0xD800 <= code < 0xE000)
]
VIRAMAS = "".join(char for char in POINTS if unicodedata.combining(char) == 9 and unicodedata.category(char) == "Mc")
BETWEEN = "".join(char for char in POINTS if unicodedata.combining(char) or unicodedata.category(char) in ("Cc", "Cf"))
KNOWN = re.compile(rf"[\U0001D15E-\U0001D164\U0001D1BB-\U0001D1C0][{re.escape(BETWEEN)}]*[{VIRAMAS}]")


def strings(files: Iterable[str], count: int, seed: int = 0) -> Iterator[str]:
    """Half of the strings from the files, if there are any, and the others made up."""
    made = count
    for number, file in enumerate(files := list(files)):
        part = count // 2 // len(files) + (number < count // 2 % len(files))
        for _, line in islice(((n, line) for n, line in lines(file) if line.strip()), part):
            made -= 1
            yield line
    pick = random.Random(seed)
    points = [f"a{char}b {char} A{char}" for char in POINTS]
    pick.shuffle(points)
    per_text = max(1, 3 * len(points) // max(1, made))
    blocks = [POINTS[begin : begin + 256] for begin in range(0, len(POINTS), 256)]
    special = ["\t\n\0\x01\x7f\x85\xa0\u2028", "\u0301\u0308\u0323\u200d\u00ad\u1b44\u302e", " ", "aAéÉß", ".,!?-"]
    for number in range(made):
        if number % 3 == 0 and points:
            yield " ".join(points[-per_text:])
            del points[-per_text:]
        elif number % 3 == 1 or number % 50:
            source = [pick.choice(blocks), pick.choice(blocks), *special]
            yield "".join(pick.choice(pick.choice(source)) for _ in range(pick.randrange(60)))
        else:
            yield pick.choice("aé中\u0301😀") * pick.choice([99, 100, 101, 5000]) + pick.choice(POINTS)


def vocabulary() -> tuple[str, ...]:
    """Every character, as the rules change it and as it is, first or not, so that no difference hides in [UNK]."""
    text = "".join(POINTS)
    rules = [(False, True), (True, False), (True, True)]
    changed = [BertNormalizer(False, False, strip, lower).normalize_str(text) for strip, lower in rules]
    chars = dict.fromkeys("".join([text, *changed]))
    for char in "…\0\x11":  # tensorflow-text cannot take "\0" and "\x11" as pieces
        chars.pop(char, None)
    return (*SPECIAL_PIECES, *chars, *("##" + char for char in chars))


def learned(texts: list[str], size: int = 4000) -> dict[str, Subwords]:
    """A unigram model and a byte-level BPE of some texts."""
    special, made = [*ROBERTA_TOKENS.pieces], {}
    for name, model, splitter, trainer in (
        ("unigram", models.Unigram(), pre_tokenizers.Metaspace(), trainers.UnigramTrainer(unk_token="<unk>")),
        ("BPE", models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), trainers.BpeTrainer()),
    ):
        trainer.vocab_size, trainer.special_tokens, trainer.show_progress = size, special, False
        trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet() if name == "BPE" else []
        tokenizer: Any = Tokenizer(model)
        tokenizer.pre_tokenizer = splitter
        tokenizer.train_from_iterator(texts, trainer)
        made[name] = parse(tokenizer.to_str())
    return made


def bundle_of(subwords: Subwords) -> Bundle:
    special = {"vocab": subwords.pieces, "special_tokens": ROBERTA_TOKENS}
    return Bundle("roberta", "classify", {}, 128, tokenizer=subwords.to_json(), **special)


def bundles(vocab: tuple[str, ...], subwords: dict[str, Subwords]) -> dict[str, Bundle]:
    """A bundle for each way of reading."""
    made = {}
    for name, rules in {"uncased": {}, "cased": {"lowercase": False}}.items():
        made[name] = Bundle("bert", "classify", {}, 128, vocab=vocab, **rules)
    made |= {name: bundle_of(each) for name, each in subwords.items()}
    made["ELMo"] = Bundle("elmo", "classify", {"max_characters": 50}, 128)
    return made


def reading(bundle: Bundle, **reads) -> Bundle:
    return replace(bundle, reads=Reads(**reads))


def paths(bundle: Bundle) -> dict[str, Callable[[list[str]], tuple[list, list]]]:
    """Name of a path -> function from texts to (ids and offsets of each from the graph, the same expected)."""
    compared = {"text": _whole(bundle), "windows": _windows(bundle), "words": _words(bundle), "split": _split(bundle)}
    if bundle.family != "elmo":
        compared |= {"pair": _pair(bundle), "question": _question(bundle)}
    return compared


def _graph(function: Callable, *shapes: list) -> Callable:
    signature = [tf.TensorSpec(shape, tf.string) for shape in shapes]
    return tf.function(function, autograph=False, input_signature=signature)


def _per_row(arrays: dict[str, Any]) -> list[tuple]:
    """The values of each row, but for padding."""
    mask, starts = np.array(arrays["mask"], bool), arrays.get("starts")
    columns = [np.array(arrays[key]) for key in sorted(arrays.keys() - {"starts"})]
    rows = [tuple(column[i][own].tobytes() for column in columns) for i, own in enumerate(mask)]
    if starts is not None:
        rows = [(*row, *own[own > 0].tolist()) for row, own in zip(rows, np.array(starts), strict=True)]
    return rows


def _whole(bundle: Bundle):
    graph = _graph(text_ops.features(bundle), [None])
    return lambda texts: (_per_row(graph(tf.constant(texts))), _per_row(bundle.features(texts)))


def _pair(bundle: Bundle):
    bundle = reading(bundle, pair=True)
    ops, features = text_ops.features(bundle), bundle.features
    graph = _graph(ops, [None], [None])

    def compare(texts: list[str]):
        pairs = texts[::-1]
        return _per_row(graph(tf.constant(texts), tf.constant(pairs))), _per_row(features(texts, pairs))

    return compare


def _windows(bundle: Bundle):
    ops: Any = text_ops.features(bundle)
    graph = _graph(lambda text: tuple(ops.text_windows(text, 64)), [None])

    def compare(texts: list[str]):
        inputs, example, *_ = graph(tf.constant(texts))
        rows = bundle.features.text_windows(texts, 64)
        expected = _per_row(bundle.features.collate([row for own in rows for row in own]))
        numbers = [number for number, own in enumerate(rows) for _ in own]
        return _grouped(_per_row(inputs), example.numpy().tolist(), len(texts)), _grouped(expected, numbers, len(texts))

    return compare


def _grouped(rows: list, numbers: list[int], count: int) -> list[list]:
    groups: list[list] = [[] for _ in range(count)]
    for row, number in zip(rows, numbers, strict=True):
        groups[number].append(row)
    return groups


def _words(bundle: Bundle):
    bundle = reading(bundle, words=True)
    ops: Any = text_ops.features(bundle)
    graph = _graph(lambda text: tuple(ops.tagging(text)), [None])

    def compare(texts: list[str]):
        inputs, number, spans = graph(tf.constant(texts))
        columns = [number.numpy(), *(spans[name].numpy() for name in ("starts", "ends", "words"))]
        actual = [
            (row, [span for span in zip(*(column[i].tolist() for column in columns), strict=True) if span[2]])
            for i, row in enumerate(_per_row(inputs))
        ]
        expected = []
        rows = bundle.features.encode(texts, offsets=True)
        for text, row, encoded in zip(texts, _per_row(bundle.features(texts)), rows, strict=True):
            places = encoded.words if bundle.family != "elmo" else [(w.start, w.end) for w in words(text)][:128]
            starts = (encoded.starts or [])[: len(places or [])]
            numbers = [-1 if start is None else order for order, start in enumerate(starts)]
            spelled = [(n, a, b, text[a:b].encode()) for n, (a, b) in zip(numbers, places or [], strict=True)]
            expected.append((row, spelled))
        return actual, expected

    return compare


def _split(bundle: Bundle):
    bundle = reading(bundle, words=True)
    ops: Any = text_ops.features(bundle)
    graph = _graph(lambda given: ops.given(given).inputs, [None, None])

    def compare(texts: list[str]):
        sentences = [text.split(" ") for text in texts]
        sentences = [[word for word in sentence if word] for sentence in sentences]
        longest = max(map(len, sentences))
        padded = [[*sentence, *[""] * (longest - len(sentence))] for sentence in sentences]
        return _per_row(graph(tf.constant(padded))), _per_row(bundle.features(sentences))

    return compare


def _question(bundle: Bundle):
    bundle = replace(bundle, **tasks.bundle_fields("answer"))
    ops: Any = text_ops.features(bundle)
    graph = _graph(lambda *texts: tuple(ops.windows(*texts, 64))[:7], [None], [None])

    def compare(texts: list[str]):
        inputs, example, *_, start, end = graph(tf.constant(texts[::-1]), tf.constant(texts))
        features = of_kind(bundle.features, WordPieceFeatures)
        rows = features.windows(texts[::-1], texts, 64)
        expected = _per_row(features.collate([row for own in rows for row in own]))
        numbers = [number for number, own in enumerate(rows) for _ in own]
        pieces = features.wordpiece.encode_batch(texts)
        spans = iter(zip(start.numpy().tolist(), end.numpy().tolist(), strict=True))
        actual = _grouped(_per_row(inputs), example.numpy().tolist(), len(texts))
        return (
            [(row, [next(spans) for _ in own]) for row, own in zip(actual, pieces, strict=True)],
            [
                (row, words_of_pieces(own))
                for row, own in zip(_grouped(expected, numbers, len(texts)), pieces, strict=True)
            ],
        )

    return compare


def speed(texts: list[str], subwords: dict[str, Subwords], batches: tuple[int, ...] = (1, 32, 256, 1024)) -> list[list]:
    """Rows of (model, texts per second for each size of a batch): of texts of 20 words."""
    words = [word for text in texts for word in text.split()]
    texts = [" ".join(words[begin : begin + 20]) for begin in range(0, len(words) - 19, 20)]
    pieces = WordPiece.train(texts, 4000)
    made = {"WordPiece": Bundle("bert", "classify", {}, 128, vocab=tuple(pieces.vocab))}
    table = []
    for model, bundle in (made | {name: bundle_of(each) for name, each in subwords.items()}).items():
        graph = _graph(text_ops.features(bundle), [None])
        row: list = [model]
        for size in batches:
            inputs = [tf.constant(texts[begin : begin + size]) for begin in range(0, min(len(texts), 20 * size), size)]
            graph(inputs[0])
            start = time.process_time()
            for batch in inputs:
                graph(batch)
            row.append(round(sum(len(batch) for batch in inputs) / (time.process_time() - start)))
        table.append(row)
    return table


def compare(texts: list[str], subwords: dict[str, Subwords]) -> list[list]:
    """Rows of (model, path, strings, different ones); each is printed when it is known, with what differs."""
    table = []
    for model, bundle in bundles(vocabulary(), subwords).items():
        given = [text for text in texts if not (model == "uncased" and KNOWN.search(text))]
        for path, run in paths(bundle).items():
            different = []
            for begin in range(0, len(given), BATCH):
                batch = given[begin : begin + BATCH]
                actual, expected = run(batch)
                different += [text for text, a, b in zip(batch, actual, expected, strict=True) if a != b]
            table.append([model, path, len(given), len(different)])
            print(*table[-1], sep="\t", file=sys.stderr)
            for text in different[:20]:
                print("\t", *(f"U+{ord(char):04X}" for char in text), file=sys.stderr)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", nargs="*", default=[], metavar="FILE", help="one text a line")
    parser.add_argument("--count", type=int, default=100_000, help="strings, each through every path")
    parser.add_argument("--tokenizer", nargs="*", default=[], metavar="FILE", help="a tokenizer.json of subwords")
    parser.add_argument("--speed", action="store_true", help="texts in a second instead")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth code point alone")
    args = parser.parse_args()
    POINTS[:] = POINTS[:: args.every]
    gc.freeze()  # a million objects of TensorFlow, which the collector would go through for every thousand pieces
    texts = [*strings(args.texts, args.count)]
    if args.speed:
        texts = [line for file in args.texts for _, line in lines(file)]
    subwords = learned(texts) | {file: parse(Path(file).read_text("utf-8"), file) for file in args.tokenizer}
    if args.speed:
        batches = (1, 32, 256, 1024)
        print(tabulate(speed(texts, subwords, batches), ["model", *(f"batches of {size}" for size in batches)]))
        return
    table = compare(texts, subwords)
    print(tabulate(table, ["model", "path", "strings", "different"]))
    if any(different for *_, different in table):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
