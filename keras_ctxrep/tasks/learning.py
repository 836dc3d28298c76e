"""How a task is learned: its labels, the targets of its examples, its head and its loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row

LABEL_TYPE = "label_type"  # the setting of a model whose labels were not text in Python
LABEL_TYPES: Mapping[str, Callable[[str], Any]] = {  # and how a label is made of its name
    "bool": {"False": False, "True": True}.__getitem__,
    "int": int,
    "float": float,
}


class Learning(ABC):
    """The part of a task that training asks for.

    Attributes:
        gold: the attribute of an example that holds the expected answer.
        Options: a frozen dataclass of its own training options, made with `options.option`.
        together: whether the rows of an example stay together in a batch, so that the loss can compare them.
        needs_context: over vectors that know nothing of their context there is a task network, chosen or not.
        max_length: tokens per text to train with, if the encoder reads as many; None: as the encoder was trained.
        head_dropout: before the head's dense layer; None: as the family has it.
        training_outputs: the outputs of the model beside those that `decode` reads, while it is trained.
        label_type: of a model, one of `LABEL_TYPES`: what its labels were in Python; None: text.
    """

    gold = "label"
    Options: type[options.Options] = options.Options
    together = False
    needs_context = False
    max_length: int | None = None
    head_dropout: float | None = None
    training_outputs: ClassVar[tuple[str, ...]] = ()
    label_type: str | None = None

    def problem(self, example: Any) -> str | None:
        """What is wrong with an example to learn from or to compare with, beyond its labels."""
        return None

    def kind(self, example: Any) -> str:
        """What an example is, in words, where all examples of a data set must be the same; else ""."""
        return ""

    def labels_of(self, example: Any) -> Sequence | None:
        """The labels an example uses, or None if it has not been labelled."""
        return None if getattr(example, self.gold) is None else ()

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        """All labels in the order of the logits.

        Args:
            used: label of the training data -> how often it is used.
            source: its name, for messages.
            options: of the class `Options`.

        Raises:
            ValueError: they are too few to train on.
        """
        return ()

    def unseen(self, example: Any, known: Collection[str]) -> list[str]:
        """The labels of an example that a model does not know; models of some tasks have none."""
        return [label for label in self.labels_of(example) or () if label not in known] if known else []

    def doubt(self, count: int, used: Mapping[str, int]) -> str | None:
        """What makes it unlikely that the training data were read as they are meant.

        Args:
            count: examples.
            used: label -> how often it is used.
        """
        return None

    def traits(self, example: Any) -> Iterable[Hashable]:
        """Properties of the training data that `settings` and `loss` depend on."""
        return ()

    def settings(self, options: Any, traits: set[Hashable]) -> dict:
        """Settings of the answers, kept in the bundle, from options of the class `Options` and all examples' traits."""
        types = {trait.__name__ for trait in traits if isinstance(trait, type)}
        label_type = self.label_type or (types.pop() if len(types) == 1 else None)
        return {LABEL_TYPE: label_type} if label_type in LABEL_TYPES else {}

    def tuned(self, bundle: Bundle, examples: Sequence[Any], ask: Callable[[Sequence[Any]], list[dict]]) -> Bundle:
        """The bundle with settings that are chosen on development examples, once the model is trained.

        Args:
            bundle: of the trained model.
            examples: development examples.
            ask: examples -> answers.
        """
        return bundle

    @abstractmethod
    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        """The target of each row of an example."""

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        """The targets of a batch by output name, and their weights if there are any."""
        return ({"logits": np.array(targets, np.float32)},)

    def target_inputs(self, targets: list) -> dict[str, np.ndarray]:
        """What a model is given of a batch's targets while it is trained, beside its inputs, by name."""
        return {}

    def fields(self, options: options.Finetuning, task_options: Any, bundle: Bundle) -> dict[str, Any]:
        """Fields of a trained model's bundle that differ from the encoder's, beside labels, settings and what is read.

        Args:
            options, task_options: of the run, those of the task of the class `Options`.
            bundle: of the encoder.

        Raises:
            ValueError: an option does not fit the task.
        """
        return {}

    @abstractmethod
    def head(self, encoder: Any, bundle: Bundle) -> Any:
        """The task's model over an encoder, with fresh weights."""

    def head_options(self, options: Any) -> dict:
        """Keyword arguments of the head that follow from the task's options."""
        return {}

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        """The loss of its outputs, a new `keras.losses.Loss`; None: softmax cross-entropy, or that of the CRF.

        Args:
            options: of the class `Options`.
            counts: every label, in the order of the logits -> its frequency in the training data.
            traits: of all training examples, as in `traits`.
            rows: examples of a batch.

        Raises:
            ValueError: the options do not fit these labels or examples.
        """
        return None


def label_values(bundle: Bundle) -> dict[str, Any]:
    """Label -> what it was in Python, of a model that was trained on labels other than text; else {}.

    Raises:
        ValueError: a label is not of the type in the bundle.

    >>> label_values(Bundle("elmo", "classify", {}, 8, ("0", "1"), settings={"label_type": "int"}))
    {'0': 0, '1': 1}
    """
    name = bundle.settings.get(LABEL_TYPE)
    try:
        return {} if name is None else {label: LABEL_TYPES[name](label) for label in bundle.labels}
    except (KeyError, ValueError):
        raise ValueError(f"settings.{LABEL_TYPE}={name!r}: its labels are {', '.join(bundle.labels)}") from None
