"""Search: the rows of an index whose vectors are nearest to those of queries, exactly or by a graph, in NumPy."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_ctxrep.atomic import sha256
from keras_ctxrep.checks import printable, warn
from keras_ctxrep.text import index_files
from keras_ctxrep.text.artifacts import TOKENIZER, VOCAB
from keras_ctxrep.text.features import check_texts
from keras_ctxrep.text.index_files import STORAGES, IndexRow, batches_of, encoded
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.version import install_hint

__all__ = ["Encoder", "Hit", "Index", "nearest"]

QUERY, PASSAGE = "query", "passage"  # the roles of `Bundle.roles` that search uses
GRAPHS = "usearch"  # the library of the graphs, and its name in a manifest
GRAPH_ROWS = 50_000  # rows from which a graph is worth the minute that it takes to build
BLOCK = 8192  # rows whose scores are in memory at a time
QUERIES = 64  # queries that are compared with a block at a time
ROUNDING = 1e-5  # above the error of a product of vectors of length 1 in float32, sqrt(D) 2^-24 up to D = 20,000
DEVIATIONS = 6  # of the rounding errors of codes
SEARCHED = 200  # rows of the graph that are kept in view; above 200 recall changes little
PROBES = 4  # texts of an index that another encoder reads
AGREEMENT = 0.95  # least cosine of the vectors of one encoder in two formats, one of them of 8 bits
SAME = 0.9999  # the same of one encoder saved twice


Strings = Sequence[str] | None  # one for each row, if there are any
Fields = Sequence[Mapping[str, Any]] | None


class Encoder(Protocol):
    """What turns texts into vectors: a `Model` of `keras_ctxrep.load`, or whatever has these two."""

    @property
    def bundle(self) -> Any: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray: ...  # with `role`, if its bundle has roles


class Hit(NamedTuple):
    """A row that was found.

    Attributes:
        score: the cosine of its vector and the query's.
        number: of the row, from 0.
        id, text, source, fields: as in `index_files.IndexRow`.
    """

    score: float
    number: int
    id: str
    text: str
    source: str
    fields: Mapping[str, Any]


def nearest(
    queries: np.ndarray,
    vectors: np.ndarray,
    top: int,
    codes: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    block: int = BLOCK,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows with the largest cosines, exactly: every row is compared, a block of them at a time.

    A block's scores in float32 choose candidates: all that may be among the best in spite of rounding. Their scores
    are computed again in float64, and decide; of equal ones the lower row is first. With codes, products of these
    choose the candidates: a score has the error sum q_j e_j with e_j uniform in half a scale on either side, whose
    standard deviation is scale / sqrt(12) for a query of length 1 (Widrow and Kollar 2008, Quantization Noise, ch. 3),
    and a row is a candidate within 6 of these; of 10^8 rows about one is missed.

    Args:
        queries: float32 (Q, D) of length 1.
        vectors: float32 or float16 (N, D) of length 1.
        top: rows for each query.
        codes, scales: of `index_files.encoded`.
        block: rows that are in memory at a time.

    Returns: rows int64 (Q, K) and scores float64 (Q, K), K the smaller of `top` and N.

    >>> rows, scores = nearest(unit([[1, 1]]), unit([[1, 0], [2, 2], [0, 1]]), 2)
    >>> rows.tolist(), scores.round(3).tolist()
    ([[1, 0]], [[1.0, 0.707]])
    """
    count = min(top, len(vectors))
    rows, scores = np.zeros((len(queries), count), np.int64), np.zeros((len(queries), count))
    for first in range(0, len(queries), QUERIES):
        part = queries[first : first + QUERIES]  # (q, D)
        best = [(np.zeros(0, np.int64), np.zeros(0))] * len(part)
        for begin in range(0, len(vectors), block):
            if codes is None or scales is None:
                approximate = part @ np.asarray(vectors[begin : begin + block], np.float32).T  # (q, block)
                margin = ROUNDING
            else:
                approximate = part @ codes[begin : begin + block].astype(np.float32).T
                approximate *= scales[begin : begin + block]
                margin = ROUNDING + DEVIATIONS * float(scales[begin : begin + block].max()) / np.sqrt(12)
            for number, query in enumerate(part):
                best[number] = _merge(best[number], begin, approximate[number], margin, query, vectors, count)
        for number, (found, of_found) in enumerate(best, first):
            rows[number], scores[number] = found, of_found
    return rows, scores


