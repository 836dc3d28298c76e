"""Options of training and of the recipes: one dataclass field is one option.

Its name, type, default and help text are defined here once; command line flags, the keywords of the Python functions,
the configuration file, the identity of a run and its run.json are derived from them. Standard library only, so that
`ctxrep --help` is instant.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from keras_ctxrep.checks import Range, check

__all__ = [
    "CHARACTERS", "LEARNED", "QUANTIZATIONS", "WORDS", "Distillation", "Embedding", "EncoderDistillation", "Finetuning",
    "Fit", "Generation", "Indexing", "Options", "Parallel", "Prediction", "Preparation", "Pretraining", "Scoring",
    "StaticDistillation", "StaticPretraining", "Tflite", "keywords", "option",
]  # fmt: skip

LENGTHS = (16, 32, 64, 128, 256)  # of .tflite files, in tokens: those below the model's own, which is the last one
SIGNATURE = "serving_default"  # the signature of a SavedModel that a server answers with by default
QUANTIZATIONS = ("none", "float16", "dynamic", "int8")  # number formats of .tflite files
WORDS = "words"  # in place of the folder of an encoder or of extra embeddings: learned from the training data
CHARACTERS = "characters"  # in place of the folder of an encoder: embeddings of characters, learned with the task
LEARNED = (WORDS, CHARACTERS)
AUTO, KERAS, LITERT = ENGINES = ("auto", "keras", "litert")  # of a model folder, see `inference.model.load`
PLACES = ("auto", "one", "mirrored", "multiworker")  # where to train
DECAYS = ("linear", "cosine", "inverse_sqrt", "none")  # of the learning rate
GROUPS = ("data", "model", "schedule", "output", "machine", "task")  # of the command's help, in this order
FAMILY_TITLES = {"elmo": "ELMo", "bert": "BERT", "lm": "lm", "static": "static vectors"}  # of pretraining, in help
_METADATA = {"group", "metavar", "nargs", "neutral", "model", "excludes", "families"}
BOUNDS = {"choices", "above", "least", "most", "below"}
_HEAD = re.compile(r"((?:\S+ )*\S+)  (?=\S)")  # the words before two spaces
_FAMILY = re.compile(rf"^ *({'|'.join(FAMILY_TITLES)}): ", re.MULTILINE)
_BRACKETS = str.maketrans("[]", "  ")
_BOUND = re.compile("([<>]=?)(.+)")
_SIGNS = {">": "above", ">=": "least", "<": "below", "<=": "most"}
_MARKS = {"neutral": "neutral", "published": "model", "writes": "writes"}
AnyPath = str | Path
P = ParamSpec("P")
K = ParamSpec("K")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


def option(default: Any, help: str | None = None, group: str | None = None, **metadata) -> Any:
    """A dataclass field that is an option.

    Args:
        default: the default value.
        help: one line for the command line and the documentation, without the default; or a line `FAMILY: HELP` for
            each of the families that have the option. Before it, and before two spaces, may stand words of the
            metadata: the group; families of `FAMILY_TITLES` whose pretraining alone has the option; bounds, >0, >=0,
            <1, <=1; all values, a|b; the name of a value in capitals, FILE, and ... for several; `neutral`: the result
            of a run and its identity do not depend on it; `published`: a model folder, or the name of a published
            model. None: the function from the help to the field, for a help of several lines.
        group: of the help, one of `GROUPS`; None: what is shown first.
        metadata: what is computed: `choices`, the values it may have; the bounds `above`, `least`, `below` and `most`,
            which None always satisfies; and `excludes`, a name that several options have: one of them on the command
            line replaces all of them in a configuration file.

    >>> option(1, "machine N >0 neutral  parts of a batch").metadata["range"]
    Range(least=None, most=None, above=0, below=None, choices=())
    """
    if help is None:
        return functools.partial(option, default, group=group, **metadata)
    help, declared = split_head(help)
    metadata = ({} if group is None else {"group": group}) | declared | metadata
    if unknown := metadata.keys() - _METADATA - BOUNDS:
        raise TypeError(f"{unknown.pop()}: options have {', '.join(sorted(_METADATA | BOUNDS))}")
    return field(default=default, metadata={"help": help, **with_range(metadata)})


def optional(help: str, **metadata: Any) -> Any:
    """An option whose default is None, see `option`."""
    return option(None, help, **metadata)


def split_head(text: str) -> tuple[str, dict[str, Any]]:
    """A help text and the metadata that stands before it, see `option` and `commands.command.argument`.

    >>> split_head("[--data FILE ...] writes  the files")
    ('the files', {'required': False, 'flag': '--data', 'metavar': 'FILE', 'nargs': '+', 'writes': True})
    """
    head = _HEAD.match(text)
    metadata: dict[str, Any] = {"required": False} if head and "[" in head[1] else {}
    for word in head[1].translate(_BRACKETS).split() if head else ():
        if bound := _BOUND.fullmatch(word):
            metadata[_SIGNS[bound[1]]] = float(bound[2]) if "e" in word or "." in word else int(bound[2])
        elif word in GROUPS:
            metadata["group"] = word
        elif word in FAMILY_TITLES:
            metadata["families"] = (*metadata.get("families", ()), word)
        elif word in _MARKS:
            metadata[_MARKS[word]] = True
        elif word == "...":
            metadata["nargs"] = "+"
        elif word.startswith("-"):
            metadata["flag"] = word
        elif word != word.lower():
            metadata["metavar"] = word
        elif "|" in word:
            metadata["choices"] = tuple(word.split("|"))
        else:
            raise TypeError(f"{word!r}, in {text!r}: no such word")
    text = text[head.end() if head else 0 :]
    first, *parts = (" ".join(part.split()) for part in _FAMILY.split(text))
    of_families = dict(zip(parts[::2], parts[1::2], strict=True)) or dict.fromkeys(metadata.get("families", ()), first)
    if parts:
        first = "; ".join(f"{FAMILY_TITLES[family]}: {help}" for family, help in of_families.items())
    elif of_families:
        first = f"{', '.join(FAMILY_TITLES[family] for family in of_families)}: {first}"
    return first, metadata | ({"families": of_families} if of_families else {})


def with_range(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with its bounds and choices as one `Range`."""
    allowed = Range(**{name: metadata.pop(name) for name in BOUNDS & metadata.keys()})
    return metadata | {"range": allowed}


