"""Writes what the library's text preparation and decoding give, for tests of runtimes in other languages.

    python tests/golden.py FOLDER

makes FOLDER/NAME/ for each of `BUNDLES`, with four files, and a fifth one of a model that gives vectors:

* bundle.json and vocab.txt: as in a model folder and at the end of a .tflite file.
* cases.jsonl, a line for each of the 2,000 strings of `strings()`, or for the first 300: {"text", "pair", "words",
  "windows": [{"inputs", "offsets", "spans", "truncated"}]}. Of a model that answers, "text" is the question and "pair"
  the context; else "pair" is null unless the model reads pairs. With "words" the input is this list, and "text" the
  same joined by spaces. "windows" has one entry, or one for each window of a long text. "inputs" are the model's,
  name -> nested integers, without the batch axis and without padding, but at least one position. "offsets" are
  [begin, end] of each token in its text, or in its word where the input is "words", [0, 0] of [CLS] and [SEP]; null
  for the windows of single texts. "spans" are those of the words of a tagger, cut off or not, in the text; else null.
* answers.jsonl: {"task", "text", "pair", "words", "outputs", "answer"}: what a `Predictor` answers if the model gives
  these outputs, name -> nested numbers whose first axis is that of the windows; random 32-bit floats, also where the
  input is padding: they are of the model's maximum length. Without "outputs" the model is not run.
* search.jsonl: {"query", "vectors", "top", "matches"}: the rows of the vectors nearest to the query, each with its
  cosine, the nearest first, of equal ones the lower row first. Vectors are 32-bit floats, some repeated, scaled by a
  power of two, or zero.

All offsets are in code points, as in Python; JavaScript and Java count UTF-16 units. The files are ASCII with JSON's
escapes; only the texts of answers.jsonl have lone surrogates, and runtimes read "?" for each.
"""

import json
import random
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.text import target_tokens
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.tokens import SPECIAL_PIECES, SpecialTokens, WordPiece
from keras_ctxrep.text.units import split

STRINGS = 2000
FEW = 300
COMPLETE = ("bert_uncased", "bert_cased", "bert_accents", "bert_cased_stripped", "bert_answer", "elmo")
UNPAIRED = ("a \ud83d\U0001f600\udc00b \ud800", "", " \u200b\n")
SPANS, PARTS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"), ("ADJ", "NOUN", "VERB", ".")

