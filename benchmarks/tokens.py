"""Whether BERT's input is that of Hugging Face's BertTokenizerFast, and how fast each makes it.

    python benchmarks/tokens.py --data FOLDER --peers peers/bin/python [--texts 100000]

The peers may live in an environment of their own:

    python3.11 -m venv peers
    peers/bin/pip install transformers

FOLDER holds the real texts (wiki_en_slice, books_en, sst2_glue, mrpc, wnut17, squad_v1.1), seven of ten, and Google's
English vocabularies (bert_checkpoints/vocab); the other texts are odd: all planes of Unicode, control characters,
accents, emoji, right to left, very long words, CJK, special pieces typed as text, real text with any of it thrown in.
Ids, segment ids and offsets must be equal for each text alone, and for pairs cut at several lengths.

One difference is known, and counted apart: BertTokenizerFast takes "[SEP]" typed in a text for a marker unless it is
told not to (`split_special_tokens=True`, as here). With any other difference the exit status is 1.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import argparse
import json
import lzma
import random
import statistics
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LENGTHS = (8, 9, 16, 33, 64, 128, 129, 512)
MARKERS = ("[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]")
TYPED = (*MARKERS, "##ing", "[unused1]")
Input = list[list]  # of one text or pair: ids, segment ids, offsets


def real_texts(data: Path) -> Iterator[str]:
    """Sentences, tweets, phrases, paragraphs and questions."""
    yield from (data / "wiki_en_slice/train.txt").read_text("utf-8").split("\n")
    with lzma.open(data / "books_en/train.txt.xz", "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line, _ in zip(file, range(200_000), strict=False))
    for row in (data / "sst2_glue/train.tsv").read_text("utf-8").split("\n"):
        yield row.split("\t")[0]
    for row in (data / "mrpc/msr_paraphrase_train.txt").read_text("utf-8-sig").split("\n"):
        yield from row.split("\t")[3:]
    for sentence in (data / "wnut17/train.conll").read_text("utf-8").split("\n\n"):
        yield " ".join(line.split("\t")[0] for line in sentence.split("\n"))
    for name in ("dev-v1.1.json", "train-slice-v1.1.json"):
        for article in json.loads((data / "squad_v1.1" / name).read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                yield from (question["question"] for question in paragraph["qas"])


def odd_texts(real: Sequence[str], count: int) -> list[str]:
    """Random strings of each kind, none with half a surrogate pair, which the peer refuses."""
    draw = random.Random(0)
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    named = [char for char in every if unicodedata.category(char) not in ("Cn", "Co")]
    control = [char for char in named if unicodedata.category(char)[0] in "CZ"]
    marks = [char for char in named if unicodedata.category(char)[0] == "M"]
    greek = [char for char in every[0x370:0x400] + every[0x1F00:0x2000] if char.isalpha()] + ["Σ", "ς", "σ"] * 20
    right = [*every[0x590:0x700], *"\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2069"]
    emoji = [*"👩👨👧👦❤🔥🏳🌈👍😀🇫🇷1", "\u200d", "\u200d", "\ufe0f", "\u20e3", "🏽", "\U000e0067"]
    cjk = [*map(chr, [*range(0x3000, 0x3100), *range(0x4E00, 0x4F00), *range(0xAC00, 0xAD00), *range(0xF900, 0xFA00)])]
    cjk += [*map(chr, range(0x2B7F0, 0x2B930)), *map(chr, range(0x1100, 0x1200)), *"中文漢字"]
    latin = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    any_of = [every, named, control, marks, greek, right, emoji, cjk, [*TYPED]]

    def joined(chars: Sequence[str], spread: Sequence[str], longest: int = 60) -> str:
        return "".join(draw.choice(draw.choice([chars, chars, spread])) for _ in range(draw.randrange(longest)))

    kinds: list[Callable[[], str]] = [
        lambda: joined(every, " "),
        lambda: joined(named, " "),
        lambda: joined(control, latin),
        lambda: joined(marks, [*latin, *"éÅ ", *cjk]),
        lambda: joined(emoji, " a"),
        lambda: joined(right, " a."),
        lambda: " ".join(joined(latin, "éÅ\u0301", 400) for _ in range(3)),
        lambda: joined(cjk, " a1"),
        lambda: joined(greek, " .,\u0301'"),
        lambda: joined(TYPED, [*" .", *latin]),
        lambda: "".join(
            char + (draw.choice(draw.choice(any_of)) if draw.random() < 0.1 else "") for char in draw.choice(real)
        ),
    ]
    return [kinds[index % len(kinds)]() for index in range(count)]


def ours(vocab: Path, lowercase: bool) -> Callable[..., list[Input]]:
    """The function from texts, pairs and a length to rows."""
    from keras_ctxrep.text.features import WordPieceFeatures
    from keras_ctxrep.text.tokens import WordPiece, read_vocab

    pieces = WordPiece(read_vocab(vocab), lowercase)

    def inputs(texts: list[str], pairs: list[str] | None, length: int) -> list[Input]:
        rows = WordPieceFeatures(pieces, length).encode(texts, pairs, offsets=True)
        segments = ([0] * row.first + [1] * (len(row) - row.first) for row in rows)
        spans = ([*map(list, row.offsets or [])] for row in rows)
        return [[row.tokens, *rest] for row, *rest in zip(rows, segments, spans, strict=True)]

    return inputs


def theirs(vocab: Path, lowercase: bool) -> Callable[..., list[Input]]:
    from transformers import BertTokenizerFast  # pyright: ignore[reportMissingImports]

    tokenizer = BertTokenizerFast(str(vocab), do_lower_case=lowercase)

    def inputs(texts: list[str], pairs: list[str] | None, length: int, split_special: bool = True) -> list[Input]:
        cut = {"truncation": "longest_first", "max_length": length}
        encoding = tokenizer(texts, pairs, **cut, return_offsets_mapping=True, split_special_tokens=split_special)
        keys = ("input_ids", "token_type_ids", "offset_mapping")
        return [list(row) for row in zip(*(encoding[key] for key in keys), strict=True)]

    return inputs


def peer() -> None:
    """Answers one job after another; each is a line of JSON, and so is its answer."""
    for line in sys.stdin:
        job = json.loads(line)
        vocab, lowercase = Path(job["vocab"]), job["lowercase"]
        if job["do"] == "time":
            answer = timed(fast_encoder(vocab, lowercase), job["texts"])
        else:
            answer = theirs(vocab, lowercase)(job["texts"], job["pairs"], job["length"], job["split_special"])
        print(json.dumps(answer), flush=True)


def compare(ask: Callable[..., list], vocab: Path, lowercase: bool, texts: list[str]) -> int:
    """Prints the counts of one vocabulary; the number of differences that nothing explains."""
    encode, wrong = ours(vocab, lowercase), 0
    for length, split_special in ((128, True), (512, True), (512, False)):
        pieces = full = 0
        bad: list[str] = []
        for begin in range(0, len(texts), 10_000):
            part = texts[begin : begin + 10_000]
            mine = encode(part, None, length)
            yours = ask("encode", texts=part, pairs=None, length=length, split_special=split_special)
            bad += [text for text, a, b in zip(part, mine, yours, strict=True) if a != b]
            pieces += sum(len(row[0]) for row in mine)
            full += sum(len(row[0]) == length for row in mine)
        typed = [] if split_special else [text for text in bad if any(marker in text for marker in MARKERS)]
        wrong += len(bad) - len(typed)
        if split_special:
            print(f"  single, {length:3}: {len(texts):7,} texts, {pieces:9,} ids, {full:6,} full; different {len(bad)}")
            print(*(f"    {text!r}" for text in bad[:3]), sep="\n", end="\n" if bad else "")
        else:
            print(
                f"  with typed markers taken for markers: different {len(bad):,}, with a marker in them {len(typed):,}"
            )

    order = random.Random(1).sample(texts, len(texts))
    for index, length in enumerate(LENGTHS):
        firsts, seconds = texts[index :: len(LENGTHS)], order[index :: len(LENGTHS)]
        mine = encode(firsts, seconds, length)
        yours = ask("encode", texts=firsts, pairs=seconds, length=length, split_special=True)
        different = sum(a != b for a, b in zip(mine, yours, strict=True))
        full = sum(len(row[0]) == length for row in mine)
        wrong += different
        print(f"  pairs,  {length:3}: {len(mine):7,} pairs, {full:6,} full; different {different}")
    return wrong


def timed(encode: Callable[[list[str], bool], object], texts: list[str]) -> list[float]:
    """Seconds for all texts, in batches of 1,000, without and with offsets."""
    seconds = []
    for offsets in (False, True):
        begin = time.perf_counter()
        for i in range(0, len(texts), 1000):
            encode(texts[i : i + 1000], offsets)
        seconds.append(time.perf_counter() - begin)
    return seconds


def fast_encoder(vocab: Path, lowercase: bool) -> Callable[[list[str], bool], object]:
    from transformers import BertTokenizerFast  # pyright: ignore[reportMissingImports]

    tokenizer = BertTokenizerFast(str(vocab), do_lower_case=lowercase)
    return lambda texts, offsets: tokenizer(
        texts, truncation=True, max_length=128, padding=True, return_tensors="np", return_offsets_mapping=offsets
    )


def our_encoder(vocab: Path, lowercase: bool) -> Callable[[list[str], bool], object]:
    from keras_ctxrep.text.features import WordPieceFeatures
    from keras_ctxrep.text.tokens import WordPiece, read_vocab

    features = WordPieceFeatures(WordPiece(read_vocab(vocab), lowercase), 128)
    return lambda texts, offsets: features.collate(features.encode(texts, offsets=offsets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", required=True, help="the Python that has transformers")
    parser.add_argument("--texts", type=int, default=100_000)
    args = parser.parse_args()
    every = [text for text in dict.fromkeys(real_texts(args.data)) if text.strip()]
    real = random.Random(2).sample(every, args.texts * 7 // 10)
    texts = [*real, *odd_texts(real, args.texts - len(real))]
    beyond = sum(not text.isascii() for text in real)
    print(f"{len(real):,} real texts, {beyond:,} of them not ASCII, and {len(texts) - len(real):,} odd ones")
    process = subprocess.Popen(
        [args.peers, __file__, "--peer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdin and process.stdout
    wrong = 0
    for name, lowercase in (("uncased", True), ("cased", False)):
        vocab = args.data / f"bert_checkpoints/vocab/bert-base-{name}-vocab.txt"

        def ask(do: str, vocab=vocab, lowercase=lowercase, **job: object) -> list:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps({"do": do, "vocab": str(vocab), "lowercase": lowercase} | job) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        print(f"{name}:")
        wrong += compare(ask, vocab, lowercase, texts)
        sample = real[:20_000]
        words = sum(len(text.split()) for text in sample)
        encode, rounds = our_encoder(vocab, lowercase), []
        for _ in range(5):  # in turn, so that the machine's moods hit both
            rounds.append([*timed(encode, sample), *ask("time", texts=sample)])
        mine, mine_offsets, yours, yours_offsets = (
            words / statistics.median(column) for column in zip(*rounds, strict=True)
        )
        print(f"  words/s on one core, {words:,} words in batches of 1,000, padded arrays, ours and theirs:")
        print(f"    {mine:9,.0f} {yours:9,.0f}  ratio {mine / yours:.2f}")
        print(f"    {mine_offsets:9,.0f} {yours_offsets:9,.0f}  ratio {mine_offsets / yours_offsets:.2f}, with offsets")
    process.stdin.close()
    process.wait()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    peer() if sys.argv[1:] == ["--peer"] else main()
