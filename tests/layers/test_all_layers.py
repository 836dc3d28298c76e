"""What every layer is tested for: shape, independence of padding, saving and loading, mixed precision, gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep import layers
from keras_ctxrep.layers import (
    CRF,
    Bias,
    CharCNN,
    Dropout,
    Embedding,
    FactorizedEmbedding,
    MarkIndicator,
    MaskedPooling,
    PositionEmbedding,
    ProjectedLSTM,
    ReversibleEmbedding,
    ScalarMix,
    SentenceMarkers,
    SinusoidalPositions,
    SpanMean,
    SpanPooling,
    SubwordEmbedding,
    TakePositions,
    TiedSoftmax,
    TransformerBlock,
    VocabularySoftmax,
    WindowMean,
    ZeroPadding,
)

B, T, D, W = 3, 5, 6, 8
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.int32)


def sequence(rng):
    return rng.normal(size=(B, T, D)).astype(np.float32)


def characters(rng):
    return rng.integers(1, 262, (B, T, W)).astype(np.int32) * MASK[:, :, None]


# name -> (layer, its first input, whether it takes the mask, shape of its output)
CASES = {
    "CharCNN": (
        lambda **kw: CharCNN([(1, 3), (2, 4), (3, 5)], 4, highways=2, projection=6, **kw),
        characters,
        False,
        (B, T, 6),
    ),
    "CharCNN tanh": (
        lambda **kw: CharCNN([(2, 4)], 4, highways=0, activation="tanh", **kw),
        characters,
        False,
        (B, T, 4),
    ),
    "ProjectedLSTM": (
        lambda **kw: ProjectedLSTM(7, projection=4, cell_clip=0.4, projection_clip=0.2, **kw),
        sequence,
        True,
        (B, T, 4),
    ),
    "ProjectedLSTM backwards": (lambda **kw: ProjectedLSTM(7, go_backwards=True, **kw), sequence, True, (B, T, 7)),
    "ScalarMix": (
        lambda **kw: ScalarMix(l2=0.1, **kw),
        lambda rng: [sequence(rng), sequence(rng), sequence(rng)],
        False,
        (B, T, D),
    ),
    "ScalarMix fixed": (
        lambda **kw: ScalarMix(weights=[1.0, 2.0, 3.0], **kw),
        lambda rng: [sequence(rng), sequence(rng), sequence(rng)],
        False,
        (B, T, D),
    ),
    "SentenceMarkers": (SentenceMarkers, characters, True, (B, T + 2, W)),
    "ZeroPadding": (ZeroPadding, sequence, True, (B, T, D)),
    "MaskedPooling mean": (MaskedPooling, sequence, True, (B, D)),
    "MaskedPooling max": (lambda **kw: MaskedPooling("max", **kw), sequence, True, (B, D)),
    "MaskedPooling mean_max": (lambda **kw: MaskedPooling("mean_max", **kw), sequence, True, (B, 2 * D)),
    "TransformerBlock": (
        lambda **kw: TransformerBlock(2, 12, dropout=0.1, attention_dropout=0.1, initializer_range=0.2, **kw),
        sequence,
        True,
        (B, T, D),
    ),
    "TransformerBlock with attention": (
        lambda **kw: TransformerBlock(2, 12, activation="gelu_tanh", return_attention=True, **kw),
        sequence,
        True,
        (B, T, D),
    ),
    "Embedding": (lambda **kw: Embedding(262, D, **kw), lambda rng: characters(rng)[:, :, 0], False, (B, T, D)),
    "FactorizedEmbedding": (
        lambda **kw: FactorizedEmbedding(262, 3, D, **kw),
        lambda rng: characters(rng)[:, :, 0],
        False,
        (B, T, D),
    ),
    "ReversibleEmbedding": (
        lambda **kw: ReversibleEmbedding(262, D, **kw),
        lambda rng: characters(rng)[:, :, 0],
        False,
        (B, T, D),
    ),
    "SubwordEmbedding": (
        lambda **kw: SubwordEmbedding(20, D, [[word % 20, 3] for word in range(262)], **kw),
        lambda rng: characters(rng)[:, :, 0],
        False,
        (B, T, D),
    ),
    "WindowMean": (WindowMean, sequence, "windows", (B, 3, D)),
    "Dropout": (lambda **kw: Dropout(0.5, **kw), sequence, False, (B, T, D)),
    "Bias": (Bias, sequence, False, (B, T, D)),
    "PositionEmbedding": (lambda **kw: PositionEmbedding(T + 2, **kw), sequence, False, (B, T, D)),
    "SinusoidalPositions": (SinusoidalPositions, sequence, False, (B, T, D)),
    "TakePositions": (TakePositions, sequence, "positions", (B, 2, D)),
    "MarkIndicator": (MarkIndicator, lambda rng: MASK, "marks", (B, T)),
    "SpanMean": (SpanMean, sequence, "marks", (B, 2, D)),
    "SpanPooling": (SpanPooling, sequence, "marks", (B, 2, 3 * D)),
    "CRF": (CRF, sequence, True, (B, T)),
    "TiedSoftmax": (lambda **kw: TiedSoftmax(11, D, **kw), sequence, False, (B, T, 11)),
    "VocabularySoftmax": (lambda **kw: VocabularySoftmax(11, **kw), sequence, False, (B, T, 11)),
    "VocabularySoftmax with samples": (lambda **kw: VocabularySoftmax(11, 3, **kw), sequence, False, (B, T, 11)),
}
POSITIONS = np.array([[0, 4], [1, 1], [3, 2]], np.int32)
WINDOWS = np.array([[[1, 1], [0, 1], [1, 0]], [[0, 1], [1, 0], [0, 0]], [[1, 1], [1, 0], [0, 1]]], np.int32)
MARKS = np.array([[[0, 2], [1, 5]], [[1, 2], [0, 0]], [[0, 1], [0, 1]]], np.int32)
# what a layer takes beside its first input -> its values, and the shape of the symbol that stands for them
SECOND = {
    "positions": (POSITIONS, (None,)),
    "marks": (MARKS, (2, 2)),
    "windows": (WINDOWS, (3, 2)),
    True: (MASK, (None,)),
}
WHOLE_NUMBERS = ("SentenceMarkers", "CRF", "MarkIndicator")  # come out of these
every_layer = pytest.mark.parametrize("case", CASES)


def call(case, layer, x, mask=MASK, **kwargs):
    """The layer's output, the first one if there are several."""
    takes = CASES[case][2]
    if isinstance(takes, str):
        return layer(x, ops.convert_to_tensor(SECOND[takes][0]))
    out = layer(x, mask=ops.convert_to_tensor(mask), **kwargs) if takes else layer(x, **kwargs)
    return out[0] if isinstance(out, tuple) else out


