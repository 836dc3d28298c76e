"""Distillation from unlabelled text: a small encoder that learns the vectors of a larger one."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep import backend, losses, saving, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import of_kind
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.layers import SpanMean
from keras_ctxrep.models import families
from keras_ctxrep.models.model import Model, copy_weights
from keras_ctxrep.models.transformer import token_vectors
from keras_ctxrep.options import EncoderDistillation, Options
from keras_ctxrep.recipes import bilm_student, cards, corpora, distilling
from keras_ctxrep.saving import ModelFolder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import LONGEST, TRANSLATION, sample, shuffled, translated
from keras_ctxrep.text.families import TEXT_SIDES
from keras_ctxrep.text.features import Reads, Row, WordPieceFeatures
from keras_ctxrep.text.lengths import longest
from keras_ctxrep.text.pretraining import Masking, segment_pairs, single_segments
from keras_ctxrep.text.subwords import SubwordTokenizer
from keras_ctxrep.text.tokens import WordPiece
from keras_ctxrep.training import fit, pipeline
from keras_ctxrep.training.runs import RunRecord, check_replaceable
from keras_ctxrep.training.strategy import choose, lock_output, scope

SHARD = 4096  # sentences whose vectors by the teacher are one file
HELD = 1000  # sentences that the student is evaluated on
BUFFER = 1_000_000  # sentences that are shuffled in memory, as in pretraining
ENCODED = 20_000  # of which so many are turned into pieces at once
PRETRAINER, BILM = "pretrainer", "language_model"
HEADS = {"masked_words": "mlm_logits", "next_sentence": "nsp_logits"}  # loss -> output of a pretrainer
Span = tuple[int, int]
Pieces = WordPiece | SubwordTokenizer
Data = Callable[[int], pipeline.Data]  # number of a batch -> the batches from this one on


def run(
    teacher: str | Path, corpus: Sequence[str | Path], out: str | Path, report, options: EncoderDistillation
) -> list[dict]:
    """The work of `commands.distill.DistillEncoder`."""
    strategy = choose(options.strategy)
    with lock_output(out, strategy):
        return _distill(teacher, corpus, out, report, options, strategy)


def _distill(teacher, corpus: Sequence[str | Path], out, report, options: EncoderDistillation, strategy) -> list[dict]:
    folder, source = teacher_of_run(teacher, corpus, out)
    family = source.bundle.family
    error = f"{teacher}: a model of the family {family!r}; the teacher has to be a BERT or a relative of it"
    pieces = of_kind(source.bundle.features, WordPieceFeatures, error).wordpiece
    if "layers" not in source.bundle.config:
        raise ValueError(error)
    initial = _initial(options, family)
    bilm = initial if initial is not None and initial.bundle.task == BILM else None
    numbers = _layer_numbers(options, source.bundle.config["layers"], initial)
    parallel = [Path(path) for path in options.parallel or ()]
    if both := {*map(Path, corpus)} & {*parallel}:
        raise ValueError(f"{both.pop()}: it is text or has translations; name it in corpus or in parallel")
    # counted where they are given, so that runs without them are those of versions that had no such options
    given = {"parallel": parallel, "pairs": options.pairs}
    arguments = {"teacher": folder, "corpus": [Path(path) for path in corpus]}
    arguments |= {name: value for name, value in given.items() if value}
    run = RunRecord.of("distill_encoder", options, **arguments)
    check_replaceable(out, run.identity, options.overwrite)
    Path(out).mkdir(parents=True, exist_ok=True)
    held, read = corpora.held_out(corpus, options.valid, options.seed)

    def read_all(paths: Sequence[str | Path]) -> Iterator[list[str]]:
        """The documents of the corpus, and sentences with their translations."""
        yield from read([path for path in paths if path not in parallel])
        rows = translated(path for path in paths if path in parallel)
        yield from (row for row in rows if row[0].partition(TRANSLATION)[0] not in held_sentences)

    held_sentences = {*itertools.chain.from_iterable(held)}
    every_file = [*corpus, *parallel]

    def counts() -> Counter[int]:  # of the teacher's pieces, in a sample of the text
        text = sample(corpora.watched(read_all(every_file), "counting pieces"), options.vocab_sample, options.seed)
        return count_pieces(pieces, [sentence.replace(TRANSLATION, " ") for sentence in text])

    keras.utils.set_random_seed(options.seed)
    evaluated = None
    with scope(options.precision, strategy):
        if bilm is not None:
            model, bundle = bilm_student.begin(bilm, options)
            learner = bilm_student.learner(model, options.learn)
            reader: Reader = bilm_student.BilmReader(bundle, options.max_length)
        else:
            start, kept = (source, numbers) if initial is None else (initial, range(initial.bundle.config["layers"]))
            model, bundle = _student(start, kept, options, counts)
            learner = _learner(model, bundle, options.learn)
            reader = WordPieceReader(bundle, options.max_length)
    teaches = reader
    if bilm is not None and options.samples:
        teaches = bilm_student.BilmReader(bundle, options.max_length, sampled=True)
        evaluated = saving.build(bundle)
    cache = Path(options.vectors or Path(out) / "teacher")
    levels = [number + 1 for number in numbers] if "hidden" in options.learn else [source.bundle.config["layers"]]
    valid = None if options.valid is None else Path(options.valid)
    read_by_teacher = {"valid": valid, "seed": options.seed, "max_length": options.max_length, "levels": levels}
    of_vectors = replace(run, options=Options(), arguments={**run.arguments, **read_by_teacher})
    vectors = TeacherVectors(source, levels, options.max_length, cache, of_vectors.identity, options.batch_size)
    chosen = Shard(-1, sample(held, HELD, options.seed))
    for output in learner.output.keys() & {"words", "relations", "hidden", "texts"}:
        vectors.reduce(learner.output[output].shape[-1], chosen)

    def shards(epoch: int) -> Iterator[Shard]:  # the same in every epoch, so that each is read by the teacher once
        return _shards(shuffled(every_file, read_all, options.seed, 0, BUFFER), options)

    data: Data = partial(_batches, vectors, teaches, options, shards, True)
    validation = _batches(vectors, reader, options, lambda epoch: [chosen], repeat=False)
    if bundle.task == PRETRAINER:
        data, validation = _with_masked_pairs(data, validation, bundle, corpus, (held, read), options)
    history = fit.fit(
        learner,
        data,
        validation,
        loss={name: _LOSSES[name]() for name in learner.output},
        eval_model=None if evaluated is None else bilm_student.learner(evaluated, options.learn),
        report=report,
        options=options.fit(folder=out, identity=run.identity),
    )
    if evaluated is not None:
        copy_weights(model, evaluated)
        model = evaluated
    run.save(out, history)
    saving.save(out, model, replace(bundle, card=cards.distilled(teacher, source.bundle, corpus, options, history)))
    if options.vectors is None:
        shutil.rmtree(cache, ignore_errors=True)
    return history


def teacher_of_run(teacher: str | Path, corpus: Sequence[str | Path], out: str | Path) -> tuple[Path, ModelFolder]:
    """The folder of a teacher that is to read a corpus, and its encoder.

    Raises:
        TypeError: the corpus is one file instead of a list.
        ValueError: there is no such model, or `out` is its folder.
    """
    corpora.check_corpus("bert", corpus)
    folder = Path(zoo.find(teacher))
    if folder.resolve() == Path(out).resolve():
        raise ValueError(f"{out}: the folder of the teacher; choose another one to write to")
    return folder, saving.load_encoder(folder)


# --------------------------------------------------------------------------------------------------------- the student


def _initial(options: EncoderDistillation, family: str) -> ModelFolder | None:
    """The model that the student begins as, if `options.init` names one: a pretrainer, an encoder or a biLM.

    Raises:
        ValueError: it reads text in another way than the teacher, or options are of another kind of student.
    """
    initial = None if options.init is None else saving.load(zoo.find(options.init))
    if initial is not None and initial.bundle.task not in (PRETRAINER, BILM):  # without the heads of pretraining
        initial = initial.encoder()
    is_bilm = initial is not None and initial.bundle.task == BILM
    if initial is not None and not is_bilm and TEXT_SIDES[initial.bundle.family] is not TEXT_SIDES[family]:
        what = f"{options.init}: a model of the family {initial.bundle.family!r} and the task {initial.bundle.task!r}"
        raise ValueError(f"{what}; the student has to be a BERT, or an ELMo with its language model")
    if (BILM in options.learn) != is_bilm:
        raise ValueError("learn: an ELMo, which init names, and no other student, learns its language_model too")
    if options.pairs and is_bilm:
        raise ValueError(f"pairs={options.pairs}: an ELMo reads one text; leave it out")
    if options.samples is not None and not is_bilm:
        raise ValueError(f"samples={options.samples}: of an ELMo; this student has no softmax over words")
    return initial


def _layer_numbers(options: EncoderDistillation, count: int, initial: ModelFolder | None = None) -> list[int]:
    """The teacher's layer, from 0, of each of the student's."""
    if options.size is not None or initial is not None:
        own = initial.bundle.config["layers"] if initial else distilling.size_of(str(options.size))[1].layers
        return [round((index + 1) * count / own) - 1 for index in range(own)]
    if options.layers is None:
        return [*range(count - 1, -1, -2)][::-1]
    try:
        numbers = [int(part) for part in options.layers.split(",")]
    except ValueError:
        raise ValueError(f"layers={options.layers!r}: write numbers with commas between them, e.g. 0,2,5") from None
    if numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < count:
        known = f"the teacher's layers, 0 to {count - 1}"
        raise ValueError(f"layers={options.layers!r}: {known}, each at most once and in their order")
    return numbers


def _student(
    teacher: ModelFolder, numbers: Sequence[int], options: EncoderDistillation, counts: Callable[[], Counter]
) -> ModelFolder:
    """The student before it has learned anything."""
    model, bundle = teacher
    if options.size is not None:
        model, bundle = distilling.student(model, bundle, options.size)
    else:
        bundle = replace(bundle, config=bundle.config | {"layers": len(numbers)})
    rates = {name: options.dropout or 0.0 for name in ("dropout", "attention_dropout")}
    pieces, counted = bundle.vocab, {}
    config = bundle.config | rates
    if options.vocab_size is not None or options.embedding_width is not None:
        counted = counts()
    if options.vocab_size is not None:
        tokenizer = of_kind(bundle.features, WordPieceFeatures).wordpiece
        pieces = frequent_pieces(tokenizer, counted, options.vocab_size)
        config |= {"vocabulary_size": len(pieces)}
    if options.embedding_width is not None:
        if "embedding_width" not in config:
            given = f"embedding_width={options.embedding_width}"
            raise ValueError(f"{given}: of a BERT, not of the family {bundle.family!r}")
        config |= {"embedding_width": options.embedding_width}
    heads = [name for name in HEADS if name in options.learn]
    if "next_sentence" in heads and "segments" not in config:
        raise ValueError(f"learn: next_sentence is of a BERT, not of the family {bundle.family!r}")
    if heads:
        config |= {"pooler": "next_sentence" in heads}
    tokenizer = bundle.subwords.restricted(pieces).to_json() if bundle.tokenizer else ""
    task = PRETRAINER if heads else "embed"
    small = replace(bundle, vocab=tuple(pieces), tokenizer=tokenizer, config=config, task=task)
    own = saving.build(small)
    known = {layer.name for layer in model.layers}
    for layer in own.layers:
        if layer.weights and (layer.name in known or layer.name.startswith("layer_")):  # others are new heads
            name = layer.name
            if options.size is None and name.startswith("layer_"):
                name = f"layer_{numbers[int(name.removeprefix('layer_'))]}"
            weights = model.get_layer(name).get_weights()
            if name == "token_embedding" and counted:
                kept = of_kind(small.features, WordPieceFeatures).wordpiece
                weights = [merged_vectors(token_vectors(model), bundle.vocab, kept, counted)]
                if width := int(config.get("embedding_width") or 0):
                    numbers_of = {piece: number for number, piece in enumerate(bundle.vocab)}
                    weights = factors(weights[0], [counted.get(numbers_of[piece], 0) for piece in pieces], width)
            layer.set_weights(weights)
    kept_rates = {name: bundle.config[name] for name in rates}  # of later fine-tuning
    return ModelFolder(own, replace(small, config=small.config | kept_rates, card="", roles={}))


def frequent_pieces(tokenizer: Pieces, counts: Mapping[int, int], size: int) -> list[str]:
    """The most frequent pieces of a vocabulary in a corpus, in the vocabulary's order.

    Special pieces stay, and every letter that occurs, of WordPiece alone and within a word: so no text that had pieces
    is read as unknown.

    Args:
        tokenizer: of the vocabulary.
        counts: of each piece's number.
        size: pieces to keep.

    Raises:
        ValueError: `size` has no room for special pieces and letters, or the tokenizer is a byte-level BPE.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> frequent_pieces(WordPiece([*SPECIAL_PIECES, "a", "##a", "an", "and"]), {7: 1, 8: 5}, 8)
    ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', '##a', 'and']
    """
    if isinstance(tokenizer, SubwordTokenizer) and tokenizer.subwords.kind == "bpe":
        raise ValueError(f"vocab_size={size}: the pieces of a byte-level BPE are made of each other; leave it out")
    vocab, needed = tokenizer.vocab, tokenizer.needed(counts)
    ranked = sorted(range(len(vocab)), key=lambda number: (vocab[number] not in needed, -counts.get(number, 0), number))
    least = sum(piece in needed for piece in vocab)
    if size < least:
        raise ValueError(f"vocab_size={size}: special pieces and letters are {least}; choose at least as many")
    return [vocab[number] for number in sorted(ranked[:size])]


def merged_vectors(table: np.ndarray, vocab: Sequence[str], kept: Pieces, counts: Mapping[int, int]) -> np.ndarray:
    """The vectors of the pieces that are kept, each merged with those of the dropped pieces that it is now a part of.

    A dropped piece is cut into kept ones, and adds its vector to theirs, by its frequency and divided by their number;
    the result has the length of the kept piece's own vector.

    Args:
        table: float32 (V, D).
        vocab: its V pieces.
        kept: the tokenizer over some of them.
        counts: of each piece's number in a corpus.

    Returns: float32 (kept, D).

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> table = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 9.0]] + 5 * [[0.0, 0.0]])
    >>> kept = WordPiece(["a", "##b", *SPECIAL_PIECES])
    >>> merged_vectors(table, ["a", "##b", "ab", *SPECIAL_PIECES], kept, {0: 1, 1: 4, 2: 1})[:2].round(2).tolist()
    [[1.66, 2.5], [0.66, 0.75]]
    """
    rows = {piece: row for row, piece in enumerate(kept.vocab)}
    numbers = {piece: number for number, piece in enumerate(vocab)}
    own = table[[numbers[piece] for piece in kept.vocab]]
    merged = own * np.array([max(1, counts.get(numbers[piece], 0)) for piece in kept.vocab], table.dtype)[:, None]
    for number, piece in enumerate(vocab):
        if piece not in rows and counts.get(number):
            parts = kept.cut(piece)
            for part in parts:
                merged[rows[part]] += counts[number] * table[number] / len(parts)
    length = np.linalg.norm(merged, axis=1, keepdims=True)
    return merged * np.linalg.norm(own, axis=1, keepdims=True) / np.where(length, length, 1)


def factors(table: np.ndarray, counts: Sequence[int], width: int) -> list[np.ndarray]:
    """A table of vectors as the product of a narrow table and a projection.

    The projection has the principal axes of the vectors, whose squares are weighted by the roots of their frequencies.

    Args:
        table: float32 (V, D).
        counts: of each row's piece in a corpus.
        width: R, of the narrow table.

    Returns: float32 (V, R) and (R, D).

    >>> narrow, projection = factors(np.array([[3.0, 4.0], [6.0, 8.0]]), [1, 0], 1)
    >>> narrow.shape, (narrow @ projection).round(3).tolist()
    ((2, 1), [[3.0, 4.0], [6.0, 8.0]])
    """
    weights = (np.asarray(counts, table.dtype) + 1) ** 0.25
    axes = distilling.principal_axes(table * weights[:, None], width)
    return [table @ axes, axes.T]


def count_pieces(wordpiece: Pieces, sentences: Sequence[str]) -> Counter[int]:
    """How often each piece, by its number, occurs in some sentences.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> count_pieces(WordPiece([*SPECIAL_PIECES, "a", "##b"]), ["ab a", "b"])
    Counter({5: 2, 6: 1, 1: 1})
    """
    counts: Counter[int] = Counter()
    for begin in range(0, len(sentences), 10_000):
        counts.update(itertools.chain.from_iterable(wordpiece.ids_batch(sentences[begin : begin + 10_000])))
    return counts


_CROSS_ENTROPY = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
_LOSSES = dict.fromkeys((*HEADS, *bilm_student.LOGITS), _CROSS_ENTROPY) | {
    "words": losses.WordDistillation,
    "hidden": losses.WordDistillation,
    "relations": partial(losses.WordDistillation, relations=True),
    "texts": losses.TextDistillation,
}


def _word_vectors(model: keras.Model, levels: Sequence[int]) -> tuple[dict, Any]:
    """The inputs of an encoder with "marks", its words; and their vectors in some layers, (B, W, N, D)."""
    marks = keras.Input((None, 2), dtype="int32", name="marks")
    means = [SpanMean(name=f"words_{level}")(model.output["layers"][level], marks) for level in levels]
    return model.input | {"marks": marks}, ops.stack(means, axis=2)


def _learner(student: keras.Model, bundle: Bundle, learn: Sequence[str]) -> keras.Model:
    """The student with one output for each of the losses."""
    model = student
    if bundle.task == PRETRAINER:
        encoder = families.encoder_of(student, bundle.family, bundle.config)
        model = saving.finish(encoder, bundle.of_encoder())
    top = len(model.output["layers"]) - 1
    inputs, words = _word_vectors(model, range(1, top + 1) if "hidden" in learn else [top])
    outputs = {"words": words[:, :, -1:], "relations": words[:, :, -1:], "hidden": words}
    outputs["texts"] = model.output["vector"]
    if bundle.task == PRETRAINER:
        masked = {
            name: keras.Input(tensor.shape[1:], dtype="int32", name=f"masked_{name}")
            for name, tensor in student.input.items()
        }
        predicted = student(masked)
        inputs |= {tensor.name: tensor for tensor in masked.values()}
        outputs |= {name: predicted[logits] for name, logits in HEADS.items() if logits in predicted}
    return Model(inputs, {name: outputs[name] for name in learn}, name="learner")


# --------------------------------------------------------------------------------------------------- text and targets


@dataclass(eq=False)
class Shard:
    """Consecutive sentences; the teacher's vectors of all of them are one file."""

    number: int  #: of the file; -1: none is kept
    sentences: Sequence[str | tuple[str, str]]  #: the text; pairs are read as two segments
    translations: Mapping[int, str] = field(default_factory=dict)  #: of some of them, by their numbers