def defaults(**values: Any) -> Callable[[type[T]], type[T]]:
    """Decorates a class of options, before `dataclass` does, with other defaults for inherited options.

    Args:
        values: option -> its default; or an `option(...)` with what else is another one, its help for example.
    """

    def decorate(kind):
        inherited = {name: entry for base in kind.__mro__[:0:-1] for name, entry in _fields(base).items()}
        for name, value in values.items():
            entry = value if isinstance(value, Field) else field(default=value)
            changes = {key: new for key, new in entry.metadata.items() if new not in ("", Range())}
            setattr(kind, name, field(default=entry.default, metadata={**inherited[name].metadata, **changes}))
            kind.__annotations__[name] = inherited[name].type
        return kind

    return decorate


def _fields(kind: Any) -> dict[str, Any]:
    return getattr(kind, "__dataclass_fields__", {})


class Recipe(Protocol[P, K, R]):
    """A function that takes its options as a dataclass, `options=Finetuning(epochs=3)`, or as keywords, `epochs=3`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: K.args, **kwargs: K.kwargs) -> R: ...  # the options by name, for an editor
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...


def keywords(kind: Callable[K, Any], **parts: type) -> Callable[[Callable[P, R]], Recipe[P, K, R]]:
    """Decorates a function with a parameter `options`, a dataclass `kind`: it takes the fields as keywords too.

    Args:
        kind: class of the options.
        parts: parameters of the function that are dataclasses too, whose fields are keywords in the same way.

    Raises:
        TypeError: (the function) there is no such option; the message names the nearest one.

    >>> @keywords(Embedding)
    ... def embed(folder, *, options):
    ...     return options.layers
    >>> embed("a model", layers="top"), embed("a model", options=Embedding(layers="mix")), embed("a model")
    ('top', 'mix', 'vector')
    """
    entries: dict[str, Any] = _fields(kind)

    def decorate(function: Callable[P, R]) -> Any:
        signature = inspect.signature(function)
        own = signature.parameters

        @functools.wraps(function)
        def recipe(*args: Any, **given: Any) -> Any:
            for part, fields_of in parts.items():
                values = {name: given.pop(name) for name in [*given] if name in _fields(fields_of) and name not in own}
                given[part] = replace(given[part], **values) if given.get(part) else fields_of(**values)
            values = {name: given.pop(name) for name in [*given] if name in entries and name not in own}
            if unknown := [name for name in given if name not in own]:
                raise unknown_option(function.__name__, unknown[0], entries)
            options: Any = given.get("options")
            given["options"] = kind(**values) if options is None else replace(options, **values)  # pyright: ignore
            return function(*args, **given)  # pyright: ignore[reportCallIssue]

        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=entry.default, annotation=entry.type)
            for kind_of in (*parts.values(), kind)
            for name, entry in _fields(kind_of).items()
        ]
        vars(recipe)["__signature__"] = signature.replace(parameters=[*own.values(), *named])
        return recipe

    return decorate


# names of options elsewhere -> here
_ALIASES = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay", "max_len": "max_length"}
_ALIASES |= {"max_seq_length": "max_length", "num_train_epochs": "epochs", "warmup_ratio": "warmup"}


def nearest_option(name: str, known: Collection[str]) -> str:
    """The option that is most likely meant by a name.

    >>> nearest_option("lr", ["lora", "learning_rate"]), nearest_option("epoch", ["epochs", "steps"])
    ('learning_rate', 'epochs')
    """
    alias = _ALIASES.get(name)
    return alias if alias is not None and alias in known else difflib.get_close_matches(name, known, 1, 0.0)[0]


def unknown_option(function: str, name: str, known: Collection[str]) -> TypeError:
    """The error for an option that a function does not have."""
    nearest = nearest_option(name, known)
    return TypeError(f"{function}() has no option {name!r}; the nearest one is {nearest!r}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options: checks types, choices and bounds as `keras_ctxrep.checks` does.

    Raises:
        TypeError: a value of another type.
        ValueError: a value that is none of the choices, or out of bounds.

    >>> Fit(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: steps=0: must be above 0
    """

    def __post_init__(self):
        check(self)

    def plain(self, neutral: bool = True) -> dict[str, Any]:
        """All options by name, as JSON has them: paths as strings; without the arguments of a command.

        Args:
            neutral: with those that the result of a run does not depend on.
        """
        entries = [entry for entry in fields(self) if not entry.metadata.get("argument")]
        names = [entry.name for entry in entries if neutral or not entry.metadata.get("neutral")]
        values = {name: getattr(self, name) for name in names}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Seeded(Options):
    seed: int = option(0, "schedule >=0  random seed")


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """Evaluations and checkpoints of a run."""

    evaluations: float | None = option(10, "schedule >0  evaluations, evenly spaced; of 2.5 the third is at the end")
    checkpoint_minutes: float = option(5.0, "output >=0 neutral  time between two checkpoints")

    def fit(self, **changes: Any) -> "Fit":
        """The options of `training.fit` among these, some of them changed."""
        shared = {name: getattr(self, name) for name in _fields(Fit) if hasattr(self, name)}
        return Fit(**shared | changes)


