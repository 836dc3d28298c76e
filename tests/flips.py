"""Flips bytes in the files of models and asks these: `python -m tests.flips [--count 30] [KIND...]`.

    python -m tests.flips --count 30                       # every kind
    python -m tests.flips --count 5 saved_model g2p_en

A kind is a model that comes with the package, or a tiny one as "folder", "saved_model", "tflite" or "keras". One byte
of one file is changed at a time, every second time by a single bit. The outcome is one of

* refused: a ValueError of one printable line that names the file or its folder;
* the same: the answers of the whole files;
* other: other answers;
* unclear: another error, or a message that names no file;
* crashed: the process has ended; a fresh one goes on.

Of a .keras file, which Keras reads, any exception is a refusal. Prints a line of JSON for each file, and where an
outcome is not one of the first two another one that repeats it. The exit code is 1 then.
"""

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TEXTS = ["the cat fell. She fell?", "Rain, rain: a b c d!"]
SHIPPED = {
    name.partition("/")[0]: name
    for name in (
        *("bert_3_384_12/books_wiki_en", "elmo_2x512_128_512cnn_1xhighway/books_wiki_en"),
        *("static_128/books_wiki_en", "g2p_en/cmudict"),
    )
}
TINY = ("folder", "saved_model", "tflite", "keras")
GOOD = ("refused", "the same")


class Flip(NamedTuple):
    """A changed byte: the file, relative to the model's folder, the byte's position, and what it is xored with."""

    file: str
    position: int
    change: int


def write(kind: str, folder: Path) -> Path:
    """Writes the model of a kind; returns what is opened."""
    if kind in SHIPPED:
        from keras_ctxrep import zoo

        shutil.copytree(zoo.find(SHIPPED[kind]), folder / kind)
        return folder / kind
    from keras_ctxrep import saving
    from tests import tiny

    model, bundle = tiny.model("tag", max_length=40)
    if kind == "keras":
        model.save(folder / "m.keras")
        return folder / "m.keras"
    saving.save(folder / "m", model, bundle)
    if kind == "saved_model":
        from keras_ctxrep_export import saved_model

        return saved_model.export(model, bundle, folder / "served")
    if kind == "tflite":
        from keras_ctxrep_tflite import quantize

        return quantize.convert(folder / "m", folder / "m.tflite", lengths=(8, 40))
    return folder / "m"


def asker(kind: str) -> Callable[[Path], Any]:
    """A function from the path of a model to its answers."""
    if kind == "keras":
        import keras

        import keras_ctxrep.models  # registers the layers

        def ask(path: Path) -> Any:
            model = keras.models.load_model(path)
            shapes = {name: (2, *(size or 5 for size in x.shape[1:])) for name, x in model.input.items()}
            outputs = model({name: keras.ops.ones(shape, "int32") for name, shape in shapes.items()})
            return {name: value.numpy().tolist() for name, value in outputs.items()}

        return ask
    import keras_ctxrep as ctx

    def answers(path: Path) -> Any:
        model = ctx.load(path)
        if kind in SHIPPED and kind != "g2p_en":
            return model.encode(TEXTS).tolist()
        answers = model.predict(TEXTS if kind in TINY else ["cat", "violin"])
        return json.loads(json.dumps(answers, default=lambda array: array.tolist()))

    return answers


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def flips_of(path: Path, count: int, seed: int) -> Iterator[Flip]:
    """Some flips in each file of a model."""
    for file in files_of(path):
        name = file.relative_to(path.parent).as_posix()
        draw = random.Random(f"{seed} {name}")
        for number in range(count if file.stat().st_size else 0):
            change = draw.randrange(1, 256) if number % 2 else 1 << draw.randrange(8)
            yield Flip(name, draw.randrange(file.stat().st_size), change)


@contextlib.contextmanager
def flipped(path: Path, flip: Flip) -> Iterator[None]:
    """The file has the changed byte in the block."""

    def change() -> None:
        with (path.parent / flip.file).open("r+b") as file:
            file.seek(flip.position)
            (byte,) = file.read(1)
            file.seek(flip.position)
            file.write(bytes([byte ^ flip.change]))

    change()
    try:
        yield
    finally:
        change()


def outcome(ask: Callable[[Path], Any], path: Path, flip: Flip, expected: Any) -> tuple[str, str]:
    """The outcome of a flip, and what there is to say of it."""
    with flipped(path, flip):
        try:
            answers = ask(path)
        except Exception as error:
            text = str(error)
            clear = isinstance(error, ValueError) and text.isprintable() and len(text) < 700
            names = (Path(flip.file).name, str(path))
            clear = path.suffix == ".keras" or (clear and any(name in text for name in names))
            return "refused" if clear else "unclear", f"{type(error).__name__}: {text[:300]}"
    return ("the same", "") if answers == expected else ("other", "")


def work(kind: str, path: Path) -> None:
    """Tries the flips that the lines of the standard input name, and prints a line for each."""
    warnings.simplefilter("ignore")
    ask = asker(kind)
    expected = ask(path)
    for line in sys.stdin:
        print(json.dumps(outcome(ask, path, Flip(*json.loads(line)), expected)), flush=True)


def outcomes(kind: str, path: Path, flips: list[Flip]) -> Iterator[tuple[Flip, str, str]]:
    """The outcomes of flips, of a process of their own; where it ends, the next one goes on behind that flip."""
    while flips:
        command = [sys.executable, "-m", "tests.flips", "--work", str(path), kind]
        text = "".join(f"{json.dumps(flip)}\n" for flip in flips)
        process = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
        lines = process.stdout.splitlines()
        for flip, line in zip(flips, lines, strict=False):
            yield flip, *json.loads(line)
        flips = flips[len(lines) :]
        if flips and process.returncode > 0:
            raise RuntimeError(f"{flips[0]}: exit {process.returncode}: {process.stderr[-3000:]}")
        if flips:  # the byte is still changed
            with contextlib.ExitStack() as stack:
                stack.enter_context(flipped(path, flips[0]))
            yield flips.pop(0), "crashed", f"signal {-process.returncode}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=[*SHIPPED, *TINY])
    parser.add_argument("--count", type=int, default=30, help="flips in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.kinds[0], options.work)
        return 0
    bad = 0
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path = write(kind, Path(folder))
            counts: dict[str, Counter[str]] = {}
            for flip, result, message in outcomes(kind, path, [*flips_of(path, options.count, options.seed)]):
                counts.setdefault(flip.file, Counter())[result] += 1
                if result not in GOOD:
                    bad += 1
                    print(json.dumps({"kind": kind, "flip": flip, "outcome": result, "message": message}), flush=True)
            for file, numbers in counts.items():
                print(json.dumps({"kind": kind, "file": file, **numbers}), flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
