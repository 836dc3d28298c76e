"""`ctxrep search`: texts in an index that are near to a query."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_ctxrep import options
from keras_ctxrep.commands.answering import Answering
from keras_ctxrep.commands.command import ENCODER, argument
from keras_ctxrep.options import AnyPath

if TYPE_CHECKING:
    from keras_ctxrep.text.search import Encoder, Index

__all__ = ["Search", "open_index"]


@dataclass(frozen=True)
class Search(options.FolderEngine, Answering):
    """Look for texts in an index by their meaning.

    Prints rank, cosine, id and text of the nearest rows. Without TEXT the lines of standard input are looked
    for, on a terminal one after the other. The encoder is the one that made the index; the same model as a
    .tflite file or SavedModel may stand in for it.

    Returns: each query with its hits, as in `text.search.Index.search`.
    """

    tensorflow = "encoder"
    index: AnyPath = argument("INDEX  the folder of an index")
    text: str | None = argument("[TEXT]  the text to look for (default: the lines of --input)")
    top: int = argument("[--top N] >0  hits of each query", 10)
    exact: bool = argument("[--exact]  compare every row, even if the index has a graph")
    encoder: AnyPath | None = argument(f"[--encoder MODEL] published  {ENCODER} (default: that of the index)")

    def open(self) -> Callable[[list[str]], Iterable[Any]]:
        index = open_index(self.index, self.encoder, self.engine)
        return lambda queries: index.search(queries, self.top, self.exact)

    def shown(self, text: str, answer: Any) -> tuple[dict, list[str]]:
        rows = [{"rank": rank, **hit_content(hit)} for rank, hit in enumerate(answer, 1)]
        lines = [f"{rank:>3}  {hit.score:6.3f}  {hit.id:<8}  {hit.text}" for rank, hit in enumerate(answer, 1)]
        return {"query": text, "hits": rows}, lines


def hit_content(hit: Any) -> dict[str, Any]:
    """A hit as JSON has it."""
    return {"score": round(hit.score, 6)} | {name: getattr(hit, name) for name in ("id", "text", "source", "fields")}


def open_index(
    folder: str | Path, encoder: "str | Path | Encoder | None" = None, engine: str = options.AUTO
) -> "Index":
    """Opens an index, and its encoder.

    Args:
        folder: of the index.
        encoder: as in `index` (default: the one that made it, where it was then).
        engine: of the encoder's folder, as in `inference.model.load`.

    Raises:
        ValueError: there is no index, it is damaged, or its encoder is another one or no longer there.
    """
    from keras_ctxrep.checks import printable
    from keras_ctxrep.inference.model import load
    from keras_ctxrep.text import index_files
    from keras_ctxrep.text.search import Index

    if encoder is None:
        name = index_files.manifest_of(folder).encoder.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{folder}: it does not say which encoder made it; give it with --encoder")
        if not Path(name).exists():
            raise ValueError(f"{folder}: its encoder, {printable(name)}, is not there; say with --encoder where it is")
        encoder = name
    return Index.open(folder, load(encoder, engine=engine) if isinstance(encoder, str | Path) else encoder)
