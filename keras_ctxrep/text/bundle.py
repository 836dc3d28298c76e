"""The bundle: everything a model needs besides its weights, in one JSON file that is part of every artifact."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from keras_ctxrep import checks
from keras_ctxrep.atomic import atomic_write, sha256
from keras_ctxrep.checks import Range, RowCount
from keras_ctxrep.text.artifacts import (
    CARD,
    NAME,
    TFLITE,
    TOKENIZER,
    UPDATES,
    VOCAB,
    WEIGHTS,
    append_archive,
    latest,
    opened,
)
from keras_ctxrep.text.families import TEXT_SIDES
from keras_ctxrep.text.features import Features, Reads
from keras_ctxrep.text.pairs import APART, PairFeatures
from keras_ctxrep.text.subwords import Subwords, parse
from keras_ctxrep.text.tokens import SpecialTokens, vocab_text
from keras_ctxrep.text.units import UNITS

__all__ = ["Bundle", "from_files", "load", "save", "write_several", "write_tflite"]

FINE_TUNED, PRETRAINED = "# Fine-tuned:", "## The pretrained weights"  # headings in the card of a fine-tuned model
TFLITE_FIGURES = "## Export to .tflite"  # heading in the card of a .tflite file that was measured
POOLING = {  # how a vector of a text is made
    "mean": "the mean of the top layer over the tokens",
    "max": "the maximum of the top layer over the tokens",
    "cls": "the top layer at the first token",
    "pooler": "the encoder's pooled output",
}
CHECKSUM = "sha256"  # in bundle.json: of its other fields
FORMAT = 2
# format 1: what `reads` is for tasks with other inputs than plain texts
_READS = {"tag": {"words": True}, "answer": {"windows": True}}
_RENAMED = {"beside": "extra_embeddings", "both_ends": "output_mix"}  # names of format 1 -> of format 2
_ANSWERING = {"stride": 128, "max_answer": 30, "null_threshold": None}  # fields of format 1, and their defaults
_CHECKED = {  # values of a config that text preparation reads, and the settings of predictions
    "config": {
        "max_characters": Annotated[int, Range(3, 1000)],
        "words": Annotated[int, Range(0, 1 << 31)],
        "buckets": Annotated[int, Range(0, 1 << 31)],
        "min_n": Annotated[int, Range(0, 100)],
        "max_n": Annotated[int, Range(0, 100)],
        "lowercase": bool,
        "pieces": bool,
        "units": Annotated[str, Range(choices=UNITS)],
    },
    "settings": {
        "stride": RowCount,
        "max_answer": RowCount,
        "null_threshold": float | None,
        "windows": str,
        "label_type": str,
    },
}
_CHECKED["extra_embeddings"] = _CHECKED["config"]


@dataclass(frozen=True)
class Bundle:
    """What a model is and how its text is prepared; read by Keras, TF Serving and the edge runtime alike.

    Attributes:
        family: "elmo", "static", "lm", or a family of Transformer encoders over word pieces, as "bert".
        task: the name of one of `keras_ctxrep.tasks`, or of a family's pretraining: "language_model" (ELMo),
            "pretrainer" (of Transformer encoders), "causal_language_model" (of one direction).
        config: the fields of the family's Config.
        stack: keyword arguments of `models.stack.by_name`, for a task network over the encoder.
        extra_embeddings: fields of `models.static.Config`, of static vectors that the task network reads too.
        max_length: maximum number of tokens per text (words for ELMo, pieces with markers for BERT).
        labels: class names in the order of the logits.
        vocab: BERT's pieces, the words or pieces of static vectors, the words that an ELMo language model predicts or
            reads, or the tokens of another language model; stored in vocab.txt. With a `tokenizer` its pieces.
        tokenizer: the text of tokenizer.json, of a subword tokenizer other than WordPiece; see `text.subwords`.
        lowercase: whether word pieces are lower-cased and lose their accents.
        strip_accents: whether accents are removed, if that differs from `lowercase`; else None.
        split_cjk: whether each Chinese character is a word of its own, as published.
        card: the model card in Markdown, stored in card.md: of pretrained weights data, licence, figures, limits; of a
            model that was fine-tuned from them its own, and theirs in a section of it.
        special_tokens: the vocabulary's pieces that mark a text and a pair; BERT's, of bundles without it too.
        reads: what the task reads of a text.
        head: keyword arguments of the head.
        settings: the task's own settings for predictions.
        pooling: how a vector of a text is made, as in `models.heads.embed`. "mean", of bundles without it too, unless
            the model was trained on sentences with another.
        normalize: whether that vector is scaled to length 1.
        dims: numbers of that vector, the first ones, if not all.
        columns: names of the columns, or their numbers, in the files that a task model was trained from.
        scripts: of the letters of the text that an ELMo was pretrained on, as `text.scripts.script` names them, for a
            warning of texts in others; empty: not known.
        roles: what is put before a text by its role, such as {"query": "query: ", "passage": "passage: "}, where an
            encoder was trained so; "": before a text without a role. Empty: nothing is.
        base: of a model folder that has changes of an encoder's weights instead of weights: {"name": of the encoder,
            "weights": SHA-256 of its file of weights}.
        versions: of the packages that wrote it.
        files: SHA-256 of the files beside it.
    """

    family: str
    task: str
    config: dict
    max_length: int
    labels: tuple[str, ...] = ()
    vocab: tuple[str, ...] = ()
    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True
    card: str = ""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    reads: Reads = field(default_factory=Reads)
    head: dict = field(default_factory=dict)
    stack: dict = field(default_factory=dict)
    extra_embeddings: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    pooling: str = "mean"
    normalize: bool = False
    dims: int | None = None
    columns: dict = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    roles: dict = field(default_factory=dict)
    base: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    tokenizer: str = ""

    @cached_property
    def features(self) -> Features:
        """The function from texts to the model's input dict."""
        features = TEXT_SIDES[self.family].features(self)
        return PairFeatures(features, self.reads.windows) if self.apart else features

    @property
    def subwords(self) -> Subwords:
        """What `tokenizer` says."""
        return _subwords(self.tokenizer)

    @property
    def generates(self) -> bool:
        """Whether it is a language model in one direction, of which text is sampled."""
        return self.task == TEXT_SIDES[self.family].generates

    @property
    def fills(self) -> bool:
        """Whether it is a masked language model, which names words for [MASK]."""
        return self.task == TEXT_SIDES[self.family].fills

    @property
    def encodes(self) -> bool:
        """Whether it is an encoder, whose answers are vectors of texts."""
        return self.task == "embed"

    @cached_property
    def tokens(self) -> Any:
        """The tokens of a language model in one direction, or of the forward half of a biLM.

        Raises:
            ValueError: it is another model.
        """
        return TEXT_SIDES[self.family].tokens(self)

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Label -> its position in the logits."""
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def pairs(self) -> bool:
        """Whether it reads pairs of texts."""
        return bool(self.reads.pair)

    @property
    def apart(self) -> bool:
        """Whether the encoder reads the texts of a pair apart, for a task network that compares them."""
        return self.stack.get("kind") in APART

    @cached_property
    def empty_length(self) -> int:
        """Tokens of a row whose text, or whose two texts, have no words: those that mark its parts."""
        if TEXT_SIDES[self.family].generates and self.tokenizer:  # no marks; of an empty text one is read
            return 0
        return len(self.features.encode([""], [""] if self.pairs else None)[0])

    def of_encoder(self) -> "Bundle":
        """The bundle of the encoder alone, over the same text preparation."""
        own: dict[str, Any] = {"labels": (), "columns": {}, "head": {}, "stack": {}, "extra_embeddings": {}}
        return replace(self, task="embed", reads=Reads(), settings={}, **own)

    def prefix(self, role: str | None) -> str:
        """What is put before a text of a role, by an encoder; see `roles`.

        Args:
            role: its name; None: the text has none.

        Raises:
            ValueError: there is no such role.
        """
        roles = self.roles if self.encodes else {}
        if role is None or role in roles:
            return roles.get(role or "", "")
        names = ", ".join(repr(name) for name in roles if name)
        raise ValueError(f"role={role!r}: {f'this model has {names}' if names else 'this model has no roles'}")

    @property
    def vector(self) -> str:
        """How a vector of a text is made, for cards and READMEs."""
        cut = "" if self.dims is None else f", its first {self.dims:,} numbers"
        return POOLING[self.pooling] + cut + (", scaled to length 1" if self.normalize else "")

    def files_as_bytes(self, files: dict[str, str] | None = None) -> dict[str, bytes]:
        """The bundle as files, name -> contents: bundle.json with a checksum, and those beside it that it has.

        Args:
            files: SHA-256 of further files beside it.
        """
        content = {VOCAB: vocab_text(self.vocab).encode()} if self.vocab else {}
        content = {TOKENIZER: self.tokenizer.encode()} if self.tokenizer else content
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()} | (files or {})
        checks = {name: value for name, value in asdict(self).items() if name not in ("vocab", "card", "tokenizer")}
        for name in ("scripts", "roles"):  # earlier versions of the package read a bundle without
            if not checks[name]:
                del checks[name]
        if self.special_tokens == SpecialTokens():  # likewise
            del checks["special_tokens"]
        if UPDATES not in hashes:  # a model is whole wherever else it is written
            del checks["base"]
        content |= {CARD: self.card.encode()} if self.card else {}
        fields = {"format": FORMAT} | checks | {"files": hashes}
        fields[CHECKSUM] = _checksum(json.loads(json.dumps(fields)))
        content[NAME] = (json.dumps(fields, ensure_ascii=False, indent=1) + "\n").encode()
        return content


def save(bundle: Bundle, folder: str | Path) -> None:
    """Writes vocab.txt, card.md and then bundle.json, with the hash of the weights if they are in the folder.

    Args:
        bundle: of the model.
        folder: the model folder, which exists.
    """
    folder = Path(folder)
    beside = {name: sha256(folder / name) for name in (WEIGHTS, UPDATES) if (folder / name).exists()}
    for name, data in bundle.files_as_bytes(beside).items():
        with atomic_write(folder / name) as path:
            path.write_bytes(data)
    if not bundle.card:  # that of an earlier model
        (folder / CARD).unlink(missing_ok=True)


def complete_roles(prefixes: Mapping[str, str]) -> dict[str, str]:
    """`Bundle.roles` of prefixes by role: "query" and "passage", which search uses, have none unless they are given.

    Args:
        prefixes: by role; if all are empty, there are no roles.

    >>> complete_roles({"query": "query: "}), complete_roles({"query": ""})
    ({'query': 'query: ', 'passage': ''}, {})
    """
    return {"query": "", "passage": "", **prefixes} if any(prefixes.values()) else {}


def pretrained_card(card: str) -> str:
    """The part of a card that is of the pretrained weights: all of it, unless it is the card of a fine-tuned model.

    >>> pretrained_card("# Ours"), pretrained_card(f"{FINE_TUNED} tag\\n\\n{PRETRAINED}\\n\\n# Ours")
    ('# Ours', '# Ours')
    """
    own, _, pretrained = card.partition(PRETRAINED)
    return pretrained.lstrip("\n") if own.startswith(FINE_TUNED) else card


def located(path: str | Path) -> tuple[Path, Bundle]:
    """An artifact's folder or file, of a SavedModel that of its latest version, and its bundle, as in `load`."""
    path = Path(path)
    path = latest(path) if path.is_dir() and not (path / NAME).is_file() else path
    return path, load(path)


