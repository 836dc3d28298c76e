"""`ctxrep score`: metrics of a model on held-out data."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_ctxrep.commands.command import FOLDER, Command, Usage, argument, function, in_python
from keras_ctxrep.commands.printing import print_line, short, table
from keras_ctxrep.options import AnyPath, Scoring

__all__ = ["Score", "score"]


@dataclass(frozen=True)
class Score(Scoring, Command[Any]):
    """Evaluate on held-out data.

    A task's metrics, with an interval and the worst examples; a biLM's
    full-softmax perplexity, or a BERT's MLM and NSP accuracy; of static word vectors analogies and similarities.

    Notes:
        A biLM: full-softmax perplexity forward, backward and exp of the mean of both losses, over all words and
        sentence ends of a text. A language model in one direction: perplexity over tokens and ends of lines, through
        which the state is carried from the first to the last, the same per word, and bits per character; with
        `compare_ngram`, beside them the figures of interpolated modified Kneser-Ney n-grams (Chen & Goodman 1999) of
        the same tokens, counted in that text line by line. A BERT pretrainer: MLM and NSP accuracy, on text, 15% of
        whose pieces are masked, one by one or with `whole_words`, however it was trained. A task model:
        `Task.evaluate`; malformed examples are left out and counted under "skipped" with `skip_bad`.

        In Python, `folder` may be a `Model`, with its present weights, and `data` as in `reading.read`. No figure
        depends on `batch_size`, but with `carry_state`, whose streams it counts.

    Returns: of a task model or an encoder, on labelled examples, {"examples": how many, "metric": the name of the main
        metric, all metrics by name, "f1_of": the label that "f1" is of, where there is one, "interval": its 95%
        bootstrap interval, "table": rows of text or None, "by_label": of a classifier rows of text, "worst": the
        examples that were answered worst, each {"source", "input", "expected", "answer"}, with "texts", both texts of a
        pair, and "confidence" where they exist}. With `lm` an iterator, as of `score_sentences`.

    Raises:
        ValueError: the data is malformed or does not fit the model's task.
    """

    folder: Any = argument(f"published  {FOLDER}; of a task model also a SavedModel folder or a .tflite file")
    data: Any = argument("[--data FILE]  labelled examples, or text for a language model")
    batch_size: int = in_python(32)
    carry_state: bool = argument("""[--carry-state]  a biLM: carry the state through the text, instead of scoring each
        sentence by itself""")
    predictions: AnyPath | None = argument("""[--predictions FILE.jsonl] writes  write text, expected and predicted
        label here, one JSON object a line""")
    analogies: AnyPath | None = argument("[--analogies FILE]  static word vectors: questions as of questions-words.txt")
    word_pairs: AnyPath | None = argument("""[--word-pairs FILE]  static word vectors: pairs of words and how similar
        they are, such as those of WordSim-353""")
    json: bool = argument("[--json]  print one JSON object")
    lm: bool = argument("[--lm]  a biLM: the log-probability of each sentence, one JSON object a line")

    def __post_init__(self):
        super().__post_init__()
        if sum(value is not None for value in (self.data, self.analogies, self.word_pairs)) != 1:
            raise Usage("give one of --data, --analogies and --word-pairs")
        names = ("carry_state", "columns", "skip_bad", "positive", "predictions", "whole_words", "max_length")
        if self.data is None:
            self._leave_out((*names, "lm"), ": word vectors are scored by words alone")
        elif self.lm:
            self._leave_out(names, " with --lm: it scores sentences of a text, each by itself")
            self._leave_out(("json",), " with --lm: one JSON object for each sentence is what it prints")

    def _leave_out(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if getattr(self, name):
                raise Usage(f"leave out --{name.replace('_', '-')}{reason}")

    def run(self) -> Any:
        if self.data is None:
            from keras_ctxrep.recipes.word_vectors import WordTable

            words = WordTable(self.folder)
            return words.score_analogies(self.analogies) if self.analogies else words.score_pairs(str(self.word_pairs))
        from keras_ctxrep.recipes import scoring

        if self.lm:
            from keras_ctxrep.text.corpus import documents

            sentences = (sentence for document in documents([self.data]) for sentence in document)
            return scoring.score_sentences(self.folder, sentences)
        return self._score(self.data)

    def _score(self, data: Any) -> dict:
        from keras_ctxrep import tasks
        from keras_ctxrep.inference.engines import open_model
        from keras_ctxrep.inference.predictor import Predictor
        from keras_ctxrep.recipes import scoring
        from keras_ctxrep.text.files import TABLES, suffix

        folder: Any = self.folder
        name, engine = (folder, open_model(folder)) if isinstance(folder, str | Path) else (str(folder), folder.engine)
        engine, bundle = engine if engine.exported else engine.keras, engine.bundle
        scoring.check_options(name, bundle, self)
        if engine.exported and (bundle.task not in tasks.SERVED or self.carry_state):
            raise ValueError(f"{name}: an export of the task {bundle.task!r}: score the model folder it is of")
        if self.carry_state and bundle.task not in scoring.CARRYING:
            raise ValueError(f"{name}: its task is {bundle.task!r}; carry_state is of a biLM")
        if bundle.task in tasks.SERVED:
            predictor = Predictor(bundle, engine.answer.runner, self.batch_size)
            return scoring.score_task(predictor, data, self.predictions, self)
        of_tasks = ("columns", "skip_bad", "positive")
        if self.predictions or any(getattr(self, each) != getattr(Scoring, each) for each in of_tasks):
            only = "columns, skip_bad and predictions are for task models"
            raise ValueError(f"{name}: its task is {bundle.task!r}; {only}")
        if not isinstance(data, str | Path):
            raise ValueError(f"{name}: its task is {bundle.task!r}; give a text file")
        if suffix(Path(data)) in TABLES:
            scored = f"a {bundle.task} is scored on running text, a sentence a line"
            raise ValueError(f"{data}: rows of a table, and {scored}")
        score_text = (scoring.CARRYING if self.carry_state else scoring.PRETRAINING)[bundle.task]
        figures = score_text(engine.keras.model, bundle, data, self.batch_size, self)
        return figures if self.compare_ngram is None else figures | scoring.score_counts(bundle, data, figures, self)

    def show(self, result: Any) -> None:
        if self.lm or self.json:
            for entry in result if isinstance(result, Iterator) else [result]:
                print_line(json.dumps(entry, ensure_ascii=False))
        else:
            _print_figures(result)


score = function(Score, "score")


def _print_figures(figures: dict) -> None:
    metric, interval = figures.get("metric"), figures.get("interval")
    for name, value in figures.items():
        if isinstance(value, int | float):
            shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
            note = f"   95% of resamples: {interval[0]:.4f} to {interval[1]:.4f}" if name == metric and interval else ""
            of = f" of {figures[f'{name}_of']}" if f"{name}_of" in figures else ""
            print_line(f"{name.replace('_', ' ') + of:20} {shown}{note}")
    for name in ("table", "by_label"):
        if figures.get(name):
            print(f"\n{table(figures[name])}")
    if figures.get("worst"):
        print("\nworst")
    for entry in figures.get("worst", ()):
        texts = entry.get("texts") or [entry["input"]]
        print_line("\n    ".join([f"  {entry['source']}", *map(short, texts)]))
        confidence = f"   ({entry['confidence']:.1%} sure)" if "confidence" in entry else ""
        print(f"    expected  {short(entry['expected'])}\n    answered  {short(entry['answer'])}{confidence}")
    if figures.get("skipped"):
        from keras_ctxrep.text.files import skipped_rows

        print_line(f"\n{skipped_rows(figures['skipped'])}")