@dataclass(frozen=True, kw_only=True)
class Logged(Options):
    tensorboard: AnyPath | None = optional("output FOLDER neutral  write TensorBoard logs into this folder")


@dataclass(frozen=True, kw_only=True)
class Batched(Options):
    batch_size: int = option(32, ">0  examples per step, over all devices")


@dataclass(frozen=True, kw_only=True)
class Overwriting(Options):
    overwrite: bool = option(False, "output neutral  replace the finished model of another run in --out")


@dataclass(frozen=True, kw_only=True)
class Distributed(Options):
    strategy: str = option("auto", choices=PLACES)("""machine neutral  one device, all GPUs (mirrored), or those of
        TF_CONFIG""")


@dataclass(frozen=True, kw_only=True)
class Cut(Options):
    max_length: int = option(128, "data >0  tokens per example; longer ones are cut")


@dataclass(frozen=True, kw_only=True)
class Sized(Options):
    size: str | None = optional("a student of this size, e.g. bert_2_128_2, random but for a BERT's token vectors")


@dataclass(frozen=True, kw_only=True)
class Frequent(Options):
    vocab_size: int | None = optional("model >0  the most frequent so many of the teacher's pieces (default: all)")


@dataclass(frozen=True, kw_only=True)
class Sampled(Options):
    samples: int | None = optional("model >0  words sampled for the softmax in training (default: the full softmax)")


@dataclass(frozen=True, kw_only=True)
class Counted(Options):
    min_count: int = option(5, "data >0  minimum count of a word in the corpus")
    cased: bool = option(False, "data  keep case")


@dataclass(frozen=True, kw_only=True)
class Masked(Options):
    whole_words: bool = option(False, "data bert  mask all pieces of a word together")


@dataclass(frozen=True, kw_only=True)
class Schedule(Logged, Run):
    """Length of a run, its learning rate, evaluations, checkpoints and logs."""

    steps: int | None = optional(">0  length of the run in steps", excludes="length")
    minutes: float | None = optional(">0  length of the run in minutes, with evaluations", excludes="length")
    learning_rate: float | None = optional(">0  peak learning rate, after a linear warm-up")
    decay: str = option("linear", "schedule  fall of the learning rate after the warm-up", choices=DECAYS)
    microbatches: int = option(1, "machine >0 neutral  parts of a batch, one after another: saves memory")
    recompute: bool = option(False, "machine bert neutral  recompute activations for the gradient: a third slower")

    def _check_length(self, needed: bool = True) -> None:
        if (self.steps is None) == (self.minutes is None) and (needed or self.steps is not None):
            raise ValueError(f"steps={self.steps}, minutes={self.minutes}: give one of the two")


