"""Training of static word vectors: words per second of CPU time, and WordSim-353, against gensim and fastText.

    PYTHONPATH=PEERS python benchmarks/static.py --corpus train.txt --pairs EN-WS-353-ALL.txt [--passes 3] [--rounds 2]

PEERS is the site-packages folder of an environment with gensim or fasttext-wheel; what is missing there is left out.
All get the same words, in lower case, min_count 5, 100 dimensions, window 5, 5 noise words, n-grams in 200,000
buckets, and one thread. The peers begin with lists of words in memory, or with a file of them; ours with the text,
which it splits. Trainers take turns, each in a process of its own; a round has a seed of its own. CPU time is that of
a trainer from its first word to its vectors, without imports; ours has the tracing of the graph in it, and the
writing of the model. Prints a Markdown table, with all rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import figures

MODELS = ("skipgram", "cbow")
BUCKETS = 200_000  # of n-grams
SHARED = {"window": 5, "sample": 1e-3, "min_count": 5}


def ours(corpus: Path, model: str, passes: int, folder: Path, seed: int, **options) -> dict:
    from keras_ctxrep import recipes
    from keras_ctxrep.recipes.word_vectors import WordTable

    begin = time.process_time()
    settings = {"model": model, "epochs": passes, "checkpoint_minutes": 60.0, "evaluations": 1, "seed": seed}
    recipes.pretrain_static([corpus], folder, **SHARED, **settings, **options)
    seconds = time.process_time() - begin
    vectors = WordTable(folder)
    return {
        "seconds": seconds,
        "vectors": dict(zip(vectors.words, vectors.vectors(vectors.words).tolist(), strict=True)),
    }


def peer(name: str):
    """A function that trains with a peer."""

    def gensim(corpus: Path, model: str, passes: int, folder: Path, seed: int) -> dict:
        from gensim.models import Word2Vec  # pyright: ignore[reportMissingImports]

        sentences = [line.split() for line in split(corpus, folder).open(encoding="utf-8")]
        begin = time.process_time()
        rate = {"skipgram": 0.025, "cbow": 0.05}[model]
        settings = {"vector_size": 100, "workers": 1, "epochs": passes, "alpha": rate, "seed": seed + 1} | SHARED
        made = Word2Vec(sentences, sg=model == "skipgram", **settings)
        seconds = time.process_time() - begin
        return {"seconds": seconds, "vectors": {word: made.wv[word].tolist() for word in made.wv.index_to_key}}

    def fasttext(corpus: Path, model: str, passes: int, folder: Path, seed: int, subwords: bool = False) -> dict:
        import fasttext  # pyright: ignore[reportMissingImports]

        file = str(split(corpus, folder))
        begin = time.process_time()
        ngrams = {"bucket": BUCKETS} if subwords else {"maxn": 0}
        settings = {"dim": 100, "ws": 5, "t": SHARED["sample"], "minCount": 5, "epoch": passes, "lr": 0.05, "thread": 1}
        settings["seed"] = seed
        made = fasttext.train_unsupervised(file, model=model, verbose=0, **settings, **ngrams)
        seconds = time.process_time() - begin
        return {"seconds": seconds, "vectors": {word: made.get_word_vector(word).tolist() for word in made.get_words()}}

    return {"gensim": gensim, "fasttext": fasttext}[name]


def split(corpus: Path, folder: Path) -> Path:
    """The words of a corpus as our own recipe splits them, between spaces."""
    from keras_ctxrep.text.tokens import split_words

    path = folder.with_name("words.txt")
    if not path.exists():
        with path.open("w", encoding="utf-8") as file:
            for line in corpus.open(encoding="utf-8"):
                if line.strip():
                    file.write(" ".join(split_words(line.lower())) + "\n")
    return path


TRAINERS = {
    "keras_ctxrep": ours,
    "keras_ctxrep, row-wise Adagrad": lambda *args: ours(*args, adagrad=True),
    "gensim": peer("gensim"),
    "fastText without n-grams": peer("fasttext"),
    "keras_ctxrep, n-grams": lambda *args: ours(*args, subwords=True, buckets=BUCKETS),
    "fastText": lambda *args: peer("fasttext")(*args, subwords=True),
}


def correlation(vectors: dict, path: Path) -> tuple[float, int]:
    import numpy as np

    from keras_ctxrep.text.retrieval import unit
    from keras_ctxrep.text.scores import spearman

    rows = [line.split() for line in path.read_text("utf-8").lower().splitlines()]
    known = [row for row in rows if row[0] in vectors and row[1] in vectors]
    sides = [unit(np.array([vectors[row[side]] for row in known])) for side in range(2)]
    return spearman([float(row[2]) for row in known], (sides[0] * sides[1]).sum(1)), len(known)


def one(name: str, model: str, args: argparse.Namespace, folder: Path, seed: int) -> dict | None:
    """A round of a trainer in a process of its own; None if its package is missing."""
    command = [sys.executable, __file__, "--one", name, "--model", model, "--folder", str(folder)]
    command += [
        "--corpus",
        str(args.corpus),
        "--pairs",
        str(args.pairs),
        "--passes",
        str(args.passes),
        "--seed",
        str(seed),
    ]
    single = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    single |= {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=os.environ | single, capture_output=True, text=True)
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1]
        if not error.startswith("ModuleNotFoundError"):
            sys.exit(f"{name}: {done.stderr}")
        print(f"{name}: {error}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trainers", nargs="+", choices=tuple(TRAINERS), default=tuple(TRAINERS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--one", choices=tuple(TRAINERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        result = TRAINERS[args.one](args.corpus, args.model, args.passes, args.folder, args.seed)
        spearman, pairs = correlation(result["vectors"], args.pairs)
        print(json.dumps({"seconds": result["seconds"], "spearman": spearman, "pairs": pairs}))
        return
    rounds: dict[tuple[str, str], list[dict]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        words = len(split(args.corpus, Path(temporary) / "any").read_text("utf-8").split())
        for number in range(args.rounds):
            for model in args.models:
                for place, name in enumerate(args.trainers):
                    result = one(name, model, args, Path(temporary) / f"{number}-{model}-{place}", number)
                    if result is not None:
                        rounds.setdefault((model, name), []).append(result)
                        print(f"{model}, {name}: {words * args.passes / result['seconds']:,.0f}", file=sys.stderr)
    print(f"{words / 1e6:.1f} million words, {args.passes} passes, {args.rounds} rounds\n")
    print("| model | trainer | words per CPU second | WordSim-353 |\n|---|---|---|---|")
    for (model, name), results in rounds.items():
        seconds = [result["seconds"] for result in results]
        figures.row(f"static vectors, {model}, CPU seconds", name, seconds, words=words * args.passes)
        speeds = " ".join(f"{words * args.passes / result['seconds'] / 1000:.0f}k" for result in results)
        score = " ".join(f"{result['spearman']:.3f}" for result in results)
        print(f"| {model} | {name} | {speeds} | {score} ({results[0]['pairs']} pairs) |")


if __name__ == "__main__":
    main()
