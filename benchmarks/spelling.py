"""Spelling to phonemes: a decoder with attention over a biLSTM of characters, greedy and with beams.

    python benchmarks/spelling.py --train train.tsv --dev dev.tsv --minutes 30 --out g2p
    python benchmarks/spelling.py --train train.tsv --dev dev.tsv --minutes 240 --out big --units 256 --layers 2

The files have the columns text and target, one row a pronunciation. Prints WER, the fraction of words whose answer is
none of their pronunciations, and PER, edits to the nearest one over its phonemes. The folder keeps the weights that did
best on dev; an interrupted run goes on, and a finished one is scored alone.
"""

import argparse
import csv
import os
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from keras_ctxrep.text import beam
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.scores import error_rate
from keras_ctxrep.text.units import padded

BEGIN, END = 0, 1  # rows of the table of phonemes, before those of the phonemes
LONGEST = 40  # phonemes of an answer; the longest of CMUdict has 28


def read(path: str) -> list[tuple[str, list[str]]]:
    with open(path, encoding="utf-8") as file:
        return [(row["text"], row["target"].split()) for row in csv.DictReader(file, delimiter="\t")]


def batches(rows: list, features: StaticFeatures, ids: dict[str, int], size: int, seed: int, start: int):
    """Endless batches from number `start` on, of spellings of like lengths: inputs, targets and weights."""
    number = 0
    for epoch in range(1 << 30):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(rows))
        chunks = [order[i : i + 64 * size] for i in range(0, len(order), 64 * size)]
        parts = []
        for chunk in chunks:
            by_length = sorted(chunk.tolist(), key=lambda i: (len(rows[i][0]), len(rows[i][1])))
            parts += [by_length[i : i + size] for i in range(0, len(by_length), size)]
        for index in rng.permutation(len(parts)):
            number += 1
            if number <= start:
                continue
            part = [rows[i] for i in parts[index]]
            targets = [[ids[phoneme] for phoneme in phonemes] for _, phonemes in part]
            read = padded([[BEGIN, *row] for row in targets])
            labels = padded([[*row, END] for row in targets])["token_ids"]
            inputs = features([tuple(text) for text, _ in part])
            inputs |= {"target_ids": read["token_ids"], "target_mask": read["mask"]}
            mask = read["mask"].astype(np.float32)
            yield inputs, {"logits": labels}, {"logits": mask * (mask.size / mask.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE")
    parser.add_argument("--dev", required=True, metavar="FILE")
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--decoder", choices=("recurrent", "transformer"), default="recurrent")
    parser.add_argument("--units", type=int, default=128, help="of each direction of the biLSTM; the decoder has twice")
    parser.add_argument("--layers", type=int, default=1, help="of the biLSTM, and of the decoder")
    parser.add_argument("--score", default="additive", help="of the recurrent decoder's attention")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6, help="of the length penalty")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.losses import CrossEntropy
    from keras_ctxrep.models import decoder, stack, static
    from keras_ctxrep.models.model import Model
    from keras_ctxrep.training.fit import fit

    keras.utils.set_random_seed(1)
    rows, dev = read(args.train), defaultdict(list)
    for text, phonemes in read(args.dev):
        dev[text].append(phonemes)
    texts, references = [*dev], [*dev.values()]
    features = StaticFeatures(["<UNK>", *sorted({char for text, _ in rows for char in text})])
    phonemes = ["<S>", "</S>", *sorted({phoneme for _, target in rows for phoneme in target})]
    ids = {phoneme: index for index, phoneme in enumerate(phonemes)}

    characters = static.Config(words=1 + len({char for text, _ in rows for char in text}), width=args.units)
    encoder = stack.recurrent(static.encoder(characters), args.units, args.layers, dropout=args.dropout)
    sizes = {"units": 2 * args.units, "score": args.score}
    if args.decoder == "transformer":
        sizes = {"width": 2 * args.units, "context": LONGEST}
    make = getattr(decoder, args.decoder)
    models = make(encoder, len(phonemes), layers=args.layers, dropout=args.dropout, **sizes)
    model = Model(models.model.input, {"logits": models.model.output["logits"]})
    print(f"{len(rows):,} rows, {len(texts):,} words to answer, {model.count_params():,} weights", flush=True)
    start, step = keras_engine.runner(models.start), keras_engine.runner(models.step)

    def answers(beams: int) -> list[list[str]]:
        given = []
        for begin in range(0, len(texts), 256):
            inputs = features([tuple(text) for text in texts[begin : begin + 256]])
            options = {"begin": BEGIN, "end": END, "max_length": LONGEST, "never": [BEGIN]}
            found = beam.generate(start, step, inputs, beams=beams, alpha=args.alpha, **options)
            given += [[phonemes[token] for token in hypotheses[0].tokens] for hypotheses in found]
        return given

    def figures(beams: int) -> dict[str, float]:
        given = answers(beams)
        wrong = [answer not in several for answer, several in zip(given, references, strict=True)]
        return {"wer": 100 * float(np.mean(wrong)), "per": 100 * error_rate(references, given)}

    def data(number: int) -> tf.data.Dataset:
        inputs = dict.fromkeys(model.input, tf.TensorSpec((None, None), tf.int32))
        labels = {"logits": tf.TensorSpec((None, None), tf.int32)}
        weights = {"logits": tf.TensorSpec((None, None), tf.float32)}

        def endless():
            return batches(rows, features, ids, args.batch_size, 1, number)

        return tf.data.Dataset.from_generator(endless, output_signature=(inputs, labels, weights)).prefetch(8)

    def evaluate(trained: keras.Model) -> dict[str, float]:
        greedy = figures(1)
        return {"right": 100 - greedy["wer"], **greedy}  # the larger the better

    settings = {
        "minutes": args.minutes, "learning_rate": args.learning_rate, "evaluations": args.evaluations,
        "folder": args.out, "identity": str(vars(args)),
    }  # fmt: skip
    kept = Path(args.out, "decoder.weights.h5")
    if not kept.exists():
        loss = {"logits": CrossEntropy(args.label_smoothing)}
        fit(model, data, evaluate, None, loss, report=lambda row: print(row, flush=True), **settings)
        Model(model.input, model.output).save_weights(kept)  # without the optimizer's state
    Model(model.input, model.output).load_weights(kept)
    for beams in (1, args.beams):
        begun = time.perf_counter()
        result = figures(beams)
        speed = len(texts) / (time.perf_counter() - begun)
        print(f"beams {beams}: WER {result['wer']:.1f}, PER {result['per']:.2f}, {speed:,.0f} words/s", flush=True)


if __name__ == "__main__":
    main()
