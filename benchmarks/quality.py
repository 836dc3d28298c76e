"""Quality of fine-tuning: against Hugging Face transformers from the same weights, and with and without context.

    python benchmarks/quality.py --data ../shared/data --minilm FOLDER --original FOLDER --peers peers/bin/python \\
        --out results.jsonl

"finetuned": five tasks from one small BERT, of which `--minilm` is our model folder and `--original` the published one
(config.json, model.safetensors, tokenizer), by `recipes.finetune` and by PyTorch and transformers in an environment of
their own. Rows, epochs, batch sizes, rates, warm-up, decay, clipping, dropout, lengths and windows are the same, both
bucket rows by length, both take the weights at the end, and the figures are computed by the same code. "pretrained":
the same tasks and the two of "spans" from the BERTs that come with the package, from random weights of the smaller
one's size, from `--minilm`, and single texts by a biLSTM over the static table that comes with it; a little longer, the
weights at the end.
"glue": cells of `ctxrep glue` beside PyTorch and transformers, as "finetuned" has them, with the arguments of their
run_glue (`--warmup_ratio 0.1 --weight_decay 0.01`).
"context": one biLSTM over learned word embeddings, over GloVe's, over a biLM, frozen (`--elmo`), and over a biLM's mix
and one of the first two.
"spans": semantic roles and coreference of pronouns, with the first three of these and with both BERTs, fine-tuned.
"pairs": ESIM and BiDAF of 100 units in each direction, which compare two texts that the encoder reads one by one, over
learned word embeddings, the static table that comes with the package, a frozen biLM, and it beside learned embeddings.
With "context", "spans" and "pairs" the table of ELMo's gains is printed too, as table 1 of Peters et al. 2018 has them.
"quantized": `--minilm` fine-tuned on fewer rows, and .tflite files of it; "int8" is calibrated on training rows.
"base": an encoder of BERT-base's size (`--base`) fine-tuned, and its exports, "int8" calibrated on training rows, which
answer one text at a time, in turn; with their bytes and the median time of a text.
"students": bert_2_128_2, which begins with projected token vectors of the BERT that comes with the package, fine-tuned;
`--minilm` fine-tuned; that small size distilled from it, with texts whose labels are the teacher's, further rows of
SST-2 and the sentences of the roles for WNUT-17; and its int8 file.

One engine runs at a time, and they take turns. Each run is a line of `--out`, and those that are there are not run
again; `--table` only prints the tables of docs/explanation/results.md. CPU seconds, of all threads, feel less of what
else the machine does than seconds do; of a run that was suspended, marked "paused": true in its line by hand, no
seconds are printed. Folder `--data` holds the sets as they are distributed: sst2_glue, mrpc, stsb, wnut17, squad_v1.1,
coarsewsd20/bank, srl_ewt, gap_coref, and word_vectors/glove.6B.50d.5k.txt.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_ctxrep import tasks, zoo
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.decode import best_answers
from keras_ctxrep.text.features import Row, window_begins

ROOT = Path(__file__).parents[1]
STATIC = str(zoo.find("static_128/books_wiki_en"))
SHIPPED = str(zoo.find("bert_3_384_12/books_wiki_en"))
SIX_LAYERS = "bert_6_384_12/books_wiki_en"
ELMO = str(zoo.find("elmo_2x512_128_512cnn_1xhighway/books_wiki_en"))
STRIDE, MAX_ANSWER, MAX_QUESTION = 128, 30, 64
DEV = 400  # examples by which "context" keeps the best epoch


@dataclass(frozen=True)
class Task:
    """What is learned and how; the figures are those to report, the first one compared."""

    kind: str
    figures: tuple[str, ...]
    rows: int
    max_length: int
    batch_size: int
    learning_rate: float
    epochs: int = 1


FINETUNED = {
    "SST-2": Task("classify", ("accuracy",), 8000, 64, 32, 1e-4),
    "MRPC": Task("classify", ("accuracy", "f1"), 4076, 128, 16, 1e-4),
    "STS-B": Task("regress", ("pearson", "spearman"), 5000, 128, 16, 1e-4),
    "WNUT-17": Task("tag", ("span_f1",), 3394, 128, 16, 2e-4),
    "SQuAD": Task("answer", ("f1", "exact_match"), 2000, 256, 16, 2e-4),
}
GLUE = {
    "MRPC": Task("classify", ("accuracy", "f1"), 4076, 128, 32, 1e-4, 3),
    "STS-B": Task("regress", ("pearson", "spearman"), 5749, 128, 32, 1e-4, 3),
}
CONTEXT = {
    "SST-2": Task("classify", ("accuracy",), 8000, 64, 32, 3e-3, 4),
    "WNUT-17": Task("tag", ("span_f1",), 3394, 128, 32, 3e-3, 12),
    "bank": Task("classify", ("macro_f1", "accuracy"), 922, 128, 32, 3e-3, 10),
}
SPANS = {
    "roles": Task("semantic_roles", ("span_f1",), 8000, 128, 32, 3e-3, 4),
    "pronouns": Task("coreference", ("f1", "masculine_f1", "feminine_f1", "bias"), 1600, 256, 32, 1e-3, 8),
}
# BERTs are fine-tuned in batches of 16: epochs, and peak rates as in FINETUNED and "pretrained"
BERT_SPANS = {
    "BERT": {"roles": (1, 2e-4), "pronouns": (3, 1e-4)},
    "shipped BERT": {"roles": (3, 3e-4), "pronouns": (6, 3e-4)},
}
# the shipped encoders beside random weights: peak rates by engine, biLSTMs over the static table in batches of 32
EPOCHS = {"SST-2": 3, "MRPC": 2, "STS-B": 2, "WNUT-17": 6, "SQuAD": 2, "roles": 1, "pronouns": 3}
PRETRAINED = {
    name: replace(task, learning_rate=0.0, batch_size=16, epochs=EPOCHS[name])
    for name, task in (FINETUNED | SPANS).items()
}
RATES = {"random weights": 5e-4, "shipped BERT": 3e-4, "six layers": 2e-4, "MiniLM": 2e-4, "static table": 3e-3}
SINGLE_TEXTS = ("SST-2", "WNUT-17", "roles", "pronouns")  # what a static table is a model of
PAIRS = {
    "MRPC": Task("classify", ("accuracy", "f1"), 4076, 64, 32, 1e-3, 4),
    "SQuAD": Task("answer", ("f1", "exact_match"), 2000, 256, 16, 1e-3, 2),
}
QUANTIZED_ROWS = {"SST-2": 4000, "MRPC": 2000, "WNUT-17": 2000, "SQuAD": 2000}
QUANTIZED = {name: replace(FINETUNED[name], rows=rows) for name, rows in QUANTIZED_ROWS.items()}
BASE = {
    "SST-2": Task("classify", ("accuracy",), 8000, 64, 32, 3e-5),
    "MRPC": Task("classify", ("accuracy",), 4076, 128, 32, 5e-5, 3),
    "STS-B": Task("regress", ("pearson",), 5749, 128, 32, 5e-5, 2),
}
STUDENTS = {
    "SST-2": Task("classify", ("accuracy",), 8000, 64, 32, 1e-3, 3),
    "WNUT-17": Task("tag", ("span_f1",), 3394, 128, 16, 1e-3, 6),
}
STUDENT, UNLABELLED, PLAIN_EPOCHS = "bert_2_128_2", 32000, 4  # rows at most; epochs times those of the distilled
SETTINGS = {
    "finetuned": FINETUNED, "glue": GLUE, "pretrained": PRETRAINED, "context": CONTEXT, "spans": SPANS,
    "students": STUDENTS, "quantized": QUANTIZED, "pairs": PAIRS, "base": BASE,
}  # fmt: skip
ENGINES = {
    "finetuned": ("keras_ctxrep", "transformers"),
    "glue": ("ctxrep glue", "transformers"),
    "pretrained": tuple(RATES),
    "context": (
        "learned embeddings", "GloVe", "biLM, top layer", "biLM, mix", "biLM, mix, and GloVe", "biLM, mix, and learned",
    ),
    "spans": ("learned embeddings", "GloVe", "biLM, mix", "biLM, mix, and learned", "shipped BERT", "BERT"),
    "students": ("plain", "teacher", "distilled", "distilled, int8"),
    "quantized": ("Keras", "none", "dynamic", "int8"),
    "pairs": ("learned embeddings", "static table", "biLM, mix", "biLM, mix, and learned"),
    "base": ("Keras", "SavedModel", "none", "dynamic", "int8"),
}  # fmt: skip
# the rows of table 1 of Peters et al. 2018, by sets that are like theirs, and the part of the error that ELMo removed
SIX = {
    ("pairs", "SQuAD"): 0.249, ("pairs", "MRPC"): 0.058, ("spans", "roles"): 0.172,
    ("spans", "pronouns"): 0.098, ("context", "WNUT-17"): 0.21, ("context", "SST-2"): 0.068,
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------- examples


def write_rows(data: Path, folder: Path) -> None:
    """The examples of all tasks, NAME-train.jsonl in a random order, NAME-dev.jsonl and NAME-test.jsonl."""

    def read(kind: str, names: str, *parts: str, **columns: str) -> Iterator[list]:
        return (list(tasks.get(kind).read(data / names.format(part), columns)) for part in parts)

    _write(folder, "SST-2", *read("classify", "sst2_glue/{}.tsv", "train", "train_heldout", "dev"))
    columns = {"label": "Quality", "text": "#1 String", "pair": "#2 String"}
    train_set, test_set = read("classify", "mrpc/msr_paraphrase_{}.txt", "train", "test", **columns)
    _write(folder, "MRPC", train_set, [], test_set)
    parts = ("train", "dev", "test")
    _write(folder, "STS-B", *read("regress", "stsb/sts-{}.csv", *parts, label="5", text="6", pair="7"))
    _write(folder, "WNUT-17", *read("tag", "wnut17/{}.conll", *parts))
    train_set, test_set = read("answer", "squad_v1.1/{}-v1.1.json", "train-slice", "dev")
    _write(folder, "SQuAD", train_set, [], test_set[::20])
    train_set, test_set = read("semantic_roles", "srl_ewt/{}.conll", "train", "dev")
    train_set = _with_all_tags_first(train_set)  # what is held out has no tag of its own
    _write(folder, "roles", train_set[:-DEV], train_set[-DEV:], test_set)
    sentences = dict.fromkeys(example.words for example in train_set)
    lines = [json.dumps({"words": words}, ensure_ascii=False) for words in sentences]
    (folder / "roles-sentences.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    train_set, test_set = read("coreference", "gap_coref/gap-{}.tsv", "development", "validation")
    _write(folder, "pronouns", train_set[DEV:], train_set[:DEV], test_set)
    train_set, test_set = (list(_senses(data / "coarsewsd20" / "bank", part)) for part in ("train", "test"))
    held = train_set[::6]
    _write(folder, "bank", [example for number, example in enumerate(train_set) if number % 6], held, test_set)


def _senses(folder: Path, part: str) -> Iterator[Example]:
    names = json.loads((folder / "classes_map.txt").read_text("utf-8"))
    sentences, senses = ((folder / f"{part}.{what}.txt").read_text("utf-8").splitlines() for what in ("data", "gold"))
    for sentence, sense in zip(sentences, senses, strict=True):
        yield Example(sentence.split("\t")[1], names[sense.strip()])


def _write(folder: Path, name: str, train_set: list, dev: list, test: list) -> None:
    random.Random(0).shuffle(train_set)
    train_set = _with_all_tags_first(train_set)
    for part, rows in (("train", train_set), ("dev", dev[:DEV]), ("test", test)):
        with open(folder / f"{name}-{part}.jsonl", "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(_as_row(row), ensure_ascii=False) + "\n")


def _with_all_tags_first(rows: list) -> list:
    """Rows with a tag that no row before them has come first, so that any part of the rows has all tags."""
    seen: set[str] = set()
    first, rest = [], []
    for row in rows:
        tags = set(getattr(row, "tags", ()))
        (rest if tags <= seen else first).append(row)
        seen |= tags
    return first + rest


def _as_row(example: Any) -> dict:
    row = {key: value for key, value in asdict(example).items() if key not in ("source", "types") and value is not None}
    if "answers" in row:
        row["answers"] = [{"text": text, "start": start} for text, start in example.answers]
    if "pronoun" in row:
        spans = {name: row.pop(name) for name in ("pronoun", "a", "b")}
        for name, (begin, end) in spans.items():
            row |= {name: example.text[begin:end], f"{name}_offset": begin}
        row |= {"a_coref": example.label == "A", "b_coref": example.label == "B"}
    return row


# ---------------------------------------------------------------------------------------------------------- engines


def ours(
    task: Task,
    rows: Path,
    dev: Path,
    test: Path,
    encoder: str,
    out: Path,
    seed: int,
    keep: Path | None = None,
    teacher: Path | None = None,
    **kwargs,
) -> dict:
    """The figures on `test` and the seconds, of all but the test and of training.

    Args:
        encoder: a model folder.
        keep: a folder for the model.
        teacher: a model folder to distill from; None: fine-tuning.
    """
    import keras

    from keras_ctxrep import recipes

    keras.backend.clear_session()
    begin, cpu = time.monotonic(), time.process_time()
    if teacher is None:
        run = partial(recipes.finetune, rows, dev, encoder, out, task=task.kind)
    else:
        run = partial(recipes.distill, teacher, rows, dev, out, encoder)
    history = run(
        max_length=task.max_length,
        batch_size=task.batch_size,
        epochs=task.epochs,
        patience=task.epochs,
        learning_rate=task.learning_rate,
        seed=seed,
        **({"stride": STRIDE, "max_answer": MAX_ANSWER} if task.kind == "answer" else {}),
        **kwargs,
    )
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    scores = recipes.score(out, test)
    if keep is None:
        shutil.rmtree(out)
    else:
        shutil.rmtree(keep, ignore_errors=True)
        keep.parent.mkdir(exist_ok=True)
        out.rename(keep)
    return {
        "figures": {name: scores[name] for name in task.figures},
        "seconds": seconds,
        "cpu": cpu,
        "training": 60 * history[-1]["minutes"],
        "loss": history[-1]["loss"],
        "kept": [entry[f"val_{task.figures[0]}"] for entry in history],
    }


def cell(task: Task, name: str, rows: Path, test: Path, encoder: str, out: Path, seed: int) -> dict:
    """The figures of one cell of `recipes.glue`, of a table with one set."""
    import keras
    import yaml

    from keras_ctxrep import recipes

    keras.backend.clear_session()
    begin, cpu, file = time.monotonic(), time.process_time(), rows.with_suffix(".yaml")
    entry = {"train": rows.name, "dev": test.name, "task": task.kind, "figures": list(task.figures)}
    if "f1" in task.figures:
        entry["positive"] = "1"
    file.write_text(yaml.safe_dump({name: entry}), "utf-8")
    settings = {name: getattr(task, name) for name in ("max_length", "batch_size", "epochs", "learning_rate")}
    (found,) = recipes.glue(rows.parent, encoder, out, table=file, seed=seed, dropout=0.1, **settings)
    shutil.rmtree(out)
    spent = {"seconds": time.monotonic() - begin, "cpu": time.process_time() - cpu, "training": 60 * found.minutes}
    return {"figures": dict(found.figures["dev"])} | spent


def exported(task: Task, model: Path, form: str, rows: Path, test: Path) -> dict:
    """The figures and the bytes of a .tflite file of a model."""
    from keras_ctxrep import recipes
    from keras_ctxrep_tflite import quantize

    file = model.with_suffix(".tflite")
    quantize.convert(model, file, form, calibrate=[rows] if form == "int8" else None)
    scores = recipes.score(file, test)
    return {"figures": {name: scores[name] for name in task.figures}, "bytes": file.stat().st_size}


def beside_exports(task: Task, model: Path, rows: Path, test: Path) -> dict[str, dict]:
    """What a model and its exports answer, one text at a time and in turn: engine -> its figure, bytes and time."""
    from keras_ctxrep import recipes
    from keras_ctxrep_tflite import quantize

    exports = [recipes.export(model, model.with_name(f"{model.name}-served"))]
    for form in ENGINES["base"][2:]:
        exports.append(model.with_name(f"{model.name}-{form}.tflite"))
        quantize.convert(model, exports[-1], form, calibrate=[rows] if form == "int8" else None)
    compared, _ = recipes.compare(model, exports, data=test)
    about = ("bytes", "milliseconds", "agreement", "quality_interval")
    return {
        engine: {"figures": {task.figures[0]: row["quality"]}} | {name: row.get(name) for name in about}
        for engine, row in zip(ENGINES["base"], compared, strict=True)
    }


def beginning(out: Path) -> str:
    """An encoder of a student's size with the vocabulary of the shipped BERT and its token vectors, projected."""
    from keras_ctxrep import saving
    from keras_ctxrep.recipes import distilling

    saving.save(out, *distilling.student(*saving.load(SHIPPED), STUDENT))
    return str(out)


