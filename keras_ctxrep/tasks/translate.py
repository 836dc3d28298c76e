"""Translation: a text is written for a text, as another language, a spelling's phonemes, or a short form of it."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.options import option
from keras_ctxrep.tasks.abilities import GraphFeatures, Outputs, Query, Searches
from keras_ctxrep.tasks.evaluation import Metrics
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text import beam, generation_scores, target_tokens
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row, padded
from keras_ctxrep.text.files import checked_text
from keras_ctxrep.text.target_tokens import TargetTokens

__all__ = ["Options", "Translate", "TranslateOptions", "Translation"]

DECODERS = ("recurrent", "transformer", "convolutional")
SCORES = ("additive", "dot", "general")
LARGEST = {"max_length": 4096, "beams": 256}  # that a server is asked for: they take memory
LOWEST = -1e38  # a score below is that of no text


@dataclass(frozen=True)
class Translation:
    """A text and what may be written for it, and where it was read: "FILE:LINE".

    Attributes:
        text: the text.
        targets: one or more texts that are right; None if they are unknown.
    """

    text: str
    targets: tuple[str, ...] | None = None
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class TranslationReading(Reading):
    """Reads texts with one target, or with a list of several in JSON."""

    def examples(self, record: Record) -> Iterator[Translation]:
        text, value = record.text("text"), record.value("target")
        several = value if isinstance(value, list | tuple) else [value]
        for target in several:
            if target is not None and not isinstance(target, str):
                raise ValueError(f"target {target!r}: a text is needed, or a list of texts")
        targets = tuple(checked_text(target) for target in several if target is not None)
        yield Translation(text, targets or None, record.source)


@dataclass(frozen=True)
class TranslateOptions(options.Options):
    """Options of a decoder and of its targets."""

    target_units: str = option("subwords", "what the decoder writes, one after another", choices=target_tokens.UNITS)
    target_vocab_size: int = option(8000, ">3  subwords or words that are learned from the targets, at most")
    target_length: int = option(128, ">1  units of a target; longer ones are cut", most=LARGEST["max_length"])
    decoder: str = option("recurrent", choices=DECODERS)("""an LSTM with attention and input feeding, a Transformer, or
        causal convolutions of 3 tokens""")
    decoder_units: int = option(256, ">0  width of the decoder")
    decoder_layers: int = option(1, ">0  layers of the decoder; each convolution reads 2 more tokens before")
    attention: str = option("additive", "score of the recurrent decoder's attention", choices=SCORES)
    decoder_dropout: float = option(0.2, ">=0 <1  dropout rate of the decoder in training")
    label_smoothing: float = option(0.1)("""X >=0 <1  the part of the target's probability that is shared among all
        units""")
    beams: int = option(4, most=LARGEST["beams"])(""">0  hypotheses of the beam search that the model answers with;
        1: greedy""")
    alpha: float = option(0.6, ">=0  length penalty of the beam search, 0 for none (Wu et al. 2016)")


Options = TranslateOptions  # its former name


class Translate(Task, Searches):
    """A text for a text."""

    name = "translate"
    help = "a text for a text: text, target (one of several: a list in JSON lines, or a row each)"
    page = ("A text for a text", "It writes a text for what is typed, and shows where it looked")
    reading = TranslationReading(
        {"text": ("text", "source", "sentence"), "target": ("target", "targets", "translation", "label")}, ("target",)
    )
    gold = "targets"
    needs_context = True
    metrics: ClassVar[tuple[str, ...]] = tuple(generation_scores.METRICS)
    smaller: ClassVar[tuple[str, ...]] = ("word_error_rate", "character_error_rate")
    agrees = "the same text"
    model_outputs: ClassVar[tuple[str, ...]] = ("memory", "state")
    training_outputs: ClassVar[tuple[str, ...]] = ("logits", "attention")
    model_parts: ClassVar[tuple[str, ...]] = ("ids", "step")
    Options: type[options.Options] = TranslateOptions
    outputs: ClassVar[Mapping[str, str]] = {
        "text": "the best text",
        "score": "the log-probability of its units over the length penalty",
        "n_best": "all texts of the beam search, the best first",
        "n_best_scores": "their scores, the lowest number where there are fewer",
        "finished": "1 where the best text ended by itself, before the largest number of units",
    }

    # ------------------------------------------------------------------------------------------------- examples

    def labels_of(self, example: Any) -> Sequence | None:
        """The words of the targets, of which the vocabulary is learned, and a space where there is white space."""
        if example.targets is None:
            return None
        spaces = [" "] if any(len(target.split()) > 1 or target != target.strip() for target in example.targets) else []
        return [word for target in example.targets for word in target.split()] + spaces

    def unseen(self, example: Any, known: Collection[str]) -> list[str]:
        return []  # an unknown unit is one that the decoder does not write

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        vocab = target_tokens.learn(options.target_units, used, options.target_vocab_size)
        if len(vocab) <= len(target_tokens.MARKERS):
            raise ValueError(f"{source}: all of its targets are empty")
        return vocab

    def settings(self, options: Any, traits: set[Hashable]) -> dict:
        names = {"target_units": "units", "target_length": "target_length", "beams": "beams", "alpha": "alpha"}
        return {new: getattr(options, old) for old, new in names.items()}

    def with_search(self, bundle: Bundle, **options) -> Bundle:
        settings = bundle.settings
        given: dict[str, Any] = {name: settings[name] for name in ("beams", "alpha")} | options
        chosen = TranslateOptions(**given)
        # a loop in a .tflite file has the options of its conversion; the greedy one is of every file
        in_graph = settings.get("in_graph", True) and chosen.alpha == settings["alpha"]
        in_graph = in_graph and chosen.beams in (1, settings["beams"])
        own = {"beams": chosen.beams, "alpha": chosen.alpha, "in_graph": in_graph}
        return replace(bundle, settings=settings | own)

    # -------------------------------------------------------------------------------------------------- training

    def training_queries(self, example: Any) -> tuple[Query, ...]:
        return self.queries(example) * len(example.targets or ())

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        tokens, most = tokens_of(bundle), bundle.settings["target_length"] - 1
        return [tokens.ids(target)[:most] for target in example.targets]

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        labels = padded([[*target, TargetTokens.END] for target in targets])
        mask = labels["mask"].astype(np.float32)
        return {"logits": labels["token_ids"]}, {"logits": mask * (mask.size / mask.sum())}

    def target_inputs(self, targets: list) -> dict[str, np.ndarray]:
        read = padded([[TargetTokens.BEGIN, *target] for target in targets])
        return {"target_ids": read["token_ids"], "target_mask": read["mask"]}

    def head_options(self, options: Any) -> dict:
        sizes = {"kind": options.decoder, "units": options.decoder_units, "layers": options.decoder_layers}
        sizes |= {"dropout": options.decoder_dropout}
        own = {"recurrent": {"score": options.attention}, "transformer": {"context": options.target_length}}
        return sizes | own.get(options.decoder, {})

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import decoder

        return decoder.by_name(encoder, len(bundle.labels), **bundle.head)

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        from keras_ctxrep.losses import CrossEntropy

        return {"logits": CrossEntropy(options.label_smoothing)}

    # --------------------------------------------------------------------------------------------------- answers

    def parts(self, model: Any) -> dict[str, Any]:
        from keras_ctxrep.models import decoder

        start, step = decoder.parts(model)
        return {"ids": start, "step": step}

    def composed(self, bundle: Bundle, parts: Mapping[str, Callable]) -> dict[str, Callable]:
        import tensorflow as tf

        options = [tf.constant([bundle.settings[name]]) for name in ("target_length", "beams", "alpha")]

        def searched(beams, inputs):
            most, _, alpha = options
            search = {"max_length": most, "beams": beams, "alpha": alpha, "dtype": "float32", "attends": True}
            found = _search_in_graph(parts, inputs, **search)
            return found._replace(finished=tf.cast(found.finished, tf.int32))._asdict()

        loops = {"greedy": partial(searched, tf.constant([1]))}
        return loops | ({"beam": partial(searched, options[1])} if bundle.settings["beams"] > 1 else {})

    def run(self, bundle: Bundle, parts: Mapping[str, Callable]) -> Callable:
        loop = parts.get("beam" if bundle.settings["beams"] > 1 else "greedy")
        if loop is not None and bundle.settings.get("in_graph", True):
            return lambda inputs: {"hypotheses": [_hypotheses(*row) for row in _rows(loop(inputs))]}
        names = {"beams": "beams", "alpha": "alpha", "target_length": "max_length"}
        options = {new: bundle.settings[old] for old, new in names.items()}

        def search(inputs: dict[str, np.ndarray]) -> dict[str, list]:
            found = beam.generate(
                parts["ids"],
                parts["step"],
                inputs,
                begin=TargetTokens.BEGIN,
                end=TargetTokens.END,
                never=TargetTokens.NEVER,
                **options,
            )
            return {"hypotheses": found}

        return search

    def encode(self, bundle: Bundle, queries: Sequence[Query]) -> list:
        rows = bundle.features.encode([query.text for query in queries], None, True)
        return [[row] for row in rows]

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        tokens, (row,), (output,) = tokens_of(bundle), rows, outputs
        best, *_ = hypotheses = output["hypotheses"]
        text, strings, attention = self.written(bundle, output)
        answer = {"text": text, "score": best.score}
        if len(hypotheses) > 1:
            answer["n_best"] = [{"text": tokens.text(each.tokens), "score": each.score} for each in hypotheses]
        if not best.finished:
            answer["unfinished"] = True
        answer["alignment"] = [
            {"token": token} | _look_at(weights, row.offsets or ())
            for token, weights in zip(strings, attention, strict=True)
        ]
        return answer

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"text": None, "score": None, "alignment": []}

    def search_options(self, bundle: Bundle) -> dict[str, int]:
        return {"max_length": bundle.settings["target_length"], "beams": bundle.settings["beams"]}

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        import tensorflow as tf

        rows = tf.shape(inputs["text"])
        options = {name: tf.fill(rows, value) for name, value in self.search_options(bundle).items()}
        return self.searched_in_graph(bundle, features, ids, inputs | options)

    def searched_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        import tensorflow as tf

        options = {name: inputs[name] for name in self.search_options(bundle)}
        for name, value in options.items():
            tf.debugging.assert_positive(value, f"{name} must be at least 1")
            tf.debugging.assert_less_equal(value, LARGEST[name], f"{name} must be at most {LARGEST[name]}")
        extra = tf.maximum(1 - tf.size(inputs["text"]), 0)  # a row, where there is none
        text = tf.concat([inputs["text"], tf.fill([extra], "")], 0)
        options = {name: tf.concat([value, tf.ones([extra], tf.int32)], 0) for name, value in options.items()}
        read = features(text=text)
        alpha = tf.fill(tf.shape(text), tf.constant(bundle.settings["alpha"], tf.float64))
        found = _search_in_graph(ids, read, alpha=alpha, **options)
        tokens = tokens_of(bundle)
        strings = tf.where(found.tokens < 0, "", tf.gather(tokens.strings, tf.maximum(found.tokens, 0)))
        texts = tf.strings.reduce_join(strings, -1)  # (B, K)
        if tokens.units != "characters":
            texts = tf.strings.regex_replace(texts, "^ ", "")
        scores = tf.maximum(tf.cast(found.scores, tf.float32), tf.float32.min)  # JSON has no infinity
        answers = {"text": texts[:, 0], "score": scores[:, 0], "n_best": texts, "n_best_scores": scores}
        answers["finished"] = tf.cast(found.finished[:, 0], tf.int32)
        count = tf.size(inputs["text"])  # without the extra row
        return {name: x[:count] for name, x in answers.items()}, self.has_words(bundle, read)[:count]

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        texts = [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in output["n_best"]]
        found = [
            {"text": text, "score": float(score)}
            for text, score in zip(texts, output["n_best_scores"], strict=True)
            if score > LOWEST
        ]
        answer = dict(found[0]) | ({"n_best": found} if len(found) > 1 else {})
        return answer if output["finished"] else answer | {"unfinished": True}

    def written(self, bundle: Bundle, output: Mapping[str, Any]) -> tuple[str, list[str], Sequence[np.ndarray]]:
        """The best text of an output of `run`, its tokens as strings, and the attention of each, (S,)."""
        tokens, (best, *_) = tokens_of(bundle), output["hypotheses"]
        strings = [tokens.strings[token].strip() or " " for token in best.tokens]
        return tokens.text(best.tokens), strings, best.attention

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": answer.get("text"), "score": answer.get("score")}

    # --------------------------------------------------------------------------------------------------- metrics

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        """Of each text all targets of the examples with this text are right, and it counts once."""
        targets: dict[str, dict[str, None]] = {}
        for example in expected:
            targets.setdefault(example.text, {}).update(dict.fromkeys(example.targets))
        references = [[*targets[example.text]] for example in expected]
        texts = [answer.get("text") or "" for answer in answers]
        rows = Counter(example.text for example in expected)
        weights = np.array([1 / rows[example.text] for example in expected])[:, None]
        metrics = generation_scores.METRICS
        statistics = {name: of(references, texts) * weights for name, (of, _) in metrics.items()}
        values = {name: metric(statistics[name].sum(0)) for name, (_, metric) in metrics.items()}
        main, (_, metric) = next(iter(metrics.items()))
        errors = 1 - np.array([metric(row) for row in statistics[main]])
        return Metrics(values, errors, lambda drawn: metric(statistics[main][drawn].sum(0)))

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        predicted = answer.get("error") or answer["text"]
        return {"input": example.text, "expected": " | ".join(example.targets), "answer": predicted}

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        return [(reference["text"] == answer["text"], abs(reference["score"] - answer["score"]))]


def _search_in_graph(parts, inputs, **options):
    """`models.beam_search.search` by the parts of a model."""
    from keras_ctxrep.models import beam_search

    begun, tokens = parts["ids"](inputs), TargetTokens
    search = beam_search.Options(begin=tokens.BEGIN, end=tokens.END, never=tokens.NEVER, **options)
    return beam_search.search(parts["step"], begun["memory"], inputs["mask"], begun["state"], search)


def _rows(outputs: Mapping[str, Sequence]) -> Iterator[tuple]:
    return zip(*(outputs[name] for name in ("tokens", "scores", "finished", "attention")), strict=True)


def _hypotheses(tokens: np.ndarray, scores: np.ndarray, finished: np.ndarray, attention: np.ndarray) -> list:
    """The hypotheses of a text from the outputs of `models.beam_search`, without the rows of none."""
    found = []
    for ids, score, ended, weights in zip(tokens, scores, finished, attention, strict=True):
        size = int((ids >= 0).sum())
        found.append(beam.Hypothesis(tuple(ids[:size].tolist()), float(score), bool(ended), tuple(weights[:size])))
    return [hypothesis for hypothesis in found if hypothesis.score > LOWEST]


@cache
def _tokens(units: str, labels: tuple[str, ...]) -> TargetTokens:
    return TargetTokens(units, labels)


def tokens_of(bundle: Bundle) -> TargetTokens:
    """The target tokens of a model."""
    return _tokens(bundle.settings["units"], bundle.labels)


def _look_at(weights: np.ndarray, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The token of the text that has the largest weight, of those that are no markers, and the weight."""
    real = [index for index, (begin, end) in enumerate(offsets) if begin < end]
    if not real:
        return {"start": 0, "end": 0, "weight": 0.0}
    index = max(real, key=lambda index: weights[index])
    return {"start": offsets[index][0], "end": offsets[index][1], "weight": float(weights[index])}
