"""The runtime in Java, compiled and run on a JDK, gives what the Python package gives."""

import hashlib
import json
import random
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import keras_ctxrep as ctx
from keras_ctxrep import saving, tasks
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures, WordPieceFeatures
from keras_ctxrep.text.pretraining import MARKERS
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep_tflite import quantize, runtime
from tests import golden_text, tiny
from tests.reference import character_data
from tests.tflite import test_web

ROOT = Path(__file__).parent.parent.parent
ANDROID = ROOT / "tflite/android"

pytestmark = pytest.mark.skipif(shutil.which("javac") is None, reason="javac, of a JDK, is not installed")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The folder of the compiled classes."""
    folder = tmp_path_factory.mktemp("classes")
    compile_java(folder, *ANDROID.glob("src/main/java/**/*.java"), *(ROOT / "tests/tflite/android").glob("**/*.java"))
    return folder


def compile_java(folder, *sources):
    options = ["-Xlint:all", "-Werror", "--release", "11", "-encoding", "UTF-8", "-cp", folder, "-d", folder]
    subprocess.run(["javac", *options, *sources], check=True)


@pytest.fixture(scope="module")
def run(compiled):
    """Runs the Java program with arguments, and returns what it prints, or with `start` the process."""

    def run(*arguments, start=False, fails=False, program="Golden") -> Any:
        program = f"org.keras_ctxrep.{program}"
        command = ["java", "-Xmx1g", "-Dstdout.encoding=UTF-8", "-cp", compiled, program, *arguments]
        if start:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
            return subprocess.Popen([*map(str, command)], **pipes)
        process = subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", errors="replace")
        assert (process.returncode != 0) == fails, process.stdout + process.stderr
        return process.stdout + process.stderr

    return run


@pytest.mark.trains
def test_golden_strings(run, golden_strings):
    printed = run("compare", golden_strings)
    assert printed.count(" 0 differences") == len(list(golden_strings.iterdir())) > 5


def test_roles(run, tmp_path):
    bundle = tiny.bundle("embed", max_length=8, roles={"query": "she: ", "passage": "the ", "": "a "})
    for name, data in bundle.files_as_bytes().items():
        (tmp_path / name).write_bytes(data)
    *printed, cosine, error = run("roles", tmp_path, "the cat", "").splitlines()
    rows = bundle.features.encode([f"{prefix}the cat" for prefix in ("she: ", "the ", "a ")])
    ids = bundle.features.collate(rows, length=8)["token_ids"]
    assert [json.loads(line) for line in printed] == [[row, [0] * 8] for row in ids.tolist()]
    query, passage = unit(ids[:2])
    assert float(cosine) == pytest.approx(query @ passage)
    assert re.fullmatch("role=title: this model has (query, passage|passage, query)", error)


@pytest.mark.trains
def test_subwords(run, golden_subwords):
    """Pieces of texts, and models over them for every kind of input."""
    assert min(compared_subwords(run, golden_subwords)) > 400
    assert run("compare", golden_subwords / "models").count(" 0 differences") == 8


def compared_subwords(run, folder):
    """How many texts were compared by each tokenizer, with no difference."""
    printed = run("subwords", folder / "pieces")
    counts = re.findall(r"^\w+: (\d+) texts, 0 differences$", printed, re.M)
    assert len(counts) == len(list((folder / "pieces").iterdir())) > 3, printed
    return [*map(int, counts)]


@pytest.mark.release
def test_subwords_of_many_texts(run, tmp_path):
    """10,000 texts of many scripts, here and in Node, if it is installed."""
    golden_text.write(tmp_path, golden_text.TEXTS, (*golden_text.TOKENIZERS, "odd_steps"))
    assert min(compared_subwords(run, tmp_path)) > 14_000
    if shutil.which("node"):
        assert min(test_web.compared_subwords(tmp_path)) > 16_000


@pytest.mark.trains
def test_texts_for_texts(run, golden_translation):
    printed = run("compare", golden_translation / "golden")
    assert re.fullmatch(r"model: [12]\d{3} values, 0 differences\n", printed)


@pytest.mark.trains
def test_texts_of_language_models(run, golden_generation):
    """One seed draws what it draws in Python, and texts go on as there."""
    assert re.search(r"^[12]\d{3} values, 0 differences$", run(golden_generation, program="GoldenGeneration"), re.M)


def test_litert_is_given_buffers_and_asked_for_some(run):
    """Of a stub: neither LiteRT's classes nor its network are here."""
    answers, steps, part = run("litert").splitlines()
    assert answers == "[a] [2.0, -4.0, 18.0] [0.0, 0.0, 2.0] [double]"
    assert steps == "[5.0, 0.0] [7.0, 10.0]"
    assert part == "[length_8] " + 3 * "[names/length_8]"


