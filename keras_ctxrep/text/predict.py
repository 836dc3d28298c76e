"""From text to answers through any engine: the one place where outputs are decoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

import numpy as np

from keras_ctxrep.text.bundle import Bundle

Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]


class Predictor:
    """Texts to answers; the same code around a Keras model, a SavedModel or a .tflite file.

    Args:
        bundle: of the model.
        run: input dict -> output dict, both of arrays with a batch axis.
        batch_size: texts given to `run` at once.
        raw: `run` prepares the text itself and is given {"text": strings}, as a SavedModel's raw-string signature is.

    Call:
        texts: strings.
        pairs: the second text of each, for a model that reads pairs.

    Returns: one dict per text: {"label", "score", "probabilities"} for a classifier, {"vector"} for an encoder;
        with "truncated": True where the text was longer than the model reads; {"error"} where nothing can be read.

    Raises:
        ValueError: the model has no answers to give (a language model without a head), or it reads pairs and is given
            single texts, or the other way round.

    >>> bundle = Bundle("elmo", "classify", {"max_characters": 50}, 8, ("no", "yes"))
    >>> def run(batch):
    ...     return {"logits": np.tile([0.0, np.log(3.0)], (len(batch["mask"]), 1))}
    >>> Predictor(bundle, run)(["a text", " "])
    [{'label': 'yes', 'score': 0.75, 'probabilities': {'no': 0.25, 'yes': 0.75}}, {'error': 'no words in this text'}]
    """

    def __init__(self, bundle: Bundle, run: Run, batch_size: int = 32, raw: bool = False):
        if bundle.task == "embed" and not bundle.config.get("pooler", True):
            raise ValueError("this encoder has no pooler, so no vector of a text; use `ctxrep embed`")
        if bundle.task in ("tag", "answer"):
            raise ValueError(f"a model of the task {bundle.task!r}: its outputs are not decoded here; call the model")
        if bundle.task not in ("classify", "embed"):
            raise ValueError(
                f"a {bundle.task} gives no answers; put a head on it with `ctxrep train`, or use `ctxrep embed`"
            )
        self.bundle, self.run, self.batch_size, self.raw = bundle, run, batch_size, raw
        self._empty = len(bundle.features.encode([""], [""] if bundle.pairs else None)[0])

    def __call__(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> list[dict]:
        if isinstance(texts, str):
            raise TypeError(f"one string, {texts[:60]!r}; give a list of texts")
        if texts and self.bundle.pairs != any(pair is not None for pair in pairs or []):
            needed = "pairs of texts" if self.bundle.pairs else "one text at a time"
            raise ValueError(f"this model reads {needed}")
        texts = [_valid(text) for text in texts]
        pairs = [_valid(pair or "") for pair in pairs or []] if self.bundle.pairs else None
        rows = self.bundle.features.encode(texts, pairs)
        answers: list[dict] = [{"error": "no words in this text"} for _ in texts]
        # Rows of like length share a batch, so that little padding is computed.
        order = sorted((i for i, row in enumerate(rows) if len(row) > self._empty), key=lambda i: len(rows[i]))
        for begin in range(0, len(order), self.batch_size):
            indices = order[begin : begin + self.batch_size]
            if self.raw:
                batch = {"text": np.array([texts[i] for i in indices], object)}
                if pairs is not None:
                    batch["pair"] = np.array([pairs[i] for i in indices], object)
            else:
                batch = self.bundle.features.collate([rows[i] for i in indices])
            for index, answer in zip(indices, self._decode(self.run(batch)), strict=True):
                answers[index] = answer | ({"truncated": True} if rows[index].truncated else {})
        return answers

    def probabilities(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> np.ndarray:
        """float64 (B, C): a classifier's probabilities, in the order of its labels.

        Raises:
            ValueError: a text has no words.
        """
        answers = self(texts, pairs)
        for text, answer in zip(texts, answers, strict=True):
            if "error" in answer:
                raise ValueError(f"{answer['error']}: {text!r}")
        return np.array([list(answer["probabilities"].values()) for answer in answers])

    def lines(self, stream: IO[bytes]) -> Iterator[dict]:
        """One answer for each line of a byte stream, as soon as the line is there; a bad line gives an answer too.

        Of a pair, a tab stands between the two texts.

        Bytes that are not UTF-8 become U+FFFD, which no tokenizer reads, and the answer carries a "warning".
        """
        rest = b""
        read = getattr(stream, "read1", stream.read)  # what is there, without waiting for more
        while chunk := read(1 << 20):
            *complete, rest = (rest + chunk).split(b"\n")
            yield from self._answer_lines(complete)
        if rest:
            yield from self._answer_lines([rest])

    def _answer_lines(self, raw: list[bytes]) -> Iterator[dict]:
        texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in raw]
        if self.bundle.pairs:
            split = [text.split("\t") for text in texts]
            fine = [len(parts) == 2 for parts in split]
            found = iter(self(*([parts[i] for parts in split if len(parts) == 2] for i in (0, 1))))
            answers = [next(found) if ok else {"error": "a pair has one tab between its texts"} for ok in fine]
        else:
            answers = self(texts)
        for line, text, answer in zip(raw, texts, answers, strict=True):
            if "\ufffd" in text and "\ufffd".encode() not in line:
                answer = answer | {"warning": "not UTF-8: the bytes that are not were left out"}
            yield {"error": "empty line"} if not text else answer

    def _decode(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
        if self.bundle.task == "embed":
            return [{"vector": vector.tolist()} for vector in np.asarray(outputs["pooled"])]
        answers = []
        for row in softmax(outputs["logits"]):
            best = int(row.argmax())
            named = dict(zip(self.bundle.labels, map(float, row), strict=True))
            answers.append({"label": self.bundle.labels[best], "score": float(row[best]), "probabilities": named})
        return answers


def _valid(text: str) -> str:
    """Half a surrogate pair is no text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64 probabilities over the last axis."""
    shifted = np.asarray(logits, np.float64)
    shifted = np.exp(shifted - shifted.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
