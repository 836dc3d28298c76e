"""What models do with a text, each in one answer: masks, names, sentiment, similarity, senses, answers and attention.

The page and the terminal session of `ctxrep try` ask for them. A model is loaded when it is first asked.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_ctxrep.checks import first_line, printable
from keras_ctxrep.inference.asgi import Application, Limits, Refused, json_bytes, json_object
from keras_ctxrep.text.search import PASSAGE, QUERY

if TYPE_CHECKING:
    from keras_ctxrep.inference.model import Model

__all__ = ["MODELS", "Models", "NoModel", "application"]

MODELS: Mapping[str, str] = {
    "fill": "masked_en",
    "names": "names_en",
    "sentiment": "sentiment_en",
    "nearest": "similar_en",
    "senses": "similar_en",
    "answers": "answers_en",
    "attention": "similar_en",
}
"""What is asked for -> the published model that answers it."""

FIELDS: Mapping[str, tuple[str, ...]] = dict.fromkeys(MODELS, ("text",)) | {
    "nearest": ("text", "sentences"),
    "senses": ("word", "sentences"),
    "answers": ("question", "context"),
}
"""What is asked for -> the fields of a request; "sentences" is a list of texts, others are texts."""

SENTENCES = 200  # of a request
TOP = 5  # pieces for a mask, answers to a question
PAIRS = 10  # of occurrences of a word
_PAGE = Path(__file__).with_suffix(".html")
_PATH = "/v1/try/"


class NoModel(ValueError):
    """The model that is to answer cannot be loaded."""


class Models:
    """Models that answer requests, each loaded at its first request.

    Args:
        models: name of `MODELS` -> a model, in place of the published one: a folder, a name of the zoo, or a file.
        report: called with a line when a model is loaded.

    Raises:
        ValueError: a name that is none of `MODELS`.

    >>> models = Models({"senses": "bert_3_384_12/books_wiki_en"})
    >>> sentences = ["They sat on the bank of the river.", "The boat left the bank.", "The bank lent her money."]
    >>> models.answer("senses", {"word": "bank", "sentences": sentences})["points"][0]["nearest"]
    1
    """

    def __init__(
        self,
        models: Mapping[str, str | Path] = MappingProxyType({}),
        report: Callable[[str], object] = lambda line: None,
    ):
        if unknown := [name for name in models if name not in MODELS]:
            raise ValueError(f"{printable(unknown[0])}: choose {', '.join(MODELS)}")
        self.models = {name: str(models.get(name, published)) for name, published in MODELS.items()}
        self.report = report
        self._loaded: dict[str, Model] = {}
        self._maps: dict[str, Callable[[str, str | None], tuple[list[str], np.ndarray]]] = {}

    def loaded(self, name: str) -> bool:
        """Whether the model that answers a request of this name is loaded."""
        return self.models[name] in self._loaded

    def answer(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request, as JSON has it; places in a text are in characters, the end exclusive.

        Args:
            name: what is asked for, a name of `MODELS`.
            request: its fields, see `FIELDS`.

        Returns: of fill {"masks": of each [MASK] the most probable [{"piece", "probability"}]}; of names {"entities":
            [{"type", "text", "start", "end"}]}; of sentiment {"label", "probabilities": [{"label", "probability"}], the
            most probable first}; of nearest {"nearest": [{"number": of the sentence, from 0, "cosine"}], the nearest
            first}; of senses {"points": of each sentence {"start", "end": the word in it, "x", "y": its vector on the
            first two principal components, "nearest": the number of the nearest other one, "cosine": to that},
            "variance": fractions on the two axes, "pairs": [{"a", "b", "cosine"}], the nearest first}; of answers
            {"answer": "" if there is none, "start", "end", "score": minus that of no answer, "others": further
            [{"answer", "start", "end", "probability"}]}; of attention {"pieces", "shape": [layers, heads, pieces,
            pieces], "weights": see `plots.attention.packed`}. With "truncated" if the text is longer than the model
            reads.

        Raises:
            NoModel: the model is not there, or is damaged.
            ValueError: a field is missing or empty, or the model cannot answer the request.
        """
        values = [_field(request, field) for field in FIELDS[name]]
        if unknown := request.keys() - {*FIELDS[name]}:
            raise ValueError(f'"{printable(min(unknown))}": a request for {name} has {", ".join(FIELDS[name])}')
        return getattr(self, f"_{name}")(self._model(name), *values)

    def _model(self, name: str) -> "Model":
        model = self.models[name]
        if model not in self._loaded:
            from keras_ctxrep.inference.model import load

            self.report(f"loading {model}")
            try:
                self._loaded[model] = load(model)
            except (ImportError, OSError, ValueError) as error:
                reason = first_line(error).removeprefix(f"{model}: ")
                raise NoModel(f"{model} cannot be loaded: {reason}; give another: --models {name}=MODEL") from None
        return self._loaded[model]

    def _fill(self, model: "Model", text: str) -> dict:
        (masks,) = model.fill([text], TOP)
        return {"masks": [[each._asdict() for each in pieces] for pieces in masks]}

    def _names(self, model: "Model", text: str) -> dict:
        answer = _predicted(model, "entities", text)
        return {"entities": answer["entities"]} | _truncated(answer)

    def _sentiment(self, model: "Model", text: str) -> dict:
        answer = _predicted(model, "probabilities", text)
        ranked = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
        return {
            "label": str(ranked[0][0]),
            "probabilities": [{"label": str(label), "probability": float(value)} for label, value in ranked],
        } | _truncated(answer)

    def _nearest(self, model: "Model", text: str, sentences: Sequence[str]) -> dict:
        query, passage = (role if role in model.bundle.roles else None for role in (QUERY, PASSAGE))
        cosines = model.similarity(model.encode(text, role=query), model.encode(sentences, role=passage))[0]
        order = np.argsort(-cosines, kind="stable")
        return {"nearest": [{"number": int(number), "cosine": float(cosines[number])} for number in order]}

    def _senses(self, model: "Model", word: str, sentences: Sequence[str]) -> dict:
        from keras_ctxrep.plots.words import projection, word_in

        if len(sentences) < 3:
            raise ValueError("at least three sentences are needed")
        vectors, points = [], []
        for number, (sentence, read) in enumerate(zip(sentences, model.words(sentences), strict=True), 1):
            place = word_in(word, sentence, f"sentence {number}: ")
            if (place.start, place.end) not in read.offsets:
                raise ValueError(f"sentence {number}: the model finds no piece in the word {word!r}")
            vectors.append(read.vectors[-1, read.offsets.index((place.start, place.end))])
            points.append({"start": place.start, "end": place.end})
        array = np.asarray(vectors, np.float64)
        drawn, cosines = projection(array), model.similarity(array, array)
        others = np.where(np.eye(len(array), dtype=bool), -2, cosines)
        for number, (point, (x, y)) in enumerate(zip(points, drawn["coordinates"].tolist(), strict=True)):
            nearest = int(others[number].argmax())
            point |= {"x": x, "y": y, "nearest": nearest, "cosine": float(cosines[number, nearest])}
        pairs = [
            {"a": int(a), "b": int(b), "cosine": float(cosines[a, b])}
            for a, b in zip(*np.triu_indices(len(array), 1), strict=True)
        ]
        pairs.sort(key=lambda pair: -pair["cosine"])
        return {"points": points, "variance": drawn["variance"], "pairs": pairs[:PAIRS]}

    def _answers(self, model: "Model", question: str, context: str) -> dict:
        answer = _predicted(model, "null_score", question, context)
        others = [each for each in answer.get("n_best", ()) if each["start"] != answer["start"]][:TOP]
        names = ("answer", "start", "end", "probability")
        return {name: answer[name] for name in names[:3]} | {
            "score": float(answer["score"] - answer["null_score"]),
            "others": [{name: each[name] for name in names} for each in others],
        }

    def _attention(self, model: "Model", text: str) -> dict:
        from keras_ctxrep.plots.attention import attention_of, packed

        name = self.models["attention"]
        if name not in self._maps:
            self._maps[name] = attention_of(model.keras_model, model.bundle, name)
        pieces, weights = self._maps[name](text, None)
        return {"pieces": pieces, "shape": [*weights.shape], "weights": packed(weights)}


