"""From files to model folders and back: what each `ctxrep` subcommand does, as one function."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_ctxrep.recipes.benchmarking import Selection, glue
    from keras_ctxrep.recipes.comparing import compare
    from keras_ctxrep.recipes.converting import convert
    from keras_ctxrep.recipes.distilling import distill
    from keras_ctxrep.recipes.embedding import embed
    from keras_ctxrep.recipes.encoder_distilling import distill_encoder
    from keras_ctxrep.recipes.exporting import export
    from keras_ctxrep.recipes.finetuning import Observers, finetune
    from keras_ctxrep.recipes.generating import generate
    from keras_ctxrep.recipes.indexing import ask, index, open_index
    from keras_ctxrep.recipes.predicting import predict
    from keras_ctxrep.recipes.preparing import prepare
    from keras_ctxrep.recipes.pretraining import pretrain
    from keras_ctxrep.recipes.quantizing import tflite
    from keras_ctxrep.recipes.scoring import score, score_sentences
    from keras_ctxrep.recipes.static_distilling import distill_static
    from keras_ctxrep.recipes.static_pretraining import pretrain_static
    from keras_ctxrep.recipes.sweeping import Experiment, sweep

__all__ = [
    "Experiment",
    "Observers",
    "Selection",
    "again",
    "ask",
    "compare",
    "convert",
    "distill",
    "distill_encoder",
    "distill_static",
    "embed",
    "export",
    "finetune",
    "generate",
    "glue",
    "index",
    "open_index",
    "predict",
    "prepare",
    "pretrain",
    "pretrain_static",
    "score",
    "score_sentences",
    "sweep",
    "tflite",
]

_MODULES = {  # imported when a function is first used: predictions with a .tflite file need no TensorFlow
    "Experiment": "sweeping",
    "Observers": "finetuning",
    "Selection": "benchmarking",
    "ask": "indexing",
    "compare": "comparing",
    "convert": "converting",
    "distill": "distilling",
    "distill_encoder": "encoder_distilling",
    "distill_static": "static_distilling",
    "embed": "embedding",
    "export": "exporting",
    "finetune": "finetuning",
    "generate": "generating",
    "glue": "benchmarking",
    "index": "indexing",
    "open_index": "indexing",
    "predict": "predicting",
    "prepare": "preparing",
    "pretrain": "pretraining",
    "pretrain_static": "static_pretraining",
    "score": "scoring",
    "score_sentences": "scoring",
    "sweep": "sweeping",
    "tflite": "quantizing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def again(run: str | Path, out: str | Path, report: Callable[[dict], None] | None = None) -> list[dict]:
    """Trains a model folder once more, from its run.json alone.

    Args:
        run: run.json, or the model folder it is in.
        out: the model folder to write.
        report: called with each evaluation.

    Returns: the evaluations.

    Raises:
        ValueError: it is not a run.json, or the run read examples in memory.

    Warns:
        UserWarning: a file of the run is missing or has changed since.
    """
    from keras_ctxrep.recipes.finetuning import IN_MEMORY
    from keras_ctxrep.training.runs import options_from_run

    command, arguments, options = options_from_run(run)
    known = ("pretrain", "pretrain_static", "finetune", "distill", "distill_encoder", "distill_static")
    if command not in known:
        raise ValueError(f"{run}: its command is {command!r}; one of {', '.join(known)}")
    for name, value in arguments.items():
        if isinstance(value, str) and IN_MEMORY in value:
            raise ValueError(f"{run}: its {name} were {value}; call `{command}` with them")
    return __getattr__(command)(**arguments, out=out, report=report, **options)
