"""`load` any artifact, and what a `Model` can do."""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.checks import warn
from keras_ctxrep.inference.engines import Engine, open_model
from keras_ctxrep.inference.filling import Filling
from keras_ctxrep.inference.predictor import Text
from keras_ctxrep.inference.silence import start_backend
from keras_ctxrep.options import AUTO, Generation, Tflite, unknown_option
from keras_ctxrep.tasks.answering import NO_WORDS
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Features, Marks, Span, check_texts
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.tokens import joined
from keras_ctxrep.text.tokens import words as split_into_words
from keras_ctxrep.text.unread import Unread

if TYPE_CHECKING:
    import keras

__all__ = ["Model", "WordVectors", "folder_of", "load"]


TOGETHER = 1024  # texts that are encoded together


class WordVectors(NamedTuple):
    """The words of a text that a model has vectors of.

    Attributes:
        words: the words.
        offsets: where each stands in the text, in characters, the end exclusive; of a text that came split, in its
            words joined by spaces.
        vectors: float32 (N, words, D), layer 0 without context.
    """

    words: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    vectors: np.ndarray


@dataclass(frozen=True, repr=False)
class Model:
    """A model in an engine, with its bundle: its task, labels, vocabulary, lengths and configuration.

    `load`, `finetune` and `pretrain` of `keras_ctxrep` make it. A model folder has all methods; a SavedModel and a
    .tflite file predict and encode, and say so where they are asked for more.

    Attributes:
        engine: what runs it.
        bundle: what it needs besides its weights.
        record: the record of the run that made it, as run.json has it; None: that of its folder, if there is one.
    """

    engine: Engine
    bundle: Bundle
    record: Mapping[str, Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        place = "in memory" if self.engine.path is None else self.engine.path
        return f"<Model {self.bundle.task} over {self.bundle.family}: {self.engine.name}, {place}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A SavedModel or a .tflite file is pickled by its path, so that a worker of Spark or Beam opens it once."""
        return (_load_once, (self.engine.path,)) if self.engine.exported else super().__reduce_ex__(protocol)

    # ----------------------------------------------------------------------------------------------------- answers

    def __call__(self, texts: Any, pairs: Any = None) -> Any:
        """What the model is for: the answers of `predict`; of a masked language model those of `fill`, of an encoder
        the vectors of `encode`, of a language model the continuations of `generate`.

        Args:
            texts: one string, or a list of them.
            pairs: the second text of each, for a model that reads pairs; of a question its context.

        Returns: as the method; of one string its own answer.

        Raises:
            ValueError: as the method, or `pairs` for a model that reads none.

        >>> load("glove_50/6b")("river").shape
        (50,)
        """
        if pairs is not None or (self.bundle.task in tasks.SERVED and not self.bundle.encodes):
            return self.predict(texts, pairs)
        if self.bundle.generates:
            return self.generate([texts])[0] if isinstance(texts, str) else self.generate(_list(texts))
        return self.fill(_list(texts)) if self.bundle.fills else self.encode(texts)

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]  a string is an iterable of strings
        self, texts: str, pairs: str | None = None, marks: Sequence[Span] | None = None
    ) -> dict: ...

    @overload
    def predict(
        self, texts: Iterable[Text], pairs: Iterable[str | None] | None = None, marks: Marks | None = None
    ) -> list[dict]: ...

    def predict(self, texts: Any, pairs: Any = None, marks: Any = None) -> Any:
        """The answers of the model's task, one dict per text; see `inference.predictor.Predictor` for their form.

        Labels are text, or of the type that they had in the Python objects that the model was trained on.

        Args:
            texts: strings, in a list, an array, a series or a generator; for a task over words also sentences already
                split. Or one string.
            pairs: the second text of each, for a model that reads pairs; of a question its context. Of one string one.
            marks: the marked spans of each, for a model that reads some: (begin, end) in characters. Of one string its
                own.

        Returns: a list of dicts, of one string a dict. A text without words has the key "error", and no prediction
            under the others.

        Raises:
            TypeError: one string with a list of pairs, or a list with one string of pairs.
            ValueError: the model has no answers to give, or pairs or marks do not fit it.
        """
        if pairs is not None and isinstance(texts, str) != isinstance(pairs, str):
            raise TypeError(
                f"texts is {type(texts).__name__} and pairs is {type(pairs).__name__}: give two strings, or two lists"
            )
        predictor = self.engine.answer
        with predictor.unread.warning():
            if isinstance(texts, str):
                return predictor([texts], None if pairs is None else [pairs], None if marks is None else [marks])[0]
            return predictor(_list(texts), pairs, marks)

    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = 32,
        normalize: bool = False,
        show_progress: bool = False,
        role: str | None = None,
    ) -> np.ndarray:
        """One vector per text, the same in all engines: `Bundle.pooling` of the encoder's top layer.

        The mean over the tokens, unless the model was trained on sentences with another. A .tflite file has it if it
        was made of an encoder.

        Args:
            texts: strings, in a list, an array, a series or a generator; or one string.
            batch_size: texts that the engine reads at once; of a model that computes little, as static vectors do, more
                short ones. The vectors do not depend on it.
            normalize: scale the vectors to length 1. A model that was trained to do so does it anyway.
            show_progress: show a progress bar.
            role: of the texts, "query" or "passage" of an encoder that was trained with a prefix for each, which is put
                before the texts, see `Bundle.roles`; None: none, and of most models the texts as they are.

        Returns: float32 (B, D), of one string (D,). A text without words has zeros, which stay zeros where the others
            are scaled.

        Raises:
            ValueError: an engine that has no vectors, `batch_size` is below 1, or the model has no such role.

        Warns:
            UserWarning: texts have no words, or are longer than the model reads and were cut.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least 1")
        listed = check_texts([texts] if isinstance(texts, str) else _list(texts))
        parts, read, cut, together = [], [], 0, max(TOGETHER, batch_size)
        with self.unread.warning(), _bar(len(listed), show_progress) as bar:
            for begin in range(0, len(listed), together):
                answers = self.encodings(listed[begin : begin + together], batch_size, role)
                for number, answer in enumerate(answers, begin):
                    if answer.get("error", NO_WORDS) != NO_WORDS:
                        raise ValueError(f"text {number}, {listed[number][:60]!r}: {answer['error']}")
                parts += [np.array([answer["vector"] for answer in answers if "error" not in answer], np.float32)]
                read += ["error" not in answer for answer in answers]
                cut += sum("truncated" in answer for answer in answers)
                if bar is not None:
                    bar.update(len(answers))
        width = next((part.shape[1] for part in parts if len(part)), None)
        vectors = np.zeros((len(listed), self.engine.width if width is None else width), np.float32)
        if width is not None:
            vectors[read] = np.concatenate([part for part in parts if len(part)])
        if empty := len(listed) - sum(read):
            first = read.index(False)
            message = f"{empty:,} of {len(listed):,} texts have vectors of zeros, the first of them text {first}, "
            warn(f"{message}{listed[first][:60]!r}: {NO_WORDS}")
        if cut:
            message = f"{cut:,} of {len(listed):,} texts were longer than the {self.bundle.max_length} tokens that the "
            warn(f"{message}model reads, and were cut")
        vectors = unit(vectors) if normalize else vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def encodings(self, texts: Iterable[str], batch_size: int = 32, role: str | None = None) -> list[dict]:
        """As `encode`, one dict per text: {"vector"}, and "truncated" where a text is cut; where it has no words
        {"error"} and an empty "vector".

        Args:
            texts, batch_size, role: as in `encode`.

        Raises:
            ValueError: an engine that has no vectors, or the model has no such role.
        """
        with self.unread.warning():
            return self.engine.encode(check_texts(_list(texts)), batch_size=batch_size, role=role)

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """The cosine of each vector of `a` and each of `b`; of a vector of zeros it is 0.

        Args:
            a, b: vectors of `encode`, (A, D) and (B, D); one vector, (D,), is a table of one.

        Returns: float32 (A, B).

        Raises:
            ValueError: the vectors have different widths, or are no tables of numbers.
        """
        a, b = np.atleast_2d(a), np.atleast_2d(b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not {a.dtype.kind, b.dtype.kind} <= {*"fiu"}:
            raise ValueError(
                f"vectors: {a.dtype} of shape {a.shape} and {b.dtype} of shape {b.shape}; tables of numbers (A, D) and "
                "(B, D) are needed, as encode(texts) gives them"
            )
        return unit(a) @ unit(b).T

    @overload
    def fill(self, texts: str, top: int = 5) -> list[list[Filling]]: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def fill(self, texts: Sequence[str], top: int = 5) -> list[list[list[Filling]]]: ...

    def fill(self, texts: Any, top: int = 5) -> Any:
        """The most probable pieces for each [MASK] of some texts, by a BERT that has its masked language model.

        Each mask is by itself, as in pretraining (Devlin et al. 2018, section 3.1).

        Args:
            texts: each with one [MASK] or more; or one string.
            top: pieces for a mask.

        Returns: for each text, for each of its masks in their order, (piece, probability), the most probable first; of
            one string its masks.

        Raises:
            ValueError: the model has no masked language model, or a text has no mask or is longer than the model reads.
        """
        return self.engine.fill([texts], top)[0] if isinstance(texts, str) else self.engine.fill(texts, top)

    def words(self, texts: Sequence[Text]) -> list[WordVectors]:
        """The contextual vectors of the words of each text, from all layers of the encoder.

        A BERT's vector of a word is that of its first piece. Words of which it has no piece, such as control characters
        alone, are left out.

        Args:
            texts: strings, or sentences already split into words.

        Raises:
            ValueError: a text longer than the model reads, or another engine than Keras.
        """
        from keras_ctxrep.inference.contextual_vectors import vectors

        texts = check_texts(texts)
        spans = [_spans(text) for text in texts]
        sentences = iter(spans)  # `vectors` splits one sentence after the other
        encoder = self.engine.keras.encoder
        embedded = vectors(
            encoder.model,
            encoder.bundle,
            map(str, texts),
            lambda _: [word for word, _ in next(sentences)],
            run=encoder.run,
        )
        results = []
        for words, (_, numbers, layers) in zip(spans, embedded, strict=True):
            read = [words[number] for number in numbers]
            results.append(WordVectors(tuple(word for word, _ in read), tuple(span for _, span in read), layers))
        return results

    # ------------------------------------------------------------------------------------------------------ quality

    @property
    def history(self) -> list[dict]:
        """The evaluations of the run that made the model, as `recipes.finetune` returns them; [] if none is recorded.

        An export has none: they are in the model folder that it was made of.
        """
        return [*self._record.get("history", ())]

    @property
    def metrics(self) -> dict[str, float]:
        """The figures on the development data of that run, of the weights that were kept; {} if none are recorded."""
        from keras_ctxrep.training import history

        return history.metrics(self._record)

    def evaluate(self, data: Any, batch_size: int = 32, **options: Any) -> dict:
        """The metrics on held-out data, by `recipes.score`.

        Args:
            data: labelled examples in any form that `finetune` takes; of a language model a text file.
            batch_size: texts computed together; no figure depends on it.
            options: of `recipes.score`: `columns`, `skip_bad`, `predictions`, `positive` and others.

        Returns: as in `recipes.score`: {"examples", "metric", all metrics by name, "interval", "worst", ...}.

        Raises:
            ValueError: the data is malformed or does not fit the model's task.
        """
        start_backend()
        from keras_ctxrep.commands.score import score

        return score(self, data, batch_size, **options)

    # --------------------------------------------------------------------------------------------------------- text

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Continues texts by a language model in one direction.

        Args:
            prompts: the texts; "" is the beginning of one.
            options: fields of `options.Generation`, such as `length`, `temperature`, `top_p` and `seed`, to which the
                number of the text is added; or `options=Generation(...)`.

        Returns: what is generated, without the prompts.

        Raises:
            ValueError: another model.
        """
        return self.engine.generate(prompts, _generation(options))

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """As `generate`, of one text, a string for each token as soon as it is drawn."""
        return self.engine.generate.stream(prompt, _generation(options))

    # ------------------------------------------------------------------------------------------- for a Keras script

    @property
    def keras_model(self) -> "keras.Model":
        """The `keras.Model`, for `compile` and `fit` of one's own.

        Raises:
            ValueError: another engine than Keras.
        """
        return self.engine.keras.model

    @property
    def features(self) -> Features:
        """The function from texts to the model's input dict."""
        return self.bundle.features

    @property
    def encoder(self) -> "Model":
        """The encoder alone, over the model's own layers: training the one changes the other.

        Raises:
            ValueError: another engine than Keras.
        """
        engine = self.engine.keras.encoder
        return Model(engine, engine.bundle)

    # ------------------------------------------------------------------------------------------------------ artifacts

    def save(self, folder: str | Path) -> Path:
        """Writes a model folder, and beside it the record of the training, if there is one.

        Raises:
            ValueError: another engine than Keras, or `folder` is a file.
        """
        from keras_ctxrep import saving
        from keras_ctxrep.training import history

        saving.save(folder, self.keras_model, self.bundle)
        if self._record:
            history.write_record(folder, self._record)
        return Path(folder)

    def export(self, out: str | Path, **options: Any) -> Path:
        """Writes the next version of a SavedModel with raw strings as its input, of a pretraining model its encoder's.

        Args:
            out: BASE/NAME, where TF Serving looks for versions.
            options: `windows`, `keep` and `tflite` of `keras_ctxrep_export.saved_model.export`.

        Returns: the folder of the version.
        """
        model = self.keras_model
        from keras_ctxrep.saving import ModelFolder
        from keras_ctxrep_export import saved_model

        return saved_model.export(*ModelFolder(model, self.bundle).served(), out, source=self.engine.path, **options)

    def tflite(self, out: str | Path, quantize: str = "none", **options: Any) -> Path:
        """Writes a .tflite file, as `recipes.tflite` does; of a pretraining model its encoder's.

        Args:
            out: FILE.tflite.
            quantize: "none", "float16", "dynamic" or "int8".
            options: of `recipes.tflite`: `lengths`, `calibrate`, `keep_float`, `mediapipe`, `fill` and others; with
                `data`, examples of the task, the file is measured against Keras and refused if it loses more than
                `max_drop`.

        Returns: `out`.
        """
        with folder_of(self, as_it_is=True) as folder:
            from keras_ctxrep.commands.tflite import tflite

            given: dict[str, Any] = {} if quantize == Tflite.quantize else {"quantize": quantize}
            tflite(folder, out, **options, **given)
        return Path(out)

    # --------------------------------------------------------------------------------------------------------- details

    @cached_property
    def _record(self) -> Mapping[str, Any]:
        if self.record is not None:
            return self.record
        from keras_ctxrep.training import history

        return {} if self.engine.path is None else history.record(self.engine.path)

    @property
    def unread(self) -> Unread:
        """The counts of what gives vectors of texts."""
        return self.engine.encode.unread


