"""Makes 0_1_0/: small random models as keras_ctxrep 0.1.0 writes them, and the answers that it gives with them.

    PYTHONPATH=.:export:tflite python tests/reference/artifacts_0_1_0.py

Made with the code of commit 7855d48 (keras_ctxrep 0.1.0, TensorFlow 2.21.0, Keras 3.15.1, tokenizers 0.23.1, LiteRT
2.3.0) on an x86-64 CPU. Later code has to read these files and is never to write them: to make them again, check out
that commit.

* artifacts.tar.xz, a tenth of the size of what is in it:
    * NAME/: a model folder (bundle.json, vocab.txt, model.weights.h5) for each task and for the options that change how
      a model is built or how its text is prepared;
    * NAME.tflite: of most task models and an encoder, two signatures each;
    * saved_models/NAME/1/: of a classifier, a tagger and an answerer;
* answers.json: {"answers": {NAME: {"texts", "pairs", "keras", "tflite", "saved_model"}}}, the answers of `Predictor`
  (a SavedModel is given the strings among the texts), and {"outputs": {NAME: {"inputs", "outputs"}}} of the models that
  have no answers, with {"score": what `recipes.score` gives on the lines of "text"} of the biLM.
  One change since: the spans of answer_bert by Keras and LiteRT end with whole words, as decoding now has it ("dogs" in
  place of "dog"; the scores are the same). Its SavedModel has the decoding of 0.1.0 in its graph.
"""

import json
import tarfile
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from keras_ctxrep import recipes, saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep.version import __version__
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import quantize, runtime

OUT = Path(__file__).parent / "0_1_0"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("the", "cat", "dog", "sat", "on", "mat", "The", "Cat", "é", "中", "文", ".", ",", "!", "?", "1", "2")
PIECES = (*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, "##é", "##文")
TABLE = ("<UNK>", *WORDS)
PREDICTED = ("<S>", "</S>", *TABLE)
ELMO = elmo.Config(
    cells=8, projection=6, filters=((1, 4), (2, 4), (3, 6)), embedding_dim=4, highways=1, max_characters=12
)
BERT = bert.Config(
    vocabulary_size=len(PIECES), layers=1, width=16, heads=2, intermediate=24, max_positions=48, dropout=0.0
)
STATIC = static.Config(words=len(TABLE), width=8)
ENTITIES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
RNN = {"units": 8, "layers": 1, "dropout": 0.3, "both_ends": True}

BUNDLES = {
    "classify_elmo": Bundle(
        "elmo", "classify", asdict(ELMO), 12, ("cold", "mild", "warm"), head={"mix": True, "dropout": 0.2}
    ),
    "classify_pairs_bert": Bundle(
        "bert", "classify", asdict(BERT), 24, ("no", "yes"), PIECES, lowercase=False, pairs=True
    ),
    "classify_static": Bundle(
        "static", "classify", asdict(replace(STATIC, lowercase=True)), 12, ("one", "two", "three"), TABLE,
        stack={"kind": "cnn", "units": 8, "layers": 2, "window": 3, "dropout": 0.1},
    ),
    "multilabel_elmo_words": Bundle(
        "elmo", "multilabel", asdict(replace(ELMO, words=len(PREDICTED))), 12, ("naïve", "b b", "c"), PREDICTED,
        stack={"kind": "gru", "mix": "top", **RNN},
    ),
    "regress_pairs_bert": Bundle(
        "bert", "regress", asdict(replace(BERT, activation="gelu_tanh", positions="sinusoidal")), 24, (), PIECES,
        strip_accents=False, split_cjk=False, pairs=True,
    ),
    "tag_bert": Bundle("bert", "tag", asdict(BERT), 16, ("NN", "VB", "DT", "."), PIECES, head={"mix": True}),
    "tag_elmo": Bundle(
        "elmo", "tag", asdict(ELMO), 10, ENTITIES, TABLE, head={"crf": True},
        stack={"kind": "lstm", "mix": "all", **RNN}, beside=asdict(STATIC),
    ),
    "answer_bert": Bundle(
        "bert", "answer", asdict(BERT), 24, (), PIECES, pairs=True, stride=7, max_answer=5, null_threshold=-6.0
    ),
    "embed_bert": Bundle("bert", "embed", asdict(replace(BERT, activation="relu", segments=3)), 16, (), PIECES),
    "embed_static": Bundle("static", "embed", asdict(replace(STATIC, buckets=50, min_n=2, max_n=3)), 12, (), TABLE),
    "language_model_elmo": Bundle("elmo", "language_model", asdict(ELMO), 12, (), PREDICTED),
    "pretrainer_bert": Bundle("bert", "pretrainer", asdict(BERT), 24, (), PIECES),
}  # fmt: skip
LENGTHS: dict[str, list[int]] = {
    "classify_elmo": [4, 12],
    "classify_pairs_bert": [8, 24],
    "classify_static": [4, 12],
    "multilabel_elmo_words": [4, 12],
    "regress_pairs_bert": [8, 24],
    "tag_bert": [8, 16],
    "tag_elmo": [4, 10],
    "answer_bert": [16, 24],
    "embed_bert": [8, 16],
}
SEEDS = {"answer_bert": 35}  # the scores of the best answers lie at least 0.002 apart; else the model's number
SAVED_MODELS = ("classify_elmo", "tag_bert", "answer_bert")

