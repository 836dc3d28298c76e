"""Distillation from text: what a student begins with, what it is taught, what is kept, resumed and refused."""

import json
from collections import Counter
from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_ctxrep
from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import bert
from keras_ctxrep.options import EncoderDistillation
from keras_ctxrep.recipes import encoder_distilling as distilling
from keras_ctxrep.saving import ModelFolder
from keras_ctxrep.text.features import Reads
from keras_ctxrep.text.tokens import WordPiece
from tests import golden_text, tiny

pytestmark = pytest.mark.trains

WORDS = ("the", "cats", "ab", "fell", "rain", "she", "a", "had", "bead", "cat")


@pytest.fixture
def teacher(tmp_path):
    return tiny.save(tmp_path / "teacher", tiny.bundle("embed", sizes={"layers": 4}))


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "corpus.txt"
    sentences = [" ".join(rng.choice(WORDS, rng.integers(1, 7))) for _ in range(400)]
    path.write_text("\n".join("\n".join(sentences[i : i + 8]) + "\n" for i in range(0, 400, 8)), encoding="utf-8")
    return path


def distill(teacher, corpus, out, **options):
    settings = {"steps": 6, "batch_size": 16, "evaluations": 2} | options
    return recipes.distill_encoder(teacher, [corpus], out, **settings)


def weights_of(folder):
    return saving.load(folder).model.get_weights()


def test_a_student_with_all_layers_and_pieces_is_the_teacher(teacher):
    source = saving.load(teacher)
    model, bundle = distilling._student(source, [0, 1, 2, 3], EncoderDistillation(steps=1, layers="0,1,2,3"), dict)
    batch = bundle.features(["the cats fell", "rain"])
    np.testing.assert_array_equal(model(batch)["vector"], source.model(batch)["vector"])
    assert bundle.config == source.bundle.config


def test_a_student_begins_with_the_layers_that_are_named(teacher):
    source = saving.load(teacher)
    model, bundle = distilling._student(source, [1, 3], EncoderDistillation(steps=1, layers="1,3"), dict)
    assert bundle.config["layers"] == 2
    for own, theirs in (("layer_0", "layer_1"), ("layer_1", "layer_3")):
        for a, b in zip(model.get_layer(own).get_weights(), source.model.get_layer(theirs).get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_vectors_of_pieces_that_are_dropped_go_to_their_parts(teacher):
    vocab = saving.load(teacher).bundle.vocab
    table = np.random.default_rng(0).normal(size=(len(vocab) + 1, 8))
    vocab, kept = [*vocab, "##t"], [*(piece for piece in vocab if piece != "cat"), "##t"]
    counts = {vocab.index(piece): count for piece, count in {"the": 9, "cat": 4, "c": 2, "##a": 3}.items()}
    merged = dict(zip(kept, distilling.merged_vectors(table, vocab, WordPiece(kept), counts), strict=True))
    own = dict(zip(vocab, table, strict=True))
    for piece, count in {"c": 2, "##a": 3, "##t": 1, "she": 1}.items():
        expected = count * own[piece] + (0 if piece == "she" else 4 * own["cat"] / 3)
        expected *= np.linalg.norm(own[piece]) / np.linalg.norm(expected)
        np.testing.assert_allclose(merged[piece], expected, rtol=1e-12)


def test_pieces_of_a_unigram_model_that_a_corpus_uses(tmp_path):
    """The student reads the corpus without unknown pieces, and begins with the vectors of the teacher's pieces."""
    subwords = golden_text.unigram()
    about = {"vocab": subwords.pieces, "tokenizer": subwords.to_json(), "max_length": 40}
    folder = tiny.save(tmp_path / "teacher", tiny.bundle("embed", "roberta", **about))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(text for text in golden_text.corpus()[:300] if "\n" not in text), encoding="utf-8")
    distill(folder, corpus, tmp_path / "out", layers="0", vocab_size=500, steps=2, batch_size=8, valid=corpus)
    model, bundle = saving.load(tmp_path / "out")
    source = saving.load(folder).bundle.features.wordpiece
    own, texts = bundle.features.wordpiece, corpus.read_text("utf-8").splitlines()
    assert len(own.vocab) == 500 == model.get_layer("token_embedding").weights[0].shape[0]
    assert {*own.vocab} < {*subwords.pieces} and not bundle.subwords.added[0].lstrip
    known = [text for text, ids in zip(texts, source.ids_batch(texts), strict=True) if source.unk not in ids]
    assert len(known) > 100 and not any(own.unk in ids for ids in own.ids_batch(known))
    for ids, expected in zip(own.ids_batch(known), source.ids_batch(known), strict=True):
        assert "".join(own.vocab[id] for id in ids) == "".join(source.vocab[id] for id in expected)
    assert keras_ctxrep.load(tmp_path / "out").encode(["a text"]).shape == (1, 8)
    with pytest.raises(ValueError, match="vocab_size=9: special pieces and letters are"):
        distill(folder, corpus, tmp_path / "few", vocab_size=9)
    about = {"vocab": golden_text.bpe().pieces, "tokenizer": golden_text.bpe().to_json()}
    folder = tiny.save(tmp_path / "bpe", tiny.bundle("embed", "roberta", **about))
    with pytest.raises(ValueError, match="vocab_size=500: the pieces of a byte-level BPE are made of each other"):
        distill(folder, corpus, tmp_path / "few", vocab_size=500)


