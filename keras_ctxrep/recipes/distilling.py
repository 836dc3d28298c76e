"""Distillation: a small model that learns from the outputs of a larger one that was fine-tuned."""

import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import losses, saving, tasks, zoo
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.transformer import token_vectors
from keras_ctxrep.options import Distillation, Options
from keras_ctxrep.recipes.assembly import Survey
from keras_ctxrep.recipes.finetuning import Run
from keras_ctxrep.recipes.reading import Data, read_unlabelled
from keras_ctxrep.recipes.targets import ENCODED, encoded_examples
from keras_ctxrep.tasks.abilities import Distillable
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.families import TEXT_SIDES
from keras_ctxrep.text.features import Row
from keras_ctxrep.training import pipeline
from keras_ctxrep.training.frozen import FrozenOutputs

BLOCK = 4096  # vectors that are in memory in float64 at a time
Taught = tuple[Any, list[dict[str, np.ndarray]]]  # an example, and the teacher's logits for each of its rows


class Distilling(Run):
    """A distillation run; the arguments are those of `commands.distill.Distill`."""

    command = "distill"
    options: Distillation

    def __init__(self, teacher, data: Data, dev: Data | float, out, encoder, options: Distillation, task_options=None):
        self.folder = teacher
        self.model, self.teacher = saving.load(zoo.find(teacher))
        if not isinstance(tasks.SERVED.get(self.teacher.task), Distillable):
            task = self.teacher.task
            raise ValueError(f"{teacher}: its task is {task!r}; a teacher is fine-tuned with `ctxrep train`")
        start = options.size if encoder is None else encoder
        if start is None or None not in (encoder, options.size):
            both = f"encoder={encoder!r}, size={options.size!r}"
            raise ValueError(f"{both}: give one of the two, what the student begins with")
        if not isinstance(task_options, Options):
            names = {entry.name for entry in fields(tasks.get(self.teacher.task).Options)}
            settings = {name: value for name, value in self.teacher.settings.items() if name in names}
            task_options = settings | dict(task_options or {})
        super().__init__(data, dev, start, out, self.teacher.task, options, task_options)
        self.task = tasks.of_model(self.teacher)
        crfs = {str(teacher): self.teacher.head.get("crf"), "crf=True": getattr(self.task_options, "crf", False)}
        for name, crf in crfs.items():
            if crf:
                reason = "the logits of a CRF are no distribution of a word's labels"
                raise ValueError(f"{name}: {reason}; leave the CRF out")
        self.taught: list[Taught] = []

    def folders(self) -> dict[str, str | Path | None]:
        return {"teacher": self.folder} | super().folders()

    @property
    def columns(self) -> Mapping[str, str]:
        return super().columns or self.teacher.columns

    def check(self) -> None:
        if self.options.size is None:
            super().check()
            return
        for name in ("freeze", "lora", "from_scratch", "unfreeze"):
            if getattr(self.options, name):
                raise ValueError(f"{name}={getattr(self.options, name)}: a student of a size has random weights")

    def survey(self) -> Survey:
        """Reads every example, and has the teacher answer it."""
        survey, labels = super().survey(), self.teacher.labels
        if unknown := sorted(set(survey.used) - set(labels)) if labels else []:
            missing = f"has no label {unknown[0]!r}: {', '.join(labels)}"
            raise ValueError(f"{self.name}: the teacher, {self.folder}, {missing}")
        predictor = Predictor(self.teacher, keras_engine.runner(self.model), self.options.batch_size)
        self.taught = [*_taught(predictor, super().examples(self.teacher))]
        if (path := self.options.unlabelled) is not None:
            rows = read_unlabelled(self.task, path, self.options.columns, self.skipped)
            self.taught += _taught(predictor, (example for _, example in rows), answers=True)
            if self.teacher.pairs != (self.task.query(self.taught[-1][0]).pair is not None):
                raise ValueError(f"{path}: this teacher reads {'pairs of texts' if self.teacher.pairs else 'one text'}")
        return replace(survey, labels=labels, count=len(self.taught))

    def pretrained(self, survey: Survey) -> tuple[keras.Model, Bundle]:
        if self.options.size is None:
            return super().pretrained(survey)
        return student(self.model, self.teacher, self.options.size)

    def length(self, bundle: Bundle) -> int:
        return self.options.max_length or min(self.teacher.max_length, bundle.config.get("max_positions", sys.maxsize))

    def loss(self, survey: Survey) -> Any:
        labels = super().loss(survey) or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return losses.Distillation(labels, self.task.activation, self.options.temperature, self.options.teacher_weight)

    def batches(self, bundle: Bundle, rows: int, outputs: FrozenOutputs | None = None) -> Callable:
        seed = self.options.seed

        def epoch(number: int) -> Iterator:
            order = random.Random(f"{seed} {number}").sample(range(len(self.taught)), len(self.taught))
            return _encoded(bundle, [self.taught[index] for index in order])

        collate = partial(_collate, bundle, outputs.collate if outputs else bundle.features.collate)
        return partial(pipeline.dataset, epoch, collate, rows, lambda entry: len(entry[0]), seed, True)

    def examples(self, bundle: Bundle) -> Iterator:
        return (example for example, _ in self.taught)

    def models(self) -> dict[str, Any]:
        """What the run learns from beside data, as arguments of its command."""
        teacher = {"teacher": Path(self.folder)}
        return teacher if self.options.size is not None else teacher | {"encoder": super().models()["encoder"]}