def load(name: str | Path, threads: int | None = None, engine: str = AUTO) -> Model:
    """Opens a model, wherever it is.

    Args:
        name: a model folder, a SavedModel (BASE/NAME or a version of it), a .tflite file, the name of a published model
            that comes with the package or was downloaded, hf://OWNER/NAME, which is downloaded, or a folder of
            `transformers`, as the Hub's clients download it; both are converted once, into the cache.
        threads: of LiteRT; None: one for a .tflite file, all cores for a model folder.
        engine: of a model folder, what predicts, encodes and fills masks. "auto": LiteRT or Keras, whichever is quicker
            for the texts that are asked together, see `inference.automatic.AutoEngine`; their answers differ by
            rounding. A folder that has no graph, as those of the package have one, and that was not converted, is
            answered by Keras; so is any where LiteRT is not installed, or the machine has a GPU. "litert": LiteRT, for
            which the folder is converted once, into the cache. "keras": Keras. With all of them Keras answers once
            `keras_model` was asked for.

    Raises:
        ValueError: there is no such file, folder or name, or it is damaged; or no such engine.
        ImportError: TensorFlow or LiteRT is needed and not installed; the message says what to install.

    >>> load("missing.tflite")
    Traceback (most recent call last):
    ValueError: missing.tflite: no such file or folder
    """
    opened = open_model(name, engine, threads)
    return Model(opened, opened.bundle)


