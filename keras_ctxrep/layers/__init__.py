"""The layers: Keras only, on any backend. Importing this package registers all of them for loading."""

from keras_ctxrep.layers.attention import (
    Attention,
    AttentionalRNN,
    ConvolutionalDecoderBlock,
    MemoryAttention,
    TransformerDecoderBlock,
    TwoWayAttention,
)
from keras_ctxrep.layers.causal import CausalTransformerBlock, GatedConvolution, NgramContext
from keras_ctxrep.layers.char_cnn import CharCNN
from keras_ctxrep.layers.crf import CRF
from keras_ctxrep.layers.dropout import Dropout
from keras_ctxrep.layers.embedding import Embedding, FactorizedEmbedding, ReversibleEmbedding
from keras_ctxrep.layers.lstm import ProjectedLSTM
from keras_ctxrep.layers.mix import ScalarMix
from keras_ctxrep.layers.sentence import MaskedPooling, SentenceMarkers, ZeroPadding
from keras_ctxrep.layers.softmax import TiedSoftmax, VocabularySoftmax
from keras_ctxrep.layers.span import MarkIndicator, SpanMean, SpanPooling
from keras_ctxrep.layers.streams import CarriedState
from keras_ctxrep.layers.transformer import (
    Bias,
    PositionEmbedding,
    RelativePositionBias,
    SinusoidalPositions,
    TakePositions,
    TransformerBlock,
)
from keras_ctxrep.layers.window import SubwordEmbedding, WindowMean

__all__ = [
    "CRF",
    "Attention",
    "AttentionalRNN",
    "Bias",
    "CarriedState",
    "CausalTransformerBlock",
    "CharCNN",
    "ConvolutionalDecoderBlock",
    "Dropout",
    "Embedding",
    "FactorizedEmbedding",
    "GatedConvolution",
    "MarkIndicator",
    "MaskedPooling",
    "MemoryAttention",
    "NgramContext",
    "PositionEmbedding",
    "ProjectedLSTM",
    "RelativePositionBias",
    "ReversibleEmbedding",
    "ScalarMix",
    "SentenceMarkers",
    "SinusoidalPositions",
    "SpanMean",
    "SpanPooling",
    "SubwordEmbedding",
    "TakePositions",
    "TiedSoftmax",
    "TransformerBlock",
    "TransformerDecoderBlock",
    "TwoWayAttention",
    "VocabularySoftmax",
    "WindowMean",
    "ZeroPadding",
]