def theirs(worker: subprocess.Popen, task: Task, rows: Path, test: Path, folder: str, out: Path, seed: int) -> dict:
    assert worker.stdin and worker.stdout
    order = {"task": asdict(task), "rows": rows, "test": test, "folder": folder, "out": out, "seed": seed}
    worker.stdin.write(json.dumps(order, default=str) + "\n")
    worker.stdin.flush()
    reply = json.loads(worker.stdout.readline())
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    scored_task = tasks.get(task.kind)
    report = scored_task.evaluate(list(scored_task.read(test)), answers, interval=False)
    return {"figures": {name: report.scores[name] for name in task.figures}} | reply


def serve() -> None:
    """The other engine: one order a line on stdin, a line of figures for each on stdout, and a file of answers."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(2)
    for line in sys.stdin:
        order = json.loads(line)
        task = Task(**order["task"])
        rows, test = (list(tasks.get(task.kind).read(order[name])) for name in ("rows", "test"))
        answers, figures = torch_run(task, rows, test, order["folder"], order["seed"])
        Path(order["out"]).write_text("".join(json.dumps(answer) + "\n" for answer in answers), "utf-8")
        print(json.dumps(figures), flush=True)


def torch_run(task: Task, rows: list, test: list, folder: str, seed: int) -> tuple[list[dict], dict]:
    """Fine-tuning as a careful user of transformers writes it; answers in the form of a `Predictor`."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    transformers.logging.set_verbosity_error()
    begin, cpu = time.monotonic(), time.process_time()
    torch.manual_seed(seed)
    names = {
        "classify": lambda: {row.label for row in rows},
        "tag": lambda: {tag for row in rows for tag in row.tags},
    }
    labels = sorted(names.get(task.kind, set)(), key=lambda label: (label != "O", label))
    heads = {"tag": "TokenClassification", "answer": "QuestionAnswering"}
    kind = getattr(transformers, f"AutoModelFor{heads.get(task.kind, 'SequenceClassification')}")
    count: dict[str, Any] = {} if task.kind == "answer" else {"num_labels": max(1, len(labels))}
    if task.kind == "regress":
        count["problem_type"] = "regression"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = kind.from_pretrained(folder, dtype=torch.float32, **count)
    encoded = [row for example in rows for row in _encoded(tokenizer, task, example, labels)]
    groups = [
        {"params": [p for name, p in model.named_parameters() if plain == _is_plain(name)], "weight_decay": decay}
        for plain, decay in ((False, 0.01), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=task.learning_rate, fused=True)  # as their Trainer does
    steps = max(1, round(task.epochs * len(encoded) / task.batch_size))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    losses, since = [], time.monotonic()
    model.train()
    for batch in _batches(encoded, task.batch_size, seed, steps):
        loss = model(**_collate(tokenizer, batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    end, cpu = time.monotonic(), time.process_time() - cpu
    model.eval()
    with torch.inference_mode():
        answers = _answers(tokenizer, model, task, test, labels)
    curve = [round(statistics.fmean(losses[i : i + 20]), 4) for i in range(0, len(losses), 20)]
    figures = {"seconds": end - begin, "cpu": cpu, "training": end - since, "loss": curve[-1], "curve": curve}
    return answers, figures


def _is_plain(name: str) -> bool:
    return name.endswith("bias") or "LayerNorm" in name


def _encoded(tokenizer, task: Task, example: Any, labels: Sequence[str] = ()) -> Iterator[dict]:
    """What the model reads, and the targets; of a question its windows, as google-research/bert has them."""
    if task.kind == "answer":
        yield from _windows(tokenizer, task, example)
        return
    if task.kind == "tag":
        encoding = tokenizer(list(example.words), is_split_into_words=True, truncation=True, max_length=task.max_length)
        places = encoding.word_ids()
        first = [None if i == j else i for i, j in zip(places, [None, *places], strict=False)]
        targets = [-100 if i is None else labels.index(example.tags[i]) for i in first]
        yield dict(encoding) | {"labels": targets, "row": first}
        return
    encoding = tokenizer(example.text, example.pair, truncation=True, max_length=task.max_length)
    yield dict(encoding) | {"labels": example.label if task.kind == "regress" else labels.index(example.label)}


def _windows(tokenizer, task: Task, example: Any) -> Iterator[dict]:
    question = tokenizer(example.question, add_special_tokens=False)["input_ids"][:MAX_QUESTION]
    context = tokenizer(example.context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    pieces, offsets = context["input_ids"], context["offset_mapping"]
    head = [tokenizer.cls_token_id, *question, tokenizer.sep_token_id]
    room = task.max_length - len(head) - 1
    begin = 0
    while True:
        part, spans = pieces[begin : begin + room], offsets[begin : begin + room]
        ids = [*head, *part, tokenizer.sep_token_id]
        answer, start = example.answers[0]
        held = [i for i, (a, b) in enumerate(spans) if b > start and a < start + len(answer)]
        whole = held and spans[held[0]][0] <= start and start + len(answer.rstrip()) <= spans[held[-1]][1]
        edges = [len(head) + i for i in (held[0], held[-1])] if whole else [0, 0]
        yield {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "token_type_ids": [0] * len(head) + [1] * (len(ids) - len(head)),
            "start_positions": edges[0],
            "end_positions": edges[1],
            "row": Row(ids, first=len(head), offsets=[(0, 0)] * len(head) + spans + [(0, 0)]),
        }
        if begin + room >= len(pieces):
            return
        begin += window_begins(0, room, STRIDE).step


def _batches(rows: list[dict], size: int, seed: int, steps: int) -> Iterator[list[dict]]:
    """Batches bucketed by length, of 64 batches' rows that are sorted together, in a random order."""
    rng, rest, given = random.Random(seed), [], 0
    while True:
        pool = rest + rng.sample(rows, len(rows))
        rest = pool[len(pool) - len(pool) % size :]
        for begin in range(0, len(pool) - len(rest), 64 * size):
            part = sorted(
                pool[begin : min(begin + 64 * size, len(pool) - len(rest))], key=lambda row: len(row["input_ids"])
            )
            batches = [part[i : i + size] for i in range(0, len(part), size)]
            for batch in rng.sample(batches, len(batches)):
                if given == steps:
                    return
                given += 1
                yield batch


def _collate(tokenizer, rows: list[dict]) -> dict:
    import torch  # pyright: ignore[reportMissingImports]

    longest = max(len(row["input_ids"]) for row in rows)
    empty = {"input_ids": tokenizer.pad_token_id, "labels": -100}
    batch = {}
    for name in rows[0].keys() - {"row"}:
        values = [row[name] for row in rows]
        if isinstance(values[0], list):
            values = [value + [empty.get(name, 0)] * (longest - len(value)) for value in values]
        batch[name] = torch.tensor(values)
    return batch


def _answers(tokenizer, model, task: Task, test: list, labels: list[str]) -> list[dict]:
    """In batches bucketed by length."""
    owners, rows = [], []
    for number, example in enumerate(test):
        for row in _encoded(tokenizer, task, example, labels):
            owners.append(number)
            rows.append(row)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    outputs: list[list] = [[] for _ in test]
    for begin in range(0, len(order), 32):
        part = order[begin : begin + 32]
        batch = _collate(tokenizer, [rows[i] for i in part])
        batch = {
            name: value for name, value in batch.items() if name not in ("labels", "start_positions", "end_positions")
        }
        logits = {name: value.numpy() for name, value in model(**batch).items() if name.endswith("logits")}
        for row, index in enumerate(part):
            unpadded = {name: value[row][: len(rows[index]["input_ids"])] for name, value in logits.items()}
            outputs[owners[index]].append((index, rows[index], unpadded))
    return [
        _answer(task, example, sorted(windows, key=lambda window: window[0]), labels)
        for example, windows in zip(test, outputs, strict=True)
    ]


def _answer(task: Task, example: Any, outputs: list, labels: list[str]) -> dict:
    if task.kind == "answer":
        windows, logits = [row["row"] for _, row, _ in outputs], [output for _, _, output in outputs]
        best, _ = best_answers(windows, logits, example.context, MAX_ANSWER)
        return {"answer": best[0]["answer"] if best else ""}
    ((_, row, logits),) = outputs
    if task.kind == "regress":
        return {"value": float(logits["logits"][0])}
    if task.kind == "classify":
        return {"label": labels[int(logits["logits"].argmax())]}
    tags = {word: labels[int(logit.argmax())] for word, logit in zip(row["row"], logits["logits"], strict=True)}
    return {"words": [{"label": tags.get(word)} for word in range(len(example.words))]}


# ------------------------------------------------------------------------------------------------------------- runs


def runs(args: argparse.Namespace, folder: Path) -> Iterator[tuple[dict, Callable[[], dict]]]:
    """What is to be run, seed by seed, and how; the first run of an engine makes what it needs."""
    made: dict[str, Any] = {}

    def worker() -> subprocess.Popen:
        if "worker" not in made:
            # threads that wait without sleeping take PyTorch five times the CPU where other processes run beside it
            env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
            pipe = subprocess.PIPE
            command = [args.peers, __file__, "--serve"]
            made["worker"] = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
        return made["worker"]

    def glove() -> str:
        if "glove" not in made:
            from keras_ctxrep import saving
            from keras_ctxrep.convert import vectors

            saving.save(folder / "glove", *vectors.read(args.data / "word_vectors" / "glove.6B.50d.5k.txt"))
            made["glove"] = str(folder / "glove")
        return made["glove"]

    biLM = {"stack": "lstm", "units": 128, "freeze": True}
    contexts: dict[str, Callable[[], dict]] = {
        "learned embeddings": lambda: {"encoder": "words", "stack": "lstm", "units": 128},
        "GloVe": lambda: {"encoder": glove(), "stack": "lstm", "units": 128},
        "biLM, top layer": lambda: {"encoder": args.elmo, "top_only": True} | biLM,
        "biLM, mix": lambda: {"encoder": args.elmo} | biLM,
        "biLM, mix, and GloVe": lambda: {"encoder": args.elmo, "extra_embeddings": glove()} | biLM,
        "biLM, mix, and learned": lambda: {"encoder": args.elmo, "extra_embeddings": "words"} | biLM,
    }

    def student(engine: str, name: str, files: dict[str, Path], seed: int) -> dict:
        task, dev, test, out = STUDENTS[name], files["dev"], files["test"], folder / "out"
        teacher, distilled = (folder / "models" / f"{model}-{name}-{seed}" for model in ("teacher", "distilled"))
        made["start"] = made.get("start") or beginning(folder / "start")
        if engine == "teacher":
            return ours(FINETUNED[name], files["rows"], dev, test, args.minilm, out, seed, keep=teacher, dropout=0.1)
        if engine == "distilled, int8":
            return exported(task, distilled, "int8", files["rows"], test)
        if engine == "plain":
            task = replace(task, epochs=PLAIN_EPOCHS * task.epochs)
            return ours(task, files["rows"], dev, test, made["start"], out, seed, dropout=0.1)
        kwargs = {"teacher": teacher, "unlabelled": files["rest"], "keep": distilled, "dropout": 0.1}
        return ours(task, files["rows"], dev, test, made["start"], out, seed, **kwargs)

    def of_base(engine: str, name: str, files: dict[str, Path], seed: int) -> dict:
        model = folder / "models" / f"base-{name}-{seed}"
        if model.name not in made:
            task, rows, test = BASE[name], files["rows"], files["test"]
            kwargs = {"keep": model, "dropout": 0.1, "precision": "mixed_bfloat16"}
            trained = ours(task, rows, files["few"], test, args.base, folder / "out", seed, **kwargs)
            made[model.name] = beside_exports(task, model, rows, test)
            made[model.name]["Keras"] = trained | made[model.name]["Keras"]
        return made[model.name][engine]

    def run(engine: str, part: str, name: str, files: dict[str, Path], seed: int) -> dict:
        task, rows, test, out = SETTINGS[part][name], files["rows"], files["test"], folder / "out"
        if part == "students":
            return student(engine, name, files, seed)
        if part == "base":
            return of_base(engine, name, files, seed)
        if part == "pairs":
            encoder = {"learned embeddings": "words", "static table": STATIC}.get(engine, str(args.elmo))
            network: dict[str, Any] = {"stack": "bidaf" if task.kind == "answer" else "esim", "units": 100}
            if engine.endswith("and learned"):
                network["extra_embeddings"] = "words"
            return ours(task, rows, files["few"], test, encoder, out, seed, **network)
        if part == "quantized":
            model = folder / "models" / f"MiniLM-{name}-{seed}"
            if engine != "Keras":
                return exported(task, model, engine, rows, test)
            return ours(task, rows, files["few"], test, args.minilm, out, seed, keep=model, dropout=0.1)
        if part == "pretrained":
            task = replace(task, learning_rate=RATES[engine])
            if engine == "static table":
                stack: dict[str, Any] = {"stack": "lstm", "units": 128}
                return ours(replace(task, batch_size=32), rows, files["few"], test, STATIC, out, seed, **stack)
            scratch = engine == "random weights"
            encoder = {"six layers": SIX_LAYERS, "MiniLM": args.minilm}.get(engine, SHIPPED)
            return ours(task, rows, files["few"], test, encoder, out, seed, dropout=0.1, from_scratch=scratch)
        if engine in BERT_SPANS:
            epochs, rate = BERT_SPANS[engine][name]
            task = replace(task, batch_size=16, learning_rate=rate, epochs=epochs)
            encoder = args.minilm if engine == "BERT" else SHIPPED
            return ours(task, rows, files["dev"], test, encoder, out, seed, dropout=0.1)
        if engine == "ctxrep glue":
            return cell(task, name, rows, test, args.minilm, out, seed)
        if part not in ("finetuned", "glue"):
            return ours(task, rows, files["dev"], test, out=out, seed=seed, **contexts[engine]())
        if engine == "transformers":
            return theirs(worker(), task, rows, test, args.original, folder / "answers.jsonl", seed)
        return ours(task, rows, files["few"], test, args.minilm, out, seed, dropout=0.1)

    for seed in range(args.seeds):
        for part, settings in SETTINGS.items():
            for name, task in settings.items():
                every, dev, test = (folder / f"{name}-{what}.jsonl" for what in ("train", "dev", "test"))
                lines = every.read_text("utf-8").split("\n")
                more = lines[task.rows :]
                if name == "WNUT-17":
                    more = (folder / "roles-sentences.jsonl").read_text("utf-8").split("\n")
                rows, few = folder / f"{part}-{name}.jsonl", folder / f"{name}-few.jsonl"
                rest = folder / f"{part}-{name}-rest.jsonl"
                for path, part_lines in (
                    (rows, lines[: task.rows]),
                    (few, lines[:32]),
                    (rest, more[:UNLABELLED]),
                ):
                    path.write_text("\n".join(part_lines).rstrip("\n") + "\n", "utf-8")
                files = {"rows": rows, "dev": dev, "test": test, "few": few, "rest": rest}
                for engine in ENGINES[part]:
                    if (engine in ("BERT", "MiniLM") or part in ("glue", "quantized", "students")) and not args.minilm:
                        continue
                    if part == "base" and not args.base:
                        continue
                    if (part, engine) == ("pretrained", "static table") and name not in SINGLE_TEXTS:
                        continue
                    about = {"part": part, "task": name, "engine": engine, "seed": seed, "settings": asdict(task)}
                    about["settings"]["figures"] = list(task.figures)  # as JSON has them
                    yield about, partial(run, engine, part, name, files, seed)


def table(part: str, result: list[dict]) -> Iterator[str]:
    """Rows of Markdown: mean and standard deviation over the seeds that all engines have run."""
    tasks, ran = SETTINGS[part], {entry["engine"] for entry in result if entry["part"] == part}
    engines = [engine for engine in ENGINES[part] if engine in ran]
    timed = ["seconds", "CPU seconds", "examples/s", "ratio"] if part == "finetuned" else []
    columns = ["task", "figure", "seeds", *engines, *timed]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for name, task in tasks.items():
        runs = {
            engine: {
                entry["seed"]: entry
                for entry in result
                if [entry["part"], entry["task"], entry["engine"]] == [part, name, engine]
            }
            for engine in engines
        }
        runs = {engine: run for engine, run in runs.items() if run}
        seeds = sorted(set.intersection(*map(set, runs.values()))) if runs else []
        if not seeds:
            continue
        for figure in task.figures:
            values = {engine: [run[seed]["figures"][figure] for seed in seeds] for engine, run in runs.items()}
            base = statistics.fmean(values[engines[0]])
            cells = []
            for engine in engines:
                if engine not in values:
                    cells.append("")
                    continue
                mean = statistics.fmean(values[engine])
                spread = f" +- {100 * statistics.stdev(values[engine]):.1f}" if len(seeds) > 1 else ""
                gain = f" ({100 * (mean - base):+.1f} / {(mean - base) / (1 - base):+.0%})"
                compared = part != "finetuned" and engine != engines[0]
                cells.append(f"{100 * mean:.1f}{spread}" + (gain if compared else ""))
            if timed and len(runs) == len(engines) and figure == task.figures[0]:
                cells += _times([[runs[engine][seed] for seed in seeds] for engine in engines], task)
            cells += [""] * (len(columns) - 3 - len(cells))
            yield f"| {name} | {figure} | {len(seeds)} | " + " | ".join(cells) + " |"


def six_rows(result: list[dict]) -> Iterator[str]:
    """Table 1 of Peters et al. 2018, of the sets in `SIX`: with a biLM beside the same network without one."""
    engines = ("learned embeddings", "biLM, mix", "biLM, mix, and learned")
    yield "| task | figure | seeds | " + " | ".join(engines) + " | published |"
    yield "|" + "---|" * 7
    for (part, name), published in SIX.items():
        for row in table(part, [entry for entry in result if entry["engine"] in engines]):
            if row.startswith(f"| {name} | {SETTINGS[part][name].figures[0]} |"):
                yield f"{row} +{published:.0%} |"


def _times(runs: list[list[dict]], task: Task) -> list[str]:
    """Of both engines: all seconds, those of all threads, the rate of training, and how many times ours is theirs."""
    wall, cpu, training = (
        [statistics.fmean(run[name] for run in side) for side in runs] for name in ("seconds", "cpu", "training")
    )
    if any(run.get("paused") for side in runs for run in side):
        return ["", " / ".join(f"{x:.0f}" for x in cpu), "", ""]
    rates = [task.rows * task.epochs / x for x in training]
    ratio = statistics.median(second["training"] / first["training"] for first, second in zip(*runs, strict=True))
    shown = (" / ".join(f"{x:{form}}" for x in pair) for pair, form in ((wall, ".0f"), (cpu, ".0f"), (rates, ".1f")))
    return [*shown, f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--minilm", metavar="FOLDER", help="a model folder of a small BERT")
    parser.add_argument("--base", metavar="FOLDER", help="a model folder of an encoder of BERT-base's size")
    parser.add_argument("--original", metavar="FOLDER", help="the same as it was published, for transformers")
    parser.add_argument(
        "--elmo", metavar="FOLDER", default=ELMO, help="a model folder of a biLM (default: the shipped one)"
    )
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment with torch and transformers")
    parser.add_argument("--only", choices=ENGINES, nargs="+", help="only these parts")
    parser.add_argument("--tasks", nargs="+", help="only these")
    parser.add_argument("--engines", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what is in --out, and run nothing")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    done = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    folder = args.out.with_suffix(".files")
    if not args.table:
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(args.data, folder)
        shutil.rmtree(folder / "out", ignore_errors=True)
        for about, run in runs(args, folder):
            chosen = {"part": args.only, "task": args.tasks, "engine": args.engines}
            if any(names and about[key] not in names for key, names in chosen.items()):
                continue
            if about["engine"] == "transformers" and not args.peers:
                continue
            if any(about == {key: item[key] for key in about} for item in done):
                continue
            entry = about | run()
            print(json.dumps(entry), file=sys.stderr, flush=True)
            done.append(entry)
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
    for part in ENGINES:
        if any(run["part"] == part for run in done):
            print("\n".join(["", *table(part, done)]))
    if {part for part, _ in SIX} <= {run["part"] for run in done}:
        print("\n".join(["", *six_rows(done)]))


if __name__ == "__main__":
    main()
