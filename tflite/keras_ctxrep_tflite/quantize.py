"""Model folders to .tflite files, with their bundle inside."""

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write, temporary_folder
from keras_ctxrep.checks import warn
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.inference.silence import start_tensorflow
from keras_ctxrep.options import LENGTHS, Tflite
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pairs import PAIR
from keras_ctxrep_tflite import acceptance, calibration, compare, weights
from keras_ctxrep_tflite import mediapipe as for_mediapipe
from keras_ctxrep_tflite.runtime import LiteRTEngine

__all__ = ["LENGTHS", "Conversion", "build", "convert", "convert_several"]

T = TypeVar("T")
HALF_MINUTE = 30.0
TOLERANCE = 1e-3  # of a converted model's first outputs, relative to the largest of them or to 1
POSITIONS = 4  # masks that a masked language model answers in one call


def convert(
    folder: str | Path,
    out: str | Path,
    quantize: str = "none",
    lengths: Sequence[int] | None = None,
    calibrate: Sequence[str | Path] | None = None,
    keep_float: Sequence[str] = (),
    mediapipe: bool = False,
    fill: bool = False,
) -> Path:
    """Writes a .tflite file of a model folder, for one text at a time, with built-in operators only.

    A language model in one direction gets one signature, "step": {"token_ids", "mask"}, int32 (1, 1), and "state",
    float32 (1, S), to {"logits", "state"}, which `runtime.generator` runs token by token. With `fill` a pretrained BERT
    keeps its masked language model in place of its vectors: "mlm_positions", int32 (1, 4), to "mlm_logits",
    float32 (1, 4, V), which `runtime.filler` runs.

    A decoder's step has one signature per length too, "step_16", ...: {"token_ids", "memory", "memory_mask", "state"}
    to {"logits", "attention", "state"}; "memory" and the first "state" are the outputs of "length_16", .... "greedy_16"
    and "beam_16", ... are the whole search, from a text's ids to "tokens", "scores", "finished" and "attention".

    The file has one signature per length, "length_16", "length_32", ..., which share the weights: {"char_ids"} or
    {"token_ids", "segment_ids"} and "mask", int32 (1, length), to the model's outputs. Longer texts are cut. The bundle
    and the vocabulary lie in a zip archive at the file's end, which LiteRT ignores and `runtime` reads, so that
    an app ships a single file.

    The conversion runs in a subprocess, since the converter aborts the process on an internal error. It gives float32,
    and `weights.quantized` writes the other formats, since neither TensorFlow's quantizer nor ai-edge-quantizer leaves
    single layers as they are, keeps a scale for each row of an embedding and stores weights once for all signatures.

    Args:
        folder: a task model, an encoder or a language model in one direction; of other pretraining models the encoder
            is taken.
        out: FILE.tflite.
        quantize: "none" (float32), "float16", "dynamic" (8-bit weights, activations quantized on the fly) or "int8"
            (as "dynamic", and dense layers with the fixed ranges of their activations on the texts of `calibrate`).
        lengths: tokens per signature, at most the model's own maximum. None: those of `LENGTHS` below it, and it; with
            `mediapipe` it alone.
        calibrate: files of text for "int8", as in `calibration.inputs_of`.
        keep_float: weights that stay float32, or layers all of whose weights do, e.g. "layer_0/qkv", "pooler".
        mediapipe: of a BERT classifier or encoder: TextClassifier and TextEmbedder of MediaPipe run the file too, see
            `mediapipe.describe`; they read files of one length.
        fill: of a BERT with its masked language model: that one in place of the encoder.

    Returns: `out`.

    Raises:
        ValueError: an option out of range or that does not fit the model or the others, a file name that does not end
            in .tflite or is that of a folder, or calibration texts that the model cannot read.
        TypeError: one string instead of a list of files or of layers.
        RuntimeError: the converter failed; the message holds the end of its output.

    Warns:
        UserWarning: texts are cut that the model reads whole; or "int8" without texts, which is "dynamic".
    """
    options = Tflite(quantize=quantize, calibrate=calibrate, keep_float=keep_float, mediapipe=mediapipe, fill=fill)
    return build(folder, bundles.load(folder), out, options, lengths).write(out)


