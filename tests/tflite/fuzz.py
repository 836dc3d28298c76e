"""Loads mutated .tflite files, and gives odd strings to predictors: `python fuzz.py files|texts COUNT FILE...`.

Run in a process of its own, so that a crash or an endless loop is seen. Prints one line for each kind of outcome; a
failure ends it with the seed, which repeats it.
"""

import contextlib
import hashlib
import io
import json
import random
import signal
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_tflite import runtime

SECONDS = 60  # for one file, or for a hundred texts
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 17, 10**9, 10**30, -(10**30), 0.5, 1e308, float("inf"), float("nan"), "", "a",
    "\x00", "\ud800", "中" * 1000, "../../etc/passwd", [], {}, [None], [[]], ["a", "a"], ["a"] * 5000,
    {"a": 1}, {"": None}, "bert", "elmo", "static", "classify", "tag", "answer", "embed", "language_model",
    "mean", "max",
]  # fmt: skip


def split(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """What LiteRT reads of a file, and the files in its archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        begin = min(entry.header_offset for entry in archive.infolist())
        return data[:begin], {name: archive.read(name) for name in archive.namelist()}


def joined(model: bytes, files: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file of a model and an archive."""
    stream = io.BytesIO(model)
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a", compression) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


def bits(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 20])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def archive_bits(draw: random.Random, data: bytes) -> bytes:
    begin = len(split(data)[0])
    return data[:begin] + bits(draw, data[begin:])


def directory_bits(draw: random.Random, data: bytes) -> bytes:
    """In the archive's list of files, where its offsets, sizes and flags are."""
    begin = data.rfind(b"PK\x01\x02", 0, data.rfind(b"PK\x05\x06"))
    return data[:begin] + bits(draw, data[begin:])


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def splice(draw: random.Random, data: bytes) -> bytes:
    begin, end, source = sorted(draw.randrange(len(data)) for _ in range(3))
    part = data[source : source + draw.choice([1, 4, 64, 1000])]
    before, after = data[:begin], data[end:]
    return draw.choice([before + part + data[begin:], before + after, before + part + after])


def entries(draw: random.Random, data: bytes) -> bytes:
    """Files of the archive swapped, left out, twice, renamed, compressed, or other files."""
    model, files = split(data)
    listed = list(files.items())
    draw.shuffle(listed)
    kind = draw.randrange(6)
    if kind == 0:
        names = [name for name, _ in listed]
        listed = list(zip(names, [listed[-1 - i][1] for i in range(len(listed))], strict=True))
    elif kind == 1:
        listed.pop()
    elif kind == 2:
        listed.append((listed[0][0], draw.randbytes(50)))
    elif kind == 3:
        listed[0] = (draw.choice(["", "a", "BUNDLE.JSON", "../bundle.json", "vocab.txt/"]), listed[0][1])
    elif kind == 4:
        return joined(model, listed, zipfile.ZIP_DEFLATED)
    else:
        listed.append((draw.choice(["card.md", "labels.txt", "x"]), draw.randbytes(500)))
    return joined(model, listed)


def hashed(model: bytes, files: dict[str, bytes], fields: Any) -> bytes:
    """A file whose bundle has the right hashes, and no checksum of its own."""
    if isinstance(fields, dict):
        fields.pop(bundles.CHECKSUM, None)
    if isinstance(fields, dict) and isinstance(fields.get("files"), dict):
        for name in fields["files"]:
            content = {**files, artifacts.TFLITE: model}.get(name, b"")
            fields["files"][name] = hashlib.sha256(content).hexdigest()
    return joined(model, [*(files | {bundles.NAME: json.dumps(fields).encode()}).items()])


def bundle_fields(draw: random.Random, data: bytes) -> bytes:
    """A field of bundle.json, at any depth, of another type, size or range, missing or unknown."""
    model, files = split(data)
    fields = json.loads(files[bundles.NAME])
    for _ in range(draw.choice([1, 1, 1, 3])):
        node: Any = fields
        key = draw.choice(list(node))
        while isinstance(node[key], dict | list) and node[key] and draw.random() < 0.7:
            node = node[key]
            key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        if draw.random() < 0.1 and isinstance(node, dict):
            del node[key]
            if not fields:
                break
        elif draw.random() < 0.1 and isinstance(node, dict):
            node["unknown"] = draw.choice(VALUES)
        else:
            node[key] = draw.choice(VALUES)
    return hashed(model, files, fields)


def vocabularies(draw: random.Random, data: bytes) -> bytes:
    """A vocabulary with pieces twice, missing, empty, cut, not UTF-8, or too many."""
    model, files = split(data)
    lines = files.get(bundles.VOCAB, b"[PAD]\n[UNK]\n").split(b"\n")
    i = draw.randrange(len(lines))
    choices = [
        [*lines, lines[i]],
        lines[:i] + lines[i + 1 :],
        [*lines[:i], b"", *lines[i:]],
        [*lines[:i], draw.randbytes(9), *lines[i + 1 :]],
        lines[:i],
        lines + [b"w%d" % n for n in range(10_000)],
        [line + b"\r" for line in lines],
        draw.sample(lines, len(lines)),
    ]
    files[bundles.VOCAB] = b"\n".join(draw.choice(choices))
    return hashed(model, files, json.loads(files[bundles.NAME]))