SENTENCES = (
    "The quick brown foxes weren't jumping over 1,234.50 lazy dogs -- were they?",
    "Søren Kierkegaard wrote “Enten – Eller” in København; it cost 2½ rigsdaler.",
    "Ünlü şair İstanbul'da DOĞDU ve ıssız IĞDIR'da yaşadı.",
    "Ο Οδυσσέας ταξίδεψε πολύ· ΟΔΥΣΣΕΥΣ ήταν από την Ιθάκη.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю №5.",
    "Trời hôm nay đẹp quá, chúng tôi đi Hà Nội bằng xe lửa.",
    "我们在北京大学学习日本語とハングル(한국어)の文章。",
    "カタカナ ｶﾞｷﾞｸﾞ ﾊﾝｶｸ ＦＵＬＬＷＩＤＴＨ １２３ ぱぴぷぺぽ",
    "हिन्दी में लिखा हुआ वाक्य, और தமிழ் எழுத்துக்கள்।",
    "السَّلامُ عَلَيْكُمْ، كيف حالك؟ שָׁלוֹם עֲלֵיכֶם־לְךָ",
    "ภาษาไทยไม่มีช่องว่าง ພາສາລາວ မြန်မာဘာသာ ភាសាខ្មែរ",
    "Family 👨‍👩‍👧‍👦, flags 🇩🇪🇫🇷, thumbs 👍🏽, hearts ❤️, keycaps 1️⃣.",
    "E-mail me@example.org or see https://example.org/a_b?c=d&e=%20f#g now!",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 𐐔𐐇𐐝𐐀𐐡𐐇 𞤀𞤣𞤤𞤢𞤥 𠀀𠮷𡈽 𐍈𐌰𐌽",
    "x ≠ y, a ≤ b, ¬p ∧ q ⊢ r; ﬁne ﬂow oﬃce ß ẞ ǅ ŉ Ω Å K",
)
ODDITIES = (
    *(
        "",
        " ",
        "\t\r\n",
        "\u00a0\u2003\u3000",
        "\u200b",
        "\u0301",
        "\ufffd",
        "\u00ad\u2060",
        "\x00",
        "a\x00b",
        "\u2028",
    ),
    *("[CLS]", "[SEP] text [PAD]", "[MASK]ed", "[UNK] [unk]", "##ing", "<S> </S> <UNK>", "</s>"),
    *("e\u0301\u0323", "e\u0323\u0301", "a\u0315\u0300\u05ae\u0062", "\u1e69", "\u0071\u0307\u0323", "\u01d5x"),
    *(
        "\u1100\u1161\u11a8 \uac01 \uac00\u11a8",
        "\u0958\u0928\u093c",
        "\u0344\u0f73",
        "\u2126\u212a\u212b",
        "\ufb1d\ufb4e",
    ),
    *("İi\u0307Iı", "ΣΑΣ σας ΌΣΟΣ", "ǄǅǆǇ ẞ ŉ ﬀ", "Ꭰꭰ ᏸ Ა ა", "\u1e9e\u0130\u212a"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U000e0041\U000e007f", "\ufe0f\u20e3"),
    # marks that stay where accents are removed, in canonical order or not; often enough to be pieces
    *(f"{mark}\u0301{other} x{other}{mark}y " * 12 for mark, other in (("\u302e", "\U0001d165"), ("\u1df6", "\u1df9"))),
    *("\ue000private\uf8ff", "\U000f0000\U0010fffd", "\u0378\U0001fffe\uffff\ufdd0", "\x07bell\x1b[0m\x7f\x85"),
    *("\U0002b81f\U0002b820\U0002b91f\U0002b920", "\u4dff\u4e00\u9fff\ua000", "\uf900\ufaff\U0002f800"),
)


def strings() -> list[str]:
    """The texts: oddities, sentences and mixtures of them, very long words, and characters of every Unicode block."""
    draw = random.Random(0)
    texts = [*ODDITIES, *SENTENCES, *_long_words(), *_blocks(draw)]
    parts = [word for text in (*ODDITIES, *SENTENCES) for word in (text.split() or [text])]
    while len(texts) < STRINGS:
        size = draw.choice((1, 2, 4, 8, 16, 32))
        texts.append(draw.choice((" ", " ", "", "\n")).join(_changed(draw, draw.choice(parts)) for _ in range(size)))
    draw.shuffle(texts)
    return texts


def _long_words() -> Iterator[str]:
    """Words near the length from which a word has no pieces, 100 characters after normalisation."""
    for letter in ("a", "É", "e\u0301", "\u0301", "\u200d", "я", "中", "\U00010400", "\u1e69", "가"):
        for size in (99, 100, 101, 200):
            yield f"x {letter * size}y"


def long_texts() -> list[str]:
    """Texts of which only the beginning is read, some with few words in it."""
    draw = random.Random(1)
    fillers = [
        " ",
        "\n",
        "\0",
        "\u200b",
        "a",
        "\xc9",
        "\u4e2d",
        "\U0001f600",
        "-",
        "\u0301",
        "\u1b44",
        "e\u0301",
        "word ",
        "a\n",
    ]
    texts = [f"{draw.choice(SENTENCES)}{filler * 5000} {draw.choice(SENTENCES)}" for filler in fillers]
    texts += [f"{filler * 5000}{draw.choice(SENTENCES) * 9}" for filler in fillers]
    return [*texts, *(f"{text[:1000]}{text}" for text in texts[::3])]


def _blocks(draw: random.Random) -> Iterator[str]:
    """A character of every 16 code points of the planes in use, of every 256 of the others; 16 of them in a text.

    A Unicode block begins and ends at a multiple of 16.
    """
    steps = [*range(0, 0x20000, 16), *range(0x20000, 0x110000, 256)]
    codes = [draw.randrange(step, step + (16 if step < 0x20000 else 256)) for step in steps]
    codes = [code for code in codes if not 0xD800 <= code < 0xE000]
    for begin in range(0, len(codes), 16):
        letters = (draw.choice(("", "", "a", "B", " ")) + chr(code) for code in codes[begin : begin + 16])
        yield "".join(letters)


def _changed(draw: random.Random, word: str) -> str:
    """A word in another case or normal form, with a mark, a character or a piece of punctuation more, or as it is."""
    change = draw.randrange(8)
    if change < 4:
        return (word, word.upper(), word.title(), unicodedata.normalize(draw.choice(("NFD", "NFC")), word))[change]
    place = draw.randint(0, len(word))
    more = (
        "".join(chr(draw.randrange(0x300, 0x370)) for _ in range(draw.randint(1, 4))),
        draw.choice(".,;:!?'\"()[]{}<>-_/\\|@#$%^&*+=~`„“”‘’«»—…§¶†‡‰、。「」"),
        draw.choice("\x01\x1f\x7f\x9f\u00ad\u061c\u200b\u200e\u2028\u202e\u2066\ufeff\ufff9\ue123\ufffd\U000e0001"),
        chr(draw.choice((draw.randrange(0x20, 0xD800), draw.randrange(0xE000, 0x1FA00)))),
    )[change - 4]
    return word[:place] + more + word[place:]


def _bundles(texts: list[str]) -> dict[str, Bundle]:
    """The models, by the names of their folders."""

    @cache
    def vocab(lowercase: bool, accents: bool | None, cjk: bool) -> tuple[str, ...]:
        # half of the letters, and few pieces: words have several, and some none
        special = (*SPECIAL_PIECES[::-1], "[unused1]")
        return tuple(WordPiece.train(texts, 4000, lowercase, accents, cjk, alphabet=1500, special=special).vocab)

    def bert(task: str, labels=(), pair=False, accents=None, cjk=True, lowercase=True, **settings) -> Bundle:
        casing = {"lowercase": lowercase, "strip_accents": accents, "split_cjk": cjk}
        pieces = vocab(*casing.values())
        fields = tasks.bundle_fields(task, pair, **settings)
        config = {"heads": 1, "segments": 2}
        return Bundle("bert", config=config, max_length=24, labels=labels, vocab=pieces, **casing, **fields)

    def mpnet(*args, **options) -> Bundle:  # other names of special pieces, and two separators in a pair
        special = SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>", separators=2)
        own = bert(*args, **options)
        names = dict(zip(SPECIAL_PIECES, special.pieces, strict=True))
        vocab = tuple(names.get(piece, piece) for piece in own.vocab)
        return replace(own, family="mpnet", config={"heads": 1}, vocab=vocab, special_tokens=special)

    def static(task: str, labels=()) -> Bundle:
        return replace(bert(task, labels), family="static", config={"pieces": True})

    def elmo(task: str, labels=()) -> Bundle:
        return Bundle("elmo", config={"max_characters": 12}, max_length=16, labels=labels, **tasks.bundle_fields(task))

    def translate(encoder: Bundle, units: str, labels: Iterable[str], **settings) -> Bundle:
        fields = tasks.bundle_fields("translate", units=units, target_length=6, **settings)
        return replace(encoder, labels=(*target_tokens.MARKERS, *labels), **fields)

    def tokens(units: str, **fields) -> Bundle:
        known = sorted({token for text in texts[:FEW] for token in split(text, units) if token.isprintable()})
        return Bundle("lm", config={"units": units}, vocab=(*target_tokens.MARKERS, *known[::2]), **fields)

    characters = tokens("characters", task="embed", max_length=24)
    windows = {"stride": 5, "max_answer": 4}
    return {
        "bert_uncased": bert("classify", ("no", "yes", "maybe")),
        "bert_cased": bert("tag", SPANS, lowercase=False),
        "bert_accents": bert("multilabel", ("x", "y", "z"), pair=True, accents=False, cjk=False),
        "bert_cased_stripped": bert("embed", lowercase=False, accents=True),
        "bert_answer": bert("answer", **windows),
        "bert_answer_null": bert("answer", **windows | {"stride": 12}, null_threshold=-1.5, lowercase=False),
        "bert_windows": bert("classify", ("no", "yes"), windows="max", stride=12),
        "bert_windows_mean": bert("multilabel", ("x", "y"), windows="mean", stride=12, lowercase=False),
        "mpnet_pairs": mpnet("multilabel", ("x", "y", "z"), pair=True),
        "mpnet_answer": mpnet("answer", **windows),
        "static_pieces": static("tag", SPANS),
        "elmo": elmo("tag", PARTS),
        "elmo_regress": elmo("regress"),
        "translate_characters": translate(characters, "words", ("AA", "B", "中", "\U0001f600")),
        "translate_pieces": translate(bert("embed"), "subwords", ("▁a", "▁", "b", "▁▁c", "d▁"), beams=2),
        "translate_words": translate(elmo("embed"), "characters", (*" \x1f\u200b\ufeff\u3000a", "é"), beams=1),
        "lm_words": tokens("words", max_length=9, **tasks.bundle_fields("regress")),
        "lm_windows": tokens("characters", max_length=9, **tasks.bundle_fields("regress", windows="mean", stride=5)),
    }


def write(folder: str | Path) -> None:
    """Writes the files of every bundle; the same ones each time."""
    texts = strings()
    for name, bundle in _bundles(texts).items():
        own = texts[: None if name in COMPLETE else FEW]
        write_model(Path(folder) / name, bundle, own, partial(outputs_of, bundle))


def write_model(
    folder: Path, bundle: Bundle, texts: list[str], outputs: Callable[[np.ndarray], dict[str, np.ndarray]]
) -> None:
    """Writes the files of a bundle, whose model gives these outputs for the ids of a row."""

    def run(batch: dict) -> dict:
        ids = next(iter(batch.values()))
        rows = [outputs(own[mask > 0]) for own, mask in zip(ids, batch["mask"], strict=True)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    queries = _queries(bundle, texts)
    # and lone surrogates, and texts without an answer
    answered = queries[:60] + [queries[1]._replace(text=text) for text in UNPAIRED]
    if not bundle.reads.words | bundle.reads.windows | ("windows" in bundle.settings):  # which read all of a text
        queries += _queries(bundle, long_texts())
    write_queries(folder, bundle, queries, run, answered)
    if bundle.task == "embed":
        write_lines(folder / "search.jsonl", _searches())


def write_queries(
    folder: Path, bundle: Bundle, queries: list[Query], run: Callable, answered: list[Query] | None = None
) -> None:
    """Writes the files of a bundle for queries, of which some (default: all) are answered by a model, `run`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in bundle.files_as_bytes().items():
        (folder / file).write_bytes(data)
    encoded = zip(queries, _encoded(bundle, queries), strict=True)
    write_lines(folder / "cases.jsonl", (_case(bundle, query, rows) for query, rows in encoded))
    write_lines(folder / "answers.jsonl", _answers(bundle, queries if answered is None else answered, run))


def write_lines(path: Path, rows: Iterable[dict]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="ascii")


def _queries(bundle: Bundle, texts: list[str]) -> list[Query]:
    """A query of each text: with the next text as its pair, or with some of the next ones as a context."""
    queries = []
    for number, text in enumerate(texts):
        after = [texts[(number + i) % len(texts)] for i in range(1, 4)]
        if bundle.reads.windows:
            queries.append(Query(text, " ".join(after[: number % 4])))
        elif bundle.pairs:
            queries.append(Query(text, after[0]))
        elif bundle.reads.words and number % 4 == 0 and text.split():
            queries.append(Query(tuple(text.split())))
        else:
            queries.append(Query(text))
    return queries


def _input(query: Query) -> dict[str, Any]:
    split = not isinstance(query.text, str)
    text = {"text": " ".join(query.text) if split else query.text, "pair": query.pair}
    return text | ({"words": query.text} if split else {})


def _encoded(bundle: Bundle, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows of each query as its task reads it, with offsets."""
    if bundle.reads.windows or "windows" in bundle.settings:
        return tasks.of_model(bundle).encode(bundle, queries)
    pairs = [query.pair for query in queries] if bundle.pairs else None
    return [[row] for row in bundle.features.encode([query.text for query in queries], pairs, offsets=True)]


def _case(bundle: Bundle, query: Query, rows: Sequence[Row]) -> dict:
    windows = []
    for row in rows:
        inputs = {name: array[0].tolist() for name, array in bundle.features.collate([row]).items()}
        spans = row.words if bundle.reads.words and isinstance(query.text, str) else None
        windows.append({"inputs": inputs, "offsets": row.offsets, "spans": spans, "truncated": row.truncated})
    return _input(query) | {"windows": windows}


def _answers(bundle: Bundle, queries: Sequence[Query], run: Callable) -> Iterator[dict]:
    def valid(query: Query) -> Query:
        split = not isinstance(query.text, str)
        return query if split else query._replace(text=query.text.encode("utf-8", "replace").decode())

    # a decoder's file has the whole search in one signature
    runner = tasks.of_model(bundle).run(bundle, {"ids": run, "beam": run, "greedy": run})
    answers = Predictor(bundle, runner)([query.text for query in queries], [query.pair for query in queries])
    for query, answer, rows in zip(queries, answers, _encoded(bundle, [*map(valid, queries)]), strict=True):
        entry = {"task": bundle.task} | _input(query) | {"answer": answer}
        if "error" not in answer:
            # in the order of the windows; a predictor runs them in the order of their lengths
            outputs = [run(bundle.features.collate([row])) for row in rows]
            entry["outputs"] = {name: [output[name][0].tolist() for output in outputs] for name in outputs[0]}
        yield entry


def _searches() -> Iterator[dict]:
    rng = np.random.default_rng(0)
    for count, top in ((0, 3), (1, 3), (5, 1), (40, 10), (150, 10), (150, 300)):
        vectors = rng.standard_normal((count, 8)).astype(np.float32)
        for row in rng.permutation(count)[: count // 2]:
            vectors[row] = vectors[rng.integers(count)] * rng.choice(np.float32([0, 0.5, 1, 1, 2, -1]))
        for query in (rng.standard_normal(8), np.zeros(8), *vectors[-1:]):
            query = query.astype(np.float32)
            double, other = vectors.astype(np.float64), query.astype(np.float64)
            products, norms = (double * other).sum(1), np.sqrt((double**2).sum(1) * (other**2).sum())
            cosines = products / np.where(norms > 0, norms, 1)
            rows = np.argsort(-cosines, kind="stable")[:top]
            matches = [[int(row), float(cosines[row])] for row in rows]
            yield {"query": query.tolist(), "vectors": vectors.tolist(), "top": top, "matches": matches}


def outputs_of(bundle: Bundle, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Random outputs that depend on a row's ids alone; half of them in steps of 0.5, with ties."""
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(ids).tobytes()))
    steps = rng.random() < 0.5

    def normal(*shape: int) -> np.ndarray:
        values = 2 * rng.standard_normal(shape).astype(np.float32)
        return np.round(2 * values) / 2 if steps else values

    length, classes = bundle.max_length, len(bundle.labels)
    if bundle.task == "answer":
        return {"start_logits": normal(length), "end_logits": normal(length)}
    if bundle.task == "embed":
        return {"vector": normal(8)}
    if bundle.task == "translate":
        beams, most = bundle.settings["beams"], bundle.settings["target_length"]
        sizes, scores = rng.integers(0, most + 1, beams), np.sort(normal(beams))[::-1]
        tokens = np.where(np.arange(most) < sizes[:, None], rng.integers(3, classes, (beams, most)), -1)
        scores[rng.integers(1, beams + 1) :] = np.finfo(np.float32).min  # of no hypothesis
        finished = rng.integers(0, 2, beams)
        return {"tokens": tokens, "scores": scores, "finished": finished, "attention": normal(beams, most, length)}
    if bundle.task == "tag":
        outputs = {"logits": normal(length, classes)}
        if bundle.family == "elmo":  # as of a model with a CRF
            outputs["tags"] = rng.integers(0, classes, length)
        return outputs
    return {"logits": normal(classes or 1)}


if __name__ == "__main__":
    write(sys.argv[1])
