"""Every example of a docstring and every block of code in README.md and docs/ runs; the reference has every module."""

import ast
import doctest
import importlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import allennlp, huggingface
from keras_ctxrep_tflite import quantize, runtime
from tests import tiny

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent.name != "examples"  # made of examples/*.py by `make docs`; tests/test_examples.py runs those
}
SOURCES = {
    ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for root, package in ((ROOT, "keras_ctxrep"), (ROOT / "export", "*"), (ROOT / "tflite", "keras_ctxrep_tflite"))
    for path in sorted(root.glob(f"{package}/**/*.py"))
}
REFERENCE = re.compile(r"^(?:   |\.\. automodule:: )(keras_ctxrep\S*)$", re.MULTILINE)  # a module on a page
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Every block of these languages runs, but for those in this table: (page, how the block begins) -> why not
CODE = ("sh", "bash", "python")
PUBLISHED = ("bert_3_384_12/books_wiki_en", "bert_6_384_12/books_wiki_en")
PUBLISHED_ON = ("README.md", "docs/tutorials/own_data.md", "docs/how-to/tasks/distill.md", "docs/how-to/answers.md")
REASONS = {
    ("README.md", "# in a checkout of the repository"): "needs a package index",
    ("README.md", "docker run"): "needs a server",
    ("README.md", "make demo"): "is what runs this test, and the demo has a test of its own",
    ("docs/tutorials/demo.md", "ctxrep demo"): "takes minutes; tests/demo/test_run.py runs it on less",
    ("docs/how-to/install.md", "pip install"): "needs a package index",
    ("docs/how-to/install.md", "make demo"): "is what runs this test, and the demo has a test of its own",
    ("docs/how-to/backends.md", "pip install"): "needs a package index",
    ("docs/how-to/mediapipe.md", "python -m venv"): "needs a package index",
    ("docs/how-to/mediapipe.md", "from mediapipe"): "MediaPipe and TensorFlow need different versions of a package",
    ("docs/how-to/scaling.md", "export TF_CONFIG"): "needs four machines; tests/test_strategy.py has two processes",
    ("docs/how-to/scaling.md", "ctxrep prepare"): "needs a Flink cluster",
    ("docs/how-to/scaling.md", "ctxrep predict"): "needs clusters; tests/recipes/test_predicting_parts.py runs it",
    ("docs/how-to/scaling.md", "import json\n\nfrom pyspark"): "runs in tests/recipes/test_predicting_parts.py",
    ("docs/how-to/scaling.md", "import json\n\nimport apache_beam"): "runs in tests/recipes/test_predicting_parts.py",
    ("docs/how-to/serving.md", "ctxrep serve"): "serves until it is interrupted; tests/recipes/test_serving.py asks it",
    ("docs/how-to/serving.md", "docker run"): "needs a server",
    ("docs/how-to/serving.md", "curl"): "needs a server",
    ("docs/how-to/serving.md", "python -c"): "runs in tests/export/test_kit.py",
    ("docs/how-to/serving.md", "from keras_ctxrep.inference import client"): "needs a server",
    ("docs/how-to/swift.md", "import json"): "runs in tests/tflite/test_swift.py, with a model of its own",
    ("docs/how-to/try.md", "ctxrep try"): "serves until it is interrupted; tests/recipes/test_trying.py asks it",
    ("docs/how-to/try.md", "curl"): "needs a server",
    ("docs/how-to/web.md", "npm install"): "needs a package index",
    ("docs/explanation/results/pretraining.md", "ctxrep pretrain elmo"): "takes hours, on other corpora",
    ("docs/explanation/results/vectors.md", "ctxrep distill MINILM"): "takes hours, on other corpora",
    ("docs/explanation/results/vectors.md", "ctxrep distill TEACHER"): "takes a large teacher and other corpora",
    ("docs/explanation/results/pretraining.md", "ctxrep pretrain bert"): "takes hours, on other corpora",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page, (language, code), in order."""
    return BLOCK.findall(PAGES[page])


def reason(page: str, code: str) -> tuple[str, str] | None:
    """The key of `REASONS` for a block that does not run."""
    return next((key for key in REASONS if key[0] == page and code.startswith(key[1])), None)


def code_blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page that run."""
    return [(language, code) for language, code in blocks(page) if language in CODE and reason(page, code) is None]


# ------------------------------------------------------------------------------------------------------- docstrings

WITH_EXAMPLES = sorted(name for name, source in SOURCES.items() if re.search(r"^ *>>> ", source, re.MULTILINE))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0 and result.attempted > 0


def test_there_are_examples():
    assert len(WITH_EXAMPLES) > 70


@pytest.mark.parametrize("name", [name for name in SOURCES if ".layers." in name or ".models." in name])
def test_every_public_class_and_function_has_an_example(name):
    module = importlib.import_module(name)
    for attribute, value in vars(module).items():
        if not attribute.startswith("_") and getattr(value, "__module__", None) == name and attribute != "Config":
            assert ">>>" in (value.__doc__ or ""), f"{name}.{attribute} has no example"


def test_the_reference_has_every_public_name():
    """`make docs` documents what is in `__all__` of the modules on the pages of docs/reference/api."""
    reference = [page for path, page in PAGES.items() if path.startswith("docs/reference/api/")]
    modules = [name for page in reference for name in re.findall(REFERENCE, page)]
    assert len(set(modules)) == len(modules) and set(modules) <= SOURCES.keys()
    for module in SOURCES.keys() - set(modules):
        package = module.rpartition(".")[0]
        missing = public(module) - (public(package) if package in modules else set())
        assert not missing, f"{module}: {sorted(missing)} are on no page of docs/reference/api"


def public(module: str) -> set[str]:
    """The names in the `__all__` of a module, if it has one."""
    for node in ast.parse(SOURCES[module]).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


# ------------------------------------------------------------------------------------------------------------ pages


def test_every_block_names_its_language():
    """Else a block of code could be left out by mistake; `text` is output."""
    for page in PAGES:
        for language, code in blocks(page):
            assert language, f"{page}: {code[:80]}"


def test_every_reason_is_of_a_block():
    assert {reason(page, code) for page in PAGES for _, code in blocks(page)} - {None} == REASONS.keys()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)", BLOCK.sub("", PAGES[page])):
        assert target.startswith("http") or (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


@pytest.fixture(scope="module")
def files(models, tmp_path_factory):
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    sources = {
        "corpus.txt": (200, ("text.txt", "heldout.txt")),  # 8 examples of 256 pieces
        "test.tsv": (60, ("train.tsv", "dev.tsv", "test.tsv")),
    }
    for source, (count, names) in sources.items():
        lines = (models / source).read_text(encoding="utf-8").splitlines(keepends=True)[:count]
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
    (folder / "spelling.tsv").write_text("text\ttarget\n" + "cat\tK AE T\ntack\tT AE K\n" * 20)
    (folder / "bank.tsv").write_text("text\tlabel\nthe river bank\tshore\na bank with money\tmoney\n")
    (folder / "vectors.txt").write_text("the 0.1 0.2\nrain 0.3 0.4\nviolin -0.1 0.5\n")
    (folder / "tagged.txt").write_text("rain\tNN\nthe\tDT\nsoup\tNN\nis\tVBZ\nwas\tVBD\ngood\tJJ\n")
    (folder / "questions.txt").write_text(": weather\nrain storm bread butter\n")
    (folder / "wordsim.txt").write_text("rain\tstorm\t8.0\nrain\tbread\t1.0\nsoup\tpiano\t0.5\n")
    for name, family, source in (
        ("lm", "elmo", "pretrained"),
        ("bert", "bert", "pretrained"),
        ("encoder", "bert", "pretrained"),
        ("classifier", "bert", "classifier"),
    ):
        shutil.copytree(models / family / source, folder / name)
    allennlp.write(folder / "published", *saving.load_encoder(models / "elmo" / "pretrained"))
    huggingface.write(folder / "hf_folder", *saving.load_encoder(models / "bert" / "pretrained"))
    return folder


LONG = {
    f"docs/how-to/{name}.md" for name in ("answers", "elmo", "language_models", "translate", "web")
}  # half a minute


@pytest.mark.slow  # of one page alone: up to dozens of commands, half of which train
@pytest.mark.usefixtures("tflite_in_process")
@pytest.mark.filterwarnings("ignore:bert has no mlm_transform")  # as the page says
@pytest.mark.filterwarnings("ignore:.*longer texts are cut")  # of a file of few lengths
@pytest.mark.filterwarnings("ignore:malformed rows left out")  # as the page says
@pytest.mark.filterwarnings("ignore:.*it has no trained scalar mix")  # `--layers mix` of a language model
@pytest.mark.filterwarnings("ignore:.* is converted for LiteRT, once")  # as the page says
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.release if page in LONG else ()) for page in PAGES if code_blocks(page)],
)
def test_page(page, files, tmp_path, monkeypatch, capsys):
    """All blocks in order, commands and Python, with short trainings instead of long ones."""
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "files"))
    namespace: dict = {}
    for language, code in code_blocks(page):
        if language == "python":
            exec(compile(code, page, "exec"), namespace)
            continue
        for line in code.replace("\\\n", " ").splitlines():
            assert main(command(line, page)) == 0, (line, capsys.readouterr().err)
    if page == "docs/tutorials/own_data.md":
        header, first, *_ = Path("answered.tsv").read_text(encoding="utf-8").splitlines()
        assert header.split("\t") == ["Ticket No", "Customer Message", "prediction", "score"]
        assert first.startswith("T1\tthe parcel is late\t")


