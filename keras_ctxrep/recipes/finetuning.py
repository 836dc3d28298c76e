"""Fine-tuning an encoder for a task, from files of labelled examples to a model folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from keras_ctxrep import pipeline, train
from keras_ctxrep.models import heads
from keras_ctxrep.recipes.pretraining import Report, check_batch_size, run_identity
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.examples import Example, read_examples


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
    """Fine-tunes an encoder to classify texts, or pairs of texts, and writes a model folder.

    Args:
        data, dev: labelled examples, or .tsv or .jsonl files of them; labels are those of `data`. All of them are
            single texts, or all are pairs, which BERT reads.
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
    pairs = check_examples(train_set)
    labels = sorted({example.label or "" for example in train_set})
    name = data if isinstance(data, str | Path) else f"{len(train_set)} examples"
    if len(labels) < 2:
        raise ValueError(f"{name}: only the label {labels[0]!r}; a classifier needs at least two")
    check_examples(dev_set, labels, pairs)
    if Path(out).resolve() == Path(encoder).resolve():
        raise ValueError(f"{out}: the encoder's own folder; choose another one to write to")
    Path(out).mkdir(parents=True, exist_ok=True)
    with train.scope(precision) as strategy:
        check_batch_size(batch_size, strategy)
        pretrained, bundle = train.load_encoder(encoder)
        if pairs and bundle.family != "bert":
            raise ValueError(f"{name}: pairs of texts, and {encoder} reads one text; a BERT reads pairs")
        rates = [name for name in bundle.config if name.endswith("dropout")]
        bundle = replace(bundle, config=bundle.config | dict.fromkeys(rates, 0.0 if freeze else dropout))
        model = train.build(bundle)
        if not from_scratch:
            train.copy_weights(pretrained, model)
        model.trainable = not freeze
        head = {"mix": bundle.family == "elmo" if mix is None else mix, "dropout": dropout}
        model = heads.classify(model, len(labels), **head)
    if (max_length or 0) > bundle.config.get("max_positions", float("inf")):
        raise ValueError(f"max_length={max_length}: this encoder has {bundle.config['max_positions']} positions")
    bundle = replace(
        bundle,
        task="classify",
        labels=tuple(labels),
        head=head,
        pairs=pairs,
        max_length=max_length or bundle.max_length,
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
        identity=run_identity(
            bundle, train_set, dev_set, learning_rate, batch_size, seed, freeze, from_scratch, precision, str(encoder)
        ),
        tensorboard=tensorboard,
        report=report,
    )
    train.save(out, model, bundle)
    return history


def check_examples(examples: Sequence[Example], labels: Sequence[str] | None = None, pairs: bool | None = None) -> bool:
    """Refuses what a classifier cannot learn or be scored on, by file and line; says whether it reads pairs.

    Args:
        labels: those it knows; None: any.
        pairs: whether it reads pairs; None: if the first example is one.
    """
    for example in examples:
        place = example.place or repr(example.text[:60])
        pairs = example.pair is not None if pairs is None else pairs
        if example.label is None:
            raise ValueError(f"{place}: no label")
        if pairs != (example.pair is not None):
            found, needed = ("one text", "a pair of texts") if pairs else ("a pair of texts", "one text")
            raise ValueError(f"{place}: {found}; this classifier reads {needed}")
        if labels is not None and example.label not in labels:
            raise ValueError(f"{place}: label {example.label!r} is not one of {', '.join(labels)}")
    return bool(pairs)


def _labelled(bundle: Bundle, examples: Sequence[Example], batch_size: int, seed, repeat: bool):
    numbers = {label: index for index, label in enumerate(bundle.labels)}
    features = bundle.features
    rows = features.encode([example.text for example in examples], [example.pair for example in examples])
    labelled = [(row, numbers[example.label or ""]) for row, example in zip(rows, examples, strict=True)]

    def collate(found, rng):
        return features.collate([row for row, _ in found]), {"logits": np.array([y for _, y in found], np.int32)}

    def length(one) -> int:
        return len(one[0])

    return pipeline.dataset(labelled, collate, batch_size, length, seed, repeat)