# ---------------------------------------------------------------------------------------------------------- details


@lru_cache(4)
def _load_once(path: Path) -> Model:
    return load(path)


@contextmanager
def folder_of(encoder: "str | Path | Model", as_it_is: bool = False) -> Iterator[str | Path]:
    """The folder of a model, which is temporary if it was not loaded from one.

    Args:
        encoder: a model, a folder or a name.
        as_it_is: a model is written with its present weights, even if it was loaded from a folder.
    """
    if isinstance(encoder, Model):
        if encoder.engine.path is not None and not as_it_is:
            yield encoder.engine.path
            return
        with tempfile.TemporaryDirectory() as folder:
            yield encoder.save(Path(folder) / "model")
        return
    from keras_ctxrep import zoo
    from keras_ctxrep.options import LEARNED

    yield encoder if encoder in LEARNED else zoo.find(encoder)


def _generation(options: dict[str, Any]) -> Generation:
    """The options of `generate`, given as keywords or as one object."""
    if "options" in options:
        return replace(options.pop("options"), **options)
    if unknown := [name for name in options if name not in Generation.__dataclass_fields__]:
        raise unknown_option("generate", unknown[0], Generation.__dataclass_fields__)
    return Generation(**options)


def _list(texts: Any) -> Any:
    """Texts of a generator, a set or another iterable as a list; others as they are."""
    as_it_is = isinstance(texts, str | bytes | bytearray | Mapping | Sequence) or hasattr(texts, "__array__")
    return list(texts) if isinstance(texts, Iterable) and not as_it_is else texts


def _bar(total: int, shown: bool) -> Any:
    """A progress bar, or None."""
    if not shown:
        return nullcontext()
    from tqdm import tqdm

    return tqdm(desc="encoding", unit=" texts", total=total, file=sys.stderr, leave=False)


def _spans(text: Text) -> list[tuple[str, tuple[int, int]]]:
    """The words of a text, with the place of each."""
    if isinstance(text, str):
        return [(word.text, (word.start, word.end)) for word in split_into_words(text)]
    return list(zip(text, joined(text)[1], strict=True))
