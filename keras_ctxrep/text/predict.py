"""From text to answers through any engine: the one place where outputs are decoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from keras_ctxrep.text.bundle import SERVED, Bundle
from keras_ctxrep.text.decode import best_answers, entities, sigmoid, softmax
from keras_ctxrep.text.features import Row, WordPieceFeatures
from keras_ctxrep.text.tags import is_spans

Text = str | Sequence[str]
Run = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]  # arrays, or lists of them, over the batch


class Predictor:
    """Texts to answers; the same code around a Keras model, a SavedModel or a .tflite file.

    Args:
        bundle: of the model.
        run: input dict -> output dict, both of arrays with a batch axis, or the outputs as lists over the batch.
        batch_size: texts given to `run` at once.
        raw: `run` prepares the text itself and is given {"text": strings}, as a SavedModel's raw-string signature is.

    Call:
        texts: strings; for a tagger also sentences already split into words.
        pairs: the second text of each, for a model that reads pairs; of a question its context.

    Returns: one dict per text, by the model's task:

        * classify: {"label", "score", "probabilities"};
        * multilabel: {"labels", "probabilities"}, those of at least 0.5;
        * regress: {"value"};
        * tag: {"words": [{"word", "start", "end", "label", "score"}]} with character offsets into the text, and where
          the labels mark spans "entities": [{"type", "text", "start", "end"}]; of a sentence that came split, the
          offsets are those in its words joined by spaces, and a word that was cut off has the label None;
        * answer: {"answer", "start", "end", "score", "null_score", "n_best"}; a question without an answer has "";
        * embed: {"vector"};

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
        if bundle.task not in SERVED:
            raise ValueError(
                f"a {bundle.task} answers nothing; fine-tune it with `ctxrep train`, or use `ctxrep embed`"
            )
        self.bundle, self.run, self.batch_size, self.raw = bundle, run, batch_size, raw
        pair = [""] if bundle.pairs else None
        self._empty = len(bundle.features.encode([""], pair)[0])  # tokens where there are no words

    def __call__(self, texts: Sequence[Text], pairs: Sequence[str | None] | None = None) -> list[dict]:
        if isinstance(texts, str):
            raise TypeError(f"one string, {texts[:60]!r}; give a list of texts")
        if texts and self.bundle.pairs != any(pair is not None for pair in pairs or []):
            needed = "pairs of texts" if self.bundle.pairs else "one text at a time"
            raise ValueError(f"this model reads {needed}")
        if self.raw and not all(isinstance(text, str) for text in texts):
            raise ValueError("a SavedModel splits text into words itself: give strings")
        texts = [_valid(text) if isinstance(text, str) else tuple(map(_valid, text)) for text in texts]
        pairs = [_valid(pair or "") for pair in pairs or []] if self.bundle.pairs else None
        if self.bundle.task == "answer":
            return self._answers([str(text) for text in texts], pairs or [])
        rows = self.bundle.features.encode(texts, pairs, offsets=self.bundle.task == "tag")
        answers: list[dict] = [{"error": "no words in this text"} for _ in texts]
        # Rows of like length share a batch, so that little padding is computed.
        order = sorted((i for i, row in enumerate(rows) if len(row) > self._empty), key=lambda i: len(rows[i]))
        for index, output in self._outputs(order, rows, texts, pairs):
            answers[index] = self._decode(output, texts[index], rows[index])
            answers[index] |= {"truncated": True} if rows[index].truncated else {}
        return answers

    def _outputs(
        self, order: Sequence[int], rows: Sequence[Row], texts: Sequence[Text], pairs: Sequence[str] | None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(index, its outputs), batch by batch in an order: what is run are the rows, or, raw, the texts."""
        for begin in range(0, len(order), self.batch_size):
            indices = order[begin : begin + self.batch_size]
            if self.raw:
                batch = {"text": np.array([texts[i] for i in indices], object)}
                if pairs is not None:
                    batch["pair"] = np.array([pairs[i] for i in indices], object)
            else:
                batch = self.bundle.features.collate([rows[i] for i in indices])
            outputs = self.run(batch)
            for place, index in enumerate(indices):
                yield index, {name: value[place] for name, value in outputs.items()}

    def ask(self, examples: Sequence[Any]) -> list[dict]:
        """The answers to examples of the model's task, as `keras_ctxrep.text.examples.read` gives them."""
        if self.bundle.task == "answer":
            return self([one.question for one in examples], [one.context for one in examples])
        if self.bundle.task == "tag":
            # a SavedModel splits text into words itself
            return self([" ".join(one.words) if self.raw else one.words for one in examples])
        return self([one.text for one in examples], [one.pair for one in examples])

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

    def _decode(self, output: Mapping[str, np.ndarray], text: Text, row: Row) -> dict:
        task, labels = self.bundle.task, self.bundle.labels
        if task == "embed":
            return {"vector": np.asarray(output["pooled"]).tolist()}
        if task == "tag":
            return self._tagged(output, text, row)
        logits = np.asarray(output["logits"])
        if task == "regress":
            return {"value": float(logits[0])}
        shares = sigmoid(logits) if task == "multilabel" else softmax(logits)
        named = dict(zip(labels, map(float, shares), strict=True))
        if task == "multilabel":
            return {"labels": [label for label, share in named.items() if share >= 0.5], "probabilities": named}
        best = int(shares.argmax())
        return {"label": labels[best], "score": float(shares[best]), "probabilities": named}

    def _tagged(self, output: Mapping[str, np.ndarray], text: Text, row: Row) -> dict:
        if self.raw:
            columns = [output[name] for name in ("words", "starts", "ends", "labels", "scores")]
            words = [
                {
                    "word": word.decode(),
                    "start": int(begin),
                    "end": int(end),
                    "label": label.decode(),
                    "score": float(x),
                }
                for word, begin, end, label, x in zip(*columns, strict=True)
                if label
            ]
            return self._with_entities(words, str(text))
        shares = softmax(output["logits"])  # (W, C), W or more
        tags = output["tags"] if "tags" in output else shares.argmax(-1)
        if isinstance(text, str):
            sentence, places = text, row.words or []
        else:
            sentence = " ".join(text)
            ends = np.cumsum([len(word) + 1 for word in text]) - 1
            places = [(int(end) - len(word), int(end)) for word, end in zip(text, ends, strict=True)]
        words = []
        for number, (start, (begin, end)) in enumerate(zip(row.starts or [], places, strict=False)):
            found = {"word": sentence[begin:end], "start": begin, "end": end, "label": None, "score": 0.0}
            if start is not None:
                tag = int(tags[number])
                found |= {"label": self.bundle.labels[tag], "score": float(shares[number, tag])}
            elif isinstance(text, str):
                continue  # cut off
            words.append(found)
        return self._with_entities(words, sentence)

    def _with_entities(self, words: list[dict], sentence: str) -> dict:
        if not is_spans(self.bundle.labels):
            return {"words": words}
        marked = []
        for kind, first, last in entities([word["label"] for word in words]):
            begin, end = words[first]["start"], words[last - 1]["end"]
            marked.append({"type": kind, "text": sentence[begin:end], "start": begin, "end": end})
        return {"words": words, "entities": marked}

    def _answers(self, questions: list[str], contexts: list[str]) -> list[dict]:
        """Of each question, over all windows of its context."""
        bundle = self.bundle
        if self.raw:
            return [_from_graph(one) for _, one in self._outputs(range(len(questions)), [], questions, contexts)]
        assert isinstance(bundle.features, WordPieceFeatures)
        windows = bundle.features.windows(questions, contexts, bundle.stride)
        rows = [row for found in windows for row in found]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = dict(self._outputs(order, rows, [], None))
        outputs = [found[i] for i in range(len(rows))]
        answers, last = [], 0
        for context, found in zip(contexts, windows, strict=True):
            first, last = last, last + len(found)
            best, null = best_answers(found, outputs[first:last], context, bundle.max_answer)
            none = {"answer": "", "start": 0, "end": 0, "score": null}
            unanswered = not best or (
                bundle.null_threshold is not None and null - best[0]["score"] > bundle.null_threshold
            )
            top = none if unanswered else {name: best[0][name] for name in none}
            answers.append(top | {"null_score": null, "n_best": best})
        return answers


def _from_graph(output: Mapping[str, np.ndarray]) -> dict:
    start, end = int(output["start"]), int(output["end"])
    scores = {name: float(output[name]) for name in ("score", "null_score")}
    return {"answer": bytes(output["answer"]).decode("utf-8"), "start": start, "end": end} | scores


def _valid(text: str) -> str:
    """Half a surrogate pair is no text."""
    return text.encode("utf-8", "replace").decode("utf-8")
