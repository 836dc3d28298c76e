"""Text that a language model generates."""

from collections.abc import Iterator
from pathlib import Path

from keras_ctxrep.inference.model import load
from keras_ctxrep.options import Generation, keywords

__all__ = ["generate"]


@keywords(Generation)
def generate(model: str | Path, prompt: str = "", *, options: Generation) -> Iterator[str]:
    """Continues a text, token by token.

    Args:
        model: a language model in one direction, in any form that `keras_ctxrep.load` opens.
        prompt: the text to continue; "": from the beginning of a text.
        options: or its fields as keywords.

    Returns: what each token adds to the prompt, as soon as it is drawn.

    Raises:
        ValueError: another model.
    """
    return load(model).stream(prompt, options=options)