def as_list(x):
    return x if isinstance(x, list) else [x]


def filled(layer, rng):
    """Gives every weight a value of its own, biases too."""
    for weight in layer.weights:
        weight.assign(weight + rng.normal(scale=0.2, size=weight.shape))
    return layer


# take or keep what was read before: tests/models/test_lm.py tests them in models
WITH_PAST = {"CarriedState", "CausalTransformerBlock", "GatedConvolution", "NgramContext"}
# read an encoder too: tests/layers/test_attention.py
WITH_MEMORY = {"Attention", "AttentionalRNN", "MemoryAttention", "TwoWayAttention"}
WITH_MEMORY |= {"ConvolutionalDecoderBlock", "TransformerDecoderBlock"}
OF_LENGTHS = {"RelativePositionBias"}  # reads how long its input is alone: tests/models/test_mpnet.py


def test_every_layer_has_a_case():
    assert {type(make()).__name__ for make, *_ in CASES.values()} == set(
        layers.__all__
    ) - WITH_PAST - WITH_MEMORY - OF_LENGTHS


@every_layer
def test_shape(case, rng):
    make, inputs, takes, shape = CASES[case]
    x, layer = inputs(rng), make()
    assert call(case, layer, x).shape == shape
    symbols = [keras.KerasTensor((None, None, *array.shape[2:]), array.dtype.name) for array in as_list(x)]
    unknown = (None, None, *shape[2:]) if len(shape) == 3 or shape == (B, T) else (None, *shape[1:])
    if case in ("SpanMean", "SpanPooling", "WindowMean"):  # a vector for each span or centre, whatever the tokens
        unknown = (None, *shape[1:])
    second = keras.KerasTensor((None, *SECOND.get(takes, SECOND[True])[1]), "int32")
    first = symbols if isinstance(x, list) else symbols[0]
    out = make()(first, second) if isinstance(takes, str) else make()(first, **({"mask": second} if takes else {}))
    assert (out[0] if isinstance(out, tuple) else out).shape == unknown


