"""Settings of the documentation, which `make docs` builds without a network."""

import os
import re
import sys
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from textwrap import dedent, indent

from sphinx.util import inspect

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "export"), str(ROOT / "tflite")]
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "COLUMNS": "100"}

from keras_ctxrep import __version__  # noqa: E402
from keras_ctxrep.cli.main import COMMANDS, Group, main  # noqa: E402
from keras_ctxrep.zoo.entries import ENTRIES  # noqa: E402

project = "keras_ctxrep"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
templates_path = ["_templates"]  # of the pages of modules and classes, which are made in reference/api/modules
autosummary_ignore_module_all = False
for page in (ROOT / "docs" / "reference" / "api" / "modules").glob("*.rst"):
    page.unlink()  # of a module or a class that is no longer there
myst_heading_anchors = 3  # for links to page.md#a-heading
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
add_module_names = False
maximum_signature_line_length = 100
smartquotes = False
suppress_warnings = ["ref.python"]  # a name that a package has from one of its modules is on both pages
html_theme = "furo"
html_title = f"keras_ctxrep {release}"
html_show_copyright = False

SECTION = re.compile(r"(Args|Attributes|Call|Raises|Returns|Warns|Yields): ?(.*)")


def inline(text: str) -> str:
    """Text with `code` as reStructuredText has it, ``code``, and every other character of its markup escaped."""
    parts = re.split(r"`([^`]+)`", re.sub(r"(?m)^( *)\* ", r"\1- ", text))
    parts[::2] = [re.sub(r"[\\*|]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [f"\\ ``{' '.join(part.split())}``\\ " for part in parts[1::2]]
    return "".join(parts)


def names(text: str) -> str:
    """A list of the entries "name: description" of a section."""
    entries = [" ".join(entry.split()).partition(": ") for entry in re.split(r"\n(?! )", text)]
    return "\n".join(f"- **{inline(name)}**: {inline(description)}" for name, _, description in entries)


def restructured(app, what, name, obj, options, lines: list[str]) -> None:
    """Turns a docstring of this project into reStructuredText.

    Sections become fields, "Args:" and others that name things with a list in them; an indented paragraph is code.
    """
    blocks = []
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    while paragraphs:
        first, _, rest = paragraphs[0].partition("\n")
        if header := SECTION.fullmatch(first):
            body = [f"{header[2]}\n{rest}" if header[2] else dedent(rest)]
            while len(paragraphs) > 1 and paragraphs[1].startswith(" "):
                body.append(dedent(paragraphs.pop(1)))
            body = [inline(part) if header[2] or index else names(part) for index, part in enumerate(body)]
            blocks.append(f":{header[1]}:\n{indent(chr(10).join(f'{part}{chr(10)}' for part in body), '    ')}")
        elif first.startswith(" "):
            blocks.append(f"::\n\n{paragraphs[0]}")
        else:
            blocks.append(paragraphs[0] if first.startswith(">>>") else inline(paragraphs[0]))
        paragraphs.pop(0)
    lines[:] = "\n\n".join(blocks).split("\n")


def constructor(app, what, name, obj, options, signature, returned):
    """The signature of a Keras layer, whose class hides it behind `(*args, **kwargs)`."""
    if what == "class" and signature == "(*args, **kwargs)":
        return inspect.stringify_signature(inspect.signature(obj.__init__, bound_method=True)), returned
    return None


def generated(app, page: str, source: list[str]) -> None:
    """Adds the help of every command, and the table of models, to their pages."""
    if page == "reference/commands":
        for name, command in COMMANDS.items():
            kinds = [[kind] for kind in command.kinds] if isinstance(command, Group) else []
            if isinstance(command, Group) and command.choose:
                kinds = [["--corpus", "FILE"], ["--static"]]
            for words in ([name], *([name, *kind] for kind in kinds)):
                with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
                    main([*words, "--help"])
                heading = f"{'#' * min(1 + len(words), 3)} ctxrep {' '.join(words)}"
                source[0] += f"\n{heading}\n\n```text\n{printed.getvalue()}```\n"
    if page == "reference/models":
        source[0] += "\n| name | parameters | casing | licence | source | |\n|---|---|---|---|---|---|\n"
        for entry in ENTRIES:
            size = f"{entry.parameters / 1e6:.1f} M"
            cells = (f"`{entry.name}`", size, entry.casing, entry.licence, entry.format or "none", entry.note)
            source[0] += f"| {' | '.join(cells)} |\n"


def examples(app) -> None:
    """Makes a page and a notebook of each example, docs/examples/NAME.md and .ipynb; the source is examples/NAME.py."""
    import jupytext

    folder = Path(app.srcdir) / "examples"
    folder.mkdir(exist_ok=True)
    for path in sorted((ROOT / "examples").glob("*.py")):
        notebook = jupytext.read(path)
        jupytext.write(notebook, folder / f"{path.stem}.ipynb")
        page = re.sub(r"\A---\n.*?\n---\n\n", "", jupytext.writes(notebook, "md"), flags=re.DOTALL)  # jupytext's header
        title, _, rest = page.partition("\n")
        link = f"{{download}}`As a notebook <{path.stem}.ipynb>`"
        (folder / f"{path.stem}.md").write_text(f"{title}\n\n{link}\n{rest}", encoding="utf-8")


def setup(app) -> None:
    app.connect("builder-inited", examples)
    app.connect("autodoc-process-docstring", restructured)
    app.connect("autodoc-process-signature", constructor)
    app.connect("source-read", generated)