def convert_several(
    folders: Mapping[str, str | Path],
    out: str | Path,
    quantize: str = "none",
    lengths: Sequence[int] | None = None,
    fill: bool = False,
) -> Path:
    """Writes one .tflite file of several models, which `load("FILE.tflite/NAME")` opens.

    Weights that models have in common are in it once: those of the encoder, of folders that `saving.save_changes` has
    written over the same one. Their low-rank updates are computed beside it.

    Args:
        folders: name -> a model folder.
        out, quantize, lengths: as in `convert`; there is no "int8", which has ranges of one model.
        fill: pretrained BERTs keep their masked language models.

    Returns: `out`.

    Raises:
        ValueError, RuntimeError: as in `convert`; or a language model in one direction, or no name of a file.
    """
    if wrong := next((name for name in folders if not name or name.startswith(".") or "/" in name), None):
        raise ValueError(f"{wrong!r}: a name of a model in a file has letters, digits, - and _")
    if quantize == "int8":
        raise ValueError(f"quantize={quantize!r}: of several models none, float16 or dynamic")
    models, several, options = {}, {}, Tflite(quantize=quantize)
    with _Stages() as stages:
        for name, folder in stages.over([*folders.items()], "converting, each in a subprocess", "models"):
            bundle = bundles.load(folder)
            if bundle.generates:
                raise ValueError(f"{folder}: a language model in one direction has a file of its own")
            masked = fill and bundle.fills
            served = bundle.task in tasks.SERVED or masked
            cut = _check(folder, bundle if served else replace(bundle, task="embed"), out, options, lengths)
            model, several[name] = float_model(folder, cut, masked, merged=False)
            models[name] = weights.quantized(model, quantize)
    with atomic_write(out) as temporary:
        bundles.write_several(temporary, weights.joined(models), several)
    return Path(out)


@dataclass(frozen=True)
class Conversion:
    """A .tflite file that is not written yet."""

    data: bytes  #: what LiteRT reads
    bundle: Bundle  #: of the model; its card has the measured metrics
    options: Tflite  #: number format and the rest
    float_layers: Sequence[str]  #: those that are float32
    rows: Sequence[dict] = ()  #: of Keras and of the file, as in `compare.compare`; empty without data

    def write(self, path: str | Path) -> Path:
        """Writes the file: the model, and the files of its bundle in a zip archive behind it."""
        with atomic_write(path) as temporary:
            bundles.write_tflite(temporary, self.data, self.bundle)
            if self.options.mediapipe:
                for_mediapipe.describe(temporary)
        return Path(path)


def build(
    folder: str | Path,
    bundle: Bundle,
    out: str | Path,
    options: Tflite,
    lengths: Sequence[int] | None = None,
    data: str | Path | None = None,
    report: Callable[[list[dict]], None] | None = None,
) -> Conversion:
    """Converts a model folder as `convert` does, and measures the file against Keras before it is written.

    The metrics go into the model card within the file. A file that loses more than `options.max_drop` is written as
    OUT.rejected.tflite; of a file that is accepted, an earlier one is removed.

    Args:
        folder, lengths: as in `convert`.
        bundle: of the folder.
        out: the file to be written, which is named in messages; nothing is written there.
        options: number format, calibration, layers in float32, bound, and whether to measure each layer.
        data: examples of the model's task; None: nothing is measured.
        report: called with what each layer costs, as in `acceptance.sensitivity`, with `options.explain`.

    Raises:
        ValueError: as in `convert`, or an option that needs data without it.
        acceptance.Rejected: the drop is larger than allowed.
    """
    if bundle.generates or options.fill:
        return _language_model(folder, bundle, out, options, lengths, data)
    automatic = list(options.keep_float or ()) == ["auto"]
    if data is None and (automatic or options.explain):
        raise ValueError(f"{'keep_float auto' if automatic else 'explain'}: needs data to measure the layers with")
    if data is not None:
        compare.check_task(folder, bundle)
    bundle = bundle if bundle.task in tasks.SERVED else replace(bundle, task="embed")  # its encoder is written
    signature_lengths = _check(folder, bundle, out, options, lengths)
    reader = Predictor(bundle, lambda batch: {})
    examples = [] if data is None else [*reader.task.read(data, options.columns)]
    reader.check(examples, folder)
    compare.check_labels(reader.task, bundle, examples)
    cut = replace(bundle, max_length=signature_lengths[-1])
    inputs = calibration.inputs_of(options.calibrate or (), reader.task, cut, options.columns)
    with _Stages() as stages:
        stages.begin("converting in a subprocess: about ten seconds for a small model")
        model, bundle = float_model(folder, signature_lengths)
        texts = stages.over(inputs, "calibrating", "texts")
        ranges = calibration.ranges(model, texts) if inputs else {}
        sizes, float_layers = weights.sizes(model), options.keep_float or ()
        if automatic or options.explain:
            trial = acceptance.Trial(model, bundle, options.quantize, ranges, examples[: acceptance.EXPLAINED])
            layers = acceptance.sensitivity(trial, stages.over([*sizes], "measuring what each layer costs", "layers"))
            stages.close()
            if options.explain and report is not None:
                report(layers)
            if automatic:
                stages.begin("choosing the layers that stay float32")
                float_layers = acceptance.fewest([row["layer"] for row in layers], trial, options.max_drop)
        stages.begin(f"writing the weights as {options.quantize}")
        names = weights.except_layers(sizes, float_layers)
        content = weights.quantized(model, options.quantize, names, ranges)
        conversion = Conversion(content, bundle, options, float_layers)
        return _accept(folder, out, conversion, examples, str(data), stages) if examples else conversion


