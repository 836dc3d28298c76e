"""Text to answers from a .tflite file, with LiteRT and NumPy: neither TensorFlow nor Keras is imported."""

import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.inference.filling import Filler
from keras_ctxrep.inference.generator import Generator
from keras_ctxrep.inference.predictor import Engine, Predictor
from keras_ctxrep.inference.silence import quiet_stderr
from keras_ctxrep.options import Generation
from keras_ctxrep.tasks import Task
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pairs import PAIR
from keras_ctxrep.version import install_hint
from keras_ctxrep_tflite import mediapipe, weights

__all__ = ["LiteRTEngine", "filler", "generator", "load"]

SUBWORDS = ("subword_ids", f"{PAIR}subword_ids")  # the inputs of word vectors with n-grams
MASKS = ("mask", f"{PAIR}mask", "memory_mask")  # the inputs that say how many tokens there are
ROWS = 32  # of a word, or a multiple of it: fewer sizes, since a change of size costs as much as several texts
COPY, CONVERT = "copy the file again, or convert the model again", "convert the model again"


def load(path: str | Path, threads: int = 1) -> Predictor:
    """A predictor of a .tflite file written by `ctxrep tflite`, which has answered a first text.

    Each text runs through the signature of the smallest length that holds it. LiteRT maps a copy of the file into
    memory, so that the file itself may change, and packs its weights once for all lengths, on Linux; elsewhere once for
    each length. Threads of Python may share the predictor: they take turns.

    Args:
        path: the file.
        threads: of LiteRT.

    Raises:
        ValueError: the file is missing, damaged, has no bundle in it or that of another model, or `threads` is below 1.
        ImportError: LiteRT is not installed.

    >>> load("missing.tflite")
    Traceback (most recent call last):
    ValueError: missing.tflite: no such file or folder
    """
    return opened(path, bundles.load(path), threads)


class LiteRTEngine(Engine):
    """A .tflite file as an engine, which has run once.

    Args:
        path, threads: as in `load`.
        bundle: of the file, or with another search.
    """

    exported = True

    def __init__(self, path: Path, bundle: Bundle, threads: int = 1):
        self.name, self.path, self.bundle = path.name, path, bundle
        if bundle.generates:
            self.generate = generator(path, bundle, threads)
        elif bundle.fills:
            self.fill = filler(path, bundle, threads)
        else:
            self.answer = opened(path, bundle, threads)


def opened(path: str | Path, bundle: Bundle, threads: int = 1, data: bytes | None = None) -> Predictor:
    """The predictor of a file, as in `load`, of which the bundle is read already.

    Args:
        path, threads: as in `load`.
        bundle: of the file.
        data: what LiteRT reads, which is not in a file; `path` is then its name in messages.
    """
    with _open(path, threads, data) as model:
        with _naming(path, "its bundle cannot be used", COPY):
            task = tasks.SERVED.get(bundle.task)  # a `Predictor` refuses one without answers
            predictor = Predictor(bundle, model if task is None else task.run(bundle, model.functions(task)))
            marks = [[(0, 1)] * bundle.reads.marks] if bundle.reads.marks else None
            texts, pairs = ["a"], ["a"] if bundle.pairs else None
            rows = bundle.features.encode(texts, pairs, bundle.reads.words, marks)
        with _naming(path, "its bundle is not of its model", COPY):
            model.open_signatures(predictor.task, bundle, bundle.features.collate(rows))
            predictor(texts, pairs, marks)
    return predictor


def generator(path: str | Path, bundle: Bundle, threads: int = 1) -> Generator:
    """What generates text by the signature "step" of a file, of a language model in one direction.

    Args:
        path, threads: as in `load`.
        bundle: of the file.

    Raises:
        ValueError: the file is damaged or of another model, or `threads` is below 1.
    """
    with _open(path, threads) as model, _naming(path, "its bundle is not of its model", COPY):
        made = Generator(bundle, model, model.open_step(len(bundle.tokens.vocab)), together=1)
        made(["a"], Generation(length=1))
    return made


def filler(path: str | Path, bundle: Bundle, threads: int = 1, data: bytes | None = None) -> Filler:
    """What names words for the masks of texts by a file of a masked language model.

    Args:
        path, bundle, threads, data: as in `opened`.

    Raises:
        ValueError: the file is damaged or of another model, or `threads` is below 1.
    """
    with _open(path, threads, data) as model, _naming(path, "its bundle is not of its model", COPY):
        made = Filler(bundle, model, model.open_masked(bundle))
        made(["[MASK]"], 1)
    return made