def test_a_narrow_table_begins_as_the_nearest_to_the_teachers(teacher):
    """As wide as the layers it is the same; narrower, frequent pieces keep more of their vectors."""
    source = saving.load(teacher)
    width, table = source.bundle.config["width"], bert.token_vectors(source.model)
    counts = Counter({6: 10**8, 7: 10**8})

    def student(narrow):
        options = EncoderDistillation(steps=1, layers="0,3", embedding_width=narrow)
        return distilling._student(source, [0, 3], options, lambda: counts)

    np.testing.assert_allclose(bert.token_vectors(student(width).model), table, atol=1e-6)
    model, bundle = student(2)
    assert bundle.config["embedding_width"] == 2
    np.testing.assert_allclose(bert.token_vectors(model)[6:8], table[6:8], atol=1e-3)
    assert np.abs(bert.token_vectors(model) - table).max() > 0.01
    model, bundle = distilling._student(
        ModelFolder(model, bundle), [0], EncoderDistillation(steps=1, layers="0", vocab_size=18), lambda: counts
    )  # a student may teach
    assert [array.shape for array in model.get_layer("token_embedding").get_weights()] == [(18, 2), (2, width)]


def test_words_have_the_same_vectors_however_they_are_split(teacher, tmp_path):
    """The targets of a student whose vocabulary splits more are the means of the teacher's pieces."""
    source = saving.load(teacher)
    pieces = [piece for piece in source.bundle.vocab if piece != "cat"]
    bundle = replace(source.bundle, vocab=tuple(pieces), config=source.bundle.config | {"vocabulary_size": len(pieces)})
    vectors = distilling.TeacherVectors(source, [4], 64, tmp_path / "vectors", ["one"])
    options = EncoderDistillation(steps=1, batch_size=2, learn=("words", "texts"))
    sentences = ["the cats fell.", "she ab"]
    reader = distilling.WordPieceReader(bundle, options.max_length)
    batches = distilling._batches(vectors, reader, options, lambda epoch: [distilling.Shard(0, sentences)], False)
    inputs, targets = next(iter(batches))
    features = replace(source.bundle, reads=Reads(words=True)).features
    row = features.encode(sentences)[0]
    batch = features(sentences)
    outputs = source.model({name: batch[name] for name in ("token_ids", "segment_ids", "mask")})
    top = np.array(outputs["sequence"][0])
    ends = [*row.starts[1:], len(row) - 1]
    expected = [top[a:b].mean(0) for a, b in zip(row.starts, ends, strict=True)]
    # float16 on the disk: 11 bits
    np.testing.assert_allclose(targets["words"][0, :4, 0], expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(targets["texts"], outputs["vector"], rtol=1e-3, atol=1e-3)
    assert inputs["marks"].shape == (2, 4, 2)
    assert not targets["words"].numpy()[1, 2:].any()


def test_a_student_learns(teacher, corpus, tmp_path):
    history = distill(teacher, corpus, tmp_path / "s", layers="0,3", steps=40, learning_rate=3e-3, learn=[*_ALL])
    assert history[-1]["val_loss"] < 0.5 * history[0]["val_loss"]
    model, bundle = saving.load(tmp_path / "s")
    assert bundle.config["layers"] == 2 and bundle.task == "embed" and set(model.output) >= {"layers", "vector"}
    assert "Distilled from" in bundle.card and not (tmp_path / "s" / "teacher").exists()


_ALL = ("words", "relations", "hidden", "texts")


def test_a_student_of_another_width_learns(teacher, corpus, tmp_path):
    history = distill(teacher, corpus, tmp_path / "s", size="bert_2_64_2", steps=60, learning_rate=3e-3, learn=[*_ALL])
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert saving.load(tmp_path / "s").bundle.config["width"] == 64


HEADS = ("masked_words", "next_sentence")


def test_a_student_learns_the_heads_of_pretraining(teacher, corpus, tmp_path):
    learn, rate = ["words", "texts", *HEADS], 3e-3
    history = distill(teacher, corpus, tmp_path / "s", layers="0,3", steps=60, learning_rate=rate, learn=learn)
    first, last = history[0], history[-1]
    assert last["val_loss"] < first["val_loss"] and 0 <= last["val_masked_words_accuracy"] <= 1
    assert {"val_words_loss", "val_texts_loss", "val_next_sentence_accuracy"} <= last.keys()
    model, bundle = saving.load(tmp_path / "s")
    assert bundle.task == "pretrainer" and set(model.output) == {"mlm_logits", "nsp_logits"}
    source = saving.load(teacher)
    assert (bundle.pooling, bundle.normalize) == (source.bundle.pooling, source.bundle.normalize)
    answers = keras_ctxrep.load(tmp_path / "s")
    assert len(answers.fill(["the [MASK] fell"])) == 1 and answers.encode(["rain"]).shape == (1, 8)
    poolers = [one.get_layer("pooler").get_weights()[0] for one in (model, source.model)]
    assert np.abs(poolers[0] - poolers[1]).max() > 1e-3  # what tells next sentences apart
    # the heads of a student are kept when it goes on, and its encoder is the one that learned the vectors
    distill(teacher, corpus, tmp_path / "on", init=tmp_path / "s", steps=1, learning_rate=1e-9, learn=learn)
    for a, b in zip(weights_of(tmp_path / "s"), weights_of(tmp_path / "on"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    batch = source.bundle.features(["the cats fell", "rain"])
    vectors, taught = saving.load_encoder(tmp_path / "s").model(batch)["vector"], source.model(batch)["vector"]
    assert -keras.losses.cosine_similarity(vectors, taught).numpy().max() > 0.8
    distill(teacher, corpus, tmp_path / "encoder", init=tmp_path / "s", steps=1)
    assert saving.load(tmp_path / "encoder").bundle.task == "embed"


def test_a_masked_language_model_without_next_sentences(teacher, corpus, tmp_path):
    distill(teacher, corpus, tmp_path / "s", steps=2, learn=["words", "masked_words"])
    model, bundle = saving.load(tmp_path / "s")
    assert set(model.output) == {"mlm_logits"} and not bundle.config["pooler"]


def test_what_a_learner_reads(teacher, corpus, tmp_path, monkeypatch):
    """Each of its outputs is that of the saved model, for the clean text and for the masked one."""
    seen = {}
    monkeypatch.setattr(
        distilling.fit, "fit", lambda learner, data, *rest, **more: seen.update(learner=learner, data=data) or []
    )
    distill(teacher, corpus, tmp_path / "s", learn=["texts", *HEADS], pretraining_weight=0.3)
    inputs, targets, weights = next(iter(seen["data"](0)))
    outputs = seen["learner"](inputs)
    model, bundle = saving.load(tmp_path / "s")
    masked = {name.removeprefix("masked_"): tensor for name, tensor in inputs.items() if name.startswith("masked_")}
    for name, logits in distilling.HEADS.items():
        np.testing.assert_allclose(outputs[name], model(masked)[logits], atol=1e-5)
    clean = {name: inputs[name] for name in ("token_ids", "segment_ids", "mask")}
    np.testing.assert_allclose(outputs["texts"], saving.load_encoder(tmp_path / "s").model(clean)["vector"], atol=1e-5)
    ids, labels = masked["token_ids"].numpy(), targets["masked_words"].numpy()
    real = weights["masked_words"].numpy() > 0
    at = np.take_along_axis(ids, masked["mlm_positions"].numpy(), axis=1)
    mask = bundle.vocab.index("[MASK]")
    assert (at[real] == mask).mean() > 0.5 and ((at == mask) | (at == labels) | (at > 4))[real].all()
    # the mean over the masked pieces, times the weight beside the losses of the vectors
    np.testing.assert_allclose(weights["masked_words"].numpy().sum(), 0.3 * real.size, rtol=1e-5)
    np.testing.assert_allclose(weights["texts"], 1)


# -------------------------------------------------------------------------------------------------- an ELMo that learns


@pytest.fixture
def bilm(tmp_path):
    words = ("<S>", "</S>", "<UNK>", *WORDS)
    return tiny.save(tmp_path / "bilm", replace(tiny.bundle("embed", "elmo"), task="language_model", vocab=words))


LEARNED = ["words", "texts", "language_model"]


def test_an_elmo_learns_the_vectors_and_stays_a_language_model(teacher, bilm, corpus, tmp_path):
    history = distill(teacher, corpus, tmp_path / "s", init=bilm, steps=80, learning_rate=1e-2, learn=LEARNED)
    first, last = history[0], history[-1]
    assert last["val_texts_loss"] < first["val_texts_loss"] and last["val_words_loss"] < first["val_words_loss"]
    perplexities = [entry["val_forward_logits_perplexity"] for entry in (first, last)]
    assert perplexities[1] < perplexities[0]
    model, bundle = saving.load(tmp_path / "s")
    assert bundle.task == "language_model" and set(model.output) == {"forward_logits", "backward_logits"}
    assert bundle.vocab == saving.load(bilm).bundle.vocab and bundle.config == saving.load(bilm).bundle.config


def test_what_an_elmo_is_taught_by(teacher, bilm, corpus, tmp_path, monkeypatch):
    """The learner's words and texts are those that the encoder of the saved model gives, and its logits the model's."""
    seen = {}

    def fit(learner, data, validation, **more):
        seen.update(learner=learner, batch=next(iter(data(0))))
        return []

    monkeypatch.setattr(distilling.fit, "fit", fit)
    distill(teacher, corpus, tmp_path / "s", init=bilm, learn=["words", "relations", "texts", "language_model"])
    learner, (inputs, targets, weights) = seen["learner"], seen["batch"]
    model = saving.load(tmp_path / "s").model
    outputs, vectors = learner(inputs), saving.load_encoder(tmp_path / "s").model(inputs)
    for name in ("forward_logits", "backward_logits"):
        np.testing.assert_allclose(outputs[name], model(inputs)[name], atol=1e-5)
    real = inputs["mask"].numpy() > 0
    np.testing.assert_allclose(outputs["words"].numpy()[real][:, 0], vectors["sequence"].numpy()[real], atol=1e-5)
    np.testing.assert_allclose(outputs["texts"], vectors["pooled"], atol=1e-5)
    # the teacher's vector of each word is the mean of its pieces, and words and targets are those of one sentence
    texts = targets["texts"].numpy()
    assert targets["words"].shape[1] == inputs["mask"].shape[1] and len(texts) == 16
    taught = saving.load(teacher)
    sentences = corpus.read_text().split("\n")
    found = taught.model(taught.bundle.features(sentences))["vector"].numpy()
    nearest = [sentences[index] for index in np.abs(found[None] - texts[:, None]).max(-1).argmin(1)]
    assert [len(sentence.split()) for sentence in nearest] == inputs["mask"].numpy().sum(1).tolist()
    np.testing.assert_allclose(weights["texts"], 1)


def test_a_narrower_student_learns_the_principal_components(teacher, tmp_path, corpus, monkeypatch):
    words = ("<S>", "</S>", "<UNK>", *WORDS)
    narrow = replace(tiny.bundle("embed", "elmo", sizes={"projection": 2}), task="language_model", vocab=words)
    seen = {}
    monkeypatch.setattr(
        distilling.fit, "fit", lambda learner, data, validation, **more: seen.update(batches=[*validation]) or []
    )
    distill(teacher, corpus, tmp_path / "s", init=tiny.save(tmp_path / "narrow", narrow), learn=LEARNED, valid=corpus)
    batches = [targets for _, targets, _ in seen["batches"]]
    texts = np.concatenate([targets["texts"] for targets in batches])
    assert texts.shape[1] == batches[0]["words"].shape[-1] == 4
    source = saving.load(teacher)
    sentences = corpus.read_text().split("\n")
    vectors = source.model(source.bundle.features([text for text in sentences if text]))["vector"].numpy()
    components = np.linalg.svd(vectors.astype(np.float16).astype(np.float32))[2][:4]
    lengths = np.linalg.norm(vectors @ components.T, axis=1)  # the signs of components are free
    np.testing.assert_allclose(np.sort(np.linalg.norm(texts, axis=1)), np.sort(lengths), atol=5e-3)


def test_an_elmo_with_a_sampled_softmax(teacher, bilm, corpus, tmp_path):
    history = distill(
        teacher, corpus, tmp_path / "s", init=bilm, steps=40, learning_rate=1e-2, learn=LEARNED, samples=6
    )
    first, last = history[0], history[-1]
    assert last["val_forward_logits_perplexity"] < first["val_forward_logits_perplexity"]  # of all words
    model, bundle = saving.load(tmp_path / "s")
    assert bundle.task == "language_model" and set(model.input) == {"char_ids", "mask"}
    logits = model(bundle.features(["the cats fell"]))["forward_logits"]
    assert logits.shape[-1] == len(bundle.vocab)
    with pytest.raises(ValueError, match=r"samples=99: .*bilm has 13 words"):
        distill(teacher, corpus, tmp_path / "t", init=bilm, learn=LEARNED, samples=99)
    with pytest.raises(ValueError, match="samples=6: of an ELMo"):
        distill(teacher, corpus, tmp_path / "t", samples=6)


def test_elmos_that_are_refused(teacher, bilm, corpus, tmp_path):
    with pytest.raises(ValueError, match="learns its language_model too"):
        distill(teacher, corpus, tmp_path / "s", init=bilm)
    with pytest.raises(ValueError, match="learns its language_model too"):
        distill(teacher, corpus, tmp_path / "s", learn=LEARNED)


def test_the_teacher_reads_each_sentence_once(teacher, corpus, tmp_path, monkeypatch):
    read, compute = [], distilling.TeacherVectors._computed

    def counted(self, shard):
        read.append(shard.number)
        return compute(self, shard)

    monkeypatch.setattr(distilling.TeacherVectors, "_computed", counted)
    monkeypatch.setattr(distilling, "SHARD", 100)
    kept = tmp_path / "vectors"
    distill(teacher, corpus, tmp_path / "s", steps=50, vectors=kept)  # two passes
    numbers = [number for number in read if number >= 0]
    assert sorted(numbers) == [*range(4)] and len({*numbers}) == 4
    read.clear()
    distill(teacher, corpus, tmp_path / "other", steps=10, vectors=kept, learning_rate=1e-3)
    assert [number for number in read if number >= 0] == []
    with pytest.raises(ValueError, match="vectors of another teacher, text or length"):
        distill(teacher, corpus, tmp_path / "third", vectors=kept, max_length=9)


def test_translations_learn_the_vectors_of_their_sentences(teacher, corpus, tmp_path, monkeypatch):
    """The teacher reads the first column alone; words are matched there alone."""
    parallel = tmp_path / "parallel.tsv"
    parallel.write_text("".join(f"the cat {word}\tdie katze {word}\n" for word in "abcdefgh"), "utf-8")
    batches, made = [], distilling.pipeline.dataset

    def watched(source, collate, *args):
        def kept(part, rng):
            batches.append((part, collate(part, rng)))
            return batches[-1][1]

        return made(source, kept, *args)

    monkeypatch.setattr(distilling.pipeline, "dataset", watched)
    history = distill(teacher, corpus, tmp_path / "s", parallel=[str(parallel)], pairs=0.2, vocab_size=24, steps=30)
    teaches = keras_ctxrep.load(teacher, engine="keras")
    translations = 0
    for part, (_, targets) in batches:
        for index, (_, shard, number, other) in enumerate(part):
            text = shard.sentences[number]
            if number in shard.translations:
                np.testing.assert_allclose(targets["texts"][index], teaches.encode([text])[0], atol=2e-3)
                assert targets["words"][index].any() != other
                translations += other
    assert translations >= 8
    again = recipes.again(tmp_path / "s", tmp_path / "t")
    assert [entry["loss"] for entry in again] == [entry["loss"] for entry in history]
    with pytest.raises(ValueError, match=r"corpus\.txt: it is text or has translations"):
        distill(teacher, corpus, tmp_path / "u", parallel=[str(corpus)])
    assert not any("katze" in str(text) for _, shard, *_ in batches[0][0] for text in shard.sentences)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_pair_is_read_as_a_task_reads_it(family):
    bundle = replace(tiny.bundle("embed", family), max_length=12)
    reader = distilling.WordPieceReader(bundle, 12)
    pairs = [("the cats", "rain fell"), ("the", ""), ("the cats fell", "the rain " * 9)]
    rows = reader.encode(["she", *pairs])
    inputs, *_ = reader.batch(rows[:3])
    expected = bundle.features(["she", "the cats", "the"], [None, "rain fell", ""])
    for name in ("token_ids", "segment_ids", "mask"):
        np.testing.assert_array_equal(inputs[name], expected[name], err_msg=name)
    assert [len(row.spans) for row in rows] == [1, 4, 1, 3]  # the last one has no room for its second text
    marks = {reader.features.wordpiece.sep, reader.features.wordpiece.cls}
    for begin, end in rows[1].spans:
        assert begin < end and not marks & {*rows[1].pieces[begin:end].tolist()}


def test_words_in_pairs_have_the_teachers_vectors(teacher, corpus, tmp_path, monkeypatch):
    """A student that begins as its teacher has nothing to learn from them."""
    seen, made = [], distilling.pipeline.dataset

    def watched(source, collate, *args):
        def kept(part, rng):
            seen.extend(isinstance(shard.sentences[number], tuple) for _, shard, number, _ in part)
            return collate(part, rng)

        return made(source, kept, *args)

    monkeypatch.setattr(distilling.pipeline, "dataset", watched)
    options = {"layers": "0,1,2,3", "learning_rate": 1e-9, "pairs": 0.6, "dropout": 0.0, "steps": 12}
    history = distill(teacher, corpus, tmp_path / "s", learn=["words", "texts"], **options)
    assert 0.3 < np.mean(seen[:150]) < 0.8
    assert history[-1]["loss"] < 1e-3


def test_an_interrupted_run_resumes_exactly(teacher, corpus, tmp_path):
    def interrupt(entry):
        if entry["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recipes.distill_encoder(teacher, [corpus], tmp_path / "a", interrupt, steps=6, batch_size=16, evaluations=2)
    distill(teacher, corpus, tmp_path / "a")
    distill(teacher, corpus, tmp_path / "b")
    for a, b in zip(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(a, b)
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["command"] == "distill_encoder"
    recipes.again(tmp_path / "a", tmp_path / "c")
    np.testing.assert_array_equal(weights_of(tmp_path / "c")[0], weights_of(tmp_path / "a")[0])


def test_a_student_goes_on_learning(teacher, corpus, tmp_path):
    distill(teacher, corpus, tmp_path / "first", layers="0,3")
    kept = tmp_path / "vectors"
    distill(teacher, corpus, tmp_path / "second", init=tmp_path / "first", steps=1, learning_rate=1e-9, vectors=kept)
    for a, b in zip(weights_of(tmp_path / "first"), weights_of(tmp_path / "second"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    distill(teacher, corpus, tmp_path / "third", init=tmp_path / "second", steps=1, vectors=kept)  # of the same teacher
    with pytest.raises(ValueError, match="layers='0': the student to go on with has its own"):
        distill(teacher, corpus, tmp_path / "fourth", init=tmp_path / "first", layers="0")
    elmo = tiny.save(tmp_path / "elmo", tiny.bundle("embed", "elmo"))
    with pytest.raises(ValueError, match="the student has to be a BERT"):
        distill(teacher, corpus, tmp_path / "fourth", init=elmo)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "0,4"}, "the teacher's layers, 0 to 3"),
        ({"layers": "2,0"}, "each at most once and in their order"),
        ({"layers": "top"}, "numbers with commas"),
        ({"layers": "0", "size": "bert_2_64_2"}, "random layers"),
        ({"size": "bert_tiny"}, "size='bert_tiny': one of"),
        ({"vocab_size": 6}, "special pieces and letters are"),
        ({"embedding_width": 4096}, "embedding_width=4096: at most width="),
        ({"learn": ["meaning"]}, "learn='meaning': one of words"),
        ({"learn": ["words", "next_sentence"]}, "name both"),
        ({"learn": ["words"], "parallel": ["rows.tsv"]}, "parallel: a translation has the vector of the whole text"),
    ],
)
def test_what_is_refused(teacher, corpus, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        distill(teacher, corpus, tmp_path / "s", **options)


def test_teachers_that_are_refused(teacher, corpus, tmp_path):
    elmo = tiny.save(tmp_path / "elmo", tiny.bundle("embed", "elmo"))
    with pytest.raises(ValueError, match="the teacher has to be a BERT"):
        distill(elmo, corpus, tmp_path / "s")
    with pytest.raises(ValueError, match="the folder of the teacher"):
        distill(teacher, corpus, teacher)


def test_the_command(teacher, corpus, tmp_path, capsys):
    out = tmp_path / "s"
    arguments = ["distill", str(teacher), "--corpus", str(corpus), "--out", str(out), "--steps", "4"]
    assert (
        main.main([*arguments, "--batch-size", "8", "--vocab-size", "18", "--layers", "0,3", "--embedding-width", "3"])
        == 0
    )
    assert "4 steps" in capsys.readouterr().out
    model, bundle = saving.load(out)
    table = model.get_layer("token_embedding")
    assert len(bundle.vocab) == 18 and [weight.shape for weight in table.get_weights()] == [(18, 3), (3, 8)]
    with pytest.raises(SystemExit):
        main.main([*arguments, "--data", str(corpus)])
    assert "leave out --data with --corpus" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main([*arguments, "--temperature", "3"])
    assert "leave out --temperature" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["distill", str(teacher), "--out", str(out)])
    assert "give --data" in capsys.readouterr().err
