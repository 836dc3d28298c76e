"""Teaches the small BERT that comes with the package from all-MiniLM-L6-v2, in some minutes on one GPU, with JAX.

    python benchmarks/distilling_jax.py prepare --teacher MINILM --student bert_3_384_12/books_wiki_en \\
        --corpus books.txt wiki.txt --valid wiki_valid.txt --out prepared
    KERAS_BACKEND=jax python benchmarks/distilling_jax.py train prepared --minutes 8 --out trained
    python benchmarks/distilling_jax.py finish trained --student bert_3_384_12/books_wiki_en --out bert

`ctxrep distill` does the same kind of training with TensorFlow, of any teacher and text. Here the whole corpus is on
the GPU, as numbers of words, and the teacher reads every batch anew: 20 million words are few enough to be read dozens
of times in minutes. `prepare` and `finish` need TensorFlow; `train` needs JAX, and no TensorFlow.

Each step has two batches: runs of words as one text, half of them a sentence; and pairs of runs, of which the second
follows the first, comes from elsewhere, or overlaps the first. Losses, as in `ctxrep distill`: 1 - cosine of the top
layer's vectors of words, [CLS] and [SEP]; of single texts that of their mean vectors, and 10 times the squared
differences of the cosines between the texts; for the first 70% of the time, with a weight that falls to zero, 1 -
cosine of the layers below. AdamW, linear warm-up and decay by the clock.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LONGEST = 6  # pieces of a word; a word of more counts as unknown
PART = 15e6  # bytes of a file of weights
SHAPES = {"texts": (36, 48), "pairs": (96, 128)}  # words, pieces
SHARES = {"texts": 1, "pairs": 2}  # rows of a batch: the batch size, divided by
NAMES = ("words", "pairs", "hidden", "texts")  # of the parts of the loss
CHUNK = 20  # steps between two looks at the clock


# ------------------------------------------------------------------------------------------------------------- prepare


def prepare(args: argparse.Namespace) -> None:
    """Writes both models, the words of both vocabularies, and the texts as numbers of words."""
    from keras_ctxrep import saving, zoo
    from keras_ctxrep.text.corpus import lines

    models = {name: saving.load_encoder(zoo.find(getattr(args, name))) for name in ("teacher", "student")}
    splits: dict[str, Any] = {name: model.bundle.features for name, model in models.items()}
    table = Words(models["teacher"].bundle.vocab, models["student"].bundle.vocab, splits["student"].wordpiece)
    args.out.mkdir(parents=True, exist_ok=True)
    for part, files in {"train": args.corpus, "valid": [args.valid]}.items():
        words, starts = table.read(
            [text for file in files for _, text in lines(file) if text], splits["teacher"].wordpiece
        )
        np.savez_compressed(
            args.out / f"{part}.npz", low=(words & 0xFFFF).astype(np.uint16), high=words >> 16, starts=starts
        )
        print(f"{part}: {len(words):,} words and marks, {len(starts) - 1:,} sentences")
    np.savez_compressed(args.out / "words.npz", **table.arrays())
    for name, (model, bundle) in models.items():
        weights: dict[str, Any] = {
            f"{number:03}": array.astype(np.float16) for number, array in enumerate(model.get_weights())
        }
        np.savez(args.out / f"{name}.npz", config=np.array(json.dumps(bundle.config)), **weights)


class Words:
    """Kinds of words, by the teacher's pieces: a word of one piece has its number, others follow in their order."""

    def __init__(self, teacher: Sequence[str], student: Sequence[str], split):
        self.teacher, self.split = list(teacher), split
        self.own = {piece: number for number, piece in enumerate(student)}
        self.unknown = self.teacher.index("[UNK]")
        self.kinds: dict[tuple[int, ...], int] = {(number,): number for number in range(len(self.teacher))}

    def read(self, texts: Sequence[str], wordpiece) -> tuple[np.ndarray, np.ndarray]:
        """The kind of each word, and where each text begins, and the end."""
        inner = np.array([piece.startswith("##") for piece in self.teacher])
        found, lengths = [], []
        for begin in range(0, len(texts), 10_000):
            for ids in wordpiece.ids_batch(texts[begin : begin + 10_000]):
                ids = np.asarray(ids, np.int32)
                heads = np.flatnonzero(~inner[ids])
                sizes = np.diff(heads, append=len(ids))
                kinds = ids[heads]
                for where in np.flatnonzero(sizes > 1):
                    key = tuple(ids[heads[where] : heads[where] + sizes[where]].tolist())
                    kinds[where] = self.kinds.setdefault(key, len(self.kinds))
                found.append(kinds)
                lengths.append(len(kinds))
        return np.concatenate(found), np.cumsum([0, *lengths])

    def arrays(self) -> dict[str, Any]:
        """The pieces of each kind in both vocabularies, (kinds, LONGEST), and how many they are."""
        rows = {"teacher": [], "student": []}
        for key in self.kinds:
            text = "".join(
                self.teacher[piece].removeprefix("##") if place else self.teacher[piece]
                for place, piece in enumerate(key)
            )
            own = [self.own[text]] if text in self.own else self._pieces(text)
            fits = len(key) <= LONGEST and len(own) <= LONGEST
            rows["teacher"].append(key if fits else (self.unknown,))
            rows["student"].append(own if fits else [self.own["[UNK]"]])
        arrays: dict[str, Any] = {}
        for name, pieces in rows.items():
            table = np.zeros((len(pieces), LONGEST), np.uint16)
            for row, numbers in zip(table, pieces, strict=True):
                row[: len(numbers)] = numbers
            arrays |= {f"{name}_pieces": table, f"{name}_counts": np.array([*map(len, pieces)], np.uint8)}
        return arrays | {"special": np.array([self.teacher.index(mark) for mark in ("[CLS]", "[SEP]")])}

    def _pieces(self, text: str) -> list[int]:
        return self.split.ids_batch([text])[0] or [self.own["[UNK]"]]


