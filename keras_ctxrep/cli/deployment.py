"""Exports, and predictions with them; the demo of all."""

import argparse
import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

from keras_ctxrep import options
from keras_ctxrep.cli.command import Command, positive, positive_float
from keras_ctxrep.cli.flags import Flags, given, options_of
from keras_ctxrep.commands.command import Usage
from keras_ctxrep.commands.printing import output, print_error, print_line, read_sentences


def _predict(args: argparse.Namespace) -> None:
    if args.data is None and (args.columns or args.skip_bad):
        raise Usage("predict: --columns and --skip-bad are for the rows of --data; --input is read line by line")
    if args.data is not None and args.input is not None:
        raise Usage("predict: give either --data or --input")
    if args.threads is not None and not args.artifact.endswith(".tflite") and args.engine != options.AUTO:
        raise Usage(
            "predict: --threads is for .tflite files and --engine auto; TensorFlow reads TF_NUM_INTRAOP_THREADS"
        )
    from keras_ctxrep.recipes.predicting import predict

    settings = options_of(options.Prediction, args)
    if settings.in_parts and (args.data is not None or args.out is None or args.format not in (None, "jsonl")):
        raise Usage("predict: --processes and --runner read lines (--input), and write JSON lines: --out FOLDER")
    lines = sys.stdin.buffer if args.input in (None, "-") else args.input
    predict(
        args.artifact,
        lines if args.data is None else args.data,
        output() if args.out is None else args.out,
        settings,
        rows=args.data is not None,
        threads=args.threads,
        report=lambda message: print_error(f"ctxrep: {message}"),
    )


def _predict_flags(flags: Flags) -> None:
    flags.add("artifact", "a model folder, a SavedModel folder or a .tflite file", model=True)
    flags.add(
        "--input",
        "text, a line each, or - for standard input (the default); for a model that reads pairs the two texts with a "
        "tab between them, for tasks over marked spans a JSON object",
        metavar="FILE",
    )
    flags.add(
        "--data",
        "rows instead of lines: the files that `train` and `score` read, .tsv or .csv with a header, .jsonl, .parquet, "
        "CoNLL or SQuAD's JSON, or tfds:NAME:SPLIT; labels are not needed. The row's own fields are written beside the "
        "prediction",
        metavar="FILE",
    )
    flags.add_options(options.Prediction)
    flags.add(
        "--out",
        "the file to write (default: standard output); with --processes or --runner the folder of its parts",
        metavar="FILE",
        writes=True,
    )
    flags.add(
        "--threads",
        "of LiteRT (default: 1 for a .tflite file, all cores with --engine auto)",
        type=positive,
        metavar="N",
    )