def load(path: str | Path) -> Bundle:
    """The bundle of a model folder, a SavedModel folder (in its assets.extra) or a .tflite file (zipped at its end).

    Raises:
        ValueError: there is no bundle, it is damaged or too large, or its checksum or the hash of a file beside it does
            not match.
    """
    artifact = opened(Path(path))
    bundle = _parse(artifact.source, artifact.read)
    artifact.check(bundle.files)
    return bundle


def write_tflite(path: str | Path, model: bytes, bundle: Bundle, files: Mapping[str, bytes] | None = None) -> None:
    """Writes a .tflite file: what LiteRT reads, then a zip archive with the bundle, uncompressed.

    Args:
        path: the file.
        model: what LiteRT reads.
        bundle: of the model.
        files: more files of the archive, name -> contents.
    """
    digest = hashlib.sha256(model).hexdigest()
    append_archive(path, model, {**bundle.files_as_bytes({TFLITE: digest}), **(files or {})})


def write_several(path: str | Path, model: bytes, several: Mapping[str, Bundle]) -> None:
    """Writes a .tflite file with several models, whose bundles are in folders of its archive; a common vocabulary once.

    Args:
        path: the file.
        model: what LiteRT reads, with the signatures NAME/SIGNATURE.
        several: name of a model -> its bundle.
    """
    digest = hashlib.sha256(model).hexdigest()
    files: dict[str, bytes] = {}
    for name, bundle in several.items():
        for file, content in bundle.files_as_bytes({TFLITE: digest}).items():
            common = file in (VOCAB, TOKENIZER) and files.setdefault(file, content) == content
            files |= {} if common else {f"{name}/{file}": content}
    append_archive(path, model, files)


