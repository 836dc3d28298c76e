"""Tiny models and the batches they read."""

import keras
import pytest

from keras_ctxrep.models import bert, elmo, lm
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.text.features import CharacterFeatures, WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.text.units import TokenFeatures
from tests import tiny

SENTENCES = ["the cat sat on the mat", "a dog", "cats and dogs sat", "the end"]


@pytest.fixture
def elmo_config():
    """A biLM of a few hundred weights."""
    changes = {"layers": 2, "projection": 6, "filters": ((1, 4), (2, 4), (3, 6)), "embedding_dim": 4, "highways": 2}
    return tiny.config("elmo", **changes, max_characters=10, dropout=0.1)


@pytest.fixture
def bert_config():
    """A BERT of two layers without dropout."""
    changes = {"vocabulary_size": 40, "layers": 2, "intermediate": 16, "max_positions": 24, "initializer_range": 0.3}
    return tiny.config(**changes, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def characters():
    """Sentences to a biLM's input."""
    return CharacterFeatures(max_characters=10)


@pytest.fixture
def pieces():
    """Sentences to BERT's input."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    return WordPieceFeatures(WordPiece([*SPECIAL_PIECES, *words]), max_length=20)


@pytest.fixture
def sentences():
    """Sentences of different lengths."""
    return list(SENTENCES)


@pytest.fixture(params=["elmo", "bert", "lm", "mpnet"])
def family(request, elmo_config, bert_config, characters, pieces, rng):
    """(an encoder, the features it reads), once for each family."""
    if request.param == "lm":
        tokens = TokenFeatures("words", ["<S>", "</S>", "<UNK>", *sorted({*" ".join(SENTENCES).split()})])
        sizes = {"width": 8, "heads": 2, "intermediate": 16, "vocabulary_size": len(tokens.vocab)}
        return lm.encoder(lm.Config("transformer", **sizes)), tokens
    if request.param in tiny.RELATIVES:
        sizes = {"vocabulary_size": 40, "layers": 2, "max_positions": 24, "initializer_range": 0.3}
        config = tiny.config(request.param, **sizes, dropout=0.0, attention_dropout=0.0)
        return FAMILIES[request.param].encoder(config), pieces
    if request.param == "elmo":
        return elmo.encoder(elmo_config), characters
    return bert.encoder(bert_config), pieces


@pytest.fixture
def mixed_precision():
    """bfloat16 for every layer that is made in the test."""
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_dtype_policy("float32")


@pytest.fixture
def shapes_only():
    """Models that are made in the test have no values in their weights: the largest costs nothing."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    keras.utils.clear_session()  # or the next model that is made would give all of them their values
