"""Subword tokenizers in other files than tokenizer.json: models of SentencePiece, and vocab.json with merges.txt.

https://github.com/google/sentencepiece, src/sentencepiece_model.proto; https://github.com/openai/gpt-2.
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from keras_ctxrep.text.subwords import Added, Subwords, parse

__all__ = ["merges", "sentencepiece"]

PIECE, TRAINER, NORMALIZER = 1, 2, 3  # fields of ModelProto
NORMAL, UNKNOWN, BYTE = 1, 2, 6  # types of pieces; the others are never made of text
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first pieces of fairseq's dictionaries


def sentencepiece(data: bytes, source: object, fairseq: bool = False) -> Subwords:
    """The tokenizer of a unigram model of SentencePiece.

    Args:
        data: of spiece.model or sentencepiece.bpe.model, a ModelProto in protobuf's wire format.
        source: name of the file, for messages.
        fairseq: the ids are those of XLM-R: <s>, <pad>, </s>, <unk>, the pieces from the fourth on, and <mask>; text is
            split at white space first, as `transformers` does.

    Raises:
        ValueError: it is damaged, or not a unigram model.

    >>> piece = b"\\x0a\\x05<unk>\\x15" + struct.pack("<f", 0.0) + b"\\x18\\x02"
    >>> sentencepiece(b"\\x0a" + bytes([len(piece)]) + piece, "spiece.model").pieces
    ('<unk>',)
    """
    try:
        pieces, trainer, normalizer = [], {}, {}
        for field, value in _fields(data):
            if field == PIECE:
                own = dict(_fields(value))
                (score,) = struct.unpack("<f", own.get(2, bytes(4)))
                pieces.append((own.get(1, b"").decode("utf-8"), score, own.get(3, NORMAL)))
            elif field in (TRAINER, NORMALIZER):
                (trainer if field == TRAINER else normalizer).update(_fields(value))
        kind, suffix, escape = trainer.get(3, 1), trainer.get(24, 0), normalizer.get(5, 1)
        charsmap, byte_fallback = bytes(normalizer.get(2, b"")), bool(trainer.get(35, 0))
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise ValueError(f"{source}: not a whole model of SentencePiece ({error})") from None
    for name, value, read in (
        ("trainer_spec.model_type", kind, 1),
        ("trainer_spec.treat_whitespace_as_suffix", suffix, 0),
        ("normalizer_spec.escape_whitespaces", escape, 1),
    ):
        if value != read:
            hint = "; a BPE: give its tokenizer.json" if name.endswith("type") and value == 2 else ""
            raise ValueError(f"{source}: {name}={value}: {read} is read{hint}")
    if fairseq:
        kinds = dict.fromkeys(SPECIAL, 3) | {"<unk>": UNKNOWN}
        first = [(name, 0.0, kind) for name, kind in kinds.items()]
        pieces = [*first, *pieces[3:], ("<mask>", 0.0, 3)]
    unknown = next((id for id, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN), None)
    if unknown is None:
        raise ValueError(f"{source}: pieces: none is of the type UNKNOWN")
    if len({name for name, _, _ in pieces}) < len(pieces):
        raise ValueError(f"{source}: pieces: one is there twice")
    added = [id for id, (_, _, kind) in enumerate(pieces) if kind not in (NORMAL, BYTE)]
    steps = ("strip", "one_space") if normalizer.get(4, 1) and not fairseq else ()
    return Subwords(
        kind="unigram",
        pieces=tuple(name for name, _, _ in pieces),
        scores=tuple(score for _, score, _ in pieces),
        unknown=unknown,
        byte_fallback=byte_fallback,
        charsmap=charsmap,
        steps=(*(("precompiled",) if charsmap else ()), *steps),
        prefix="always" if normalizer.get(3, 1) else "never",
        whitespace=fairseq,
        added=tuple(Added(id, pieces[id][0] == "<mask>") for id in added),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protobuf: their numbers, and values, int or bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"wire type {kind}")
        size = varint() if kind == 2 else 8 if kind == 1 else 4
        if place + size > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[place : place + size]
        place += size


def merges(
    vocab: Mapping[str, Any], lines: str, source: object, special: Collection[str], add_prefix_space: bool = False
) -> Subwords:
    """The byte-level BPE of a vocab.json and a merges.txt.

    Args:
        vocab: pieces and their ids.
        lines: of merges.txt, two pieces a line; the first line may be a comment with the version.
        source: the folder, for messages.
        special: pieces that are never made of text, of which <mask> takes the white space before it.
        add_prefix_space: a text that begins with no white space gets a space.

    Raises:
        ValueError: a file is damaged.
    """
    pairs = [line for line in lines.replace("\r\n", "\n").split("\n") if line and not line.startswith("#version")]
    flags = {name: name == "<mask>" for name in special if name in vocab}
    values = {
        "added_tokens": [{"id": vocab[name], "content": name, "lstrip": lstrip} for name, lstrip in flags.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": add_prefix_space},
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    }
    return parse(values, source)