@pytest.mark.parametrize("case", [case for case, (_, _, takes, _) in CASES.items() if takes is True])
@pytest.mark.parametrize("training", [False, True])
def test_padding_does_not_matter(case, rng, training):
    """Other values under the padding, and more of it, leave the real positions where they are."""
    make, inputs, _, shape = CASES[case]
    x = inputs(rng)
    layer = make()
    kwargs = {"training": training} if case.startswith("ProjectedLSTM") else {}
    before = ops.convert_to_numpy(call(case, layer, x, **kwargs))
    filled(layer, rng)
    before = ops.convert_to_numpy(call(case, layer, x, **kwargs))

    other = np.where(MASK[:, :, None], x, x[::-1, ::-1] + 1 if x.dtype == np.int32 else 100 * rng.normal(size=x.shape))
    after = ops.convert_to_numpy(call(case, layer, other.astype(x.dtype), **kwargs))
    wide, mask = np.pad(other.astype(x.dtype), ((0, 0), (0, 3), (0, 0))), np.pad(MASK, ((0, 0), (0, 3)))
    wider = ops.convert_to_numpy(call(case, layer, wide, mask, **kwargs))
    assert not np.array_equal(other, x)
    if len(shape) == 3 or shape == (B, T):
        length = shape[1]
        real = np.pad(MASK, ((0, 0), (length - T, 0)), constant_values=1).astype(bool)
        before, after, wider = before[real], after[real], wider[:, :length][real]
    np.testing.assert_allclose(after, before, atol=1e-6)
    np.testing.assert_allclose(wider, before, atol=1e-6)


@every_layer
def test_saved_and_loaded(case, rng, tmp_path):
    make, inputs, takes, _ = CASES[case]
    x = inputs(rng)
    arrays = as_list(x)
    symbols = [keras.Input((None, *array.shape[2:]), dtype=array.dtype.name) for array in arrays]
    first = symbols if isinstance(x, list) else symbols[0]
    layer = make(name="layer")
    if takes:
        values, second_shape = SECOND[takes]
        second = keras.Input(second_shape, dtype="int32")
        out = layer(first, second) if isinstance(takes, str) else layer(first, mask=second)
        symbols, arrays = [*symbols, second], [*arrays, values]
    else:
        out = layer(first)
    model = keras.Model(symbols, out)
    filled(layer, rng)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("layer").get_config() == layer.get_config()
    assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]
    expected, actual = model(arrays), loaded(arrays)
    for left, right in zip(tf.nest.flatten(expected), tf.nest.flatten(actual), strict=True):
        assert np.array_equal(ops.convert_to_numpy(left), ops.convert_to_numpy(right))


@pytest.mark.parametrize("case", [case for case in CASES if case not in WHOLE_NUMBERS])
@pytest.mark.parametrize("training", [False, True])
def test_mixed_precision(case, rng, training):
    make, inputs, _, _ = CASES[case]
    x = inputs(rng)
    layer = make(dtype="mixed_bfloat16")
    kwargs = {"training": training} if case.startswith(("ProjectedLSTM", "Transformer")) else {}
    out = call(case, layer, x, **kwargs)
    assert out.dtype == tf.bfloat16
    assert all(weight.dtype == "float32" for weight in layer.weights)
    full = make(dtype="float32")
    call(case, full, x)
    full.set_weights(layer.get_weights())
    if "Transformer" not in case or not training:  # dropout
        expected = ops.convert_to_numpy(call(case, full, x, **kwargs))
        np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(out, "float32")), expected, atol=0.1)
    assert np.isfinite(ops.convert_to_numpy(ops.cast(out, "float32"))).all()


@pytest.mark.parametrize("case", [case for case in CASES if case not in WHOLE_NUMBERS])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_gradients_reach_every_weight_and_the_input(case, rng, dtype):
    make, inputs, _, _ = CASES[case]
    x = inputs(rng)
    layer = make(dtype=dtype)
    kwargs = {"training": True} if case.startswith("ProjectedLSTM") else {}
    call(case, layer, x)
    filled(layer, rng)
    tensors = [tf.convert_to_tensor(array) for array in as_list(x)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        out = tf.cast(call(case, layer, tensors if isinstance(x, list) else tensors[0], **kwargs), tf.float32)
        loss = tf.reduce_sum(out * rng.normal(size=out.shape))
    sources = [weight.value for weight in layer.trainable_variables]
    if tensors[0].dtype.is_floating:
        sources += tensors
    for source, gradient in zip(sources, tape.gradient(loss, sources), strict=True):
        assert gradient is not None and gradient.shape == source.shape
        dense = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(dense).all() and np.abs(dense).max() > 0
