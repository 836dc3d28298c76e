"""Fine-tuning an encoder for a task, from files of labelled examples to a model folder."""

import hashlib
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
from tqdm import tqdm

from keras_ctxrep import options, saving, tasks
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import static
from keras_ctxrep.models.families import FAMILIES, Family, depths
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.optimizers import AdamW, OptimizerSpec
from keras_ctxrep.options import WORDS
from keras_ctxrep.recipes.pretraining import Report, check_batch_size
from keras_ctxrep.recipes.targets import (
    Data,
    Reader,
    batches,
    encoded,
    encoded_examples,
    fitting,
    in_random_order,
    sources,
)
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.files import skipped_rows
from keras_ctxrep.training import fit
from keras_ctxrep.training.runs import RunRecord
from keras_ctxrep.training.strategy import choose, is_chief, scope

IN_MEMORY = "examples in memory"  # in the record of a run
_EXTRA_EMBEDDINGS = "word_embedding"
LORA_RATE = 10.0  # factor of the default learning rate; Hu et al. 2021, table 9: 4e-4 and 5e-4, ours is 3e-5


def finetune(
    data: Data,
    dev: Data,
    encoder: str | Path,
    out: str | Path,
    task: str = "classify",
    report: Report | None = None,
    announce: Callable[[str], object] | None = None,
    **given: Any,
) -> list[dict]:
    """Fine-tunes an encoder for a task and writes a model folder.

    The defaults are those of the papers. BERT (Devlin et al. 2018, appendix A.3): all of it is trained, with AdamW,
    warm-up over 10% of the steps, 3 epochs. ELMo (Peters et al. 2018): the biLM is frozen, its layers are mixed with an
    L2 penalty of 0.001 on the weights, dropout 0.5. The weights with the best `metric` on `dev` are kept, and a
    threshold of no answer is chosen there. `data` is read again in every epoch and need not fit into memory.

    Args:
        data, dev: examples, files of them (`tasks.Task.read`), or "tfds:NAME:SPLIT"; labels are those of `data`.
        encoder: a model folder of any task; or "words", for word embeddings learned from `data` alone.
        out: the model folder to write; its run.json records data, options and versions.
        task: name of one of `tasks.TASKS`.
        report: called with each evaluation.
        announce: called once, before the training, with lines about what will be done, and why.
        given: fields of `options.Finetuning`, and of the task's own `Options`.

    Returns: the evaluations on `dev`.

    Raises:
        TypeError: there is no such option.
        ValueError: a row is malformed or has an unknown label, there are fewer than two labels, or an option does not
            fit the task or the encoder. Rows that were skipped are warned of.
    """
    return train_job(Job(task, given, data, dev, encoder, out), report, announce)


def train_job(job: "Job", report: Report | None, announce: Callable[[str], object] | None) -> list[dict]:
    """Trains the model of a run and writes its folder; arguments and result are those of `finetune`."""
    job.check()
    strategy = choose(job.options.strategy)  # before the first model
    check_batch_size(job.options.batch_size, strategy)
    keras.utils.set_random_seed(job.options.seed)
    survey = job.survey()
    skipped: list[str] | None = [] if job.options.skip_bad else None
    reader = Reader(job.task, job.dev_columns, skipped, survey.labels, survey.pairs)
    dev_set = list(reader(job.dev, "validation"))
    if malformed := (survey.skipped or []) + (skipped or []):
        warnings.warn(skipped_rows(malformed), stacklevel=2)
    loss = job.loss(survey)
    with scope(job.options.precision, strategy):
        model, bundle = job.assemble(survey)
    evaluate = _evaluation(bundle, dev_set, job.options.batch_size)
    if (metric := job.options.metric) is not None:
        evaluate = _by_metric(evaluate, metric)
        evaluate(model)  # an error is raised before the training
    if survey.count < 2 * job.options.batch_size:  # some may have no words
        survey.count = sum(any(rows) for rows, _ in encoded_examples(bundle, job.examples(bundle)))
        if not survey.count:
            raise ValueError(f"{job.name}: no words in any of its texts")
    rows = job.batch_rows(survey.count, strategy.num_replicas_in_sync)
    schedule = job.schedule(bundle, survey.count, rows)
    run = job.run()
    if announce is not None and is_chief(strategy):
        announce(job.plan(survey, dev_set, bundle, schedule, rows))
    Path(job.out).mkdir(parents=True, exist_ok=True)
    data, sources_of = job.batches(bundle, rows)
    history = fit.fit(
        model,
        data,
        evaluate,
        loss=loss,
        folder=job.out,
        identity=run.identity,
        report=report,
        sources=sources_of,
        metric=None if metric is None else fit.Metric(metric, metric in job.task.smaller),
        **schedule,
    )
    runner = keras_engine.runner(model)
    bundle = job.task.tuned(bundle, dev_set, Predictor(bundle, runner, job.options.batch_size).ask)
    if is_chief(strategy):
        answers = Predictor(bundle, runner, job.options.batch_size).ask(dev_set)
        final = job.task.evaluate(dev_set, answers, bundle.labels)
        run.save(job.out, history, {"examples": len(dev_set), "interval": final.interval} | final.scores)
        saving.save(job.out, model, bundle)
    return history


