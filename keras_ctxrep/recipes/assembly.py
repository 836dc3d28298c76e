"""The model of a fine-tuning run: an encoder, a task network over it if one is chosen, and the task's head."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import keras

from keras_ctxrep import saving, zoo
from keras_ctxrep.checks import of_kind
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import heads, lm, stack, static
from keras_ctxrep.models.families import FAMILIES, Family, depths
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.options import CHARACTERS, WORDS, Finetuning, Options
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.classify import TextTask
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import StaticFeatures, WordFeatures

_EXTRA_EMBEDDINGS = "word_embedding"


@dataclass
class Survey:
    """Statistics of the training examples, from one pass over them."""

    count: int = 0
    used: Counter = field(default_factory=Counter)  #: label -> how often it is used
    labels: tuple[str, ...] = ()  #: all, in the order of the logits
    pairs: bool = False  #: the examples are pairs of texts
    traits: set[Hashable] = field(default_factory=set)  #: as in `Task.traits`, of all examples
    words: Counter = field(default_factory=Counter)  #: word -> count, where embeddings are learned from them


@dataclass(frozen=True)
class Assembled:
    """A model to train."""

    model: keras.Model  #: with the encoder's weights and a fresh head
    bundle: Bundle
    distances: Mapping[str, int]  #: layer of the encoder -> its distance from the head, from 1


def is_frozen(options: Finetuning, family: Family) -> bool:
    """Whether the encoder is not trained at all."""
    if options.lora is not None:
        return False
    return family.tuning.frozen and not options.from_scratch if options.freeze is None else options.freeze


def assemble(
    pretrained: keras.Model, bundle: Bundle, task: Task, options: Finetuning, task_options: Options, survey: Survey
) -> Assembled:
    """The model to train.

    Args:
        pretrained, bundle: the encoder to start from; its bundle has length and columns of the model to train.
        task, options, task_options: of the run.
        survey: of the training examples.

    Raises:
        ValueError: an option does not fit the encoder or the task.
    """
    own = task.fields(options, task_options, bundle)
    bundle = replace(bundle, **own)
    family = FAMILIES[bundle.family]
    tuning, frozen = family.tuning, is_frozen(options, family)
    dropout = tuning.encoder_dropout if options.dropout is None else options.dropout
    dropout = 0.0 if frozen or tuning.encoder_dropout is None else dropout
    config = bundle.config | {key: dropout for key in bundle.config if key.endswith("dropout")}
    pooled = isinstance(task, TextTask) and options.stack is None and not _mixes(options, family)
    pooler = config.get("pooler", True) or frozen or not pooled
    if not pooler:  # of the head, and learned with it
        config |= {"pooler": True}
    bundle = replace(bundle, config=config, card="" if options.from_scratch else bundle.card)
    with no_random_weights() if pooler and not options.from_scratch else nullcontext():
        model = saving.build(bundle)
    by_layer = depths(model)
    if not options.from_scratch:
        copy_weights(pretrained, model, skip=() if pooler else ["pooler"])
    model.trainable = not frozen
    if options.lora is not None and family.enable_lora is not None:
        family.enable_lora(model, options.lora)
    bundle = replace(bundle, reads=replace(task.reads, pair=survey.pairs or bool(task.reads.pair)))
    context_free = len(heads.encoder_outputs(model)["layers"]) == 1
    bundle = replace(bundle, stack=_stack(options, bundle, task.needs_context and context_free))
    weights = None
    if options.extra_embeddings is not None:
        weights, extra = _extra_embeddings(options.extra_embeddings, survey.words, bundle)
        bundle = replace(bundle, extra_embeddings=extra.config, vocab=extra.vocab)
    fields = {
        "task": task.name,
        "labels": survey.labels,
        "head": _head(options, task, bundle) | task.head_options(task_options),
        "settings": task.settings(task_options, survey.traits),
    }
    bundle = replace(bundle, **fields | own | {"config": bundle.config})
    model = saving.finish(model, bundle)
    if not model.trainable_weights:
        raise ValueError(f"nothing to train: the {bundle.family} encoder is frozen, and there is no head; freeze=False")
    if weights is not None:
        model.get_layer(_EXTRA_EMBEDDINGS).set_weights(weights)
    deepest = max(by_layer.values())
    return Assembled(model, bundle, {name: deepest + 1 - depth for name, depth in by_layer.items()})


def length(bundle: Bundle, options: Finetuning, task: Task) -> int:
    """Tokens per text: those given, as many as the task needs, or as the encoder was trained with.

    Raises:
        ValueError: the encoder has fewer positions.
    """
    max_length, positions = options.max_length, bundle.config.get("max_positions", math.inf)
    if (max_length or 0) > positions:
        raise ValueError(f"max_length={max_length}: this encoder has {positions} positions")
    if max_length is None and task.max_length is not None:
        return int(max(bundle.max_length, min(task.max_length, positions)))
    return max_length or bundle.max_length


def fresh_embeddings(counts: Counter, units: str = WORDS) -> tuple[keras.Model, Bundle]:
    """Untrained embeddings of the words or characters that occur at least twice; the others train that of <UNK>.

    Args:
        counts: word or character -> how often it occurs.
        units: "words" or "characters".
    """
    if units == CHARACTERS:
        known = sorted(char for char, count in counts.items() if count > 1 and char.splitlines() != [""])
        vocab = (*WordFeatures.MARKERS, *known)
        table = lm.Config(units=CHARACTERS, layers=0, width=128, dropout=0.0, vocabulary_size=len(vocab))
        return lm.encoder(table), Bundle("lm", "embed", asdict(table), 128, vocab=vocab)
    features, words = StaticFeatures(StaticFeatures.MARKERS, lowercase=True), list(counts)
    normalized_counts: Counter = Counter()
    for word, normalized in zip(words, features.normalized(words), strict=True):
        normalized_counts[normalized] += counts[word]
    # a line of vocab.txt each
    frequent = [word for word, count in normalized_counts.items() if count > 1 and "\n" not in word]
    vocab = ("<UNK>", *sorted(frequent, key=lambda word: (-normalized_counts[word], word)))
    config = static.Config(words=len(vocab), width=100, lowercase=True)
    return static.encoder(config), Bundle("static", "embed", asdict(config), 128, vocab=vocab)


def _stack(options: Finetuning, bundle: Bundle, needed: bool) -> dict:
    """Keyword arguments of the task network, {} if there is none; `needed`: there must be one."""
    tuning = FAMILIES[bundle.family].tuning
    # an encoder without an input for marked tokens needs a task network that has one
    needed = needed or (bundle.reads.indicate and not bundle.features.indicate)
    kind = options.stack or ("lstm" if needed else None)
    if kind is None:
        for name in ("units", "stack_layers", "output_mix", "top_only", "extra_embeddings"):
            if getattr(options, name):
                raise ValueError(f"{name} is for a task network, and there is none: choose one, e.g. stack='lstm'")
        return {}
    if options.mix is not None:
        raise ValueError(f"mix={options.mix}: a task network reads a mix, or the top layer with top_only")
    defaults = {"units": 256, "dropout": tuning.dropout} | stack.DEFAULTS.get(kind, {})
    units = options.units or defaults["units"]
    dropout = defaults["dropout"] if options.dropout is None else options.dropout
    mix = "top" if options.top_only else "all"
    network = {"kind": kind, "units": units, "dropout": dropout, "mix": mix, "l2": tuning.mix_l2}
    if options.stack_layers is not None:
        if kind not in stack.KINDS:
            raise ValueError(f"stack_layers={options.stack_layers}: of {', '.join(stack.KINDS)}, not of stack={kind!r}")
        network["layers"] = options.stack_layers
    return network | ({"output_mix": True} if options.output_mix else {})


def _mixes(options: Finetuning, family: Family) -> bool:
    """Whether the head reads a mix of all layers."""
    return family.tuning.mix if options.mix is None else options.mix


def _head(options: Finetuning, task: Task, bundle: Bundle) -> dict:
    """Keyword arguments of the head."""
    if bundle.stack:
        return {"dropout": 0.0}
    tuning = FAMILIES[bundle.family].tuning
    default = tuning.dropout if task.head_dropout is None else task.head_dropout
    dropout = default if options.dropout is None else options.dropout
    return {"dropout": dropout, "mix": _mixes(options, FAMILIES[bundle.family]), "l2": tuning.mix_l2}


def _extra_embeddings(source: str | Path, counts: Counter, bundle: Bundle) -> tuple[list, Bundle]:
    """The weights of a folder's static vectors, frozen, or of untrained ones of these words; and their bundle."""
    model, extra = fresh_embeddings(counts) if source == WORDS else saving.load_encoder(zoo.find(source))
    reads_characters = "max_characters" in bundle.config and not bundle.config.get("words")
    error = f"{source}: extra embeddings are static vectors, with an ELMo over characters"
    of_kind(extra.features, StaticFeatures, error)
    if not reads_characters:
        raise ValueError(error)
    config = extra.config | {"trainable": source == WORDS}
    return model.get_layer(_EXTRA_EMBEDDINGS).get_weights(), replace(extra, config=config)
