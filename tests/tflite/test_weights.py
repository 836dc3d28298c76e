"""Number formats of weights: what they cost, what they leave alone, and that signatures share them."""

from dataclasses import asdict, replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_ctxrep import saving, tasks, zoo
from keras_ctxrep.models import elmo
from keras_ctxrep.options import QUANTIZATIONS
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle, load
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_tflite import calibration, quantize, runtime, weights
from tests import tiny

VOCAB = (*SPECIAL_PIECES, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"))
TEXTS = ["the cat sat", "a", "dogs and cats run over the hills", "z y x w v u t s r q p o n m l k j i h g"]
SIZE = {"none": 1.0, "float16": 0.75, "dynamic": 0.6}  # at most, of the float32 file of a small model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier over BERT whose embeddings and residual stream have rows and values of very different sizes."""
    keras.utils.set_random_seed(0)
    sizes = {"layers": 2, "width": 64, "heads": 4, "intermediate": 128, "max_positions": 32, "initializer_range": 0.2}
    bundle = tiny.bundle("classify", labels=("x", "y", "z"), vocab=VOCAB, max_length=32, sizes=sizes)
    model = saving.build(bundle)
    table = model.get_layer("token_embedding").embeddings
    table.assign(np.asarray(table) * np.where(np.arange(len(VOCAB)) == 5, 50.0, 1.0)[:, None])  # one large row
    path = tmp_path_factory.mktemp("bert")
    saving.save(path, model, bundle)
    return path


@pytest.fixture(scope="module")
def model(folder, tflite_in_process):
    return quantize.float_model(folder, (8, 16, 32))[0]


def logits(data, bundle, length=32, texts=TEXTS):
    interpreter = Interpreter(model_content=data)
    runner = interpreter.get_signature_runner(f"length_{length}")
    names = runner.get_input_details()
    rows = bundle.features.encode(texts)
    inputs = [bundle.features.collate([row]) for row in rows]
    fitted = [{n: np.pad(x[n], ((0, 0), (0, length - x[n].shape[1]))) for n in names} for x in inputs]
    return np.concatenate([runner(**each)["logits"] for each in fitted])


@pytest.fixture(scope="module")
def bundle(folder):
    return load(folder)


def test_weights_have_the_names_of_the_keras_model(model):
    names = list(weights.sizes(model))
    assert names[0] == "token_embedding/embeddings" and names[-1] == "pooler/kernel"
    assert weights.sizes(model)["layer_1/feed_forward/kernel"] == 64 * 128
    assert len(names) == 2 + 2 * 4


@pytest.mark.parametrize(("form", "error"), [("none", 1e-5), ("float16", 0.01), ("dynamic", 0.15)])
def test_the_answers_are_near(form, error, model, bundle, folder):
    expected = np.concatenate([saving.load(folder)[0](b)["logits"] for b in batches(bundle)])
    data = weights.quantized(model, form, list(weights.sizes(model)))
    assert np.abs(logits(data, bundle) - expected).max() < error * expected.std()
    assert len(data) <= SIZE[form] * len(model)


def batches(bundle):
    return [bundle.features.collate([row]) for row in bundle.features.encode(TEXTS)]


def test_each_row_of_an_embedding_has_a_scale(model, bundle):
    """One large row costs the others nothing; with a scale for the whole table it costs them 50 times as much."""
    expected = logits(model, bundle)
    own = logits(weights.quantized(model, "dynamic", ["token_embedding/embeddings"]), bundle)
    assert 0 < np.abs(own - expected).max() < 0.02 * expected.std()


def test_layers_that_stay_float32(model, bundle):
    names = weights.except_layers(weights.sizes(model), ["layer_0", "pooler"])
    assert "layer_1/qkv/kernel" in names and not [name for name in names if name.startswith(("layer_0", "pooler"))]
    details = Interpreter(model_content=weights.quantized(model, "dynamic", names)).get_tensor_details()
    kinds = {each["name"]: each["dtype"].__name__ for each in details}
    assert kinds["layer_0/qkv/kernel"] == kinds["pooler/kernel"] == "float32"
    assert kinds["layer_1/qkv/kernel"] == "int8"
    assert weights.quantized(model, "dynamic", []) == weights.packed(weights.read(model))
    with pytest.raises(ValueError, match="keep_float='layer_7': this model has no such layer; they are token_emb"):
        weights.except_layers(weights.sizes(model), ["layer_7"])


def ranges_on(model, bundle, path):
    """The ranges of the activations on the texts of a file."""
    return calibration.ranges(model, calibration.inputs_of([path], tasks.of_model(bundle), bundle))


def test_fixed_ranges_from_texts(model, bundle, tmp_path):
    """Dense layers compute on integers; those whose few large values would cost the others stay dynamic."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n\n")
    ranges = ranges_on(model, bundle, tmp_path / "texts.txt")
    assert set(ranges) <= set(weights.sizes(model)) and "layer_0/qkv/kernel" in ranges
    data = weights.quantized(model, "int8", None, ranges)
    assert weights.operators(data)["QUANTIZE"] == 3 * len(ranges) == weights.operators(data)["DEQUANTIZE"]
    expected = logits(model, bundle)
    assert np.abs(logits(data, bundle) - expected).max() < 0.3 * expected.std()
    short = [logits(data, bundle, length, TEXTS[1:2]) for length in (8, 32)]
    np.testing.assert_allclose(*short, atol=0.1 * expected.std())
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.txt: no text in it"):
        ranges_on(model, bundle, tmp_path / "empty.txt")


def test_layers_with_a_few_large_values_have_no_fixed_range(model, bundle, tmp_path):
    rows = '{"text": "the cat", "label": "x"}\n{"text": "dogs run", "label": "y"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    assert ranges_on(model, bundle, tmp_path / "rows.jsonl")
    values = np.random.default_rng(0).normal(size=1000)
    coarse = []
    for x in (values, np.append(values, 300.0)):
        coarse.append(calibration.coarseness(np.array([x.min(), x.max(), x.size, x.sum(), (x**2).sum()])))
    assert coarse[0] < calibration.WIDEST < coarse[1]


@pytest.mark.parametrize("form", ["none", "float16", "dynamic", "int8"])
def test_signatures_share_the_weights(form, folder, bundle, model, tflite_in_process, tmp_path):
    """Several lengths in one file: at most 1.1 times the size of the longest alone, without the operators."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    alone = quantize.float_model(folder, (32,))[0]
    sizes = []
    for data in (alone, model):
        ranges = ranges_on(data, bundle, tmp_path / "texts.txt") if form == "int8" else None
        quantized = weights.quantized(data, form, list(weights.sizes(data)), ranges)
        buffers = [buffer.data for buffer in weights.read(quantized).buffers if buffer.data is not None]
        sizes.append(sum(map(len, buffers)))
        assert len({bytes(data) for data in buffers}) == len(buffers)
    assert sizes[1] <= 1.1 * sizes[0]


@pytest.mark.slow  # two conversions of the shipped encoder
def test_the_size_of_a_file_with_several_lengths(tflite_in_process, tmp_path):
    """The shipped BERT at five lengths: at most 1.1 times its file at the longest, in every format."""
    encoder = zoo.find("bert_3_384_12/books_wiki_en")
    bundle = replace(load(encoder), task="embed")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    models = [quantize.float_model(encoder, lengths)[0] for lengths in ((128,), (16, 32, 64, 96, 128))]
    for form in QUANTIZATIONS:
        sizes = []
        for data in models:
            ranges = ranges_on(data, bundle, tmp_path / "texts.txt") if form == "int8" else None
            sizes.append(len(weights.quantized(data, form, list(weights.sizes(data)), ranges)))
        assert sizes[1] <= 1.1 * sizes[0], form


def test_constants_are_aligned(model):
    """Their data begins at multiples of 16 bytes, as the schema asks; NEON and AVX loads may fail elsewhere."""
    data = weights.quantized(model, "dynamic")
    buffers = weights.schema().Model.GetRootAs(data)
    for number in range(1, buffers.BuffersLength()):
        array = buffers.Buffers(number).DataAsNumpy()
        content = bytes(array)
        if len(content) >= 64:
            assert data.find(content) % 16 == 0


def test_an_elmo_keeps_its_loops(tmp_path, tflite_in_process):
    """Kernels within loops are quantized too, and fixed ranges leave them alone."""
    keras.utils.set_random_seed(0)
    config = replace(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"], cells=64, projection=64, max_characters=12)
    bundle = Bundle("elmo", config=asdict(config), max_length=16, labels=("x", "y"), **tasks.bundle_fields("classify"))
    saving.save(tmp_path / "m", saving.build(bundle), bundle)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    data = quantize.float_model(tmp_path / "m", (8, 16))[0]
    assert weights.operators(data)["FILL"] and not uniform(data)
    names = weights.sizes(data)
    assert {"forward_0/recurrent_kernel", "backward_1/kernel", "char_cnn/char_embed"} <= set(names)
    ranges = ranges_on(data, bundle, tmp_path / "texts.txt")
    assert ranges and not [name for name in ranges if "recurrent" in name]
    answers = []
    for form in ("none", "float16", "dynamic", "int8"):
        out = tmp_path / f"{form}.tflite"
        bundles.write_tflite(out, weights.quantized(data, form, list(names), ranges), bundle)
        answers.append(runtime.load(out).probabilities(TEXTS[:3]))
        assert weights.operators(parts_of(out))["WHILE"] == 8
    for own, bound in zip(answers[1:], (1e-3, 0.03, 0.05), strict=True):
        np.testing.assert_allclose(own, answers[0], atol=bound)


def uniform(data):
    """The large constants of one value that a file stores."""
    arrays = [np.frombuffer(bytes(each.data), np.uint8) for each in weights.read(data).buffers if each.data is not None]
    return [array for array in arrays if array.size >= 4 * weights.SMALLEST and len(set(array.tolist())) == 1]


def test_equal_vectors_are_stored_once(model):
    """Shapes, names and scales, which every signature has, and no scales where there are none."""
    data = weights.quantized(model, "dynamic")
    graphs = weights.schema().Model.GetRootAs(data)
    tensors = [graphs.Subgraphs(0).Tensors(i) for i in range(graphs.Subgraphs(0).TensorsLength())]
    scales = [tensor.Quantization().ScaleAsNumpy() for tensor in tensors if tensor.Quantization() is not None]
    assert scales and all(len(scale) for scale in scales)
    places = {}
    for tensor in tensors:
        shape = tensor.ShapeAsNumpy()
        places.setdefault(shape.tobytes(), set()).add(shape.ctypes.data)
    assert len(places) > 3 and all(len(each) == 1 for each in places.values())


def parts_of(path):
    import zipfile

    with zipfile.ZipFile(path) as archive:
        begin = min(entry.header_offset for entry in archive.infolist())
    return path.read_bytes()[:begin]


@pytest.mark.parametrize("spread", [0.0, 1e-4])
def test_a_bias_that_does_not_fit_beside_small_inputs(tmp_path, spread):
    module = tf.Module()
    module.kernel = tf.Variable(np.random.default_rng(0).normal(0, 0.02, (32, 64)), dtype=tf.float32)
    module.run = tf.function(lambda x: {"y": x @ module.kernel + tf.ones(64)})
    signature = module.run.get_concrete_function(tf.TensorSpec((1, 32), tf.float32, "x"))
    tf.saved_model.save(module, str(tmp_path), signatures={"length_16": signature})
    data = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path)).convert()
    ranges = {name: weights.Ranges((0.0, spread), (0.0, 1.0)) for name in weights.sizes(data)}
    assert ranges
    interpreter = Interpreter(model_content=weights.quantized(data, "int8", None, ranges))
    output = interpreter.get_signature_runner("length_16")(x=np.full((1, 32), spread, np.float32))["y"]
    np.testing.assert_allclose(output, np.ones((1, 64)), atol=0.01)