def litert_library() -> Path | None:
    """LiteRT as a C library, of the wheel ai-edge-litert; None if there is none."""
    spec = importlib.util.find_spec("ai_edge_litert")
    path = None if spec is None or spec.origin is None else Path(spec.origin).with_name("libLiteRt.so")
    return path if path is not None and path.is_file() else None


@pytest.mark.trains
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(litert_library() is None, reason="ai-edge-litert has no libLiteRt.so")
@pytest.mark.usefixtures("tflite_in_process")
def test_the_program_in_cpp(tmp_path):
    """It gives the probabilities of the Python runtime, for short texts, cut ones and unknown words."""
    (code,) = (code for language, code in blocks("docs/how-to/other_languages.md") if language == "cpp")
    (tmp_path / "classify.cpp").write_text(code, encoding="utf-8")
    library, program = str(litert_library()), str(tmp_path / "classify")
    compiler = ["g++", "-std=c++17", "-Wall", "-Werror", str(tmp_path / "classify.cpp"), "-o", program, library]
    subprocess.run([*compiler, f"-Wl,-rpath,{Path(library).parent}"], check=True)
    folder = tiny.save(tmp_path / "model", tiny.bundle("classify"))
    path = quantize.convert(folder, tmp_path / "model.tflite", lengths=(8, 16))
    with zipfile.ZipFile(path) as archive:
        archive.extract("vocab.txt", tmp_path)
    predictor = runtime.load(path)
    for text in ("the cat fell.", "She, the RAIN: (abc) unseen!", "the cat fell " * 10):
        run = subprocess.run([program, path, tmp_path / "vocab.txt", text], check=True, capture_output=True, text=True)
        name, *logits = run.stdout.split()
        powers = np.exp([float(value) for value in logits])
        assert name == "logits"
        np.testing.assert_allclose(powers / powers.sum(), [*predictor([text])[0]["probabilities"].values()], atol=2e-6)


def command(line: str, page: str) -> list[str]:
    """The arguments of a line of shell, with two steps of small batches; what is piped to it comes from a file.

    The published encoders are those of the pages in `PUBLISHED_ON`; the other pages' commands take a tiny one.
    """
    piped, _, called = line.split(" #")[0].rpartition("|")
    name, *argv = shlex.split(called)
    assert name == "ctxrep", line
    if page not in PUBLISHED_ON:
        argv = ["encoder" if argument in PUBLISHED else argument for argument in argv]
    for flag in {"--minutes", "--epochs"} & {*argv}:
        at = argv.index(flag)
        argv[at : at + 2] = ["--steps", "60" if "translate" in argv else "2"]  # else a speller writes nothing
    if argv[0] in ("train", "pretrain", "distill"):
        argv.append("--overwrite")  # of the models with such names that `files` makes for other blocks
        argv += [] if {"--batch-size", "static"} & {*argv} else ["--batch-size", "8"]  # static: of thousands of words
    if piped:
        echo, text = shlex.split(piped)
        assert echo == "echo"
        Path("piped.txt").write_text(f"{text}\n")
        argv += ["--input", "piped.txt"]
    return argv