@contextmanager
def _open(path: str | Path, threads: int, data: bytes | None = None) -> "Iterator[_Model]":
    """A file that LiteRT has opened, or a model in memory; what LiteRT logs of its first run in the block is not shown.

    The models of a file with several share what LiteRT has opened as long as one of them is there.
    """
    if threads < 1:
        raise ValueError(f"threads={threads}: at least 1")
    file, part = artifacts.part(path) if data is None else (path, "")
    key = () if data is not None else _version(file, threads)
    with quiet_stderr():
        shared = _SHARED.get(key) if part else None
        if shared is None:
            with _private_copy(file, data) as copy:
                _check_weights(file, np.memmap(copy or file, np.uint8, "r") if data is None else data)
                with _naming(file, "not a TFLite file that LiteRT can run", CONVERT):
                    shared = _File(file, copy, threads, data)
            if part:
                _SHARED[key] = shared
        yield _Model(path, shared, f"{part}/" if part else "")


def _version(file: str | Path, threads: int) -> tuple:
    """What is another one for each version of a file."""
    state = os.stat(file)
    return os.path.abspath(file), state.st_ino, state.st_size, state.st_mtime_ns, threads


def _check_weights(path: str | Path, model: Any) -> None:
    """Raises a ValueError if weights are not finite: 1 ms of a processor for 1 MB, less than the hash of the file."""
    try:
        floats = [*weights.floats(model)]
    except Exception:  # it is not the flatbuffer of a model, of which LiteRT says what is wrong
        return
    artifacts.check_finite(path, floats)


class _File:
    """A file, or data in memory, that LiteRT has opened; it is closed when nothing refers to it.

    It is opened from a copy, which may be gone afterwards, or from memory, where there was no room for one.
    """

    def __init__(self, path: str | Path, copy: str | Path | None, threads: int, data: bytes | None = None):
        try:
            from ai_edge_litert.compiled_model import CompiledModel
            from ai_edge_litert.options import CpuOptions, Options
        except ImportError:
            raise ImportError(f"running .tflite files needs LiteRT: {install_hint('edge')}") from None
        cache = ":memory" if sys.platform == "linux" else ""  # of packed weights
        options = Options(cpu_options=CpuOptions(num_threads=threads, xnnpack_weight_cache_path=cache))
        self.taking_turns, self.signatures = threading.Lock(), weakref.WeakSet[_Signature]()
        if copy is None:
            self.compiled = CompiledModel.from_buffer(data or Path(path).read_bytes(), options=options)
        else:
            self.compiled = CompiledModel.from_file(str(copy), options=options)
        weakref.finalize(self, _close, self.compiled, self.signatures)

    def signature(self, name: str) -> "_Signature":
        """A signature, with buffers of its own."""
        signature = _Signature(self.compiled, name)
        self.signatures.add(signature)
        return signature


_SHARED: weakref.WeakValueDictionary[tuple, _File] = weakref.WeakValueDictionary()