class _Stages:
    """What a conversion does, on standard error: a bar on a terminal, elsewhere a line every half minute."""

    def __enter__(self) -> "_Stages":
        self._bar: Any = None
        self._told = time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def begin(self, text: str, total: int | None = None, unit: str = "") -> None:
        """Shows what is done from now on, and of how many units."""
        from tqdm import tqdm  # not installed on the edge

        self.close()
        form = "{desc} [{elapsed}]" if total is None else None
        shown: dict[str, Any] = {"file": sys.stderr, "leave": False, "disable": None, "bar_format": form}
        self._bar = tqdm(desc=text, total=total, unit=f" {unit}", **shown)
        self._tell(text)

    def over(self, items: Sequence[T], text: str, unit: str) -> Iterator[T]:
        """Passes items on, one after the other, and shows how many of them are done."""
        self.begin(text, len(items), unit)
        for number, item in enumerate(items, 1):
            yield item
            self._bar.update()
            self._tell(f"{text}: {number:,} of {len(items):,} {unit}")

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _tell(self, text: str) -> None:
        if self._bar.disable and time.monotonic() - self._told >= HALF_MINUTE:
            print(text, file=sys.stderr, flush=True)
            self._told = time.monotonic()


def _language_model(
    folder: str | Path, bundle: Bundle, out: str | Path, options: Tflite, lengths: Sequence[int] | None, data
) -> Conversion:
    """The conversion of what gives logits over its vocabulary: a "step" of a token, or a masked language model."""
    kind = "language model in one direction" if bundle.generates else "masked language model"
    if options.fill and not bundle.fills:
        raise ValueError(f"{folder}: fill is of a pretrained BERT with its masked language model")
    given = {"lengths": lengths if bundle.generates else None, "data": data, "calibrate": options.calibrate}
    given |= {"keep_float": options.keep_float, "mediapipe": options.mediapipe, "explain": options.explain}
    if chosen := [name for name, value in given.items() if value]:
        raise ValueError(f"{chosen[0]}: of models with answers; a {kind} has logits")
    if options.quantize not in ("none", "float16", "dynamic"):
        raise ValueError(f"quantize={options.quantize!r}: of a {kind} none, float16 or dynamic")
    lengths = _check(folder, bundle, out, options, [bundle.max_length] if bundle.generates else lengths)
    model, bundle = float_model(folder, [1] if bundle.generates else lengths, options.fill)
    return Conversion(weights.quantized(model, options.quantize), bundle, options, ())


def _accept(
    folder: str | Path, out: str | Path, conversion: Conversion, examples: Sequence, data: str, stages: _Stages
) -> Conversion:
    """The conversion with its rows and its card, if it does not lose too much."""
    with tempfile.TemporaryDirectory() as scratch:
        stages.begin("opening Keras and the file")
        start_tensorflow()
        from keras_ctxrep import saving
        from keras_ctxrep.inference.keras_engine import KerasEngine

        path = conversion.write(Path(scratch) / Path(out).name)
        file = LiteRTEngine(path, bundles.load(path))
        rows = compare.measured([KerasEngine(*saving.load(folder), Path(folder)), file], examples, stages.over)
    options, bundle = conversion.options, conversion.bundle
    section = acceptance.section(rows, options, conversion.float_layers, Path(data).name, len(examples))
    card = f"{bundle.card.rstrip()}\n\n{section}".lstrip()
    conversion = replace(conversion, rows=rows, bundle=replace(bundle, card=card))
    rejected = Path(out).with_suffix(".rejected.tflite")
    lost = acceptance.drop(rows[1], rows[0], file.answer.task)
    if lost > options.max_drop:
        conversion.write(rejected)
        raise acceptance.Rejected(acceptance.reason(rows, lost, options, rejected, out))
    rejected.unlink(missing_ok=True)  # of an earlier conversion
    return conversion


