"""What TF Serving and its users need beside the graph of a SavedModel: warm-up requests, configurations, a README.

    BASE/model.config                              for --model_config_file: every model in BASE
    BASE/NAME/1/batching_params.pbtxt              for --enable_per_model_batching_parameters
    BASE/NAME/1/README.md                          how to run and to ask this version, and its model card
    BASE/NAME/1/assets.extra/tf_serving_warmup_requests

Formats: https://www.tensorflow.org/tfx/serving/serving_config, https://www.tensorflow.org/tfx/serving/saved_model_warmup
and https://github.com/tensorflow/serving, tensorflow_serving/batching/README.md.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.inference.messages import PredictionLog, array_of, predict_request
from keras_ctxrep.tasks import Query
from keras_ctxrep.tasks.abilities import Searches
from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.text.bundle import PRETRAINED, TFLITE_FIGURES, Bundle, pretrained_card
from keras_ctxrep.training import history
from keras_ctxrep.training.shards import serialized

__all__ = ["write"]

WARMUP, BATCHING, CONFIG, README = "tf_serving_warmup_requests", "batching_params.pbtxt", "model.config", "README.md"
# Powers of two up to the 32 of `Predictor`; throughput on two cores grows up to the last: docs/explanation/results.md
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
LENGTHS = (19, 6, 30, 90)  # words of the warm-up texts, in turn: a sentence, a headline, a long sentence, a paragraph
PASSAGE = (
    "The ferry left the harbour an hour late because of the fog, and most of the passengers stayed inside. Anna Berg, "
    "who had crossed the strait every week for ten years, read the newspaper to her brother. The bank in the old town "
    "would close in March, it said, and the mayor had promised a new bridge by the end of next year. Neither of them "
    "believed a word of it. When the sun came out at last, they went up on deck and watched the coast of Norway grow "
    "out of the water, first grey and then green."
)
QUESTION = "Why was the ferry late?"
GENERATED = "# Written by `ctxrep export`, which adds models to it. To keep changes of your own, remove this line."


def write(version: Path, base: Path, bundle: Bundle, loaded: Any, source: str | Path | None = None) -> None:
    """Adds the files to a SavedModel that is not yet in place.

    Args:
        version: the SavedModel's folder, of any name.
        loaded: the SavedModel, from this folder.
        base: BASE/NAME, where the version will be.
        bundle: of the model.
        source: the model folder, whose run.json the model card cites.

    Raises:
        RuntimeError: a warm-up request fails: TF Serving would refuse the version.
    """
    base = Path(os.path.abspath(base))  # with a name, which "." has not
    requests = [*warmup_requests(loaded.signatures, bundle, base.name)]
    answers = write_requests(version, requests, loaded)
    weights = sum(weight.shape.num_elements() for weight in loaded.weights)
    run = {} if source is None else history.record(source)
    readme = Readme(base.name, version, bundle, loaded.signatures, weights, run)
    (version / README).write_text(readme.text(requests[0], answers[0]), encoding="utf-8")
    write_config(base.parent, base.name)


def write_requests(version: Path, requests: Sequence[Any], loaded: Any) -> list[dict[str, np.ndarray]]:
    """Writes the warm-up requests and the parameters of batching.

    The first `len(LENGTHS)` rows of each request, among which are all lengths, are run before, once where another
    request begins with the same ones.

    Returns: the answers to these rows of each request.

    Raises:
        RuntimeError: a request fails.
    """
    run: dict[bytes, dict[str, np.ndarray]] = {}
    answers = []
    for request in map(_beginning, requests):
        key = request.SerializeToString(deterministic=True)
        if key not in run:
            run[key] = replay(loaded.signatures, request)
        answers.append(run[key])
    with tf.io.TFRecordWriter(str(version / "assets.extra" / WARMUP)) as writer:
        for request in requests:
            record = PredictionLog()
            record.predict_log.request.CopyFrom(request)
            writer.write(record.SerializeToString())
    (version / BATCHING).write_text(batching_parameters(), encoding="utf-8")
    return answers


def warmup_requests(signatures: Mapping[str, Any], bundle: Bundle, model: str) -> Iterator[Any]:
    """Requests to a SavedModel's signatures, of which the first has one text.

    The raw-string signature gets one for each of `BATCH_SIZES`, since a server that batches runs these sizes alone;
    the others get one text and the largest batch. `model` is its name on the server.
    """
    for name in sorted(signatures, key=lambda name: name != SIGNATURE):
        inputs = signatures[name].structured_input_signature[1].keys()
        for size in BATCH_SIZES if name == SIGNATURE else (BATCH_SIZES[0], BATCH_SIZES[-1]):
            forms = (form for form in _inputs(bundle, size) if inputs <= form.keys())
            if (form := next(forms, None)) is not None:
                yield predict_request({key: form[key] for key in inputs}, model, name)


def _inputs(bundle: Bundle, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Texts of several lengths in the forms that signatures read: strings, words, tf.Examples, the model's own dict."""
    task = tasks.get(bundle.task)
    words = PASSAGE.split(" ")
    rows = [words[: LENGTHS[number % len(LENGTHS)]] for number in range(size)]
    texts = [" ".join(row) for row in rows]
    first = [QUESTION] * size if bundle.reads.windows else texts
    spans = ((match.start(), match.end()) for match in re.finditer(r"\w+", PASSAGE))
    marks = tuple(islice(spans, bundle.reads.marks))  # the first words, which every text has
    queries = [Query(*parts, marks) for parts in zip(first, texts if bundle.pairs else [None] * size, strict=True)]
    columns = [np.array(first, object), *([np.array(texts, object)] if bundle.pairs else [])]
    columns += [np.array([marks] * size, np.int32)] if marks else []
    strings = dict(zip(task.inputs(bundle), columns, strict=True))
    options = task.search_options(bundle) if isinstance(task, Searches) else {}
    chosen = {name: np.full(size, value, np.int32) for name, value in options.items()}
    yield {"text": np.array(texts, object)} | strings | chosen
    padded = [row + [""] * (max(map(len, rows)) - len(row)) for row in rows]
    places = [[(word, word + 1) for word in range(len(marks))]] * size
    yield {"words": np.array(padded, object), "marks": np.array(places, np.int32)}
    yield {"inputs": np.array([_example(strings, number) for number in range(size)], object)}
    yield bundle.features.collate([row for own in task.encode(bundle, queries) for row in own][:size])


