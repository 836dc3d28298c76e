"""Distillation to static vectors: a table of word pieces that learns the vectors of texts of an encoder."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import losses, saving
from keras_ctxrep.atomic import atomic_write, lock_folder
from keras_ctxrep.checks import of_kind
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import static
from keras_ctxrep.models.model import Model
from keras_ctxrep.options import StaticDistillation
from keras_ctxrep.recipes import cards, corpora
from keras_ctxrep.recipes.distilling import principal_axes
from keras_ctxrep.recipes.encoder_distilling import HELD, SHARD, count_pieces, frequent_pieces, teacher_of_run
from keras_ctxrep.saving import ModelFolder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import documents, sample
from keras_ctxrep.text.features import Row, WordPieceFeatures
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.training import fit, pipeline
from keras_ctxrep.training.runs import RunRecord, check_replaceable

FEWEST = 4  # words of a sentence: of shorter ones a corpus has headings
SCALE = 0.1  # standard deviation of the first table, for which the learning rate is
LENGTH = 512  # pieces that the student reads of a text


def run(
    teacher: str | Path, corpus: Sequence[str | Path], out: str | Path, report, options: StaticDistillation
) -> list[dict]:
    """The work of `commands.distill.DistillStatic`."""
    with lock_folder(out):
        return _distill(teacher, corpus, out, report, options)


def _distill(teacher, corpus: Sequence[str | Path], out, report, options: StaticDistillation) -> list[dict]:
    folder, source = teacher_of_run(teacher, corpus, out)
    width = source.model.output["vector"].shape[-1]
    error = f"{teacher}: a model of the family {source.bundle.family!r} over words; a BERT is needed"
    features = of_kind(source.bundle.features, WordPieceFeatures, error)
    if options.dims > width:
        raise ValueError(f"dims={options.dims}: at most {width}, the width of {teacher}")
    run = RunRecord.of("distill_static", options, teacher=folder, corpus=[Path(path) for path in corpus])
    check_replaceable(out, run.identity, options.overwrite)
    sentences = _sentences(corpus, options)
    counts = count_pieces(features.wordpiece, sentences)
    bundle = _student(source.bundle, counts, options)
    keras.utils.set_random_seed(options.seed)
    cache = Path(out) / f"teacher-{run.identity}"
    for old in set(Path(out).glob("teacher-*")) - {cache}:  # of a run with other options
        shutil.rmtree(old)
    vectors = _teacher_vectors(source, sentences, options.max_length, cache)
    axes = principal_axes(vectors, options.dims)
    targets = unit(vectors.astype(np.float32) @ axes).astype(np.float16)
    model = saving.build(bundle)
    counts = count_pieces(of_kind(bundle.features, WordPieceFeatures).wordpiece, sentences)
    table = _first_table(source, bundle, axes, counts, options.sif)
    model.get_layer("word_embedding").set_weights([table])
    history = _taught(model, bundle, sentences, targets, options, report, out, run.identity)
    table = model.get_layer("word_embedding").get_weights()[0]
    table[_specials(bundle)] = 0
    model.get_layer("word_embedding").set_weights([table])
    run.save(out, history)
    card = cards.distilled(teacher, source.bundle, corpus, options, history)
    saving.save(out, model, replace(bundle, card=card))
    shutil.rmtree(cache, ignore_errors=True)
    return history


def _sentences(corpus: Sequence[str | Path], options: StaticDistillation) -> list[str]:
    """Distinct sentences of a corpus at random; those that are held out are the last ones."""
    read = corpora.watched(documents(corpus))
    long = ([line for line in document if len(line.split()) >= FEWEST] for document in read)
    sentences = list(dict.fromkeys(sample(long, options.sentences + HELD, options.seed)))
    needed = options.batch_size + max(1, len(sentences) // 10)
    if len(sentences) < needed:
        raise ValueError(
            f"{len(sentences)} distinct sentences of at least {FEWEST} words in {', '.join(map(str, corpus))}: a batch "
            f"of {options.batch_size} and held-out ones are {needed}; give more text, or a smaller batch_size"
        )
    return sentences


def _student(teacher: Bundle, counts: Counter[int], options: StaticDistillation) -> Bundle:
    """The bundle of the table."""
    size = options.vocab_size
    vocab = teacher.vocab if size is None else tuple(frequent_pieces(corpora.word_pieces(teacher), counts, size))
    config = static.Config(words=len(vocab), width=options.dims, pieces=True)
    changes = {"config": asdict(config), "vocab": vocab, "pooling": "mean", "normalize": True}
    return replace(teacher, family="static", max_length=LENGTH, card="", roles={}, **changes)


def _specials(bundle: Bundle) -> list[int]:
    return [bundle.vocab.index(piece) for piece in bundle.special_tokens.pieces]


def _teacher_vectors(teacher: ModelFolder, sentences: Sequence[str], max_length: int, folder: Path) -> np.ndarray:
    """The teacher's vectors of sentences in length 1, float16 (S, D), those that are in the folder read from it."""
    model, bundle = teacher
    length = min(max_length, bundle.max_length)
    vector = keras.Model(model.input, {"vector": model.output["vector"]})
    predictor = Predictor(replace(bundle, max_length=length), keras_engine.runner(vector), batch_size=64)
    shards = []
    folder.mkdir(parents=True, exist_ok=True)
    with tqdm(desc="teacher", unit=" sentences", total=len(sentences), leave=False, disable=None) as bar:
        for begin in range(0, len(sentences), SHARD):
            part, path = sentences[begin : begin + SHARD], folder / f"{begin // SHARD:06}.npy"
            if not path.exists():
                zeros = [0.0] * model.output["vector"].shape[-1]  # of a text without words
                rows = np.array([answer.get("vector", zeros) for answer in predictor(part)], np.float32)
                with atomic_write(path) as temporary, temporary.open("wb") as file:
                    np.save(file, unit(rows).astype(np.float16))
            shards.append(np.load(path, allow_pickle=False))
            bar.update(len(part))
    return np.concatenate(shards)