class _Model:
    """A model in a file that LiteRT has opened: the function that a `Predictor` runs.

    The names of its signatures begin with `prefix`, "" of the one model of a file.
    """

    def __init__(self, path: str | Path, file: _File, prefix: str = ""):
        self.path, self.file, self.prefix = path, file, prefix
        self.signatures: dict[int, _Signature] = {}  # by their lengths
        self.steps: dict[str, dict[int, _Signature]] = {}  # those of other parts of the model, by name
        names = file.compiled.get_signature_list()
        self.names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _signature(self, name: str) -> "_Signature":
        return self.file.signature(self.prefix + name)

    def open_signatures(self, task: Task, bundle: Bundle, sample: dict[str, np.ndarray]) -> None:
        """Opens the signature of each length; a ValueError if its inputs, as of a sample, or outputs do not fit."""
        self.task = task
        for length in _lengths(self.names, bundle, self.steps):
            self.signatures[length] = self._signature(f"length_{length}")
            self.signatures[length].check(task, bundle, sample, length)
            for name, signatures in self.steps.items():
                signatures[length] = self._signature(f"{name}_{length}")

    def functions(self, task: Task) -> Mapping[str, Callable[[dict[str, np.ndarray]], Mapping[str, Any]]]:
        """What runs the parts of a task's model, by name."""
        if len(task.model_parts) == 1:
            return {"ids": self}
        names = {name.partition("_")[0] for name in self.names} - {"length"}
        self.steps.update({name: {} for name in sorted(names)})

        def of_equal_length(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return _equal_length(self(batch), batch["mask"].shape[1])

        return {"ids": of_equal_length} | {name: partial(self._steps, name) for name in self.steps}

    def _steps(self, name: str, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Runs another signature than "length_N": a step, or a loop of steps over a text."""
        outputs = self._each(batch, self.steps[name])
        read = batch.get("memory_mask")
        return outputs if read is None else _equal_length(outputs, read.shape[1], ("attention",))

    def open_step(self, vocabulary: int) -> int:
        """Opens the signature "step"; gives the numbers of its state, or a ValueError if its tensors do not fit."""
        step = self.signatures[1] = self._signature("step")
        inputs = {name: (tensor["dtype"], tensor["shape"]) for name, tensor in step.inputs.items()}
        size = (inputs.get("state") or ("", [1, 0]))[1][-1]
        ids, state = ("int32", [1, 1]), ("float32", [1, size])
        if inputs != {"token_ids": ids, "mask": ids, "state": state}:
            raise ValueError(f"step reads {inputs}")
        outputs = {name: tensor["shape"] for name, tensor in step.outputs.items()}
        if outputs != {"logits": [1, 1, vocabulary], "state": [1, size]}:
            raise ValueError(f"step gives {outputs}, for a vocabulary of {vocabulary} tokens")
        return size

    def open_masked(self, bundle: Bundle) -> int:
        """Opens the signatures of a masked language model; gives how many masks they answer, or a ValueError."""
        positions = 0
        for length in _lengths(self.names, bundle):
            signature = self.signatures[length] = self._signature(f"length_{length}")
            inputs = {name: (tensor["dtype"], tensor["shape"]) for name, tensor in signature.inputs.items()}
            positions = (inputs.get("mlm_positions") or ("", [1, 0]))[1][-1]
            expected = {name: ("int32", [1, length]) for name in bundle.features.keys}
            if not positions or inputs != expected | {"mlm_positions": ("int32", [1, positions])}:
                raise ValueError(f"{signature.name} reads {inputs}")
            outputs = {name: tensor["shape"] for name, tensor in signature.outputs.items()}
            if outputs != {"mlm_logits": [1, positions, len(bundle.vocab)]}:
                raise ValueError(f"{signature.name} gives {outputs}, for a vocabulary of {len(bundle.vocab)} pieces")
        return positions

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        return self._each(batch, self.signatures)

    def _each(self, batch: dict[str, np.ndarray], signatures: "dict[int, _Signature]") -> dict[str, list[np.ndarray]]:
        """The outputs of each row, of the length of the signature that it runs through."""
        count = len(next(iter(batch.values())))
        rows = [self._run({name: array[i : i + 1] for name, array in batch.items()}, signatures) for i in range(count)]
        return {name: [row[name][0] for row in rows] for name in rows[0]}

    def _run(self, inputs: dict[str, np.ndarray], signatures: "dict[int, _Signature]") -> dict[str, np.ndarray]:
        tokens = max(int(inputs[name].sum()) for name in MASKS if name in inputs)
        signature = signatures[min(length for length in signatures if length >= tokens)]
        with self.file.taking_turns, _naming(self.path, "LiteRT cannot run this text", CONVERT):
            outputs = signature(inputs)
        if mediapipe.PROBABILITIES in outputs:
            outputs["logits"] = mediapipe.logits(outputs.pop(mediapipe.PROBABILITIES), self.task)
        return outputs


def _equal_length(outputs: dict[str, list], length: int, names: Sequence[str] = ("memory",)) -> dict[str, np.ndarray]:
    """Outputs as arrays; those of these names, which have the length of their signature, cut or padded to a length."""
    return {
        name: np.stack([_fit(row, length, 0) if name in names else row for row in rows])
        for name, rows in outputs.items()
    }


def _close(model: Any, signatures: "weakref.WeakSet[_Signature]") -> None:
    """Frees a model, of which LiteRT logs each step too."""
    with quiet_stderr():
        for signature in signatures:
            signature.buffers = [], []
        model.close()
        model.environment.close()


@contextmanager
def _private_copy(path: str | Path, data: bytes | None = None) -> Iterator[str | Path | None]:
    """A copy of a file, or of data, in the temporary folder, which is gone when LiteRT has opened it; None if there is
    no room.

    LiteRT maps what it opens, and a mapped file that is cut ends the process by SIGBUS. A copy of 400 MB takes 0.4
    seconds, as reading it for `CompiledModel.from_buffer` does, which also adds 400 MB to the memory of the process.
    Windows lets nobody change a mapped file.
    """
    if os.name != "posix":
        yield path if data is None else None
        return
    with ExitStack() as stack:
        try:
            copy = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".tflite")).name
            if data is None:
                shutil.copyfile(path, copy)
            else:
                Path(copy).write_bytes(data)
        except OSError:
            copy = None
        yield copy


class _Signature:
    """A signature of a LiteRT model, with its buffers."""

    def __init__(self, model: Any, name: str):
        self.model, self.name, self.index = model, name, model.get_signature_index(name)
        self.inputs: dict[str, dict] = model.get_input_tensor_details(name)
        self.outputs: dict[str, dict] = model.get_output_tensor_details(name)
        self.buffers: tuple[list, list] = [], []
        self.subwords = [name for name in SUBWORDS if name in self.inputs]
        self._resize(dict.fromkeys(self.subwords, ROWS))

    def _resize(self, rows: dict[str, int]) -> None:
        """Makes the buffers, with room for these numbers of n-grams of a word, of which the file leaves them open."""
        for name, count in rows.items():
            shape = self.inputs[name]["shape"]
            shape[2] = count
            self.model.resize_input_tensor_by_name(self.name, name, shape)
        self.buffers = self.model.create_input_buffers(self.index), self.model.create_output_buffers(self.index)

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        most = {name: int(np.count_nonzero(inputs[name], 2).max(initial=0)) for name in self.subwords}
        rows = {name: ROWS * max(1, -(-count // ROWS)) for name, count in most.items()}
        inputs = inputs | {name: _fit(inputs[name], count, 2) for name, count in rows.items()}
        if any(count != self.inputs[name]["shape"][2] for name, count in rows.items()):
            self._resize(rows)
        for (name, tensor), buffer in zip(self.inputs.items(), self.buffers[0], strict=True):
            buffer.write(_fit(inputs[name], tensor["shape"][1]))
        self.model.run_by_index(self.index, *self.buffers)
        outputs = {}
        for (name, tensor), buffer in zip(self.outputs.items(), self.buffers[1], strict=True):
            outputs[name] = buffer.read(int(np.prod(tensor["shape"])), tensor["dtype"]).reshape(tensor["shape"])
        return outputs

    def check(self, task: Task, bundle: Bundle, sample: dict[str, np.ndarray], tokens: int) -> None:
        """Raises a ValueError if a name, a shape or the number of labels is not that of the bundle."""
        if set(self.inputs) != set(sample):
            raise ValueError(f"{self.name} reads {', '.join(sorted(self.inputs))}, not {', '.join(sorted(sample))}")
        for name, tensor in self.inputs.items():
            length = sample[name].shape[1] if name == "marks" else tokens
            length = bundle.features.size(name, length)
            expected = [1, length, *(tensor["shape"] if name in SUBWORDS else sample[name].shape)[2:]]
            if tensor["shape"] != expected or tensor["dtype"] != "int32":
                raise ValueError(f"{self.name}: {name} is {tensor['dtype']} {tensor['shape']}, not int32 {expected}")
        shapes = {name: tensor["shape"] for name, tensor in self.outputs.items()}
        if mediapipe.PROBABILITIES in shapes:
            shapes = {"logits": shapes[mediapipe.PROBABILITIES]}
        if "pooled" in shapes:  # the vector in files before 0.3
            shapes.setdefault("vector", shapes["pooled"])
        if missing := [output for output in task.model_outputs if output not in shapes]:
            raise ValueError(f"{self.name} has no output {missing[0]!r}, which a model for {task.name} has")
        labels = len(bundle.labels)
        if "logits" in shapes and shapes["logits"][-1] != max(labels, 1):  # a regression has no label
            raise ValueError(f"{self.name} has {shapes['logits'][-1]} logits for {labels} labels")


def _lengths(names: Sequence[str], bundle: Bundle, parts: Collection[str] = ()) -> list[int]:
    """The lengths of a model's signatures, of which those in `parts` are there for each length too.

    A ValueError if one has another name, or none is long enough.
    """
    lengths = []
    for name in names:
        prefix, _, length = name.partition("_")
        if prefix in parts and length.isdecimal():
            continue
        if prefix != "length" or not length.isdecimal():
            raise ValueError(f"it has a signature {name!r}, where length_16 for example is expected")
        lengths.append(int(length))
    if max(lengths, default=0) < bundle.max_length:
        raise ValueError(f"it has no signature length_{bundle.max_length}; its longest has {max(lengths, default=0)}")
    return sorted(lengths)


@contextmanager
def _naming(path: str | Path, problem: str, remedy: str) -> Iterator[None]:
    """Errors within it name the file."""
    try:
        yield
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: {problem}: {error}; {remedy}") from None
    except KeyError as error:
        raise ValueError(f"{path}: {problem}: {error.args[0]} is missing; {remedy}") from None


def _fit(array: np.ndarray, size: int, axis: int = 1) -> np.ndarray:
    """An array cut or padded with zeros to a size along an axis; what is cut is padding."""
    array = array[(*[slice(None)] * axis, slice(size))]
    return np.pad(array, [(0, size - have if at == axis else 0) for at, have in enumerate(array.shape)])
