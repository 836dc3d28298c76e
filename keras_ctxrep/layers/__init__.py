"""The layers: Keras only, on any backend. Importing this package registers all of them for loading."""

from keras_ctxrep.layers.char_cnn import CharCNN
from keras_ctxrep.layers.crf import CRF
from keras_ctxrep.layers.dropout import Dropout
from keras_ctxrep.layers.embedding import Embedding, FactorizedEmbedding, ReversibleEmbedding
from keras_ctxrep.layers.lstm import ProjectedLSTM
from keras_ctxrep.layers.mix import ScalarMix
from keras_ctxrep.layers.sentence import MaskedPooling, SentenceMarkers, ZeroPadding
from keras_ctxrep.layers.softmax import VocabularySoftmax
from keras_ctxrep.layers.span import MarkIndicator, SpanMean, SpanPooling
from keras_ctxrep.layers.transformer import (
    Bias,
    PositionEmbedding,
    SinusoidalPositions,
    TakePositions,
    TransformerBlock,
)
from keras_ctxrep.layers.window import SubwordEmbedding, WindowMean

__all__ = [
    "CRF",
    "Bias",
    "CharCNN",
    "Dropout",
    "Embedding",
    "FactorizedEmbedding",
    "MarkIndicator",
    "MaskedPooling",
    "PositionEmbedding",
    "ProjectedLSTM",
    "ReversibleEmbedding",
    "ScalarMix",
    "SentenceMarkers",
    "SinusoidalPositions",
    "SpanMean",
    "SpanPooling",
    "SubwordEmbedding",
    "TakePositions",
    "TransformerBlock",
    "VocabularySoftmax",
    "WindowMean",
    "ZeroPadding",
]
