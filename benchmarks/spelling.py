"""Spelling to phonemes: the task `translate` on CMUdict, in every engine, beside g2p-en.

    python benchmarks/spelling.py --train train.tsv --dev dev.tsv --minutes 100 --out g2p
    python benchmarks/spelling.py --dev dev.tsv --out g2p --lengths          # a folder that is there
    python benchmarks/spelling.py --dev dev.tsv --out g2p_en --words 2000 --corpus books.txt.xz wiki.txt
    python benchmarks/spelling.py --train train.tsv --dev dev.tsv --minutes 12 --out bert --encoder bert_3_384_12
    python benchmarks/spelling.py --train train.tsv --dev dev.tsv --out conv --decoder convolutional --layers 3

The files have the columns text and target, one row a pronunciation. WER is the fraction of words whose answer is none
of their pronunciations, PER edits to the nearest one over its phonemes. Words a second are of one process, after a
first call. `g2p-en` (https://github.com/Kyubyong/g2p, a GRU in NumPy) is scored without stress where it is installed.
Encoders that read words or word pieces have the letters with a space between them, and are trained whole without the
biLSTM over them, unless they are frozen.

Keras, the SavedModel and the .tflite file of float32 give the same text for every word, greedy and with beams, or the
exit status is 1. With `--corpus` the rates are also given by the words' rank in these texts, by count.
"""

import argparse
import csv
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

EXACT = ("Keras", "SavedModel", ".tflite float32")  # engines with the same text for every word
RANKS = (5_000, 20_000, 100_000)  # of words in texts, the last of each band
LENGTH = 40  # characters and phonemes; the longest words of CMUdict have 34 and 32
SETTINGS = {
    "target_units": "words", "target_length": LENGTH, "decoder_units": 256, "decoder_dropout": 0.15,
    "units": 128, "stack_layers": 2, "dropout": 0.15, "stack": "lstm", "max_length": 48, "batch_size": 128,
    "learning_rate": 2e-3, "evaluations": 8, "metric": "exact_match", "beams": 4,
}  # fmt: skip


def spaced(path: str | Path, out: Path) -> Path:
    """The rows of a file, with the letters of a text as words."""
    with open(path, encoding="utf-8") as file, open(out, "w", encoding="utf-8") as written:
        written.writelines(
            line if not number else f"{' '.join(text)}\t{target}"
            for number, line in enumerate(file)
            for text, _, target in [line.partition("\t")]
        )
    return out


def read(path: str | Path) -> dict[str, list[str]]:
    """Word -> its pronunciations."""
    words = defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            words[row["text"]].append(row["target"])
    return words


def rates(references: Sequence[list[str]], texts: Sequence[str]) -> tuple[float, float]:
    """WER and PER in percent."""
    from keras_ctxrep.text import generation_scores as scores

    right, edits = (of(references, texts).sum(0) for of in (scores.exact_match, scores.word_error_rate))
    return 100 * (1 - right[0] / right[1]), 100 * edits[0] / edits[1]


def g2p_en() -> Callable[[Sequence[str]], list[str]] | None:
    """The network of g2p-en, without its dictionary; None where it is not installed."""
    try:
        from g2p_en.g2p import G2p  # pyright: ignore[reportMissingImports]
    except (ImportError, LookupError):
        return None
    network = object.__new__(G2p)  # its constructor downloads a dictionary
    graphemes = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
    vowels = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
    others = ["B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH"]
    others += ["UW", "V", "W", "Y", "Z", "ZH"]
    phonemes = ["<pad>", "<unk>", "<s>", "</s>"]
    phonemes += sorted([*others, *(f"{vowel}{stress}" for vowel in vowels for stress in (0, 1, 2))])
    network.g2idx = {char: number for number, char in enumerate(graphemes)}
    network.idx2p = dict(enumerate(phonemes))
    network.load_variables()
    return lambda words: [" ".join(p.rstrip("012") for p in network.predict(word)) for word in words]


def engines(folder: str, work: Path, keras_only: bool) -> Iterator[tuple[str, Path, float]]:
    """The name, the path and the megabytes of the model in each engine."""
    from keras_ctxrep import saving, zoo
    from keras_ctxrep.text.bundle import load
    from keras_ctxrep_export import saved_model
    from keras_ctxrep_tflite.quantize import convert

    found = Path(zoo.find(folder))
    yield "Keras", found, (found / "model.weights.h5").stat().st_size / 1e6
    if keras_only:
        return
    version = saved_model.export(*saving.load(found), work / "saved")
    yield "SavedModel", version, sum(f.stat().st_size for f in version.rglob("variables.*")) / 1e6
    for name, quantize in ((".tflite float32", "none"), (".tflite int8", "dynamic")):
        file = convert(found, work / f"{quantize}.tflite", quantize, lengths=[load(found).max_length])
        yield name, file, file.stat().st_size / 1e6