def _example(columns: Mapping[str, np.ndarray], number: int) -> bytes:
    """A row of inputs as a serialized tf.Example."""
    row = {name: column[number] for name, column in columns.items()}
    return serialized({key: [x.encode()] if isinstance(x, str) else x.ravel().tolist() for key, x in row.items()})


def _beginning(request: Any) -> Any:
    """A request with the first rows of another one."""
    rows = {key: array_of(tensor)[: len(LENGTHS)] for key, tensor in request.inputs.items()}
    return predict_request(rows, request.model_spec.name, request.model_spec.signature_name)


def replay(signatures: Mapping[str, Any], request: Any) -> dict[str, np.ndarray]:
    """The outputs of the signature that a request is for; a RuntimeError if it fails."""
    name = request.model_spec.signature_name
    try:
        inputs = {key: tf.constant(array_of(tensor)) for key, tensor in request.inputs.items()}
        return {key: value.numpy() for key, value in signatures[name](**inputs).items()}
    except (tf.errors.OpError, TypeError, ValueError) as error:
        raise RuntimeError(f"the signature {name} fails on a warm-up request: {error}") from error


def batching_parameters() -> str:
    """BatchingParameters as text, with the reasons for each value."""
    sizes = "\n".join(f"allowed_batch_sizes: {size}" for size in BATCH_SIZES)
    return f"""\
# Batching of requests by TF Serving: --enable_batching --enable_per_model_batching_parameters.
# It merges requests of many clients with one text each. Leave it off if clients send batches, or one at a time.

# A batch is padded to the next of these sizes, at most to twice its own; each has a warm-up request. No request of a
# client may have more texts than max_batch_size.
max_batch_size {{ value: {BATCH_SIZES[-1]} }}
{sizes}

# How long the first request of a batch waits for others: small beside the milliseconds of a model.
batch_timeout_micros {{ value: 1000 }}

# Beyond these many batches the server answers UNAVAILABLE (503) instead of letting clients wait.
max_enqueued_batches {{ value: 100 }}

# pad_variable_length_inputs stays off: it pads each input with that input's first value, and padding of the mask with 1
# makes padding a part of the text. Texts need no padding; token ids of different lengths are not batched.
"""


def write_config(base: Path, name: str) -> None:
    """Writes BASE/model.config, a ModelServerConfig as text, unless it was changed by hand; warns if it cannot.

    `name` is a model whose first version is not in place yet.
    """
    path = base / CONFIG
    if path.exists() and not path.read_bytes().startswith(GENERATED.encode()):
        return
    versions = [saved.parent for saved in base.glob("*/*/saved_model.pb")]
    names = {name, *(version.parent.name for version in versions if version.name.isdecimal())}
    entries = "".join(
        f"  config {{\n    name: {json.dumps(name, ensure_ascii=False)}\n"
        f"    base_path: {json.dumps(f'/models/{name}', ensure_ascii=False)}\n"
        '    model_platform: "tensorflow"\n  }\n'
        for name in sorted(names)
    )
    try:
        with atomic_write(path) as new:
            new.write_text(f"{GENERATED}\n{_CONFIG_HELP}model_config_list {{\n{entries}}}\n", encoding="utf-8")
    except PermissionError as error:
        warnings.warn(f"{path} was not written: {error}", stacklevel=2)


