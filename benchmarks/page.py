"""The page of the documentation that run.py writes from a file of figures: docs/performance.md, and its picture."""

import json
import statistics
from collections.abc import Iterator
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


def tables(record: dict) -> dict[str, list[dict]]:
    """Title -> rows, the first of which is ours; each with "floor", seconds or None."""
    found: dict[str, list[dict]] = {}
    current: dict[str, str] = {}
    for benchmark in record["benchmarks"]:
        rows: list[dict[str, Any]] = benchmark.get("rows", [])
        best: dict[str, float] = {}
        for row in rows:
            best[row["precision"]] = max(best.get(row["precision"], 0), row["rate"] or 0)
        for row in rows:
            row["floor"] = row["operations"] / best[row["precision"]] if row["operations"] else None
            title = current.setdefault(row["table"], row["table"])
            if row["engine"] in [other["engine"] for other in found.get(title, [])]:  # some take part in several waves
                title = current[row["table"]] = f"{title}, once more"
            found.setdefault(title, []).append(row)
    return found


def text(record: dict, name: str) -> str:
    """The page in Markdown."""
    machine, peers = record["machine"], record["peers"]
    known = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    theirs = ", ".join(f"{package} {version}" for package, version in peers.items())
    loads = [load for benchmark in record["benchmarks"] for load in benchmark.get("load", [])]
    commands = [f"`{benchmark['command']}`" for benchmark in record["benchmarks"] if "command" in benchmark]
    lines = [
        "# Performance",
        "",
        f"Written by `python benchmarks/run.py --page benchmarks/results/{name}`; the figures are those of that file.",
        "",
        f"* {record['date'][:10]}, {machine['cores']} cores of {machine['processor']} ({' '.join(machine['flags'])}), "
        f"{machine['memory_gb']:.0f} GB",
        f"* load average before and after each benchmark: {min(loads):.1f} to {max(loads):.1f}",
        f"* {known}",
        *([f"* peers: {theirs}"] if peers else []),
        *(f"* {key}={value}" for key, value in record.get("environment", {}).items()),
        *([f"* {record['remark']}"] if "remark" in record else []),
        f"* {', '.join(commands)}",
        "",
        NOTES,
        "![Time of each engine, that of keras_ctxrep being 1, and the floor](performance.svg)",
    ]
    for title, rows in tables(record).items():
        lines += ["", f"## {title}", "", *table(rows)]
    return "\n".join(lines) + "\n"


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


def picture(record: dict, path: Path) -> None:
    """Bars of the time of each engine over that of the first one of its table, with a mark at the floor.

    Tables whose rows are lengths of a text, with "tokens", are left out.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "performance", "font.size": 8}
    from matplotlib import pyplot

    shown = {title: rows for title, rows in tables(record).items() if "tokens" not in rows[0]}
    figure, axes = pyplot.subplots()
    colors = {engine: f"C{number}" for number, engine in enumerate(_engines(shown))}
    place, titles, limit = 0.0, [], 3.5
    for title, rows in shown.items():
        first, begin = statistics.median(rows[0]["seconds"]), place
        for row in rows:
            ratio = statistics.median(row["seconds"]) / first
            axes.barh(place, min(ratio, limit), 0.8, color=colors[row["engine"]], label=row["engine"])
            axes.text(min(ratio, limit) + 0.02, place, f"{ratio:.2f}", va="center")
            if row["floor"]:
                axes.plot([row["floor"] / first] * 2, [place - 0.4, place + 0.4], color="black")
            place += 1
        titles.append(((begin + place - 1) / 2, title.replace(", ", "\n", 2)))
        place += 0.8
    axes.set_yticks(*zip(*titles, strict=True))
    axes.invert_yaxis()
    axes.set(xlabel="time, that of the first engine being 1; black: the floor", xlim=(0, limit + 0.3))
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    axes.legend(
        handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=3, frameon=False
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.set_size_inches(8, 0.25 * place + 1.2)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def _engines(shown: dict[str, list[dict]]) -> dict[str, None]:
    return dict.fromkeys(row["engine"] for rows in shown.values() for row in rows)


def write(path: Path, docs: Path) -> None:
    """Writes the page and its picture."""
    record = json.loads(path.read_text("utf-8"))
    (docs / "performance.md").write_text(text(record, path.name), "utf-8")
    picture(record, docs / "performance.svg")