def ranks(paths: Sequence[str]) -> dict[str, int]:
    """Rank of each word in some texts, by count, from 1."""
    from keras_ctxrep.text.corpus import lines

    counts: Counter[str] = Counter()
    for path in paths:
        for _, line in lines(path):
            counts.update(re.findall("[a-z]+(?:'[a-z]+)*", line.lower()))
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(), 1)}


def by_rank(texts: Sequence[str], paths: Sequence[str]) -> dict[str, list[int]]:
    """Name of a band -> which of the words it has; those not in the texts are the last one."""
    rank = ranks(paths)
    bands, low = {}, 1
    for high in (*RANKS, len(rank)):
        band = f"rank {low:,} to {high:,}" if high < len(rank) else f"rank {low:,} and above"
        bands[band] = [i for i, text in enumerate(texts) if low <= rank.get(text, 0) <= high]
        low = high + 1
    return bands | {"not in the texts": [i for i, text in enumerate(texts) if text not in rank]}


def by_length(texts: Sequence[str]) -> dict[str, list[int]]:
    bands = ((1, 4), (5, 7), (8, 10), (11, 99))
    return {f"{a} to {b} letters": [i for i, text in enumerate(texts) if a <= len(text) <= b] for a, b in bands}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FILE", help="without it the folder is there already")
    parser.add_argument("--dev", required=True, metavar="FILE")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="or the name of a published model")
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument("--encoder", default="characters", metavar="M", help="or a model folder or published name")
    parser.add_argument("--decoder", default="recurrent", help="recurrent, transformer or convolutional")
    parser.add_argument("--layers", type=int, default=1, metavar="N", help="of the decoder")
    parser.add_argument("--freeze", action="store_true", help="its weights stay as they are")
    parser.add_argument("--words", type=int, help="score the first N words")
    parser.add_argument("--keras-only", action="store_true", help="leave the SavedModel and the .tflite files out")
    parser.add_argument("--lengths", action="store_true", help="the rates by the length of the word")
    parser.add_argument("--corpus", nargs="+", default=[], metavar="FILE", help="texts, for the rates by rank")
    args = parser.parse_args()
    if args.encoder != "characters":
        Path(args.out).mkdir(parents=True, exist_ok=True)
        args.train, args.dev = (
            spaced(path, Path(args.out, f"{name}.tsv")) for name, path in (("train", args.train), ("dev", args.dev))
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_ctxrep import recipes
    from keras_ctxrep.inference.engines import open_model

    if args.train:
        options = SETTINGS | {"minutes": args.minutes, "freeze": args.freeze}
        options |= {"decoder": args.decoder, "decoder_layers": args.layers}
        if args.encoder != "characters" and not args.freeze:
            options = {name: value for name, value in options.items() if name not in ("stack", "units", "stack_layers")}
            options["learning_rate"] = 3e-4
        recipes.finetune(args.train, args.dev, args.encoder, args.out, "translate", report=print, **options)
    words = dict(list(read(args.dev).items())[: args.words])
    texts, references = [*words], [*words.values()]
    answers: dict[tuple[str, str], list[str]] = {}
    print(f"{len(texts):,} words of {args.dev}")
    print(f"{'engine':28} {'WER':>6} {'PER':>6} {'words/s':>9} {'MB':>6}")
    with tempfile.TemporaryDirectory() as work:
        for name, path, size in engines(args.out, Path(work), args.keras_only):
            for search, options in (("greedy", {"beams": 1}), ("beams", None)):
                predictor = open_model(path, search=options).answer
                predictor(texts[:64])
                begun = time.perf_counter()
                given = answers[name, search] = [answer["text"] for answer in predictor(texts)]
                speed = len(texts) / (time.perf_counter() - begun)
                wer, per = rates(references, given)
                print(f"{f'{name}, {search}':28} {wer:6.2f} {per:6.2f} {speed:9,.0f} {size:6.2f}", flush=True)
    peer = g2p_en()
    if peer is not None:
        peer(texts[:8])
        begun = time.perf_counter()
        given = peer(texts)
        speed = len(texts) / (time.perf_counter() - begun)
        size = Path(str(sys.modules["g2p_en.g2p"].__file__)).with_name("checkpoint20.npz").stat().st_size / 1e6
        wer, per = rates(references, given)
        print(f"{'g2p-en, greedy':28} {wer:6.2f} {per:6.2f} {speed:9,.0f} {size:6.2f}")
    differ = 0
    for (name, search), given in answers.items():
        others = sum(a != b for a, b in zip(answers["Keras", search], given, strict=True))
        print(f"{name}, {search}: the text of Keras for {len(texts) - others:,} of {len(texts):,} words")
        differ += others * (name in EXACT)
    bands = by_length(texts) if args.lengths else {}
    bands |= by_rank(texts, args.corpus) if args.corpus else {}
    for band, own in bands.items():
        given = answers["Keras", "beams"]
        wer, per = rates([references[i] for i in own], [given[i] for i in own])
        print(f"{band}: {len(own):,} words, WER {wer:.1f}, PER {per:.2f}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
