"""The page of the documentation that run.py writes from files of figures: docs/performance.md, and its picture."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NOTES = """\
Engines take turns, and the time is the median of the rounds. "Spread" is the slowest round over the fastest:
where it is far from 1, the machine had other work. "Compared" is the time over that of the first row, so that
above 1 the first row is faster. CPU time is that of all threads, a median too, and feels other work less. The
floor is the time that the products of matrices alone take at the rate of the best large product that any engine
reached in the run, of the same precision where that was measured; "of it" is the floor over the time. Memory is
the greatest of the engine's process from its first call on, imports included.
"""
RATIOS = """\
The time of the quickest peer over that of the quickest engine of keras_ctxrep, of numbers of the same kind, so that
above 1 keras_ctxrep is faster; and which peer that is.
"""
OURS = {"keras_ctxrep", "Keras", "SavedModel"}  # first words of engines
PEERS = {"KerasHub", "transformers", "ONNX", "AllenNLP", "torch.nn.LSTM", "PyTorch", "gensim", "fastText"}
AGAIN, PER_SENTENCE = ", once more", ", per sentence"
NAMES = {  # of processors, by how Linux numbers them
    "AMD EPYC, family 25 model 17": "AMD EPYC (Zen 4)",
    "AMD EPYC, family 26 model 2": "AMD EPYC (Zen 5)",
    "Intel(R) Xeon(R) Processor, family 6 model 167": "Intel Xeon (AMX)",
}


def tables(record: dict) -> dict[str, list[dict]]:
    """Title -> rows, the first of which is ours; each with "floor", seconds or None."""
    found: dict[str, list[dict]] = {}
    current: dict[str, str] = {}
    for benchmark in record["benchmarks"]:
        rows = _of_one_sentence(benchmark.get("rows", []))
        best: dict[str, float] = {}
        for row in rows:
            best[row["precision"]] = max(best.get(row["precision"], 0), row["rate"] or 0)
        for row in rows:
            row["floor"] = row["operations"] / best[row["precision"]] if row["operations"] else None
            title = current.setdefault(row["table"], row["table"])
            if row["engine"] in [other["engine"] for other in found.get(title, [])]:  # some take part in several waves
                title = current[row["table"]] = f"{title}{AGAIN}"
            found.setdefault(title, []).append(row)
    return found


def _of_one_sentence(rows: list[dict]) -> list[dict[str, Any]]:
    """The rows, of a table whose engines read different numbers of sentences for one sentence."""
    counts: dict[str, set[int]] = {}
    for row in rows:
        counts.setdefault(row["table"], set()).add(row.get("sentences", 1))
    made = []
    for row in rows:
        count, parts = row.get("sentences", 1), {}
        if len(counts[row["table"]]) > 1:
            parts = {name: row[name] / count for name in ("operations", "cpu_seconds") if row.get(name) is not None}
            parts["seconds"] = [seconds / count for seconds in row["seconds"]]
            parts["table"] = row["table"] + PER_SENTENCE
        made.append(row | parts)
    return made


def ratios(record: dict) -> dict[tuple[str, str], tuple[float, str]]:
    """(Title, kind of numbers) -> the time of the quickest peer over ours, and the peer; waves apart, the worst one."""
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for title, rows in tables(record).items():
        times: dict[str, dict[str, list[tuple[float, str]]]] = {}
        for row in rows:
            first = row["engine"].replace(",", " ").split()[0]
            side = "ours" if first in OURS else "peers" if first in PEERS else None
            if side is not None and "our writer" not in row["engine"]:
                entry = statistics.median(row["seconds"]), row["engine"]
                times.setdefault(_kind(row["engine"]), {}).setdefault(side, []).append(entry)
        for kind, sides in times.items():
            if len(sides) == 2:
                seconds, peer = min(sides["peers"])
                key = title.removesuffix(AGAIN).removesuffix(PER_SENTENCE), kind
                found[key] = min(found.get(key, (float("inf"), "")), (seconds / min(sides["ours"])[0], peer))
    return found


def _kind(engine: str) -> str:
    """Of numbers, as the engine's name says it."""
    kinds = {"bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "float16", "dynamic": "int8", "int8": "int8"}
    return next((kinds[word] for word in engine.replace(",", " ").split() if word in kinds), "float32")


def named(record: dict) -> str:
    """The processor and the date of a run."""
    processor = record["machine"]["processor"]
    return f"{NAMES.get(processor, processor)}, {record['date'][:10]}"


def text(records: Mapping[str, dict]) -> str:
    """The page in Markdown.

    Args:
        records: name of a file of figures -> what is in it.
    """
    files = " ".join(f"benchmarks/results/{name}" for name in records)
    lines = [
        "# Performance",
        "",
        f"Written by `python benchmarks/run.py --page {files}`; the figures are those of these files.",
        "",
        RATIOS,
        "![Time of the quickest peer over that of keras_ctxrep, on each processor](performance.svg)",
        "",
        *_overview([*records.values()]),
    ]
    for record in records.values():
        lines += ["", f"## {named(record)}", "", *_about(record)]
        for title, rows in tables(record).items():
            lines += ["", f"### {title}", "", *table(rows)]
    return "\n".join(lines) + "\n"


def _overview(records: Sequence[dict]) -> Iterator[str]:
    """The ratios of all runs in one table."""
    found = [ratios(record) for record in records]
    yield "| | numbers | " + " | ".join(map(named, records)) + " |"
    yield "|" + "---|" * (2 + len(records))
    for key in dict.fromkeys(key for of_run in found for key in of_run):
        cells = [f"{of_run[key][0]:.2f} {of_run[key][1]}" if key in of_run else "" for of_run in found]
        yield "| " + " | ".join([*key, *cells]) + " |"
    yield ""
    yield NOTES.rstrip()


def _about(record: dict) -> Iterator[str]:
    """The machine and the circumstances of a run."""
    machine = record["machine"]
    loads = [load for benchmark in record["benchmarks"] for load in benchmark.get("load", [])]
    commands = [f"`{benchmark['command']}`" for benchmark in record["benchmarks"] if "command" in benchmark]
    yield (
        f"* {machine['cores']} cores of {machine['processor']} ({' '.join(machine['flags'])}), "
        f"{machine['memory_gb']:.0f} GB"
    )
    yield f"* load average before and after each benchmark: {min(loads):.1f} to {max(loads):.1f}"
    for name, versions in (("", record["versions"]), ("peers: ", record["peers"])):
        if versions:
            yield f"* {name}{', '.join(f'{package} {version}' for package, version in versions.items())}"
    yield from (f"* {key}={value}" for key, value in record.get("environment", {}).items())
    if "remark" in record:
        yield f"* {record['remark']}"
    yield f"* {', '.join(commands)}"


def table(rows: list[dict]) -> Iterator[str]:
    columns = ["", "ms", "compared", "spread"]
    columns += ["CPU ms"] if any("cpu_seconds" in row for row in rows) else []
    columns += ["floor, ms", "of it"] if any(row["floor"] for row in rows) else []
    columns += ["MB"] if any("memory_mb" in row for row in rows) else []
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    first = statistics.median(rows[0]["seconds"])
    for row in rows:
        seconds = row["seconds"]
        median = statistics.median(seconds)
        cells = [row["engine"], f"{1000 * median:,.1f}", f"{median / first:.2f}"]
        cells.append(f"{max(seconds) / min(seconds):.1f}" if len(seconds) > 1 else "")
        if "CPU ms" in columns:
            cells.append(f"{1000 * row['cpu_seconds']:,.0f}" if "cpu_seconds" in row else "")
        if "of it" in columns:
            cells += [f"{1000 * row['floor']:,.1f}", f"{row['floor'] / median:.0%}"] if row["floor"] else ["", ""]
        if "MB" in columns:
            cells.append(f"{row['memory_mb']:,.0f}" if "memory_mb" in row else "")
        yield "| " + " | ".join(cells) + " |"


def picture(records: Sequence[dict], path: Path) -> None:
    """The ratios of all runs, on a logarithmic axis: a dot for each processor."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "performance", "font.size": 8}
    from matplotlib import pyplot

    found = [ratios(record) for record in records]
    keys = [*dict.fromkeys(key for of_run in found for key in of_run)]
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(keys) + 1))
    for record, of_run in zip(records, found, strict=True):
        places = [place for place, key in enumerate(keys) if key in of_run]
        axes.scatter([of_run[keys[place]][0] for place in places], places, label=named(record), zorder=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(keys)), [f"{title} ({kind})" for title, kind in keys])
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := [0.5, 1, 2, 4, 8], [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("time of the quickest peer over ours: on the right of 1 keras_ctxrep is faster")
    axes.grid(axis="both", linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.2, -0.1), ncols=len(records), frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def write(paths: Sequence[Path], docs: Path) -> None:
    """Writes the page and its picture."""
    records = {path.name: json.loads(path.read_text("utf-8")) for path in paths}
    (docs / "performance.md").write_text(text(records), "utf-8")
    picture([*records.values()], docs / "performance.svg")
