"""Fine-tuning an encoder for a task, from labelled examples to a model folder."""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import saving, tasks, zoo
from keras_ctxrep.checks import warn
from keras_ctxrep.deprecated import moved
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import frozen
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.tuning import LORA_RATE
from keras_ctxrep.optimizers import AdamW, OptimizerSpec
from keras_ctxrep.options import CHARACTERS, LEARNED, WORDS, Finetuning, Fit, Options, unknown_option
from keras_ctxrep.recipes import cards
from keras_ctxrep.recipes.assembly import Assembled, Survey, assemble, fresh_embeddings, is_frozen, length
from keras_ctxrep.recipes.plan import Plan
from keras_ctxrep.recipes.reading import Data, in_memory, read, split
from keras_ctxrep.recipes.targets import (
    ENCODED,
    Reader,
    batches,
    encoded,
    encoded_examples,
    fitting,
    in_random_order,
)
from keras_ctxrep.tasks import Task
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.files import skipped_rows
from keras_ctxrep.text.pairs import APART
from keras_ctxrep.text.unread import Unread
from keras_ctxrep.training import fit
from keras_ctxrep.training.frozen import FrozenOutputs
from keras_ctxrep.training.pipeline import line_of, words_of
from keras_ctxrep.training.progress import evaluation_bar
from keras_ctxrep.training.runs import RunRecord, check_replaceable
from keras_ctxrep.training.strategy import check_devices, choose, is_chief, lock_output, scope, several_workers

__getattr__ = moved(__name__, "keras_ctxrep.commands.train")

IN_MEMORY = "examples in memory"  # in the record of a run
TOO_HIGH = 1000.0  # times the default learning rate, from which on a warning is due before the work


@dataclass(frozen=True, kw_only=True)
class Observers:
    """What is called while a model is trained."""

    report: Callable[[dict], None] | None = None  #: called with each evaluation
    #: called with lines about what will be done, and why, before the training, and before each of several
    announce: Callable[[str], object] | None = None
    #: as in `training.fit.fit`; the record of the run does not name them
    callbacks: Sequence[keras.callbacks.Callback] = ()


def checked_task_options(task: Task, options: Options | Mapping[str, Any] | None, function: str) -> Options:
    """The task's own options, from a dict of them.

    Raises:
        TypeError: there is no such option; the message names the nearest one.
        ValueError: it is an option of another task.
    """
    if isinstance(options, Options):
        return options
    names = {entry.name for entry in fields(task.Options)}
    for name in (options or {}).keys() - names:
        owners = [repr(other.name) for other in tasks.TASKS.values() if name in other.Options.__dataclass_fields__]
        if not owners:
            raise unknown_option(function, name, names | {entry.name for entry in fields(Finetuning)})
        which = f"task {owners[0]}" if len(owners) == 1 else f"tasks {', '.join(owners[:-1])} and {owners[-1]}"
        raise ValueError(f"{name} is an option of the {which}, and the task is {task.name!r}")
    return task.Options(**(options or {}))