def _client(args: argparse.Namespace) -> None:
    from keras_ctxrep.inference import client

    if args.pair is not None and len(args.pair) != len(args.texts):
        raise Usage(f"client: {len(args.texts)} texts and {len(args.pair)} of --pair; give one for each text")
    if args.json and (args.pair is not None or args.bundle is not None):
        raise Usage("client: leave out --pair and --bundle with --json, whose lines have every input")
    if args.bundle is not None and (args.signature != client.SIGNATURE or args.dry_run):
        raise Usage("client: leave out --signature and --dry-run with --bundle")
    target = client.Target(args.model, args.signature, args.version, args.label, args.timeout, args.max_answer)
    if args.bundle is not None:
        predictor = client.load(args.url, target, client.bundle_of(args.bundle, args.version), args.batch_size)
        text = "".join(line.replace("\n", " ") + "\n" for line in _texts(args)) if args.texts else None
        answers = predictor.lines(sys.stdin.buffer if text is None else io.BytesIO(text.encode("utf-8", "replace")))
    else:
        answers = _answers(args, client.connect(args.url, target))
    for answer in answers:
        print_line(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def _texts(args: argparse.Namespace) -> Iterable[str]:
    """The lines of the input; a tab separates the two texts of a pair."""
    if args.pair is not None:
        return [f"{text}\t{pair}" for text, pair in zip(args.texts, args.pair, strict=True)]
    return args.texts or read_sentences("-")


def _answers(args: argparse.Namespace, server) -> Iterator[dict | str]:
    """The outputs for each text, or with --dry-run the requests."""
    from keras_ctxrep.inference.client import inputs_of, inputs_of_json, rows_of

    lines = iter(_texts(args))
    size = 1 if not args.texts and sys.stdin.isatty() else args.batch_size
    names = None if args.json or args.dry_run else server.inputs()
    while chunk := list(islice(lines, size)):
        batch = inputs_of_json(chunk) if args.json else inputs_of(chunk, names)
        if args.dry_run:
            yield server.request(batch)
        else:
            yield from rows_of(server.run(dict(batch)))


def _client_flags(flags: Flags) -> None:
    from keras_ctxrep.text.bundle import SIGNATURE

    flags.add("texts", "texts (default: the lines of standard input)", nargs="*", metavar="TEXT")
    flags.add("--url", "of the server: http://HOST:8501, or grpc://HOST:8500", required=True)
    flags.add("--model", "its name on the server", required=True, metavar="NAME")
    flags.add(
        "--pair", "the second text of each; or give both as one text, with a tab between", nargs="+", metavar="TEXT"
    )
    flags.add("--json", "each text is a JSON object with all inputs of the signature", action="store_true")
    flags.add("--signature", f"of the model (default: {SIGNATURE})", default=SIGNATURE, metavar="NAME")
    version = flags.parser.add_mutually_exclusive_group()
    version.add_argument("--version", help="number of the version (default: the latest)", type=int, metavar="N")
    version.add_argument("--label", help="label of the version, of the server's model.config", metavar="NAME")
    flags.add(
        "--bundle",
        "a local copy of the SavedModel, with its versions or one of them, or the model folder: answers have the form "
        "of `ctxrep predict`",
        metavar="FOLDER",
    )
    flags.add("--batch-size", "texts of a request (default: 32)", type=positive, default=32, metavar="N")
    flags.add("--timeout", "seconds for a request (default: 10)", type=positive_float, default=10.0, metavar="S")
    flags.add(
        "--max-answer",
        "largest answer to a request in MB (default: 64)",
        type=positive_float,
        default=64.0,
        metavar="MB",
    )
    flags.add("--dry-run", "print the requests, JSON or gRPC's message as text, and send nothing", action="store_true")


def _demo(args: argparse.Namespace) -> None:
    from keras_ctxrep.demo.run import run

    if not all(passed for passed, _ in run(**given(args))["checks"]):
        raise SystemExit(1)


def _demo_flags(flags: Flags) -> None:
    flags.add(
        "--corpus",
        "distil on your own text, one sentence a line, an empty line between documents",
        nargs="+",
        metavar="FILE",
    )
    flags.add(
        "--out", "folder for the models and report.html; its contents are replaced (default: demo)", metavar="FOLDER"
    )
    flags.add("--minutes", "of distillation (default: 1)", type=positive_float, metavar="N")
    flags.add("--seed", "random seed (default: 0)", type=int, metavar="N")


def _serve(args: argparse.Namespace) -> None:
    from keras_ctxrep.recipes.serving import serve

    def announce(url: str) -> None:
        print_line(f"{url}\n{url.partition('/v1/')[0]}/ has a page to try it; Ctrl-C ends.")
        print_error(
            "For trying a model and tests of clients, one request at a time; in production use TensorFlow Serving."
        )

    def report(line: str) -> None:
        print_error(f"ctxrep: {line}")

    serve(args.artifact, args.name, args.host, args.port, announce, report, args.poll)


def _port(text: str) -> int:
    if not (text.isdecimal() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 0 to 65535; 0 is any port that is free")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: 0, for never, or some seconds")
    return value


def _serve_flags(flags: Flags) -> None:
    flags.add("artifact", "a SavedModel, a model folder or a .tflite file", model=True)
    flags.add("--name", "of the model on the server (default: that of the folder or file)", metavar="NAME")
    flags.add("--port", "0: any that is free (default: 8501, as TF Serving)", type=_port, default=8501, metavar="N")
    flags.add("--host", "to listen on (default: 127.0.0.1, this machine alone)", default="127.0.0.1", metavar="ADDRESS")
    flags.add(
        "--poll",
        "how often to look for a new version, or a folder or file that was replaced, which is loaded while the old one "
        "answers (default: 1, as TF Serving; 0: never)",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
    )


COMMANDS = {
    "serve": Command(
        _serve,
        _serve_flags,
        "serve a model on the desk, as TF Serving does",
        "TF Serving's REST interface on this machine, v1/models/NAME:predict, :classify, :regress, /metadata and\n"
        "status, and a page to try the model in a browser; `ctxrep client` and the lines of an export's README.md\n"
        "work against it. The port is open at once, and answers 503 until the model is loaded; a new version is\n"
        "served without a restart. It is no production server: that is TensorFlow Serving. Needs the extra [serve].",
        tensorflow=lambda args: False,  # it is loaded when the port is open
    ),
    "predict": Command(
        _predict,
        _predict_flags,
        "predict line by line",
        "Prints one JSON object for each line of input, as soon as it is read: a text, or two with a tab\n"
        "between them for a model that reads pairs; JSON for tasks over marked spans. With --data, one for each row\n"
        'of a file, with the row\'s own fields and "prediction"; --format tsv writes a table instead:\n\n'
        "  ctxrep predict mine --data unlabelled.tsv --out answered.tsv\n"
        "  ctxrep predict pairs --data pairs.tsv --columns text=question_a pair=question_b\n\n"
        "The columns that the model was trained from need not be named. A .tflite file runs without TensorFlow. The\n"
        "status is 1 if nothing was answered. Many lines are answered in parts, by several processes or on the\n"
        "machines of a runner; the same command goes on where it was interrupted:\n\n"
        "  ctxrep predict mine.tflite --input lines.txt --processes 8 --out answers\n"
        "  ctxrep predict mine.tflite --input lines.txt --runner spark --out answers",
        tensorflow=lambda args: not args.artifact.endswith(".tflite") and args.engine != options.AUTO,
    ),
    "client": Command(
        _client,
        _client_flags,
        "ask a model on a TF Serving server",
        "Prints one JSON object for each text: the outputs of the signature. A text is an argument or a line of\n"
        "standard input. Runs without TensorFlow; gRPC needs the extra [serving].",
        tensorflow=lambda args: False,
    ),
    "demo": Command(
        _demo,
        _demo_flags,
        "the whole way, in about 5 minutes on 2 cores",
        "Distils a smaller encoder from the shipped BERT for a minute, searches this package's documentation by\n"
        "meaning and by words, fine-tunes the BERT to tag named entities, shows neighbours in context, exports the\n"
        "tagger as SavedModel, TFLite and web page, predicts without TensorFlow, and writes report.html. Needs no\n"
        "network and no data: the text is Python's language reference, the messages are those of WNUT-2017, which\n"
        "come with the package. Ends with status 1 if one of its checks fails.",
    ),
}
