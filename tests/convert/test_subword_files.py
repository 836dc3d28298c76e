"""Subword tokenizers in Hugging Face folders: tokenizer.json, SentencePiece's models, vocab.json with merges.txt."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from keras_ctxrep import saving
from keras_ctxrep.convert import huggingface, kerashub, subword_files
from keras_ctxrep.recipes import corpora
from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Added, SubwordTokenizer
from tests import golden, golden_text, tiny

TEXTS = golden_text.texts()[::20]


def bundle_of(name, family="roberta", task="embed", **fields):
    subwords = golden_text.TOKENIZERS[name]()
    fields = {"special_tokens": ROBERTA_TOKENS, "lowercase": False} | fields
    return tiny.bundle(task, family, vocab=subwords.pieces, tokenizer=subwords.to_json(), **fields)


@pytest.fixture
def folder(tmp_path):
    """A function that writes a Hugging Face folder, with other files in place of tokenizer.json."""

    def write(name, family="roberta", **files):
        bundle = bundle_of(name, family)
        huggingface.write(tmp_path / "hub", saving.build(bundle), bundle)
        if files:
            (tmp_path / "hub" / "tokenizer.json").unlink()
            (tmp_path / "hub" / "tokenizer_config.json").unlink()
        for file, content in files.items():
            (tmp_path / "hub" / file.replace("__", ".")).write_bytes(content)
        return tmp_path / "hub"

    return write


@pytest.mark.parametrize(
    ("name", "family", "model_type", "classes"),
    [
        ("unigram", "roberta", "xlm-roberta", "XLMRobertaModel"),
        ("bpe", "roberta", "roberta", "RobertaModel"),
        ("unigram", "bert", "bert", "BertModel"),
    ],
)
def test_round_trip(folder, name, family, model_type, classes, tmp_path):
    """Written as the model class that has such a tokenizer, and read again."""
    hub = folder(name, family)
    options = json.loads((hub / "config.json").read_text())
    assert (options["model_type"], options["architectures"]) == (model_type, [classes])
    assert not (hub / "vocab.txt").exists()
    model, bundle = huggingface.read(hub)
    assert bundle == bundle_of(name, family)
    theirs = Tokenizer.from_file(str(hub / "tokenizer.json"))
    texts = [text for text in TEXTS if "<" not in text]
    for text, pair, row in zip(texts, texts[::-1], bundle.features.encode(texts, texts[::-1]), strict=True):
        if not row.truncated:
            assert row.tokens == theirs.encode(text, pair).ids
    saving.save(tmp_path / "m", model, bundle)
    assert saving.load(tmp_path / "m").bundle.tokenizer == bundle.tokenizer


def test_vocab_and_merges(folder):
    bpe = golden_text.bpe()
    vocab = json.dumps({piece: id for id, piece in enumerate(bpe.pieces)}).encode()
    merges = "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in bpe.merges)
    hub = folder("bpe", vocab__json=vocab, merges__txt=merges.encode())
    assert huggingface.read(hub)[1] == bundle_of("bpe")
    (hub / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    assert huggingface.read(hub)[1].subwords == replace(bpe, add_prefix_space=True)
    (hub / "merges.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"hub: model\.merges\[0\]='a': two pieces are needed that make a third"):
        huggingface.read(hub)
    (hub / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"hub: no vocab\.txt in it, and no tokenizer\.json"):
        huggingface.read(hub)


def test_separators_are_those_of_the_folder(tmp_path):
    for name in ("unigram", "bpe"):
        bundle = bundle_of(name, special_tokens=replace(ROBERTA_TOKENS, separators=1))
        huggingface.write(tmp_path / name, saving.build(bundle), bundle)
        assert huggingface.read(tmp_path / name)[1].special_tokens.separators == 1
    content = json.loads((tmp_path / "bpe" / "tokenizer.json").read_text())
    for processor in ({"type": "RobertaProcessing"}, None, {"pair": [1, {"A": 2}]}, {"processors": [7]}):
        (tmp_path / "bpe" / "tokenizer.json").write_text(json.dumps(content | {"post_processor": processor}))
        assert huggingface.read(tmp_path / "bpe")[1].special_tokens.separators == 2


def trained(**options):
    """A model of SentencePiece."""
    library = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    sizes = {"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 2}
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(golden.SENTENCES * 2), model_writer=file, **sizes | options
    )
    return library.SentencePieceProcessor(model_proto=file.getvalue()), file.getvalue()


def test_a_model_of_sentencepiece(folder):
    """Pieces, scores and normalization are those of the model; XLM-R's ids are moved by one."""
    model, data = trained()
    subwords = subword_files.sentencepiece(data, "spiece.model")
    size = model.get_piece_size()
    assert [*subwords.pieces] == [model.id_to_piece(id) for id in range(size)]
    assert [*subwords.scores] == [model.get_score(id) for id in range(size)]
    assert subwords.charsmap and subwords.steps == ("precompiled", "strip", "one_space")
    special = replace(ROBERTA_TOKENS, pad="<s>", mask="<s>")
    tokenizer = SubwordTokenizer(subwords, special)
    plain = [text for text in golden.SENTENCES if "ｶ" not in text]  # two letters that become one: not in `tokenizers`
    plain += ["  two  spaces ", "ﬁne ½ é"]
    assert [[*ids] for ids in tokenizer.ids_batch(plain)] == [model.encode(text) for text in plain]

    xlm_r = subword_files.sentencepiece(data, "sentencepiece.bpe.model", fairseq=True)
    assert xlm_r.pieces == ("<s>", "<pad>", "</s>", "<unk>", *subwords.pieces[3:], "<mask>")
    assert xlm_r.added == (*map(Added, range(4)), Added(size + 1, lstrip=True))
    ids = SubwordTokenizer(xlm_r).ids_batch(plain)
    expected = [[{0: 3}.get(id, id + 1) for id in model.encode(text)] for text in plain]
    assert ids == expected
    hub = folder("unigram", **{"sentencepiece__bpe__model": data})
    assert huggingface.read(hub)[1].subwords == xlm_r