TEXTS = [
    "The cat sat on the mat.",
    "Dogs, cats!  a\u200bb\tçé É e\u0301 straße İstanbul ﬁn",
    "",
    " \u200b\x00",
    "中文 cats 1a2 👩‍👩‍👧 שלום \ufffd half \ud83d",
    "the dog on the mat sat on the cat, and the cats sat on the dogs, again and again!",
    "mat",
]
SPLIT = [["The", "cat's", "中文", "sat on", "É", "."], ["mat"], ["a"] * 20, []]
SECOND = ["A dog sat.", "", "中文 the", "cat", " ", "the mat, " * 9, "Mat É?"]
QUESTIONS = ["the cat?", "1", "中 é?", "", "on the mat sat the dog, " * 3, "dogs", "a b c"]
CONTEXTS = [
    "The cat sat on the mat. The dog, É, sat on  the cat! " * 4,
    "",
    "中文 the é cat👩‍👩‍👧 dogs \ud83d. b שלום" * 3,
    "mat",
    "Dogs sat.\n\tCats on mats 1 2 " * 5,
    " \u200b",
    "abc. xyz on the z, the mat é e\u0301 dog " * 2,
]
CORPUS = ["The cat sat on the mat.", "dogs, cats! 中文 é", "the dog sat on the cat , again"]


def randomize(model, bundle: Bundle, seed: int) -> None:
    """Random weights, and logits with mean 0 and standard deviation 2 over the texts, so that labels are mixed."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        values = rng.normal(0.0, 0.6, weight.shape)
        weight.assign(values + 1.0 if weight.name == "gamma" else values)
    if "logits" not in model.output:
        return
    rows = [row for row in bundle.features.encode(TEXTS, SECOND if bundle.pairs else None) if len(row)]
    batch = bundle.features.collate(rows)
    logits = np.asarray(keras_engine.runner(model)(batch)["logits"])
    if bundle.task == "tag":
        logits = logits[batch.get("starts", batch["mask"]) > 0]
    scale = 2.0 / logits.std(0)
    head = model.get_layer("logits")
    head.kernel.assign(np.asarray(head.kernel) * scale)
    head.bias.assign((np.asarray(head.bias) - logits.mean(0)) * scale)


def ask(predictor, texts: list, pairs: list | None) -> list[dict]:
    """The texts at once, but of an encoder one by one: 0.1.0's Keras predictor fails on more texts than layers."""
    if predictor.bundle.task == "embed":
        return [predictor([text])[0] for text in texts]
    return predictor(texts) if pairs is None else predictor(texts, pairs)


def answers_of(name: str, bundle: Bundle, root: Path) -> dict:
    """The questions to a model, and what each engine that it was written for answers."""
    texts = TEXTS + (SPLIT if bundle.task == "tag" else [])
    pairs = SECOND if bundle.pairs else None
    if bundle.task == "answer":
        texts, pairs = QUESTIONS, CONTEXTS
    entry: dict = {"texts": texts, "pairs": pairs, "keras": ask(keras_engine.predictor(root / name), texts, pairs)}
    if name in LENGTHS:
        file = str(root / f"{name}.tflite")
        quantize._convert(str(root / name), file, "none", LENGTHS[name])  # in this process, which is sooner
        entry["tflite"] = ask(runtime.load(file), texts, pairs)
    if name in SAVED_MODELS:
        folder = root / "saved_models" / name
        saved_model.export(*saving.load(root / name), folder)
        strings = [text for text in texts if isinstance(text, str)]
        entry["saved_model"] = ask(saved_model.load(folder), strings, pairs)
    return entry


def outputs_of(name: str, bundle: Bundle, root: Path) -> dict:
    """Some input of a pretraining model, and its outputs."""
    rng = np.random.default_rng(7)
    model, _ = saving.load(root / name)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    if bundle.task == "language_model":
        inputs = {"char_ids": rng.integers(1, 259, (*mask.shape, ELMO.max_characters)) * mask[..., None]}
    else:
        inputs = {
            "token_ids": rng.integers(5, len(PIECES), mask.shape) * mask,
            "segment_ids": np.array([[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]]),
            "mlm_positions": np.array([[1, 4], [2, 0]]),
        }
    inputs = {key: array.astype(np.int32) for key, array in (inputs | {"mask": mask}).items()}
    outputs = model(inputs)
    entry: dict = {key: {k: np.asarray(v).tolist() for k, v in part.items()} for key, part in
                   (("inputs", inputs), ("outputs", outputs))}  # fmt: skip
    if bundle.task == "language_model":
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text("\n".join(CORPUS) + "\n", "utf-8")
            entry |= {"text": CORPUS, "score": recipes.score(root / name, text)}
    return entry


def pack(root: Path) -> None:
    """All files in one archive, without the times and the owner of the files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        return member

    with tarfile.open(OUT / "artifacts.tar.xz", "w:xz", preset=9) as archive:
        archive.add(root, ".", filter=plain)


def main() -> None:
    if __version__ != "0.1.0":
        raise SystemExit(f"keras_ctxrep is {__version__}: these files are made by 0.1.0")
    recorded: dict = {"answers": {}, "outputs": {}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, (name, bundle) in enumerate(BUNDLES.items()):
            model = saving.build(bundle)
            randomize(model, bundle, SEEDS.get(name, number))
            saving.save(root / name, model, bundle)
            if bundle.task in ("language_model", "pretrainer"):
                recorded["outputs"][name] = outputs_of(name, bundle, root)
            else:
                recorded["answers"][name] = answers_of(name, bundle, root)
            print(name, flush=True)
        OUT.mkdir(exist_ok=True)
        pack(root)
    (OUT / "answers.json").write_text(json.dumps(recorded, indent=1) + "\n", "ascii")


if __name__ == "__main__":
    main()