@dataclass(frozen=True, kw_only=True)
class Patience(Options):
    patience: int | None = optional("schedule >0  stop after so many evaluations without improvement")


@dataclass(frozen=True, kw_only=True)
class Training(Distributed, Overwriting, Batched, Schedule, Seeded):
    """Options of every recipe that trains a model."""

    dropout: float | None = optional("schedule >=0 <1  dropout rate in training")
    precision: str = option("float32", "machine  a Keras dtype policy, e.g. mixed_bfloat16")


@dataclass(frozen=True, kw_only=True)
class Corpus(Cut, Seeded):
    """Text that a model learns from, and its vocabulary."""

    valid: AnyPath | None = optional("data FILE  held-out text (default: a tenth of the corpus)")
    vocab_sample: int = option(200_000, "data >0  random sentences that a vocabulary is learned from")
    init: AnyPath | None = optional("model FOLDER published  start from this model, to adapt it or to go on with it")


@dataclass(frozen=True, kw_only=True)
@defaults(
    min_count=option(2, "elmo lm  minimum count of a word in a learned vocabulary"),
    cased=option(False, "bert: keep case and accents\nlm: --units pieces: keep case and accents"),
)
class Text(Counted, Masked, Corpus):
    """Text and vocabulary of pretraining."""

    vocab: AnyPath | None = optional("data FILE  vocabulary, an entry a line (default: of the corpus, or that of init)")
    vocab_size: int = option(8000, "data >0  entries of a learned vocabulary, at most")


@dataclass(frozen=True, kw_only=True)
class Columns(Options):
    """The columns of labelled files."""

    columns: Mapping[str, str] | None = optional("""data NAME=COLUMN ...  names of the columns in the files, or their
        numbers where there is no header: text=sentence label=gold, text=6 pair=7 label=5 (default: the usual ones, and
        those of the training file)""")

    def __post_init__(self):
        for name in ("columns", "dev_columns"):
            if isinstance(columns := getattr(self, name, None), Mapping):  # numbers of columns, as YAML has them
                named = {key: str(value) if type(value) is int else value for key, value in columns.items()}
                object.__setattr__(self, name, named)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Reading(Columns):
    """How labelled files are read."""

    skip_bad: bool = option(False, "data  skip malformed rows, and list them")


@dataclass(frozen=True, kw_only=True)
@defaults(learning_rate=1e-3)
class Fit(Schedule, Patience):
    """Options of `training.fit`."""

    warmup: float = option(0.1, ">=0 <1  fraction of the run until the peak")
    weight_decay: float = option(0.01, ">=0  of AdamW")
    clip: float = option(1.0, ">0  largest global norm of the gradient")
    folder: AnyPath | None = optional("FOLDER  write checkpoints here; the same call resumes from the last one")
    identity: str = option("", "of the run: a checkpoint of another one is refused")
    source: str = option("", "of the batches, files and a seed, for the error of a loss that is no number")

    def __post_init__(self):
        super().__post_init__()
        self._check_length()


@dataclass(frozen=True, kw_only=True)
@defaults(
    dropout=0.1,
    size=optional("""elmo: a size, such as elmo_2x1024_128_2048cnn_1xhighway (default: a small one, or as init)
        bert: a size, such as bert_12_768_12 (default: a small one, or as init)
        lm: a size, such as lm_lstm_2x200 (default: a small one, or as init)"""),
    samples=optional("""elmo: words sampled for the softmax (published: 8192; default: the full softmax)
        lm: --units words: words sampled for the softmax (default: the full softmax)"""),
)
class Pretraining(Sampled, Sized, Text, Training):
    """Options of `recipes.pretrain`."""

    RATES = MappingProxyType({"adamw": 1e-3, "adagrad": 0.2, "lamb": 1e-3})  # optimizer -> its learning rate

    next_sentence: bool | None = optional("""model bert  pairs of segments and next-sentence prediction, or texts alone
        (default: pairs, or as init)""")
    read_words: bool = option(False, "model elmo  read the vocabulary's words instead of characters")
    units: str | None = optional("data lm words|pieces|characters  what a token is (default: words, or as init)")
    unroll: int | None = optional("""model >0  elmo: running text, N words per step (published: 20; default: whole
        sentences)
        lm: tokens of running text per step (default: 35)""")
    optimizer: str = option("adamw", choices=tuple(RATES))("""schedule  elmo: adagrad: as ELMo was published; lamb:
        for batches of thousands
        bert: lamb: for batches of thousands
        lm: adagrad: at a constant rate; lamb: for batches of thousands""")

    def __post_init__(self):
        super().__post_init__()
        self._check_length()


