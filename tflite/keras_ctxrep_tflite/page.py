"""A folder with a web page that runs a model in the browser, for any static file server."""

import html
import json
import shutil
from pathlib import Path

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_folder, check_folder
from keras_ctxrep.tasks.abilities import LabelsWords, Searches
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.families import TEXT_SIDES
from keras_ctxrep.text.tags import is_spans

__all__ = ["check", "version", "write_page"]

# in a wheel beside this file, in a checkout beside the package
WEB = next(folder for folder in (Path(__file__).with_name("web"), Path(__file__).parents[1] / "web") if folder.is_dir())
LIBRARY = (
    *("ctxrep.js", "text.js", "units.js", "features.js", "search.js", "translation.js", "generator.js", "sampling.js"),
    *("filling.js", "subwords.js", "normalizers.js", "pause.js", "unicode.json"),
)
FILES = (*LIBRARY, "page.js", "answers.js", "ranking.js", "writing.js", "masks.js", "translating.js")
MODEL = "model.tflite"
CDN = "https://cdn.jsdelivr.net/npm/@litertjs/"  # of the import map in index.html, before NAME@VERSION/
# the files that the page may load: with relaxed SIMD or without it, and with threads
WASM = tuple(f"wasm/litert_wasm_{form}internal.*" for form in ("", "compat_", "threaded_"))
PACKAGES = {"core": ("package.json", "dist/index.js", *WASM), "wasm-utils": ("package.json", "dist/index.js")}
# title of the page and what the model does, as in `Task.page`, of models that write text and that fill masks
WRITES = ("How does the text go on?", "It writes on from a prompt, token by token")
FILLS = ("Which word is missing?", "It names the most probable words for each [MASK] of a text")
SHOWN = 12  # labels named on the page


def write_page(tflite: str | Path, out: str | Path, litertjs: str | Path | None = None) -> Path:
    """Writes a folder with index.html, the modules that it uses, and the model.

    Args:
        tflite: a .tflite file with its bundle.
        out: the folder; other files in it are kept.
        litertjs: the folder node_modules/@litertjs after `npm install @litertjs/core`; what the page needs of it is
            copied to OUT/litertjs, for use without other servers. None: the page loads LiteRT from a CDN.

    Returns: `out`.

    Raises:
        ValueError: the file has no bundle, its task does not run in the browser, or the folder of LiteRT is not one.

    >>> write_page("missing.tflite", "page")
    Traceback (most recent call last):
    ValueError: missing.tflite: no such file or folder
    """
    check(bundles.load(tflite), tflite, out, litertjs)
    return write(tflite, out, litertjs)


def write(tflite: str | Path, out: str | Path, litertjs: str | Path | None = None) -> Path:
    """As `write_page`, of a model that was checked already."""
    page = _described((WEB / "index.html").read_text(encoding="utf-8"), bundles.load(tflite))
    with atomic_folder(out) as folder:
        for name in FILES:
            shutil.copyfile(WEB / name, folder / name)
        if litertjs is not None:
            for package, patterns in PACKAGES.items():
                page = page.replace(f"{CDN}{package}@{version(page, package)}/", f"./litertjs/{package}/")
                _copy(Path(litertjs) / package, folder / "litertjs" / package, patterns)
        (folder / "index.html").write_text(page, encoding="utf-8")
        shutil.copyfile(tflite, folder / MODEL)
    return Path(out)


def _described(page: str, bundle: Bundle) -> str:
    """The page with a title and a line about the model."""
    task = tasks.SERVED.get(bundle.task)
    title, does = WRITES if bundle.generates else FILLS if bundle.fills else (task and task.page) or ("", "")
    marks = isinstance(task, LabelsWords) and is_spans(bundle.labels)  # of B-PER and I-PER the page shows PER
    shown = () if isinstance(task, Searches) else bundle.labels  # those of a decoder are its vocabulary
    labels = [label for label in dict.fromkeys(x[2:] if marks else x for x in shown) if label]
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    facts = f"{does}: {', '.join(labels[:SHOWN])}{more}." if labels else f"{does}."
    return page.replace("$title", html.escape(title)).replace("$facts", html.escape(facts))


def check(bundle: Bundle, source: str | Path, out: str | Path, litertjs: str | Path | None = None) -> None:
    """Checks a model, before it is converted or after, whose bundle is read from `source`, and both folders.

    Raises:
        ValueError: there is no page for the model's task, for its word vectors with n-grams, for a task network of
            pairs, or for a tagger over a language model, `out` is a file, or `litertjs` is none or of another version.
    """
    check_folder(out)
    if bundle.task in tasks.SERVED and tasks.get(bundle.task).page is None:
        names = ", ".join(name for name, task in tasks.SERVED.items() if task.page)
        raise ValueError(f"{source}: no page answers {bundle.task}; there are {names}, and language models")
    if "subword_ids" in bundle.features.keys:
        remedy = "use the .tflite file with the Python runtime, or train without --subwords"
        raise ValueError(f"{source}: word vectors with character n-grams are not supported in the browser: {remedy}")
    remedy = "use the .tflite file with the Python runtime"
    if bundle.apart:
        raise ValueError(f"{source}: the task network {bundle.stack['kind']} is not supported in the browser: {remedy}")
    if TEXT_SIDES[bundle.family].generates and bundle.reads.words:
        raise ValueError(f"{source}: a tagger over a language model is not supported in the browser: {remedy}")
    if bundle.task in tasks.SERVED:  # of a pretraining model the encoder is converted
        tasks.SERVED[bundle.task].check(bundle)
    if litertjs is None:
        return
    page = (WEB / "index.html").read_text(encoding="utf-8")
    for package in PACKAGES:
        path = Path(litertjs) / package / "package.json"
        if not path.is_file():
            raise ValueError(f"{litertjs}: no {package} in it; name node_modules/@litertjs")
        needed = version(page, package)
        try:
            have = str(json.loads(path.read_text(encoding="utf-8"))["version"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: no version in it; npm install @litertjs/core@{needed}") from None
        if have.split(".")[0] != needed.split(".")[0]:
            raise ValueError(f"{path}: version {have}; npm install @litertjs/core@{needed}")


def version(page: str, package: str) -> str:
    """The version of a package of LiteRT that a page loads.

    >>> version('"https://cdn.jsdelivr.net/npm/@litertjs/core@2.5.3/dist/index.js"', "core")
    '2.5.3'
    """
    return page.split(f"{CDN}{package}@")[1].split("/")[0]


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for path in (path for pattern in patterns for path in source.glob(pattern)):
        destination = target / path.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, destination)
