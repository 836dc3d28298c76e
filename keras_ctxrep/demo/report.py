"""The demo's report: one HTML file, with its pictures inside."""

import base64
import html
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.commands.printing import html_table
from keras_ctxrep.plots.drawing import COLOURS
from keras_ctxrep.text.decode import entities
from keras_ctxrep_tflite import compare

__all__ = ["write_report"]

TEMPLATE = Path(__file__).with_name("report.html")
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")  # HTML in a card is shown as text


def write_report(figures: dict, path: str | Path) -> None:
    """Writes the report of `demo.run`.

    Args:
        figures: as `demo.run` returns them; bank.svg is read from the report's folder.
        path: FILE.html.
    """
    path = Path(path)
    tagging, engines = figures["tagging"], figures["engines"]
    checks = "".join(f'<li class="{"yes" if ok else "no"}">{html.escape(text)}</li>' for ok, text in figures["checks"])
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        subtitle=html.escape(
            f"keras_ctxrep {figures['version']}, `ctxrep demo`, seed {figures['seed']}: {figures['minutes']:.1f} "
            f"minutes on {figures['cores']} cores ({figures['processor']})"
        ),
        figures=_headline(tagging, engines),
        checks=checks,
        masks=html_table([["", "words for [MASK]"], *_masks(figures["ready"]["masks"])]),
        names=_mark(figures["ready"]["names"]),
        distilling_text=html.escape(f"{figures['distilling']['text']}, {figures['distilling']['words']:,} words"),
        curve=_picture(lambda axes: _curve(axes, figures["distilling"]["curve"]), (7, 2.8)),
        texts=figures["search"]["texts"],
        questions=html_table([["", "by meaning", "by words"], *_questions(figures["search"]["entries"])]),
        bars=_picture(lambda axes: _bars(axes, tagging["methods"]), (7, 2.4)),
        sizes=f"{tagging['sizes']['train']:,} messages to learn from, {tagging['sizes']['test']:,} to test on",
        methods=html_table([["", "F1", "95% interval", "precision", "recall"], *_methods(tagging["methods"])]),
        examples="".join(f"<li>{_mark(example)}</li>" for example in figures["examples"]),
        senses=_image((path.parent / "bank.svg").read_bytes()),
        neighbours="".join(map(_neighbours, figures["senses"]["queries"])),
        engines=html_table(compare.engines_table(engines["rows"])),
        loaded=", ".join(engines["loaded"]) or "none",
        card=MARKDOWN.render(figures["card"]),
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _headline(tagging: dict, engines: dict) -> str:
    """The main figures, large."""
    f1 = tagging["methods"]["shipped weights"]["span_f1"]
    keras, int8 = engines["rows"][0], engines["rows"][3]
    headline = [
        (f"{f1:.1%}", "F1 of named entities in messages"),
        (f"{keras['bytes'] / int8['bytes']:.1f}x", "smaller in int8 than the float32 weights"),
        (f"{keras['milliseconds'] / int8['milliseconds']:.1f}x", "lower latency in int8 than in Keras"),
        (f"{100 * (int8['quality'] - keras['quality']):+.1f}", "points of F1 by int8"),
    ]
    return "".join(f"<div><b>{value}</b>{text}</div>" for value, text in headline)


def _methods(methods: dict) -> Iterator[list[str]]:
    for name, entry in methods.items():
        precision, recall = f"{entry['precision']:.1%}", f"{entry['recall']:.1%}"
        yield [name, f"{entry['span_f1']:.1%}", "{:.1%} to {:.1%}".format(*entry["interval"]), precision, recall]


def _mark(example: Sequence[tuple[str, str]]) -> str:
    """A message with its predicted entities marked."""
    parts, at = [], 0
    for kind, first, last in [*entities([tag for _, tag in example]), ("", len(example), len(example))]:
        parts.append(html.escape(" ".join(word for word, _ in example[at:first])))
        if kind:
            marked = html.escape(" ".join(word for word, _ in example[first:last]))
            parts.append(f"<mark>{marked} <i>{html.escape(kind)}</i></mark>")
        at = last
    return " ".join(parts)


def _masks(masks: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Iterator[list[str]]:
    for text, pieces in masks:
        yield [text, ", ".join(f"{piece} ({chance:.0%})" for piece, chance in pieces)]


def _neighbours(query: dict) -> str:
    rows = []
    for entry in query["neighbours"]:
        sentence, start, end = entry["sentence"], entry["start"], entry["end"]
        before, word, after = map(html.escape, (sentence[:start], sentence[start:end], sentence[end:]))
        rows.append(f"<tr><td>{entry['score']:.3f}</td><td>{before}<b>{word}</b>{after}</td></tr>")
    return f"<h3>{html.escape(query['sentence'])}</h3><table class=left>{''.join(rows)}</table>"


def _questions(entries: Sequence[dict]) -> Iterator[list[str]]:
    """Each question with its first hit by each way; a tick where one of its hits is right."""
    for entry in entries:
        ways = ("meaning", "words")
        yield [entry["question"], *(f"{'✓' if entry['right'][way] else '✗'} {entry['found'][way][0]}" for way in ways)]


def _curve(axes: Any, curve: Sequence[tuple[float, float]]) -> None:
    axes.plot(*zip(*curve, strict=True), marker="o", color=COLOURS[0])
    axes.set(xlabel="minutes", ylabel="cosine with the teacher's words")


def _bars(axes: Any, methods: dict) -> None:
    for number, entry in enumerate(methods.values()):
        value, (low, high) = entry["span_f1"], entry["interval"]
        color, errors = "#bbb" if number else COLOURS[0], [[value - low], [high - value]]
        axes.barh(number, value, color=color, xerr=errors, capsize=4)
    axes.set_yticks(range(len(methods)), list(methods))
    axes.invert_yaxis()
    axes.set(xlabel="F1 of entities, with its 95% bootstrap interval", xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _picture(draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    from matplotlib.figure import Figure  # heavy, and not needed before

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return _image(buffer.getvalue())


def _image(svg: bytes) -> str:
    return f'<img alt="" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