_CONFIG_HELP = """\
# For --model_config_file, where this folder is mounted as /models. Of each model the latest version is served. To serve
# two at once, and to name them for clients (/v1/models/NAME/labels/stable:predict), put into its config:
#     model_version_policy { specific { versions: 1 versions: 2 } }
#     version_labels { key: "stable" value: 1 }
#     version_labels { key: "canary" value: 2 }
# The labels only after a reload, or with --allow_version_labels_for_unavailable_models.
"""


class Readme:
    """The README.md of a version: how to run and to ask it, what it answers, and its model card."""

    def __init__(self, name: str, version: Path, bundle: Bundle, signatures, weights: int, run: dict[str, Any]):
        self.name, self.version, self.bundle, self.signatures = name, version, bundle, signatures
        self.weights, self.run = weights, run
        card, heading, figures = bundle.card.partition(TFLITE_FIGURES)
        self.card = pretrained_card(card)
        self.figures = heading + figures

    def text(self, request: Any, answer: Mapping[str, np.ndarray]) -> str:
        """The page, from an example request of one text and the outputs for it."""
        parts = [
            f"# {self.name}",
            "A SavedModel for TF Serving that takes raw strings, written by `ctxrep export`; its folder is the number "
            f"of the version. It was run in TensorFlow {tf.__version__}, not in a TF Serving server; its operators are "
            "TensorFlow's and tensorflow-text's, which stock TF Serving binaries have.",
            self._usage(request, answer),
            *(self._signature(name) for name in sorted(self.signatures, key=lambda name: name != SIGNATURE)),
            self._card(),
        ]
        if self.card:
            parts.append(f"{PRETRAINED}\n\n" + _lower_headings(self.card.strip()))
        return "\n\n".join([*parts, *filter(None, [self.figures.rstrip()])]) + "\n"

    def _usage(self, request: Any, answer: Mapping[str, np.ndarray]) -> str:
        name = self.name
        values = {key: array_of(tensor)[0] for key, tensor in sorted(request.inputs.items())}
        instance = {key: x.decode() if isinstance(x, bytes) else x.tolist() for key, x in values.items()}
        body = json.dumps({"instances": [instance]}, ensure_ascii=False)
        texts = [key for key in tasks.get(self.bundle.task).inputs(self.bundle) if isinstance(instance[key], str)]
        if len(texts) == len(instance):
            words = " --pair ".join(f'"{instance[key]}"' for key in texts)
        else:
            words = f"--json '{json.dumps(instance, ensure_ascii=False)}'"
        tensors = ", ".join(f"{key}=tf.constant([{json.dumps(x, ensure_ascii=False)}])" for key, x in instance.items())
        shown = json.dumps({key: _short(value[0]) for key, value in answer.items()}, ensure_ascii=False)
        return f"""\
## Run and ask

In the folder that holds `{name}/`:

```
docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD:/models" tensorflow/serving \\
  --model_config_file=/models/{CONFIG} --enable_batching --enable_per_model_batching_parameters
```

or `tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={name} --model_base_path="$PWD/{name}"`. Then:

```
curl -d '{body}' http://localhost:8501/v1/models/{name}:predict
ctxrep client --url http://localhost:8501 --model {name} {words}
ctxrep client --url grpc://localhost:8500 --model {name} {words}
```

The answer (under "predictions" in what curl prints; "..." for long lists):

```json
{shown}
```

`ctxrep client --bundle FOLDER`, FOLDER a copy of this one, gives answers in the form of `ctxrep predict`.

Without a server, in this folder, with `tensorflow` and `tensorflow-text` of the same minor version:

```python
import tensorflow as tf
import tensorflow_text  # registers the operators that split text

model = tf.saved_model.load(".")
print(model.signatures["{SIGNATURE}"]({tensors}))
```"""

    def _signature(self, name: str) -> str:
        function, meanings = self.signatures[name], tasks.get(self.bundle.task).outputs
        rows = [("in", key, spec, "") for key, spec in function.structured_input_signature[1].items()]
        meanings = _MEANINGS | dict(meanings)
        rows += [("out", key, spec, meanings.get(key, "")) for key, spec in sorted(function.structured_outputs.items())]
        lines = ["| | name | type | shape | |", "|---|---|---|---|---|"]
        for kind, key, spec, meaning in rows:
            shape = ["B" if axis == 0 else "any" if size is None else str(size) for axis, size in enumerate(spec.shape)]
            lines.append(f"| {kind} | `{key}` | {spec.dtype.name} | ({', '.join(shape)}) | {meaning} |")
        table = f"## Signature `{name}`\n\n" + "\n".join(lines)
        return f"{table}\n\n{_VECTORS}" if "mean" in function.structured_outputs else table

    def _card(self) -> str:
        bundle, run = self.bundle, self.run
        size = sum(file.stat().st_size for file in self.version.rglob("*") if file.is_file()) / 1e6
        rows = [("task", f"{bundle.task}: {tasks.get(bundle.task).help.partition(':')[0]}")]
        labels = ", ".join(f"`{label}`" for label in bundle.labels[:100]).replace("|", r"\|")
        rows.append((f"labels, {len(bundle.labels)}", labels))
        rows.append(("model", f"{bundle.family}, {self.weights:,} weights, {size:.1f} MB"))
        rows.append(("text", f"at most {bundle.max_length} tokens{', in windows' if bundle.reads.windows else ''}"))
        rows.append(("vector of a text", bundle.vector))
        rows += [(f"before a {role or 'text'}", f"`{prefix}`") for role, prefix in bundle.roles.items() if prefix]
        arguments = {name: value for name, value in run.get("arguments", {}).items() if value is not None}
        rows += [(key, _file_name(arguments[key])) for key in ("encoder", "data", "dev", "corpus") if key in arguments]
        rows.append(("at the end of training, on dev", _last_evaluation(run)))
        rows.append(("versions", ", ".join(f"{name} {number}" for name, number in bundle.versions.items())))
        rows.append(("licence of the weights", "see below" if self.card else "that of the encoder; none is recorded"))
        costs = "`ctxrep compare FOLDER FILE.tflite --data FILE` measures what int8 costs"
        rows.append(("as .tflite", "see below" if self.figures else costs))
        table = "\n".join(f"| {name} | {value} |" for name, value in rows if value)
        return f"## Model card\n\n| | |\n|---|---|\n{table}"


