"""GLUE and tables of one's own: layouts of the sets, resumed cells, the table, submissions, what is refused."""

import json
import zipfile

import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.recipes import benchmarking
from keras_ctxrep.recipes.benchmarking import Cell, results_table
from keras_ctxrep.recipes.glue_sets import SETS, located
from tests import tiny

MNLI = "index\tsentence1\tsentence2\tgold_label\n"
PARAPHRASES = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
FILES = {  # of the original distributions: a header, and columns that are not read
    "CoLA/train.tsv": "gj04\t1\t\tShe fell.\ncj99\t0\t*\tFell she.\n" * 4,
    "CoLA/dev.tsv": "gj04\t1\t\tRain fell.\ncj99\t0\t*\tFell rain.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tThe cat fell.\n",
    "sst2_glue/train.tsv": "sentence\tlabel\nthe cat \t1\nrain \t0\n" * 1 + "a \t1\nb \t0\n" * 4,
    "sst2_glue/dev.tsv": "sentence\tlabel\nthe cat \t1\nrain \t0\n",
    "sst2_glue/test.tsv": "index\tsentence\n0\tshe\n1\train\n2\ta\n",
    "mrpc/msr_paraphrase_train.txt": f'{PARAPHRASES}1\t1\t2\tThe "cat".\tthe cat\n0\t3\t4\ta\tb\n',
    "mrpc/msr_paraphrase_test.txt": f"{PARAPHRASES}1\t1\t2\tshe\tShe\n",
    "STS-B/train.tsv": "index\tsentence1\tsentence2\tscore\n0\tthe cat\tcat\t4.5\n1\ta\tb\t0.0\n",
    "STS-B/dev.tsv": "index\tsentence1\tsentence2\tscore\n0\tshe\tShe\t5.0\n1\ta\tc\t1\n",
    "STS-B/test.tsv": "index\tsentence1\tsentence2\n0\tshe\train\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta b\tb a\t1\n1\t3\t4\ta\tc\t0\n",
    "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tc\tc\t1\n",
    "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tc\td\n",
    "MNLI/train.tsv": MNLI + "0\ta b\ta\tentailment\n1\ta\tb\tneutral\n2\tb\tc\tcontradiction\n" * 3,
    "MNLI/dev_matched.tsv": MNLI + "0\ta b\tb\tentailment\n1\ta b\tb\t-\n",
    "MNLI/dev_mismatched.tsv": MNLI + "0\tshe\train\tneutral\n1\tc\tc\tentailment\n",
    "MNLI/test_matched.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n",
    "MNLI/test_mismatched.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n1\ta\tc\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tthe cat\tcat\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tb\tb\tentailment\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tb\tb\tentailment\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n1\tc\td\t0\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tb\tb\t1\n",
    "yahoo_answers_csv/train.csv": '"1","a ""b""?","more","c, d"\n"10","she","","rain"\n',
    "yahoo_answers_csv/test.csv": '"1","a","b","c"\n',
}
RUN = {"steps": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("encoders") / "bert", tiny.bundle("embed"))


@pytest.mark.parametrize(
    ("name", "first", "dev", "tests"),
    [
        ("CoLA", ("She fell.", "1", None), {"dev": 2}, {"CoLA": "The cat fell."}),
        ("SST-2", ("the cat ", "1", None), {"dev": 2}, {"SST-2": "she"}),
        ("MRPC", ('The "cat".', "1", "the cat"), {"test": 1}, {}),
        ("STS-B", ("the cat", 4.5, "cat"), {"dev": 2}, {"STS-B": "she"}),
        ("QQP", ("a b", "1", "b a"), {"dev": 1}, {"QQP": "c"}),
        (
            "MNLI",
            ("a b", "entailment", "a"),
            {"matched": 1, "mismatched": 2},
            {"MNLI-m": "a", "MNLI-mm": "a", "AX": "the cat"},
        ),
        ("QNLI", ("a", "entailment", "b"), {"dev": 1}, {}),
        ("RTE", ("a", "entailment", "b"), {"dev": 1}, {}),
        ("WNLI", ("a", "1", "b"), {"dev": 1}, {}),
        ("Yahoo", ('a "b"?', "1", "c, d"), {"test": 1}, {}),
    ],
)
def test_the_original_files_of_every_set(data, name, first, dev, tests):
    rows = located(SETS[name], data)
    example = next(rows.examples(rows.train))
    assert (example.text, example.label, example.pair) == first
    assert {part: len([*rows.examples(file)]) for part, file in rows.dev.items()} == dev
    assert {part: next(rows.examples(file, labelled=False)).text for part, file in rows.test.items()} == tests
    assert rows.positive == ("1" if name in ("MRPC", "QQP") else None)


