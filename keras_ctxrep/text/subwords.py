"""Subword tokenizers in the tokenizer.json format of Hugging Face's `tokenizers`: SentencePiece's unigram model, Kudo
2018, https://arxiv.org/abs/1804.10959, and byte-level BPE, Radford et al. 2019 (GPT-2).

A text is normalized (`steps`), split (at white space, before each "▁", or by GPT-2's pattern), and each part is cut
into pieces, exactly as by `tokenizers`, but for three rules:

* Added tokens, such as <s> and <mask>, are never made of text: no input can forge a marker. A unigram model is read as
  if their pieces were not there; no merge of a BPE makes one.
* The span of a piece leaves out white space (Unicode's White_Space) at both ends of it in the original text; where
  nothing else is in it, it is empty, and begins and ends after the white space.
* Words that come split are each cut into pieces alone, with the space before it that a word within a text has
  ("always", or `add_prefix_space`). Parts of a text that are white space alone are no words.

An unpaired surrogate is read as U+FFFD.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers

from keras_ctxrep.checks import errors_of, printable, read_json
from keras_ctxrep.text.tokens import Piece, SpecialTokens, encoded, strings

__all__ = ["Added", "SubwordTokenizer", "Subwords", "parse"]

ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>", separators=2)
LARGEST = 1e6  # of scores, which are logarithms
SPACE = "▁"  # stands for a space in the pieces of a unigram model
STEPS: dict[str, dict[str, Any]] = {  # of normalization: our name -> tokenizer.json; "precompiled" has its map beside
    "precompiled": {"type": "Precompiled"},
    "nfc": {"type": "NFC"},
    "nfkc": {"type": "NFKC"},
    "lowercase": {"type": "Lowercase"},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    "strip_left": {"type": "Strip", "strip_left": True, "strip_right": False},
    "strip_right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "one_space": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    "one_metaspace": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE},
}
WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # of bytes, first those that stand for themselves
_OWN = {ord(letter): letter for letter in _LETTERS if ord(letter) < 256}
_OTHERS = iter(letter for letter in _LETTERS if ord(letter) >= 256)
BYTES = {_OWN.get(byte) or next(_OTHERS): byte for byte in range(256)}  # letter in pieces of a BPE -> byte, ascending
_BYTE = re.compile("<0x[0-9A-F]{2}>")
PREFIXES = ("always", "first", "never")  # when Metaspace puts a space before a text that begins with none


class Added(NamedTuple):
    """An added token, which is never made of text: its id, and whether it takes the white space before it.

    Only where words are found for masks is one put into a text.
    """

    id: int
    lstrip: bool = False


@dataclass(frozen=True)
class Subwords:
    """A subword tokenizer, as tokenizer.json has it.

    Attributes:
        kind: "unigram" or "bpe", of which the latter is of bytes.
        pieces: in the order of their ids, those of added tokens too.
        scores: unigram: the logarithm of each piece's probability.
        merges: BPE: pairs of pieces in the order of their ranks.
        unknown: unigram: the id of what has no pieces; BPE: None, each byte has one.
        byte_fallback: unigram: what has no pieces is read as its bytes, whose pieces are "<0x00>" to "<0xFF>".
        charsmap: the precompiled map of SentencePiece's normalization, as its model has it; empty if there is none.
        steps: of normalization, names of `STEPS` in their order.
        prefix: unigram: when a text that begins with no space gets one, of `PREFIXES`; "first": at the text's begin
            alone, which is the same for a text without added tokens.
        whitespace: unigram: a text is split at white space first, and each part gets a prefix.
        add_prefix_space: BPE: a text that begins with no white space gets a space.
        added: the added tokens, in the order of their ids.

    >>> pieces = ("<unk>", "▁", "a", "▁a")
    >>> letters = Subwords("unigram", pieces, (0.0, -2.0, -3.0, -2.5), unknown=0, added=(Added(0),))
    >>> parse(letters.to_json()) == letters
    True
    """

    kind: str
    pieces: tuple[str, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    unknown: int | None = None
    byte_fallback: bool = False
    charsmap: bytes = b""
    steps: tuple[str, ...] = ()
    prefix: str = "always"
    whitespace: bool = False
    add_prefix_space: bool = False
    added: tuple[Added, ...] = ()

    def restricted(self, pieces: Sequence[str]) -> "Subwords":
        """The unigram model with some of its pieces alone, in the order of the new ids.

        Args:
            pieces: to keep, among them the unknown one, and the added tokens that are kept.

        >>> letters = Subwords("unigram", ("<unk>", "a", "b", "ab"), (0.0, -2.0, -2.0, -1.0), unknown=0)
        >>> letters.restricted(["<unk>", "a", "b"]).scores
        (0.0, -2.0, -2.0)
        """
        ids = {piece: id for id, piece in enumerate(pieces)}
        scores = dict(zip(self.pieces, self.scores, strict=True))
        added = (Added(ids[self.pieces[id]], lstrip) for id, lstrip in self.added if self.pieces[id] in ids)
        return replace(
            self,
            pieces=tuple(pieces),
            scores=tuple(scores[piece] for piece in pieces),
            unknown=ids[self.pieces[self.unknown or 0]],
            added=tuple(sorted(added)),
        )

    def model(self) -> Any:
        """The model of `tokenizers`, with the exact scores; in a unigram model added tokens have no text."""
        if self.kind == "bpe":
            return models.BPE({piece: id for id, piece in enumerate(self.pieces)}, [*self.merges])
        hidden = {each.id for each in self.added}
        pieces = ("" if id in hidden else piece for id, piece in enumerate(self.pieces))
        return models.Unigram([*zip(pieces, self.scores, strict=True)], self.unknown, self.byte_fallback)

    def to_json(self) -> str:
        """The text of a tokenizer.json with what is read of it, which `parse` and `tokenizers` read."""
        flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
        added = [{"id": id, "content": self.pieces[id], "lstrip": lstrip, **flags} for id, lstrip in self.added]
        normalizers = [
            step | ({"precompiled_charsmap": base64.b64encode(self.charsmap).decode()} if name == "precompiled" else {})
            for name, step in ((name, STEPS[name]) for name in self.steps)
        ]
        if self.kind == "bpe":
            splitter = {"type": "ByteLevel", "add_prefix_space": self.add_prefix_space}
            splitters = [splitter | {"trim_offsets": True, "use_regex": True}]
            ids = {piece: id for id, piece in enumerate(self.pieces)}
            model: dict[str, Any] = {"type": "BPE", "vocab": ids, "merges": self.merges}
        else:
            splitters = [{"type": "WhitespaceSplit"}] if self.whitespace else []
            splitter = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": self.prefix, "split": True}
            splitters = [*splitters, splitter]
            vocab = [*zip(self.pieces, self.scores, strict=True)]
            model = {"type": "Unigram", "unk_id": self.unknown, "byte_fallback": self.byte_fallback, "vocab": vocab}
        content = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": _joined(normalizers, "normalizers"),
            "pre_tokenizer": _joined(splitters, "pretokenizers"),
            "model": model,
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"


def parse(
    text: str | bytes | dict[str, Any], source: object = "tokenizer.json", special: Collection[str] = ()
) -> Subwords:
    """The tokenizer of a tokenizer.json, ours or one of a Hugging Face folder.

    Args:
        text: of the file, or what it says.
        source: its name, for messages.
        special: pieces that are never made of text, beside the added tokens.

    Raises:
        ValueError: it is damaged, or has what `Subwords` cannot represent; the message names file, key and value.
    """
    with errors_of(source):
        return _parse(_Options("", text if isinstance(text, dict) else read_json(text)), special)


class _Options:
    """An object of the file, whose values are checked as they are read."""

    def __init__(self, path: str, values: Any):
        if not isinstance(values, dict):
            raise ValueError(f"{path or 'the file'}={printable(repr(values), 60)}: an object {{...}} is needed")
        self.path, self.values = path, values

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a key; the default where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            self.refuse(key, "of the wrong type")
        return value

    def only(self, key: str, *allowed: Any) -> Any:
        """The value of a key, which is one of some; None stands for a missing one."""
        value = self.values.get(key)
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            self.refuse(key, f"{' or '.join(json.dumps(each, ensure_ascii=False) for each in allowed)} is read")
        return value

    def refuse(self, key: str, why: str) -> NoReturn:
        path = f"{self.path}.{key}".lstrip(".")
        raise ValueError(f"{path}={printable(repr(self.values.get(key)), 60)}: {why}")

    def inner(self, key: str) -> "_Options":
        return _Options(f"{self.path}.{key}".lstrip("."), self.values.get(key))

    def sequence(self, key: str, name: str) -> Iterator["_Options"]:
        """The parts of a normalizer or pre-tokenizer, alone or in a Sequence."""
        if self.values.get(key) is None:
            return
        part = self.inner(key)
        if part.values.get("type") != "Sequence":
            yield part
            return
        for index, each in enumerate(part.get(name, list, [])):
            yield _Options(f"{part.path}.{name}[{index}]", each)


def _parse(options: _Options, special: Collection[str]) -> Subwords:
    model = options.inner("model")
    kind = model.values.get("type") or ("BPE" if "merges" in model.values else None)
    fields: dict[str, Any] = {}
    if kind == "Unigram":
        pieces, scores = _unigram(model)
        fields |= {"kind": "unigram", "byte_fallback": bool(model.get("byte_fallback", bool, False))}
        fields |= {"unknown": model.get("unk_id", int)} | _metaspace(options)
    elif kind == "BPE":
        pieces, scores = _bpe(model), []
        fields |= {"kind": "bpe", "merges": _merges(model)} | _byte_level(options)
    else:
        model.refuse("type", "Unigram or BPE is read")
    added: dict[int, bool] = {}
    names = {piece: id for id, piece in enumerate(pieces)}
    entries = [_Options(f"added_tokens[{i}]", each) for i, each in enumerate(options.get("added_tokens", list, []))]
    for entry in sorted(entries, key=lambda entry: entry.get("id", int, -1)):
        id, content = entry.get("id", int, -1), entry.get("content", str, "")
        if id == len(pieces) and content not in names:
            names[content] = id
            pieces.append(content)
            scores.append(0.0)
        if names.get(content) != id:
            entry.refuse("id", f"of {content!r}, which is no piece of this id, nor the one after the last")
        added[id] = bool(entry.get("lstrip", bool, False))
    added = {names[piece]: False for piece in special if piece in names} | added
    if kind == "Unigram":
        fields["scores"] = tuple(scores)
        if fields["unknown"] is None or not 0 <= fields["unknown"] < len(pieces):
            model.refuse("unk_id", f"the id of one of {len(pieces):,} pieces is needed")
    else:
        made = {first + second for first, second in fields["merges"]}
        if forged := next((pieces[id] for id in added if pieces[id] in made), None):
            raise ValueError(f"model.merges: {forged!r} is an added token, which no merge may make")
    steps, charsmap = _steps(options)
    return Subwords(
        pieces=tuple(pieces),
        added=tuple(Added(id, lstrip) for id, lstrip in sorted(added.items())),
        steps=steps,
        charsmap=charsmap,
        **fields,
    )


def _unigram(model: _Options) -> tuple[list[str], list[float]]:
    entries = model.get("vocab", list, [])
    for index, entry in enumerate(entries):
        whole = type(entry) is list and len(entry) == 2 and type(entry[0]) is str and type(entry[1]) in (float, int)
        if not (whole and abs(entry[1]) < LARGEST):
            raise ValueError(f"model.vocab[{index}]={printable(repr(entry), 60)}: a piece and its score are needed")
    pieces = [piece for piece, _ in entries]
    if len({*pieces}) < len(pieces):
        raise ValueError(f"model.vocab: {Counter(pieces).most_common(1)[0][0]!r} is there twice")
    return pieces, [float(score) for _, score in entries]


def _bpe(model: _Options) -> list[str]:
    for key, *allowed in (
        ("dropout", None),
        ("continuing_subword_prefix", None, ""),
        ("end_of_word_suffix", None, ""),
        ("byte_fallback", None, False),
        ("ignore_merges", None, False),
    ):
        model.only(key, *allowed)
    ids = model.get("vocab", dict, {})
    pieces = sorted(ids, key=lambda piece: ids[piece] if type(ids[piece]) is int else -1)
    if [ids[piece] for piece in pieces] != [*range(len(pieces))]:
        raise ValueError(
            f"model.vocab: the ids of its {len(pieces):,} pieces are not 0 to {len(pieces) - 1:,}, each once"
        )
    if missing := sorted({*pre_tokenizers.ByteLevel.alphabet()} - {*pieces}):
        raise ValueError(f"model.vocab: no piece {missing[0]!r}; a byte-level BPE has one for each byte")
    return pieces


def _merges(model: _Options) -> tuple[tuple[str, str], ...]:
    pieces, merges = model.values.get("vocab", {}), []
    for index, entry in enumerate(model.get("merges", list, [])):
        pair = tuple(entry.split(" ")) if isinstance(entry, str) else tuple(entry) if isinstance(entry, list) else ()
        known = len(pair) == 2 and all(isinstance(each, str) and each in pieces for each in pair)
        if not (known and "".join(pair) in pieces):
            raise ValueError(
                f"model.merges[{index}]={printable(repr(entry), 60)}: two pieces are needed that make a third"
            )
        merges.append(pair)
    return tuple(merges)


def _metaspace(options: _Options) -> dict[str, Any]:
    parts = [*options.sequence("pre_tokenizer", "pretokenizers")]
    whitespace = len(parts) == 2 and parts[0].values.get("type") == "WhitespaceSplit"
    if not parts or len(parts) > 1 + whitespace:
        options.refuse("pre_tokenizer", "Metaspace is read, alone or after WhitespaceSplit")
    part = parts[-1]
    part.only("type", "Metaspace")
    part.only("replacement", SPACE)
    part.only("split", None, True)
    prefix = part.only("prepend_scheme", None, *PREFIXES)
    if prefix is None:
        prefix = "always" if part.get("add_prefix_space", bool, True) else "never"
    return {"prefix": prefix, "whitespace": whitespace}


def _byte_level(options: _Options) -> dict[str, Any]:
    parts = [*options.sequence("pre_tokenizer", "pretokenizers")]
    if len(parts) != 1:
        options.refuse("pre_tokenizer", "ByteLevel is read")
    parts[0].only("type", "ByteLevel")
    parts[0].only("use_regex", None, True)
    return {"add_prefix_space": bool(parts[0].get("add_prefix_space", bool, True))}


def _steps(options: _Options) -> tuple[tuple[str, ...], bytes]:
    steps, charsmap = [], b""
    for part in options.sequence("normalizer", "normalizers"):
        values = dict(part.values)
        encoded = values.pop("precompiled_charsmap", None)
        if "precompiled_charsmap" in part.values:
            if encoded is None:  # of a model that has none
                continue
            if charsmap or not isinstance(encoded, str):
                part.refuse("precompiled_charsmap", "one map is read")
            try:
                charsmap = base64.b64decode(encoded, validate=True)
            except ValueError:
                part.refuse("precompiled_charsmap", "not base64")
            if not charsmap:
                continue
            if not _whole(charsmap):
                part.refuse("precompiled_charsmap", "damaged")
        name = next((name for name, step in STEPS.items() if step == values), None)
        if name is None:
            raise ValueError(f"{part.path}={printable(json.dumps(part.values, ensure_ascii=False))}: not supported")
        steps.append(name)
    return tuple(steps), charsmap


def _whole(charsmap: bytes) -> bool:
    """Whether a precompiled map is one: no step through its double array, and no target, is outside of it.

    https://github.com/s-yata/darts-clone: the bits of a unit are a label, whether a value follows, and an offset.
    """
    size = int.from_bytes(charsmap[:4], "little")
    targets = np.frombuffer(charsmap, np.uint8)[4 + size :]
    if not size or size % 1024 or 4 + size > len(charsmap):
        return False
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    next_units = np.arange(len(units)) ^ (units >> 10 << ((units & 512) >> 6))
    steps = units >> 31 == 0  # others are values
    if (next_units[steps] >= len(units)).any():  # all 256 that may follow are in one block
        return False
    places = units[next_units[steps & (units & 256 > 0)]] & 0x7FFFFFFF
    if (places >= len(targets)).any() or targets[-1]:
        return False
    inside = targets[places] & 0xC0 == 0x80  # of a character
    return not inside.any() and charsmap[4 + size :].decode("utf-8", "replace").count("\ufffd") == 0


def _joined(parts: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """A part alone, or several as a Sequence."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", name: parts}