@dataclass(frozen=True, kw_only=True)
class Parallel(Options):
    """Options of work that is done part by part, on this machine or on others; its result depends on none of them."""

    processes: int = option(1, "machine >0 neutral  number of processes that work in parallel")
    runner: str | None = optional("""machine neutral  run on Apache Beam: direct, FlinkRunner, SparkRunner or
        DataflowRunner; or on PySpark: spark""")
    runner_options: str | None = optional("""machine FLAGS neutral  of it, as one: '--flink_master=host:8081
        --parallelism=8', or for spark those of spark-submit""")

    def __post_init__(self):
        super().__post_init__()
        if self.runner is not None and self.processes != 1:
            both = f"processes={self.processes}, runner={self.runner!r}"
            raise ValueError(f"{both}: give one of the two; a runner has its own options")
        if self.runner is None and self.runner_options is not None:
            raise ValueError(f"runner_options={self.runner_options!r}: without a runner")


@dataclass(frozen=True, kw_only=True)
@defaults(max_length=option(128, "bert  tokens per example; longer ones are cut"))  # a biLM's sentences are kept whole
class Preparation(Text, Parallel):
    """Options of `recipes.prepare`."""

    copies: int = option(10, "data bert >0  passes over the text, each with new masks")

    def __post_init__(self):
        super().__post_init__()
        if self.max_length < 5:
            raise ValueError(f"max_length={self.max_length}: must be at least 5")


@dataclass(frozen=True, kw_only=True)
class Scoring(Masked, Reading):
    """Options of `recipes.score`: for task models, of language models what they are compared with, and of masks."""

    compare_ngram: Sequence | None = optional("""FILE ...  a language model: the text that it was trained on, of which
        n-grams are counted and scored beside it""")
    order: int = option(5, "N >=1 <=10  words of the longest of these n-grams")
    positive: str | None = optional("LABEL  classify: that of `f1` (default: as in training, or the second of two)")
    max_length: int | None = optional(">=5  a BERT pretrainer: pieces of an example (default: as in its folder)")


@dataclass(frozen=True, kw_only=True)
class FolderEngine(Options):
    """The engine that answers for a model folder, as in `inference.model.load`."""

    engine: str = option(AUTO, choices=ENGINES)("""machine  of a model folder: auto, LiteRT or Keras, whichever is
        quicker, of a folder that is not converted Keras; keras; or litert, which converts it once""")


@dataclass(frozen=True, kw_only=True)
class Prediction(Reading, Parallel, FolderEngine):
    """Options of predictions for a file."""

    format: str | None = optional("""jsonl|tsv|csv  jsonl, a JSON object a row, or tsv or csv, its columns and those of
        the prediction (default: by --out, else jsonl)""")
    beams: int | None = optional("task >0  translate: hypotheses of the search, 1 for greedy (default: as in training)")
    alpha: float | None = optional("task >=0  translate: its length penalty (default: as in training)")
    part_lines: int = option(10_000, "machine >0 neutral  lines of a part, with processes or a runner")

    def __post_init__(self):
        super().__post_init__()
        if self.in_parts and self.engine != AUTO:
            raise ValueError(f"engine={self.engine!r}: Keras answers with processes or a runner; leave it out")

    @property
    def in_parts(self) -> bool:
        """Whether the answers are written as a folder of parts."""
        return self.processes > 1 or self.runner is not None

    @property
    def search(self) -> dict[str, float]:
        """The options of a search that are given."""
        given = {"beams": self.beams, "alpha": self.alpha}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
