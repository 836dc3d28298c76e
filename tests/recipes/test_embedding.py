"""What `embed` writes: a choice of layers, number formats, vectors of words and of sentences."""

import re

import numpy as np
import pytest

from keras_ctxrep import api, recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from tests import tiny

pytestmark = pytest.mark.trains

VOCAB = (*SPECIAL_PIECES, "red", "fish", "##es", "?")
SENTENCES = ["red fishes", "fishes ?", "red"]  # of 3, 3 and 1 pieces


@pytest.fixture(scope="module", params=[True, False], ids=["pooler", "no_pooler"])
def folder(request, tmp_path_factory):
    sizes = {"layers": 2, "initializer_range": 0.5, "pooler": request.param}
    return tiny.save(tmp_path_factory.mktemp("embedding") / "m", tiny.bundle("embed", vocab=VOCAB, sizes=sizes))


@pytest.fixture
def arrays(folder, tmp_path):
    """A function from options to the arrays that are written."""

    def run(**options):
        assert recipes.embed(folder, SENTENCES, tmp_path / "a.npz", **options) == 3
        written = tiny.arrays_of(tmp_path / "a.npz")
        return [written[str(number)] for number in range(3)]

    return run


def test_a_choice_of_layers_in_half_precision(arrays):
    every, chosen = arrays(layers="all"), arrays(layer_numbers="2,0,-1", dtype="float16")
    assert [array.shape for array in every] == [(3, 3, 8), (3, 3, 8), (3, 1, 8)]
    for wanted, array in zip(every, chosen, strict=True):
        assert array.dtype == np.float16 and wanted.dtype == np.float32
        np.testing.assert_allclose(array, wanted[[2, 0, 2]], atol=2e-3)


def test_words_by_their_first_piece_or_the_mean(arrays):
    pieces, first, mean = arrays(layers="all"), arrays(words=True), arrays(words=True, pieces="mean")
    np.testing.assert_allclose(first[0], pieces[0][:, [0, 1]], atol=1e-6)
    np.testing.assert_allclose(mean[0], np.stack([pieces[0][:, 0], pieces[0][:, 1:].mean(1)], 1), atol=1e-6)
    np.testing.assert_allclose(mean[1], np.stack([pieces[1][:, :2].mean(1), pieces[1][:, 2]], 1), atol=1e-6)


def test_the_vector_of_a_sentence(arrays, folder):
    model, bundle = saving.load(folder)
    for array, text, top in zip(arrays(layers="pooled"), SENTENCES, arrays(layers="top"), strict=True):
        outputs = model(bundle.features([text]))
        np.testing.assert_allclose(array, outputs["pooled"][0] if "pooled" in outputs else top.mean(0), atol=1e-6)


@pytest.mark.filterwarnings("ignore:__array__")
@pytest.mark.parametrize("family", ["bert", "elmo", "static"])
def test_one_vector_of_each_text_is_the_default(family, tmp_path):
    """That of `Model.encode`: by the bundle's pooling, of length 1 if it says so."""
    vector = {"bert": {"pooling": "cls", "normalize": True}}.get(family, {"pooling": "max"})
    folder = tiny.save(tmp_path / "m", tiny.bundle("embed", family, **vector))
    texts = ["the cat", "rain fell . a", "", "the " * 30]
    with (
        pytest.warns(UserWarning, match="^1 sentences were longer than the model reads, and were cut"),
        pytest.warns(
            UserWarning, match="^1 sentences have vectors of zeros, the first of them 2: no words in this text"
        ),
    ):
        recipes.embed(folder, texts, tmp_path / "a.npz", batch_size=2)
    with pytest.warns(UserWarning, match=r"^1 of 3 texts were longer than the 16 tokens that the model reads"):
        encoded = api.load(folder).encode([texts[0], texts[1], texts[3]])
    written = tiny.arrays_of(tmp_path / "a.npz")
    for name, expected in zip(("0", "1", "3"), encoded, strict=True):
        assert written[name].dtype == np.float32
        np.testing.assert_allclose(written[name], expected, atol=1e-6)
    assert written["2"].shape == encoded[0].shape and not written["2"].any()
    assert family != "bert" or np.linalg.norm(written["0"]) == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match="layers='vector': of whole texts; leave out words"):
        recipes.embed(folder, texts, tmp_path / "a.npz", layers="vector", words=True)


def test_options_of_tokens_write_all_layers(arrays):
    assert [array.ndim for array in arrays(words=True)] == [3, 3, 3] and [array.ndim for array in arrays()] == [1, 1, 1]


def test_one_string_is_not_its_characters(folder, tmp_path):
    with pytest.raises(TypeError, match=r"sentences='text\.txt': one string; give a list of sentences"):
        recipes.embed(folder, "text.txt", tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("red " * 20, "sentence 4: longer than the 16 tokens this model reads: 'red red red"),
        ("red \u0000", "sentence 4: a word without pieces: 'red "),
    ],
)
def test_a_sentence_that_is_refused_is_named(text, message, folder, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        recipes.embed(folder, [*SENTENCES, text], tmp_path / "a.npz", words=True, batch_size=2)
    assert not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--layer-numbers 3", "layer_numbers='3': no layer 3; this encoder has 0 to 2"),
        ("--layer-numbers top", "layer_numbers='top': write numbers with commas between them"),
        ("--layer-numbers 1 --layers top", "layer_numbers='1': with layers='all', and they are 'top'"),
        ("--pieces mean", "pieces='mean': of words; without words every piece has a vector"),
    ],
)
def test_what_is_refused(flags, message, folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("red\n")
    argv = ["embed", str(folder), "--input", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a.npz"), *flags.split()]
    assert main.main(argv) == 1
    assert message in capsys.readouterr().err