MUTATIONS = (bits, archive_bits, directory_bits, cut, splice, entries, bundle_fields, bundle_fields, vocabularies)


def ask(predictor: Predictor, texts: list[str]) -> list[dict]:
    reads = predictor.bundle.reads
    return predictor(texts, ["a cat"] * len(texts) if reads.pair else None, [[(0, 0)] * reads.marks for _ in texts])


def outcome(path: Path) -> str:
    """The outcome of loading and asking a file: "answers" or "refused".

    Raises:
        AssertionError: the message of an error does not name the file.
    """
    try:
        answers = ask(runtime.load(path), ["the cat fell", "", "é\x00"])
    except ValueError as error:
        assert path.name in str(error), f"the message does not name the file: {error}"
        return "refused"
    json.dumps(answers)
    return "answers"


def fuzz_files(count: int, sources: list[Path]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    contents = [source.read_bytes() for source in sources]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.tflite"
        for seed in range(count):
            draw = random.Random(seed)
            mutate, data = MUTATIONS[seed % len(MUTATIONS)], draw.choice(contents)
            path.write_bytes(mutate(draw, data))
            with limit(f"{mutate.__name__}, seed {seed}"):
                outcomes[f"{mutate.__name__} {outcome(path)}"] += 1
    return outcomes


@contextlib.contextmanager
def limit(name: str):
    """Ends the process with the name of what takes too long, or has failed."""

    def hang(*_):
        print(f"{name}: over {SECONDS} seconds", file=sys.stderr, flush=True)
        sys.exit(3)

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    except Exception:
        print(f"{name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
        sys.exit(4)
    finally:
        signal.alarm(0)


RANGES = (
    (0, 32), (32, 127), (127, 160), (0x300, 0x370), (0x590, 0x700), (0x900, 0x980), (0x1100, 0x1200), (0x2000, 0x2070),
    (0x3000, 0x3100), (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xD800, 0xE000), (0xE000, 0xE100), (0xFE00, 0xFE10),
    (0xFF00, 0xFFFF + 1), (0x1F600, 0x1F680), (0x1F1E6, 0x1F200), (0x20000, 0x20080), (0x2F800, 0x2FA20),
    (0xE0000, 0xE0080), (0x10FF80, 0x110000),
)  # fmt: skip
PARTS = (
    "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "##a", "<S>", "</S>", "<UNK>", "</s>", "\u0130", "ß", "\ufb01",
    "\u01c5", "Σ", "é", "e\u0301", "\r\n", "\u2028", "\ufeff", "\u200d", "\u202e", "\U0001f469\u200d\U0001f467",
    "\ud83d", "{}", "%s", "\\", "'", '"',
)  # fmt: skip


def odd_text(draw: random.Random) -> str:
    """A text of letters of a few scripts, of parts that are special somewhere, long runs, or nothing."""
    parts = []
    for _ in range(draw.choice([0, 1, 2, 5, 20])):
        kind = draw.randrange(4)
        begin, end = draw.choice(RANGES)
        if kind == 0:
            parts.append("".join(chr(draw.randrange(begin, end)) for _ in range(draw.randrange(1, 12))))
        elif kind == 1:
            parts.append(draw.choice(PARTS))
        elif kind == 2:
            parts.append(chr(draw.randrange(begin, end)) * draw.choice([1, 2, 99, 101, 300]))
        else:
            parts.append("".join(chr(draw.randrange(0x110000)) for _ in range(3)))
    return draw.choice(["", " ", "\t", "\u00a0"]).join(parts) * draw.choice([1] * 30 + [100])


def fuzz_texts(count: int, sources: list[Path]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for source in sources:
        predictor = runtime.load(source)
        bundle = predictor.bundle
        size = len(bundle.vocab) + 1 if bundle.vocab else 262
        for begin in range(0, count, 100):
            draw = random.Random(begin)
            texts = [odd_text(draw) for _ in range(min(100, count - begin))]
            with limit(f"{source.name}, texts of seed {begin}"):
                rows = bundle.features.encode(texts, ["a"] * len(texts) if bundle.pairs else None, bundle.reads.words)
                assert len(rows) == len(texts) and max(map(len, rows)) <= bundle.max_length
                batch = bundle.features.collate(rows)
                ids = next(array for name, array in batch.items() if name.endswith("_ids"))
                assert ids.dtype == np.int32 and ids.min() >= 0 and ids.max() < size
                answers = ask(predictor, texts if begin < count // 10 else texts[:5])
                json.dumps(answers)
                outcomes[source.name] += len(texts)
    return outcomes


if __name__ == "__main__":
    fuzz = {"files": fuzz_files, "texts": fuzz_texts}[sys.argv[1]]
    for text, number in sorted(fuzz(int(sys.argv[2]), [Path(path) for path in sys.argv[3:]]).items()):
        print(f"{number:6} {text}")
