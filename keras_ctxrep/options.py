"""Options of training and of the recipes: one dataclass field is one option.

Its name, type, default and help text are defined here once; command line flags, the keywords of the Python functions,
the configuration file, the identity of a run and its run.json are derived from them. Standard library only, so that
`ctxrep --help` is instant.
"""

import difflib
import math
import numbers
import operator
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Self

QUANTIZATIONS = ("none", "float16", "dynamic", "int8")  # number formats of .tflite files
WORDS = "words"  # in place of the folder of an encoder or of extra embeddings: learned from the training data
_METADATA = {"choices", "above", "least", "most", "below", "metavar", "nargs", "neutral"}


def option(default: Any, help: str, **metadata) -> Any:
    """A dataclass field that is an option.

    Args:
        default: the default value.
        help: one line for the command line and the documentation.
        metadata: `choices`, the values it may have; the bounds of a number, `above` (value > above), `least` (value >=
            least) and `below` (value < below), which None always satisfies; `metavar` and `nargs` as of
            `argparse.ArgumentParser.add_argument`; `neutral=True`: the result of a run does not depend on it, and so
            the identity of the run does not either.
    """
    if unknown := metadata.keys() - _METADATA:
        raise TypeError(f"{unknown.pop()}: options have {', '.join(sorted(_METADATA))}")
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class Options:
    """Base of all options: checks types, choices and bounds.

    Raises:
        TypeError: a value of another type.
        ValueError: a value that is none of the choices, or out of bounds.

    >>> Fit(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: steps=0: must be above 0
    """

    def __post_init__(self):
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, numbers.Number) and (item := getattr(value, "item", None)):  # NumPy's; JSON has none
                value = item()
                object.__setattr__(self, entry.name, value)
            check_type(entry.name, value, entry.type)
            if value is not None:
                check_value(entry.name, value, entry.metadata)

    @classmethod
    def of(cls, given: Mapping[str, Any], function: str) -> Self:
        """The options from keyword arguments of a function.

        Raises:
            TypeError: there is no such option; the message names the nearest one.
        """
        known = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, 1, 0.0)[0]
                raise TypeError(f"{function}() has no option {name!r}; the nearest one is {nearest!r}")
        return cls(**given)

    def plain(self, neutral: bool = True) -> dict[str, Any]:
        """All fields by name, as JSON has them: paths as strings.

        Args:
            neutral: with those that the result of a run does not depend on.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if neutral or not _neutral(entry)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


_BOUNDS = (
    ("least", "at least", operator.ge),
    ("above", "above", operator.gt),
    ("below", "below", operator.lt),
    ("most", "at most", operator.le),
)


def _neutral(entry) -> bool:
    return entry.metadata.get("neutral", False)


def check_type(name: str, value: Any, expected: Any) -> None:
    """Raises a TypeError unless a value is of an option's type."""
    kinds = tuple(typing.get_origin(kind) or kind for kind in typing.get_args(expected) or (expected,))
    wider = {int: numbers.Integral, float: numbers.Real}
    accepted = tuple(wider.get(kind, kind) for kind in kinds)
    characters = isinstance(value, str) and str not in kinds  # which a Sequence accepts
    if not isinstance(value, accepted) or characters or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("a list" if kind is Sequence else kind.__name__ for kind in kinds if kind is not NoneType)
        raise TypeError(f"{name}={value!r}: must be {names}")