def test_the_bundles_of_several_models(run, tmp_path):
    several = {"names": tiny.bundle("tag"), "films": tiny.bundle("classify", labels=("bad", "good"))}
    bundles.write_several(tmp_path / "answers.tflite", b"model", several)
    for name, bundle in several.items():
        expected = f"{bundle.task} true {','.join(bundle.labels)}  [{', '.join(bundle.vocab)}]\n"
        assert run("bundle", tmp_path / "answers.tflite", name) == expected
    letters = golden_text.letters()
    several["roles"] = tiny.bundle("tag", "roberta", vocab=letters.pieces, tokenizer=letters.to_json())
    bundles.write_several(tmp_path / "answers.tflite", b"model", several)
    assert run("bundle", tmp_path / "answers.tflite", "roles").startswith("tag true")
    assert "no bundle other/ in this file" in run("bundle", tmp_path / "answers.tflite", "other")


def test_java_in_the_readme_compiles(compiled, tmp_path):
    blocks = re.findall(r"```java\n(.*?)```", (ANDROID / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    parameters = (
        "java.nio.file.Path path",
        "Model model, String text, String context",
        "Model model",
        "Model model, List<String> notes",
        "Bundle bundle, Runner runner",
    )
    methods = ""
    for name, given, block in zip(("open", "use", "translate", "search", "generate"), parameters, blocks, strict=True):
        methods += f"void {name}({given}) throws IOException {{{block}}}\n"
    packages = ("java.io.IOException", "java.nio.*", "java.nio.channels.*", "java.nio.file.StandardOpenOption")
    packages += ("java.util.Iterator", "java.util.List", "org.keras_ctxrep.*")
    imports = "".join(f"import {name};" for name in packages)
    (tmp_path / "Readme.java").write_text(f"{imports} class Readme {{{methods}}}", encoding="utf-8")
    compile_java(compiled, tmp_path / "Readme.java")


def test_the_command_of_the_readme_compiles_without_litert(tmp_path):
    (command,) = re.findall(r"```bash\n(.*?)```", (ANDROID / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    command = command.replace("-d classes", f"-d '{tmp_path}'")
    subprocess.run(["bash", "-ec", command], cwd=ROOT, check=True)
    classes = {path.stem for path in tmp_path.glob("**/*.class")}
    assert {"Model", "Runner", "Bundle"} <= classes and "LiteRtRunner" not in classes


def case(features, text):
    (row,) = features.encode([text], offsets=True)
    return {"text": text, "pair": None, "windows": [{"inputs": inputs(features, row), "offsets": row.offsets}]}


def inputs(features, row):
    return {name: array[0].tolist() for name, array in features.collate([row]).items()}


def write(folder, bundle, texts):
    folder.mkdir(parents=True)
    for name, data in bundle.files_as_bytes().items():
        (folder / name).write_bytes(data)
    lines = (json.dumps(case(bundle.features, text)) + "\n" for text in texts)
    (folder / "cases.jsonl").write_text("".join(lines))
    (folder / "answers.jsonl").write_text("")


def test_models_of_words(run, tmp_path):
    """ELMo over words or beside word vectors, word vectors alone, and windows of words."""
    texts = ["Ada, met İDA! The \u200bRAIN 中文 <UNK> </S>", "", " \u0301a ", "<S> the the the the the the the the the"]
    table = {"lowercase": True, "buckets": 0}
    fields = {"max_length": 6, **tasks.bundle_fields("regress")}
    bundles = {
        "words": Bundle("elmo", config={"words": 7}, vocab=("<S>", "</S>", "<UNK>", "the", "Ada", "中"), **fields),
        "static": Bundle("static", config=table, vocab=("<UNK>", "the", "ada", "i\u0307da", "rain"), **fields),
        "both": Bundle(
            "elmo", config={"max_characters": 7}, extra_embeddings=table, vocab=("<UNK>", "rain", "ada"), **fields
        ),
    }
    for name, bundle in bundles.items():
        write(tmp_path / name, bundle, texts)
    windows = tasks.bundle_fields("regress", windows="mean", stride=2)
    bundle = Bundle("elmo", config={"max_characters": 7}, max_length=4, **windows)
    rows = zip(texts, bundle.features.text_windows(texts, 2), strict=True)
    write(tmp_path / "windows", bundle, [])
    lines = [
        {"text": text, "windows": [{"inputs": inputs(bundle.features, row), "offsets": None} for row in own]}
        for text, own in rows
    ]
    (tmp_path / "windows/cases.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert run("compare", tmp_path).count(" 0 differences") == 4
    ngrams = Bundle("static", config=table | {"buckets": 9, "min_n": 2, "max_n": 3}, vocab=("<UNK>",), **fields)
    write(tmp_path / "ngrams/model", ngrams, [])
    assert "n-grams are not supported" in run("compare", tmp_path / "ngrams", fails=True)
    write(
        tmp_path / "apart/model", Bundle("static", config=table, vocab=("<UNK>",), stack={"kind": "esim"}, **fields), []
    )
    assert "the task network esim, which reads" in run("compare", tmp_path / "apart", fails=True)


@pytest.mark.release
def test_every_character(run, tmp_path):
    """Each code point behind a letter and before one, and mixtures of those that canonical ordering may move."""
    tables = character_data.tables()
    codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    codes += [*range(0x20000, 0x110000, 61), *range(0x2B800, 0x2B940), *range(0xE0000, 0xE0200)]
    texts = [" ".join(f"a{chr(c)}b" for c in codes[begin : begin + 64]) for begin in range(0, len(codes), 64)]
    order = [number for index, number in enumerate(tables["order"]) if index % 3 < 2]
    moved = [*character_data.codes(order), *[*character_data.codes(tables["decomposed"])][::7]]
    draw = random.Random(0)
    texts += ["".join(chr(draw.choice([*moved, 0x61, 0x41])) for _ in range(24)) for _ in range(3000)]
    changed = [*character_data.codes(tables["decomposed"]), *map(ord, "".join(map(chr, codes)).lower())]
    for lowercase, accents in ((True, True), (True, False), (False, True)):
        plain = WordPiece(SPECIAL_PIECES, lowercase, accents)
        letters = {*"ab", *map(chr, moved), *plain._tokenizer.normalizer.normalize_str(" ".join(map(chr, changed)))}
        letters = sorted(letter for letter in letters - {" "} if letter.strip())
        vocab = (*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters))
        fields = tasks.bundle_fields("classify")
        split = {"lowercase": lowercase, "strip_accents": accents}
        bundle = Bundle("bert", config={"heads": 1}, max_length=512, labels=("a", "b"), vocab=vocab, **split, **fields)
        assert isinstance(bundle.features, WordPieceFeatures)
        write(tmp_path / f"bert_{lowercase}_{accents}", bundle, texts)
    elmo = Bundle("elmo", config={"max_characters": 20}, max_length=128, **tasks.bundle_fields("regress"))
    assert isinstance(elmo.features, CharacterFeatures)
    write(tmp_path / "elmo", elmo, texts)
    assert run("compare", tmp_path).count(" 0 differences") == 4


def test_the_characters_are_those_of_the_tables():
    assert character_data.FILE.read_text(encoding="ascii") == character_data.java()


def test_the_bundle_of_a_file(run, tmp_path):
    model, path = b"TFL3" * 1000, tmp_path / "a.tflite"
    vocab = (*SPECIAL_PIECES, "a")
    bundle = Bundle("bert", "classify", {}, 8, ("no", "yes"), vocab=vocab, card="A card.")
    for digest, matches in ((hashlib.sha256(model).hexdigest(), "true"), ("0" * 64, "false")):
        path.write_bytes(model)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
            for name, data in bundle.files_as_bytes({"model.tflite": digest}).items():
                archive.writestr(zipfile.ZipInfo(name), data)
        expected = f"classify {matches} no,yes A card. [{', '.join(vocab)}]"
        assert run("bundle", path).strip() == expected
    path.write_bytes(path.read_bytes()[:-30])
    assert "no bundle in this file" in run("bundle", path)
    path.write_bytes(model)
    assert "no bundle in this file" in run("bundle", path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", "{}" * 100)
    assert "compressed" in run("bundle", path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", '{"format": 3}')
    assert "its format is not 2" in run("bundle", path)


def served(process, file, queries):
    """The answers of the Java program, which asks this process to run the signatures of the file."""
    interpreter = Interpreter(model_path=str(file))
    runners = {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}

    def outputs(question):
        if (kind := question.get("names")) == "signatures":
            return [*runners]
        runner = runners[question["signature"]]
        if kind:
            return [*(runner.get_input_details() if kind == "inputs" else runner.get_output_details())]
        details = runner.get_input_details()
        given = {
            name: np.array(values or np.zeros(details[name]["shape"]), details[name]["dtype"])
            for name, values in question["inputs"].items()
        }
        results = runner(**{name: values.reshape(details[name]["shape"]) for name, values in given.items()})
        return {name: values.tolist() for name, values in results.items()}

    def send(value):
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()

    send(outputs(json.loads(process.stdout.readline())))  # the names of the signatures
    for query in queries:
        send(query)
        while "signature" in (line := json.loads(process.stdout.readline())):
            send(outputs(line))
        yield line


TEXT = "😀 She a cat. 中 the rain fell, the cat fell. She fell."
WORDS = ["😀", "She", "cats", "", "fell", "\u200b", "中中", "."]
QUERIES: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": TEXT}, {"text": "a " * 60}, {"text": "cat"}, {"text": " "}, {"text": "\ud800 x"}],
    "multilabel": [{"text": TEXT, "pair": "the cats"}, {"text": "", "pair": ""}, {"text": "cat " * 30, "pair": TEXT}],
    "regress": [{"text": TEXT}],
    "embed": [{"text": TEXT}],
    "tag": [{"text": TEXT}, {"words": WORDS}, {"words": WORDS * 8}, {"text": "中" * 50}],
    "answer": [{"text": "fell?", "pair": TEXT * 4}, {"text": "", "pair": ""}, {"text": TEXT * 3, "pair": "the cat"}],
    "semantic_roles": [
        {"text": TEXT, "marks": [[18, 22]]},
        {"words": WORDS, "marks": [[4, 5]]},
        {"words": WORDS * 8, "marks": [[60, 61]]},
    ],
    "coreference": [
        {"text": TEXT, "marks": [[45, 48], [2, 5], [8, 11]]},
        {"text": TEXT * 3, "marks": [[120, 123], [0, 0], [8, 11]]},
    ],
}


@pytest.mark.slow
@pytest.mark.usefixtures("tflite_in_process")
@pytest.mark.parametrize("task", QUERIES)
def test_a_whole_file(run, tiny_model, tmp_path, task):
    """Java prepares, chooses signatures and decodes; LiteRT runs them here, since no LiteRT for a JDK is installed."""
    saving.save(tmp_path, *tiny_model(task, pair=task in ("multilabel", "answer")))
    compare_file(run, quantize.convert(tmp_path, tmp_path / "m.tflite", lengths=(8, 16, 40)), task)


@pytest.mark.slow
@pytest.mark.usefixtures("tflite_in_process")
def test_a_whole_file_of_subwords(run, tmp_path):
    subwords = golden_text.unigram()
    text = {"vocab": subwords.pieces, "tokenizer": subwords.to_json(), "max_length": 40}
    tiny.save(tmp_path, tiny.bundle("tag", "roberta", **text))
    compare_file(run, quantize.convert(tmp_path, tmp_path / "m.tflite", lengths=(8, 40)), "tag")


def compare_file(run, file, task):
    """Java's answers of a file are those of the runtime in Python."""
    queries = QUERIES[task]
    texts, pairs = (
        [query["words"] if "words" in query else query["text"] for query in queries],
        [query.get("pair") for query in queries],
    )
    marks = [query["marks"] for query in queries] if "marks" in queries[0] else None
    expected = runtime.load(file)(texts, pairs if pairs[0] is not None else None, marks)
    with run("serve", file, start=True) as process:
        answers = [*served(process, file, queries)]
        process.stdin.close()
        assert process.wait(60) == 0
    for query, answer, reference in zip(queries, answers, expected, strict=True):
        if "error" in reference:  # whose other keys are methods that throw
            reference = {"error": reference["error"]}
        assert_near(answer, reference, query)


@pytest.mark.slow
@pytest.mark.usefixtures("tflite_in_process")
def test_a_whole_language_model(run, tmp_path):
    """Java reads prompts and draws; LiteRT runs the step here."""
    bundle = Bundle("lm", "causal_language_model", {"units": "characters", "width": 16}, 16, vocab=(*MARKERS, *"abc d"))
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(np.random.default_rng(1).normal(0, 0.5, weight.shape))
    saving.save(tmp_path / "lm", model, bundle)
    file = quantize.convert(tmp_path / "lm", tmp_path / "lm.tflite")
    queries = [{"prompt": "a bad cab", "seed": 3}, {"prompt": "", "seed": 2**59}, {"prompt": "a\n", "seed": 9}]
    with run("write", file, start=True) as process:
        texts = [*served(process, file, queries)]
        process.stdin.close()
        assert process.wait(60) == 0
    for query, answer in zip(queries, texts, strict=True):
        expected = ctx.load(file).generate([query["prompt"]], length=20, seed=query["seed"])
        assert [answer["text"]] == expected and len(set(answer["text"])) > 2


def assert_near(answer, reference, source):
    assert type(answer) is type(reference) or isinstance(reference, float), (answer, reference, source)
    if isinstance(reference, dict):
        assert answer.keys() == reference.keys(), (answer, reference, source)
        for name in reference:
            assert_near(answer[name], reference[name], source)
    elif isinstance(reference, list):
        assert len(answer) == len(reference), (answer, reference, source)
        for own, other in zip(answer, reference, strict=True):
            assert_near(own, other, source)
    elif isinstance(reference, float):
        assert answer == pytest.approx(reference, abs=1e-6), source
    else:
        assert answer == reference, source
