"""The files beside a SavedModel's graph: warm-up requests, configurations, README."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from keras_ctxrep.cli import main
from keras_ctxrep.inference import messages
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_export import kit, saved_model

LIKE_OTHERS = ("multilabel", "regress", "embed", "semantic_roles")
TASKS = ["classify", "tag", "answer", "coreference", *(pytest.param(t, marks=pytest.mark.slow) for t in LIKE_OTHERS)]


@pytest.fixture(scope="module", params=TASKS)
def version(request, tiny_model, tmp_path_factory):
    """The version folder of a task's model, whose path has another name than the task."""
    model, bundle = tiny_model(request.param, pair=request.param in ("answer", "regress"))
    source = tmp_path_factory.mktemp("source")
    (source / "run.json").write_text(json.dumps(RUN))
    return saved_model.export(model, bundle, tmp_path_factory.mktemp("serving") / "topics", source=source)


RUN = {
    "command": "finetune",
    "arguments": {"data": "/home/me/train.tsv", "dev": "/home/me/dev.tsv", "encoder": "/home/me/bert", "task": "x"},
    "options": {},
    "history": [
        {"step": 1, "loss": 2.0, "val_accuracy": 0.5, "val_macro_f1": 0.4},
        {"step": 2, "loss": 1.0, "val_accuracy": 0.75, "val_macro_f1": 0.7},
        {"step": 3, "loss": 0.5, "val_accuracy": 0.625, "val_macro_f1": 0.8},
    ],
}


def warmup(version) -> list:
    """The requests as TF Serving reads them."""
    file = version / "assets.extra" / "tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset([str(file)])]
    return [messages.PredictionLog.FromString(record).predict_log.request for record in records]


def test_warmup_requests_fit_their_signatures(version):
    signatures = (loaded := tf.saved_model.load(version)).signatures
    requests = warmup(version)
    sizes: dict = {}
    for request in requests:
        assert request.model_spec.name == "topics"
        spec = signatures[request.model_spec.signature_name].structured_input_signature[1]
        arrays = {name: messages.array_of(tensor) for name, tensor in request.inputs.items()}
        assert arrays.keys() == spec.keys()
        for name, array in arrays.items():
            assert spec[name].shape.is_compatible_with(array.shape)
            assert spec[name].dtype == tf.dtypes.as_dtype(tf.string if array.dtype == object else array.dtype)
        (size,) = {len(array) for array in arrays.values()}
        sizes.setdefault(request.model_spec.signature_name, []).append(size)
    assert sizes.pop("serving_default") == [1, 2, 4, 8, 16, 32]
    assert sizes == {name: [1, 32] for name in signatures if name != "serving_default"}
    texts = [messages.array_of(tensor) for name, tensor in requests[5].inputs.items() if name != "question"]
    assert max(len({len(text) for text in column.ravel()}) for column in texts if column.dtype == object) == 4
    assert messages.array_of(requests[0].inputs.get("text", requests[0].inputs["context"]))[0].endswith(
        b"stayed inside."
    )
    del loaded


def test_warmup_requests_with_the_generated_classes(version):
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    file = version / "assets.extra" / "tf_serving_warmup_requests"
    for record in tf.data.TFRecordDataset([str(file)]):
        log = logs.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        assert all(tf.make_ndarray(tensor).size for tensor in log.predict_log.request.inputs.values())


def test_marks_are_words(tiny_model):
    _, bundle = tiny_model("coreference")
    texts, words, examples, _ = kit._inputs(bundle, 2)
    spans = [[text[begin:end] for begin, end in marks] for text, marks in zip(*texts.values(), strict=True)]
    assert spans == [["The", "ferry", "left"]] * 2
    assert words["words"].shape == (2, 19) and words["words"][1].tolist() == [*kit.PASSAGE.split(" ")[:6], *[""] * 13]
    assert words["marks"].tolist() == [[[0, 1], [1, 2], [2, 3]]] * 2
    features = tf.train.Example.FromString(examples["inputs"][0]).features.feature
    assert features["text"].bytes_list.value == [texts["text"][0].encode()]
    assert features["marks"].int64_list.value == [0, 3, 4, 9, 10, 14]