class SubwordTokenizer:
    """A subword tokenizer with the interface of `text.tokens.WordPiece`, by the `tokenizers` library.

    Args:
        subwords: what it does.
        special_tokens: those of its pieces that mark a text; the defaults are those of RoBERTa.

    Raises:
        ValueError: a special token is no piece of it.

    >>> pieces = ("<unk>", "<s>", "</s>", "<pad>", "<mask>", "\u2581", "a", "\u2581a")
    >>> scores = (0.0, 0.0, 0.0, 0.0, 0.0, -2.0, -3.0, -2.5)
    >>> subwords = Subwords("unigram", pieces, scores, unknown=0, added=tuple(map(Added, range(5))))
    >>> tokenizer = SubwordTokenizer(subwords)
    >>> tokenizer.encode("aa  a")
    [Piece(id=7, start=0, end=1, word=0), Piece(id=6, start=1, end=2, word=0), Piece(id=5, start=3, end=3, word=1), \
Piece(id=7, start=4, end=5, word=2)]
    """

    def __init__(self, subwords: Subwords, special_tokens: SpecialTokens = ROBERTA_TOKENS):
        ids = {piece: id for id, piece in enumerate(subwords.pieces)}
        if missing := [piece for piece in special_tokens.pieces if piece not in ids]:
            raise ValueError(f"tokenizer: no piece {', '.join(missing)}, of the special tokens")
        self.subwords, self.special_tokens, self.vocab = subwords, special_tokens, [*subwords.pieces]
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[piece] for piece in special_tokens.pieces)
        without = replace(subwords, pieces=("",), scores=(0.0,), merges=(), unknown=0, added=())
        self._tokenizer = Tokenizer.from_str(without.to_json())
        self._tokenizer.model = subwords.model()

    def needed(self, counts: Mapping[int, int]) -> set[str]:
        """The pieces without which a text that has these ones would be read as unknown: letters, and bytes.

        Args:
            counts: of each piece's id in a text.
        """
        found = [piece for id, piece in enumerate(self.vocab) if counts.get(id)]
        alone = {*self.vocab} & {letter for piece in found for letter in piece}
        only = {piece for piece in found if not alone.issuperset(piece)}  # the only ones that have a letter
        bytes_ = {piece for piece in self.vocab if self.subwords.byte_fallback and _BYTE.fullmatch(piece)}
        return {*self.special_tokens.pieces, self.vocab[self.subwords.unknown or 0], SPACE} | alone | only | bytes_

    def cut(self, piece: str) -> list[str]:
        """The pieces that a piece would be cut into if it were text, without a space before it."""
        return [token.value for token in self._tokenizer.model.tokenize(piece)]

    @cached_property
    def of_words(self) -> "SubwordTokenizer":
        """The tokenizer of words that come split, of which each begins as it does within a text."""
        alone = replace(self.subwords, prefix="always", add_prefix_space=self.subwords.kind == "bpe")
        return self if alone == self.subwords else SubwordTokenizer(alone, self.special_tokens)

    @cached_property
    def readable(self) -> list[str]:
        """The pieces as WordPiece writes them, with "##" before those that go on with a word."""
        texts = [piece.replace(SPACE, " ") for piece in self.vocab]
        if self.subwords.kind == "bpe":
            texts = [decoders.ByteLevel().decode([piece]) for piece in self.vocab]
        for each in self.subwords.added:
            texts[each.id] = self.vocab[each.id]
        return [f"##{text}" if text[:1].isalnum() else re.sub("^ (?=.)", "", text, flags=re.DOTALL) for text in texts]

    def bytes_of(self, id: int) -> bytes:
        """The bytes that a piece of a byte-level BPE stands for; an added token with other letters is text itself."""
        piece = self.vocab[id]
        return bytes(map(BYTES.__getitem__, piece)) if BYTES.keys() >= {*piece} else piece.encode()

    def encode(self, text: str) -> list[Piece]:
        """Pieces of one text, without those that mark it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], most: int | None = None) -> list[list[Piece]]:
        """Pieces of several texts, on all CPU cores unless TOKENIZERS_PARALLELISM=false.

        Args:
            texts: any.
            most: how many pieces of each text are needed; there may be more.
        """
        texts = strings(texts)
        encodings = encoded(texts, self._tokenizer.encode_batch)
        return [_pieces(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def ids_around_masks(self, parts: Sequence[str]) -> list[list[int]]:
        """The ids of each part of a text between which masks stand, as `tokenizers` gives them for the added token."""
        lstrip = Added(self.mask, True) in self.subwords.added
        parts = [*(part.rstrip("".join(WHITE_SPACE)) if lstrip else part for part in parts[:-1]), parts[-1]]
        return [*self.ids_batch(parts[:1]), *self.after_others.ids_batch(parts[1:])]

    @cached_property
    def after_others(self) -> "SubwordTokenizer":
        """The tokenizer of a part of a text that is behind a mask."""
        if self.subwords.prefix != "first":
            return self
        return SubwordTokenizer(replace(self.subwords, prefix="never"), self.special_tokens)

    def ids_batch(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """The ids of `encode_batch`, faster."""
        return [encoding.ids for encoding in encoded(strings(texts), self._tokenizer.encode_batch_fast)]


def _pieces(text: str, encoding: Encoding) -> list[Piece]:
    pieces = []
    for id, (start, end), word in zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True):
        while start < end and text[start] in WHITE_SPACE:
            start += 1
        while start < end and text[end - 1] in WHITE_SPACE:
            end -= 1
        pieces.append(Piece(id, start, end, word or 0))
    return pieces