def test_rows_are_drawn_once_for_all_seeds(data):
    rows = located(SETS["SST-2"], data)
    drawn = [rows.training(3) for _ in range(2)]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 3
    assert len(rows.training(300)) == 10


@pytest.mark.trains
def test_cells_are_resumed_and_repeated_to_the_digit(data, encoder, tmp_path, power_cut):
    lines = []
    given = {"sets": ["sst-2", "MNLI"], "seeds": 2, "announce": lines.append} | RUN
    with power_cut(1):  # in the first run
        recipes.glue(data, encoder, tmp_path / "cut", **given)
    cells = recipes.glue(data, encoder, tmp_path / "cut", **given)
    whole = recipes.glue(data, encoder, tmp_path / "whole", **given)
    assert [(cell.set, cell.seed) for cell in cells] == [("SST-2", 0), ("SST-2", 1), ("MNLI", 0), ("MNLI", 1)]
    assert [cell.figures for cell in cells] == [cell.figures for cell in whole]
    assert cells[2].scored == {"matched": 1, "mismatched": 2} and cells[2].rows == 9
    weights = [saving.load(tmp_path / run / "SST-2/seed-1")[0].get_weights() for run in ("cut", "whole")]
    assert all((a == b).all() for a, b in zip(*weights, strict=True))

    lines.clear()
    assert recipes.glue(data, encoder, tmp_path / "cut", **given) == cells
    assert len(lines) == 4 and all(line.endswith("(finished before)") for line in lines)
    written = json.loads((tmp_path / "cut/glue.json").read_text())
    assert [Cell(**cell) for cell in written] == cells
    log = (tmp_path / "cut/MNLI/seed-1/log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == 2 and (tmp_path / "cut/MNLI/seed-1/run.json").exists()

    with zipfile.ZipFile(tmp_path / "cut/submission.zip") as archive:
        files = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert {name: len(lines) for name, lines in files.items()} == {
        "AX.tsv": 2, "MNLI-m.tsv": 2, "MNLI-mm.tsv": 3, "SST-2.tsv": 4
    }  # fmt: skip
    assert files["SST-2.tsv"][0] == "index\tprediction" and files["SST-2.tsv"][1][:2] == "0\t"
    assert files["AX.tsv"][1].split("\t")[1] in ("entailment", "neutral", "contradiction")

    # one cell by the command of its row, in the same folder: nothing is trained, and the table keeps the others
    words = cells[1].command.split()[1:]
    main.main(words)
    assert len(json.loads((tmp_path / "cut/glue.json").read_text())) == 4
    assert main.main([*words, "--learning-rate", "0.5"]) == 1  # another run in its folder


@pytest.mark.trains
def test_a_table_of_ones_own(data, encoder, tmp_path, capsys):
    (tmp_path / "sets.yaml").write_text(
        "films:\n  train: sst2_glue/train.tsv\n  dev: sst2_glue/dev.tsv\n  test: sst2_glue/test.tsv\n"
        "  figures: [f1, accuracy]\n  positive: 0\n"
        "likeness:\n  task: regress\n  train: STS-B/train.tsv\n  dev: STS-B/dev.tsv\n"
    )
    arguments = ["--data", str(data), "--encoder", str(encoder), "--steps", "1", "--batch-size", "2"]
    main.main(["glue", *arguments, "--table", str(tmp_path / "sets.yaml"), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "films" in printed and "likeness" in printed and "pearson" in printed and "average" not in printed
    assert (tmp_path / "out/submission/films.tsv").read_text().count("\n") == 4
    cell = json.loads((tmp_path / "out/glue.json").read_text())[0]
    assert list(cell["figures"]["dev"]) == ["f1", "accuracy"]
    assert saving.load(tmp_path / "out/films/seed-0")[1].settings["positive"] == "0"
    assert "<td>films</td>" in (tmp_path / "out/glue.html").read_text()


def test_the_average_is_that_of_the_leaderboard():
    """The mean of the sets' means; MNLI's two parts and MRPC's two figures count half each."""
    cells = [
        Cell(
            "MRPC",
            seed,
            {"dev": {"f1": 0.8 + seed / 10, "accuracy": 0.6}},
            9,
            {"dev": 4},
            1.0,
            f"run {seed}",
            str(seed),
        )
        for seed in (0, 1)
    ]
    cells.append(Cell("SST-2", 0, {"dev": {"accuracy": 0.5}}, 9, {"dev": 4}, 1.0, "run 2", "2"))
    lines = results_table(cells)
    assert lines[0][:6] == ["set", "figure", "mean", "std", "seed 0", "seed 1"]
    assert lines[1][:6] == ["MRPC", "f1", "85.0", "7.1", "80.0", "90.0"] and lines[1][-1] == "run 0"
    assert lines[3][:6] == ["SST-2", "accuracy", "50.0", "", "50.0", ""]
    assert lines[4][:3] == ["average of 2", "", "61.2"]  # ((85 + 60) / 2 + 50) / 2


def test_sets_that_an_encoder_does_not_read_are_left_out(data, tmp_path, monkeypatch):
    record = {"dev": {"accuracy": 1.0, "matthews": 1.0}, "history": [{"minutes": 0.0}], "identity": ""}
    monkeypatch.setattr(benchmarking, "train_once", lambda run, *_: run.out.mkdir(parents=True) or record)
    monkeypatch.setattr(benchmarking, "_submit", lambda *_: None)
    lines = []
    cells = recipes.glue(data, "words", tmp_path / "out", announce=lines.append)
    assert [cell.set for cell in cells] == ["CoLA", "SST-2"]
    assert "MRPC is left out: pairs of texts, and words reads one text; a BERT reads pairs" in lines


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sets": ["SST"]}, "sets='SST': one of CoLA, SST-2"),
        ({"seeds": 0}, "at least 1"),
        ({"rows": 0}, "at least 1"),
        ({"data": "empty"}, "no set of GLUE in it"),
        ({"data": "empty", "sets": ["RTE"]}, "the set RTE is not in it: RTE/train.tsv is needed"),
        ({"table": "a:\n  train: x\n"}, "a: no dev"),
        ({"table": "a:\n  train: x\n  dev: y\n  label: z\n"}, "'label' is none of columns, dev"),
        ({"table": "../a:\n  train: x\n  dev: y\n"}, "letters, digits, dots and dashes"),
        ({"table": "a:\n  train: x\n  dev: y\n  figures: [bleu]\n"}, "'bleu' is no figure of classify"),
        ({"table": "a: [\n"}, "not YAML"),
        ({"table": "- a\n"}, "a name for each set is needed"),
        ({"table": "a:\n  task: rank\n  train: x\n  dev: y\n"}, "task 'rank': one of"),
    ],
)
def test_what_is_refused(data, encoder, tmp_path, write, given, message):
    (tmp_path / "empty").mkdir()
    if "table" in given:
        given = given | {"table": write("sets.yaml", given["table"])}
    if "data" in given:
        given = given | {"data": tmp_path / given["data"]}
    with pytest.raises(ValueError, match=message):
        recipes.glue(**{"data": data, "encoder": encoder, "out": tmp_path / "out"} | given)
    assert not (tmp_path / "out").exists()