_VECTORS = (
    "Choose `vector` to compare and to search texts by cosine: it is that of `ctxrep predict` and of the .tflite file. "
    "Choose `mean` as the input of a classifier of your own, which can use what lower layers hold."
)
_MEANINGS = {  # of outputs that are not a task's
    "error": "why a row has no answer, and zeros and empty strings in its place; else empty",
    "classes": "every label",
    "scores": "the probability of each",
    "outputs": "the predicted value",
    "vector": "the vector of the text, see the model card",
    "mean": "the mean over the tokens of the task's mix of layers, or of all layers alike",
    "mask": "1 where there is a token",
    "logits": "of the model's head, before softmax or sigmoid",
    "layers": "the vectors of every layer; layer 0 is without context",
    "sequence": "the vectors of the top layer",
    "pooled": "one vector for the text",
}


def _last_evaluation(run: Mapping[str, Any]) -> str:
    """The metrics of the finished model on its development set, with the interval of the main one.

    Models without them, of earlier versions or pretrained: of the evaluation whose weights were kept.
    """
    dev = run.get("dev")
    if isinstance(dev, dict):
        dev = dict(dev)
        examples, interval = dev.pop("examples"), dev.pop("interval")
        main, *others = (f"{name.replace('_', ' ')} {value:.4f}" for name, value in dev.items())
        between = f" (95% interval {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
        return ", ".join([main + between, *others, f"{examples:,} examples"])
    history = [entry for entry in run.get("history", ()) if isinstance(entry, dict)]
    names = [name for name in (history[-1] if history else ()) if name.startswith("val_") and "loss" not in name]
    if not names:
        return ""
    best = max(history, key=lambda entry: entry.get(names[0], 0.0)) if run.get("command") == "finetune" else history[-1]
    return ", ".join(f"{name.removeprefix('val_').replace('_', ' ')} {best[name]:.4f}" for name in names)


def _file_name(value: Any) -> str:
    """Files without their folders, which say nothing to a reader elsewhere."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return ", ".join(f"`{Path(str(part)).name}`" for part in values)


def _short(value: Any) -> Any:
    """An output in a few characters: numbers rounded, long lists cut."""
    array = np.asarray(value)
    if array.ndim > 1 or array.size > 8:
        return "..."
    if array.dtype.kind == "f":
        return json.loads(json.dumps(array.astype("float64").round(4).tolist()))
    texts = [part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in array.ravel().tolist()]
    return texts if array.ndim else texts[0]


def _lower_headings(markdown: str) -> str:
    return re.sub("^#", "###", markdown, flags=re.MULTILINE)