def from_files(files: Mapping[str, bytes], source: str | Path) -> Bundle:
    """The bundle of which `files` are the `files_as_bytes`.

    Args:
        source: where they come from, for the errors.

    Raises:
        ValueError: it is damaged.

    >>> bundle = Bundle("elmo", "embed", {}, max_length=2)
    >>> from_files(bundle.files_as_bytes(), "memory") == bundle
    True
    """
    return _parse(Path(source), files.__getitem__)


def _parse(source: Path, read: Callable[[str], bytes]) -> Bundle:
    """The bundle in a folder or an archive whose files `read` returns."""
    try:
        content: dict[str, Any] = checks.read_json(read(NAME))
        written = content.pop(CHECKSUM, None)  # bundles of 0.2 have none
        checksum = _checksum(content)
        content = _upgrade(content)
        for name in ("labels", "reads"):  # every one has them
            content[name]
        if written not in (None, checksum):
            raise ValueError(
                f"it is not as it was written: copy it again or, if you have changed it, delete its {CHECKSUM}"
            )
    except (ValueError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, ValueError) else "not an object of the keys that it needs"
        raise ValueError(f"{source}: {NAME} is damaged or of another version: {reason}") from None
    except KeyError as error:
        raise ValueError(f"{source}: {NAME} is damaged or missing: {error.args[0]}") from None
    vocabulary: str | None = VOCAB
    try:
        checks.check_names(Bundle, content)
        made = {"reads": Reads, "special_tokens": SpecialTokens}
        content |= {name: checks.make(kind, content[name], name) for name, kind in made.items() if name in content}
        hints = checks.annotations(Bundle) | {"max_length": RowCount}
        checks.check_values({name: hint for name, hint in hints.items() if name not in made}, content)
        for name, allowed in _CHECKED.items():
            checks.check_values(allowed, content.get(name, {}), f"{name}.")
        for name in ("files", "base", "columns", "roles"):
            checks.check_values(dict.fromkeys(content.get(name, ()), str), content.get(name, {}), f"{name}.")
        for name in ("labels", "scripts"):
            content[name] = tuple(content.get(name, ()))
        bundle = Bundle(**content)
        if bundle.family not in TEXT_SIDES:
            raise ValueError(f"family={bundle.family!r}: one of {', '.join(TEXT_SIDES)}")
        if bundle.pooling not in POOLING:
            raise ValueError(f"pooling={bundle.pooling!r}: one of {', '.join(POOLING)}")
        if bundle.dims is not None and bundle.dims < 1:
            raise ValueError(f"dims={bundle.dims}: at least 1")
        vocabulary = next((name for name in (TOKENIZER, VOCAB) if name in bundle.files), None)
        if TEXT_SIDES[bundle.family].vocabulary and vocabulary is None:
            raise ValueError(f"a {bundle.family} encoder needs {VOCAB}")
        if vocabulary == TOKENIZER:
            bundle = replace(bundle, tokenizer=read(TOKENIZER).decode("utf-8"))
            bundle = replace(bundle, vocab=bundle.subwords.pieces)
        elif vocabulary == VOCAB:
            bundle = replace(bundle, vocab=tuple(read(VOCAB).decode("utf-8").removesuffix("\n").split("\n")))
    except ValueError as error:
        raise ValueError(f"{source / NAME}: {checks.printable(error, 400)}") from None
    except KeyError:
        raise ValueError(f"{source}: {vocabulary} is missing; copy the file again") from None
    except FileNotFoundError:
        raise ValueError(f"{source}: {vocabulary} is missing; copy the whole folder again, or train again") from None
    try:  # not hashed: a user may edit it
        return replace(bundle, card=read(CARD).decode("utf-8"))
    except (KeyError, FileNotFoundError):
        return bundle
    except ValueError as error:
        raise ValueError(f"{source / CARD}: {error}") from None


@lru_cache(4)  # a bundle is replaced by others of the same tokenizer
def _subwords(tokenizer: str) -> Subwords:
    return parse(tokenizer)


def _checksum(fields: dict) -> str:
    """SHA-256 of the fields of a bundle, as JSON gives them, in any order and layout."""
    try:
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _upgrade(fields: dict) -> dict:
    """Converts the fields of a bundle of any format to the current format."""
    version = fields.pop("format")
    if version not in (1, FORMAT):
        raise ValueError(f"format is not 1 to {FORMAT}")
    if version == 1:
        fields = {_RENAMED.get(name, name): value for name, value in fields.items()}
        if "stack" in fields:
            fields["stack"] = {_RENAMED.get(name, name): value for name, value in fields["stack"].items()}
        reads = fields["reads"] = {"pair": fields.pop("pairs", False)} | _READS.get(fields["task"], {})
        settings = {name: fields.pop(name, default) for name, default in _ANSWERING.items()}
        fields["settings"] = settings if "windows" in reads else {}
    return fields
