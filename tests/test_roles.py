"""The roles of an encoder: prefixes of texts, read from published files, and put before texts by every engine."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.convert import huggingface
from keras_ctxrep.text import index_files
from keras_ctxrep.text.bundle import Bundle, complete_roles, from_files
from tests import golden_text, tiny

ROLES = {"query": "she: ", "passage": "", "title": "the "}
TEXTS = ["the cat", "", "rain fell.", " ", "a " * 60]
READ = [0, 2, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles") / "encoder"
    saving.save(folder, *tiny.model("embed", max_length=40, pooling="cls", normalize=True, roles=ROLES))
    return folder


@pytest.mark.filterwarnings("ignore:.* have vectors of zeros", "ignore:.* were longer than")
def test_every_engine_puts_the_prefix_before_a_text(folder, tmp_path, tflite_in_process):
    model = ctx.load(folder, engine="keras")
    prefixed = model.encode([f"she: {TEXTS[number]}" for number in READ])
    assert np.abs(prefixed - model.encode(TEXTS)[READ]).max() > 1e-3
    exported = model.export(tmp_path / "served")
    for engine in (model, ctx.load(exported), ctx.load(model.tflite(tmp_path / "model.tflite"))):
        vectors = engine.encode(TEXTS, role="query")
        np.testing.assert_allclose(vectors[READ], prefixed, atol=1e-5)
        assert not vectors[[1, 3]].any()
        np.testing.assert_allclose(engine.encode(TEXTS, role="passage"), engine.encode(TEXTS), atol=1e-6)
        with pytest.raises(ValueError, match="role='topic': this model has 'query', 'passage', 'title'"):
            engine.encode(TEXTS, role="topic")
    signatures = tf.saved_model.load(str(exported)).signatures
    served = signatures["query"](text=tf.constant(TEXTS))
    np.testing.assert_allclose(served["vector"], vectors, atol=1e-5)
    assert [error != b"" for error in served["error"].numpy()] == [False, True, False, True, False]
    assert {"query", "passage"} < signatures.keys() and "title" not in signatures
    assert "| before a query | `she: ` |" in (exported / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:.* have vectors of zeros")
def test_a_prefix_that_makes_a_piece_with_a_text(tmp_path, tflite_in_process):
    """The space at its end is a piece alone, and one with the text: as many pieces, and yet not none."""
    bpe = golden_text.bpe()
    about = {"vocab": bpe.pieces, "tokenizer": bpe.to_json(), "max_length": 40, "roles": {"query": "as: "}}
    saving.save(tmp_path / "m", *tiny.model("embed", "roberta", **about))
    model = ctx.load(tmp_path / "m", engine="keras")
    empty, one = model.bundle.features.encode(["as: ", "as: a"])
    assert len(empty) == len(one)
    exported = model.export(tmp_path / "served")
    for engine in (model, ctx.load(model.tflite(tmp_path / "model.tflite"))):
        vectors = engine.encode(["a", ""], role="query")
        assert vectors[0].any() and not vectors[1].any()
    served = tf.saved_model.load(str(exported)).signatures["query"](text=tf.constant(["a", ""]))
    assert [error != b"" for error in served["error"].numpy()] == [False, True]


def test_a_prefix_of_texts_without_a_role(folder):
    model = ctx.load(folder, engine="keras")
    other = replace(model, bundle=replace(model.bundle, roles={"": "she: "}))
    vectors = ctx.Model(type(model.engine)(model.keras_model, other.bundle, None), other.bundle).encode(["the cat"])
    np.testing.assert_allclose(vectors, model.encode(["the cat"], role="query"), atol=1e-6)


def test_a_model_without_roles():
    bundle = tiny.bundle("embed")
    assert bundle.prefix(None) == "" and b"roles" not in bundle.files_as_bytes()["bundle.json"]
    with pytest.raises(ValueError, match=r"role='query': this model has no roles$"):
        bundle.prefix("query")
    classifier = tiny.bundle("classify", roles=ROLES)
    assert classifier.prefix(None) == "" and classifier.of_encoder().prefix("query") == "she: "
    with pytest.raises(ValueError, match="this model has no roles"):
        classifier.prefix("query")


def test_roles_in_a_bundle():
    bundle = Bundle("elmo", "embed", {}, 8, roles=ROLES)
    files = bundle.files_as_bytes()
    assert from_files(files, "memory") == bundle
    content = json.loads(files["bundle.json"])
    del content["sha256"]
    content["roles"]["query"] = 1
    with pytest.raises(ValueError, match="roles"):
        from_files({"bundle.json": json.dumps(content).encode()}, "memory")
    assert complete_roles({}) == complete_roles({"query": "", "document": ""}) == {}


def test_an_index_knows_the_role_of_its_texts(folder, tmp_path, capsys):
    model = ctx.load(folder, engine="keras")
    texts = ["rain fell.", "the cat", "cat a b"]
    index = ctx.Index.of_texts(texts, model)
    index.save(tmp_path / "index")
    opened = ctx.Index.open(tmp_path / "index", model)
    assert opened.role == "passage" and opened.made_by["prefix"] == ""
    cosines = model.encode(["the cat"], role="query") @ model.encode(texts, role="passage").T
    np.testing.assert_allclose([hit.score for hit in opened.search(["the cat"])[0]], -np.sort(-cosines[0]), atol=1e-6)
    alike = ctx.Index.of_texts(texts, model, role="query")
    assert alike.search(["the cat"], top=1)[0][0].score == pytest.approx(1)  # of one role
    plain = ctx.Index(model.encode(texts), texts, encoder=model)
    assert plain.role is None and plain.search(["the cat"], top=1)[0][0].score == pytest.approx(1)

    (tmp_path / "texts.txt").write_text("\n".join(texts))
    arguments = [str(tmp_path / "texts.txt"), "--encoder", str(folder), "--out", str(tmp_path / "made")]
    assert main.main(["index", *arguments, "--role", "title"]) == 0
    assert index_files.manifest_of(tmp_path / "made").encoder["prefix"] == "the "
    assert main.main(["index", *arguments, "--add"]) == 0
    assert main.main(["index", *arguments, "--add", "--role", "query"]) == 1
    assert "role='query': the texts of" in capsys.readouterr().err
    stored = ctx.Index.open(tmp_path / "made", model)
    np.testing.assert_allclose(stored.vectors, model.encode(texts * 2, role="title"), atol=1e-6)
    other, bundle = saving.load(folder)
    for roles, reason in ({}, "no roles"), ({**ROLES, "title": "a "}, "prefix is a  and was the "):
        saving.save(tmp_path / "other", other, replace(bundle, roles=roles))
        with pytest.raises(ValueError, match=f"it was made by .*{reason}"):
            ctx.Index.open(tmp_path / "made", ctx.load(tmp_path / "other", engine="keras"))


def test_embed_with_a_role(folder, tmp_path):
    assert recipes.embed(folder, TEXTS[:1], tmp_path / "vectors.npz", role="query") == 1
    expected = ctx.load(folder, engine="keras").encode(TEXTS[0], role="query")
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npz")["0"], expected, atol=1e-5)
    with pytest.raises(ValueError, match="role='query': for layers='vector', and they are 'top'"):
        recipes.embed(folder, TEXTS[:1], tmp_path / "vectors.npz", role="query", layers="top")


@pytest.mark.filterwarnings("ignore:.*an encoder without a pooler")
def test_roles_of_published_folders(folder, tmp_path, capsys):
    """As sentence-transformers writes them: prompts, pooling by [CLS], Normalize; and by the option of convert."""
    published, options = tmp_path / "published", tmp_path / "published" / "config_sentence_transformers.json"
    huggingface.write(published, *saving.load(folder))
    assert json.loads(options.read_text()) == {"prompts": ROLES, "default_prompt_name": None}
    bundle = huggingface.read(published)[1]
    assert (bundle.roles, bundle.pooling, bundle.normalize) == (ROLES, "cls", True)
    options.write_text(json.dumps({"prompts": {"query": "q: ", "document": "d: "}, "default_prompt_name": "query"}))
    everything = {"query": "q: ", "passage": "d: ", "document": "d: ", "": "q: "}
    assert huggingface.read(published)[1].roles == everything
    for content, message in (
        ({"prompts": {"a.b": 1}}, r"prompts: a\.b=1"),
        ({"default_prompt_name": "query"}, "default_prompt_name is 'query', which is none of the prompts"),
    ):
        options.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            huggingface.read(published)
    options.write_text('{"__version__": {}, "prompts": {}}')
    command = ["convert", str(published), "--from", "huggingface", "--out", str(tmp_path / "out"), "--role"]
    assert main.main([*command, "query=Find: a, b=c: "]) == 0
    assert ctx.load(tmp_path / "out").bundle.roles == {"query": "Find: a, b=c: ", "passage": ""}
    with pytest.raises(SystemExit):
        main.main([*command, "query"])
    assert "query: write NAME=PREFIX" in capsys.readouterr().err