@defaults(evaluations=None)
class Finetuning(Reading, Training, Patience):
    """Options of `recipes.finetune`, apart from those of the task itself."""

    dev_columns: Mapping[str, str] | None = optional("data NAME=COLUMN ...  of the development file (default: columns)")
    max_length: int | None = optional("data >0  tokens per text (default: as the encoder was trained, or by the task)")
    epochs: float | None = optional(">0  passes over the data, without steps or minutes", excludes="length")
    metric: str | None = optional("schedule  what chooses the best weights, e.g. matthews (default: the main figure)")
    layer_decay: float = option(1.0, "schedule >0 <=1  factor of the learning rate from a layer to the one below")
    unfreeze: float | None = optional("""schedule >0  train the head alone, then one more layer, from the top, every X
        epochs (published: 1)""")
    mix: bool | None = optional("model  use a trained scalar mix of all layers")
    freeze: bool | None = optional("model  freeze the encoder")
    lora: int | None = optional("model RANK >0  BERT: low-rank updates to a frozen encoder, of this rank, e.g. 8")
    from_scratch: bool = option(False, "model  start from random weights, as a baseline")
    stack: str | None = optional("""model lstm|gru|cnn|esim|bidaf  a task network over the encoder; for pairs of texts
        that the encoder reads one by one: esim (classify, multilabel, regress) and bidaf (answer)""")
    units: int | None = optional("""model >0  width of the task network, in each direction (default: 256, as published
        300 of esim and 100 of bidaf)""")
    stack_layers: int | None = optional("model >0  lstm, gru, cnn: layers of the task network (default: 1, of cnn 2)")
    extra_embeddings: AnyPath | None = optional("""model FOLDER published  static vectors that the task network reads
        too, with an ELMo: a folder, frozen, or `words`: learned from the data with the task""")
    output_mix: bool = option(False, "model  concatenate a second scalar mix with the task network's output")
    top_only: bool = option(False, "model  the task network reads the top layer instead of a mix")
    cache: bool = option(True, "machine neutral  compute the outputs of a frozen encoder once, on the disk of --out")

    def __post_init__(self):
        super().__post_init__()
        self._check_length(needed=False)
        with_lora = {
            "freeze": (self.freeze is not None, "low-rank updates are trained and nothing else of the encoder"),
            "unfreeze": (self.unfreeze is not None, "the low-rank updates of all layers are trained from the start"),
            "layer_decay": (self.layer_decay != 1, "the rate of the low-rank updates is the same in all layers"),
            "from_scratch": (self.from_scratch, "low-rank updates are to pretrained weights"),
        }
        for name, (conflicts, reason) in with_lora.items():
            if self.lora is not None and conflicts:
                raise ValueError(f"lora={self.lora}, {name}={getattr(self, name)}: {reason}; leave {name} out")
        if self.unfreeze is not None and self.freeze:
            raise ValueError(f"unfreeze={self.unfreeze}, freeze=True: a frozen encoder stays so; leave freeze out")


@dataclass(frozen=True, kw_only=True)
class Distillation(Sized, Finetuning):
    """Options of `recipes.distill`, apart from those of the task itself."""

    unlabelled: AnyPath | None = optional("data FILE  texts in the form of the data that the teacher labels")
    temperature: float = option(2.0, "schedule >0  divides the logits of teacher and student")
    teacher_weight: float = option(0.9, "schedule >=0 <=1  of the teacher's outputs in the loss, beside the labels")


@dataclass(frozen=True, kw_only=True)
@defaults(
    learning_rate=2e-4,
    batch_size=64,
    init=optional("a student that goes on learning, from this or another text"),
    vocab_sample=option(200_000, "random sentences in which pieces are counted"),
    max_length=option(128, ">3  pieces per sentence; longer ones are cut"),
    samples=optional("of an ELMo: words sampled for the softmax in training (default: the full softmax)"),
)
class EncoderDistillation(Sampled, Sized, Frequent, Corpus, Training):
    """Options of `recipes.distill_encoder`."""

    LOSSES = ("words", "relations", "hidden", "texts", "masked_words", "next_sentence", "language_model")

    layers: str | None = optional("""model N,N,...  the teacher's layers that the student starts with, from 0 (default:
        every second one, the top included)""")
    embedding_width: int | None = optional("""model >0  width of the student's table of pieces, from which a product
        leads to that of the layers (default: none)""")
    learn: Sequence = option(("words", "texts"))("""schedule NAME ...  what is matched: vectors of words, the
        cosines between them (relations), vectors of words in all layers (hidden), vectors of texts and the cosines
        between them; and what BERT's pretraining learns, which gives the student its heads: masked_words, and with
        it next_sentence; of an ELMo as --init also language_model""")
    pretraining_weight: float = option(0.2)("""schedule >0  of the losses masked_words, next_sentence and
        language_model, beside those of the vectors, whose gradients are smaller""")
    pairs: float = option(
        0.0,
        """data >=0 <1  share of the sentences that are read as the first text of a pair, half of
        them with the next one as the second, so that a student learns the vectors of words in pairs too""",
    )
    parallel: Sequence | None = optional("""data FILE ... neutral  sentences and their translations, with a tab between
        them: the student's vectors of both texts are to be the teacher's of the first""")
    vectors: AnyPath | None = optional("""output FOLDER neutral  keep the teacher's vectors in this folder, for
        further runs (default: in --out, until the run ends)""")
    sentences: int | None = optional("""data >0  random sentences of the corpus that the teacher reads, which the
        student reads again and again (default: all)""")

    def __post_init__(self):
        super().__post_init__()
        self._check_length()
        if unknown := [name for name in self.learn if name not in self.LOSSES]:
            raise ValueError(f"learn={unknown[0]!r}: one of {', '.join(self.LOSSES)}")
        if not self.learn:
            raise ValueError(f"learn is empty: name some of {', '.join(self.LOSSES)}")
        if "next_sentence" in self.learn and "masked_words" not in self.learn:
            raise ValueError("learn: next_sentence is learned beside masked_words; name both")
        if self.parallel and "texts" not in self.learn:
            raise ValueError("parallel: a translation has the vector of the whole text; name texts in learn")
        if self.layers is not None and self.size is not None:
            raise ValueError(f"layers={self.layers!r}, size={self.size!r}: a student of a size has random layers")
        for name in ("layers", "size", "vocab_size", "embedding_width"):
            if self.init is not None and (value := getattr(self, name)) is not None:
                raise ValueError(f"init={self.init}, {name}={value!r}: the student to go on with has its own")