# --------------------------------------------------------------------------------------------------------------- train


def train(args: argparse.Namespace) -> None:
    """Trains by the clock and writes the student's weights in parts."""
    import jax
    import keras

    if keras.backend.backend() != "jax":
        raise SystemExit(f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=jax")
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(0)
    folder, out = Path(args.folder), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    teacher, student = load(folder / "teacher.npz"), load(args.student or folder / "student.npz")
    optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    optimizer.build(student.trainable_variables)
    rate = [variable.name for variable in optimizer.variables].index("learning_rate")
    fixed = [variable.value for variable in student.non_trainable_variables]
    taught = [variable.value for variable in teacher.variables]
    corpora, words = {part: texts(folder / f"{part}.npz") for part in ("train", "valid")}, tables(folder)
    loss = objective(teacher, student, args.batch_size, words)

    def step(index, carry):
        weights, state, teacher, corpus, key, hidden, sums = carry
        (_, parts), gradients = jax.value_and_grad(loss, has_aux=True)(
            weights, fixed, teacher, corpus, jax.random.fold_in(key, index), hidden
        )
        weights, state = optimizer.stateless_apply(state, gradients, weights)
        return weights, state, teacher, corpus, key, hidden, {name: sums[name] + parts[name] for name in sums}

    def chunk(weights, state, teacher, corpus, key, hidden, speed):
        state = [speed if index == rate else value for index, value in enumerate(state)]
        zero = dict.fromkeys(NAMES, jax.numpy.zeros(()))
        carry = weights, state, teacher, corpus, key, hidden, zero
        weights, state, *_, sums = jax.lax.fori_loop(0, CHUNK, step, carry)
        return weights, state, {name: value / CHUNK for name, value in sums.items()}

    run = jax.jit(chunk, donate_argnums=(0, 1))
    score = jax.jit(lambda weights, teacher, corpus, key: loss(weights, fixed, teacher, corpus, key, 1.0)[1])
    weights = [variable.value for variable in student.trainable_variables]
    state = [variable.value for variable in optimizer.variables]
    key, begun, shown, number = jax.random.key(args.seed), None, 0.0, 0
    per_step = sum(args.batch_size // share * SHAPES[name][1] for name, share in SHARES.items())
    while True:
        progress = 0.0 if begun is None else (time.monotonic() - begun) / (60 * args.minutes)
        if progress >= 1:
            break
        speed = args.learning_rate * min(1.0, number / 400 + 0.01) * (1 - progress)
        hidden = 0.5 * max(0.0, 1 - progress / 0.7)
        weights, state, sums = run(
            weights, state, taught, corpora["train"], jax.random.fold_in(key, number), hidden, speed
        )
        number += CHUNK
        jax.block_until_ready(sums)
        if begun is None:  # compiled
            begun = time.monotonic()
        elif time.monotonic() - shown > args.every:
            shown = time.monotonic()
            held = [score(weights, taught, corpora["valid"], jax.random.key(1000 + i)) for i in range(4)]
            figures = {name: float(np.mean([float(entry[name]) for entry in held])) for name in NAMES}
            rate_seen = per_step * (number - CHUNK) / (shown - begun)
            print(
                f"{number:,} steps, {shown - begun:.0f} s, {rate_seen:,.0f} positions/s, "
                + ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
                + f", train words {float(sums['words']):.4f}",
                flush=True,
            )
            save(out, student, weights)
    save(out, student, weights)
    print(f"{number:,} steps of {per_step:,} positions")


def objective(teacher, student, batch_size: int, tables: dict):
    """The loss of a step.

    Its arguments: the student's weights, trained and not; the teacher's; the corpus; a random key; and the weight of
    the layers below the top. It returns the loss and its parts.
    """
    import jax
    import jax.numpy as jnp

    from keras_ctxrep.losses import TextDistillation

    of_texts = TextDistillation()
    every = teacher_layers(len(teacher.output["layers"]) - 1, len(student.output["layers"]) - 1)

    def loss(weights, fixed, taught, corpus, key, hidden):
        parts, total = {}, 0.0
        for kind, share in SHARES.items():
            key, own = jax.random.split(key)
            rows = batch(own, corpus, batch_size // share, *SHAPES[kind], pairs=kind == "pairs", tables=tables)
            outputs = teacher.stateless_call(taught, [], rows["teacher"]["inputs"])[0]
            targets = [jax.lax.stop_gradient(outputs["layers"][level]) for level in every]
            outputs = student.stateless_call(weights, fixed, rows["student"]["inputs"], training=True)[0]
            layers = outputs["layers"][1:]
            real = rows["real"]
            distances = []
            for target, layer in zip(targets, layers, strict=True):
                cosine = jnp.sum(unit(means(rows["teacher"], target)) * unit(means(rows["student"], layer)), -1)
                distances.append(jnp.sum((1 - cosine) * real) / jnp.sum(real))
            parts["words" if kind == "texts" else "pairs"] = distances[-1]
            parts["hidden"] = parts.get("hidden", 0.0) + sum(distances[:-1]) / max(1, len(distances) - 1) / len(SHARES)
            total += distances[-1]
            if kind == "texts":
                sides = ((targets[-1], "teacher"), (layers[-1], "student"))
                parts["texts"] = of_texts(*(pooled(vectors, rows[name]["inputs"]["mask"]) for vectors, name in sides))
                total += parts["texts"]
        return total + hidden * parts["hidden"], parts

    return loss


def teacher_layers(teacher: int, student: int) -> list[int]:
    """The teacher's layer for each of the student's, 0 being the embeddings.

    >>> teacher_layers(6, 3)
    [2, 4, 6]
    """
    return [round((index + 1) * teacher / student) for index in range(student)]


def batch(key, corpus: dict, rows: int, words: int, pieces: int, pairs: bool, tables: dict) -> dict:
    """Texts or pairs as the inputs of both models, and the words that both have whole."""
    import jax
    import jax.numpy as jnp

    where, other, first, second, chosen, shift = jax.random.split(key, 6)
    starts, text = corpus["starts"], corpus["words"]
    count, room = len(starts) - 1, words - 3 if pairs else words - 2
    sentence = jax.random.randint(where, (rows,), 0, count)
    begin = starts[sentence]
    if pairs:
        lengths = jax.random.randint(first, (rows,), 4, 49)
        seconds = 4 + (jax.random.uniform(second, (rows,)) * (room - lengths - 3)).astype("int32")
        away = starts[jax.random.randint(other, (rows,), 0, count)]
        near = begin + jax.random.randint(shift, (rows,), -6, 7)
        draw = jax.random.uniform(chosen, (rows,))
        begin_2 = jnp.where(draw < 0.5, begin + lengths, jnp.where(draw < 0.75, away, near))
    else:
        alone = jax.random.uniform(chosen, (rows,)) < 0.5
        lengths = jnp.where(alone, jnp.minimum(starts[sentence + 1] - begin, room), room)
        seconds, begin_2 = 0 * lengths, begin
    place = jnp.arange(words)[None]
    lengths, seconds = lengths[:, None], seconds[:, None]
    split = lengths + 1  # the first [SEP]
    end = jnp.where(seconds > 0, split + seconds + 1, split)
    source = jnp.where(place <= split, begin[:, None] + place - 1, begin_2[:, None] + place - split - 1)
    kinds = text[jnp.clip(source, 0, len(text) - 1)]
    kinds = jnp.where((place == split) | (place == end), tables["special"][1], kinds)
    kinds = jnp.where(place == 0, tables["special"][0], kinds)
    there, segment = place <= end, place > split
    result, real = {}, there
    for name in ("teacher", "student"):
        sizes = jnp.where(there, tables[f"{name}_counts"][kinds].astype("int32"), 0)  # (B, W)
        ends = jnp.cumsum(sizes, 1)
        token = jnp.arange(pieces)
        word = jnp.sum(ends[:, None, :] <= token[None, :, None], -1)  # (B, T): the word of each piece
        inside = word < words
        word = jnp.minimum(word, words - 1)
        of_word = jnp.take_along_axis
        offset = token - of_word(ends - sizes, word, 1)
        ids = tables[f"{name}_pieces"][of_word(kinds, word, 1), jnp.clip(offset, 0, LONGEST - 1)].astype("int32")
        mask = inside.astype("int32")
        inputs = {"token_ids": ids * mask, "segment_ids": of_word(segment, word, 1) * mask, "mask": mask}
        share = (word[:, None, :] == place[:, :, None]) & inside[:, None, :]  # (B, W, T)
        result[name] = {"inputs": inputs, "share": share, "sizes": jnp.maximum(sizes, 1)}
        real &= ends <= pieces
    return result | {"real": real & there}


def means(rows: dict, vectors):
    """The mean vectors of words, float32 (B, W, D)."""
    import jax.numpy as jnp

    sums = jnp.einsum("bwt,btd->bwd", rows["share"].astype(vectors.dtype), vectors, preferred_element_type="float32")
    return sums / rows["sizes"][..., None]


def pooled(vectors, mask):
    return (vectors.astype("float32") * mask[..., None]).sum(1)


def unit(vectors):
    import jax.numpy as jnp

    return vectors / jnp.sqrt(jnp.sum(jnp.square(vectors), -1, keepdims=True) + 1e-6)  # finite gradient at zero


def load(path: Path):
    """An encoder without dropout, with its weights."""
    from keras_ctxrep.models import bert

    with np.load(path, allow_pickle=False) as arrays:
        config = json.loads(str(arrays["config"])) | {"dropout": 0.0, "attention_dropout": 0.0}
        model = bert.encoder(bert.Config(**config))
        model.set_weights([arrays[name].astype(np.float32) for name in sorted(arrays) if name != "config"])
    return model


def texts(path: Path) -> dict:
    import jax.numpy as jnp

    with np.load(path, allow_pickle=False) as arrays:
        words = arrays["low"].astype(np.int32) + (arrays["high"].astype(np.int32) << 16)
        return {"words": jnp.asarray(words), "starts": jnp.asarray(arrays["starts"].astype(np.int32))}


def tables(folder: Path) -> dict:
    import jax.numpy as jnp

    with np.load(folder / "words.npz", allow_pickle=False) as arrays:
        return {name: jnp.asarray(arrays[name].astype(np.int32)) for name in arrays}


def save(out: Path, student, weights: Iterable) -> None:
    """The weights in float16, in files of at most `PART` bytes."""
    paths = [variable.path for variable in student.trainable_variables]
    parts, size = [{}], 0.0
    for path, array in zip(paths, weights, strict=True):
        array = np.asarray(array, np.float16)
        assert np.isfinite(array).all(), path
        if parts[-1] and size + array.nbytes > PART:
            parts.append({})
            size = 0.0
        parts[-1][path.replace("/", "|")] = array
        size += array.nbytes
    for number, part in enumerate(parts):
        np.savez(out / f"part_{number}.npz", **part)


# -------------------------------------------------------------------------------------------------------------- finish


def finish(args: argparse.Namespace) -> None:
    """Puts trained weights in a copy of the student's folder."""
    from keras_ctxrep import saving, zoo

    model, bundle = saving.load(zoo.find(args.student))
    variables = {variable.path.replace("/", "|"): variable for variable in model.variables}
    found = set()
    for path in sorted(Path(args.folder).glob("part_*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays:
                variables[name].assign(arrays[name].astype(np.float32))
                found.add(name)
    if missing := set(variables) - found:
        print("kept as they were:", ", ".join(sorted(missing)))
    saving.save(args.out, model, bundle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.add_argument("--teacher", required=True, metavar="FOLDER")
    first.add_argument("--student", required=True, metavar="FOLDER")
    first.add_argument("--corpus", nargs="+", required=True, metavar="FILE")
    first.add_argument("--valid", required=True, metavar="FILE")
    first.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    first.set_defaults(run=prepare)
    second = commands.add_parser("train")
    second.add_argument("folder")
    second.add_argument("--student", metavar="FILE", help="of `prepare` (default: that in the folder)")
    second.add_argument("--minutes", type=float, default=8, help="after compilation")
    second.add_argument("--batch-size", type=int, default=512, help="single texts of a step; half as many pairs")
    second.add_argument("--learning-rate", type=float, default=6e-4)
    second.add_argument("--every", type=float, default=30, help="seconds between evaluations")
    second.add_argument("--seed", type=int, default=0)
    second.add_argument("--out", required=True, metavar="FOLDER")
    second.set_defaults(run=train)
    third = commands.add_parser("finish")
    third.add_argument("folder")
    third.add_argument("--student", required=True, metavar="FOLDER")
    third.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    third.set_defaults(run=finish)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    args.run(args)


if __name__ == "__main__":
    main()