def test_a_failing_request_is_an_error():
    class Broken(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def serve(self, text):
            return {"x": tf.strings.to_number(text)}

    request = messages.predict_request({"text": np.array(["no number"], object)}, "m")
    signatures = {"serving_default": lambda text: Broken().serve(text)}
    with pytest.raises(RuntimeError, match="the signature serving_default fails on a warm-up request"):
        kit.replay(signatures, request)


def test_batching_parameters(version):
    text = (version / "batching_params.pbtxt").read_text()
    fields = re.findall(r"^(\w+)(?:: (\d+)| \{ value: (\d+) \})$", text, re.MULTILINE)
    sizes = [int(value) for name, value, _ in fields if name == "allowed_batch_sizes"]
    values = {name: int(value) for name, _, value in fields if value}
    # increasing, and the last one is max_batch_size, else the server does not start
    assert sizes == sorted(set(sizes)) and sizes[-1] == values["max_batch_size"]
    assert values.keys() == {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches"}
    others = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(others) == len(fields)


def test_readme(version):
    bundle_task = json.loads((version / "assets.extra" / "bundle.json").read_text())["task"]
    text = (version / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# topics\n") and "\n## Signature `serving_default`" in text
    assert f"| task | {bundle_task}: " in text and "| encoder | `bert` |" in text and "/home/me" not in text
    assert "accuracy 0.7500, macro f1 0.7000" in text
    (curl,) = re.findall(r"curl -d '(.*)' http://localhost:8501/v1/models/topics:predict", text)
    (answer,) = re.findall(r"```json\n(.*)\n```", text)
    (instance,) = json.loads(curl)["instances"]
    signatures = (loaded := tf.saved_model.load(version)).signatures
    serve = signatures["serving_default"]
    spec = serve.structured_input_signature[1]
    outputs = serve(**{name: tf.constant([value], spec[name].dtype) for name, value in instance.items()})
    assert json.loads(answer).keys() == outputs.keys()
    for name in ("label", "answer"):
        if name in outputs:
            assert json.loads(answer)[name] == outputs[name].numpy()[0].decode()
    table = text.partition("## Signature `serving_default`")[2].partition("\n## ")[0]
    for name in outputs:
        assert re.search(rf"\| out \| `{name}` \| \w+ \| \(B.*\) \| .+ \|", table), name
    del loaded


def test_the_python_of_the_readme_runs(version, monkeypatch, capsys):
    text = (version / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(version)
    exec(code, {})
    (answer,) = re.findall(r"```json\n(.*)\n```", text)
    printed = capsys.readouterr().out
    assert all(f"'{name}': <tf.Tensor" in printed for name in json.loads(answer))
    assert "Choose `vector` to compare" in text


@pytest.mark.slow  # a process of its own
def test_saved_model_cli_of_the_page(tiny_model, tmp_path):
    saved_model.export(*tiny_model("classify"), tmp_path / "serving" / "topics")
    page = (Path(__file__).parents[2] / "docs/how-to/serving.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^(python -c [^`]*?saved_model_cli.*?)\n```", page, re.DOTALL | re.MULTILINE)
    command = [sys.executable, *shlex.split(line.replace("\\\n", " "))[1:]]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0 and "Result for output key label" in process.stdout, process.stderr[-2000:]


def test_the_commands_of_the_readme_send_what_curl_sends(version, capsys):
    text = (version / "README.md").read_text(encoding="utf-8")
    (curl,) = re.findall(r"curl -d '(.*)' http", text)
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("ctxrep client --url http:")]
    assert len(lines) == 1
    assert main.main([*lines[0][1:], "--dry-run"]) == 0
    sent = json.loads(capsys.readouterr().out)["instances"]
    (expected,) = json.loads(curl)["instances"]
    assert sorted(map(str, sent[0].values())) == sorted(map(str, expected.values()))


# ----------------------------------------------------------------------------------------------------- model.config


def models_of(path) -> dict:
    config = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2").ModelServerConfig()
    text_format.Parse(path.read_text(encoding="utf-8"), config)
    assert {entry.model_platform for entry in config.model_config_list.config} == {"tensorflow"}
    return {entry.name: entry.base_path for entry in config.model_config_list.config}


def test_model_config_lists_every_model(tmp_path):
    for folder in ("old/3", "other/x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "saved_model.pb").touch()
    kit.write_config(tmp_path, 'a "b"')
    assert models_of(tmp_path / "model.config") == {'a "b"': '/models/a "b"', "old": "/models/old"}
    kit.write_config(tmp_path, "new")
    assert models_of(tmp_path / "model.config") == {"new": "/models/new", "old": "/models/old"}


def test_the_example_of_labels_is_valid(tmp_path):
    config = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2").ModelServerConfig()
    kit.write_config(tmp_path, "m")
    text = (tmp_path / "model.config").read_text()
    example = "".join(line.removeprefix("#") + "\n" for line in text.splitlines() if line.startswith("#     "))
    text_format.Parse(text.replace('"tensorflow"\n', f'"tensorflow"\n{example}'), config)
    (entry,) = config.model_config_list.config
    assert dict(entry.version_labels) == {"stable": 1, "canary": 2}
    assert [*entry.model_version_policy.specific.versions] == [1, 2]


def test_a_base_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError("not yours")

    monkeypatch.setattr(kit, "atomic_write", refuse)
    with pytest.warns(UserWarning, match=r"model\.config was not written: not yours"):
        kit.write_config(tmp_path, "m")


def test_a_changed_model_config_is_kept(tmp_path):
    kit.write_config(tmp_path, "m")
    changed = (tmp_path / "model.config").read_text().split("\n", 1)[1]
    (tmp_path / "model.config").write_text(changed)
    kit.write_config(tmp_path, "n")
    assert (tmp_path / "model.config").read_text() == changed


def test_model_cards(tmp_path):
    bundle = Bundle(
        "bert", "classify", {}, 8, ("no", "yes"), card="# Weights\n\nLicence: CC0.\n", versions={"keras": "3"}
    )
    readme = kit.Readme("m", tmp_path, bundle, {}, 1234, {})
    card = readme._card()
    assert (
        "| labels, 2 | `no`, `yes` |" in card
        and "1,234 weights" in card
        and "| licence of the weights | see below |" in card
    )
    assert "at the end of training" not in card
    assert kit._lower_headings(bundle.card).startswith("### Weights")
    history = [
        {"step": 1, "val_mlm_logits_accuracy": 0.5, "val_loss": 1.0},
        {"step": 2, "val_mlm_logits_accuracy": 0.4},
    ]
    assert kit._last_evaluation({"command": "pretrain", "history": history}) == "mlm logits accuracy 0.4000"
    dev = {"examples": 1200, "interval": [0.4, 0.6], "f1": 0.5, "macro_f1": 0.25}
    written = "f1 0.5000 (95% interval 0.4000 to 0.6000), macro f1 0.2500, 1,200 examples"
    assert kit._last_evaluation({"history": history, "dev": dev}) == written


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_runs_that_cannot_be_read(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    assert kit.history.record(tmp_path) == kit.history.record(tmp_path / "none") == {}


def test_a_configuration_that_is_not_utf_8(tiny_model, tmp_path):
    (tmp_path / "model.config").write_bytes(b"# caf\xe9\n")
    saved_model.export(*tiny_model("classify"), tmp_path / "m")
    assert (tmp_path / "model.config").read_bytes() == b"# caf\xe9\n"


def test_requests_are_tried_with_a_few_rows_once(tmp_path, monkeypatch):
    """Of each length of the texts one; a batch of 32 would take as long as all others."""
    (tmp_path / "assets.extra").mkdir()
    sizes = []
    monkeypatch.setattr(kit, "replay", lambda of, request: sizes.append(len(request.inputs["text"].string_val)) or {})
    requests = [messages.predict_request({"text": np.array(["a"] * n, object)}, "m") for n in kit.BATCH_SIZES]
    answers = kit.write_requests(tmp_path, requests, SimpleNamespace(signatures={}))
    assert sizes == [1, 2, 4] and len(answers) == len(requests)
    assert [len(request.inputs["text"].string_val) for request in warmup(tmp_path)] == [*kit.BATCH_SIZES]