@dataclass(frozen=True, kw_only=True)
class Static(Frequent, Overwriting, Run, Seeded):
    """What recipes of static vectors share."""

    dims: int = option(256, "model >0  width of the vectors")


@dataclass(frozen=True, kw_only=True)
@defaults(
    batch_size=option(512, ">1  sentences per step, whose cosines are matched"),
    max_length=option(64, ">3  pieces per sentence; longer ones are cut"),
)
class StaticDistillation(Cut, Batched, Static):
    """Options of `recipes.distill_static`."""

    sentences: int = option(200_000, "data >0  random sentences of the corpus that the teacher reads")
    sif: float = option(1e-3, "model >0  a of the first rows' weights a / (a + frequency) (Arora et al. 2017)")
    passes: int = option(3, "schedule >0  over the sentences")
    learning_rate: float = option(5e-3, ">0  peak learning rate, after a linear warm-up")


@dataclass(frozen=True, kw_only=True)
@defaults(
    dims=100,
    vocab_size=option(None, "data  words at most, the most frequent (default: all)"),
    evaluations=option(10, "losses that are printed, evenly spaced"),
    strategy=option("auto", "", neutral=False),
)
class StaticPretraining(Distributed, Logged, Counted, Static):
    """Options of `recipes.pretrain_static`; the defaults are those of word2vec.c, and of fastText for n-grams."""

    RATES = MappingProxyType({"skipgram": 0.025, "cbow": 0.05, "adagrad": 0.1})  # learning rates

    model: str = option("skipgram", "skipgram|cbow  what is learned")
    subwords: bool = option(False, "vectors of character n-grams, and so of words that were never seen (fastText)")
    window: int = option(5, "model >0  words on each side, at most: each window is shrunk at random")
    negatives: int = option(5, "model >0  noise words for each pair, of the power 0.75 of the counts")
    min_n: int = option(3, "model >0  --subwords: characters of the shortest n-gram")
    max_n: int = option(6, "model >0  --subwords: characters of the longest n-gram")
    buckets: int = option(2_000_000, "model >0  --subwords: rows that n-grams are hashed to")
    sample: float = option(1e-3, "data >=0  leave out more frequent words at random (fastText: 1e-4; 0: none)")
    epochs: float = option(5, "schedule >0  passes over the corpus")
    learning_rate: float | None = optional(">0  at the beginning; it falls to 0")
    adagrad: bool | None = optional("""schedule  row-wise Adagrad in place of SGD, for updates of more than 2048 words
        (default: on several devices)""")
    batch_size: int | None = optional(""">0  words of an update, over all devices, a multiple of 32 (default: 1024, with
        --adagrad 2048 a device)""")

    def __post_init__(self):
        super().__post_init__()
        if self.min_n > self.max_n:
            raise ValueError(f"min_n={self.min_n}: at most max_n={self.max_n}")


@dataclass(frozen=True, kw_only=True)
class Role(Options):
    """The role of texts that are encoded."""

    role: str | None = optional("""of the texts, for an encoder that has roles, as query and passage: its prefix is put
        before each text (default: none; of an index passage)""")


