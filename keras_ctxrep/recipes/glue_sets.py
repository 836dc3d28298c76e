"""The sets of GLUE, and Yahoo's topics: where their rows are, what is learned from them and what is reported.

Wang et al. 2019, https://openreview.net/forum?id=rJ4km2R5t7; TensorFlow Datasets' catalogue, glue.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["GLUE", "SETS", "TFDS", "Layout", "Set"]

TFDS = "tfds"  # in place of a folder: the prepared data sets of TensorFlow Datasets


@dataclass(frozen=True)
class Layout:
    """Where a set's rows are: files as FOLDER/FILE, in a folder of that name or of one that begins so, or tfds:...

    Attributes:
        train: rows to learn from.
        dev: what figures are of -> rows to score; the first is also scored in training.
        test: name of a submission's file -> rows without labels.
        columns: of the labelled files, as in `reading.read`; those with numbers have no header.
    """

    train: str
    dev: Mapping[str, str]
    test: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None

    @classmethod
    def tsv(cls, name: str, **kwargs) -> "Layout":
        """train.tsv, dev.tsv and test.tsv, as GLUE's download has them."""
        return cls(f"{name}/train.tsv", {"dev": f"{name}/dev.tsv"}, {name: f"{name}/test.tsv"}, **kwargs)

    @classmethod
    def tfds(cls, name: str, data_set: str, **kwargs) -> "Layout":
        """The splits of a data set of TensorFlow Datasets."""
        parts = (f"{TFDS}:{data_set}:{split}" for split in ("train", "validation", "test"))
        train, dev, test = parts
        return cls(train, {"dev": dev}, {name: test}, **kwargs)


@dataclass(frozen=True)
class Set:
    """A set of labelled rows, and what is reported of it.

    Attributes:
        name: e.g. "SST-2".
        figures: metrics of the task.
        layouts: the forms in which its rows are distributed; the first whose training rows exist is read.
        task: name of one of `tasks.TASKS`.
        positive: the label of which F1 is, under the names that it has in the layouts.
        submitted: label -> its name in a submission, where it differs.
    """

    name: str
    figures: tuple[str, ...]
    layouts: tuple[Layout, ...]
    task: str = "classify"
    positive: tuple[str, ...] = ()
    submitted: Mapping[str, str] = field(default_factory=dict)


def _inference(name: str, sentences: tuple[str, str], submitted: Mapping[str, str] | None = None) -> Set:
    columns = dict(zip(("text", "pair"), sentences, strict=True))
    layouts = Layout.tsv(name, columns=columns), Layout.tfds(name, f"glue/{name.lower()}", columns=columns)
    return Set(name, ("accuracy",), layouts, submitted=submitted or {})


_SIMILARITY = {"text": "6", "pair": "7", "label": "5"}  # of the files of the STS benchmark
_PARAPHRASE = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
_QUESTIONS = {"text": "question1", "pair": "question2", "label": "is_duplicate"}
_MNLI = {"text": "sentence1", "pair": "sentence2", "label": "gold_label"}
_MNLI_PARTS = ("matched", "mismatched")

SETS = {
    entry.name: entry
    for entry in (
        Set(
            "CoLA",
            ("matthews",),
            (
                Layout.tsv("CoLA", columns={"text": "4", "label": "2"}),
                Layout(
                    "CoLA/raw/in_domain_train.tsv",
                    {"dev": "CoLA/raw/in_domain_dev.tsv"},
                    columns={"text": "4", "label": "2"},
                ),
                Layout.tfds("CoLA", "glue/cola"),
            ),
            submitted={"unacceptable": "0", "acceptable": "1"},
        ),
        Set(
            "SST-2",
            ("accuracy",),
            (Layout.tsv("SST-2"), Layout.tfds("SST-2", "glue/sst2")),
            submitted={"negative": "0", "positive": "1"},
        ),
        Set(
            "MRPC",
            ("f1", "accuracy"),
            (
                Layout.tsv("MRPC", columns=_PARAPHRASE),
                Layout("MRPC/msr_paraphrase_train.txt", {"test": "MRPC/msr_paraphrase_test.txt"}, columns=_PARAPHRASE),
                Layout.tfds("MRPC", "glue/mrpc"),
            ),
            positive=("1", "equivalent"),
            submitted={"not_equivalent": "0", "equivalent": "1"},
        ),
        Set(
            "STS-B",
            ("pearson", "spearman"),
            (
                Layout.tsv("STS-B"),
                Layout("STS-B/sts-train.csv", {"dev": "STS-B/sts-dev.csv"}, columns=_SIMILARITY),
                Layout.tfds("STS-B", "glue/stsb"),
            ),
            task="regress",
        ),
        Set(
            "QQP",
            ("f1", "accuracy"),
            (Layout.tsv("QQP", columns=_QUESTIONS), Layout.tfds("QQP", "glue/qqp")),
            positive=("1", "duplicate"),
            submitted={"not_duplicate": "0", "duplicate": "1"},
        ),
        Set(
            "MNLI",
            ("accuracy",),
            (
                Layout(
                    "MNLI/train.tsv",
                    {part: f"MNLI/dev_{part}.tsv" for part in _MNLI_PARTS},
                    {"MNLI-m": "MNLI/test_matched.tsv", "MNLI-mm": "MNLI/test_mismatched.tsv"}
                    | {"AX": "AX|diagnostic/diagnostic.tsv"},
                    _MNLI,
                ),
                Layout(
                    "MNLI|multinli/multinli_1.0_train.jsonl",
                    {part: f"MNLI|multinli/multinli_1.0_dev_{part}.jsonl" for part in _MNLI_PARTS},
                    {"AX": "AX|diagnostic/diagnostic.tsv"},
                    _MNLI,
                ),
                Layout(
                    "tfds:glue/mnli:train",
                    {part: f"tfds:glue/mnli:validation_{part}" for part in _MNLI_PARTS},
                    {"MNLI-m": "tfds:glue/mnli:test_matched", "MNLI-mm": "tfds:glue/mnli:test_mismatched"}
                    | {"AX": "tfds:glue/ax:test"},
                ),
            ),
        ),
        _inference("QNLI", ("question", "sentence")),
        _inference("RTE", ("sentence1", "sentence2")),
        _inference("WNLI", ("sentence1", "sentence2"), {"not_entailment": "0", "entailment": "1"}),
        # Zhang et al. 2015, https://arxiv.org/abs/1509.01626: the topic of a question with its best answer
        Set(
            "Yahoo",
            ("accuracy",),
            (
                Layout("Yahoo/train.csv", {"test": "Yahoo/test.csv"}, columns={"label": "1", "text": "2", "pair": "4"}),
                Layout(
                    "tfds:yahoo_answers_topics:train",
                    {"test": "tfds:yahoo_answers_topics:test"},
                    columns={"label": "topic", "text": "question_title", "pair": "best_answer"},
                ),
            ),
        ),
    )
}
GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")  # what the average is of
