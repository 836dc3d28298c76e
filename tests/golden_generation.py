"""Writes what sampling, the tokens of language models and filling give, for tests of runtimes in other languages.

    python -m tests.golden_generation FOLDER

makes sampling.jsonl and FOLDER/NAME/ for each of four language models in one direction and three masked ones:

* sampling.jsonl: {"logits", "options", "seed", "noise", "left", "ids"}: the noise of the first tokens in step 0, the
  ids that the filters leave, and the ids that are drawn in the steps from 0 on. Seeds are strings of whole numbers.
* NAME/bundle.json and vocab.txt or tokenizer.json: as in a model folder and at the end of a .tflite file.
* NAME/texts.jsonl: {"prompt", "ids", "options", "text"}: the ids of a prompt, and what `Generator` continues it with if
  `step` is the model.
* NAME/fillings.jsonl, of the masked ones: {"text", "masks"}: what `Filler` gives if `mlm_logits` is the model.

The models are arithmetic of whole numbers, which is exact in every language.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from keras_ctxrep.inference.filling import Filler
from keras_ctxrep.inference.generator import Generator
from keras_ctxrep.options import Generation
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pretraining import MARKERS
from keras_ctxrep.text.sampling import filtered, gumbel, sample
from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Subwords
from keras_ctxrep.text.tokens import SpecialTokens, WordPiece, split_words
from tests import golden, golden_text

TEXTS = 150
FILTERS = (
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 7, "temperature": 1.5},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 0.9},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.1, "temperature": 0.8},
)


def step(inputs: dict[str, np.ndarray], vocabulary: int) -> dict[str, np.ndarray]:
    """{"logits", "state"} of a token: a hash of it and of the tokens before it, with many equal logits."""
    outputs = []
    for (token,), state in zip(inputs["token_ids"].astype(int).tolist(), inputs["state"].tolist(), strict=True):
        first, count = (31 * int(state[0]) + 17 * token + 7) % 9973, int(state[1]) + 1
        outputs.append(([(first * (i + 3) + count * i * i) % 101 / 16 for i in range(vocabulary)], [first, count]))
    logits, states = zip(*outputs, strict=True)
    return {"logits": np.array(logits, np.float32)[:, None], "state": np.array(states, np.float32)}


def mlm_logits(batch: dict[str, np.ndarray], vocabulary: int) -> dict[str, np.ndarray]:
    """{"mlm_logits"}: a hash of a row's ids, of how many they are and of the position."""
    sums = (batch["token_ids"] * batch["mask"]).sum(1, dtype=int)
    hashes = (7 * sums + 13 * batch["mask"].sum(1))[:, None] + 29 * batch["mlm_positions"] + batch["segment_ids"].sum()
    logits = hashes[:, :, None] * (np.arange(vocabulary) + 3) % 211 / 16
    return {"mlm_logits": logits.astype(np.float32)}


def _bundles(texts: list[str]) -> dict[str, Bundle]:
    words = sorted({word for text in texts for word in split_words(text) if word})
    characters = sorted({letter for text in texts for letter in text if letter.isprintable()})
    pieces = tuple(WordPiece.train(texts, 1500, alphabet=800).vocab)
    vocabularies = {
        "words": (*MARKERS, *words[::2]),
        "characters": (*MARKERS, *characters[::2]),
        "pieces": pieces,
    }

    def language_model(units: str, bpe: Subwords | None = None) -> Bundle:
        fields = {"vocab": vocabularies[units]}
        if bpe:
            mark = SpecialTokens(*["</s>"] * 5)
            fields = {"vocab": bpe.pieces, "tokenizer": bpe.to_json(), "special_tokens": mark}
        return Bundle("lm", "causal_language_model", {"units": units}, 16, **fields)

    def masked(subwords: Subwords) -> Bundle:
        fields = {"tokenizer": subwords.to_json(), "special_tokens": ROBERTA_TOKENS}
        return Bundle("roberta", "pretrainer", {}, 512, vocab=subwords.pieces, **fields)

    return {units: language_model(units) for units in vocabularies} | {
        "bpe": language_model("pieces", golden_text.bpe()),
        "masked": Bundle("bert", "pretrainer", {}, 512, vocab=pieces),
        "masked_bpe": masked(golden_text.bpe()),
        "masked_unigram": masked(golden_text.variants()["marked"]),
    }


def write(folder: str | Path) -> None:
    """Writes the files; the same ones each time."""
    texts = golden.strings()[:TEXTS]
    Path(folder).mkdir(parents=True, exist_ok=True)
    golden.write_lines(Path(folder) / "sampling.jsonl", _draws())
    for name, bundle in _bundles([*texts, *golden.SENTENCES]).items():
        own = Path(folder) / name
        own.mkdir(exist_ok=True)
        for file, data in bundle.files_as_bytes().items():
            (own / file).write_bytes(data)
        if bundle.generates:
            golden.write_lines(own / "texts.jsonl", _continued(bundle, [*texts, *golden.UNPAIRED, "the fox ", "a\n"]))
        else:
            golden.write_lines(own / "fillings.jsonl", _filled(bundle, texts))


def _draws() -> Iterator[dict]:
    rng = np.random.default_rng(0)
    for number, options in enumerate([*FILTERS, *FILTERS, *FILTERS]):
        logits = (2 * rng.standard_normal(60)).astype(np.float32)
        if number >= 2 * len(FILTERS):
            logits = np.round(logits)  # ties
        never = rng.permutation(60)[:5]
        scores = logits.astype(np.float64)
        scores[never] = -np.inf
        seed = int(rng.integers(-(2**63), 2**63)) if number % 3 else number
        yield {
            "logits": [None if score == -np.inf else score for score in scores.tolist()],
            "options": options,
            "seed": str(seed),
            "noise": gumbel(seed, 0, np.arange(5)).tolist(),
            "left": np.flatnonzero(filtered(scores, **options) > -np.inf).tolist(),
            "ids": [sample(scores, seed, place, **options) for place in range(40)],
        }


def _continued(bundle: Bundle, prompts: Iterable[str]) -> Iterator[dict]:
    features = bundle.tokens
    generator = Generator(bundle, lambda inputs: step(inputs, len(features.vocab)), 2, together=1)
    for number, prompt in enumerate(prompts):
        options = {"length": 1 + number % 12, "seed": 2**40 - number, **FILTERS[number % len(FILTERS)]}
        options |= {"lines": 1} if number % 7 == 0 else {}
        (text,) = generator([prompt], Generation(**options))
        given = options | {"seed": str(options["seed"])}
        yield {"prompt": prompt, "ids": features.prompt(prompt), "options": given, "text": text}


def _filled(bundle: Bundle, texts: list[str]) -> Iterator[dict]:
    filler = Filler(bundle, lambda batch: mlm_logits(batch, len(bundle.vocab)))
    draw = random.Random(0)
    for number, text in enumerate(texts):
        parts = [text[:40].replace("[MASK]", ""), "the", text[40:60]]
        text = "[MASK]".join(parts[: 2 + number % 2]) + "[MASK]" * draw.choice((0, 0, 1, 6))
        (masks,) = filler([text], top=4)
        yield {"text": text, "masks": [[each._asdict() for each in pieces] for pieces in masks]}


if __name__ == "__main__":
    write(sys.argv[1])
