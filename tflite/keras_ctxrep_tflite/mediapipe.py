"""Makes a .tflite file one that TextClassifier and TextEmbedder of MediaPipe Tasks run on raw text."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.tasks import Task
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import TOKENIZER
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SpecialTokens
from keras_ctxrep_tflite import weights

__all__ = ["check", "describe", "logits"]

LABELS = "labels.txt"
PROBABILITIES = "probabilities"  # the output in place of "logits"
_INPUTS = {"token_ids": "ids", "mask": "mask", "segment_ids": "segment_ids"}  # our names -> MediaPipe's
# of https://github.com/google-ai-edge/mediapipe, mediapipe/tasks/metadata/metadata_schema.fbs
_IDENTIFIER, _PARSER = b"M001", "1.1.0"  # the first parser with BertTokenizerOptions
_AXIS_LABELS, _VOCABULARY, _BERT_TOKENIZER = 2, 5, 4


def check(bundle: Bundle, source: str | Path) -> None:
    """Raises a ValueError, with the path in `source`, if MediaPipe has no task that answers as this model does."""
    reason = None
    pieces, task = "token_ids" in bundle.features.keys, tasks.SERVED.get(bundle.task)
    if not pieces or bundle.reads.words or bundle.reads.marks or not (task and task.mediapipe):
        kind = bundle.family if pieces else f"{bundle.family} over words"
        reason = f"its text tasks are a classifier and an embedder over word pieces, not {kind} for {bundle.task}"
    elif bundle.pairs:
        reason = "its text tasks read single texts, and this model pairs"
    elif bundle.tokenizer:
        reason = f"its tokenizer is WordPiece, and that of this model a {bundle.subwords.kind} of {TOKENIZER}"
    elif not bundle.lowercase:
        reason = "its tokenizer always lower-cases text, and this model is cased"
    elif bundle.special_tokens != SpecialTokens():
        reason = f"its tokenizer has BERT's special tokens, and this vocabulary {bundle.special_tokens.cls}"
    elif any("\n" in label or not label for label in bundle.labels):
        reason = "labels are the lines of a file, and one of them is empty or has a line break"
    if reason:
        raise ValueError(f"{source}: not for MediaPipe: {reason}")


def describe(path: str | Path) -> None:
    """Rewrites a .tflite file of `quantize.convert` for MediaPipe.

    The graph of a classifier then ends in its probabilities, which MediaPipe shows as they are, and that of an encoder
    in the text's vector alone. TFLite's metadata tell the inputs apart and name the vocabulary and the labels, which
    lie uncompressed in the zip archive at the file's end, beside the bundle. `runtime` reads the file as before.

    Args:
        path: the file, which has one length.

    Raises:
        ValueError: MediaPipe has no task that answers as this model does, or the file has several lengths.
    """
    import flatbuffers

    schema, bundle = weights.schema(), bundles.load(path)
    check(bundle, path)
    with open(path, "rb") as file:
        model: Any = weights.read(file.read())
    if len(model.subgraphs) != 1:
        raise ValueError(f"{path}: not for MediaPipe: it reads files of one length, not of {len(model.subgraphs)}")
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    task = tasks.get(bundle.task)
    if "vector" in task.model_outputs:
        _keep_output(graph, signature, "vector")
    else:
        _add_probabilities(model, signature, task)
    names = {entry.tensorIndex: _text(entry.name) for entry in signature.inputs}
    metadata = flatbuffers.Builder(1024)
    tables = _metadata(bundle, [names[index] for index in graph.inputs])
    metadata.Finish(_write(metadata, tables), _IDENTIFIER)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data, entry.name, entry.buffer = bytes(metadata.Output()), "TFLITE_METADATA", len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    files = {LABELS: "".join(f"{label}\n" for label in bundle.labels).encode()} if bundle.labels else {}
    bundles.write_tflite(path, weights.packed(model), bundle, files)


def logits(probabilities: np.ndarray, task: Any) -> np.ndarray:
    """Logits of which a task's scores are these probabilities; those of 0 and 1 are as of the nearest float32.

    >>> from keras_ctxrep import tasks
    >>> logits(np.array([0.5, 0.5]), tasks.get("multilabel"))
    array([0., 0.])
    """
    clipped = np.clip(np.asarray(probabilities, np.float64), 1e-38, 1.0)
    if task.activation == "softmax":
        return np.log(clipped)
    return np.log(clipped) - np.log(np.maximum(1 - clipped, 1e-8))


def _keep_output(graph: Any, signature: Any, name: str) -> None:
    """Leaves one output in a graph and its signature, and the operators that it needs."""
    signature.outputs = [entry for entry in signature.outputs if _text(entry.name) == name]
    graph.outputs = [entry.tensorIndex for entry in signature.outputs]
    needed, operators = set(graph.outputs), []
    for operator in reversed(graph.operators):
        if needed.intersection(operator.outputs):
            needed.update(operator.inputs)
            operators.append(operator)
    graph.operators = operators[::-1]


def _add_probabilities(model: Any, signature: Any, task: Task) -> None:
    """Appends the operator from logits to probabilities, whose output replaces the logits."""
    (graph,), (output,), schema = model.subgraphs, signature.outputs, weights.schema()
    logits, writer = output.tensorIndex, weights.Writer(model)
    kind, options = "LOGISTIC", ()
    if task.activation == "softmax":
        kind, options = "SOFTMAX", ("SoftmaxOptions", schema.SoftmaxOptionsT())
        options[1].beta = 1.0
    output.name = PROBABILITIES
    output.tensorIndex = writer.add(graph, PROBABILITIES.encode(), graph.tensors[logits].shape, "FLOAT32")
    graph.outputs = [output.tensorIndex]
    writer.insert(graph, len(graph.operators), kind, [logits], graph.outputs, *options)


def _metadata(bundle: Bundle, inputs: list[str]) -> tuple:
    """The metadata of a model, for the inputs of its graph: tables as tuples of fields in the order of the schema."""
    vocabulary = (bundles.VOCAB, "the pieces, in the order of their ids", _VOCABULARY)
    labels = (LABELS, "the labels, in the order of the output", _AXIS_LABELS)
    output = ("probability", "of each label", None, None, None, None, [labels])
    if not bundle.labels:
        output = ("embedding", "the vector of the text")
    tokenizer = (_BERT_TOKENIZER, ([vocabulary],))  # it splits and normalises by rules of MediaPipe's own
    graph = ("text", None, [(_INPUTS[name], "[CLS] text [SEP]") for name in inputs], [output], None, [tokenizer])
    description = f"{bundle.family} for {bundle.task}, for {tasks.get(bundle.task).mediapipe}"
    return ("keras_ctxrep", description, None, [graph], None, None, None, _PARSER)


def _write(builder: Any, value: Any) -> int:
    """Writes a text, a table or a list of tables, what it refers to first; returns its offset."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, list):
        offsets = [_write(builder, table) for table in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    fields = [(slot, field) for slot, field in enumerate(value) if field is not None]
    offsets = {slot: _write(builder, field) for slot, field in fields if not isinstance(field, int)}
    builder.StartObject(len(value))
    for slot, field in fields:
        if slot in offsets:
            builder.PrependUOffsetTRelativeSlot(slot, offsets[slot], 0)
        else:
            builder.PrependInt8Slot(slot, field, 0)
    return builder.EndObject()


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
