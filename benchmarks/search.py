"""Milliseconds a query, recall@10, seconds to build and size on the disk of searches over 384 numbers a row.

    python benchmarks/search.py [--rows 10000 100000] [--queries 200] [--threads 1]

Compares `text.search.Index` (float32, float16, int8, and a graph where usearch is installed) with NumPy's plain product
and argpartition, and with faiss, hnswlib and usearch where they are installed. The rows are drawn around 2,000 centers,
as texts have topics. One query at a time; the engines alternate query by query, so that other load meets all alike;
wall-clock medians, and means of the CPU time. Recall is against the exact search in float64. Prints the Markdown
table of docs/how-to/search.md.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WIDTH, TOP, CENTERS = 384, 10, 2000


def rows_of(count: int, seed: int):
    """float32 (count, WIDTH) of length 1, around centers."""
    import numpy as np

    from keras_ctxrep.text.retrieval import unit

    centers = np.random.default_rng(0).normal(size=(CENTERS, WIDTH)).astype(np.float32)
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((count, WIDTH), np.float32) * np.float32(0.7)
    return unit(centers[rng.integers(0, CENTERS, count)] + noise)


def size(path: Path) -> float:
    """MB of a file or a folder."""
    files = [path] if path.is_file() else path.iterdir()
    return sum(file.stat().st_size for file in files) / 1e6


def ours(vectors, folder: Path, storage: str, graph: bool) -> tuple[Callable, float]:
    """A search of an index that was written and opened again, and its size."""
    from keras_ctxrep.text import index_files, search

    batches = ((part, [index_files.Row(None)] * len(part)) for part in blocks(vectors))
    index_files.write(folder, batches, storage, {}, graph=search.build_graph if graph else None)
    index = search.Index.open(folder)
    return lambda query: [hit.number for hit in index.search(query[None], TOP)[0]], size(folder)


def blocks(vectors):
    return (vectors[begin : begin + 4096] for begin in range(0, len(vectors), 4096))


def plain(vectors) -> tuple[Callable, float]:
    import numpy as np

    def search(query):
        scores = vectors @ query
        best = np.argpartition(scores, -TOP)[-TOP:]
        return best[np.argsort(-scores[best])]

    return search, vectors.nbytes / 1e6


def faiss(vectors, path: Path, kind: str, threads: int) -> tuple[Callable, float]:
    import faiss  # pyright: ignore[reportMissingImports]

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(WIDTH) if kind == "flat" else faiss.IndexHNSWFlat(WIDTH, 16, faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction, index.hnsw.efSearch = 100, 64
    index.add(vectors)
    faiss.write_index(index, str(path))
    return lambda query: index.search(query[None], TOP)[1][0], size(path)


def hnswlib(vectors, path: Path, threads: int) -> tuple[Callable, float]:
    import hnswlib  # pyright: ignore[reportMissingImports]

    index = hnswlib.Index("ip", WIDTH)
    index.init_index(len(vectors), M=16, ef_construction=100, random_seed=0)
    index.set_num_threads(threads)
    index.add_items(vectors)
    index.set_ef(64)
    index.save_index(str(path))
    return lambda query: index.knn_query(query, TOP)[0][0], size(path)


def usearch(vectors, path: Path, kind: str, threads: int) -> tuple[Callable, float]:
    import numpy as np
    from usearch.index import Index  # pyright: ignore[reportMissingImports]

    index = Index(ndim=WIDTH, metric="ip", dtype=kind, connectivity=16, expansion_add=100, expansion_search=64)
    index.add(np.arange(len(vectors)), vectors, threads=threads)
    index.save(str(path))
    return lambda query: index.search(query, TOP, threads=threads).keys, size(path)


def measure(rows: int, queries: int, threads: int, folder: Path) -> None:
    """Prints the table of one number of rows."""
    import numpy as np

    from keras_ctxrep.text import search

    vectors, asked = rows_of(rows, 1), rows_of(queries, 2)
    expected, _ = search.nearest(asked, vectors, TOP)
    search.GRAPH_ROWS = 0
    makers = {
        "Index, float32": lambda path: ours(vectors, path, "float32", False),
        "Index, float16": lambda path: ours(vectors, path, "float16", False),
        "Index, int8": lambda path: ours(vectors, path, "int8", False),
        "Index, graph": lambda path: ours(vectors, path, "float32", True),
        "NumPy, product and argpartition": lambda path: plain(vectors),
        "faiss, flat": lambda path: faiss(vectors, path, "flat", threads),
        "faiss, HNSW": lambda path: faiss(vectors, path, "hnsw", threads),
        "hnswlib": lambda path: hnswlib(vectors, path, threads),
        "usearch, float32": lambda path: usearch(vectors, path, "f32", threads),
        "usearch, int8": lambda path: usearch(vectors, path, "i8", threads),
    }
    engines, built, sizes = {}, {}, {}
    for number, (name, make) in enumerate(makers.items()):
        if name == "Index, graph" and search.graph_library() is None:
            continue
        begin = time.perf_counter()
        try:
            engines[name], sizes[name] = make(folder / f"{rows}_{number}")
        except ImportError:
            continue
        built[name] = time.perf_counter() - begin
    times, cpu = {name: [] for name in engines}, dict.fromkeys(engines, 0.0)
    hits = dict.fromkeys(engines, 0)
    for query, best in zip(asked, expected, strict=True):
        for name, run in engines.items():
            begin, spent = time.perf_counter(), time.process_time()
            found = run(query)
            times[name].append(time.perf_counter() - begin)
            cpu[name] += time.process_time() - spent
            hits[name] += len({*map(int, found)} & {*best.tolist()})
    columns = f"{rows:,} rows | ms | CPU ms | recall@10 | s to build | MB"
    print(f"\n| {columns} |\n|{'---|' * 6}", flush=True)
    for name, values in times.items():
        recall = hits[name] / len(asked) / TOP
        times_of = f"{np.median(values) * 1e3:.2f} | {cpu[name] / len(asked) * 1e3:.2f}"
        row = f"{times_of} | {recall:.4f} | {built[name]:.1f} | {sizes[name]:.0f}"
        print(f"| {name} | {row} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
        os.environ[name] = str(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        for rows in args.rows:
            measure(rows, args.queries, args.threads, Path(folder))


if __name__ == "__main__":
    main()