def check_value(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    """Raises a ValueError unless a value is one of the choices and within the bounds of an option's metadata."""
    choices = bounds.get("choices")
    if choices and value not in choices:
        raise ValueError(f"{name}={value!r}: choose {', '.join(choices[:-1])} or {choices[-1]}")
    limits = [(word, bounds[key], holds) for key, word, holds in _BOUNDS if key in bounds]
    if not all(holds(value, limit) for _, limit, holds in limits):
        raise ValueError(f"{name}={value}: must be {' and '.join(f'{word} {limit}' for word, limit, _ in limits)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}={value}: must be finite")


# ------------------------------------------------------------------------------------- shared by several of the below


@dataclass(frozen=True)
class Seeded(Options):
    """The seed."""

    seed: int = option(0, "random seed", least=0, metavar="N")


@dataclass(frozen=True)
class Schedule(Options):
    """Length of a run, its evaluations, checkpoints and logs."""

    steps: int | None = option(None, "length of the run in steps", above=0, metavar="N")
    minutes: float | None = option(None, "length of the run in minutes, evaluations included", above=0, metavar="N")
    evaluations: int | None = option(10, "number of evaluations, evenly spaced over the run", above=0, metavar="N")
    decay: str = option(
        "linear",
        "how the learning rate falls after the warm-up",
        choices=("linear", "cosine", "inverse_sqrt", "none"),
    )
    microbatches: int = option(
        1, "parts of a batch that are computed one after another, to save memory", above=0, metavar="N", neutral=True
    )
    recompute: bool = option(
        False, "BERT: compute activations again for the gradient, to save memory: a third slower", neutral=True
    )
    checkpoint_minutes: float = option(5.0, "time between two checkpoints", least=0, metavar="N", neutral=True)
    tensorboard: str | Path | None = option(
        None, "write TensorBoard logs into this folder", metavar="FOLDER", neutral=True
    )

    def _needs_length(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"steps={self.steps}, minutes={self.minutes}: give one of the two")


@dataclass(frozen=True)
class Training(Schedule, Seeded):
    """Options of every recipe that trains a model."""

    batch_size: int = option(32, "examples per step, over all devices", above=0, metavar="N")
    learning_rate: float | None = option(None, "peak learning rate, after a linear warm-up", above=0, metavar="X")
    dropout: float | None = option(None, "dropout rate in training", least=0, below=1, metavar="X")
    precision: str = option("float32", "a Keras dtype policy, e.g. mixed_bfloat16", metavar="NAME")
    strategy: str = option(
        "auto",
        "where to train: on one device, all GPUs of this machine (mirrored), or the machines of TF_CONFIG",
        choices=("auto", "one", "mirrored", "multiworker"),
        neutral=True,
    )


@dataclass(frozen=True)
class Text(Seeded):
    """Text and vocabulary of pretraining."""

    valid: str | Path | None = option(None, "held-out text (default: a tenth of the corpus)", metavar="FILE")
    vocab: str | Path | None = option(
        None, "a vocabulary file, one entry a line (default: learned from the corpus, or that of init)", metavar="FILE"
    )
    vocab_size: int = option(8000, "entries of a learned vocabulary, at most", above=0, metavar="N")
    vocab_sample: int = option(
        200_000, "sentences, drawn from the whole corpus, that a vocabulary is learned from", above=0, metavar="N"
    )
    min_count: int = option(2, "ELMo: minimum count of a word in a learned vocabulary", above=0, metavar="N")
    cased: bool = option(False, "BERT: keep case and accents")
    init: str | Path | None = option(
        None,
        "start from this model folder, e.g. to adapt it to a domain, or to continue with longer texts",
        metavar="FOLDER",
    )
    max_length: int = option(128, "tokens per example; longer ones are cut", above=0, metavar="N")
    whole_words: bool = option(False, "BERT: mask all pieces of a word together")


# ------------------------------------------------------------------------------------------------------- the options


@dataclass(frozen=True)
class Fit(Schedule):
    """Options of `train.fit`."""

    evaluations: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        10, "number of evaluations, evenly spaced over the run; of 2.5 the third is at the end", above=0, metavar="X"
    )
    learning_rate: float = option(1e-3, "peak learning rate, after a linear warm-up", above=0, metavar="X")
    warmup: float = option(0.1, "fraction of the run until the peak", least=0, below=1, metavar="X")
    weight_decay: float = option(0.01, "of AdamW", least=0, metavar="X")
    clip: float = option(1.0, "largest global norm of the gradient", above=0, metavar="X")
    patience: int | None = option(None, "stop after this many evaluations without improvement", above=0, metavar="N")
    folder: str | Path | None = option(
        None, "write checkpoints into this folder; the same call resumes from the last one", metavar="FOLDER"
    )
    identity: str = option("", "of the run: a checkpoint of another one is refused")

    def __post_init__(self):
        super().__post_init__()
        self._needs_length()


@dataclass(frozen=True)
class Pretraining(Text, Training):
    """Options of `recipes.pretrain`."""

    dropout: float = option(0.1, "dropout rate in training", least=0, below=1, metavar="X")
    size: str | None = option(
        None,
        "a published size, e.g. elmo_2x1024_128_2048cnn_1xhighway or bert_12_768_12 (default: a small one, or that of "
        "init)",
        metavar="NAME",
    )
    next_sentence: bool | None = option(
        None, "BERT: pairs of segments and next-sentence prediction, or texts alone (default: pairs, or as init has it)"
    )
    read_words: bool = option(False, "ELMo: read the vocabulary's words instead of characters")
    unroll: int | None = option(
        None,
        "ELMo: train on running text, N words per step, carrying the state (published: 20; default: whole sentences)",
        above=0,
        metavar="N",
    )
    samples: int | None = option(
        None,
        "ELMo: words sampled for the softmax per step (published: 8192; default: the full softmax)",
        above=0,
        metavar="N",
    )
    optimizer: str = option(
        "adamw",
        "adagrad is ELMo's published recipe, lamb is for batches of thousands",
        choices=("adamw", "adagrad", "lamb"),
    )

    def __post_init__(self):
        super().__post_init__()
        self._needs_length()


