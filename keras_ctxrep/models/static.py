"""Static vectors: one per word or word piece, independent of context; the baseline for contextual encoders."""

from dataclasses import dataclass
from typing import Annotated

import keras
from keras import ops

from keras_ctxrep import checks
from keras_ctxrep.checks import Fraction, Range, RowCount, Size
from keras_ctxrep.layers import Dropout, Embedding, MaskedPooling, ZeroPadding
from keras_ctxrep.models.model import Model, check_config

__all__ = ["Config", "encoder"]


@dataclass(frozen=True)
class Config:
    """Sizes of a table of vectors of words or word pieces.

    Raises:
        ValueError: no word, no width, n-grams that are out of range, or `pieces` with what is for words.
    """

    words: RowCount  # number of words, the first of them <UNK>; row 0 of the table is for no word. Or of word pieces
    width: Size  # width of a vector
    buckets: Annotated[int, Range(0, 1 << 31)] = (
        0  # rows after those of the words, for hashed character n-grams (2,000,000 in fastText); 0: no n-grams
    )
    min_n: Annotated[int, Range(1, 100)] = (
        3  # characters of the shortest n-gram, "<" and ">" around the word among them (fastText)
    )
    max_n: Annotated[int, Range(1, 100)] = 6  # characters of the longest n-gram (fastText)
    lowercase: bool = False  # words are looked up in lower case
    trainable: bool = True  # whether the table is trained
    dropout: Fraction = 0.0  # on the vectors, while training
    pieces: bool = False  # rows are those of BERT's word pieces, in the order of their ids; the bundle says their case

    def __post_init__(self):
        checks.check(self)
        if self.pieces and (self.buckets or self.lowercase):
            wrong = f"buckets={self.buckets}" if self.buckets else "lowercase=True"
            raise ValueError(f"{wrong}: for words; with pieces leave it out, their case is that of the bundle")
        if self.min_n > self.max_n:
            raise ValueError(f"min_n={self.min_n}: at least 1 and at most max_n={self.max_n}")

    @property
    def ngrams(self) -> tuple[int, int, int] | None:
        """The argument `ngrams` of `keras_ctxrep.text.features.StaticFeatures`."""
        return (self.min_n, self.max_n, self.buckets) if self.buckets else None


def encoder(config: Config) -> keras.Model:
    """A table of vectors, in the form of an encoder: word2vec, GloVe, fastText, distilled, or learned from scratch.

    With n-grams a word's vector is the mean of its rows (Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606, as
    https://github.com/facebookresearch/fastText computes it), and unseen words have vectors too. A fresh table is
    drawn from [-0.05, 0.05], Keras' default for embeddings.

    With pieces the input is BERT's, of `WordPieceFeatures`, and its segment ids change nothing. [CLS] and [SEP] are
    tokens with rows like others: the mean over n pieces whose markers have zero rows, as `recipes.distill_static` makes
    them, is n / (n + 2) of the mean without markers, in the same direction.

    Args:
        config: sizes.

    Call: {"word_ids": int32 (B, T), "mask": int32 (B, T)}; with n-grams {"subword_ids": int32 (B, T, G), "mask"}; with
        pieces {"token_ids", "segment_ids", "mask"}, each int32 (B, T).

    Returns: {"layers": [float32 (B, T, D)], "sequence": the same; "pooled": float32 (B, D), its mean over the tokens}.

    >>> from keras_ctxrep.text.features import StaticFeatures
    >>> batch = StaticFeatures(["<UNK>", "one", "two"])(["one two three"])
    >>> encoder(Config(words=3, width=8))(batch)["sequence"].shape
    TensorShape([1, 3, 8])
    """
    check_config(config, Config)
    names = ("token_ids", "segment_ids") if config.pieces else ("subword_ids" if config.buckets else "word_ids",)
    shape = (None, None) if config.buckets else (None,)
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name in names}
    inputs["mask"] = keras.Input((None,), dtype="int32", name="mask")
    ids = inputs[names[0]]
    rows = config.words + (0 if config.pieces else config.buckets + 1)
    x = Embedding(rows, config.width, trainable=config.trainable, name="word_embedding")(ids)
    if config.buckets:  # (B, T, G, D) -> (B, T, D)
        x = MaskedPooling("mean", name="subword_mean")(x, mask=ops.not_equal(ids, 0))
    if config.dropout:
        x = Dropout(config.dropout, name="word_dropout")(x)
    x = ZeroPadding(carry_mask=True, name="word_vectors")(x, mask=inputs["mask"])
    pooled = MaskedPooling("mean", name="word_mean")(x, mask=inputs["mask"])
    return Model(inputs, {"layers": [x], "sequence": x, "pooled": pooled}, name="static_encoder")