def application(models: Models, hosts: Collection[str] | None = None) -> Application:
    """The ASGI application of `ctxrep try`: its page, and POST /v1/try/NAME of a request, see `Models.answer`.

    Args:
        models: that answer.
        hosts: as in `asgi.Application`.

    Raises:
        ImportError: Starlette is not installed.
    """
    return _Trying(models, hosts)


class _Trying(Application):
    def __init__(self, models: Models, hosts: Collection[str] | None):
        super().__init__(Limits(body=1 << 20), hosts)
        self.models = models

    def described(self, path: str) -> tuple[int, bytes]:
        if path == "/healthz":
            return 200, json_bytes({"status": "ok"})
        if path != "/":
            return super().described(path)
        own = {name: {"model": model, "loaded": self.models.loaded(name)} for name, model in self.models.models.items()}
        models = json.dumps(own).replace("<", "\\u003c")
        return 200, Template(_PAGE.read_text("utf-8")).substitute(models=models).encode()

    def answering(self, method: str, path: str) -> Callable[[bytes], dict]:
        name = path.removeprefix(_PATH)
        if method != "POST" or path != _PATH + name or name not in FIELDS:
            return super().answering(method, path)

        def answer(body: bytes) -> dict:
            request = json_object(body)
            try:
                return self.models.answer(name, request)
            except NoModel as error:
                raise Refused(404, printable(error, 400)) from None
            except ValueError as error:
                raise Refused(400, printable(error, 400)) from None

        return answer


def _field(request: Mapping[str, Any], name: str) -> Any:
    value = request.get(name)
    if name != "sentences":
        if isinstance(value, str) and value.strip():
            return value
        raise ValueError(f'"{name}" is empty')
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value) or not value:
        raise ValueError('"sentences" is a list of texts, none of them empty')
    if len(value) > SENTENCES:
        raise ValueError(f'"sentences" has {len(value)}; at most {SENTENCES}')
    return value


def _predicted(model: "Model", key: str, text: str, pair: str | None = None) -> dict:
    """The answer to a text, which has a key that the answers of some tasks have."""
    answer = model.predict(text, pair)
    if key not in answer:
        raise ValueError(
            f"a model of the task {model.bundle.task} does not answer this: there is no {key!r} in its answers"
        )
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _truncated(answer: Mapping[str, Any]) -> dict:
    return {"truncated": True} if "truncated" in answer else {}
