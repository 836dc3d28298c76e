"""From files to model folders and back: what each `ctxrep` subcommand does, as one function."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_ctxrep.commands.ask import ask
from keras_ctxrep.commands.compare import compare
from keras_ctxrep.commands.convert import convert
from keras_ctxrep.commands.distill import distill, distill_encoder, distill_static
from keras_ctxrep.commands.embed import embed
from keras_ctxrep.commands.export import export
from keras_ctxrep.commands.generate import generate
from keras_ctxrep.commands.glue import glue
from keras_ctxrep.commands.index import index
from keras_ctxrep.commands.predict import predict
from keras_ctxrep.commands.prepare import prepare
from keras_ctxrep.commands.pretrain import pretrain, pretrain_static
from keras_ctxrep.commands.score import score
from keras_ctxrep.commands.search import open_index
from keras_ctxrep.commands.tflite import tflite
from keras_ctxrep.commands.train import finetune, sweep
from keras_ctxrep.deprecated import move_modules

if TYPE_CHECKING:
    from keras_ctxrep.recipes.scoring import score_sentences

__all__ = [
    "again", "ask", "compare", "convert", "distill", "distill_encoder", "distill_static", "embed", "export", "finetune",
    "generate", "glue", "index", "open_index", "predict", "prepare", "pretrain", "pretrain_static", "score",
    "score_sentences", "sweep", "tflite",
]  # fmt: skip

move_modules(__name__, {"embedding": "keras_ctxrep.commands.embed"})


def __getattr__(name: str) -> Any:
    if name != "score_sentences":  # imported when it is first used
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("keras_ctxrep.recipes.scoring").score_sentences


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
    return globals()[command](**options | arguments, out=out, report=report)
