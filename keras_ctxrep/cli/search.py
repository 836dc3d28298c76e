"""Search: indexes of texts, queries, and questions answered from what is found."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from keras_ctxrep import options
from keras_ctxrep.checks import printable
from keras_ctxrep.cli.command import Command, positive
from keras_ctxrep.cli.flags import Flags, options_of
from keras_ctxrep.commands.command import Usage
from keras_ctxrep.commands.printing import print_error, print_line, read_sentences

_ENCODER = "a model folder, a SavedModel, a .tflite file of an encoder, or a name of `ctxrep zoo list`"


def _index(args: argparse.Namespace) -> None:
    if args.delete is not None:
        if args.sources or args.encoder is not None:
            raise Usage("index: --delete ID... --out FOLDER deletes rows; leave out FILE and --encoder")
        from keras_ctxrep.recipes.indexing import delete

        print_line(f"{args.out}: {delete(args.out, args.delete):,} rows are left")
        return
    if not args.sources or args.encoder is None:
        raise Usage("index: FILE... and --encoder are needed, or --delete ID...")
    from tqdm import tqdm

    from keras_ctxrep.recipes.indexing import index

    chosen = options_of(options.Indexing, args)
    with tqdm(desc="indexing", unit=" texts", file=sys.stderr, disable=None) as bar:
        count = index(
            args.sources,
            args.encoder,
            args.out,
            lambda done: bar.update(done - bar.n),
            lambda message: print_error(f"ctxrep: {message}"),
            options=chosen,
        )
    print_line(f"{args.out}: {count:,} rows")


def _index_flags(flags: Flags) -> None:
    flags.add(
        "sources",
        ".tsv or .csv with a header, .jsonl, .parquet: a row each; other files: a text a line",
        nargs="*",
        metavar="FILE",
    )
    flags.add("--encoder", _ENCODER, model=True, metavar="MODEL")
    flags.add("--out", "the folder of the index", required=True, metavar="FOLDER")
    flags.add("--delete", "instead: delete the rows with these ids", nargs="+", metavar="ID")
    flags.add_options(options.Indexing)


def _search(args: argparse.Namespace) -> None:
    from keras_ctxrep.recipes.indexing import open_index

    index = open_index(args.index, args.encoder, options_of(options.FolderEngine, args).engine)

    def answer(queries: list[str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
        for query, hits in zip(queries, index.search(queries, args.top, args.exact), strict=True):
            shown = [_line(rank, hit.score, hit.id, hit.text) for rank, hit in enumerate(hits, 1)]
            rows = [{"rank": rank, **_json(hit)} for rank, hit in enumerate(hits, 1)]
            yield {"query": query, "hits": rows}, shown

    answer_texts("search", args, args.query, answer)


def _search_flags(flags: Flags) -> None:
    flags.add("index", "the folder of an index", metavar="INDEX")
    flags.add("query", "the text to look for (default: the lines of --input)", nargs="?", metavar="TEXT")
    flags.add("--top", "hits of each query (default: 10)", type=positive, default=10, metavar="N")
    flags.add("--exact", "compare every row, even if the index has a graph", action="store_true")
    _common_flags(flags)
    flags.add_options(options.FolderEngine)


def _ask(args: argparse.Namespace) -> None:
    from keras_ctxrep.inference.engines import open_model
    from keras_ctxrep.recipes.indexing import ask, open_index

    index, reader = open_index(args.index, args.encoder), open_model(args.reader).answer

    def answer(questions: list[str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
        for question, answers in zip(questions, ask(index, questions, reader, args.top), strict=True):
            rows = [
                {"answer": each.answer, "score": each.score, "start": each.start, "end": each.end}
                | {"passage": _json(each.hit)}
                for each in answers
            ]
            shown = ["no answer in the passages that were found"]
            if answers:
                best = answers[0]
                where = best.hit.source or best.hit.id
                shown = [f"{best.answer}  (score {best.score:.2f}; {where})", *_excerpt(best)]
            yield {"question": question, "answers": rows}, shown

    answer_texts("ask", args, args.question, answer)


def _ask_flags(flags: Flags) -> None:
    flags.add("index", "the folder of an index of passages", metavar="INDEX")
    flags.add("question", "the question (default: the lines of --input)", nargs="?", metavar="TEXT")
    flags.add(
        "--reader",
        "a model of the task `answer`: a model folder, a SavedModel or a .tflite file",
        model=True,
        required=True,
        metavar="MODEL",
    )
    flags.add("--top", "passages that are read for each question (default: 5)", type=positive, default=5, metavar="N")
    _common_flags(flags)


def _common_flags(flags: Flags) -> None:
    flags.add("--input", "a line each, or - for standard input (the default)", metavar="FILE")
    flags.add("--encoder", f"{_ENCODER} (default: the one that made the index)", model=True, metavar="MODEL")
    flags.add("--json", "print one JSON object a line for each query", action="store_true")


def answer_texts(
    name: str,
    args: argparse.Namespace,
    text: str | None,
    answer: Callable[[list[str]], Iterator[tuple[dict[str, Any], list[str]]]],
) -> None:
    """Prints what `answer` gives for a text, or for each line of the input; on a terminal line by line."""
    if text is not None and args.input is not None:
        raise Usage(f"{name}: give either TEXT or --input")
    if text is not None:
        if not text.strip():
            raise ValueError("the text is empty")
        _print(answer([text]), args.json, heading=False)
        return
    interactive = args.input in (None, "-") and sys.stdin.isatty()
    texts = filter(str.strip, _prompted(name) if interactive else read_sentences(args.input or "-"))
    count = 0
    while part := list(islice(texts, 1 if interactive else 64)):
        count += len(part)
        try:
            _print(answer(part), args.json, heading=not interactive)
        except ValueError as error:
            if not interactive:
                raise
            print_error(f"ctxrep: {error}")
    if not count and not interactive:
        raise ValueError(f"{args.input or 'standard input'}: no text in it")


def _prompted(name: str) -> Iterator[str]:
    """Lines that are typed, to the end of the input."""
    while True:
        print(f"{name}> ", end="", file=sys.stderr, flush=True)
        if not (line := sys.stdin.readline()):
            print(file=sys.stderr)
            return
        yield line.rstrip("\r\n")


def _print(answers: Iterator[tuple[dict[str, Any], list[str]]], as_json: bool, heading: bool) -> None:
    for content, shown in answers:
        if as_json:
            print_line(json.dumps(content, ensure_ascii=False))
            continue
        if heading:
            print_line(f"# {content.get('query') or content.get('question') or content['text']}")
        for line in shown:
            print_line(_clipped(line))


def _line(rank: int, score: float, id: str, text: str) -> str:
    return f"{rank:>3}  {score:6.3f}  {id:<8}  {text}"


def _excerpt(answer: Any, around: int = 60) -> list[str]:
    """The answer's surroundings in its passage."""
    text = answer.hit.text
    begin, end = max(0, answer.start - around), answer.end + around
    return [f"  {'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"]


