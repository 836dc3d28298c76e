"""`ctxrep index`: search indexes of the texts in files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from keras_ctxrep import options
from keras_ctxrep.commands.command import ENCODER, Command, Usage, argument, function, in_python
from keras_ctxrep.commands.printing import print_line, print_report, progress_bar
from keras_ctxrep.options import AnyPath

__all__ = ["Index", "delete", "index"]


@dataclass(frozen=True)
class Index(options.Indexing, Command[int]):
    """Make an index of texts, for search.

    Encodes the texts of files into a folder that `ctxrep search` and `ctxrep ask` read. Columns other than the
    text and the id are kept. Rows are added with --add and deleted by their ids with --delete:

      ctxrep index articles.tsv --encoder bert --out articles
      ctxrep index more.tsv --encoder bert --out articles --add
      ctxrep index --out articles --delete 17 23

    The folder is written whole or not at all. From 50,000 rows on it gets a graph for approximate search, if
    the extra [search] is installed.

    Notes:
        In Python, `encoder` may be a `Model`; `progress` is called with the number of rows encoded, `report` with
        messages: texts that were left out or cut, and which search a large index has.

    Returns: the number of rows in the index.

    Raises:
        TypeError: there is no such option.
        ValueError: a row is malformed, an id is there twice, no text is in the files, the encoder gives no vectors, or
            `out` is an index and neither `add` nor `overwrite` is given.
    """

    tensorflow = False
    sources: Sequence | None = argument("""[FILE ...]  .tsv or .csv with a header, .jsonl, .parquet: a row each; other
        files: a text a line""")
    encoder: Any = argument(f"[--encoder MODEL] published  {ENCODER}")
    out: AnyPath | None = argument("[--out FOLDER]  the folder of the index")
    progress: Callable[[int], object] = in_python(lambda count: None)
    report: Callable[[str], object] = in_python(print, prints=print_report)
    delete: Sequence | None = argument("[--delete ID ...]  instead: delete the rows with these ids")

    def __post_init__(self):
        if isinstance(self.sources, str | Path):
            raise TypeError(f"sources={str(self.sources)!r}: one file; give a list of files")
        super().__post_init__()
        if self.out is None:
            raise Usage("--out FOLDER is needed")
        if self.delete is not None and (self.sources or self.encoder is not None):
            raise Usage("--delete ID... --out FOLDER deletes rows; leave out FILE and --encoder")
        if self.delete is None and (not self.sources or self.encoder is None):
            raise Usage("FILE... and --encoder are needed, or --delete ID...")

    def main(self) -> None:
        if self.delete is not None:
            print_line(f"{self.out}: {self.run():,} rows are left")
            return
        with progress_bar("indexing", "texts") as progress:
            count = replace(self, progress=progress).run()
        print_line(f"{self.out}: {count:,} rows")

    def run(self) -> int:
        from keras_ctxrep.inference.model import Model, load
        from keras_ctxrep.recipes import passages
        from keras_ctxrep.text import files, index_files, search
        from keras_ctxrep.version import install_hint

        assert self.out is not None
        if self.delete is not None:
            return delete(self.out, self.delete)
        sources, exists = self.sources or (), index_files.is_index(self.out)
        if exists and not (self.add or self.overwrite):
            raise ValueError(f"{self.out}: there is an index already; --add adds rows to it, --overwrite replaces it")
        if self.add and not exists:
            raise ValueError(f"{self.out}: no index to add rows to; leave out --add")
        model = self.encoder if isinstance(self.encoder, Model) else load(self.encoder)
        skipped: list[str] | None = [] if self.skip_bad else None
        texts = (row for path in sources for row in passages.read(path, self, skipped))
        rows = (part for row in texts for part in passages.split(row, self))
        counts, kept = passages.Counts(), search.Index.open(self.out, model) if self.add else None
        role = self.role or search.passages_role(model)
        if kept is not None and self.role in (None, kept.role):
            role = kept.role
        elif kept is not None:
            raise ValueError(f"role={self.role!r}: the texts of {self.out} have {kept.role!r}; leave it out")
        batches = passages.encoded(rows, model, self.progress, counts, role)
        storage, next_id, made_by, replaces = self.storage or "float32", 0, search.identity(model, role), None
        if kept is not None:
            replaces = kept.manifest
            batches = chain(index_files.batches_of(kept.vectors, kept.rows), batches)
            storage, next_id, made_by = self.storage or kept.storage, kept.next_id, kept.made_by
        try:
            with model.unread.warning(", ".join(map(str, sources))):
                manifest = index_files.write(self.out, batches, storage, made_by, next_id, search.build_graph, replaces)
        except ValueError as error:
            if counts.unread and "no rows" in str(error):
                raise ValueError(f"no text with words in the files: {counts.unread[0]}") from None
            raise
        for title, messages in (("malformed rows left out", skipped or []), ("texts left out", counts.unread)):
            if messages:
                self.report(files.skipped_rows(messages, title))
        if counts.cut:
            self.report(
                f"{counts.cut:,} texts were longer than the model reads, and were cut; --passages N splits them"
            )
        if manifest.rows >= search.GRAPH_ROWS and search.graph_library() is None:
            hint = install_hint("search")
            self.report(f"{self.out}: every row is compared in a search; for a faster, approximate one {hint}")
        return manifest.rows


index = function(Index, "index")


def delete(out: str | Path, ids: Sequence[str]) -> int:
    """Deletes rows of an index on the disk.

    Returns: the number of rows that are left.

    Raises:
        ValueError: there is no index, or no row with such an id; nothing is deleted then.
    """
    from keras_ctxrep.text.search import Index

    kept = Index.open(out)
    kept.delete(ids)
    if not len(kept):
        raise ValueError(f"{out}: no row would be left; remove the folder")
    kept.save(out)
    return len(kept)
