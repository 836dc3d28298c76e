"""Similarity of texts: vectors whose cosines say how much two texts mean the same, trained from pairs of texts."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.options import option, optional
from keras_ctxrep.tasks.abilities import GraphFeatures, Outputs, Query
from keras_ctxrep.tasks.classify import COLUMNS
from keras_ctxrep.tasks.evaluation import Metrics
from keras_ctxrep.tasks.reading import Reading, Record, column_option
from keras_ctxrep.tasks.regress import finite_number, number_problem
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text import retrieval, scores
from keras_ctxrep.text.bundle import POOLING, Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.files import checked_text

__all__ = ["Options", "Pair", "PairReading", "Similar", "SimilarOptions"]

SCORED, POSITIVE, TRIPLET = "a pair with a score", "a pair without a score", "a triplet"  # kinds of examples
TOLERANCE = 0.01  # largest difference of the cosine of two engines' vectors from 1
LOSSES = ("multiple_negatives", "cosent", "cosine")


@dataclass(frozen=True)
class Pair:
    """Two texts that belong together or have a score, or three; and where they were read: "FILE:LINE".

    Attributes:
        text: the text, of a search the query.
        pair: the other text, of a search a document; None: the text is only to be given a vector.
        score: how similar they are, on any scale; None: they belong together.
        negative: a third text, which does not belong to the first.
    """

    text: str
    pair: str | None = None
    score: float | None = None
    negative: str | None = None
    source: str = field(default="", compare=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """All of its texts, in this order: text, pair, negative."""
        return tuple(text for text in (self.text, self.pair, self.negative) if text is not None)


@dataclass(frozen=True)
class PairReading(Reading):
    """Reads pairs of texts with a score or without one, triplets, and single texts."""

    def examples(self, record: Record) -> Iterator[Pair]:
        texts = {name: record.value(name) for name in ("pair", "negative")}
        for name, text in texts.items():
            if text is not None and not isinstance(text, str):
                raise ValueError(f"the {name} is {text!r}; it must be a text")
        pair, negative = (checked_text(text) if text and text.strip() else None for text in texts.values())
        score = finite_number(record.value("score"))
        for name, value in {"negative": negative, "score": score}.items():
            if value is not None and pair is None:
                option = column_option("pair", "NAME", record.in_python)
                raise ValueError(f"a {name} without a pair: {option} names the column of the second text")
        if score is not None and negative is not None:
            raise ValueError("a score and a negative: a pair has a score, and a triplet none")
        yield Pair(record.text("text"), pair, score, negative, record.source)

    def fields_of_columns(self, columns: Sequence[Sequence[Any]]) -> list[str]:
        third = [] if len(columns) < 3 else next((x for x in columns[2] if x is not None), 0.0)
        return ["text", "pair", "negative" if isinstance(third, str) else "score"][: len(columns)]


@dataclass(frozen=True, kw_only=True)
class SimilarOptions(options.Options):
    """Options of vectors of texts."""

    loss: str | None = option(None, choices=LOSSES)("""multiple_negatives: the pair of each text among those of the
        batch; cosent: the order of the scores; cosine: the scores themselves (default: cosent of pairs with scores,
        else multiple_negatives)""")
    scale: float = option(20.0, ">0  factor of the cosines in multiple_negatives and cosent")
    matryoshka: str | Sequence | None = optional("""N,N,...  widths, e.g. 256,128,64, to which the vectors may be cut
        afterwards""")
    pooling: str | None = option(None, choices=tuple(POOLING))("""the vector is the mean, the max or the first (cls)
        of the tokens (default: as the encoder has it)""")
    normalize: bool | None = optional("scale the vectors to length 1 (default: as the encoder does)")
    dims: int | None = optional(">0  cut the vectors to their first N numbers (default: all)")

    def __post_init__(self):
        super().__post_init__()
        if self.matryoshka is not None:
            parts = self.matryoshka.split(",") if isinstance(self.matryoshka, str) else self.matryoshka
            try:
                widths = [int(part) for part in parts]
            except (TypeError, ValueError):
                widths = []
            if not widths or min(widths) < 1:
                raise ValueError(f"matryoshka={self.matryoshka!r}: whole numbers with commas between them, 256,128,64")
            object.__setattr__(self, "matryoshka", widths)


Options = SimilarOptions  # its former name


class Similar(Task):
    """Vectors of texts.

    A model has no head: its vector is pooled from the encoder's outputs, as the bundle says, and what is trained is an
    encoder with the task "embed". An example is asked about text by text; its texts stay together in a batch, so that
    the loss can compare them.
    """

    name = "similar"
    help = "vectors that are similar for similar texts: text, pair[, score or negative]"
    reading = PairReading(
        {
            "text": (*COLUMNS["text"], "anchor", "query"),
            "pair": (*COLUMNS["pair"], "positive", "document"),
            "negative": ("negative",),
            "score": ("score", "label"),
        },
        labelled=("pair", "negative", "score"),
    )
    gold = "pair"
    together = True
    metrics: ClassVar[tuple[str, ...]] = (
        "spearman", "pearson", "ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10", "map_at_100",
    )  # fmt: skip
    agrees = f"vectors with a cosine of at least {1 - TOLERANCE}"
    Options: type[options.Options] = SimilarOptions
    model_outputs: ClassVar[tuple[str, ...]] = ("vector",)
    outputs: ClassVar[Mapping[str, str]] = {}

    # ------------------------------------------------------------------------------------------------- examples

    def kind(self, example: Any) -> str:
        return SCORED if example.score is not None else POSITIVE if example.negative is None else TRIPLET

    def problem(self, example: Any) -> str | None:
        return number_problem(example.score)

    def traits(self, example: Any) -> Iterable[Hashable]:
        return [self.kind(example), *([] if example.score is None else [float(example.score)])]

    def queries(self, example: Any) -> tuple[Query, ...]:
        return tuple(Query(text) for text in example.texts)

    def query(self, example: Any) -> Query:
        return Query(example.text)

    # -------------------------------------------------------------------------------------------------- training

    def fields(self, options: options.Finetuning, task_options: Any, bundle: Bundle) -> dict[str, Any]:
        if options.stack is not None or options.mix:
            name = "mix" if options.stack is None else "stack"
            raise ValueError(
                f"{name}={getattr(options, name)!r}: the vector is of the encoder's top layer; leave it out"
            )
        pooling = task_options.pooling or bundle.pooling
        dims = bundle.dims if task_options.dims is None else task_options.dims
        normalize = bundle.normalize if task_options.normalize is None else task_options.normalize
        fields: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "dims": dims}
        if "pooler" in bundle.config and pooling != "pooler":  # weights that the vector does not depend on
            fields["config"] = bundle.config | {"pooler": False}
        return fields | {"task": "embed", "head": {}}

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        score = 0.0 if example.score is None else example.score
        return [(score, text) for text in example.texts]

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(text for _, text in targets))}
        return ({"vector": np.array([(score, numbers[text]) for score, text in targets], np.float32)},)

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.embed(encoder, bundle.pooling, bundle.normalize, bundle.dims)

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        from keras_ctxrep import losses

        scored = sorted(trait for trait in traits if isinstance(trait, float))
        name = options.loss or ("cosent" if scored else "multiple_negatives")
        if bool(scored) != (name != "multiple_negatives"):
            needed = "texts that belong together, and these pairs have scores" if scored else "pairs with scores"
            remedy = "cosent or cosine" if scored else "multiple_negatives"
            raise ValueError(f"loss={name!r}: of {needed}; choose {remedy}")
        if rows < 2 and name != "cosine":
            raise ValueError(
                f"batch_size={rows}: loss={name!r} compares the examples of a batch with each other; two or more are "
                "needed, of which more make better vectors"
            )
        arguments = {"texts": 3 if TRIPLET in traits else 2, "nested": options.matryoshka or ()}
        if name == "multiple_negatives":
            return losses.MultipleNegatives(options.scale, **arguments)
        if scored[0] == scored[-1]:
            raise ValueError(f"loss={name!r}: all scores are {scored[0]:g}; leave them out where all pairs are alike")
        if name == "cosent":
            return losses.CoSENT(options.scale, **arguments)
        inside = scored[0] >= 0 and scored[-1] <= 1
        return losses.CosineRegression(*((0.0, 1.0) if inside else (scored[0], scored[-1])), **arguments)

    # --------------------------------------------------------------------------------------------------- answers

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        name = "vector" if "vector" in outputs[0] else "pooled"  # of exports before 0.3
        return {"vector": np.asarray(outputs[0][name]).tolist()}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"vector": []}

    def joined(self, answers: Sequence[dict]) -> dict:
        if len(answers) == 1:
            return answers[0]
        for answer in answers:
            if "error" in answer:
                return {"error": answer["error"], "similarity": None, "vectors": []}
        vectors = [answer["vector"] for answer in answers]
        first, second = retrieval.unit(np.array(vectors[:2]))
        truncated = {"truncated": True} if any(answer.get("truncated") for answer in answers) else {}
        return {"similarity": float(first @ second), "vectors": vectors} | truncated

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": " ".join(f"{number:.6g}" for number in answer.get("vector", ()))}

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        rows = features(**inputs)
        return ids(rows), self.has_words(bundle, rows)

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        return self.decode(bundle, query, (), (output,))

    # --------------------------------------------------------------------------------------------------- metrics

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        for example, answer in zip(expected, answers, strict=True):
            if "error" in answer:
                source = example.source or repr(example.text[:60])
                raise ValueError(f"{source}: {answer['error']}, so no vector to compare")
        if all(example.score is not None for example in expected):
            gold = np.array([example.score for example in expected])
            cosines = np.array([answer["similarity"] for answer in answers])
            values = {name: getattr(scores, name)(gold, cosines) for name in self.metrics[:2]}
            misplaced = np.abs(_places(gold) - _places(cosines))
            return Metrics(values, misplaced, lambda drawn: scores.spearman(gold[drawn], cosines[drawn]))
        return self._retrieval(expected, answers)

    def _retrieval(self, expected: Sequence[Pair], answers: Sequence[dict]) -> Metrics:
        """Each text as a query over the pairs and negatives of all examples, a text that occurs twice counting once."""
        queries: dict[str, set[int]] = {}  # with the numbers of the documents that belong to each
        documents: dict[str, int] = {}
        vectors: dict[str, list[float]] = {}
        for example, answer in zip(expected, answers, strict=True):
            vectors |= zip(example.texts, answer["vectors"], strict=True)
            for text in example.texts[1:]:
                documents.setdefault(text, len(documents))
            queries.setdefault(example.text, set()).add(documents[str(example.pair)])
        of_queries, of_documents = (
            retrieval.unit(np.array([vectors[text] for text in side])) for side in (queries, documents)
        )
        ranking = retrieval.ranked(of_queries, of_documents, 100).tolist()
        functions = {
            "ndcg_at_10": retrieval.ndcg,
            "mrr_at_10": retrieval.reciprocal_rank,
            "recall_at_1": lambda numbers, relevant: retrieval.recall(numbers, relevant, 1),
            "recall_at_10": retrieval.recall,
            "map_at_100": retrieval.average_precision,
        }
        by_query = {
            name: np.array([of(*pair) for pair in zip(ranking, queries.values(), strict=True)])
            for name, of in functions.items()
        }
        main, position = next(iter(by_query.values())), {text: number for number, text in enumerate(queries)}
        of_example = np.array([position[example.text] for example in expected])
        weight = 1 / np.bincount(of_example)[of_example]  # so that every query counts once
        value = main[of_example]
        return Metrics(
            {name: float(values.mean()) for name, values in by_query.items()},
            1 - value,
            lambda drawn: float(value[drawn] @ weight[drawn] / weight[drawn].sum()),
        )

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        expected = example.pair if example.score is None else example.score
        predicted = answer.get("error") or round(answer["similarity"], 4)
        shown = {"input": " | ".join(example.texts), "expected": expected, "answer": predicted}
        return shown | {"texts": list(example.texts)}

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        pairs = zip(*(side.get("vectors") or [side["vector"]] for side in (reference, answer)), strict=True)
        differences = [1 - float(np.prod(retrieval.unit(np.array(pair)), axis=0).sum()) for pair in pairs]
        return [(difference <= TOLERANCE, difference) for difference in differences]


def _places(values: np.ndarray) -> np.ndarray:
    """The place of each value in the order of all, from 0 to 1; equal ones share the first.

    >>> _places(np.array([5.0, 1.0, 5.0])).round(2).tolist()
    [0.33, 0.0, 0.33]
    """
    return np.searchsorted(np.sort(values), values) / len(values)