@dataclass(frozen=True, kw_only=True)
@defaults(batch_size=option(32, "sentences computed together"))
class Embedding(Role, Batched, FolderEngine):
    """Options of `recipes.embed`."""

    layers: str | None = optional("""vector|all|mix|top|mean|pooled  what is written of a sentence, see above (default:
        vector; all, with an option that is of tokens or layers)""")
    layer_numbers: str | None = optional("""N,N,...  --layers all: only these, from 0, without context, or from -1, the
        top, downward: 0,6,-1""")
    dtype: str = option("float32", "float32|float16  number format of the file; float16 is half the size")
    words: bool = option(False, "the input is already split into words, at spaces; one vector per word")
    pieces: str = option("first", "first|mean  --words, BERT: the vector of its first piece or the mean of all")
    carry_state: bool = option(False, "ELMo: carry the state from batch to batch, as bilm-tf does")
    cache: AnyPath | None = optional("""VOCAB.txt  ELMo: words, one a line, whose token vectors are computed once and
        kept""")

    def __post_init__(self):
        super().__post_init__()
        if self.layers is None:
            of_tokens = self.words or self.carry_state or self.cache is not None or self.layer_numbers is not None
            object.__setattr__(self, "layers", "all" if of_tokens else "vector")
        if self.layer_numbers is not None and self.layers != "all":
            raise ValueError(f"layer_numbers={self.layer_numbers!r}: with layers='all', and they are {self.layers!r}")
        if self.pieces != "first" and not self.words:
            raise ValueError(f"pieces={self.pieces!r}: of words; without words every piece has a vector")
        if self.layers == "vector" and (self.words or self.carry_state or self.cache is not None):
            raise ValueError("layers='vector': of whole texts; leave out words, carry_state and cache")
        if self.layers != "vector" and self.role is not None:
            raise ValueError(f"role={self.role!r}: for layers='vector', and they are {self.layers!r}; leave it out")
        if self.layers != "vector" and self.engine == LITERT:
            raise ValueError(f"engine={self.engine!r}: for layers='vector', and they are {self.layers!r}; leave it out")


@dataclass(frozen=True, kw_only=True)
class Generation(Seeded):
    """Options of `recipes.generate`; `text.sampling.filtered` defines what is drawn from."""

    length: int = option(100, ">0  tokens to generate")
    lines: int | None = optional(">0  end after so many lines")
    temperature: float = option(1.0, ">=0  divides the logits; 0: always the likeliest token")
    top_k: int | None = optional("K >0  draw from the K likeliest tokens")
    top_p: float | None = optional("P >0 <=1  draw from the likeliest tokens whose probabilities sum to P")
    min_p: float | None = optional("P >=0 <=1  draw from tokens of at least P times the probability of the best one")


@dataclass(frozen=True, kw_only=True)
@defaults(overwrite=option(False, "replace the index that is there"))
class Indexing(Role, Overwriting, Reading):
    """Options of `recipes.index`."""

    passages: int | None = optional("""data N >1  split longer texts into passages of so many words, for `ctxrep ask`
        and for texts that the encoder would cut; in plain text files a paragraph, up to an empty line, is a text
        then""")
    overlap: int | None = optional("data >=0  words that the next passage repeats (default: a fifth of --passages)")
    storage: str | None = optional("""output float32|float16|int8  how vectors are stored: int8 is searched in a quarter
        of the memory, over float16 ones that decide (default: float32; with --add that of the index)""")
    add: bool = option(False, "output  add rows to the index that is there")

    def __post_init__(self):
        super().__post_init__()
        if self.overlap is not None and (self.passages is None or self.overlap >= self.passages):
            raise ValueError(f"overlap={self.overlap}: of passages, and below their length, {self.passages}")
        if self.add and self.overwrite:
            raise ValueError("add and overwrite: either the rows of the index are kept, or it is replaced")


@dataclass(frozen=True, kw_only=True)
class Tflite(Columns):
    """Options of .tflite files."""

    quantize: str = option("none", choices=QUANTIZATIONS)("""float16, half the size; dynamic, 8 bits, activations on
        the fly, a quarter; int8, ranges by --calibrate""")
    calibrate: Sequence | None = optional("""FILE ...  int8: the first 300 texts of each file give the ranges: lines, or
        rows of .tsv, .csv, .parquet, .jsonl, .json and .conll""")
    keep_float: Sequence | None = optional("""LAYER ...  layers that stay float32, as --explain names them; or auto,
        with --data: the fewest to stay within --max-drop""")
    max_drop: float = option(1.0, ">=0  with --data: points or percent of agreement beyond which a file is put aside")
    explain: bool = option(False, "with --data: what each layer costs when it alone is quantized, as table and picture")
    fill: bool = option(False, "of a pretrained BERT its masked language model, for `ctxrep fill`, not the encoder")
    mediapipe: bool = option(False)("""for MediaPipe's TextClassifier and TextEmbedder too, of a BERT; of one length
        (default: the model's)""")