def test_models_that_are_not_read():
    _, bpe = trained(model_type="bpe")
    with pytest.raises(
        ValueError, match=r"^s\.model: trainer_spec\.model_type=2: 1 is read; a BPE: give its tokenizer"
    ):
        subword_files.sentencepiece(bpe, "s.model")
    _, suffix = trained(treat_whitespace_as_suffix=True)
    with pytest.raises(ValueError, match=r"treat_whitespace_as_suffix=1: 0 is read"):
        subword_files.sentencepiece(suffix, "s.model")
    for damaged in (suffix[: len(suffix) // 2], b"\x0a", b"\x0f", b"\x0a\x02\x15\x00"):
        with pytest.raises(ValueError, match=r"^s\.model: not a whole model of SentencePiece"):
            subword_files.sentencepiece(damaged, "s.model")
    with pytest.raises(ValueError, match="pieces: none is of the type UNKNOWN"):
        subword_files.sentencepiece(b"", "s.model")


def test_refusals(folder, tmp_path):
    hub = folder("unigram")
    options = json.loads((hub / "config.json").read_text())
    content = json.loads((hub / "tokenizer.json").read_text())
    content["model"]["vocab"].append(["more", -1.0])
    (hub / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="its tokenizer has 1,501 pieces, and the embedding 1,500 rows"):
        huggingface.read(hub)
    (hub / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]"}))
    content["model"]["vocab"].pop()
    (hub / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"hub: its tokenizer has no piece \[CLS\], of the special tokens"):
        huggingface.read(hub)
    content["model"]["type"] = "WordLevel"
    (hub / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="WordPiece with '##' is needed"):
        huggingface.read(hub)
    (hub / "config.json").write_text(json.dumps(options | {"model_type": "camembert"}))
    with pytest.raises(ValueError, match="model_type is 'camembert'; only 'bert' or "):
        huggingface.read(hub)
    with pytest.raises(ValueError, match=r"whose tokenizer is a tokenizer\.json; one over WordPiece is needed"):
        corpora.word_pieces(bundle_of("bpe"))  # as pretraining and smaller vocabularies do
    bundle = bundle_of("unigram", "bert")
    with pytest.raises(ValueError, match="a model over pieces of unigram: KerasHub's Bert reads WordPiece"):
        kerashub.write(tmp_path / "preset", saving.build(bundle), bundle)


def test_fill_gives_readable_pieces(tmp_path):
    """Of byte-level BPE letters, not bytes; the white space before a mask is the mask's."""
    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.inference.filling import Filler

    bundle = replace(bundle_of("bpe"), task="pretrainer")
    model = tiny.filled(saving.build(bundle), np.random.default_rng(0), 0.3)
    tokenizer = bundle.features.wordpiece
    ((first,),) = Filler(bundle, keras_engine.runner(model))(["The [MASK] fox"], top=3)
    assert {filling.piece for filling in first} <= {*tokenizer.readable}
    ids = tokenizer.ids_around_masks(["The ", " fox"])
    assert ids == tokenizer.ids_batch(["The", " fox"])