@dataclass
class Survey:
    """Statistics of the training examples, from one pass over them."""

    skipped: list[str] | None
    count: int = 0
    used: Counter = field(default_factory=Counter)
    labels: tuple[str, ...] = ()
    pairs: bool = False
    traits: set[str] = field(default_factory=set)
    words: Counter = field(default_factory=Counter)


def check_out(out: str | Path, read: Mapping[str, str | Path | None]) -> None:
    """Raises a ValueError if a run would overwrite a folder that it reads.

    Args:
        out: the folder to write.
        read: what is read -> its folder, or `WORDS`.
    """
    for name, folder in read.items():
        if folder not in (None, WORDS) and Path(out).resolve() == Path(folder).resolve():
            raise ValueError(f"{out}: the folder of the {name}; choose another one to write to")


class Job:
    """A fine-tuning run: task, options and data; the arguments are those of `finetune`."""

    command = "finetune"
    Options = options.Finetuning

    @classmethod
    def of(cls, data: Data, dev: Data, encoder: str | Path, out, task: str = "classify", **given: Any) -> "Job":
        """The run of a call of `finetune`."""
        return cls(task, given, data, dev, encoder, out)

    def __init__(self, task: str, given: Mapping[str, Any], data: Data, dev: Data, encoder: str | Path, out):
        if task not in tasks.TASKS:
            raise ValueError(f"task {task!r}: one of {', '.join(tasks.TASKS)}")
        self.task = tasks.get(task)
        known = {entry.name for entry in fields(self.task.Options)}
        owners = {name: {entry.name for entry in fields(owner.Options)} for name, owner in tasks.TASKS.items()}
        for name in given:
            of = [repr(owner) for owner, names in owners.items() if name in names - known]
            if of:
                which = f"task {of[0]}" if len(of) == 1 else f"tasks {', '.join(of[:-1])} and {of[-1]}"
                raise ValueError(f"{name} is an option of the {which}, and the task is {task!r}")
        self.own = self.task.Options(**{key: value for key, value in given.items() if key in known})
        rest = {key: value for key, value in given.items() if key not in known}
        self.options = self.Options.of(rest, self.command)
        check_out(out, {"encoder": encoder, "extra embeddings": self.options.extra_embeddings})
        self.data, self.dev = (part if isinstance(part, str | Path) else list(part) for part in (data, dev))
        self.encoder, self.out = encoder, out
        metric, known_metrics = self.options.metric, self.task.metrics
        if metric is not None and metric not in known_metrics:
            raise ValueError(f"metric={metric!r}: the task {task!r} has {', '.join(known_metrics)}")
        self.distances: dict[str, int] = {}  # layer of the encoder -> that from the head, from 1; `assemble` sets them

    @property
    def name(self) -> str:
        return str(self.data) if isinstance(self.data, str | Path) else f"{len(self.data)} examples"

    @property
    def columns(self) -> dict[str, str]:
        """The columns that the model will remember."""
        return dict(self.options.columns or {})

    @property
    def dev_columns(self) -> Mapping[str, str] | None:
        chosen = self.options
        return chosen.columns if chosen.dev_columns is None else chosen.dev_columns

    def check(self) -> None:
        """Raises a ValueError for options that do not fit the encoder."""
        chosen = self.options
        if chosen.lora is None and chosen.layer_decay == 1 and chosen.unfreeze is None:
            return
        family = FAMILIES["static" if self.encoder == WORDS else bundles.load(self.encoder).family]
        if chosen.lora is None and self._frozen(family):
            name = "layer_decay" if chosen.layer_decay < 1 else "unfreeze"
            raise ValueError(f"{name}={getattr(chosen, name)}: the encoder is frozen; train it with freeze=False")
        if chosen.lora is not None and family.enable_lora is None:
            raise ValueError(
                f"lora={chosen.lora}: low-rank updates are to a BERT's dense layers, and {self.encoder} has none; "
                "freeze=True trains the head alone, freeze=False all of it"
            )

    def _frozen(self, family: Family) -> bool:
        chosen = self.options
        if chosen.lora is not None:
            return False
        return family.frozen and not chosen.from_scratch if chosen.freeze is None else chosen.freeze

    def survey(self) -> Survey:
        """Reads every example once before training, so that malformed ones are reported at once."""
        if WORDS in (self.encoder, self.options.extra_embeddings) and self.task.reads.windows:
            raise ValueError(f"{self.name}: pairs of texts, and word embeddings read one text; a BERT reads pairs")
        survey = Survey([] if self.options.skip_bad else None)
        reader = Reader(self.task, self.options.columns, survey.skipped)
        with tqdm(desc="reading", unit=" examples", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
            for example in reader(self.data):
                if not survey.count:
                    survey.pairs = getattr(example, "pair", None) is not None
                survey.count += 1
                survey.used.update(self.task.labels_of(example) or ())
                survey.traits.update(self.task.traits(example))
                if WORDS in (self.encoder, self.options.extra_embeddings):
                    survey.words.update(self.task.tokens(example))
                bar.update()
        survey.labels = self.task.labels(set(survey.used), self.name)
        return survey

    def pretrained(self, survey: Survey) -> tuple[keras.Model, Bundle]:
        """The encoder to start from, and its bundle."""
        return _fresh(survey.words) if self.encoder == WORDS else saving.load_encoder(self.encoder)

    def loss(self, survey: Survey) -> Any:
        """The loss, as of `Task.loss`."""
        return self.task.loss(self.own, {label: survey.used[label] for label in survey.labels})

    def assemble(self, survey: Survey) -> tuple[keras.Model, Bundle]:
        """The model to train, from the encoder's weights, and its bundle."""
        chosen = self.options
        pretrained, bundle = self.pretrained(survey)
        reads = replace(self.task.reads, pair=survey.pairs or bool(self.task.reads.pair))
        if reads.pair and not bundle.features.pairs:
            raise ValueError(f"{self.name}: pairs of texts, and {self.encoder} reads one text; a BERT reads pairs")
        family = FAMILIES[bundle.family]
        frozen = self._frozen(family)
        encoder_dropout = family.encoder_dropout if chosen.dropout is None else chosen.dropout
        encoder_dropout = 0.0 if frozen or family.encoder_dropout is None else encoder_dropout
        bundle = replace(
            bundle,
            config=bundle.config | {key: encoder_dropout for key in bundle.config if key.endswith("dropout")},
            max_length=self._length(bundle),
        )
        model = saving.build(bundle)
        by_layer = depths(model)
        self.distances = {name: max(by_layer.values()) + 1 - depth for name, depth in by_layer.items()}
        if chosen.from_scratch:
            bundle = replace(bundle, card="")
        else:
            copy_weights(pretrained, model)
        model.trainable = not frozen
        if chosen.lora is not None and family.enable_lora is not None:
            family.enable_lora(model, chosen.lora)
        bundle = replace(bundle, reads=reads)
        bundle = replace(bundle, stack=self._stack(bundle))
        weights = None
        if chosen.extra_embeddings is not None:
            weights, extra = _extra_embeddings(chosen.extra_embeddings, survey.words, bundle)
            bundle = replace(bundle, extra_embeddings=extra.config, vocab=extra.vocab)
        settings = self.task.settings(self.own, survey.traits)
        head = self._head(bundle) | self.task.head_options(self.own)
        bundle = replace(bundle, task=self.task.name, labels=survey.labels, head=head, settings=settings)
        bundle = replace(bundle, columns=self.columns)
        model = saving.finish(model, bundle)
        if weights is not None:
            model.get_layer(_EXTRA_EMBEDDINGS).set_weights(weights)
        return model, bundle

    def _length(self, bundle: Bundle) -> int:
        max_length, positions = self.options.max_length, bundle.config.get("max_positions", math.inf)
        if (max_length or 0) > positions:
            raise ValueError(f"max_length={max_length}: this encoder has {positions} positions")
        if max_length is None and self.task.max_length is not None:
            return int(max(bundle.max_length, min(self.task.max_length, positions)))
        return max_length or bundle.max_length

    def _stack(self, bundle: Bundle) -> dict:
        """Keyword arguments of the task network, {} if there is none."""
        chosen, family = self.options, FAMILIES[bundle.family]
        # an encoder without an input for marked tokens needs a task network that has one
        needs_indicator = bundle.reads.indicate and not bundle.features.indicate
        kind = chosen.stack or ("lstm" if needs_indicator else None)
        if kind is None:
            for name in ("units", "output_mix", "top_only", "extra_embeddings"):
                if getattr(chosen, name):
                    raise ValueError(f"{name} is for a task network, and there is none: choose one, e.g. stack='lstm'")
            return {}
        if chosen.mix is not None:
            raise ValueError(f"mix={chosen.mix}: a task network reads a mix, or the top layer with top_only")
        dropout = family.dropout if chosen.dropout is None else chosen.dropout
        mix = "top" if chosen.top_only else "all"
        network = {"kind": kind, "units": chosen.units or 256, "dropout": dropout, "mix": mix, "l2": family.mix_l2}
        return network | ({"output_mix": True} if chosen.output_mix else {})

    def _head(self, bundle: Bundle) -> dict:
        chosen, family = self.options, FAMILIES[bundle.family]
        if bundle.stack:
            return {"dropout": 0.0}
        default = family.dropout if self.task.head_dropout is None else self.task.head_dropout
        dropout = default if chosen.dropout is None else chosen.dropout
        return {"dropout": dropout, "mix": family.mix if chosen.mix is None else chosen.mix, "l2": family.mix_l2}

    def batches(self, bundle: Bundle, rows: int) -> tuple[Callable, Callable]:
        """Functions from a number of batches: to those after them, and to the sources of the examples in that one."""
        examples = in_random_order(lambda: self.examples(bundle), self.options.seed)
        arguments = (bundle, examples, rows, self.options.seed)
        return partial(batches, *arguments), partial(sources, *arguments)

    def examples(self, bundle: Bundle) -> Iterator:
        """The training examples, in the order of the data."""
        return fitting(bundle, self.data, self.options.columns, [] if self.options.skip_bad else None)

    def batch_rows(self, count: int, replicas: int) -> int:
        """Rows of a batch: no more than there are examples, the same on all devices."""
        return min(self.options.batch_size, max(1, count // replicas) * replicas)

    def schedule(self, bundle: Bundle, count: int, batch_rows: int) -> dict[str, Any]:
        """Options of `train.fit`: length of the run, learning rate, evaluations."""
        chosen, family = self.options, FAMILIES[bundle.family]
        rate = chosen.learning_rate or family.learning_rate(family.config(**bundle.config).width) * (
            LORA_RATE if chosen.lora is not None else 1.0
        )
        plan = {
            "steps": chosen.steps,
            "minutes": chosen.minutes,
            "learning_rate": rate,
            "evaluations": chosen.evaluations or 10,
            "patience": chosen.patience,
            "decay": chosen.decay,
            "checkpoint_minutes": chosen.checkpoint_minutes,
            "tensorboard": chosen.tensorboard,
            "microbatches": chosen.microbatches,
            "recompute": chosen.recompute,
        }
        by_epochs = chosen.steps is None and chosen.minutes is None
        if self.task.reads.windows and (by_epochs or chosen.unfreeze is not None):
            count = sum(1 for _ in encoded(bundle, self.examples(bundle)))
        if by_epochs:
            epochs = chosen.epochs or family.epochs
            plan |= {
                "steps": max(1, round(epochs * count / batch_rows)),
                "evaluations": chosen.evaluations or epochs,  # at the end of each, and of the run
                # with one evaluation per epoch
                "patience": chosen.patience or (None if chosen.evaluations else 3),
            }
        factors = {name: chosen.layer_decay**distance for name, distance in self.distances.items()}
        starts = self._starts(count / batch_rows, plan["steps"])
        return plan | {"optimizer": OptimizerSpec(AdamW, {"factors": factors, "starts": starts})}

    def plan(self, survey: Survey, dev_set: list, bundle: Bundle, schedule: Mapping[str, Any], rows: int) -> str:
        """Lines about the run: data, labels, length, encoder, rate, steps and evaluations, and where they come from."""
        chosen, family = self.options, FAMILIES[bundle.family]
        cut = sum(row.truncated for row, _ in encoded(bundle, dev_set))
        network = f"{bundle.stack['kind']} over " if bundle.stack else ""
        trained = (
            "frozen"
            if self._frozen(family)
            else f"low-rank updates of rank {chosen.lora}"
            if chosen.lora
            else "trained"
        )
        steps, minutes, evaluations = schedule["steps"], schedule["minutes"], schedule["evaluations"]
        epochs = chosen.epochs or family.epochs
        run = f"{minutes:g} minutes" if steps is None else f"{steps:,} steps of {rows} rows"
        if steps is not None and chosen.steps is None:
            run += f", {epochs:g} epochs" + ("" if chosen.epochs else f" (default for {bundle.family})")
        by_epoch = steps is not None and chosen.steps is None and chosen.evaluations is None
        times = "at the end of every epoch" if by_epoch else f"{evaluations:g} times, evenly spaced"
        patience = f", ended after {schedule['patience']} without improvement" if schedule["patience"] else ""
        length = "given" if chosen.max_length else "as the task needs" if self.task.max_length else "as the encoder"
        metric = chosen.metric or "the main metric"
        lines = {
            "data": f"{survey.count:,} rows of {self.name}; {len(dev_set):,} of {_shown(self.dev)} to choose by",
            "labels": _counted(survey.used, survey.labels),
            "length": f"{bundle.max_length} tokens ({length}); {cut:,} of the development texts are longer, so cut",
            "encoder": f"{network}{self.encoder} ({bundle.family}), {trained}{_default(chosen.freeze is None)}",
            "rate": f"{schedule['learning_rate']:.3g}{_default(chosen.learning_rate is None)}, {chosen.decay} decay",
            "run": run,
            "evaluated": f"{times}{patience}; the best by {metric} is kept",
        }
        return "\n".join(f"{name + ':':10} {text}" for name, text in lines.items() if text)

    def _starts(self, epoch: float, steps: int | None) -> dict[str, int]:
        """Layer of the encoder -> the step from which on it is trained.

        Args:
            epoch: steps of one.
            steps: of the run, if they are known.
        """
        interval = self.options.unfreeze
        if interval is None:
            return {}
        starts = {name: round(distance * interval * epoch) for name, distance in self.distances.items()}
        layers = max(self.distances.values())
        left = {self.distances[name] for name, start in starts.items() if start >= (steps or math.inf)}
        if steps and left:
            warnings.warn(
                f"unfreeze={interval}: {len(left)} of {layers} layers stay frozen to the end; "
                f"unfreeze={steps / epoch / (layers + 1):.2g} would train all of them",
                stacklevel=3,
            )
        return starts

    def run(self) -> RunRecord:
        """The record of this run."""
        return RunRecord.of(
            self.command,
            self.options,
            **self.models(),
            data=_source(self.data),
            dev=_source(self.dev),
            **self.own.plain(),
        )

    def models(self) -> dict[str, Any]:
        """What the run learns from beside data, as arguments of its command."""
        return {"task": self.task.name, "encoder": self.encoder if self.encoder == WORDS else Path(self.encoder)}


def _default(chosen: bool) -> str:
    return " (default)" if chosen else ""


def _shown(data: Data) -> str:
    return str(data) if isinstance(data, str | Path) else "examples in memory"


def _counted(used: Counter, labels: tuple[str, ...]) -> str:
    """The first ten labels and how often they are used; "" if there are none."""
    shown = ", ".join(f"{label} {used[label]:,}" for label in labels[:10])
    return f"{len(labels)}: {shown}{', ...' if len(labels) > 10 else ''}" if labels else ""


def _source(data: Data) -> Any:
    """How run.json refers to a data set: a file, a name, or the hash of examples in memory."""
    if isinstance(data, str | Path):
        return Path(data) if Path(data).exists() else data
    return f"{len(data)} {IN_MEMORY}, SHA-256 {hashlib.sha256(repr(data).encode()).hexdigest()}"


def _fresh(counts: Counter) -> tuple[keras.Model, Bundle]:
    """Untrained embeddings of the words that occur at least twice; the rarer ones train the unknown word's vector."""
    features, words = StaticFeatures(StaticFeatures.MARKERS, lowercase=True), list(counts)
    known: Counter = Counter()
    for word, normalized in zip(words, features.normalized(words), strict=True):
        known[normalized] += counts[word]
    frequent = [word for word, count in known.items() if count > 1 and "\n" not in word]  # a line of vocab.txt each
    vocab = ("<UNK>", *sorted(frequent, key=lambda word: (-known[word], word)))
    config = static.Config(words=len(vocab), width=100, lowercase=True)
    return static.encoder(config), Bundle("static", "embed", asdict(config), 128, vocab=vocab)


def _extra_embeddings(source: str | Path, counts: Counter, bundle: Bundle) -> tuple[list, Bundle]:
    """The weights of a folder's static vectors, frozen, or of untrained ones of these words; and their bundle."""
    model, extra = _fresh(counts) if source == WORDS else saving.load_encoder(source)
    reads_characters = "max_characters" in bundle.config and not bundle.config.get("words")
    if not isinstance(extra.features, StaticFeatures) or not reads_characters:
        raise ValueError(f"{source}: extra embeddings are static vectors, with an ELMo over characters")
    config = extra.config | {"trainable": source == WORDS}
    return model.get_layer(_EXTRA_EMBEDDINGS).get_weights(), replace(extra, config=config)


def _evaluation(bundle: Bundle, examples: list, batch_size: int) -> Callable[[keras.Model], dict[str, float]]:
    """A function from a model to its metrics on some examples, the main one first."""
    predictors: dict[int, Predictor] = {}

    def evaluate(model: keras.Model) -> dict[str, float]:
        if id(model) not in predictors:
            predictors[id(model)] = Predictor(bundle, keras_engine.runner(model), batch_size)
        predictor = predictors[id(model)]
        return predictor.task.evaluate(examples, predictor.ask(examples), bundle.labels, interval=False).scores

    return evaluate


def _by_metric(evaluate: Callable, metric: str) -> Callable[[keras.Model], dict[str, float]]:
    """An evaluation whose first metric is another one than the main one.

    Raises:
        ValueError: (the function) there is no such figure of these examples.
    """

    def evaluate_by_metric(model: keras.Model) -> dict[str, float]:
        figures = evaluate(model)
        if metric not in figures:
            raise ValueError(f"metric={metric!r}: no figure of these labels and data; they have {', '.join(figures)}")
        return {metric: figures[metric]} | figures

    return evaluate_by_metric
