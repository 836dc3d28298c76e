"""The common parts of the published formats of BERT and its relatives: options, heads, vocabulary, architectures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import keras

from keras_ctxrep import tasks
from keras_ctxrep.checks import errors_of, most, of_kind, warn
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.weights import Tensor, check, fill
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import bert
from keras_ctxrep.models.families import FAMILIES, Family
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.models.transformer import Config, Layout, token_vectors
from keras_ctxrep.text.artifacts import VOCAB
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.subwords import Subwords
from keras_ctxrep.text.tokens import BERT_TOKENS, SpecialTokens, WordPiece

__all__ = ["ARCHITECTURES", "Architecture", "architectures", "summary"]

DTYPES = ("float32", "float16", "bfloat16")  # supported dtypes, all converted to float32
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


class Architecture(NamedTuple):
    """The contents of a model class of `transformers`."""

    task: str  #: the corresponding task
    parts: tuple[str, ...]  #: pooler and heads above the layers
    labels: tuple[str, ...] = ()  #: class names, if they are always the same
    pairs: bool = False  #: whether it reads pairs; for a text classifier only the default
    problems: dict[str, str] = {}  # noqa: RUF012  `problem_type` of a text classifier -> task; read only

    @property
    def is_encoder(self) -> bool:
        """Whether it has no head."""
        return {*self.parts} <= {"pooler"}


REGRESSION = "regression"  # the `problem_type` of a classifier with one number
_PROBLEMS = {
    "single_label_classification": "classify", REGRESSION: "regress", "multi_label_classification": "multilabel",
}  # fmt: skip
_KINDS = {  # what the name of a class ends with -> its contents; Google's checkpoints are the first two and "Model"
    "ForPreTraining": Architecture("pretrainer", ("pooler", "mlm", "nsp")),
    "ForMaskedLM": Architecture("pretrainer", ("mlm",)),
    "ForNextSentencePrediction": Architecture("classify", ("pooler", "nsp"), bert.NEXT_SENTENCE, pairs=True),
    "ForSequenceClassification": Architecture("classify", ("pooler", "classifier"), problems=_PROBLEMS),
    "ForTokenClassification": Architecture("tag", ("classifier",)),
    "ForQuestionAnswering": Architecture("answer", ("span",), pairs=True),
    "Model": Architecture("embed", ("pooler",)),  # some have no pooler
}
LAYERS = {  # part -> our layers
    "pooler": ("pooler",),
    "mlm": ("mlm_transform", "mlm_norm", "mlm_bias"),
    "nsp": ("nsp_logits",),
    "classifier": ("logits",),
    "span": ("span_logits",),
}


def architectures(family: Family) -> dict[str, Architecture]:
    """The model classes of `transformers` that hold models of a family: name -> contents.

    Args:
        family: one whose folders `transformers` reads.

    >>> [*architectures(FAMILIES["mpnet"])][:2]
    ['MPNetForMaskedLM', 'MPNetForSequenceClassification']
    """
    layout = of_kind(family.layout, Layout)
    kinds = {}
    for ending, kind in _KINDS.items():
        if "nsp" in kind.parts and "nsp_logits" not in layout.names:
            continue
        parts = () if ending == "Model" and "pooler" not in layout.names else kind.parts
        kinds[f"{layout.classes}{ending}"] = kind._replace(parts=parts)
    return kinds


BERT = FAMILIES["bert"]
ARCHITECTURES = architectures(BERT)
PARTS = {"pooler": "pooled output", "mlm": "masked language model", "nsp": "next sentence"}  # part -> name in messages
PARTS |= {"classifier": "classes", "span": "answer spans"}


def architecture(
    parts: Collection[str], classifier: str | None, source: object, kinds: Mapping[str, Architecture] = ARCHITECTURES
) -> tuple[str, tuple[str, ...]]:
    """The model class of `transformers` that has the parts of a checkpoint, and its parts; without an unread pooler.

    Args:
        parts: of the checkpoint.
        classifier: the architecture that a part "classifier" belongs to, if it is known.
        source: of the checkpoint, for messages.
        kinds: the model classes of its family.
    """
    above = set(parts) - {"pooler"}
    if above == {"classifier"}:
        if classifier is not None and classifier in kinds and "classifier" in kinds[classifier].parts:
            return classifier, kinds[classifier].parts
        of_texts, of_tokens = (
            next(name for name in kinds if name.endswith(f"For{what}Classification")) for what in ("Sequence", "Token")
        )
        read = f"{of_texts} (of texts) and {of_tokens} (of tokens) are read"
        stated = f"it has a classifier, and its architecture is {classifier}"
        raise ValueError(f"{source}: {stated}; {read}: name one in the option architectures")
    for name, kind in kinds.items():
        if set(kind.parts) - {"pooler"} == above:
            return name, kind.parts if above or "pooler" in parts else ()
    listed = ", ".join(PARTS[name] for name in PARTS if name in parts)
    raise ValueError(f"{source}: no model has these parts together: {listed}; leave out those of other models")


def config(options: SourceOptions, pooler: bool, family: Family = BERT) -> Any:
    """The sizes in a config.json or bert_config.json, which have the same keys, as the `Config` of a family.

    A ValueError names a wrong option.

    Args:
        options: those of the file.
        pooler: whether the model has one.
        family: of the model.
    """
    layout = of_kind(family.layout, Layout)
    fields: dict[str, Any] = {}
    for name, (field, kind, least, *default) in layout.options.items():
        if kind is str:
            activation = options.get(name, str, default=default[0])
            if activation not in ACTIVATIONS:
                known = ", ".join(ACTIVATIONS)
                raise ValueError(f"{options.source}: the option {name} is {activation!r}; one of {known}")
            fields[field] = ACTIVATIONS[activation]
            continue
        kinds = (float, int) if kind is float else int
        bounds = {"most": most(family.config, field)} if field == "layers" else {}
        fields[field] = kind(options.get(name, kinds, least, *default, **bounds))
    if (unread := layout.unread_positions) >= fields["max_positions"]:
        raise ValueError(f"{options.source}: the option max_position_embeddings is too small: {unread} are of no token")
    fields["max_positions"] -= unread
    with errors_of(options.source):
        return family.config(**fields, pooler=pooler)


def build(bundle: Bundle) -> keras.Model:
    """The Transformer encoder that a bundle describes, with its head and random weights, on any backend of Keras."""
    family = FAMILIES[bundle.family]
    config = family.config(**bundle.config)
    if bundle.task in family.pretraining:
        return family.pretraining[bundle.task](config, 0)
    return tasks.get(bundle.task).head(family.encoder(config), bundle)


def architecture_to_write(bundle: Bundle, architecture: str | None = None, families: Collection[str] = FAMILIES) -> str:
    """The model class of `transformers` that holds a model; a ValueError says why none does, or not `architecture`.

    Args:
        bundle: of the model.
        architecture: the class to write; None: the first one that fits.
        families: names of those that the format holds.
    """
    family = FAMILIES[bundle.family]
    if family.layout is None or bundle.family not in families:
        raise ValueError(f"a model of the family {bundle.family!r}: this format holds a BERT")
    encoder = f"{family.layout.classes}Model"
    positions, pooler = bundle.config.get("positions", "learned"), bundle.config.get("pooler", True)
    if positions != "learned":
        raise ValueError(f"positions={positions!r}: `transformers`' BERT has learned ones only")
    absent = set() if next_sentence(bundle) else {"BertForNextSentencePrediction"}
    known = architectures(family)
    kinds = {name: kind for name, kind in known.items() if name not in absent}
    fitting = [name for name, kind in kinds.items() if bundle.task in (kind.task, *kind.problems.values())]
    if architecture is None:
        reasons = {
            f"what the task {bundle.task!r} needs": not fitting,
            "a task network": bundle.stack,
            "a mix of all layers": bundle.head.get("mix"),
            "a CRF": bundle.head.get("crf"),
        }
        if reason := next((reason for reason, applies in reasons.items() if applies), None):
            raise ValueError(
                f"this model reads {reason}, which `transformers`' does not; its encoder alone is "
                f'written with architecture="{encoder}"'
            )
        return next(name for name in fitting if pooler or name != "BertForPreTraining")
    if architecture not in known:
        raise ValueError(f"architecture {architecture!r}: one of {', '.join(known)}")
    if architecture not in (*fitting, encoder):
        classes = f" of {', '.join(bundle.labels[:6])}" if bundle.labels else ""
        raise ValueError(f"architecture {architecture!r}: it does not hold the task {bundle.task!r}{classes}")
    return architecture


def multiplied_out(model: keras.Model, bundle: Bundle) -> tuple[keras.Model, Bundle]:
    """A BERT whose table of pieces has the width of the layers, as in the published formats, and its bundle.

    Args:
        model, bundle: a BERT of any task.
    """
    if bundle.config.get("embedding_width") is None:
        return model, bundle
    plain = replace(bundle, config=bundle.config | {"embedding_width": None})
    with no_random_weights():
        own = build(plain)
    copy_weights(model, own, skip=["token_embedding"])
    own.get_layer("token_embedding").set_weights([token_vectors(model)])
    return own, plain


def load(
    source: object,
    stored: Mapping[str, Any],
    weight_map: Sequence[Tensor],
    ignored: Collection[str],
    config: Config,
    task: str,
    pairs: bool = False,
    family: str = "bert",
    **fields: Any,
) -> tuple[keras.Model, Bundle]:
    """The model of a checkpoint, with its weights, and its bundle, of which `fields` are further fields.

    Args:
        source, stored, weight_map, ignored: as in `weights.check`.
        config: the sizes.
        task: name of the task, or of a pretraining.
        pairs: whether it reads pairs of texts.
        family: name of the family.
        fields: further fields of the bundle.
    """
    if pairs and getattr(config, "segments", 2) < 2:
        raise ValueError(f"{source}: its options have one segment (type_vocab_size); a model of pairs of texts needs 2")
    check(weight_map, stored, source, ignored, DTYPES)
    fields = {"max_length": config.max_positions} | fields
    fields |= {"task": task} if task in FAMILIES[family].pretraining else tasks.bundle_fields(task, pairs)
    bundle = Bundle(family, config=asdict(config), **fields)
    with no_random_weights():
        model = build(bundle)
    fill(model, weight_map, stored, source)
    return model, bundle


def unread_pooler(stored: Collection[str], prefix: str, config: Config, source: object) -> set[str]:
    """The names of a pooler in `stored`, if the model has none as no head reads it; a warning reports them.

    Args:
        stored: names of the tensors.
        prefix: of the names of a pooler.
        config: the sizes.
        source: of the checkpoint, for the warning.
    """
    names = set() if config.pooler else {name for name in stored if name.startswith(prefix)}
    if names:
        warn_left_out(source, "the pooler, which no head reads")
    return names


def vocabulary(
    pieces: Sequence[str], rows: int, source: object, special_tokens: SpecialTokens = BERT_TOKENS
) -> tuple[str, ...]:
    """The word pieces that have a row in the embedding; a warning reports those left out.

    Args:
        pieces: of the vocabulary.
        rows: of the embedding.
        source: of the vocabulary, for messages.
        special_tokens: of the vocabulary.
    """
    if len(pieces) > rows:
        what = f"of {len(pieces)} pieces those from {pieces[rows]!r} on, for the embedding has {rows} rows"
        warn_left_out(source, what)
    broken = next((piece for piece in pieces[:rows] if "\n" in piece or piece.endswith("\r")), None)
    if broken is not None:
        raise ValueError(f"{source}: the piece {broken!r} has a line end in it, which no {VOCAB} can hold")
    with errors_of(source):
        WordPiece(pieces[:rows], special_tokens=special_tokens)
    return tuple(pieces[:rows])


def subword_fields(subwords: Subwords, special_tokens: SpecialTokens, rows: int, source: object) -> dict[str, Any]:
    """The fields of a bundle for a tokenizer other than WordPiece; a ValueError if the embedding does not fit it.

    Args:
        subwords: the tokenizer.
        special_tokens: of the vocabulary.
        rows: of the embedding.
        source: of the tokenizer, for messages.
    """
    pieces = subwords.pieces
    if len(pieces) > rows:
        raise ValueError(f"{source}: its tokenizer has {len(pieces):,} pieces, and the embedding {rows:,} rows")
    if missing := [piece for piece in special_tokens.pieces if piece not in pieces]:
        raise ValueError(f"{source}: its tokenizer has no piece {', '.join(missing)}, of the special tokens")
    fields = {"vocab": pieces, "tokenizer": subwords.to_json(), "special_tokens": special_tokens}
    return fields | {"lowercase": "lowercase" in subwords.steps}


def looks_uncased(pieces: Sequence[str]) -> bool:
    """Whether a vocabulary is of lower-cased text: no upper-case letter except in pieces like [CLS] and <S>."""
    return not any(piece != piece.lower() and piece[:1] + piece[-1:] not in ("[]", "<>") for piece in pieces)


def next_sentence(bundle: Bundle) -> bool:
    """Whether a classifier is a next-sentence prediction head."""
    kind = ARCHITECTURES["BertForNextSentencePrediction"]
    return (bundle.task, bundle.pairs, tuple(bundle.labels)) == (kind.task, kind.pairs, kind.labels)


def warn_left_out(source: object, what: str) -> None:
    """Warns that a part of a checkpoint is not in the model."""
    warn(f"{source}: left out: {what}")


def summary(model: keras.Model, bundle: Bundle) -> str:
    """A summary of a converted checkpoint, in four or five lines.

    Args:
        model, bundle: a Transformer encoder with any head.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> size = bert.SIZES["bert_2_64_2"]
    >>> print(summary(bert.encoder(size), Bundle("bert", "embed", vars(size), 512, vocab=(*SPECIAL_PIECES, "a"))))
    embed: 2 layers of width 64, 2 heads, 30522 pieces, positions for 512, lower-cased text; 2.1 million weights
    heads: pooled output
    heads missing: masked language model, next sentence, classes, answer spans
    vector of a text: the mean of the top layer over the tokens
    """
    names = {layer.name for layer in model.layers}
    layers = {"pooler": "pooler", "mlm": "mlm_bias", "nsp": "nsp_logits", "classifier": "logits", "span": "span_logits"}
    if next_sentence(bundle):
        layers |= {"nsp": "logits", "classifier": ""}
    present = [words for part, words in PARTS.items() if layers[part] in names]
    family = FAMILIES[bundle.family]
    possible = {part for kind in architectures(family).values() for part in kind.parts}
    missing = [words for part, words in PARTS.items() if part in possible and words not in present]
    size = family.config(**bundle.config)
    lines = [
        f"{bundle.task}: {size.layers} layers of width {size.width}, {size.heads} heads, {size.vocabulary_size} "
        f"pieces, positions for {size.max_positions}, {'lower-cased' if bundle.lowercase else 'cased'} text; "
        f"{model.count_params() / 1e6:.1f} million weights",
        f"heads: {', '.join(present) or 'none'}",
        f"heads missing: {', '.join(missing)}",
    ]
    if bundle.labels:
        lines.append(f"classes: {', '.join(bundle.labels[:10])}{', ...' if len(bundle.labels) > 10 else ''}")
    return "\n".join([*lines, f"vector of a text: {bundle.vector}"])
