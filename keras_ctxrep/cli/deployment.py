"""Exports, and predictions with them; the demo of all."""

import argparse
import io
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

from keras_ctxrep import options
from keras_ctxrep.cli.command import (
    FOLDER,
    Command,
    Usage,
    output,
    positive,
    positive_float,
    print_error,
    print_line,
    read_sentences,
    table,
)
from keras_ctxrep.cli.flags import Flags, given, options_of


def _export(args: argparse.Namespace) -> None:
    values = given(args)
    path = values.pop("check", None)
    if path is not None:
        if values:
            raise Usage("export: --check PATH checks an export that is there; leave out the rest")
        from keras_ctxrep_export import saved_model

        version, counts = saved_model.check(path)
        print(f"{version}: {', '.join(f'{count} {name}' for name, count in counts.items())} as they were exported")
        return
    if "folder" not in values or "out" not in values:
        raise Usage("export: FOLDER and --out BASE/NAME are needed, or --check PATH")
    from keras_ctxrep.recipes.exporting import export

    print(export(**values))


def _export_flags(flags: Flags) -> None:
    flags.add("folder", FOLDER, model=True, nargs="?")
    flags.add("--out", "where TF Serving looks for versions", metavar="BASE/NAME")
    flags.add(
        "--windows",
        "classify, multilabel, regress: read a long text in overlapping windows, and give the mean or the maximum of "
        "their probabilities (default: the text is cut)",
        choices=("mean", "max"),
    )
    flags.add(
        "--tflite",
        "a .tflite file of the same model, written with --data: the model card has what it loses",
        metavar="FILE.tflite",
    )
    flags.add("--keep", "remove all versions but the N highest, in the end", type=positive, metavar="N")
    flags.add(
        "--check",
        "instead: replay the manifest of an export, BASE/NAME or a version of it: hashes, signatures, answers",
        metavar="PATH",
    )


def _tflite(args: argparse.Namespace) -> None:
    values = given(args)
    if "web" not in values and ("out" not in values or "litertjs" in values):
        raise Usage("tflite: --out FILE.tflite or --web FOLDER is needed; --litertjs is for --web")
    if "max_drop" in values and "data" not in values:
        raise Usage("tflite: --max-drop is for --data")
    from keras_ctxrep.recipes.quantizing import tflite
    from keras_ctxrep_tflite import acceptance, compare

    def report(rows: list[dict], picture) -> None:
        print(f"{table(acceptance.layers_table(rows))}\n{picture}: the same as a picture")

    written = tflite(**values, report=report)
    if written.size:
        print(f"{values.get('out', 'the model')}: {written.size / 1e6:.2f} MB")
    if written.float_layers:
        print(f"in float32: {', '.join(written.float_layers)}")
    if written.rows:
        print(table(compare.engines_table(written.rows)))
    if "web" in values:
        print(f"{args.web}: serve it with `python -m http.server --directory {shlex.quote(args.web)}`")


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: whole numbers with commas between them, 16,64 for example"
        ) from None


def _tflite_flags(flags: Flags) -> None:
    from keras_ctxrep_tflite import quantize

    default = ",".join(map(str, quantize.LENGTHS))
    flags.add("folder", FOLDER, model=True)
    flags.add("--out", "the file to write", metavar="FILE.tflite", writes=True)
    flags.add(
        "--lengths",
        "input lengths, in tokens; a text runs at the smallest that holds it, and is cut if none does (default: "
        f"{default} up to the length of the model, and that itself)",
        type=_lengths,
        metavar="N,N,...",
    )
    flags.add(
        "--web",
        "write a folder for any static server: a web page that runs the model in the browser; FOLDER may also be a "
        "FILE.tflite then",
        metavar="FOLDER",
    )
    flags.add(
        "--litertjs",
        "with --web: node_modules/@litertjs of `npm install @litertjs/core`, copied into the page's folder (default: "
        "the page loads LiteRT from a CDN)",
        metavar="FOLDER",
    )
    flags.add(
        "--data",
        "examples of the model's task: the file is measured on them against Keras, and its figures are written into "
        "the model card in it",
        metavar="FILE",
    )
    flags.add_options(options.Tflite, without=("skip_bad",))


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


def _generate(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    out = output()
    chosen = options_of(options.Generation, args)
    texts = recipes.generate(args.model, args.prompt, options=chosen)
    out.write(args.prompt)
    for text in texts:
        out.write(text)
        out.flush()
    out.write("\n")


def _generate_flags(flags: Flags) -> None:
    flags.add("model", "a language model: a model folder", model=True)
    flags.add("--prompt", "the text to continue (default: none, the beginning of a text)", default="", metavar="TEXT")
    flags.add_options(options.Generation)


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
    from keras_ctxrep.text.artifacts import SIGNATURE

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


def _compare(args: argparse.Namespace) -> None:
    from keras_ctxrep.recipes.comparing import compare
    from keras_ctxrep_tflite.compare import engines_table, lengths_table

    values = given(args)
    as_json = values.pop("json")
    rows, agreement = compare(**values)
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{table(engines_table(rows))}\n\n{table(lengths_table(rows))}")
    print(f"\n{agreement}; in brackets: the difference in points, its 95% interval")


def _compare_flags(flags: Flags) -> None:
    flags.add("folder", "the model folder, which is the reference", model=True)
    flags.add("artifacts", "SavedModel folders and .tflite files", nargs="+")
    flags.add("--data", "examples of the model's task", required=True, metavar="FILE")
    flags.add_options(options.Reading, without=("skip_bad",))
    flags.add("--start", "also start each engine in a process: time to the first answer, memory", action="store_true")
    flags.add("--plot", "a picture of size, latency and quality", metavar="FILE.png", writes=True)
    flags.add("--json", "print one JSON array", action="store_true")


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
    "export": Command(
        _export,
        _export_flags,
        "write a SavedModel for TF Serving",
        "Writes the next version, BASE/NAME/1, 2, ..., with raw strings as its input; a README.md in it has the lines\n"
        "to run and to ask it, and BASE/model.config lists the models for the server. Or, with --check, tests one.",
    ),
    "tflite": Command(
        _tflite,
        _tflite_flags,
        "write a .tflite file for phones and boards",
        "One file that holds the model, its vocabulary and its labels. With --web also a web page that runs it.",
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
    "generate": Command(
        _generate,
        _generate_flags,
        "continue a text by a language model",
        "Prints the prompt and what a model of `ctxrep pretrain lm` samples after it, token by token. The same seed\n"
        "gives the same text, in every engine.\n\n"
        '  ctxrep generate lm --prompt "The river" --temperature 0.8 --top-p 0.9 --length 50',
        tensorflow=lambda args: not args.model.endswith(".tflite"),
    ),
    "client": Command(
        _client,
        _client_flags,
        "ask a model on a TF Serving server",
        "Prints one JSON object for each text: the outputs of the signature. A text is an argument or a line of\n"
        "standard input. Runs without TensorFlow; gRPC needs the extra [serving].",
        tensorflow=lambda args: False,
    ),
    "compare": Command(
        _compare,
        _compare_flags,
        "agreement, quality, size and latency of a model's exports",
        "Runs the same texts through a model folder and its exports. Latencies are of single texts,\n"
        "alternating between the engines.",
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