def _merge(
    best: tuple[np.ndarray, np.ndarray],
    begin: int,
    approximate: np.ndarray,
    margin: float,
    query: np.ndarray,
    vectors: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The best rows so far with those of one block, from its approximate scores (block,)."""
    rows, scores = best
    if len(rows) == count:
        candidates = np.flatnonzero(approximate >= scores[-1] - margin)
    else:
        candidates = np.arange(len(approximate))
    if len(candidates) > count:  # a row of a true score at least that of the last of the block's best is one of them
        values = approximate[candidates]
        candidates = candidates[values >= np.partition(values, -count)[-count] - 2 * margin]
    if not len(candidates):
        return best
    candidates = candidates + begin
    rows, scores = np.concatenate([rows, candidates]), np.concatenate([scores, exact(query, vectors, candidates)])
    order = np.lexsort((rows, -scores))[:count]
    return rows[order], scores[order]


def exact(query: np.ndarray, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scores of some rows in float64, the same for equal vectors wherever they are.

    Args:
        query: a vector, (D,).
        vectors: of all rows, (N, D).
        rows: numbers of those to compare.

    Raises:
        ValueError: a vector is not of numbers.
    """
    query, scores = query.astype(np.float64), np.empty(len(rows))
    for begin in range(0, len(rows), BLOCK):
        part = slice(begin, begin + BLOCK)
        scores[part] = np.einsum("nd,d->n", vectors[rows[part]].astype(np.float64), query)
    if not np.isfinite(scores).all():
        raise ValueError(f"row {rows[~np.isfinite(scores)][0]}: its vector is damaged: a number that is not finite")
    return scores


# -------------------------------------------------------------------------------------------------------------- graphs


def graph_library() -> Any | None:
    """The module of the approximate search, or None where it is not installed."""
    try:
        from usearch import index
    except ImportError:
        return None
    return index


def build_graph(vectors: np.ndarray, path: Path) -> str:
    """Writes a graph of vectors (N, D); returns the name of its library, or "" if there is none or the rows are few.

    HNSW: Malkov and Yashunin 2016, https://arxiv.org/abs/1603.09320, with 16 links a row and 100 candidates, over
    float16 copies of the vectors, in usearch.

    Args:
        vectors: float32 (N, D).
        path: the file to write.
    """
    library = graph_library()
    if library is None or len(vectors) < GRAPH_ROWS:
        return ""
    graph = library.Index(ndim=vectors.shape[1], metric="ip", dtype="f16", connectivity=16, expansion_add=100)
    for begin in range(0, len(vectors), BLOCK):
        part = np.asarray(vectors[begin : begin + BLOCK], np.float32)
        graph.add(np.arange(begin, begin + len(part)), part)
    graph.save(str(path))
    return GRAPHS


class Graph:
    """The graph of a folder, memory-mapped.

    Args:
        path: its file.
        digest: SHA-256 of it, which is checked first: the library trusts what it reads.
        width: of the vectors.
        rows: how many there are.
    """

    def __init__(self, path: Path, digest: str, width: int, rows: int):
        if sha256(path) != digest:
            raise ValueError(f"{path}: not the graph that the index was written with; write the index again")
        library = graph_library()
        assert library is not None
        self._rows = rows
        try:
            self._graph = library.Index.restore(str(path), view=True)
        except RuntimeError as error:
            raise ValueError(f"{path}: {printable(error)}; write the index again") from None
        if self._graph is None or (len(self._graph), self._graph.ndim) != (rows, width):
            raise ValueError(f"{path}: a graph of other rows; write the index again")

    def nearest(self, queries: np.ndarray, vectors: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """As `nearest`, but that rows may be missed; the scores are exact."""
        count = min(top, self._rows)
        self._graph.expansion_search = max(SEARCHED, 4 * count)
        rows, scores = np.zeros((len(queries), count), np.int64), np.zeros((len(queries), count))
        for number, query in enumerate(queries):
            found = np.unique(self._graph.search(query, min(2 * count, self._rows)).keys.astype(np.int64))
            of_found = exact(query, vectors, found)
            order = np.lexsort((found, -of_found))[:count]
            rows[number], scores[number] = found[order], of_found[order]
        return rows, scores


# --------------------------------------------------------------------------------------------------------------- index


class Index:
    """Vectors of texts, searched by cosine.

    Up to some 50,000 rows every row is compared, which takes milliseconds. A larger index has a graph for approximate
    search beside it when it was saved where usearch is installed (the extra `search`).

    Args:
        vectors: (N, D), of any length; they are scaled to length 1.
        texts: of each row, to show.
        ids: of each row, unique strings (default: numbers, of which none is given twice, whatever is deleted).
        fields: of each row, a dict of what is returned with it; as JSON has them.
        storage: "float32"; "float16", half the size; or "int8", codes of a quarter of the size, which choose the
            candidates, over float16 vectors, which decide between them and of an opened index stay on the disk.
        encoder: of the texts, with which strings are searched; see `of_texts`.
        role: with which `vectors` were encoded, if with one. Strings are searched with "query" where it is "passage",
            else with the same.

    Raises:
        ValueError: a vector without direction, columns of different lengths, an id that is there twice, or the encoder
            has no such role.

    >>> index = Index([[1, 0], [1, 1], [0, 2]], texts=["east", "north-east", "north"], ids=["e", "ne", "n"])
    >>> [(hit.id, round(hit.score, 3)) for hit in index.search([[0, 1]], top=2)[0]]
    [('n', 1.0), ('ne', 0.707)]
    >>> index.delete(["n"])
    >>> index.search([[0, 1]])[0][0].text
    'north-east'
    """

    def __init__(
        self,
        vectors: Any,
        texts: Strings = None,
        ids: Strings = None,
        fields: Fields = None,
        *,
        storage: str = "float32",
        encoder: Encoder | None = None,
        role: str | None = None,
    ):
        if storage not in STORAGES:
            raise ValueError(f"storage={storage!r}: one of {', '.join(STORAGES)}")
        self.storage, self.encoder, self.made_by = storage, encoder, identity(encoder, role)
        self._rows: Sequence[IndexRow] = ()
        self._next = 0
        self._graph: Graph | None = None
        self._folder: Path | None = None  # which it was opened from or saved to, with this manifest
        self.manifest: index_files.Manifest | None = None
        self._keep(np.zeros((0, np.shape(vectors)[-1] if np.ndim(vectors) == 2 else 0), np.float32))
        self.add(vectors, texts, ids, fields)

    @classmethod
    def of_texts(
        cls,
        texts: Sequence[str],
        encoder: Encoder,
        ids: Strings = None,
        fields: Fields = None,
        storage: str = "float32",
        role: str | None = None,
    ) -> "Index":
        """An index of texts.

        Args:
            texts, ids, fields, storage: see the class.
            encoder: what `keras_ctxrep.load` gives of a model folder, a SavedModel or a .tflite file of an encoder.
            role: of the texts (default: "passage", of an encoder that has roles); see the class.
        """
        texts, role = check_texts(texts), role or passages_role(encoder)
        return cls(_vectors_of(texts, encoder, role), texts, ids, fields, storage=storage, encoder=encoder, role=role)

    @classmethod
    def open(cls, folder: str | Path, encoder: Encoder | None = None) -> "Index":
        """The index of a folder; its vectors and rows stay on the disk until they are used.

        Args:
            folder: of `save`, or of `ctxrep index`.
            encoder: the one that it was made by, or the same in another format; None: searched by vectors alone.

        Raises:
            ValueError: there is no index, a file of it is damaged, or it was made by another encoder.

        Warns:
            UserWarning: it has a graph that cannot be read, since usearch is not installed or the graph is one of
                hnswlib, by an earlier version: search is exact, and slower.
        """
        stored = index_files.read(folder)
        manifest, index = stored.manifest, cls.__new__(cls)
        index.storage, index.encoder, index.made_by = manifest.storage, encoder, manifest.encoder
        index._rows, index._next, index._graph = stored.rows, manifest.next_id, None
        index._vectors, index._codes, index._scales = stored.vectors, stored.codes, stored.scales
        index._folder, index.manifest = Path(folder).resolve(), manifest
        if encoder is not None:
            index._check_encoder(encoder, folder)
        if stored.graph is None:
            return index
        if manifest.graph == GRAPHS and graph_library() is not None:
            index._graph = Graph(stored.graph, manifest.graph_sha256, manifest.width, manifest.rows)
            return index
        missing = f"{GRAPHS} is not installed, and every row is compared: {install_hint('search')}"
        other = f"it is one of {printable(manifest.graph)}, and every row is compared: Index.open(FOLDER).save(FOLDER)"
        hint = missing if manifest.graph == GRAPHS else f"{other} writes one of {GRAPHS}"
        warn(f"{folder}: it has a graph for fast search, but {hint}")
        return index

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Index of {len(self):,} rows, {self.width} wide, {self.storage}>"

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self._vectors.shape[1]

    @property
    def next_id(self) -> int:
        """The number that the next row without an id gets."""
        return self._next

    @property
    def role(self) -> str | None:
        """The role with which its texts were encoded, if with one."""
        return self.made_by.get("role")

    @property
    def rows(self) -> Sequence[IndexRow]:
        """Its rows, in order."""
        return self._rows

    @property
    def vectors(self) -> np.ndarray:
        """Its vectors of length 1, float32 or float16 (N, D)."""
        return self._vectors

    def search(self, queries: Any, top: int = 10, exact: bool = False) -> list[list[Hit]]:
        """The rows that are nearest to each query, the best first; of equal scores the lower row is first.

        Args:
            queries: strings, where the index has an encoder; or vectors (Q, D).
            top: rows for each query.
            exact: every row is compared, even if there is a graph.

        Raises:
            ValueError: a text without words, vectors of another width, a vector without direction, or an empty index.
        """
        if top < 1:
            raise ValueError(f"top={top}: must be above 0")
        if not len(self):
            raise ValueError("the index has no rows: nothing can be found in it")
        vectors = unit(self._encoded(queries), "query")
        if vectors.shape[1] != self.width:
            raise ValueError(f"queries of width {vectors.shape[1]}: the vectors of this index have {self.width}")
        if self._graph is not None and not exact:
            rows, scores = self._graph.nearest(vectors, self._vectors, top)
        else:
            rows, scores = nearest(vectors, self._vectors, top, self._codes, self._scales)
        return [
            [self._hit(number, score) for number, score in zip(*best, strict=True)]
            for best in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def add(self, vectors: Any, texts: Strings = None, ids: Strings = None, fields: Fields = None) -> None:
        """Adds rows at the end; arguments and errors are those of the class. All of the index is in memory then."""
        vectors = unit(vectors, "vector")
        rows = _rows(len(vectors), texts, ids, fields)
        if len(self) and vectors.shape[1] != self.width:
            raise ValueError(f"vectors of width {vectors.shape[1]}: those of this index have {self.width}")
        numbers = {str(row.id): number for number, row in enumerate(self._rows)}
        next_id, numbered = self._next, []
        for row in rows:
            next_id, id = index_files.id_of(row, next_id, numbers)
            numbers[id] = len(numbers)
            numbered.append(replace(row, id=id))
        self._next = next_id
        self._rows = [*self._rows, *numbered]
        arrays = encoded(vectors, self.storage)
        self._keep(np.concatenate([self._vectors, arrays["vectors"]]) if len(self._vectors) else arrays["vectors"])

    def delete(self, ids: Sequence[str]) -> None:
        """Deletes rows.

        Raises:
            ValueError: there is no such id; nothing is deleted then.
        """
        ids = check_texts(ids)
        wanted = set(ids)
        keep = np.array([row.id not in wanted for row in self._rows], bool)
        if np.count_nonzero(~keep) < len(wanted):
            missing = wanted - {row.id for row in self._rows}
            raise ValueError(f"id {min(missing)!r}: there is no row with it")
        self._rows = [self._rows[number] for number in np.flatnonzero(keep).tolist()]
        self._keep(self._vectors[keep])

    def save(self, folder: str | Path) -> Path:
        """Writes the index into a folder, whole or not at all; with many rows also a graph, which takes a minute.

        Args:
            folder: a new one, that of another index, which is replaced, or the one that it was opened from or saved to
                before.

        Raises:
            ValueError: it has no rows, the folder is something else than an index, or another process has written the
                folder since this index was opened or saved: open it again, and repeat the change.
        """
        place = Path(folder).resolve()
        read = self.manifest if self._folder == place else None
        batches = batches_of(self._vectors, self._rows)
        self.manifest = index_files.write(folder, batches, self.storage, self.made_by, self._next, build_graph, read)
        self._folder = place
        return Path(folder)

    # ------------------------------------------------------------------------------------------------------- details

    def _keep(self, vectors: np.ndarray) -> None:
        """Replaces the vectors, and what is made of them."""
        arrays = encoded(vectors, self.storage)
        self._vectors, self._graph = arrays["vectors"], None
        self._codes, self._scales = arrays.get("codes"), arrays.get("scales")

    def _hit(self, number: int, score: float) -> Hit:
        row = self._rows[number]
        return Hit(score, number, str(row.id), row.text, row.source, row.fields)

    def _encoded(self, queries: Any) -> Any:
        if not isinstance(queries, str) and not (len(queries) and isinstance(next(iter(queries)), str)):
            return queries
        texts = check_texts(queries)
        if self.encoder is None:
            raise ValueError("this index has no encoder: give vectors, or open it with the encoder of its texts")
        return _vectors_of(texts, self.encoder, QUERY if self.role == PASSAGE else self.role)

    def _check_encoder(self, encoder: Encoder, folder: str | Path) -> None:
        """Raises a ValueError unless an encoder gives the vectors that the index has.

        Its files tell, by their hashes; of other files the vectors do, of the first texts of the index: one model saved
        twice has the same but for rounding, and a .tflite file of a model those of its folder but for quantization.
        """
        made_by = self.made_by
        name = made_by.get("name") or "another encoder"
        refusal = f"{folder}: it was made by {printable(name)}; search it with that, or make it again"
        try:
            given = identity(encoder, self.role)
        except ValueError as error:
            raise ValueError(f"{refusal} ({error})") from None
        files = made_by.get("files") if isinstance(made_by.get("files"), dict) else {}
        files = {file: digest for file, digest in (files or {}).items() if file in given.get("files", {})}
        different = sorted(file for file, digest in files.items() if given["files"][file] != digest)
        if vocabulary := {VOCAB, TOKENIZER}.intersection(different):
            raise ValueError(f"{refusal} (another {vocabulary.pop()})")
        for key in ("family", "pooling", "normalize", "prefix"):
            if key in given and key in made_by and given[key] != made_by[key]:
                raise ValueError(f"{refusal} ({key} is {printable(given[key])} and was {printable(made_by[key])})")
        if not different and files.keys() - {VOCAB, TOKENIZER}:
            return
        numbers = [number for number in range(min(PROBES, len(self))) if self._rows[number].text]
        if not numbers:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of texts that are cut, which are not the caller's
            vectors = unit(_encode([self._rows[number].text for number in numbers], encoder, self.role), "vector")
        if vectors.shape[1] != self.width:
            raise ValueError(f"{refusal} (its vectors have {vectors.shape[1]} numbers and were {self.width} wide)")
        cosine = float((vectors * np.asarray(self._vectors[numbers], np.float32)).sum(1).min())
        if cosine < (SAME if different else AGREEMENT):
            raise ValueError(f"{refusal} (its vectors of the same texts have a cosine of {cosine:.2f})")


def _encode(texts: Sequence[str], encoder: Encoder, role: str | None) -> np.ndarray:
    options: dict[str, Any] = {} if role is None else {"role": role}
    return encoder.encode(texts, **options)


def _vectors_of(texts: Sequence[str], encoder: Encoder, role: str | None) -> np.ndarray:
    """The vectors of texts, (N, D); a ValueError names the first text that has zeros, which have no direction."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* have vectors of zeros", UserWarning)  # of which the error speaks
        vectors = np.asarray(_encode(texts, encoder, role))
    if len(texts) and len(empty := np.flatnonzero(~vectors.any(-1))):
        raise ValueError(
            f"text {empty[0]}, {texts[empty[0]][:60]!r}: only zeros, which have no direction: no words in this text, "
            "or none of which the encoder has a vector"
        )
    return vectors


def passages_role(encoder: Encoder) -> str | None:
    """The role with which the texts of an index are encoded, of an encoder that has roles."""
    return PASSAGE if PASSAGE in getattr(getattr(encoder, "bundle", None), "roles", ()) else None


def identity(encoder: Encoder | None, role: str | None = None) -> dict[str, Any]:
    """What tells an encoder from others: family, pooling, and the hashes of its files; {} of none.

    Args:
        encoder: what gives the vectors.
        role: with which it gives them; then also the role and its prefix.
    """
    bundle = getattr(encoder, "bundle", None)
    if bundle is None:
        return {}
    path = getattr(getattr(encoder, "engine", None), "path", None)
    values = {"name": None if path is None else str(Path(path).resolve()), "family": bundle.family}
    values |= {"pooling": bundle.pooling, "normalize": bundle.normalize, "files": dict(bundle.files)}
    return values | ({} if role is None else {"role": role, "prefix": bundle.of_encoder().prefix(role)})


def _rows(count: int, texts: Strings, ids: Strings, fields: Fields) -> Iterator[IndexRow]:
    """The rows of columns, of which each has `count` values if it is given."""
    for name, column in (("texts", texts), ("ids", ids), ("fields", fields)):
        if column is not None and len(column) != count:
            raise ValueError(f"{len(column)} {name} for {count} vectors; give one for each")
    texts, ids = (None if column is None else check_texts(column) for column in (texts, ids))
    return (
        IndexRow(
            None if ids is None else ids[n],
            "" if texts is None else texts[n],
            fields={} if fields is None else fields[n],
        )
        for n in range(count)
    )