def _json(hit: Any) -> dict[str, Any]:
    return {"score": round(hit.score, 6)} | {name: getattr(hit, name) for name in ("id", "text", "source", "fields")}


def _clipped(line: str) -> str:
    """A line on one line of the terminal; elsewhere it is whole."""
    line = printable(line.replace("\t", " ").replace("\n", " "), float("inf"))
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 3]}..."


COMMANDS = {
    "index": Command(
        _index,
        _index_flags,
        "make an index of texts, for search",
        "Encodes the texts of files into a folder that `ctxrep search` and `ctxrep ask` read. Columns other than the\n"
        "text and the id are kept. Rows are added with --add and deleted by their ids with --delete:\n\n"
        "  ctxrep index articles.tsv --encoder bert --out articles\n"
        "  ctxrep index more.tsv --encoder bert --out articles --add\n"
        "  ctxrep index --out articles --delete 17 23\n\n"
        "The folder is written whole or not at all. From 50,000 rows on it gets a graph for approximate search, if\n"
        "the extra [search] is installed.",
        tensorflow=lambda args: args.encoder is not None and not args.encoder.endswith(".tflite"),
    ),
    "search": Command(
        _search,
        _search_flags,
        "look for texts in an index by their meaning",
        "Prints rank, cosine, id and text of the nearest rows. Without TEXT the lines of standard input are looked\n"
        "for, on a terminal one after the other. The encoder is the one that made the index; the same model as a\n"
        ".tflite file or SavedModel may stand in for it.",
        tensorflow=lambda args: (
            args.encoder is not None and not args.encoder.endswith(".tflite") and args.engine != options.AUTO
        ),
    ),
    "ask": Command(
        _ask,
        _ask_flags,
        "answer a question from the texts of an index",
        "Searches the index, and a model of the task `answer` reads the passages that were found. Prints the best\n"
        "answer, the difference of its score from that of no answer in its passage, and where it is.",
        tensorflow=lambda args: not args.reader.endswith(".tflite"),
    ),
}