@dataclass(frozen=True)
class Preparation(Text):
    """Options of `recipes.prepare`."""

    max_length: int = option(128, "BERT: pieces per example; longer ones are cut", least=5, metavar="N")
    copies: int = option(10, "BERT: passes over the text, each with new masks", above=0, metavar="N")
    processes: int = option(1, "number of processes that work in parallel", above=0, metavar="N", neutral=True)
    runner: str | None = option(
        None,
        "work in a pipeline of Apache Beam instead: DirectRunner, FlinkRunner, SparkRunner or DataflowRunner",
        metavar="NAME",
        neutral=True,
    )
    runner_options: str | None = option(
        None, "of the runner, in one string: '--flink_master=host:8081 --parallelism=8'", metavar="FLAGS", neutral=True
    )

    def __post_init__(self):
        super().__post_init__()
        if self.runner is not None and self.processes != 1:
            raise ValueError(
                f"processes={self.processes}, runner={self.runner!r}: give one of the two; a runner has its own options"
            )
        if self.runner is None and self.runner_options is not None:
            raise ValueError(f"runner_options={self.runner_options!r}: without a runner")


@dataclass(frozen=True)
class Reading(Options):
    """How labelled files are read."""

    columns: Mapping[str, str] | None = option(
        None,
        "names of the columns in the files, or their numbers where there is no header: "
        "text=sentence label=gold, text=6 pair=7 label=5 (default: the usual ones, and those of the training file)",
        metavar="NAME=COLUMN",
        nargs="+",
    )
    skip_bad: bool = option(False, "skip malformed rows, and list them")

    def __post_init__(self):
        for name in ("columns", "dev_columns"):
            if isinstance(columns := getattr(self, name, None), Mapping):  # numbers of columns, as YAML has them
                named = {key: str(value) if type(value) is int else value for key, value in columns.items()}
                object.__setattr__(self, name, named)
        super().__post_init__()


@dataclass(frozen=True)
class Scoring(Reading):
    """Options of `recipes.score` for task models."""

    positive: str | None = option(
        None,
        "classify: the label of which `f1` is reported (default: that of the training, or of two labels the second)",
        metavar="LABEL",
    )


@dataclass(frozen=True)
class Prediction(Reading):
    """Options of predictions for a file."""

    format: str | None = option(
        None,
        "what is written: jsonl, a JSON object for each line or row, or tsv, the row's own columns and those of the "
        "prediction (default: by the suffix of --out, else jsonl)",
        choices=("jsonl", "tsv"),
    )


@dataclass(frozen=True)
class Finetuning(Reading, Training):
    """Options of `recipes.finetune`, apart from those of the task itself."""

    evaluations: int | None = option(
        None, "number of evaluations, evenly spaced (default: one per epoch, or 10)", above=0, metavar="N"
    )
    dev_columns: Mapping[str, str] | None = option(
        None,
        "names or numbers of the columns in the development file (default: as those of the training file)",
        metavar="NAME=COLUMN",
        nargs="+",
    )
    max_length: int | None = option(
        None, "tokens per text (default: as the encoder was trained, or as the task needs)", above=0, metavar="N"
    )
    epochs: float | None = option(
        None,
        "passes over the data, unless steps or minutes is given (default: 3 for BERT, else 10)",
        above=0,
        metavar="X",
    )
    patience: int | None = option(
        None, "stop after this many evaluations without improvement (default: 3, one an epoch)", above=0, metavar="N"
    )
    metric: str | None = option(
        None,
        "the figure of the development data that chooses the best weights, e.g. matthews (default: the main one)",
        metavar="NAME",
    )
    layer_decay: float = option(
        1.0,
        "factor of the learning rate from each layer of the encoder to the one below it",
        above=0,
        most=1,
        metavar="X",
    )
    unfreeze: float | None = option(
        None,
        "train the head alone at first, and one more layer of the encoder, from the top, every X epochs (published: 1)",
        above=0,
        metavar="X",
    )
    mix: bool | None = option(None, "use a trained scalar mix of all layers (default: for ELMo)")
    freeze: bool | None = option(None, "freeze the encoder (default: for ELMo)")
    lora: int | None = option(
        None,
        "BERT: freeze the encoder, but for low-rank updates to its dense layers, of this rank, e.g. 8",
        above=0,
        metavar="RANK",
    )
    from_scratch: bool = option(False, "start from random weights, as a baseline")
    stack: str | None = option(None, "a task network over the encoder", choices=("lstm", "gru", "cnn"))
    units: int | None = option(
        None, "width of the task network, in each direction (default: 256)", above=0, metavar="N"
    )
    extra_embeddings: str | Path | None = option(
        None,
        "static vectors that the task network reads too, with an ELMo: a folder, frozen, or `words`: learned from the"
        " data with the task",
        metavar="FOLDER",
    )
    output_mix: bool = option(False, "concatenate a second scalar mix with the output of the task network")
    top_only: bool = option(False, "the task network reads the top layer instead of a mix")

    def __post_init__(self):
        super().__post_init__()
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"steps={self.steps}, minutes={self.minutes}: give one of the two")
        reasons = {
            "freeze": "low-rank updates are trained and nothing else of the encoder",
            "unfreeze": "the low-rank updates of all layers are trained from the start",
            "layer_decay": "the rate of the low-rank updates is the same in all layers",
            "from_scratch": "low-rank updates are to pretrained weights, and random ones would stay as they are",
        }
        for name, reason in reasons.items() if self.lora is not None else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"lora={self.lora}, {name}={getattr(self, name)}: {reason}; leave {name} out")
        if self.unfreeze is not None and self.freeze:
            raise ValueError(f"unfreeze={self.unfreeze}, freeze=True: a frozen encoder stays so; leave freeze out")


