"""From files to model folders and back: what each `ctxrep` subcommand does, as one function."""

from collections.abc import Callable
from pathlib import Path

from keras_ctxrep.recipes.converting import convert
from keras_ctxrep.recipes.distilling import distill
from keras_ctxrep.recipes.embedding import embed
from keras_ctxrep.recipes.finetuning import IN_MEMORY, finetune
from keras_ctxrep.recipes.preparing import prepare
from keras_ctxrep.recipes.pretraining import pretrain
from keras_ctxrep.recipes.scoring import score, score_sentences
from keras_ctxrep.recipes.sweeping import sweep
from keras_ctxrep.training.runs import options_from_run

__all__ = [
    "again",
    "convert",
    "distill",
    "embed",
    "finetune",
    "prepare",
    "pretrain",
    "score",
    "score_sentences",
    "sweep",
]


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
    command, arguments, options = options_from_run(run)
    recipes: dict[str, Callable[..., list[dict]]] = {"pretrain": pretrain, "finetune": finetune, "distill": distill}
    if command not in recipes:
        raise ValueError(f"{run}: its command is {command!r}; one of {', '.join(recipes)}")
    for name, value in arguments.items():
        if isinstance(value, str) and IN_MEMORY in value:
            raise ValueError(f"{run}: its {name} were {value}; call `{command}` with them")
    recipe = recipes[command]
    return recipe(**arguments, out=out, report=report, **options)
