"""Training of static word vectors: words per second of CPU time, and WordSim-353, against gensim and fastText.

    python benchmarks/static.py --corpus train.txt --pairs EN-WS-353-ALL.txt --peers PYTHON [--passes 3] [--rounds 2]

PYTHON is that of an environment with gensim or fasttext-wheel, and tokenizers; what is missing there is left out.
All get the same words, in lower case, min_count 5, 100 dimensions, window 5, 5 noise words, n-grams in 200,000
buckets, and one thread. Trainers take turns, each in a process of its own; a round has a seed of its own. CPU seconds
are those of the passes over the corpus ("loop", with ours the tracing of its graph, with fastText the counting of
words) and of the whole process from its start to its vectors ("command", with the imports). The peers read a file of
words between spaces, which is made before; ours reads the text, which it splits. Prints a Markdown table, with all
rounds.
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
PARTS = ("loop", "command")
BUCKETS = 200_000  # of n-grams
SHARED = {"window": 5, "sample": 1e-3, "min_count": 5}


def ours(corpus: Path, model: str, passes: int, folder: Path, seed: int, **options) -> dict:
    from keras_ctxrep import recipes
    from keras_ctxrep.recipes import static_pretraining
    from keras_ctxrep.recipes.word_vectors import WordTable

    loops = []

    def timed(*args, **kwargs):
        begin = time.process_time()
        history = fit(*args, **kwargs)
        loops.append(time.process_time() - begin)
        return history

    fit, static_pretraining.fit.fit = static_pretraining.fit.fit, timed
    settings = {"model": model, "epochs": passes, "checkpoint_minutes": 60.0, "evaluations": 1, "seed": seed}
    recipes.pretrain_static([corpus], folder, **SHARED, **settings, **options)
    vectors = WordTable(folder)
    found = dict(zip(vectors.words, vectors.vectors(vectors.words).tolist(), strict=True))
    return {"loop": sum(loops), "vectors": found}


def gensim(corpus: Path, model: str, passes: int, folder: Path, seed: int) -> dict:
    from gensim.models import Word2Vec  # pyright: ignore[reportMissingImports]

    with split(corpus, folder).open(encoding="utf-8") as file:
        sentences = [line.split() for line in file]
    rate = {"skipgram": 0.025, "cbow": 0.05}[model]
    made = Word2Vec(vector_size=100, workers=1, alpha=rate, seed=seed + 1, sg=model == "skipgram", **SHARED)
    made.build_vocab(sentences)
    begin = time.process_time()
    made.train(sentences, total_examples=made.corpus_count, epochs=passes)
    seconds = time.process_time() - begin
    return {"loop": seconds, "vectors": {word: made.wv[word].tolist() for word in made.wv.index_to_key}}


def fasttext(corpus: Path, model: str, passes: int, folder: Path, seed: int, subwords: bool = False) -> dict:
    import fasttext  # pyright: ignore[reportMissingImports]

    file = str(split(corpus, folder))
    ngrams = {"bucket": BUCKETS} if subwords else {"maxn": 0}
    settings = {"dim": 100, "ws": 5, "t": SHARED["sample"], "minCount": 5, "epoch": passes, "lr": 0.05, "thread": 1}
    begin = time.process_time()
    made = fasttext.train_unsupervised(file, model=model, verbose=0, seed=seed, **settings, **ngrams)
    seconds = time.process_time() - begin
    return {"loop": seconds, "vectors": {word: made.get_word_vector(word).tolist() for word in made.get_words()}}


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
    "gensim": gensim,
    "fastText without n-grams": fasttext,
    "keras_ctxrep, n-grams": lambda *args: ours(*args, subwords=True, buckets=BUCKETS),
    "fastText": lambda *args: fasttext(*args, subwords=True),
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
    python = sys.executable if name.startswith("keras_ctxrep") else args.peers
    command = [python, __file__, "--one", name, "--model", model, "--folder", str(folder)]
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
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with gensim or fasttext")
    parser.add_argument("--trainers", nargs="+", choices=tuple(TRAINERS), default=tuple(TRAINERS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--one", choices=tuple(TRAINERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        result = TRAINERS[args.one](args.corpus, args.model, args.passes, args.folder, args.seed)
        command = time.process_time()
        spearman, pairs = correlation(result["vectors"], args.pairs)
        print(json.dumps({"loop": result["loop"], "command": command, "spearman": spearman, "pairs": pairs}))
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
                        speed = {part: f"{words * args.passes / result[part]:,.0f}" for part in PARTS}
                        print(f"{model}, {name}: {speed}", file=sys.stderr)
    print(f"{words / 1e6:.1f} million words, {args.passes} passes, {args.rounds} rounds\n")
    print("| model | trainer | words per CPU second, loop | command | WordSim-353 |\n|---|---|---|---|---|")
    for (model, name), results in rounds.items():
        cells = []
        for part in PARTS:
            seconds = [result[part] for result in results]
            figures.row(f"static vectors, {model}, CPU seconds, {part}", name, seconds, words=words * args.passes)
            cells.append(" ".join(f"{words * args.passes / each / 1000:.0f}k" for each in seconds))
        score = " ".join(f"{result['spearman']:.3f}" for result in results)
        print(f"| {model} | {name} | {' | '.join(cells)} | {score} ({results[0]['pairs']} pairs) |")


if __name__ == "__main__":
    main()
