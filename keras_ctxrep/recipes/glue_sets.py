"""The sets of GLUE, Yahoo's topics and tables of one's own: where their rows are, and what is reported of them.

Wang et al. 2019, https://openreview.net/forum?id=rJ4km2R5t7; TensorFlow Datasets' catalogue, glue.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_ctxrep import tasks
from keras_ctxrep.checks import errors_of, read_yaml
from keras_ctxrep.recipes.reading import read

__all__ = ["GLUE", "SETS", "TFDS", "Set"]

TFDS = "tfds"  # in place of a folder: the prepared data sets of TensorFlow Datasets
UNLABELLED = "-"  # in MultiNLI's and SNLI's files: the annotators did not agree


@dataclass(frozen=True)
class Set:
    """A set of labelled rows in one of the forms in which it is distributed, and what is reported of it.

    Files are FOLDER/FILE, in a folder of that name or of one that begins so, or tfds:...

    Attributes:
        name: e.g. "SST-2".
        figures: metrics of the task.
        train: rows to learn from.
        dev: what figures are of -> rows to score; the first is also scored in training.
        test: name of a submission's file -> rows without labels.
        columns: of the labelled files, as in `reading.read`; those with numbers have no header.
        labels: those that a submission has as numbers, in their order.
        positive: the label of which F1 is.
        task: name of one of `tasks.TASKS`.
    """

    name: str
    figures: tuple[str, ...]
    train: str | Path
    dev: Mapping[str, str | Path]
    test: Mapping[str, str | Path] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None
    labels: tuple[str, ...] = ()
    positive: str | None = None
    task: str = "classify"

    def examples(self, source: str | Path, labelled: bool = True) -> Iterator[Any]:
        """The rows of one of its files."""
        columns = self.columns or {}
        if not labelled:  # such a file has a header, and no label
            columns = {key: name for key, name in columns.items() if key != "label" and not name.isdecimal()}
        examples = read(tasks.get(self.task), source, columns)
        return (each for each in examples if not labelled or getattr(each, "label", None) != UNLABELLED)

    def training(self, count: int | None) -> list[Any]:
        """The rows to learn from; of more than `count` so many that are drawn at random, always the same."""
        examples = [*self.examples(self.train)]
        if count is None or count >= len(examples):
            return examples
        drawn = random.Random(f"{self.name} rows").sample(range(len(examples)), count)
        return [examples[number] for number in sorted(drawn)]

    def submitted(self, answer: Mapping[str, Any]) -> str:
        """An answer as the leaderboard reads it."""
        if "value" in answer:  # STS-B's scores
            return f"{min(5.0, max(0.0, answer['value'])):.3f}"
        label = answer.get("label")
        if label is None:
            return json.dumps(answer, ensure_ascii=False)
        return str(self.labels.index(label)) if label in self.labels else label


def located(forms: Sequence[Set], data: str | Path) -> Set:
    """The first form of a set whose training rows are in a folder, or in "tfds", with its files there.

    Raises:
        ValueError: there is none, or it has no development rows.
    """
    for form in forms:
        if train := _path(data, form.train):
            dev, test = ({name: _path(data, file) for name, file in part.items()} for part in (form.dev, form.test))
            if missing := [form.dev[name] for name, file in dev.items() if file is None]:
                raise ValueError(f"{data}: {missing[0]} of the set {form.name} is missing")
            return replace(form, train=train, dev=dev, test={name: file for name, file in test.items() if file})
    files = " or ".join(str(form.train) for form in forms if _is_prepared(form.train) == (data == TFDS))
    raise ValueError(f"{data}: the set {forms[0].name} is not in it: {files} is needed")


def _path(data: str | Path, source: str | Path) -> str | Path | None:
    """A file in the folder, or the name of a data set; None if it is not there."""
    if data == TFDS or _is_prepared(source):
        return source if data == TFDS and _is_prepared(source) else None
    names, _, file = str(source).partition("/")
    begins = tuple(filter(None, map(_plain, names.split("|"))))
    folders = [folder for folder in sorted(Path(data).glob("*/")) if _plain(folder.name).startswith(begins)]
    return next(filter(Path.is_file, [Path(data) / source, *(folder / file for folder in folders)]), None)


def _is_prepared(source: str | Path) -> bool:
    return str(source).startswith(f"{TFDS}:")


def _plain(name: str) -> str:
    """A name but for case and punctuation: sst2 of SST-2."""
    return re.sub(r"\W|_", "", name.casefold())


def of_yaml(path: str | Path) -> dict[str, list[Set]]:
    """The sets of a table of one's own, a YAML file as in `commands.glue`.

    Raises:
        ValueError: it is malformed.
    """
    with errors_of(path):
        entries = read_yaml(Path(path).read_text(encoding="utf-8"))
        if not isinstance(entries, dict) or not all(isinstance(values, dict) for values in entries.values()):
            raise ValueError("a name for each set is needed, and under it train and dev")
        return {
            str(name): [_of_entry(str(name), **{str(key): value for key, value in values.items()})]
            for name, values in entries.items()
        }


def _of_entry(name: str, /, task: str = "classify", figures=(), columns=None, positive=None, **files: str) -> Set:
    if not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise ValueError(f"the set {name!r}: letters, digits, dots and dashes make a folder's name")
    if unknown := sorted(files.keys() - {"train", "dev", "test"}):
        raise ValueError(f"{name}: {unknown[0]!r} is none of columns, dev, figures, positive, task, test, train")
    if missing := sorted({"train", "dev"} - files.keys()):
        raise ValueError(f"{name}: no {missing[0]}")
    if task not in tasks.TASKS:
        raise ValueError(f"{name}: task {task!r}: one of {', '.join(tasks.TASKS)}")
    metrics = tasks.get(task).metrics
    if unknown := [figure for figure in figures or () if figure not in metrics]:
        raise ValueError(f"{name}: {unknown[0]!r} is no figure of {task}: {', '.join(metrics)}")
    named = {key: str(column) for key, column in (columns or {}).items()}
    dev, test = {"dev": str(files["dev"])}, {name: str(files["test"])} if "test" in files else {}
    of_f1 = None if positive is None else str(positive)
    return Set(name, tuple(figures or metrics[:1]), str(files["train"]), dev, test, named, (), of_f1, task)


def _forms(name: str, figures: tuple, labels=(), columns=None, also=(), prepared=None, task="classify") -> list[Set]:
    """A set in GLUE's three files, in other files or in TensorFlow Datasets, each with columns of its own."""
    number, word = ("1", labels[1]) if "f1" in figures else (None, None)
    base = f"{TFDS}:glue/{_plain(name)}"
    dev, test = {"dev": f"{name}/dev.tsv"}, {name: f"{name}/test.tsv"}
    files = Set(name, figures, f"{name}/train.tsv", dev, test, columns, labels, number, task)
    others = [replace(files, train=train, dev=dev, test={}, columns=own) for train, dev, own in also]
    dev, test = {"dev": f"{base}:validation"}, {name: f"{base}:test"}
    return [files, *others, replace(files, train=f"{base}:train", dev=dev, test=test, columns=prepared, positive=word)]


