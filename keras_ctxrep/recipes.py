"""From files to model folders and back: what each `ctxrep` subcommand does, as one function."""

import hashlib
import itertools
import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import optimizers, pipeline, train
from keras_ctxrep.models import bert, elmo, heads
from keras_ctxrep.text.bundle import Bundle, sha256, written_whole
from keras_ctxrep.text.examples import Example, documents, hold_out, read_examples, shuffled, without
from keras_ctxrep.text.features import CharacterFeatures, Row, WordPieceFeatures
from keras_ctxrep.text.predict import Predictor, softmax
from keras_ctxrep.text.pretraining import (
    Vocabulary,
    language_model_batch,
    next_sentence_rows,
    pretrainer_batch,
    stream_batch,
)
from keras_ctxrep.text.scores import accuracy, standard_error
from keras_ctxrep.text.tokens import Characters, WordPiece, read_vocab, words

Report = Callable[[dict], None]


def pretrain(
    family: str,
    corpus: Sequence[str | Path],
    out: str | Path,
    size: str | None = None,
    valid: str | Path | None = None,
    vocab: str | Path | None = None,
    vocab_size: int = 8000,
    min_count: int = 2,
    cased: bool = False,
    init: str | Path | None = None,
    read_words: bool = False,
    max_length: int = 128,
    unroll: int | None = None,
    samples: int | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    minutes: float | None = None,
    optimizer: str = "adamw",
    learning_rate: float | None = None,
    dropout: float = 0.1,
    precision: str = "float32",
    seed: int = 0,
    evaluations: int = 10,
    checkpoint_minutes: float = 5.0,
    tensorboard: str | Path | None = None,
    report: Report | None = None,
) -> list[dict]:
    """Pretrains a biLM or a BERT encoder from text files and writes a model folder.

    A biLM learns from whole sentences, each by itself, or with `unroll` from running text, as published: then a stretch
    begins with the state that the one before it left behind. Its corpus may be of any size: it is read anew in every
    epoch, and only a part of it is in memory.

    Args:
        family: "elmo" or "bert".
        corpus: text files, one sentence or document a line, an empty line between documents.
        out: the model folder; a run that was interrupted goes on from the checkpoint in it.
        size: a name in the family's SIZES; None: the smallest one, or that of `init`.
        valid: held-out text; None: a tenth of the corpus, in blocks of sentences.
        vocab: a vocabulary file; None: learned from the corpus, or that of `init`.
        vocab_size: entries of a learned vocabulary, at most.
        min_count: ELMo: a word of a learned vocabulary occurs so often.
        cased: BERT: keep case and accents.
        init: ELMo: a model folder to start from, as to adapt published weights to a domain; its size, and the softmax
            too if it has one over the same vocabulary.
        read_words: ELMo: read the vocabulary's words instead of characters.
        max_length: tokens per example; longer sentences are cut, but for `unroll`.
        unroll: ELMo: words per stretch of running text (20 in the published model); None: whole sentences.
        samples: ELMo: words that the softmax draws per step (8192 in the published model); None: the full softmax.
        batch_size: sentences or streams (ELMo) or pairs of segments (BERT) per step, over all devices.
        steps, minutes: length of the run, one of the two.
        optimizer: "adamw", with warm-up and decay, or "adagrad", ELMo's published recipe: at its peak all the way.
        learning_rate: its peak; None: 0.001, or 0.2 for Adagrad.
        dropout: while training.
        precision: a Keras dtype policy.
        seed: of every random choice.
        evaluations: how often to validate, evenly over the run.
        checkpoint_minutes: time between two checkpoints.
        tensorboard: folder for TensorBoard logs.
        report: called with each evaluation, as it comes.

    Returns: the evaluations, as of `train.fit`; they are also in OUT/history.json.

    Raises:
        ValueError: no such size, no text, a vocabulary that does not fit, or an argument out of range.
    """
    sizes: dict[str, Any] = {"elmo": elmo.SIZES, "bert": bert.SIZES}[family]
    if family == "bert" and (init, read_words, unroll, samples, optimizer) != (None, False, None, None, "adamw"):
        raise ValueError("init, read_words, unroll, samples and adagrad are for ELMo")
    if optimizer not in ("adamw", "adagrad"):
        raise ValueError(f"optimizer={optimizer!r}: choose adamw or adagrad")
    source: Any = None
    before: Any = None
    config: Any
    if init is not None:
        if size is not None:
            raise ValueError(f"size={size!r} and init={init}: the size is that of the model to start from; give one")
        source, before = train.load(init)
        if before.family != "elmo":
            raise ValueError(f"{init}: a {before.family} model; ELMo starts from an ELMo")
        config = replace(elmo.Config(**before.config), dropout=dropout)
    else:
        size = next(iter(sizes)) if size is None else size
        if size not in sizes:
            raise ValueError(f"size {size!r}: choose one of {', '.join(sizes)}")
        config = replace(sizes[size], dropout=dropout)
    with train.scope(precision) as strategy:
        _check_batch_size(batch_size, strategy)
    Path(out).mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(seed)
    held = list(documents([valid])) if valid is not None else hold_out(_watched(documents(corpus)), seed=seed)
    given = None if vocab is None else read_vocab(vocab)
    if given is None and before is not None:
        given = list(before.vocab) or None

    def read(paths: Sequence[str | Path]) -> Iterator[list[str]]:
        return without(documents(paths), held if valid is None else [])

    if next(read(corpus), None) is None:
        raise ValueError(
            "nothing to train on is left of the corpus once a part is held out: give held-out text of its own"
        )

    def texts(epoch: int) -> Iterator[list[str]]:
        return shuffled(corpus, read, seed, epoch)

    if family == "elmo":
        vocabulary = _vocabulary(given, read(corpus), min_count, vocab_size, samples)
        if read_words or config.words:
            if before is not None and (not config.words or list(before.vocab) != vocabulary.vocab):
                raise ValueError(f"{init}: reads characters or other words; a model over words keeps its vocabulary")
            config = replace(config, words=len(vocabulary))
        bundle = Bundle("elmo", "language_model", asdict(config), max_length, vocab=tuple(vocabulary.vocab))
        features: Any = bundle.features
        if unroll:
            data = partial(pipeline.running_text, features, vocabulary, texts, batch_size, unroll)
        else:
            data = partial(pipeline.sentences, features, vocabulary, texts, batch_size)
        data = partial(data, bool(samples), seed)
        if unroll:
            rows = max(1, min(batch_size, pipeline.LOGITS // (unroll * len(vocabulary))))
            validation = pipeline.running_text(features, vocabulary, lambda _: held, rows, unroll, epochs=1)
        else:
            validation = pipeline.whole_sentences(features, vocabulary, held, batch_size)
    else:
        bundle, data, validation = _masked_modelling(
            config, list(read(corpus)), held, given, vocab_size, cased, max_length, batch_size, seed
        )
    judge = None
    with train.scope(precision):
        if unroll or samples:
            model = elmo.language_model(config, len(bundle.vocab), samples, batch_size if unroll else None)
        else:
            model = train.build(bundle)
        if source is not None:
            same = before is not None and before.task == "language_model" and before.vocab == bundle.vocab
            train.copy_weights(source, model, skip=() if same else ("softmax",))
    if unroll or samples:
        judge = elmo.language_model(config, len(bundle.vocab), streams=rows if unroll else None)
    adagrad = partial(optimizers.Adagrad, learning_rate or 0.2, gradient_scale=float(unroll or 1))
    history = train.fit(
        model,
        data,
        validation,
        judge,
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate or 1e-3,
        optimizer=adagrad if optimizer == "adagrad" else None,
        evaluations=evaluations,
        folder=out,
        identity=_identity(
            bundle,
            [sha256(path) for path in corpus],
            held,
            (optimizer, learning_rate, batch_size, seed, unroll, samples, precision, str(init)),
        ),
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
        report=report,
    )
    if judge is not None:  # what is kept reads whole sentences
        plain = train.build(bundle)
        train.copy_weights(model, plain)
        model = plain
    train.save(out, model, bundle)
    with written_whole(Path(out) / "history.json") as path:
        path.write_text(json.dumps(history, indent=1))
    return history


def _watched(items: Iterable[list[str]], what: str = "reading") -> Iterator[list[str]]:
    """Documents, with a bar on the screen that counts their sentences while they are read."""
    with tqdm(desc=what, unit=" sentences", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
        for item in items:
            yield item
            bar.update(len(item))


def _vocabulary(given, documents: Iterable[list[str]], min_count, vocab_size, samples) -> Vocabulary:
    """The given one, or one counted on all documents; refused where the softmax cannot draw from it."""
    sentences = ([word.text for word in words(sentence)] for document in _watched(documents) for sentence in document)
    if given is None:
        vocabulary = Vocabulary.count(sentences, min_count, vocab_size)
    else:
        vocabulary = Vocabulary(given)
        if samples:
            vocabulary.check_order(itertools.islice(sentences, 10_000))
    if samples and samples > len(vocabulary):
        raise ValueError(
            f"samples={samples}: the vocabulary has {len(vocabulary)} words; sample fewer, or none for the full softmax"
        )
    return vocabulary


def _masked_modelling(config: bert.Config, text, held, given, vocab_size, cased, max_length, batch_size, seed):
    if given is None:
        wordpiece = WordPiece.train((sentence for document in text for sentence in document), vocab_size, not cased)
    else:
        wordpiece = WordPiece(given, not cased)
    config = replace(config, vocabulary_size=len(wordpiece.vocab))
    if max_length > config.max_positions:
        raise ValueError(f"max_length={max_length}: this size has {config.max_positions} positions")
    features = WordPieceFeatures(wordpiece, max_length)
    pieces, held_pieces = ([wordpiece.ids_batch(document) for document in part] for part in (text, held))

    def collate(pairs, rng):
        return pretrainer_batch(features, pairs, rng)

    def epoch(number: int) -> Iterator[tuple[Row, bool]]:
        rng = np.random.default_rng((seed, number))
        return next_sentence_rows([pieces[i] for i in rng.permutation(len(pieces))], features, rng)

    bundle = Bundle(
        "bert", "pretrainer", asdict(config), max_length, vocab=tuple(wordpiece.vocab), lowercase=wordpiece.lowercase
    )
    data = pipeline.dataset(epoch, collate, batch_size, length=_pair_length, seed=seed, repeat=True)
    held_pairs = list(next_sentence_rows(held_pieces, features, np.random.default_rng(seed)))
    return bundle, data, pipeline.dataset(held_pairs, collate, batch_size)


def _pair_length(pair: tuple[Row, bool]) -> int:
    return len(pair[0])


def finetune(
    data: str | Path | Sequence[Example],
    dev: str | Path | Sequence[Example],
    encoder: str | Path,
    out: str | Path,
    max_length: int | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float = 3,
    learning_rate: float = 1e-3,
    dropout: float = 0.1,
    mix: bool | None = None,
    freeze: bool = False,
    from_scratch: bool = False,
    precision: str = "float32",
    seed: int = 0,
    tensorboard: str | Path | None = None,
    report: Report | None = None,
) -> list[dict]:
    """Fine-tunes an encoder to classify texts and writes a model folder.

    Args:
        data, dev: labelled examples, or .tsv or .jsonl files of them; labels are those of `data`.
        encoder: a model folder of any task.
        out: the model folder to write.
        max_length: tokens per text; None: as the encoder was trained.
        batch_size: texts per step.
        steps, minutes: length of the run; without both `epochs`.
        epochs: passes over `data`.
        learning_rate: its peak.
        dropout: in the encoder and before the last layer.
        mix: classify by a scalar mix of all layers over all tokens; None: ELMo does, BERT by its first token.
        freeze: train the head alone, without dropout in the encoder.
        from_scratch: start from random weights instead of the encoder's, as a baseline.
        precision, seed, tensorboard, report: as in `pretrain`.

    Returns: the evaluations on `dev`.

    Raises:
        ValueError: a file is malformed, a label of `dev` is unknown, or there are fewer than two labels.
    """
    keras.utils.set_random_seed(seed)
    train_set, dev_set = (read_examples(part) if isinstance(part, str | Path) else list(part) for part in (data, dev))
    _check(train_set)
    labels = sorted({example.label or "" for example in train_set})
    if len(labels) < 2:
        raise ValueError(f"{data}: only the label {labels[0]!r}; a classifier needs at least two")
    _check(dev_set, labels)
    if Path(out).resolve() == Path(encoder).resolve():
        raise ValueError(f"{out}: the encoder's own folder; choose another one to write to")
    Path(out).mkdir(parents=True, exist_ok=True)
    with train.scope(precision) as strategy:
        _check_batch_size(batch_size, strategy)
        pretrained, bundle = train.load_encoder(encoder)
        bundle = replace(bundle, config=bundle.config | {"dropout": 0.0 if freeze else dropout})
        model = train.build(bundle)
        if not from_scratch:
            train.copy_weights(pretrained, model)
        model.trainable = not freeze
        head = {"mix": bundle.family == "elmo" if mix is None else mix, "dropout": dropout}
        model = heads.classify(model, len(labels), **head)
    if (max_length or 0) > bundle.config.get("max_positions", float("inf")):
        raise ValueError(f"max_length={max_length}: this encoder has {bundle.config['max_positions']} positions")
    bundle = replace(
        bundle, task="classify", labels=tuple(labels), head=head, max_length=max_length or bundle.max_length
    )
    if steps is None and minutes is None:
        steps = max(1, round(epochs * len(train_set) / batch_size))
    history = train.fit(
        model,
        _labelled(bundle, train_set, batch_size, seed, repeat=True),
        _labelled(bundle, dev_set, batch_size, None, repeat=False),
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate,
        folder=out,
        identity=_identity(bundle, train_set, learning_rate, batch_size, seed, freeze, from_scratch, str(encoder)),
        tensorboard=tensorboard,
        report=report,
    )
    train.save(out, model, bundle)
    return history


def _identity(*parts) -> str:
    """A short name of a run's text and settings, to tell whether a checkpoint belongs to it."""
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:16]


def _check_batch_size(batch_size: int, strategy) -> None:
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"batch_size={batch_size}: {strategy.num_replicas_in_sync} devices share it in equal parts")


def _check(examples: Sequence[Example], labels: Sequence[str] | None = None) -> None:
    """Refuses what a classifier cannot learn or be scored on, by file and line."""
    for example in examples:
        place = example.place or repr(example.text[:60])
        if example.label is None:
            raise ValueError(f"{place}: no label")
        if example.pair is not None:
            raise ValueError(f"{place}: a pair of texts; a classifier reads one")
        if labels is not None and example.label not in labels:
            raise ValueError(f"{place}: label {example.label!r} is not one of {', '.join(labels)}")


def _labelled(bundle: Bundle, examples: Sequence[Example], batch_size: int, seed, repeat: bool):
    numbers = {label: index for index, label in enumerate(bundle.labels)}
    features = bundle.features
    rows = features.encode([example.text for example in examples])
    pairs = [(row, numbers[example.label or ""]) for row, example in zip(rows, examples, strict=True)]

    def collate(pairs, rng):
        return features.collate([row for row, _ in pairs]), {"logits": np.array([y for _, y in pairs], np.int32)}

    return pipeline.dataset(pairs, collate, batch_size, length=_pair_length, seed=seed, repeat=repeat)


def score(folder: str | Path, data: str | Path, batch_size: int = 32, carry_state: bool = False) -> dict:
    """A model folder's metric on held-out data.

    A classifier: accuracy with its standard error, on labelled examples. A biLM: full-softmax perplexity forward,
    backward and exp of the mean of both losses, over all words and sentence ends of a text. A BERT pretrainer: MLM and
    NSP accuracy, on text.

    Args:
        folder: the model.
        data: a labelled file (.tsv, .jsonl) for a classifier, a text file for a language model.
        batch_size: texts computed together; no figure depends on it, but with `carry_state`.
        carry_state: a biLM: read the text on and on in `batch_size` streams, as a biLM trained with `unroll` has, and
            as bilm-tf scores; else every sentence is scored by itself.

    Raises:
        ValueError: the data is malformed or does not fit the model's task.
    """
    model, bundle = train.load(folder)
    if carry_state and bundle.task != "language_model":
        raise ValueError(f"{folder}: its task is {bundle.task!r}; only a biLM carries a state")
    if bundle.task == "classify":
        examples = read_examples(data)
        _check(examples, bundle.labels)
        answers = Predictor(bundle, train.runner(model), batch_size)([example.text for example in examples])
        share = accuracy([example.label for example in examples], [answer.get("label") for answer in answers])
        return {"examples": len(examples), "accuracy": share, "standard_error": standard_error(share, len(examples))}
    if bundle.task == "embed":
        raise ValueError(f"{folder}: an encoder alone has no score; fine-tune it with `ctxrep train`")
    if bundle.task == "pretrainer":
        return _score_pretrainer(model, bundle, list(documents([data])), batch_size)
    text = _watched(documents([data]), "scoring")
    if carry_state:
        found = _carried_scores(model, bundle, text, batch_size)
    else:
        sentences = (sentence for document in text for sentence in document)
        scores = _sentence_scores(model, bundle, sentences, batch_size)
        found = ((1, one["words"] + 1, one["forward"], one["backward"]) for one in scores)
    totals = np.zeros(4)  # sentences, words and ends, and the log-probabilities of both directions
    for one in found:
        totals += one
    if not totals[0]:
        raise ValueError(f"{data}: no words in it")
    return {
        "sentences": int(totals[0]),
        "words": int(totals[1]),
        "forward_perplexity": float(np.exp(-totals[2] / totals[1])),
        "backward_perplexity": float(np.exp(-totals[3] / totals[1])),
        "perplexity": float(np.exp(-(totals[2] + totals[3]) / (2 * totals[1]))),
    }


def _carried_scores(model, bundle, text: Iterable[list[str]], batch_size: int) -> Iterator[tuple]:
    """(sentences, words, forward, backward) of one stretch of running text after the other."""
    features, vocabulary = bundle.features, Vocabulary(bundle.vocab)
    batch_size = max(1, min(batch_size, pipeline.LOGITS // (20 * len(vocabulary))))
    streams = elmo.language_model(elmo.Config(**bundle.config), len(vocabulary), streams=batch_size)
    train.copy_weights(model, streams)
    run = train.scorer(streams)
    for batch in pipeline.stretches_of(text, batch_size, 20):
        inputs, targets, weights = stream_batch(features, vocabulary, batch)
        masks = {name: weight > 0 for name, weight in weights.items()}
        sums = run(inputs, targets, masks)
        real = masks["forward_logits"]
        ends = (targets["forward_logits"] == 1)[real].sum()
        yield ends, real.sum(), -sums["forward_logits"].sum(), -sums["backward_logits"].sum()


def _score_pretrainer(model: keras.Model, bundle: Bundle, text: list, batch_size: int) -> dict:
    features = bundle.features
    assert isinstance(features, WordPieceFeatures)
    pieces = [features.wordpiece.ids_batch(document) for document in text]
    items = list(next_sentence_rows(pieces, features, np.random.default_rng(0)))

    def collate(rows, rng):
        return pretrainer_batch(features, rows, rng)

    found = train.compile(model).evaluate(pipeline.dataset(items, collate, batch_size), verbose=0, return_dict=True)
    return {
        "pairs": len(items),
        "mlm_accuracy": found["mlm_logits_accuracy"],
        "nsp_accuracy": found["nsp_logits_accuracy"],
    }


def score_sentences(
    folder: str | Path,
    sentences: Iterable[str],
    batch_size: int = 32,
) -> Iterator[dict]:
    """What a biLM makes of each sentence, by the full softmax, whole and by itself.

    Args:
        folder: a language model.
        sentences: read as they are needed; those without a word are left out.
        batch_size: sentences computed together; no figure depends on it.

    Returns: for each, in order, {"text", "words": n, "forward" and "backward": the log-probability of w1 .. wn, </S>
        and of <S>, w1 .. wn, in nats; "perplexity": exp of their mean over both directions and n+1 words, negative}.

    Raises:
        ValueError: the folder is no language model.
    """
    model, bundle = train.load(folder)
    if bundle.task != "language_model":
        raise ValueError(f"{folder}: its task is {bundle.task!r}; sentences are scored by an ELMo language model")
    return _sentence_scores(model, bundle, sentences, batch_size)


def _sentence_scores(model, bundle, sentences, batch_size) -> Iterator[dict]:
    features, vocabulary = bundle.features, Vocabulary(bundle.vocab)
    run = train.scorer(model)
    source = iter(sentences)
    while pool := list(itertools.islice(source, pipeline.POOL * batch_size)):
        found: dict[int, dict] = {}
        for batch in pipeline.like_lengths(pool, batch_size, len(vocabulary)):
            inputs, targets, weights = language_model_batch(features, vocabulary, [row for _, row in batch])
            sums = run(inputs, targets, {name: weight > 0 for name, weight in weights.items()})
            for index, (number, row) in enumerate(batch):
                forward, backward = (-float(sums[f"{way}_logits"][index]) for way in ("forward", "backward"))
                found[number] = {
                    "text": pool[number],
                    "words": len(row),
                    "forward": forward,
                    "backward": backward,
                    "perplexity": float(np.exp(-(forward + backward) / (2 * len(row) + 2))),
                }
        yield from (found[number] for number in sorted(found))


def embed(
    folder: str | Path,
    sentences: Iterable[str],
    out: str | Path,
    layers: str = "all",
    words: bool = False,
    carry_state: bool = False,
    batch_size: int = 32,
    cache: str | Path | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> int:
    """Writes the vectors of each sentence to a .npz or .hdf5 file, under "0", "1", ..., in the order of the input.

    Args:
        folder: a model of any task.
        sentences: one string each; read as they are needed.
        out: FILE.npz or FILE.hdf5, the layout of the published ELMo dumps.
        layers: "all": (N, T, D); "mix": their scalar mix (trained, in a model that has one; else the mean), (T, D);
            "top": (T, D); "mean": the mean of the mix over the tokens, (D,).
        words: the sentences are split already, at spaces; BERT then gives one vector per word, that of its first piece,
            and otherwise one per piece, without [CLS] and [SEP].
        carry_state: ELMo: begin each sentence where the one `batch_size` before it ended, as bilm-tf and AllenNLP do.
            Sentence k of a batch belongs to row k; a shorter batch continues the first rows.
        batch_size: sentences computed together; without `carry_state` no figure depends on it.
        cache: ELMo over characters: a file of words, one a line, whose token vectors are computed once and kept.
        progress: called with the number of sentences written.

    Returns: the number of sentences.

    Raises:
        ValueError: another file suffix, another choice of `layers`, a sentence longer than a BERT reads, or an option
            that the model does not have.
    """
    if layers not in ("all", "mix", "top", "mean"):
        raise ValueError(f"layers={layers!r}: choose all, mix, top or mean")
    out = Path(out)
    if out.suffix not in (".npz", ".hdf5", ".h5"):
        raise ValueError(f"{out}: the name must end in .npz or .hdf5")
    model, bundle = train.load(folder)
    features, run = _layers(model, bundle, carry_state, cache)
    weights, gamma = None, 1.0
    if "scalar_mix" in [layer.name for layer in model.layers]:
        w, gamma = model.get_layer("scalar_mix").get_weights()
        weights = softmax(w).astype(np.float32)

    def vectors(batch: list[str]) -> Iterator[np.ndarray]:
        rows = features.encode([sentence.split() for sentence in batch] if words else batch)
        for sentence, row in zip(batch, rows, strict=True):
            if row.truncated:
                raise ValueError(f"longer than the {bundle.max_length} tokens this model reads: {sentence[:60]!r} ...")
        found = run(rows)  # (N, B, T, D)
        for index, row in enumerate(rows):
            if bundle.family == "bert":
                kept = [start for start in row.starts or range(1, len(row) - 1) if start is not None]
                if words and len(kept) < len(row.starts or []):
                    raise ValueError(
                        f"a word without pieces, or beyond {bundle.max_length} pieces: {batch[index][:60]!r}"
                    )
            else:
                kept = range(len(row))
            one = found[:, index, list(kept)]  # (N, T, D)
            if layers == "top":
                one = one[-1]
            elif layers in ("mix", "mean"):
                one = one.mean(0) if weights is None else gamma * np.tensordot(weights, one, 1)
                if layers == "mean":
                    one = one.mean(0) if len(kept) else np.zeros(one.shape[-1])
            yield one.astype(np.float32)

    count = 0
    with written_whole(out) as path, _array_writer(path) as write:
        batch: list[str] = []
        for sentence in _and_end(sentences):
            if sentence is not None:
                batch.append(sentence)
            if batch and (sentence is None or len(batch) == batch_size):
                for array in vectors(batch):
                    write(str(count), array)
                    count += 1
                progress(count)
                batch = []
    return count


def _layers(model: keras.Model, bundle: Bundle, carry_state: bool, cache: str | Path | None):
    """A model's features, and a function from rows to its encoder's layers, (N, B, T, D)."""
    features, known, table = bundle.features, {}, None
    if bundle.family == "bert" and (carry_state or cache is not None):
        raise ValueError("a BERT carries no state and reads no characters: leave out carry_state and cache")
    if bundle.family == "elmo":
        features = replace(bundle, max_length=sys.maxsize).features  # it has no limit of positions
    if cache is not None:
        if not isinstance(features, CharacterFeatures):
            raise ValueError(f"cache {cache}: a model over words reads a table already; leave it out")
        listed = dict.fromkeys([*Characters.MARKERS, *read_vocab(cache)])
        known = {word: number for number, word in enumerate(listed, 1)}
        table = np.pad(elmo.token_vectors(model, features, known), ((1, 0), (0, 0)))
    encoder = model
    if carry_state or known:
        encoder = elmo.encoder(elmo.Config(**bundle.config), carry_state=carry_state, cache=len(known))
    elif bundle.task != "embed":
        encoder = train.build(replace(bundle, task="embed"))
    if encoder is not model:
        train.copy_weights(model, encoder, skip=["token_cache"])
    if table is not None:
        encoder.get_layer("token_cache").set_weights([table])
    call = train.runner(encoder)
    state = np.zeros((0, encoder.input["state"].shape[-1] if carry_state else 0), np.float32)

    def run(rows: Sequence[Row]) -> np.ndarray:
        nonlocal state
        batch, size = features.collate(rows), len(rows)
        if known:
            word_ids = np.zeros(batch["mask"].shape, np.int32)
            word_ids[batch["mask"].astype(bool)] = [known.get(word, 0) for row in rows for word in row.tokens]
            batch["word_ids"] = word_ids
        if carry_state:
            state = np.pad(state, ((0, max(0, size - len(state))), (0, 0)))  # more rows begin with zeros
            batch["state"] = state[:size].copy()
        found = call(batch)
        if carry_state:
            state[:size] = found["state"]  # the other rows wait
        return np.stack([*found["layers"]])

    return features, run


def _and_end(items: Iterable) -> Iterator:
    yield from items
    yield None


class _array_writer:
    """Writes arrays one by one into a .npz or an hdf5 file, whichever the name says."""

    def __init__(self, path: Path):
        if path.suffix == ".npz":
            self._file = zipfile.ZipFile(path, "w", allowZip64=True)
        else:
            import h5py

            self._file = h5py.File(path, "w")

    def __enter__(self) -> Callable[[str, np.ndarray], None]:
        return self._write

    def __exit__(self, *_):
        self._file.close()

    def _write(self, name: str, array: np.ndarray) -> None:
        if isinstance(self._file, zipfile.ZipFile):
            with self._file.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array))
        else:
            self._file[name] = array
