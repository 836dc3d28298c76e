import json
import os
import signal
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from tests import tiny


def ctxrep(*args, **kwargs):
    """The command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "keras_ctxrep.cli", *map(str, args)], capture_output=True, **kwargs)


@pytest.fixture(scope="module")
def tflite(models, tflite_in_process, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "m.tflite"
    assert main.main(["tflite", str(models / "bert" / "classifier"), "--out", str(out), "--lengths", "16,32"]) == 0
    return out


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main([name, "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"usage: ctxrep {name}") and "None" not in text
    if name == "pretrain":
        assert "bert a BERT, by masked words and next sentences" in text and "--steps" not in text
    if name == "train":
        for part in (
            "multilabel any number of labels",
            "--no-freeze",
            "text=sentence label=gold",
            "(default: classify)",
        ):
            assert part in text


OF_FAMILIES = {  # flags that no other family has, and defaults
    "elmo": ({"--read-words"}, ("(default: 8000)", "(default: 2)", "adagrad 0.2", "(default: 32)")),
    "bert": ({"--next-sentence", "--whole-words", "--recompute"}, ("(default: 8000)", "(default: 30, unless --steps")),
    "lm": ({"--units"}, ("tokens of running text per step (default: 35)",)),
    "static": ({"--subwords", "--window", "--epochs"}, ("(default: all)", "(default: 5)", "(default: skipgram)")),
}


@pytest.mark.parametrize("family", OF_FAMILIES)
def test_help_of_a_family_has_its_own_options_alone(family, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["pretrain", family, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and text.startswith(f"usage: ctxrep pretrain {family}")
    for name, (flags, defaults) in OF_FAMILIES.items():
        assert all((f" {flag}" in text) == (name == family) for flag in flags)
        if name == family:
            assert all(default in text for default in defaults)
    assert not any(f"{name}: " in text for name in ("ELMo", "BERT", "lm", "static"))


def test_help_of_prepare_has_the_options_of_a_family(capsys):
    for family, flag, other in (("elmo", "--min-count", "--copies"), ("bert", "--max-length", "--min-count")):
        with pytest.raises(SystemExit):
            main.main(["prepare", family, "--help"])
        text = capsys.readouterr().out
        assert flag in text and other not in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("pretrain bert --window 3", "pretrain bert: leave out --window: it is for static, not for bert"),
        ("pretrain static --unroll=3", "pretrain static: leave out --unroll: it is for elmo and lm, not for static"),
        ("pretrain elmo --no-next-sentence", "leave out --next-sentence: it is for bert, not for elmo"),
        ("prepare elmo --copies 2", "prepare elmo: leave out --copies: it is for bert, not for elmo"),
        ("pretrain bert --corpsu b", "pretrain bert: unrecognized arguments: --corpsu b: did you mean --corpus?"),
        ("pretrain", "ctxrep pretrain: the following arguments are required: FAMILY"),
        ("pretrain --steps 3", "ctxrep pretrain: the following arguments are required: FAMILY"),
        (
            "pretrain --steps 3 bret",
            "invalid choice: 'bret' (choose from 'elmo', 'bert', 'lm', 'static'): did you mean",
        ),
    ],
)
def test_an_option_of_another_family_is_named(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main([*argv.split(), "--out", "lm", "--corpus", "a"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        "pretrain bert --corpus a b --out lm --steps 3 --no-next-sentence",
        "pretrain --out lm bert --corpus a b --steps 3 --no-next-sentence",
        "pretrain --debug --corpus a b --no-next-sentence --out lm --steps=3 bert",
        "pretrain --corpus a b --out=lm --steps 3 bert --no-next-sentence",
    ],
)
def test_the_family_may_stand_among_the_flags(argv):
    """As it always could; a folder that is called like a family is no family."""
    args = main._parse(argv.split())
    assert (args.family, args.corpus, args.out, args.steps) == ("bert", ["a", "b"], "lm", 3)
    assert args.next_sentence is False and args.models == ["init"] and "corpus" in args.files


def test_help_is_quick_and_needs_no_tensorflow():
    """Half a second of the processor at most, and no module but those of words; the best of three runs."""
    code = (
        "import sys, time; from keras_ctxrep.cli.main import COMMANDS, parser\n"
        "parser(None)[0].format_help(); used = time.process_time()\n"
        "for name in COMMANDS: parser(name)[0].format_help()\n"
        "print(used, *{'keras', 'tensorflow', 'matplotlib', 'h5py', 'tqdm', 'yaml'} & {*sys.modules})"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(3)]
    assert all(len(run.split()) == 1 for run in runs) and min(map(float, runs)) < 0.5


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["pretrain", "elmo"],
        ["pretrain", "gpt", "--corpus", "a", "--out", "b"],
        ["pretrain", "elmo", "--corpus", "a", "--out", "b", "--steps", "-3"],
        ["convert", "a", "--out", "b"],
        ["convert", "a", "--out", "b", "--from", "allennlp", "--to", "allennlp"],
        ["convert", "a", "--out", "b", "--from", "word2vec"],
        ["embed", "a", "--input", "b", "--out", "c.npz", "--batch-size", "0"],
        ["train", "--data", "a", "--dev", "b", "--encoder", "c", "--out", "d", "--task", "rank"],
        ["train", "--data", "a", "--dev", "b", "--encoder", "c", "--out", "d", "--columns", "text"],
        ["train", "--data", "a", "--dev", "b", "--encoder", "c", "--out", "d", "--patience", "0"],
        ["tflite", "a", "--out", "b.tflite", "--lengths", "8,x"],
        ["tflite", "a", "--out", "b.tflite", "--quantize", "int3"],
        ["predict", ".", "--engine", "keras", "--threads", "2"],
        ["predict", "a.tflite", "--threads", "0"],
        ["predict", "a.tflite", "--processes", "2"],
        ["predict", "a.tflite", "--runner", "direct", "--data", "tfds:b:c", "--out", "d"],
        ["predict", "a.tflite", "--runner", "direct", "--format", "tsv", "--out", "c"],
    ],
)
def test_wrong_usage_is_exit_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(argv)
    assert stop.value.code == 2
    assert "ctxrep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train --batch_size 4", "ctxrep train: unrecognized arguments: --batch_size 4: did you mean --batch-size?"),
        ("train --task classification", "did you mean classify?"),
        ("trian", "did you mean train?"),
        (
            "train",
            "ctxrep train: the following arguments are required: --data, --encoder, --out; see ctxrep train --help",
        ),
    ],
)
def test_wrong_usage_is_one_line_with_what_was_meant(argv, message, capsys):
    """The usage, of twenty lines and more, is for --help."""
    required = "--data a --out b --encoder c" if " " in argv else ""
    with pytest.raises(SystemExit):
        main.main([*argv.split(), *required.split()])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        "train --data {folder}/none.tsv --encoder words --out {folder}/m",
        "train --data {folder}/a.tsv --encoder bert_5 --out {folder}/m",
        "pretrain bert --corpus {folder}/a.tsv {folder}/none.txt --out {folder}/m",
        "export none --out {folder}/m",
    ],
)
def test_what_is_missing_is_said_before_tensorflow_is_loaded(argv, tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\n")
    code = "import sys; from keras_ctxrep.cli.main import main; print(main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    command = [sys.executable, "-c", code, *argv.format(folder=tmp_path).split()]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout.split() == ["1", "False"] and process.stderr.count("\n") == 1, process.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("score {tmp} --data {tmp}/bad.tsv", "no bundle.json in it"),
        ("score {models}/bert/classifier --data {tmp}/missing.tsv", "ctxrep: --data /"),
        (
            "score {models}/bert/pretrained --data {tmp}/pair.tsv",
            "pair.tsv: rows of a table, and a pretrainer is scored",
        ),
        ("score {models}/bert/classifier --data {tmp}/pair.tsv --whole-words", "whole_words and max_length are of"),
        ("score {models}/bert/pretrained --data {models}/corpus.txt --max-length 9999", "max_length=9999: this model"),
        ("score {models}/bert/classifier --data {tmp}/bad.tsv", "bad.tsv:2: 1 fields where the header has 2"),
        ("score {models}/elmo/classifier --data {tmp}/pair.tsv", "pair.tsv:2: a pair of texts"),
        ("score {models}/elmo/classifier --data {tmp}/none.tsv", "none.tsv:3: no label"),
        ("pretrain bert --corpus {tmp}/latin1.txt --steps 1 --out {tmp}/o", "latin1.txt:2: not UTF-8"),
        ("pretrain bert --corpus {models}/corpus.txt --steps 1 --out {tmp}/o --size huge", "choose one of bert_2_64_2"),
        ("predict {tmp}/missing.tflite", "no such file"),
        ("predict {models}/elmo/pretrained", "a language_model answers nothing; fine-tune it"),
        ("embed {models}/bert/pretrained --input {models}/corpus.txt --out {tmp}/x.txt", "must end in .npz or .hdf5"),
        (
            "embed {models}/bert/pretrained --input {models}/corpus.txt --out {tmp}/x.npz --carry-state",
            "only a biLM carries a state and reads characters",
        ),
        (
            "embed {models}/bert/pretrained --input {models}/corpus.txt --out {tmp}/x.npz --cache {tmp}/bad.tsv",
            "only a biLM carries a state and reads characters",
        ),
        ("convert {models}/bert/pretrained --to allennlp --out {tmp}/o", "this format holds a biLM"),
        ("convert {models} --from allennlp --out {tmp}/o", "one weight file"),
        ("tflite {models}/bert/classifier --out {tmp}/x.bin", "must end in .tflite"),
        ("demo --out {models}", "not empty, and no earlier demo"),
    ],
)
def test_failures_are_one_line_and_exit_1(argv, message, models, tmp_path, capsys):
    (tmp_path / "bad.tsv").write_text("text\tlabel\nonly one\n")
    (tmp_path / "pair.tsv").write_text("text\tpair\tlabel\na\tb\tmusic\n")
    (tmp_path / "none.tsv").write_text("text\n\nx\n")
    (tmp_path / "latin1.txt").write_bytes("fine\ncaf\xe9\n".encode("latin-1"))
    assert main.main(argv.format(models=models, tmp=tmp_path).split()) == 1
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("ctxrep: ") and printed.err.count("\n") == 1
    assert "Traceback" not in printed.err


def test_an_error_in_a_graph_is_told_with_its_reason():
    def rows():
        yield [1.0]
        raise OSError("text.txt: Input/output error")

    data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((1,))).batch(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    with pytest.raises(tf.errors.OpError) as error:
        model.fit(data.map(lambda x: (x, x)), shuffle=False, verbose=0)
    assert main._message(error.value) == "TensorFlow: UnknownError: OSError: text.txt: Input/output error"


def test_predict_survives_every_line(tflite):
    lines = [
        b"the violin and the drum",
        b"",
        b"   ",
        b"the " * 2500,
        "\U0001f469\u200d\U0001f373 soup 😀".encode(),
        b"\x00\x01\x1b[31m rain \x7f",
        b"caf\xe9 soup \xff",
        b"snow\r",
        b"\xed\xa0\x80 storm",
        "Добрый день, сегодня хорошая погода, но завтра будет дождь".encode(),
    ]
    process = ctxrep("predict", tflite, input=b"\n".join(lines))
    assert process.returncode == 0, process.stderr.decode()
    answers = [json.loads(line) for line in process.stdout.decode().splitlines()]
    assert len(answers) == len(lines)
    assert [("error" in answer) for answer in answers] == [False, True, True] + [False] * 7
    assert answers[0]["label"] == "music" and abs(sum(answers[0]["probabilities"].values()) - 1) < 1e-6
    empty = {"label": None, "score": None, "probabilities": {}}
    assert answers[1] == {"error": "empty line"} | empty and answers[2] == {"error": "no words in this text"} | empty
    assert answers[3]["truncated"] is True
    assert "warning" in answers[6] and "warning" in answers[8] and "warning" not in answers[7]
    assert process.stderr.count(b"\n") == 1 and b"of the word pieces are [UNK]" in process.stderr


def test_predict_answers_each_line_at_once(tflite):
    """Like a conversation: the answer comes before the next line is sent."""
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_ctxrep.cli", "predict", str(tflite)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        for text, label in (("the violin", "music"), ("the snow storm", "weather")):
            process.stdin.write(text + "\n")
            assert json.loads(process.stdout.readline())["label"] == label
        process.stdin.close()
    assert process.returncode == 0


def test_predict_ends_quietly_when_nobody_reads(tflite, tmp_path):
    (tmp_path / "many.txt").write_text("snow\n" * 20000)
    command = f"{sys.executable} -m keras_ctxrep.cli predict {tflite} --input {tmp_path}/many.txt | head -n 1"
    process = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert json.loads(process.stdout)["label"] == "weather" and process.stderr == ""


def test_export_predict_and_compare(models, tflite, tmp_path, capsys):
    assert main.main(["export", str(models / "bert" / "classifier"), "--out", str(tmp_path / "served")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "served" / "1")
    process = ctxrep("predict", tmp_path / "served", input=b"the violin\n")
    assert (
        json.loads(process.stdout)["label"] == "music" and process.stderr == b""
    )  # TensorFlow's start-up noise is silenced
    arguments = [str(models / "bert" / "classifier"), str(tmp_path / "served"), str(tflite)]
    rows = (models / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:41]
    (tmp_path / "test.tsv").write_text("".join(rows), encoding="utf-8")
    assert main.main(["compare", *arguments, "--data", str(tmp_path / "test.tsv"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["agreement"] for row in rows] == [1, 1, 1]
    assert main.main(["compare", *arguments, "--data", str(tmp_path / "test.tsv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 13
        and lines[6].startswith("latency, p50 / p95")
        and lines[-1].startswith("agreement with Keras: the same label")
    )


def test_score(models, capsys):
    assert main.main(["score", str(models / "bert" / "classifier"), "--data", str(models / "test.tsv"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    examples = list(tasks.get("classify").read(models / "test.tsv"))
    answers = keras_engine.predictor(models / "bert" / "classifier")([example.text for example in examples])
    right = [answer["label"] == example.label for answer, example in zip(answers, examples, strict=True)]
    assert output["examples"] == 200 and output["accuracy"] == np.mean(right)
    for family, key in (("elmo", "perplexity"), ("bert", "mlm_accuracy")):
        assert main.main(["score", str(models / family / "pretrained"), "--data", str(models / "corpus.txt")]) == 0
        assert key.replace("_", " ") in capsys.readouterr().out


def test_perplexity_is_that_of_the_probabilities(models, tmp_path):
    """The figure of `score` against a sum over single sentences, without padding or batches."""
    from keras_ctxrep import recipes
    from keras_ctxrep.text.pretraining import Vocabulary, language_model_batch

    folder = models / "elmo" / "pretrained"
    sentences = (models / "corpus.txt").read_text(encoding="utf-8").splitlines()[:15]
    (tmp_path / "a.txt").write_text("\n".join(sentences), encoding="utf-8")
    model, bundle = saving.load(folder)
    total, count = {"forward": 0.0, "backward": 0.0}, 0
    for row in bundle.features.encode(sentences):
        inputs, targets, _ = language_model_batch(bundle.features, Vocabulary(bundle.vocab), [row])
        logits = model(inputs)
        count += len(row) + 1
        for direction in total:
            z = np.asarray(logits[f"{direction}_logits"], np.float64)[0]
            z -= np.log(np.exp(z).sum(-1, keepdims=True))
            total[direction] -= z[np.arange(len(z)), targets[f"{direction}_logits"][0]].sum()
    for batch_size in (1, 7):
        scores = recipes.score(folder, tmp_path / "a.txt", batch_size)
        for direction, value in total.items():
            np.testing.assert_allclose(scores[f"{direction}_perplexity"], np.exp(value / count), rtol=1e-4)


@pytest.mark.filterwarnings("always::UserWarning")  # which the command prints
@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_embed(family, models, tmp_path, capsys):
    folder = models / family / "pretrained"
    sentences = ["the violin is good.", "snow", "the soup, the bread!"]
    (tmp_path / "in.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    for name, layers in (
        ("all.npz", "all"),
        ("all.hdf5", "all"),
        ("top.npz", "top"),
        ("mix.npz", "mix"),
        ("mean.npz", "mean"),
    ):
        arguments = ["embed", folder, "--input", tmp_path / "in.txt", "--out", tmp_path / name, "--layers", layers]
        assert main.main(list(map(str, arguments))) == 0
        assert ("it has no trained scalar mix" in capsys.readouterr().err) == (layers == "mix")
    encoder, bundle = saving.load_encoder(folder)
    arrays = {name: tiny.arrays_of(tmp_path / f"{name}.npz") for name in ("all", "top", "mix", "mean")}
    assert list(arrays["all"]) == ["0", "1", "2"]
    with h5py.File(tmp_path / "all.hdf5") as file:
        for index, sentence in enumerate(sentences):
            expected = np.stack([layer[0] for layer in encoder(bundle.features([sentence]))["layers"]])
            if family == "bert":
                expected = expected[:, 1:-1]
            actual = {name: array[str(index)] for name, array in arrays.items()}
            np.testing.assert_allclose(actual["all"], expected, atol=1e-5)
            np.testing.assert_allclose(file[str(index)], expected, atol=1e-5)
            np.testing.assert_allclose(actual["top"], expected[-1], atol=1e-5)
            np.testing.assert_allclose(actual["mix"], expected.mean(0), atol=1e-5)
            np.testing.assert_allclose(actual["mean"], expected.mean((0, 1)), atol=1e-5)


def test_embed_of_words_gives_one_vector_each(models, tmp_path):
    (tmp_path / "in.txt").write_text("the violin 's bow\nunbelievably snow\n")
    for family in ("elmo", "bert"):
        out = tmp_path / f"{family}.npz"
        assert (
            main.main(f"embed {models}/{family}/classifier --input {tmp_path}/in.txt --out {out} --words".split()) == 0
        )
        assert [tiny.arrays_of(out)[name].shape[1] for name in ("0", "1")] == [4, 2]


def test_pretrain_and_train_from_files(models, tmp_path, capsys):
    lines = (models / "corpus.txt").read_text(encoding="utf-8").splitlines()[:80]
    (tmp_path / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    arguments = f"pretrain elmo --corpus {tmp_path}/corpus.txt --steps 4 --batch-size 8 --out {tmp_path}/lm"
    assert main.main(arguments.split()) == 0
    out = capsys.readouterr().out
    assert "forward perplexity" in out and json.loads((tmp_path / "lm" / "run.json").read_text())["history"]
    header, *rows = (models / "test.tsv").read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "dev.tsv").write_text("\n".join([header, *rows]), encoding="utf-8")
    with open(tmp_path / "train.jsonl", "w", encoding="utf-8") as file:
        for row in rows:
            text, label = row.split("\t")
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    arguments = (
        f"train --data {tmp_path}/train.jsonl --dev {tmp_path}/dev.tsv --encoder {tmp_path}/lm --out {tmp_path}/c"
    )
    assert main.main([*arguments.split(), "--steps", "4", "--freeze"]) == 0
    assert "accuracy" in capsys.readouterr().out
    before, after = (saving.load(tmp_path / name)[0].get_layer("forward_0").get_weights() for name in ("lm", "c"))
    assert all(np.array_equal(first, other) for first, other in zip(before, after, strict=True))  # frozen


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A BERT of random weights, and word vectors, which `convert` reads from a text file."""
    root = tmp_path_factory.mktemp("encoders")
    vocab = (*SPECIAL_PIECES, "red", "blue", "fish", "?")
    tiny.save(root / "bert", tiny.bundle("embed", vocab=vocab, sizes={"width": 16, "intermediate": 16}))
    (root / "glove.txt").write_text("red 1 0 0\nblue 0 1 0\nfish 0 0 1\n")
    argv = ["convert", str(root / "glove.txt"), "--from", "vectors", "--out", str(root / "vectors")]
    assert main.main(argv) == 0
    return root


