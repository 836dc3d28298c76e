"""Reading text: lines of plain and compressed files, corpora of sentences and documents; errors name file and line."""

import bz2
import codecs
import gzip
import hashlib
import heapq
import itertools
import lzma
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = [
    "documents",
    "hold_out",
    "lines",
    "open_binary",
    "pieces",
    "sample",
    "shuffled",
    "translated",
    "units",
    "without",
]

BLOCK = 10  # sentences in a block of held-out text
LONGEST = 10_000  # longer documents are split into parts of so many sentences
UNIT = 4_000_000  # bytes of text in a unit of work
TRANSLATION = "\0"  # between a sentence and its translation; no line of text has it
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def open_binary(path: str | Path) -> IO[bytes]:
    """A file's bytes; .gz, .bz2 and .xz are decompressed as they are read."""
    return OPENERS.get(Path(path).suffix.lower(), open)(path, "rb")


@contextmanager
def naming_damage(place: Callable[[], str]) -> Iterator[None]:
    """Turns the errors of a damaged compressed stream into a ValueError that begins with a place."""
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file cannot be read at all
        raise ValueError(f"{place()}: damaged compressed file ({error})") from None


def raw_lines(
    path: str | Path,
    old_mac: Callable[[bytes], bool] = lambda first: not first.endswith(b"\n"),
    longest: int | None = None,
) -> Iterator[tuple[int, bytes]]:
    r"""(line number, line with its end) of a file, without its byte-order mark, plain or compressed.

    A line ends with "\n" or "\r\n"; in a file of an old Mac, which has no "\n", with "\r".

    Args:
        path: the file.
        old_mac: function from all up to the first "\n" to whether "\r" by itself ends a line too.
        longest: bytes that a line may have; None: any number.

    Raises:
        ValueError: the compressed stream is damaged, or a line is longer; the message names file and line.
    """
    number = 0

    def bounded(raw: bytes) -> bytes:
        if len(raw) == longest:
            raise ValueError(f"{path}:{number + 1}: a line of {longest:,} bytes or more")
        return raw

    with naming_damage(lambda: f"{path}:{number + 1}"), open_binary(path) as file:
        first = bounded(file.readline(-1 if longest is None else longest)).removeprefix(codecs.BOM_UTF8)
        others: Iterable[bytes] = file if longest is None else map(bounded, iter(lambda: file.readline(longest), b""))
        raw: Iterable[bytes] = itertools.chain([first], others) if first else others
        if old_mac(first):
            raw = itertools.chain.from_iterable(line.splitlines(keepends=True) for line in raw)
        for number, line in enumerate(raw, 1):
            yield number, line


def byte_lines(path: str | Path, longest: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of a file, without line ends and byte-order mark, see `raw_lines`.

    Args:
        path: the file, plain or compressed.
        longest: bytes of a line, at most; None: any number.
    """
    return ((number, raw.rstrip(b"\r\n")) for number, raw in raw_lines(path, longest=longest))


def available_lines(source: str | Path | IO[bytes]) -> Iterator[list[bytes]]:
    r"""The lines of a file or a byte stream, without line ends and byte-order mark, each time all that can be read.

    In what has no "\n" at all lines end with "\r", as in `raw_lines`.
    """
    if isinstance(source, str | Path):
        with naming_damage(lambda: str(source)), open_binary(source) as file:
            yield from available_lines(file)
        return
    rest, mark = b"", codecs.BOM_UTF8  # of the first line
    read = getattr(source, "read1", source.read)  # the bytes available, without waiting for more
    while chunk := read(1 << 20):
        *complete, rest = (rest + chunk).split(b"\n")
        if complete:
            complete[0], mark = complete[0].removeprefix(mark), b""
            yield [line.removesuffix(b"\r") for line in complete]
    if rest:
        last = rest.removeprefix(mark).removesuffix(b"\r")
        yield last.split(b"\r") if mark else [last]


def decoded(raw: bytes) -> str:
    """A line of text, from UTF-8.

    Raises:
        ValueError: it is not UTF-8, or has a NUL; the message says where.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start}: {error.reason})") from None
    if "\0" in text:
        raise ValueError(f"a NUL (byte {raw.index(0)}), as in UTF-16 or in what is no text: save the file as UTF-8")
    return text


def lines(path: str | Path, longest: int | None = None) -> Iterator[tuple[int, str]]:
    """(line number, line) of a UTF-8 text file, as `byte_lines` gives them.

    Args:
        path, longest: as in `byte_lines`.

    Raises:
        ValueError: the file is not UTF-8, has a NUL or a line that is longer, or the compressed stream is damaged; the
            message names file and line.
    """
    for number, raw in byte_lines(path, longest):
        try:
            text = decoded(raw)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        yield number, text


def documents(paths: Iterable[str | Path]) -> Iterator[list[str]]:
    """Documents of a corpus, each a list of sentences: one sentence a line, an empty line between documents.

    A document of more than 10,000 sentences is split, so that memory use does not depend on the size of the files.

    Raises:
        ValueError: a file holds no text.
    """
    for path in paths:
        document: list[str] = []
        has_text = False
        for _, line in lines(path):
            if line := line.strip():
                document.append(line)
                has_text = True
            if document and (not line or len(document) == LONGEST):
                yield document
                document = []
        if document:
            yield document
        if not has_text:
            raise ValueError(f"{path}: no text in it")