class TeacherVectors:
    """A teacher's vectors of words and texts, computed once and kept on the disk in float16.

    Args:
        teacher: a BERT encoder, and its bundle.
        levels: its layers whose vectors of words are kept, 0 being the embeddings.
        max_length: pieces of a sentence.
        folder: of the files.
        identity: what the vectors depend on beside the numbers of the shards, as JSON.
        batch_size: of the sentences that the vectors are read for.

    Raises:
        ValueError: the folder has other vectors.
    """

    def __init__(
        self,
        teacher: ModelFolder,
        levels: Sequence[int],
        max_length: int,
        folder: Path,
        identity: Any,
        batch_size: int = 64,
    ):
        model, bundle = teacher
        inputs, words = _word_vectors(model, levels)
        vectors = keras.Model(inputs, {"words": words, "texts": model.output["vector"]})
        self._run = keras_engine.runner(vectors, frozen=True)
        self.reader = WordPieceReader(bundle, max_length)
        self.folder, self.levels, self.width = folder, levels, bundle.config["width"]
        manifest = folder / "vectors.json"
        text = json.dumps(identity)
        if manifest.exists() and manifest.read_text(encoding="utf-8") != text:
            raise ValueError(f"{folder}: has the vectors of another teacher, text or length; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(manifest) as path:
            path.write_text(text, encoding="utf-8")
        self.axes: tuple[np.ndarray, ...] | None = None
        self.of_shard = lru_cache(2 + pipeline.POOL * batch_size // SHARD)(self._reduced)  # those that a pool may have

    def reduce(self, width: int, shard: Shard) -> None:
        """Gives the vectors in another width from now on, so that a student of this width learns them as its own.

        A smaller one has the principal components of a shard, whose cosines are near those of the vectors, and which no
        layer has to be learned for; a larger one has zeros behind them.
        """
        if self.axes is None and width != self.width:
            words, _, texts = self._of_shard(shard)
            self.axes = tuple(distilling.principal_axes(part, width) for part in (*np.moveaxis(words, 1, 0), texts))
            self.width = width

    def _reduced(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Vectors of words (words, N, D), the number of the first of each sentence, vectors of texts (sentences, D)."""
        words, begins, texts = self._of_shard(shard)
        if self.axes is None:
            return words, begins, texts
        parts = (part.astype(np.float32) for part in (*np.moveaxis(words, 1, 0), texts))
        *reduced, texts = (part @ axes for part, axes in zip(parts, self.axes, strict=True))
        return np.stack(reduced, 1).astype(np.float16), begins, texts

    def _of_shard(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if shard.number < 0:
            return self._computed(shard)
        path = self.folder / f"{shard.number:06}.npz"
        if not path.exists():
            words, begins, texts = self._computed(shard)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.savez(file, words=words, begins=begins, texts=texts)
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["words"], arrays["begins"], arrays["texts"]

    def _computed(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = self.reader.encode(shard.sentences)
        words: list = [None] * len(rows)
        texts: list = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for begin in range(0, len(order), 64):
            part = order[begin : begin + 64]
            outputs = self._run(self.reader.batch([rows[number] for number in part])[0])
            for index, number in enumerate(part):
                words[number] = outputs["words"][index, : self.reader.words(rows[number])].astype(np.float16)
                texts[number] = outputs["texts"][index].astype(np.float16)
        begins = np.cumsum([0, *map(self.reader.words, rows)])
        return np.concatenate(words), begins, np.stack(texts)


@dataclass(frozen=True, eq=False, slots=True)
class Sentence:
    """The pieces of a sentence or a pair, int32 (T,), and the spans of its whole words, int32 (W, 2)."""

    pieces: np.ndarray
    spans: np.ndarray
    second: int | None = None  #: where the segment 1 begins

    def __len__(self) -> int:
        return len(self.pieces)


class WordPieceReader:
    """How a BERT that learns or teaches reads sentences.

    Args:
        bundle: of the model.
        max_length: pieces of a sentence.
    """

    def __init__(self, bundle: Bundle, max_length: int):
        length = min(max_length, bundle.config["max_positions"])
        self.features = of_kind(replace(bundle, max_length=length, reads=Reads(words=True)).features, WordPieceFeatures)

    def encode(self, sentences: Sequence[str | tuple[str, str]]) -> list[Sentence]:
        """The pieces and words of sentences, and of pairs, of which the first one stays where both have no room."""
        texts = [text for each in sentences for text in ([each] if isinstance(each, str) else each)]
        rows = iter(self.features.encode(texts))
        return [
            self._sentence(next(rows)) if isinstance(each, str) else self._pair(next(rows), next(rows))
            for each in sentences
        ]

    def _sentence(self, row: Row) -> Sentence:
        starts = [start for start in row.starts or () if start is not None]
        spans = [*itertools.pairwise([*starts, len(row) - 1])]
        spans = spans[:-1] if row.truncated else spans  # without a word that may be cut off
        return Sentence(np.array(row.tokens, np.int32), np.array(spans, np.int32).reshape(-1, 2))

    def _pair(self, *rows: Row) -> Sentence:
        (first, second), wordpiece = map(self._sentence, rows), self.features.wordpiece
        more = wordpiece.special_tokens.separators - 1
        begin = len(first) + more
        if begin + len(second) - 1 > self.features.max_length:
            return first
        pieces = np.concatenate([first.pieces, np.full(more, wordpiece.sep, np.int32), second.pieces[1:]])
        return Sentence(pieces, np.concatenate([first.spans, second.spans + begin - 1]), None if more else begin)

    def words(self, row: Sentence) -> int:
        """How many words a sentence has whole."""
        return len(row.spans)

    def batch(self, rows: Sequence[Sentence]) -> tuple[dict, dict, dict]:
        """(inputs of `_word_vectors`, targets of the learner's own, their weights)."""
        length = longest(map(len, rows), self.features.max_length)
        begins = np.array([length if row.second is None else row.second for row in rows])
        mask = padded([np.ones_like(row.pieces) for row in rows], length, 0)
        inputs = {
            "token_ids": padded([row.pieces for row in rows], length, self.features.wordpiece.pad),
            "segment_ids": np.where(np.arange(length) >= begins[:, None], mask, 0),
            "mask": mask,
            "marks": padded([row.spans for row in rows], longest(map(self.words, rows)), 0),
        }
        return inputs, {}, {}


def padded(rows: Sequence[np.ndarray], length: int, value: int) -> np.ndarray:
    """Rows (T, ...) as one array (B, `length`, ...), with a value behind them.

    >>> padded([np.array([5, 6]), np.array([7])], 3, 0).tolist()
    [[5, 6, 0], [7, 0, 0]]
    """
    array = np.full((len(rows), length, *rows[0].shape[1:]), value, rows[0].dtype)
    array[np.arange(length) < np.array([[len(row)] for row in rows])] = np.concatenate(rows)
    return array


Reader = WordPieceReader | bilm_student.BilmReader


def _batches(
    vectors: TeacherVectors, reader: Reader, options: EncoderDistillation, epoch, repeat: bool, start: int = 0
):
    """Batches of sentences and the teacher's vectors of them; each sentence is encoded once, and kept in memory."""
    encoded: dict[int, list[tuple[Any, int, bool]]] = {}

    def encode(shard: Shard) -> list[tuple[Any, int, bool]]:
        """The rows of a shard that have words, the number of the sentence of each, and whether it is a translation."""
        texts: list[Any] = [(text, number, False) for number, text in enumerate(shard.sentences)]
        texts += [(text, number, True) for number, text in shard.translations.items()]
        rows: list[Any] = reader.encode([text for text, *_ in texts])
        of = zip(rows, texts, strict=True)
        return [(row, number, other) for row, (_, number, other) in of if reader.words(row)]

    def examples(number: int) -> Iterator[tuple[Any, Shard, int, bool]]:
        for shard in epoch(number):
            if shard.number not in encoded:
                encoded[shard.number] = encode(shard)
            yield from ((row, shard, number, other) for row, number, other in encoded[shard.number])

    def collate(part: list[tuple[Any, Shard, int, bool]], rng: np.random.Generator) -> tuple[dict, ...]:
        rows: list[Any] = [row for row, *_ in part]
        inputs, more, weights = reader.batch(rows)
        counts = [reader.words(row) for row in rows]
        most = inputs.get("marks", inputs["mask"]).shape[1]
        texts, words = [], np.zeros((len(rows), most, len(vectors.levels), vectors.width), np.float32)
        for index, ((_, shard, number, other), own) in enumerate(zip(part, counts, strict=True)):
            of_words, begins, of_texts = vectors.of_shard(shard)
            # each may have cut words off; a translation has other words
            count = 0 if other else min(own, begins[number + 1] - begins[number])
            words[index, :count] = of_words[begins[number] : begins[number] + count]
            texts.append(of_texts[number].astype(np.float32))
        targets = {"words": words[:, :, -1:], "relations": words[:, :, -1:], "hidden": words, "texts": np.stack(texts)}
        chosen = {name: targets[name] for name in options.learn if name in targets}
        if not more:
            return inputs, chosen
        ones = {name: np.ones(len(rows), np.float32) for name in chosen}
        scaled = {name: options.pretraining_weight * weight for name, weight in weights.items()}
        return inputs, chosen | more, ones | scaled

    seed = options.seed if repeat else None
    source = examples if repeat else [*examples(0)]
    return pipeline.dataset(source, collate, options.batch_size, lambda entry: len(entry[0]), seed, repeat, start)


def _with_masked_pairs(
    data: Data,
    validation: pipeline.Data,
    bundle: Bundle,
    corpus: Sequence[str | Path],
    text: tuple[list[list[str]], corpora.Read],
    options: EncoderDistillation,
) -> tuple[Data, pipeline.Data]:
    """The batches of a distillation, each with as many masked pairs of segments of the same text."""
    held, read = text
    length = min(options.max_length, bundle.config["max_positions"])
    features = of_kind(replace(bundle, max_length=length, reads=Reads()).features, WordPieceFeatures)
    masking = Masking(features.wordpiece, whole_words=True)
    follows = "next_sentence" in options.learn
    segments = segment_pairs if follows else single_segments

    def examples(epoch: int) -> Iterator:
        documents = shuffled(corpus, read, options.seed, epoch, BUFFER, LONGEST)
        return segments(documents, features, np.random.default_rng((options.seed, epoch)), ENCODED)

    chosen = corpora.masked_once(held, features, masking, options.seed, segments)[:HELD]
    if not chosen:
        raise ValueError(corpora.NO_PAIRS)
    pairs = partial(pipeline.segments, features, batch_size=options.batch_size, next_sentence=follows)

    def merged(batch: tuple[dict, dict], masked: tuple[dict, dict, dict]) -> tuple[dict, dict, dict]:
        (inputs, targets), (more, labels, weights) = batch, masked
        logits = [(name, output) for name, output in HEADS.items() if output in labels]
        inputs = inputs | {f"masked_{name}": array for name, array in more.items()}
        ones = {name: ops.ones(ops.shape(array)[:1]) for name, array in targets.items()}
        scaled = {name: options.pretraining_weight * weights[output] for name, output in logits}
        return inputs, targets | {name: labels[output] for name, output in logits}, ones | scaled

    def trained(start: int) -> pipeline.Data:
        return backend.zipped(data(start), pairs(examples, masking=masking, seed=options.seed, start=start), merged)

    return trained, backend.zipped(validation, pairs(chosen), merged)


def _shards(documents: Iterable[list[str]], options: EncoderDistillation) -> Iterator[Shard]:
    """The sentences of documents, so many at a time; of some each with the next one or another one as a pair."""
    sentences = itertools.islice(itertools.chain.from_iterable(documents), options.sentences)
    for number in itertools.count():
        part = [*itertools.islice(sentences, SHARD)]
        if not part:
            return
        texts = [sentence.partition(TRANSLATION) for sentence in part]
        translations = {index: other for index, (_, _, other) in enumerate(texts) if other}
        read: list[Any] = [sentence for sentence, _, _ in texts]
        rng = np.random.default_rng((options.seed, number))
        for index in np.flatnonzero(rng.random(len(read)) < options.pairs).tolist():
            other = (index + 1) % len(read) if rng.random() < 0.5 else rng.integers(len(read))
            if index not in translations:
                read[index] = texts[index][0], texts[other][0]
        yield Shard(number, read, translations)
