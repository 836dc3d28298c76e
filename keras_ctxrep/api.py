"""The face of the library: `load` any artifact, `finetune` and `pretrain` a `Model`."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_ctxrep.inference.model import Model, WordVectors, folder_of, load
from keras_ctxrep.inference.silence import start_backend

if TYPE_CHECKING:
    import keras

__all__ = ["Model", "WordVectors", "finetune", "load", "pretrain"]


Report = Callable[[dict], None]


def finetune(
    data: Any,
    dev: Any = 0.1,
    encoder: "str | Path | Model" = "bert_6_384_12/books_wiki_en",
    task: str = "classify",
    out: str | Path | None = None,
    report: Report | None = None,
    callbacks: "Sequence[keras.callbacks.Callback]" = (),
    verbose: bool = True,
    **options: Any,
) -> Model:
    """Fine-tunes an encoder for a task, by `recipes.finetune`, and opens the result.

    How good it is: `Model.metrics` has the figures on `dev`, `Model.history` those of each evaluation, and
    `Model.evaluate` those on other data.

    Args:
        data: what to learn from: columns, (texts, labels) or (texts, pairs, labels), as lists, arrays or Series; a
            mapping of columns or a DataFrame, with the task's names or `columns` of one's own; a `tf.data.Dataset` of
            strings; examples of the task; a file; or "tfds:NAME:SPLIT". Labels of Python objects that are whole
            numbers, truth values or floats are such in answers too. A row without a text or a label is refused, or
            left out with `skip_bad=True`.
        dev: the same, to choose the best weights by; or a fraction of `data` to hold out at random.
        encoder: a model, a model folder or a published name; or "words", for embeddings learned from `data` alone. Of
            a model that was loaded from a folder it is what is in the folder.
        task: one of `tasks.TASKS`.
        out: the model folder to write, with the record of the run, in which an interrupted run resumes; None: the
            model is only returned, and `Model.save` writes it.
        report: called with each evaluation, {"step", "minutes", "loss", "val_accuracy", ...}; `print`, for example.
        callbacks: of Keras, for `model.fit`, see `training.fit.fit`.
        verbose: print a line with the main metric, the length and the time on standard error in the end.
        options: fields of `options.Finetuning` and of the task's own options, such as `epochs`, `learning_rate`,
            `batch_size` and `seed`; or `options=Finetuning(...)`, which type checkers read.

    Raises:
        TypeError: there is no such option, or it is of another type.
        ValueError: a row is malformed, or an option does not fit the task or the encoder.
    """
    start_backend()
    from keras_ctxrep import recipes

    begin = time.monotonic()
    with folder_of(encoder) as source, _output(out) as folder:
        recipes.finetune(data, dev, source, folder, task=task, report=report, callbacks=callbacks, **options)
        return _open(folder, out, time.monotonic() - begin if verbose else None)


def pretrain(
    family: str,
    corpus: Sequence[str | Path],
    out: str | Path | None = None,
    report: Report | None = None,
    callbacks: "Sequence[keras.callbacks.Callback]" = (),
    verbose: bool = True,
    **options: Any,
) -> Model:
    """Pretrains a biLM, a BERT or a language model from text files, by `recipes.pretrain`, and opens the result.

    Args:
        family: "elmo", "bert" or "lm".
        corpus: text files, one sentence a line, an empty line between documents; or a folder of `recipes.prepare`.
        out, report, callbacks, verbose: as in `finetune`.
        options: fields of `options.Pretraining`, of which `steps` or `minutes` is needed; or
            `options=Pretraining(...)`.

    Raises:
        TypeError: there is no such option, or it is of another type.
        ValueError: no text in the corpus, or options that contradict each other.
    """
    start_backend()
    from keras_ctxrep import recipes

    begin = time.monotonic()
    with _output(out) as folder:
        recipes.pretrain(family, corpus, folder, report=report, callbacks=callbacks, **options)
        return _open(folder, out, time.monotonic() - begin if verbose else None)


# ------------------------------------------------------------------------------------------------------------- details


def _open(folder: Path, out: str | Path | None, seconds: float | None) -> Model:
    """The model of a run's folder, which is temporary unless it is `out`.

    The seconds that it took are printed with what came of it; of None nothing is.
    """
    from keras_ctxrep.training import history
    from keras_ctxrep.training.strategy import choose, is_chief

    record = history.record(folder)
    engine = load(folder).engine.keras
    model = Model(engine if out else replace(engine, path=None), engine.bundle, record)
    if seconds is not None and is_chief(choose(record.get("options", {}).get("strategy", "auto"))):
        print(f"{model.bundle.task}: {_summary(model)} in {seconds:,.0f} s", file=sys.stderr, flush=True)
    return model


def _summary(model: Model) -> str:
    """The main metric, of pretraining all, the size of the development data and the length of a run."""
    record: Any = model.record
    metrics = {name: value for name, value in model.metrics.items() if not name.endswith("loss")} or model.metrics
    size, epochs, steps = "held-out text", record.get("epochs"), model.history[-1]["step"]
    if "dev" in record:
        chosen = next(name for name in model.history[-1] if name.startswith("val_")).removeprefix("val_")
        metrics = {chosen: model.metrics[chosen]}
        size = f"{record['dev']['examples']:,} development examples"
    shown = (f"{name.replace('_logits_', ' ').replace('_', ' ')} {value:.4f}" for name, value in metrics.items())
    return f"{', '.join(shown)} on {size}; {steps:,} steps" + (f" ({epochs:.3g} epochs)" if epochs else "")


@contextmanager
def _output(out: str | Path | None) -> Iterator[Path]:
    """A folder to write, a temporary one if none is named."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "model"