def _check(
    folder: str | Path, bundle: Bundle, out: str | Path, options: Tflite, lengths: Sequence[int] | None
) -> list[int]:
    """The lengths of the signatures; checks and warns as `convert` says."""
    if not {bundles.WEIGHTS, bundles.UPDATES} & bundle.files.keys():
        raise ValueError(f"{folder}: no {bundles.WEIGHTS} in it; name the model folder that `ctxrep train` wrote")
    if Path(out).suffix != ".tflite":
        raise ValueError(f"{out}: the name must end in .tflite")
    if Path(out).is_dir():
        raise ValueError(f"{out}: a folder; name a file")
    if options.calibrate and options.quantize != "int8":
        raise ValueError(f"quantize={options.quantize!r}: texts to calibrate with are for 'int8'")
    if options.mediapipe:
        for_mediapipe.check(bundle, folder)
        lengths = (bundle.max_length,) if lengths is None else lengths
    signature_lengths = _signature_lengths(lengths, bundle.max_length)
    if options.mediapipe and len(signature_lengths) > 1:
        raise ValueError(f"lengths={signature_lengths}: MediaPipe reads files of one length")
    if signature_lengths[-1] < bundle.max_length:
        read = f"reads {signature_lengths[-1]} tokens of a text, and the model {bundle.max_length}"
        remedy = f"longer texts are cut; add the length {bundle.max_length} to read as much"
        warn(f"lengths={signature_lengths}: the file {read}: {remedy}")
    if options.quantize == "int8" and not options.calibrate:
        remedy = "give texts for fixed ranges of the activations (--calibrate FILE), or choose dynamic"
        warn(f"int8 without texts to calibrate with is the same as dynamic; {remedy}")
    return signature_lengths


def float_model(
    folder: str | Path, lengths: Sequence[int], fill: bool = False, merged: bool = True
) -> tuple[bytes, Bundle]:
    """The float32 model, with the weights' names in Keras and a signature for each length, and its bundle.

    Args:
        folder, lengths, fill: as in `convert`.
        merged: of a folder of changes, as in `updates.apply`.
    """
    with temporary_folder(Path(tempfile.gettempdir(), "ctxrep-converter")) as scratch:
        path = scratch / "model.tflite"
        model = "masked" if fill else "merged" if merged else "beside"
        command = [sys.executable, "-m", "keras_ctxrep_tflite.quantize", str(folder), str(path), model]
        process = subprocess.run([*command, *map(str, lengths)], capture_output=True, text=True)
        if process.returncode:
            tail = "\n".join(process.stderr.strip().splitlines()[-12:])
            raise RuntimeError(f"{folder}: the TFLite converter failed (exit {process.returncode}):\n{tail}")
        bundle = bundles.load(scratch)
        return path.read_bytes(), bundle if bundle.generates else replace(bundle, max_length=lengths[-1])


def _signature_lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    """The lengths of the signatures of a model that reads `longest` tokens.

    >>> _signature_lengths(None, 384), _signature_lengths((64, 512), 384)
    ([16, 32, 64, 128, 256, 384], [64, 384])
    """
    lengths = (*LENGTHS, longest) if lengths is None else lengths
    if not lengths or min(lengths) < 4:
        raise ValueError(f"lengths={list(lengths)}: each must be at least 4")
    return sorted({min(length, longest) for length in lengths})