def test_convert_of_vectors(encoders):
    encoder, bundle = saving.load(encoders / "vectors")
    assert (bundle.family, bundle.task, bundle.vocab[-3:]) == ("static", "embed", ("red", "blue", "fish"))
    vectors = np.asarray(encoder(bundle.features(["blue fish"]))["sequence"])
    np.testing.assert_allclose(vectors[0], [[0, 1, 0], [0, 0, 1]])


TASKS = {  # rows, columns, metric, a line to answer
    "classify": ("sentence\tgold\nred fish\tr\nblue fish\tb\n", "text=sentence label=gold", "accuracy", "red"),
    "pair": ("a\tb\tlabel\nred fish\tred\tr\nred\tblue\tb\n", "text=a pair=b", "accuracy", "red\tblue"),
    "multilabel": ("1\tred blue\tr,b\n2\tred\tr\n3\tfish\t\n", "text=2 label=3", "micro_f1", "red"),
    "regress": ("red fish\t1.0\nblue fish\t-1.0\n", "text=1 label=2", "pearson", "red"),
    "tag": ("red X B-R\nfish X O\n\nblue X B-B\ncat X O\n", "text=1 label=3", "span_f1", "red fish"),
    "answer": (
        '{"q": "red ?", "c": "blue red", "answers": [{"text": "red", "start": 5}]}\n' * 2,
        "question=q context=c",
        "f1",
        "red ?\tblue red",
    ),
}


SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in TASKS if task not in ("regress", "tag")]


@pytest.mark.trains
@pytest.mark.parametrize("task", [*SLOW, "regress", "tag"])
def test_every_task_from_a_file_to_answers(task, encoders, tmp_path, capsys):
    rows, columns, metric, line = TASKS[task]
    data = tmp_path / {"answer": "a.jsonl", "tag": "a.conll"}.get(task, "a.tsv")
    data.write_text(rows)
    encoder = encoders / ("bert" if task in ("pair", "answer") else "vectors")
    network = "" if encoder.name == "bert" else "--stack cnn --units 8"
    name = "classify" if task == "pair" else task
    argv = f"train --task {name} --data {data} --dev {data} --encoder {encoder} --out {tmp_path}/m --columns {columns}"
    rate = "--learning-rate 0.02 --dropout 0 --epochs 40 --batch-size 2 --patience 40"
    assert main.main([*argv.split(), *network.split(), *rate.split()]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("step ") and metric.replace("_", " ") in out[-1].replace("_", " ")
    assert out[-1].startswith(f"{tmp_path}/m: ") and f" on {data}: " in out[-1]
    assert main.main(f"score {tmp_path}/m --data {data} --columns {columns} --json".split()) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["metric"] == metric and output[metric] > 0.95 and len(output["interval"]) == 2
    assert main.main(f"score {tmp_path}/m --data {data} --columns {columns}".split()) == 0
    assert "95% of resamples: " in capsys.readouterr().out
    (tmp_path / "lines.txt").write_text(line + "\n")
    assert main.main(f"predict {tmp_path}/m --input {tmp_path}/lines.txt".split()) == 0
    answer = json.loads(capsys.readouterr().out)
    if task == "tag":
        assert [word["label"] for word in answer["words"]] == ["B-R", "O"] and len(answer["entities"]) == 1
    elif task == "regress":
        assert answer["value"] > 0.3
    else:
        expected = {"classify": ("label", "r"), "pair": ("label", "b"), "multilabel": ("labels", ["r"])}
        name, value = expected.get(task, ("answer", "red"))
        assert answer[name] == value


@pytest.mark.slow  # processes that import TensorFlow
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_ctrl_c_and_termination_keep_a_checkpoint(models, tmp_path, sent, status):
    """An interrupted run writes where it is, and the same command goes on from there."""
    arguments = f"pretrain elmo --corpus {models}/corpus.txt --out {tmp_path}/lm".split()
    arguments += ["--batch-size", "8", "--minutes", "10", "--evaluations", "100"]  # the first evaluation comes soon
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_ctxrep.cli", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert process.stdout.readline().startswith("step ")  # the first evaluation: it trains
    process.send_signal(sent)
    _, err = process.communicate(timeout=180)
    assert process.returncode == status and "Traceback" not in err
    assert ("interrupted" in err) == (sent == signal.SIGINT)
    state = json.loads((tmp_path / "lm" / "checkpoint" / "state.json").read_text())
    assert state["step"] > 0
    assert sorted(os.listdir(tmp_path / "lm")) == ["checkpoint", "history.csv", "history.png"]


def test_names_that_are_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path))
    name = "bert_12_768_12/book_corpus_wiki_en_uncased"
    (tmp_path / "a.tsv").write_text("text\tlabel\n")
    for command in (["embed", name, "--input", "-"], ["train", "--encoder", name, "--data", f"{tmp_path}/a.tsv"]):
        assert main.main([*command, "--out", str(tmp_path / "x.npz")]) == 1
        assert f"{name}: not downloaded yet: `ctxrep zoo get {name}`" in capsys.readouterr().err
    assert main.main(["export", "no-such", "--out", str(tmp_path / "x")]) == 1
    assert "no-such: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--columns text=a", "--predictions p.jsonl", "--json", "--skip-bad", "--carry-state"])
def test_sentences_are_scored_without_the_options_of_tasks(flag, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["score", str(tmp_path), "--data", __file__, "--lm", *flag.split()])
    assert stop.value.code == 2 and f"leave out {flag.split()[0]} with --lm" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "expected"), [("score x --data x", "jax"), ("export x --out y", "tensorflow")])
def test_the_backend_that_the_environment_names(command, expected, monkeypatch, capsys):
    """It is that of a command, unless what the command does is TensorFlow's."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert main.main(command.split()) == 1
    assert os.environ["KERAS_BACKEND"] == expected
    assert "no such f" in capsys.readouterr().err