@dataclass(frozen=True)
class Distillation(Finetuning):
    """Options of `recipes.distill`, apart from those of the task itself."""

    size: str | None = option(
        None,
        "a student of this size with random weights, e.g. bert_2_128_2; a BERT has the teacher's vocabulary and, "
        "projected, its token vectors",
        metavar="NAME",
    )
    unlabelled: str | Path | None = option(
        None, "texts without labels, in the form of the data, which the teacher labels", metavar="FILE"
    )
    temperature: float = option(2.0, "divides the logits of teacher and student", above=0, metavar="X")
    teacher_weight: float = option(
        0.9, "of the teacher's outputs in the loss; the rest is that of the labels", least=0, most=1, metavar="X"
    )


@dataclass(frozen=True)
class Embedding(Options):
    """Options of `recipes.embed`."""

    layers: str = option(
        "all",
        "what is written of a sentence: all, every layer, (layers, tokens, width); mix, their scalar mix, trained or "
        "the mean, and top, the top layer, (tokens, width); mean, the mean of the mix over the tokens, and pooled, the "
        "encoder's vector of a sentence, or without a pooler the mean of the top layer over the pieces, (width,)",
        choices=("all", "mix", "top", "mean", "pooled"),
    )
    layer_numbers: str | None = option(
        None,
        "with --layers all: only these, from 0, the layer without context, to the top, or from -1, the top, downward: "
        "0,6,-1",
        metavar="N,N,...",
    )
    dtype: str = option(
        "float32", "number format of the file; float16 is half the size", choices=("float32", "float16")
    )
    words: bool = option(False, "the input is already split into words, at spaces; one vector per word")
    pieces: str = option(
        "first",
        "with --words, BERT: the vector of a word is that of its first piece, or the mean of its pieces",
        choices=("first", "mean"),
    )
    carry_state: bool = option(False, "ELMo: carry the state from batch to batch, as bilm-tf does")
    batch_size: int = option(32, "sentences computed together", above=0, metavar="N")
    cache: str | Path | None = option(
        None, "ELMo: words, one a line, whose token vectors are computed once and kept", metavar="VOCAB.txt"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.layer_numbers is not None and self.layers != "all":
            raise ValueError(f"layer_numbers={self.layer_numbers!r}: with layers='all', and they are {self.layers!r}")
        if self.pieces != "first" and not self.words:
            raise ValueError(f"pieces={self.pieces!r}: of words; without words every piece has a vector")


@dataclass(frozen=True)
class Tflite(Reading):
    """Options of .tflite files."""

    quantize: str = option(
        "none",
        "number format of weights and products: float16, half the size; dynamic, 8-bit weights and activations "
        "quantized on the fly, a quarter; int8, the same with fixed ranges of activations, from --calibrate",
        choices=QUANTIZATIONS,
    )
    calibrate: Sequence | None = option(
        None,
        "int8: texts to take the ranges from, a line each, or rows of the task (.tsv, .jsonl, .json, .conll); the "
        "first 300 of each file are read",
        metavar="FILE",
        nargs="+",
    )
    keep_float: Sequence | None = option(
        None,
        "layers whose weights stay float32, as --explain names them; or auto, with --data: the fewest that bring the "
        "drop within --max-drop",
        metavar="LAYER",
        nargs="+",
    )
    max_drop: float = option(
        1.0,
        "with --data: largest drop of the metric, in points, or without labels of the agreement with Keras, in "
        "percent; a file beyond it is put aside, and the status is 1",
        least=0,
        metavar="X",
    )
    explain: bool = option(
        False, "with --data: show how much each layer costs when it alone is quantized, as a table and a picture"
    )
    mediapipe: bool = option(
        False,
        "a file that TextClassifier and TextEmbedder of MediaPipe run too, of a BERT classifier or encoder; of one "
        "length (default: that of the model)",
    )
