"""Static vectors: one per word or word piece, independent of context; the baseline for contextual encoders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep import checks
from keras_ctxrep.backend import tf
from keras_ctxrep.checks import Fraction, Range, RowCount, Size, check_config
from keras_ctxrep.layers import Dropout, Embedding, MaskedPooling, SubwordEmbedding, WindowMean, ZeroPadding
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.retrieval import mean_rows

__all__ = ["TRAINERS", "Config", "Trainer", "cbow", "encoder", "skipgram", "vectors_of"]


@dataclass(frozen=True)
class Config:
    """Sizes of a table of vectors of words or word pieces.

    Raises:
        ValueError: no word, no width, n-grams that are out of range, or `pieces` with what is for words.
    """

    words: RowCount  # number of words, the first of them <UNK>; row 0 of the table is for no word. Or of word pieces
    width: Size  # width of a vector
    # rows after those of the words, for hashed character n-grams (2,000,000 in fastText); 0: no n-grams
    buckets: Annotated[int, Range(0, 1 << 31)] = 0
    # characters of the shortest n-gram, "<" and ">" around the word among them (fastText)
    min_n: Annotated[int, Range(1, 100)] = 3
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
    settings: dict[str, Any] = {"embeddings_initializer": RandomWeights("uniform"), "name": "word_embedding"}
    x = Embedding(rows, config.width, trainable=config.trainable, **settings)(ids)
    if config.buckets:  # (B, T, G, D) -> (B, T, D)
        x = MaskedPooling("mean", name="subword_mean")(x, mask=ops.not_equal(ids, 0))
    if config.dropout:
        x = Dropout(config.dropout, name="word_dropout")(x)
    x = ZeroPadding(carry_mask=True, name="word_vectors")(x, mask=inputs["mask"])
    pooled = MaskedPooling("mean", name="word_mean")(x, mask=inputs["mask"])
    return Model(inputs, {"layers": [x], "sequence": x, "pooled": pooled}, name="static_encoder")


def vectors_of(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """The vectors of words without running the model: rows of its table, or with n-grams their means.

    Args:
        model: an encoder, or a task model over one.
        ids: of `StaticFeatures.ids`, int32 (N,) or (N, G).

    Returns: float32 (N, D).

    >>> vectors_of(encoder(Config(words=3, width=8)), np.array([2, 3])).shape
    (2, 8)
    """
    return mean_rows(ops.convert_to_numpy(model.get_layer("word_embedding").embeddings), ids)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Trainer(Model):
    """A model whose step may be several updates, one after another, each on a part of the batch's rows.

    An update of a table of words is a few milliseconds; one call of the model for many of them saves half of the time.

    Attributes:
        updates: parts of a batch; with more than 1 on one replica alone.

    >>> skipgram(Config(words=3, width=8)).updates
    1
    """

    updates = 1

    def train_step(self, data) -> dict[str, Any]:
        if self.updates == 1:
            return super().train_step(data)
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise ValueError(f"updates={self.updates}: on one replica; of several ones each step is one update")
        size = tf.shape(keras.tree.flatten(data)[0])[0] // self.updates
        step = super().train_step

        def update(index):
            step(keras.tree.map_structure(lambda array: array[index * size : (index + 1) * size], data))
            return index + 1

        tf.while_loop(lambda index: index < self.updates, update, [tf.constant(0)], parallel_iterations=1)
        return self.get_metrics_result()


def skipgram(
    config: Config, window: int = 5, centres: int = 32, noise: int = 32, subwords: Sequence[Sequence[int]] | None = None
) -> Trainer:
    """Skip-gram with negative sampling, over blocks of words: each centre predicts the words in its window.

    Mikolov et al. 2013, https://arxiv.org/abs/1310.4546; with n-grams Bojanowski et al. 2017,
    https://arxiv.org/abs/1607.04606. The logits of a block are one product of matrices, those of pairs that are not in
    a window among them; `losses.NegativeSampling` weighs them. Both tables begin as in word2vec.c: the words' in
    [-0.5, 0.5] / D, the outputs' at zero. The words' table has the rows of that of `encoder`, and its layer's name.

    Args:
        config: sizes.
        window: W, words on each side at most.
        centres: P, of a block.
        noise: S, noise words of a block.
        subwords: with n-grams the rows of each word, itself and its n-grams; row 0 of words is for no word.

    Call: {"word_ids": int32 (B, P + 2 W), the centres and W words on both sides; "noise_ids": int32 (B, S), "windows":
        int32 (B, P, 2)}, as `text.word_blocks.blocks` makes them; the targets are {"logits": the windows}.

    Returns: {"logits": float32 (B, P, P + 2 W + S)}.

    Raises:
        ValueError: n-grams without `subwords`, or word pieces.

    >>> model = skipgram(Config(words=9, width=8), window=2, centres=4, noise=3)
    >>> model.output["logits"].shape
    (None, 4, 11)
    """
    inputs, block, words, outputs = _tables(config, window, centres, noise, subwords)
    vectors = words(block["word_ids"][:, window : window + centres])  # (B, P, D)
    others = outputs(ops.concatenate([block["word_ids"], block["noise_ids"]], 1))  # (B, P + 2 W + S, D)
    logits = ops.matmul(vectors, ops.transpose(others, (0, 2, 1)))
    return Trainer(inputs, {"logits": logits}, name="skipgram")


def cbow(
    config: Config, window: int = 5, centres: int = 32, noise: int = 32, subwords: Sequence[Sequence[int]] | None = None
) -> Trainer:
    """CBOW with negative sampling, over blocks of words: the mean of the words in a window predicts its centre.

    Mikolov et al. 2013, https://arxiv.org/abs/1301.3781, section 3.1, and https://arxiv.org/abs/1310.4546. With n-grams
    it is the mean of the words' means; fastText takes that of all their rows.

    Args:
        config, window, centres, noise, subwords: as in `skipgram`.

    Call: as in `skipgram`.

    Returns: {"logits": float32 (B, P, 1 + S)}.

    Raises:
        ValueError: as in `skipgram`.

    >>> model = cbow(Config(words=9, width=8), window=2, centres=4, noise=3)
    >>> model.output["logits"].shape
    (None, 4, 4)
    """
    inputs, block, words, outputs = _tables(config, window, centres, noise, subwords)
    means = WindowMean(name="window_mean")(words(block["word_ids"]), block["windows"])  # (B, P, D)
    centre = outputs(block["word_ids"][:, window : window + centres])
    of_centres = ops.sum(means * centre, -1, keepdims=True)
    of_noise = ops.matmul(means, ops.transpose(outputs(block["noise_ids"]), (0, 2, 1)))
    return Trainer(inputs, {"logits": ops.concatenate([of_centres, of_noise], -1)}, name="cbow")


TRAINERS = {"skipgram": skipgram, "cbow": cbow}


def _tables(config: Config, window: int, centres: int, noise: int, subwords: Sequence[Sequence[int]] | None):
    """The inputs of a block, the same with their lengths, and the layers of both tables."""
    check_config(config, Config)
    if config.pieces or bool(config.buckets) != (subwords is not None):
        wrong = "pieces=True: for words" if config.pieces else f"buckets={config.buckets}, subwords={subwords}"
        raise ValueError(f"{wrong}; give the rows of words with n-grams, and of no others")
    shapes = {"word_ids": (centres + 2 * window,), "noise_ids": (noise,), "windows": (centres, 2)}
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name, shape in shapes.items()}
    sized = {name: ops.reshape(inputs[name], (-1, *shape)) for name, shape in shapes.items()}  # of a batch of any shape
    rows, start = config.words + 1, keras.initializers.RandomUniform(-0.5 / config.width, 0.5 / config.width)
    settings: dict[str, Any] = {"embeddings_initializer": start, "name": "word_embedding"}
    if subwords is None:
        words = Embedding(rows, config.width, **settings)
    else:
        words = SubwordEmbedding(rows + config.buckets, config.width, subwords, **settings)
    outputs = Embedding(rows, config.width, embeddings_initializer="zeros", name="output_embedding")
    return inputs, sized, words, outputs
