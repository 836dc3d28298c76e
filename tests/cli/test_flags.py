"""Flags from option dataclasses, and configuration files in place of flags."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.cli import main
from keras_ctxrep.cli.flags import Flags, given
from keras_ctxrep.commands.command import argument
from keras_ctxrep.options import Finetuning, Options, Pretraining, StaticPretraining, option

TRAIN = ["train", "--data", "a", "--dev", "b", "--encoder", "words", "--out", "c"]


@dataclass(frozen=True)
class Some(Options):
    """An option of each kind."""

    count: int = option(3, "how many", above=0, metavar="N")
    rate: float | None = option(None, "how fast", least=0, below=1)
    kind: str = option("a", "which", choices=("a", "b"))
    fast: bool = option(False, "hurry")
    deep: bool | None = option(None, "dig")
    columns: Mapping[str, str] | None = option(None, "names", nargs="+", metavar="NAME=COLUMN")


@dataclass(frozen=True, kw_only=True)
class SomeAndOut(Some):
    out: str = argument("--out X  where")


def parse(*argv, config=None):
    parser = argparse.ArgumentParser(exit_on_error=False)
    flags = Flags(parser)
    flags.add_options(SomeAndOut)
    if config is not None:
        flags.configure(config)
    return given(parser.parse_args(list(argv)))


def test_a_flag_for_every_field():
    assert parse("--out", "x") == {"out": "x"}  # the dataclass has the defaults
    argv = "--out x --count 5 --rate 0.5 --kind b --fast --no-deep --columns text=1 label=2"
    values = parse(*argv.split())
    assert values == {
        "out": "x",
        "count": 5,
        "rate": 0.5,
        "kind": "b",
        "fast": True,
        "deep": False,
        "columns": {"text": "1", "label": "2"},
    }
    assert Some(**{name: value for name, value in values.items() if name != "out"}).count == 5


@pytest.mark.parametrize("text", ["text=a,label=b", "text=a, label=b"])
def test_columns_with_commas(text):
    assert parse("--out", "x", "--columns", text, "pair=c, d")["columns"] == {"text": "a", "label": "b", "pair": "c, d"}


@pytest.mark.parametrize("wrong", ["--count 0", "--count x", "--rate 1", "--rate -0.1", "--kind c", "--columns text"])
def test_a_value_out_of_bounds(wrong):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parse("--out", "x", *wrong.split())


def test_help_has_the_texts_and_defaults_of_the_fields(capsys):
    commands = (
        (["train"], Finetuning),
        (["pretrain", "elmo"], Pretraining),
        (["pretrain", "bert"], Pretraining),
        (["pretrain", "lm"], Pretraining),
        (["pretrain", "static"], StaticPretraining),
    )
    for argv, options in commands:
        with pytest.raises(SystemExit):
            main.main([*argv, "--help"])
        printed = " ".join(capsys.readouterr().out.split())
        for field in options.__dataclass_fields__.values():
            families = field.metadata.get("families")
            expected = options is not Pretraining or families is None or argv[1] in families
            assert (f" --{field.name.replace('_', '-')} " in printed.replace(",", " ")) == expected, field.name
    assert "(default: all)" in printed and "(default: skipgram)" in printed


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "count: 5\nrate: 1e-2\nkind: b\nfast: true\ndeep: false\nout: y\ncolumns: {text: body}\n"),
        ("a.json", json.dumps({"count": 5, "rate": 0.01, "kind": "b", "fast": True, "deep": False, "out": "y",
                               "columns": {"text": "body"}})),
        ("run.json", json.dumps({"command": "finetune", "arguments": {"out": "y"}, "files": {}, "options": {
            "count": 5, "rate": 0.01, "kind": "b", "fast": True, "deep": False, "columns": {"text": "body"}}})),
    ],
)  # fmt: skip
def test_a_file_in_place_of_flags(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    expected = {"count": 5, "rate": 0.01, "kind": "b", "fast": True, "deep": False, "out": "y"}
    expected |= {"columns": {"text": "body"}}
    assert parse(config=path) == expected
    assert parse("--count", "7", "--deep", "--out", "z", config=path) == expected | {
        "count": 7,
        "deep": True,
        "out": "z",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cuont: 5", r"a\.yaml: 'cuont' is not an option of this command; the nearest one is 'count'"),
        ("count: 5\nrates: 0.1", "'rates' is not an option of this command; the nearest one is 'rate'"),
        ("- count", "options and their values are needed"),
        ("5: 3", "options and their values are needed"),
        ("count: [", r"a\.yaml: not YAML"),
        ("count: 1.5", r"a\.yaml: count=1\.5: must be a whole number"),
        ("count: 0", r"a\.yaml: count=0: must be above 0"),
        ("kind: c", r"a\.yaml: kind='c': must be a or b"),
        ("columns: text=body", r"a\.yaml: columns='text=body': must be a mapping"),
        ("columns: [text=body]", r"a\.yaml: columns=\['text=body'\]: must be a mapping"),
        ("fast: [1]", r"a\.yaml: fast=\[1\]: must be true or false"),
    ],
)
def test_errors_in_a_file(tmp_path, content, message):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        parse(config=tmp_path / "a.yaml")


def test_a_damaged_json_file(tmp_path):
    (tmp_path / "a.json").write_text('{"count": 5,\n')
    with pytest.raises(ValueError, match=r"a\.json: not JSON: .*: line 2 column 1"):
        parse(config=tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"count": 5,\n"count": 6}')
    with pytest.raises(ValueError, match=r"a\.json: not JSON: the key 'count' stands twice.*: line 2"):
        parse(config=tmp_path / "a.json")


def test_the_command_takes_a_file(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("learning-rate: 2e-3\nbatch_size: 8\nstack: gru\ncolumns: {text: body}\n")
    values = given(main._parse([*TRAIN, "--config", str(tmp_path / "a.yaml"), "--batch-size", "4"]))
    assert (values["learning_rate"], values["batch_size"], values["stack"]) == (2e-3, 4, "gru")
    assert values["columns"] == {"text": "body"} and "config" not in values
    (tmp_path / "b.yaml").write_text("corpus: a.txt\nsteps: 3\nout: o\n")
    values = given(main._parse(["pretrain", "elmo", f"--config={tmp_path / 'b.yaml'}"]))
    assert values == values | {"corpus": ["a.txt"], "steps": 3, "out": "o", "family": "elmo"}
    (tmp_path / "c.yaml").write_text("learning_rat: 2e-3\n")
    for config in ("c.yaml", "missing.yaml"):
        with pytest.raises(SystemExit) as stop:
            main.main([*TRAIN, "--config", str(tmp_path / config)])
        assert stop.value.code == 2 and config in capsys.readouterr().err


def test_debug_prints_the_traceback(tmp_path):
    command = [sys.executable, "-m", "keras_ctxrep.cli", "zoo", "show", "no-such-model"]
    plain, debug = (subprocess.run([*command, *more], capture_output=True, text=True) for more in ([], ["--debug"]))
    assert plain.returncode == debug.returncode == 1 and "Traceback" not in plain.stderr
    assert plain.stderr.startswith("ctxrep: ") and plain.stderr.count("\n") == 1
    assert debug.stderr.startswith("Traceback") and plain.stderr.removeprefix("ctxrep: ").strip() in debug.stderr


def test_a_length_on_the_command_line_replaces_those_of_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("steps: 5\nepochs: 2\ncrf: true\n")
    argv = ["train", "--data", "a", "--dev", "a", "--encoder", "e", "--out", "o", "--config", str(tmp_path / "a.yaml")]
    args = main._parse([*argv, "--minutes", "3", "--no-crf"])
    assert (args.steps, args.epochs, args.minutes, args.crf) == (None, None, 3.0, False)
    assert main._parse(argv).steps == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [("out: 2024", "out=2024: a file or folder is needed"), ("data: [c.tsv]", "a file or folder is needed")],
)
def test_files_of_a_configuration_file_are_texts(text, message, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main._parse(["train", "--config", str(tmp_path / "a.yaml")])
    assert message in capsys.readouterr().err


def test_a_fraction_of_the_data_held_out(tmp_path):
    argv = ["train", "--data", "a", "--encoder", "b", "--out", "c"]
    assert main._parse([*argv, "--dev", "0.1"]).dev == 0.1
    assert main._parse([*argv, "--dev", "dev.tsv"]).dev == "dev.tsv"
    record = {"command": "finetune", "arguments": {"dev": 0.2, "data": "a"}, "options": {}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert main._parse([*argv, "--config", str(tmp_path)]).dev == 0.2


def test_another_family_than_that_of_the_run(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"command": "pretrain", "arguments": {"family": "elmo"}, "options": {}}')
    with pytest.raises(SystemExit):
        main._parse(["pretrain", "bert", "--config", str(tmp_path)])
    assert "family is 'elmo'" in capsys.readouterr().err


def test_a_record_of_a_run_has_the_options_of_all_families(tmp_path, capsys):
    """Those of other families at their defaults; another value is refused, as on the command line."""
    for kind, argv in ((Pretraining(steps=3), ["pretrain", "bert"]), (StaticPretraining(), ["pretrain", "static"])):
        record = {"command": "pretrain", "arguments": {"corpus": ["a"], "family": argv[1]}, "options": kind.plain()}
        (tmp_path / "run.json").write_text(json.dumps(record))
        args = main._parse([*argv, "--config", str(tmp_path), "--out", "o"])
        assert (args.corpus, getattr(args, "steps", None)) == (["a"], getattr(kind, "steps", None))
    (tmp_path / "a.yaml").write_text("corpus: a\nunroll: 20\n")
    with pytest.raises(SystemExit) as stop:
        main._parse(["pretrain", "bert", "--config", str(tmp_path / "a.yaml"), "--out", "o"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and "a.yaml: leave out --unroll: it is for elmo and lm, not for bert" in error


def test_numbers_in_a_file(tmp_path):
    """Of columns, of labels, and of flags that are no options of a dataclass."""
    (tmp_path / "a.yaml").write_text("seeds: 2\ncolumns: {text: 6, label: 5}\nclass_weights: {0: 1, 1: 2.5}\n")
    argv = ["train", "--data", "a", "--dev", "a", "--encoder", "e", "--out", "o", "--config", str(tmp_path / "a.yaml")]
    values = given(main._parse(argv))
    assert values["seeds"] == 2
    chosen = Finetuning(columns=values["columns"])
    assert chosen.columns == {"text": "6", "label": "5"}
    own = tasks.get("classify").Options(class_weights=values["class_weights"])
    assert own.class_weights == {"0": 1, "1": 2.5}
    with pytest.raises(ValueError, match="class_weights: the label True: write labels such as yes and no in quotes"):
        tasks.get("classify").Options(class_weights={True: 2})


@pytest.mark.parametrize("words", [["balanced", "1=2"], ["1=2", "no"]])
def test_weights_are_all_of_labels(words, capsys):
    argv = ["train", "--data", "a", "--dev", "a", "--encoder", "words", "--out", "o", "--class-weights", *words]
    assert main.main(argv) == 1
    assert "write LABEL=X for each, or one word alone" in capsys.readouterr().err