def _mnli(folder: str, train: str, dev: str, test: Mapping[str, str], columns: Mapping[str, str] | None = None) -> Set:
    """MNLI, which has two development and test sets each."""
    parts = {part: folder + dev.format(part) for part in ("matched", "mismatched")}
    return Set("MNLI", _ACCURACY, folder + train, parts, test, columns)


_ACCURACY, _F1 = ("accuracy",), ("f1", "accuracy")
_CORPUS = {"text": "4", "label": "2"}
_PARAPHRASE = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
_SIMILARITY = {"text": "6", "pair": "7", "label": "5"}  # of the files of the STS benchmark
_QUESTIONS = {"text": "question1", "pair": "question2", "label": "is_duplicate"}
_ANSWER = {"text": "question", "pair": "sentence"}
_PAIR = {"text": "sentence1", "pair": "sentence2"}
_GOLD = {**_PAIR, "label": "gold_label"}
_COLA = ("CoLA/raw/in_domain_train.tsv", {"dev": "CoLA/raw/in_domain_dev.tsv"}, _CORPUS)
_MRPC = ("MRPC/msr_paraphrase_train.txt", {"test": "MRPC/msr_paraphrase_test.txt"}, _PARAPHRASE)
_STS_B = ("STS-B/sts-train.csv", {"dev": "STS-B/sts-dev.csv"}, _SIMILARITY)
_AX = {"AX": "AX|diagnostic/diagnostic.tsv"}
_TESTS = {"MNLI-m": "MNLI/test_matched.tsv", "MNLI-mm": "MNLI/test_mismatched.tsv", **_AX}
_TFDS_TESTS = {"MNLI-m": "tfds:glue/mnli:test_matched", "MNLI-mm": "tfds:glue/mnli:test_mismatched"}
_TFDS_TESTS |= {"AX": "tfds:glue/ax:test"}
# Zhang et al. 2015, https://arxiv.org/abs/1509.01626: the topic of a question with its best answer
_TOPICS = {"label": "topic", "text": "question_title", "pair": "best_answer"}
_BY_NUMBER = {"label": "1", "text": "2", "pair": "4"}
_YAHOO, _TFDS_YAHOO = {"test": "Yahoo/test.csv"}, {"test": "tfds:yahoo_answers_topics:test"}

SETS: dict[str, list[Set]] = {  # name -> its forms; the first that is there is read
    "CoLA": _forms("CoLA", ("matthews",), ("unacceptable", "acceptable"), _CORPUS, [_COLA]),
    "SST-2": _forms("SST-2", _ACCURACY, ("negative", "positive")),
    "MRPC": _forms("MRPC", _F1, ("not_equivalent", "equivalent"), _PARAPHRASE, [_MRPC]),
    "STS-B": _forms("STS-B", ("pearson", "spearman"), also=[_STS_B], task="regress"),
    "QQP": _forms("QQP", _F1, ("not_duplicate", "duplicate"), _QUESTIONS),
    "MNLI": [
        _mnli("MNLI/", "train.tsv", "dev_{}.tsv", _TESTS, _GOLD),
        _mnli("MNLI|multinli/multinli_1.0_", "train.jsonl", "dev_{}.jsonl", _AX, _GOLD),
        _mnli("tfds:glue/mnli:", "train", "validation_{}", _TFDS_TESTS),
    ],
    "QNLI": _forms("QNLI", _ACCURACY, columns=_ANSWER, prepared=_ANSWER),
    "RTE": _forms("RTE", _ACCURACY, columns=_PAIR, prepared=_PAIR),
    "WNLI": _forms("WNLI", _ACCURACY, ("not_entailment", "entailment"), _PAIR, prepared=_PAIR),
    "Yahoo": [
        Set("Yahoo", _ACCURACY, "Yahoo/train.csv", _YAHOO, columns=_BY_NUMBER),
        Set("Yahoo", _ACCURACY, "tfds:yahoo_answers_topics:train", _TFDS_YAHOO, columns=_TOPICS),
    ],
}
GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")  # what the average is of