def student(teacher: keras.Model, bundle: Bundle, size: str) -> tuple[keras.Model, Bundle]:
    """A fresh encoder of a size, and its bundle.

    A Transformer encoder of another one, of any family, has the teacher's vocabulary, and its token vectors are the
    teacher's, projected to their principal components (Jolliffe 2002) and scaled to the standard deviation of fresh
    ones.
    """
    name, config = size_of(size)
    own = saving.encoder_bundle(teacher, bundle)
    if TEXT_SIDES[name] is not TEXT_SIDES[bundle.family]:
        empty = Bundle(name, "embed", asdict(config), bundle.max_length, card=bundle.card)
        return saving.build(empty), empty
    own = replace(own, family=name, config=asdict(config), roles={})
    if not FAMILIES[name].reads_vocabulary(own.config):
        return saving.build(own), own
    own = replace(own, config=own.config | {"vocabulary_size": len(bundle.vocab)})
    model = saving.build(own)
    for layer in model.layers:
        if layer.name == "token_embedding":
            layer.set_weights([_projected(token_vectors(teacher), *layer.get_weights())])
    return model, own


def size_of(name: str) -> tuple[str, Any]:
    """The family and the config of a published size."""
    sizes = {name: (family, config) for family in FAMILIES for name, config in FAMILIES[family].sizes.items()}
    if name not in sizes:
        raise ValueError(f"size={name!r}: one of {', '.join(sizes)}")
    return sizes[name]


def _projected(table: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """The vectors of a table (V, D) in the width of a fresh one (V, d)."""
    width = fresh.shape[1]
    centred = table - table.mean(0)
    projected = centred @ principal_axes(centred, width)
    return projected * (fresh.std() / projected.std())


def principal_axes(vectors: np.ndarray, width: int) -> np.ndarray:
    """The directions, of length 1, in which vectors are largest; a product with them keeps lengths and angles best.

    Args:
        vectors: (N, D).
        width: R, how many; behind D of them are zeros.

    Returns: float32 (D, R).

    >>> principal_axes(np.array([[3.0, 4.0], [6.0, 8.0], [4.0, -3.0]]), 1).round(2)
    array([[0.6],
           [0.8]], dtype=float32)
    >>> principal_axes(np.eye(2), 3).shape
    (2, 3)
    """
    moments = np.zeros((vectors.shape[1],) * 2)
    for begin in range(0, len(vectors), BLOCK):
        part = vectors[begin : begin + BLOCK].astype(np.float64)
        moments += part.T @ part
    axes = np.linalg.eigh(moments)[1][:, ::-1][:, :width]  # descending
    axes = np.where(axes.sum(0) < 0, -axes, axes)  # the sign of an axis is arbitrary
    return np.pad(axes, ((0, 0), (0, max(0, width - axes.shape[1])))).astype(np.float32)


def _taught(predictor: Predictor, examples: Iterator, answers: bool = False) -> Iterator[Taught]:
    """Examples that have something to read, and the teacher's logits; with `answers` labelled by the teacher."""
    task, bundle = predictor.task, predictor.bundle
    assert isinstance(task, Distillable)
    with tqdm(desc="teacher", unit=" examples", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
        while part := list(itertools.islice(examples, ENCODED)):
            for example, (rows, outputs) in zip(part, predictor.outputs(part), strict=True):
                if rows:
                    if answers:
                        example = task.labelled_by(example, task.decode(bundle, task.query(example), rows, outputs))
                    logits = task.teacher_logits(rows, outputs)
                    yield example, [{key: np.array(value, np.float32) for key, value in row.items()} for row in logits]
            bar.update(len(part))


def _encoded(bundle: Bundle, taught: Sequence[Taught]) -> Iterator[tuple[Row, Any, Mapping[str, np.ndarray]]]:
    """Rows with their targets and the teacher's logits."""
    encodings = encoded_examples(bundle, (example for example, _ in taught))
    for (example, logits), (rows, targets) in zip(taught, encodings, strict=True):
        if rows and len(rows) != len(logits):
            windows = f"{len(rows)} windows, and {len(logits)} of the teacher"
            raise ValueError(f"{example.source}: {windows}; give its length")
        yield from zip(rows, targets, logits if rows else (), strict=True)


def _collate(bundle: Bundle, inputs_of: Callable, part: list, rng: np.random.Generator) -> tuple:
    """Inputs, and the targets of `losses.Distillation`."""
    task = tasks.get(bundle.task)
    assert isinstance(task, Distillable)
    inputs = inputs_of([row for row, *_ in part])
    targets, *weights = task.batch(bundle, [target for _, target, _ in part], inputs)
    length = inputs["mask"].shape[1]
    logits = [task.logits_of_student(row, own, length) for row, _, own in part]
    joined = {name: _join(labels, [own[name] for own in logits]) for name, labels in targets.items()}
    return inputs, joined, *weights


def _join(labels: np.ndarray, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Labels, as numbers (B, ...) of classes or as floats (B, C), and logits in one array, float32 (B, ..., K + C).

    >>> _join(np.array([1, 0]), [np.array([0.5, 2.0]), np.array([3.0, 0.0])]).tolist()
    [[1.0, 0.5, 2.0], [0.0, 3.0, 0.0]]
    """
    if labels.dtype.kind == "i":
        labels = labels[..., None]
    array = np.full((*labels.shape[:-1], logits[0].shape[-1]), np.nan, np.float32)
    for number, values in enumerate(logits):
        array[(number, *(slice(0, size) for size in values.shape))] = values
    return np.concatenate([labels.astype(np.float32), array], -1)
