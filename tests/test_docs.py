"""Every example in a docstring, and every block of the README, runs."""

import doctest
import importlib
import json
import pkgutil
import re
import shlex
import shutil
from pathlib import Path

import keras_ctxrep_export
import keras_ctxrep_tflite
import pytest

import keras_ctxrep
from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.convert import allennlp, huggingface

ROOT = Path(__file__).parent.parent
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in ("elmo", "bert", "tasks", "scaling", "serving", "own_data", "web", "mobile")),
    )
}
COMMANDS_ALONE = ("docs/own_data.md", "docs/web.md", "docs/mobile.md")  # no examples in Python
every_page = pytest.mark.parametrize("page", PAGES)
MODULES = sorted(
    info.name
    for package in (keras_ctxrep, keras_ctxrep_export, keras_ctxrep_tflite)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples():
    count = sum(
        len(test.examples) for name in MODULES for test in doctest.DocTestFinder().find(importlib.import_module(name))
    )
    assert count > 30


@pytest.mark.parametrize("name", [name for name in MODULES if ".layers." in name or ".models." in name])
def test_every_public_class_and_function_has_an_example(name):
    module = importlib.import_module(name)
    for attribute, value in vars(module).items():
        if not attribute.startswith("_") and getattr(value, "__module__", None) == name and attribute != "Config":
            assert ">>>" in (value.__doc__ or ""), f"{name}.{attribute} has no example"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.fixture(scope="module")
def place(models, tmp_path_factory):
    """A folder with the files that the commands name."""
    folder = tmp_path_factory.mktemp("pages")
    sources = {"corpus.txt": ("text.txt", "heldout.txt"), "test.tsv": ("train.tsv", "dev.tsv", "test.tsv")}
    for source, names in sources.items():
        lines = (models / source).read_text(encoding="utf-8").splitlines(keepends=True)[:400]
        for name in names:
            (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    for name in ("train.conll", "dev.conll"):
        (folder / name).write_text("Ada B-PER\nmet O\nGrace B-PER\n\nrain O\nfell O\n\n" * 20)
    roles = "rain NN - B-ARG0\nfell VB fall.01 B-V\n\nAda NN - B-ARG0 O\nmet VB meet.01 B-V O\nran VB run.01 O B-V\n\n"
    (folder / "roles.conll").write_text(roles * 10)
    row = "The rain fell when she left.\tshe\t19\tThe rain\t0\tTRUE\tfell\t9\tFALSE\n"
    columns = "Text\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\n"
    (folder / "gap.tsv").write_text(columns + row * 20)
    (folder / "sts.tsv").write_text("text\tpair\tlabel\n" + "the rain\ta storm\t4.0\nthe oven\ta flute\t0.5\n" * 20)
    rows = [{"text": "the rain", "labels": ["weather"]}, {"text": "the soup song", "labels": ["kitchen", "music"]}]
    (folder / "topics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 20))
    answer = {"id": "1", "question": "what fell?", "answers": [{"text": "rain", "answer_start": 4}]}
    paragraph = {"context": "the rain fell", "qas": [answer] * 20}
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    header, columns = "Ticket No\tCustomer Message", ("T1\tthe parcel is late", "T2\tthe bill, a refund")
    labelled = "".join(f"{row}\t{label}\n" for row, label in zip(columns, ("Delivery", "Billing"), strict=True))
    for name in ("tickets.tsv", "tickets_dev.tsv"):
        (folder / name).write_text(f"{header}\tQueue\n{labelled * 10}")
    (folder / "tickets_new.tsv").write_text("\n".join([header, *columns]) + "\n")
    (folder / "bank.tsv").write_text("text\tlabel\nthe river bank\tshore\na bank with money\tmoney\n")
    (folder / "vectors.txt").write_text("the 0.1 0.2\nrain 0.3 0.4\nviolin -0.1 0.5\n")
    shutil.copytree(models / "elmo" / "pretrained", folder / "lm")
    shutil.copytree(models / "bert" / "pretrained", folder / "bert")
    model, bundle = saving.load_encoder(models / "elmo" / "pretrained")
    allennlp.write(folder / "published", model, bundle)
    huggingface.write(folder / "hf_folder", *saving.load_encoder(models / "bert" / "pretrained"))
    return folder


@pytest.mark.slow  # of one page alone: dozens of commands, half of which train
@pytest.mark.filterwarnings("ignore:bert has no mlm_transform")  # as the page says
@pytest.mark.filterwarnings("ignore:.*it has no trained scalar mix")  # `--layers mix` of a language model
@every_page
def test_commands(page, place, monkeypatch, capsys):
    """In order, with short trainings instead of long ones."""
    monkeypatch.chdir(place)
    shell = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    commands = [line for line in shell.splitlines() if "ctxrep " in line]
    few = {"docs/scaling.md": 1, "docs/serving.md": 1, "docs/own_data.md": 4, "docs/web.md": 1, "docs/mobile.md": 3}
    assert len(commands) > few.get(page, 6)
    for command in commands:
        argv = shlex.split(command.split(" #")[0].split("|")[-1])
        assert argv[0] == "ctxrep", command
        for flag in ("--minutes", "--epochs"):
            if flag in argv:
                at = argv.index(flag)
                argv[at : at + 2] = ["--steps", "2"]
        if argv[1] == "demo":
            main._parse(argv[1:])
        else:
            if argv[1] == "predict" and not {"--input", "--data"} & {*argv}:
                echo, text = shlex.split(command.partition("|")[0])
                assert echo == "echo"
                Path("piped.txt").write_text(f"{text}\n")
                argv += ["--input", "piped.txt"]
            assert main.main(argv[1:]) == 0, (command, capsys.readouterr().err)
    if page == "docs/own_data.md":
        header, first, *_ = (place / "answered.tsv").read_text(encoding="utf-8").splitlines()
        assert header.split("\t") == ["Ticket No", "Customer Message", "prediction", "score"]
        assert first.startswith("T1\tthe parcel is late\t")


@pytest.mark.slow  # trains at a published size
@pytest.mark.parametrize("page", [page for page in PAGES if page not in COMMANDS_ALONE])
def test_python(page, place, monkeypatch):
    monkeypatch.chdir(place)
    examples = blocks(page, "python")
    assert len(examples) >= 2
    namespace: dict = {}
    for block in examples:
        exec(compile(block, page, "exec"), namespace)