def _convert(folder: str, out: str, kind: str, lengths: list[int]) -> None:
    """The conversion, run in the subprocess: the only place that knows a converter.

    `kind` is "masked", of a masked language model, or "merged" or "beside", of the low-rank updates of what is served.

    Another one, such as that of litert-torch, has to keep the signatures and the names in `weights`.
    """
    import keras
    import tensorflow as tf

    from keras_ctxrep import saving
    from keras_ctxrep.models import heads

    masked = kind == "masked"
    model, bundle = saving.load(folder) if masked else saving.load_served(folder, kind == "merged")
    if masked:  # without the classifier of next sentences
        model = keras.Model(model.input, {"mlm_logits": model.output["mlm_logits"]})
    bundles.save(bundle, Path(out).parent)
    task = tasks.SERVED.get(bundle.task)
    parts = {"ids": model} if task is None else task.parts(model)

    def run(part, inputs):
        outputs = part(inputs, training=False)
        if "state" in outputs:  # LiteRT gives no buffer to an output that is that of a loop, as of one GRU layer
            outputs["state"] = tf.maximum(outputs["state"], tf.float32.min)
        # where "pooled" is "vector" the converter makes them one output, and LiteRT does not find the other
        names = [name for name in outputs if name != "pooled" or "vector" not in outputs]
        return heads.flat({name: outputs[name] for name in names})

    functions: dict[str, Any] = {name: partial(run, part) for name, part in parts.items()}
    functions |= {} if task is None else task.composed(bundle, functions)
    functions = {name: tf.function(function) for name, function in functions.items()}
    module: Any = tf.Module()
    module.weights = [weight.value for weight in model.weights]  # tracked, hence saved
    signatures = {}
    for name, length in itertools.product(functions, lengths):
        spec = {}
        for key, tensor in parts.get(name, parts["ids"]).input.items():
            count = bundle.features.size(key, length)
            count = POSITIONS if key == "mlm_positions" else count
            shape = [1, *tensor.shape[1:]]
            shape[1:2] = [count if size is None else size for size in shape[1:2]]
            spec[key] = tf.TensorSpec(shape, tensor.dtype, key)  # the number of n-grams, of the last axis, is open
        signature = {"ids": "step" if bundle.generates else f"length_{length}"}.get(name, f"{name}_{length}")
        signatures[signature] = functions[name].get_concrete_function(spec)
    data = _converted(module, signatures, len(bundle.vocab) or 256)
    Path(out).write_bytes(weights.named(data, {weight.path: np.asarray(weight) for weight in model.weights}))


def _converted(module: Any, signatures: Mapping[str, Any], ids: int = 2) -> bytes:
    """The float32 model of some concrete functions over the variables of a `tf.Module`.

    Args:
        module: it has the variables.
        signatures: name -> function.
        ids: tokens or characters that the model knows, by which its answers are compared.

    Raises:
        RuntimeError: the file has variables, which it does not store the values of, or answers otherwise than the first
            function. The converter itself says nothing of that, see https://github.com/tensorflow/tensorflow/issues/98964.
    """
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(module, saved, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(signatures))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        data = converter.convert()
    if lost := sorted(weights.operators(data).keys() & {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}):
        raise RuntimeError(f"the converter stored variables without their values ({', '.join(lost)})")
    name, function = next(iter(signatures.items()))
    specs = function.structured_input_signature
    inputs = {spec.name: _probe(spec, ids) for spec in tf.nest.flatten(specs)}
    positional, keywords = tf.nest.map_structure(lambda spec: tf.constant(inputs[spec.name]), specs)
    runner = Interpreter(model_content=data).get_signature_runner(name)
    answers = runner(**{key: inputs[key] for key in runner.get_input_details()})
    for key, expected in function(*positional, **keywords).items():
        expected, answer = np.asarray(expected), answers[key]
        known = ~np.isnan(expected) | ~np.isnan(answer)  # a text of markers alone may have no vector in either
        difference = np.abs(answer - expected)[known].max(initial=0)
        if not difference <= TOLERANCE * max(1, np.abs(expected)[known].max(initial=0)):  # NaN is not
            raise RuntimeError(f"the converted {name} gives {key} that differ by {difference:.3g} from the model's")
    return data


def _probe(spec: Any, ids: int) -> np.ndarray:
    """Values of an input: of ids one after the other, else ones."""
    shape, dtype = [3 if size is None else size for size in spec.shape], spec.dtype.as_numpy_dtype
    if spec.name.removeprefix(PAIR) in ("token_ids", "word_ids", "subword_ids", "char_ids"):
        return (np.arange(np.prod(shape)) % ids).reshape(shape).astype(dtype)
    return np.ones(shape, dtype)


if __name__ == "__main__":
    _convert(sys.argv[1], sys.argv[2], sys.argv[3], list(map(int, sys.argv[4:])))