def translated(paths: Iterable[str | Path]) -> Iterator[list[str]]:
    """The rows SENTENCE<TAB>TRANSLATION of files, as documents of one sentence, `TRANSLATION` and its translation.

    Raises:
        ValueError: a row has not two columns, one of them is empty, or a file has none; the message names the place.
    """
    for path in paths:
        has_text = False
        for number, line in lines(path):
            if not line.strip():
                continue
            has_text, columns = True, [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(columns):
                raise ValueError(f"{path}:{number}: {line[:60]!r}: write a sentence, a tab and its translation")
            yield [TRANSLATION.join(columns)]
        if not has_text:
            raise ValueError(f"{path}: no text in it")


def hold_out(
    documents: Iterable[list[str]], fraction: float = 0.1, seed: int = 0, limit: int = 2000
) -> list[list[str]]:
    """Blocks of up to 10 sentences that are held out, in the order of the corpus; `without` gives the rest.

    Blocks rather than documents, so that a single document can be split; rather than sentences, so that these still
    follow each other. The choice depends on seed and text, not on the order. A repeated sentence is held out once.

    Args:
        documents: read once, and not kept in memory.
        fraction, seed, limit: of the blocks, of the choice, and the maximum number of blocks.

    Raises:
        ValueError: too little text to hold any out.
    """
    # a heap of the `limit` smallest keys, as (-key, -index of the block, block)
    heap: list[tuple[int, int, list[str]]] = []
    count = 0
    for count, block in enumerate(pieces(documents, BLOCK), 1):
        text = "\n".join([str(seed), *block]).encode("utf-8", "surrogatepass")
        entry = (-int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()), -count, block)
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)
    smallest = sorted(heap, reverse=True)[: round(fraction * count)]
    if not smallest:
        raise ValueError(f"the corpus has {count} blocks of {BLOCK} sentences: too few to hold {fraction:.0%} out")
    seen: set[str] = set()
    blocks = [block for _, _, block in sorted(smallest, key=lambda entry: -entry[1])]
    blocks = [[sentence for sentence in block if not (sentence in seen or seen.add(sentence))] for block in blocks]
    return [block for block in blocks if block]


def without(documents: Iterable[list[str]], held: Iterable[list[str]]) -> Iterator[list[str]]:
    """The documents without the held-out sentences, split where these stood.

    Args:
        documents: each a list of sentences.
        held: the held-out parts of them.

    >>> list(without([["a", "b", "c", "d"]], [["b"]]))
    [['a'], ['c', 'd']]
    """
    out = {sentence for block in held for sentence in block}
    for document in documents:
        for is_held, part in itertools.groupby(document, out.__contains__):
            if not is_held:
                yield list(part)


def sample(documents: Iterable[list[str]], size: int, seed: int = 0) -> list[str]:
    """Up to `size` sentences, each of the corpus with the same probability (reservoir sampling, one pass).

    Args:
        documents: each a list of sentences.
        size: sentences to draw.
        seed: of the random numbers.

    >>> len(sample([["a", "b"], ["c", "d"]], 3))
    3
    """
    rng = random.Random(seed)
    sentences: list[str] = []
    for count, sentence in enumerate(itertools.chain.from_iterable(documents)):
        if count < size:
            sentences.append(sentence)
        elif (index := int(rng.random() * (count + 1))) < size:
            sentences[index] = sentence
    return sentences


def pieces(documents: Iterable[list[str]], size: int = 100) -> Iterator[list[str]]:
    """The documents, split into pieces of at most `size` sentences.

    Args:
        documents: each a list of sentences.
        size: sentences of a piece.

    >>> list(pieces([["a", "b", "c"]], size=2))
    [['a', 'b'], ['c']]
    """
    return (document[i : i + size] for document in documents for i in range(0, len(document), size))


def units(documents: Iterable[list[str]], size: int = UNIT) -> Iterator[list[list[str]]]:
    """Consecutive documents of about `size` bytes of text together; a short rest is part of the last unit.

    Args:
        documents: each a list of sentences.
        size: bytes of UTF-8.

    >>> list(units([["ab"], ["c"], ["d"], ["e"]], size=4))
    [[['ab'], ['c']], [['d'], ['e']]]
    """
    last, unit, count = [], [], 0
    for document in documents:
        unit.append(document)
        count += sum(len(sentence.encode("utf-8", "surrogatepass")) + 1 for sentence in document)
        if count >= size:
            if last:
                yield last
            last, unit, count = unit, [], 0
    if last and 2 * count < size:
        yield last + unit
    else:
        yield from filter(None, (last, unit))


def shuffled(
    paths: Sequence[str | Path],
    read: Callable[[list], Iterable[list[str]]],
    seed: int,
    epoch: int,
    buffer: int = 20_000,
    piece: int = 100,
) -> Iterator[list[str]]:
    """Documents in random order, another in every epoch: files are shuffled, then the documents in a buffer.

    Args:
        paths: files; many small ones are shuffled better than one large one.
        read: function from a list of paths to their documents, e.g. `documents`.
        seed, epoch: of the order.
        buffer: number of sentences in memory.
        piece: number of sentences of a document that stay together; longer ones are split.
    """
    rng = random.Random(f"{seed} {epoch}")
    pool: list[list[str]] = []
    size = 0
    for document in pieces(read(rng.sample(list(paths), len(paths))), piece):
        pool.append(document)
        size += len(document)
        if size >= buffer:
            rng.shuffle(pool)
            yield from pool
            pool, size = [], 0
    rng.shuffle(pool)
    yield from pool