def _first_table(
    teacher: ModelFolder, bundle: Bundle, axes: np.ndarray, counts: Counter[int], sif: float
) -> np.ndarray:
    """The rows of the student's pieces before they are taught, float32 (V, dims)."""
    model, source = teacher
    pieces = of_kind(source.features, WordPieceFeatures).wordpiece
    vector = keras_engine.runner(keras.Model(model.input, {"vector": model.output["vector"]}))
    numbers = {piece: number for number, piece in enumerate(source.vocab)}
    ids = np.array([[pieces.cls, numbers[piece], pieces.sep] for piece in bundle.vocab], np.int32)  # (V, 3)
    parts = [ids[begin : begin + 256] for begin in range(0, len(ids), 256)]
    batches = [{"token_ids": part, "segment_ids": 0 * part, "mask": np.ones_like(part)} for part in parts]
    table = np.concatenate([vector(batch)["vector"] for batch in batches])
    table = (table - table.mean(0)) @ axes
    frequency = np.array([counts.get(number, 0) for number in range(len(table))]) / max(1, counts.total())
    table *= (sif / (sif + frequency))[:, None]
    table[_specials(bundle)] = 0
    return (SCALE * table / table.std()).astype(np.float32)


def _taught(
    model, bundle: Bundle, sentences, targets, options: StaticDistillation, report, out, identity
) -> list[dict]:
    """Teaches the table; returns the evaluations."""
    features = replace(bundle, max_length=options.max_length).features
    count = len(sentences) - min(HELD, len(sentences) // 10)

    def examples(numbers: range) -> Iterator[tuple[Row, int]]:
        for begin in range(numbers.start, numbers.stop, SHARD):
            part = range(begin, min(begin + SHARD, numbers.stop))
            yield from zip(features.encode([sentences[number] for number in part]), part, strict=True)

    def collate(part: list[tuple[Row, int]], rng: np.random.Generator) -> tuple[dict, dict]:
        texts = targets[[number for _, number in part]].astype(np.float32)
        return features.collate([row for row, _ in part]), {"texts": texts}

    learner = Model(model.input, {"texts": model.output["vector"]}, name="student")
    steps = max(1, options.passes * count // options.batch_size)
    batches = {"collate": collate, "batch_size": options.batch_size, "length": lambda entry: len(entry[0])}
    trained = partial(pipeline.dataset, lambda epoch: examples(range(count)), **batches, seed=options.seed, repeat=True)
    settings = {"steps": steps, "learning_rate": options.learning_rate, "weight_decay": 0.0}
    return fit.fit(
        learner,
        lambda start: trained(start=start),
        pipeline.dataset([*examples(range(count, len(sentences)))], **batches),
        loss={"texts": losses.TextDistillation()},
        report=report,
        options=options.fit(folder=out, identity=identity, **settings),
    )