class Run:
    """A fine-tuning run; the arguments are those of `commands.train.Train`."""

    command = "finetune"

    def __init__(
        self,
        data: Data,
        dev: Data | float,
        encoder: str | Path,
        out: str | Path,
        task: str,
        options: Finetuning,
        task_options: Options | Mapping[str, Any] | None = None,
    ):
        if task not in tasks.TASKS:
            raise ValueError(f"task {task!r}: one of {', '.join(tasks.TASKS)}")
        self.task, self.options, self.out = tasks.get(task), options, out
        # a size of a student is no folder
        self.encoder = encoder if encoder in (*LEARNED, getattr(options, "size", None)) else zoo.find(encoder)
        self.task_options = checked_task_options(self.task, task_options, self.command)
        self.check_out(out)
        metric, metrics = options.metric, self.task.metrics
        if metric is not None and metric not in metrics:
            raise ValueError(f"metric={metric!r}: the task {task!r} has {', '.join(metrics)}")
        self.skipped: list[str] | None = [] if options.skip_bad else None
        self.dev_columns = options.columns if options.dev_columns is None else options.dev_columns
        self.data = in_memory(self.task, data, options.columns, self.skipped)
        self.dev = dev if isinstance(dev, float | int) else in_memory(self.task, dev, self.dev_columns, self.skipped)

    @property
    def name(self) -> str:
        return str(self.data) if isinstance(self.data, str | Path) else f"{len(self.data)} examples"

    def folders(self) -> dict[str, str | Path | None]:
        """The model folders that are read, by what they are in messages."""
        return {"encoder": self.encoder, "extra embeddings": self.options.extra_embeddings}

    def check_out(self, out: str | Path) -> None:
        """Raises a ValueError if `out` is a folder that the run reads."""
        for name, folder in self.folders().items():
            if folder not in (None, *LEARNED) and Path(out).resolve() == Path(folder).resolve():
                raise ValueError(f"{out}: the folder of the {name}; choose another one to write to")

    def record(self) -> RunRecord:
        """The record of this run."""
        data, dev = _source(self.data), self.dev if isinstance(self.dev, float | int) else _source(self.dev)
        arguments = {**self.models(), "data": data, "dev": dev, **self.task_options.plain()}
        return RunRecord.of(self.command, self.options, **arguments)

    def models(self) -> dict[str, Any]:
        """What the run learns from beside data, as arguments of its command."""
        return {"task": self.task.name, "encoder": self.encoder if self.encoder in LEARNED else Path(self.encoder)}

    def check(self) -> None:
        """Raises a ValueError for options that do not fit the encoder."""
        options = self.options
        if options.lora is None and options.layer_decay == 1 and options.unfreeze is None:
            return
        learned = {WORDS: "static", CHARACTERS: "lm"}.get(str(self.encoder))
        family = FAMILIES[learned or bundles.load(self.encoder).family]
        if options.lora is None and is_frozen(options, family):
            name = "layer_decay" if options.layer_decay < 1 else "unfreeze"
            raise ValueError(f"{name}={getattr(options, name)}: the encoder is frozen; train it with freeze=False")
        if options.lora is not None and family.enable_lora is None:
            raise ValueError(
                f"lora={options.lora}: low-rank updates are to a BERT's dense layers, and {self.encoder} has none; "
                "freeze=True trains the head alone, freeze=False all of it"
            )

    def train(self, observers: Observers) -> list[dict]:
        """Trains the model and writes its folder."""
        self.check()
        strategy = choose(self.options.strategy)  # before the first model
        check_devices(self.options.batch_size, self.options.precision, strategy)
        with lock_output(self.out, strategy):
            return self._train(strategy, observers)

    def _train(self, strategy, observers: Observers) -> list[dict]:
        options, task = self.options, self.task
        keras.utils.set_random_seed(options.seed)
        record = self.record()
        check_replaceable(self.out, record.identity, options.overwrite)
        share = f"{100 * self.dev:g}% of" if isinstance(self.dev, float | int) else ""
        named = self.dev if isinstance(self.dev, str | Path) else IN_MEMORY
        dev_name = f"{share} {Path(self.name).name}, held out" if share else str(named)
        dev = self._split()
        survey = self.survey()
        dev_set = [*Reader(task, self.dev_columns, self.skipped, survey.labels, survey.pairs)(dev, "validation")]
        if self.skipped:
            warn(skipped_rows(self.skipped))
        loss = self.loss(survey)
        with scope(options.precision, strategy):
            assembled = self.assemble(survey)
        model, bundle = assembled.model, assembled.bundle
        outputs = None if several_workers(strategy) else self.frozen_outputs(assembled)
        run = keras_engine.answering(model, bundle)  # one graph for all evaluations and the last answers
        evaluation_run, metric = _of_evaluations(run, assembled, outputs), None
        evaluate = _evaluation(bundle, dev_set, options.batch_size, evaluation_run)
        if options.metric is not None:
            metric = fit.Metric(options.metric, options.metric in task.smaller)
            evaluate = _by_metric(evaluate, metric.name)
            evaluate(model)  # an error is raised before the training
        unread, asked = Unread(bundle), dev_set[:ENCODED]
        unread.add([*map(task.training_queries, asked)], [rows for rows, _ in encoded_examples(bundle, asked)])
        if message := unread.message(dev_name):
            warn(message)
        survey = self._with_words(survey, bundle)
        replicas = strategy.num_replicas_in_sync
        rows = min(options.batch_size, max(1, survey.count // replicas) * replicas)  # the same on all devices
        settings, optimizer = self.schedule(assembled, survey.count, rows)
        if observers.announce is not None and is_chief(strategy):
            names = (self.name, f"{share} them" if share else dev_name, str(self.encoder))
            observers.announce(str(Plan(*names, survey, dev_set, task, bundle, options, settings, rows)))
        Path(self.out).mkdir(parents=True, exist_ok=True)
        data = self.batches(bundle, rows, outputs)
        source = f"{self.name}, seed {options.seed}"
        settings = replace(settings, folder=self.out, identity=record.identity, source=source)
        with outputs.training(model) if outputs else nullcontext():
            evaluation = fit.Evaluation(metric=metric, report=observers.report)
            fitting = model, data, evaluate, loss, optimizer, observers.callbacks
            history = fit.fit(*fitting, evaluation=evaluation, options=settings)
        bundle = task.tuned(bundle, dev_set, _asking(bundle, run, options.batch_size))
        if is_chief(strategy):
            answers = _asking(bundle, run, options.batch_size)(dev_set)
            final = task.evaluate(dev_set, answers, bundle.labels)
            figures = {"examples": len(dev_set), "interval": final.interval} | final.scores
            record.save(self.out, history, figures, epochs=self.epochs(bundle, history[-1]["step"], settings.steps))
            base = {name: str(source) for name, source in self.models().items() if name != "task"}
            rows = f"{survey.count:,} rows of " if isinstance(self.data, str | Path) else ""
            names = f"{rows}{Path(self.name).name}", f"{len(dev_set):,} rows of {Path(dev_name).name}"
            saving.save(self.out, model, replace(bundle, card=cards.fine_tuned(task, bundle, base, *names, figures)))
        return history

    def _split(self) -> Data:
        """The development data; if `dev` is a fraction, a part of the data that is held out from now on."""
        if not isinstance(self.dev, float | int):
            return self.dev
        examples = [*read(self.task, self.data, self.options.columns, self.skipped)]
        self.data, held_out = split(examples, self.dev, self.options.seed)
        return held_out

    def survey(self) -> Survey:
        """Reads every example once before training, so that malformed ones are reported at once."""
        learns_words = WORDS in (self.encoder, self.options.extra_embeddings)
        survey, before = Survey(), None
        reader = Reader(self.task, self.options.columns, self.skipped)
        with tqdm(desc="reading", unit=" examples", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
            for example in reader(self.data):
                if not survey.count:
                    survey.pairs = self.task.query(example).pair is not None
                survey.count += 1
                survey.used.update(self.task.labels_of(example) or ())
                survey.traits.update(self.task.traits(example))
                if learns_words or self.encoder == CHARACTERS:
                    units = words_of if learns_words else line_of
                    for query in self.task.queries(example):  # a context of many questions counts once
                        survey.words.update(units(query.text))
                        survey.words.update(units(query.pair) if query.pair and query.pair != before else ())
                        before = query.pair
                bar.update()
        self.check_pairs(survey.pairs)
        survey.labels = self.task.labels(survey.used, self.name, self.task_options)
        if doubt := self.task.doubt(survey.count, survey.used):
            warn(f"{self.name}: {doubt}")
        return survey

    def check_pairs(self, pairs: bool) -> None:
        """Raises a ValueError if the task network does not fit the task, or whether the examples are pairs."""
        chosen, suitable = self.options.stack, _apart(self.task)
        if chosen not in APART:
            return
        if self.task.reads.pair is False:
            raise ValueError(f"stack={chosen!r}: of pairs of texts, and the task {self.task.name!r} reads one text")
        if chosen != suitable:
            raise ValueError(f"stack={chosen!r}: not of the task {self.task.name!r}; choose stack={suitable!r}")
        if not pairs:
            raise ValueError(f"stack={chosen!r}: of pairs of texts, and {self.name} has single texts; leave it out")

    def _with_words(self, survey: Survey, bundle: Bundle) -> Survey:
        """The survey without the examples that have no words; they are counted only where they are few."""
        if survey.count >= 2 * self.options.batch_size:
            return survey
        count = sum(any(rows) for rows, _ in encoded_examples(bundle, self.examples(bundle)))
        if not count:
            raise ValueError(f"{self.name}: no words in any of its texts")
        return replace(survey, count=count)

    def loss(self, survey: Survey) -> Any:
        """The loss, as in `Task.loss`."""
        counts = {label: survey.used[label] for label in survey.labels}
        rows = min(self.options.batch_size, survey.count)
        return self.task.loss(self.task_options, counts, survey.traits, rows)

    def pretrained(self, survey: Survey) -> tuple[keras.Model, Bundle]:
        """The encoder to start from, and its bundle."""
        if self.encoder in LEARNED:
            return fresh_embeddings(survey.words, str(self.encoder))
        return saving.load_encoder(self.encoder)

    def length(self, bundle: Bundle) -> int:
        """Tokens per text of the model over an encoder."""
        return length(bundle, self.options, self.task)

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that the model will remember."""
        return self.options.columns or {}

    def assemble(self, survey: Survey) -> Assembled:
        """The model to train, from the encoder's weights."""
        pretrained, bundle = self.pretrained(survey)
        if survey.pairs and self.options.stack not in APART and not bundle.features.pairs:
            remedy = f"a BERT reads pairs, and stack={_apart(self.task)!r} compares two texts that are read apart"
            raise ValueError(f"{self.name}: pairs of texts, and {self.encoder} reads one text; {remedy}")
        bundle = replace(bundle, max_length=self.length(bundle), columns=dict(self.columns))
        return assemble(pretrained, bundle, self.task, self.options, self.task_options, survey)

    def examples(self, bundle: Bundle) -> Iterator:
        """The training examples, in the order of the data."""
        return fitting(bundle, self.data, self.options.columns, None if self.skipped is None else [])

    def frozen_outputs(self, assembled: Assembled) -> FrozenOutputs | None:
        """The outputs of the encoder, if it is frozen and the model trains on what it gave once."""
        bundle = assembled.bundle
        if not self.options.cache or not is_frozen(self.options, FAMILIES[bundle.family]):
            return None
        parts = frozen.split(assembled.model)
        return None if parts is None else FrozenOutputs(parts, bundle.features.collate, self.out)

    def batches(self, bundle: Bundle, rows: int, outputs: FrozenOutputs | None = None) -> Callable:
        """A function from a number of batches to those after them.

        Args:
            bundle: of the model.
            rows: of a batch.
            outputs: of a frozen encoder, in place of what it reads.
        """
        examples = in_random_order(lambda: self.examples(bundle), self.options.seed)
        return partial(batches, bundle, examples, rows, self.options.seed, outputs=outputs)

    def schedule(self, assembled: Assembled, count: int, rows: int) -> tuple[Fit, OptimizerSpec]:
        """Length of the run, learning rate and evaluations, and the optimizer.

        Args:
            assembled: the model.
            count: training examples.
            rows: of a batch.
        """
        options, bundle = self.options, assembled.bundle
        family = FAMILIES[bundle.family]
        factor = LORA_RATE if options.lora is not None else 1.0
        usual = factor * family.tuning.learning_rate(family.config(**bundle.config).width)
        rate = options.learning_rate or usual
        if rate >= TOO_HIGH * usual:
            reason = "AdamW moves every weight by about as much in a step, so that what was learned before is lost"
            warn(f"learning_rate={rate:g}: {reason}; the default of this encoder is {usual:.2g}")
        decided = {"learning_rate": rate, "evaluations": options.evaluations or Fit.evaluations}
        by_epochs = self.by_epochs
        if self.task.reads.windows and (by_epochs or options.unfreeze is not None):
            count = sum(1 for _ in encoded(bundle, self.examples(bundle)))
        if by_epochs:
            epochs = self.options.epochs or family.tuning.epochs
            decided |= {
                "steps": max(1, round(epochs * count / rows)),
                "evaluations": options.evaluations or epochs,  # at the end of each, and of the run
                # with one evaluation per epoch
                "patience": options.patience or (None if options.evaluations else 3),
            }
        settings = options.fit(**decided)
        factors = {name: options.layer_decay**distance for name, distance in assembled.distances.items()}
        starts = self._starts(assembled.distances, count / rows, settings.steps)
        return settings, OptimizerSpec(AdamW, {"factors": factors, "starts": starts})

    @property
    def by_epochs(self) -> bool:
        """Whether the length of the run is that of some epochs."""
        return self.options.steps is None and self.options.minutes is None

    def epochs(self, bundle: Bundle, done: int, steps: int | None) -> float | None:
        """The epochs in some steps of a run that was to have `steps`; None of a run by steps or minutes."""
        if not self.by_epochs or not steps:
            return None
        return (self.options.epochs or FAMILIES[bundle.family].tuning.epochs) * done / steps

    def _starts(self, distances: Mapping[str, int], epoch: float, steps: int | None) -> dict[str, int]:
        """Layer -> the step from which on it is trained, by its distance from the head; `steps` are of the run."""
        interval = self.options.unfreeze
        if interval is None:
            return {}
        starts = {name: round(distance * interval * epoch) for name, distance in distances.items()}
        layers = max(distances.values())
        left = {distances[name] for name, start in starts.items() if start >= (steps or math.inf)}
        if steps and left:
            warn(
                f"unfreeze={interval}: {len(left)} of {layers} layers stay frozen to the end; "
                f"unfreeze={steps / epoch / (layers + 1):.2g} would train all of them"
            )
        return starts


def _apart(task: Task) -> str:
    """The task network of a task for pairs whose texts are read apart."""
    return "bidaf" if task.reads.windows else "esim"


def _source(data: str | Path | Sequence[Any]) -> Any:
    """How run.json refers to a data set: a file, a name, or the hash of examples in memory."""
    if isinstance(data, str | Path):
        return Path(data) if Path(data).exists() else data
    return f"{len(data)} {IN_MEMORY}, SHA-256 {hashlib.sha256(repr(data).encode()).hexdigest()}"


def _of_evaluations(run: Callable, assembled: Assembled, outputs: FrozenOutputs | None) -> Callable:
    """What runs the model in evaluations: `run`, or over outputs of a frozen encoder, if the model itself answers."""
    model, bundle = assembled.model, assembled.bundle
    if outputs is None or [*tasks.get(bundle.task).parts(model).values()] != [model]:
        return run
    return outputs.answering(keras_engine.answering(outputs.parts.trained, bundle))


def _evaluation(
    bundle: Bundle, examples: list, batch_size: int, run: Callable
) -> Callable[[keras.Model], dict[str, float]]:
    """A function from a model, which `run` runs, to its metrics on some examples, the main one first."""
    ask = _asking(bundle, run, batch_size)

    def evaluate(model: keras.Model) -> dict[str, float]:
        return tasks.of_model(bundle).evaluate(examples, ask(examples), bundle.labels, interval=False).scores

    return evaluate


def _asking(bundle: Bundle, run: Callable, batch_size: int) -> Callable[[Sequence[Any]], list[dict]]:
    """`ask` of a `Predictor`, with a progress bar."""

    def ask(examples: Sequence[Any]) -> list[dict]:
        with evaluation_bar("examples", len(examples)) as bar:

            def counted(batch: dict[str, np.ndarray]) -> Mapping[str, Any]:
                outputs = run(batch)
                bar.update(len(batch["mask"]))
                return outputs

            return Predictor(bundle, counted, batch_size).ask(examples)

    return ask


def _by_metric(evaluate: Callable, metric: str) -> Callable[[keras.Model], dict[str, float]]:
    """An evaluation with another metric than the main one first; a ValueError if there is no such figure."""

    def evaluate_by_metric(model: keras.Model) -> dict[str, float]:
        figures = evaluate(model)
        if metric not in figures:
            raise ValueError(f"metric={metric!r}: no figure of these labels and data; they have {', '.join(figures)}")
        return {metric: figures[metric]} | figures

    return evaluate_by_metric
