"""What a fine-tuning run will do, and where its settings come from, as lines to print before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.options import Finetuning, Fit
from keras_ctxrep.recipes.assembly import Survey, is_frozen
from keras_ctxrep.recipes.targets import encoded
from keras_ctxrep.tasks import Task
from keras_ctxrep.text.bundle import Bundle


@dataclass(frozen=True)
class Plan:
    """A run before it begins; `str` gives its lines."""

    data: str  #: names of the training and development data and of the encoder
    dev: str
    encoder: str
    survey: Survey  #: of the training examples
    dev_set: Sequence[Any]  #: development examples
    task: Task
    bundle: Bundle
    options: Finetuning  #: as they were given
    fit: Fit  #: as they were decided
    batch_rows: int  #: rows of a batch

    def __str__(self) -> str:
        rate, metric = self.options.learning_rate, self.options.metric or "the main metric"
        lines = {
            "data": f"{self.survey.count:,} rows of {self.data}; {len(self.dev_set):,} of {self.dev} to choose by",
            "labels": self._labels(),
            "length": self._length(),
            "encoder": self._encoder(),
            "rate": f"{self.fit.learning_rate:.3g}{_default(rate)}, {self.fit.decay} decay",
            "run": self._run(),
            "evaluated": f"{self._describe_evaluation()}; the best by {metric} is kept",
        }
        return "\n".join(f"{name + ':':10} {text}" for name, text in lines.items() if text)

    def _labels(self) -> str:
        """The first ten labels and how often they are used; "" if there are none."""
        labels = self.survey.labels
        shown = ", ".join(f"{label} {self.survey.used[label]:,}".removesuffix(" 0") for label in labels[:10])
        return f"{len(labels)}: {shown}{', ...' if len(labels) > 10 else ''}" if labels else ""

    def _length(self) -> str:
        reason = "as the task needs" if self.task.max_length else "as the encoder"
        if self.options.max_length:
            reason = "given"
        cut = sum(row.truncated for row, _ in encoded(self.bundle, self.dev_set))
        return f"{self.bundle.max_length} tokens ({reason}); {cut:,} of the development texts are longer, so cut"

    def _encoder(self) -> str:
        family, lora = self.bundle.family, self.options.lora
        network = f"{self.bundle.stack['kind']} over " if self.bundle.stack else ""
        trained = f"low-rank updates of rank {lora}" if lora else "trained"
        if is_frozen(self.options, FAMILIES[family]):
            trained = "frozen"
        return f"{network}{self.encoder} ({family}), {trained}{_default(self.options.freeze)}"

    def _run(self) -> str:
        if self.fit.steps is None:
            return f"{self.fit.minutes:g} minutes"
        steps = f"{self.fit.steps:,} steps of {self.batch_rows} rows"
        if self.options.steps is not None:
            return steps
        epochs = self.options.epochs or FAMILIES[self.bundle.family].tuning.epochs
        default = "" if self.options.epochs else f" (default for {self.bundle.family})"
        return f"{steps}, {epochs:g} epochs{default}"

    def _describe_evaluation(self) -> str:
        by_epochs = self.fit.steps is not None and self.options.steps is None
        times = f"{self.fit.evaluations:g} times, evenly spaced"
        if by_epochs and self.options.evaluations is None:
            times = "at the end of every epoch"
        return times + (f", ended after {self.fit.patience} without improvement" if self.fit.patience else "")


def _default(option: Any) -> str:
    return " (default)" if option is None else ""
