"""The golden strings themselves: complete, and the same each time."""

import hashlib
import json
from pathlib import Path

from tests import golden


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_every_block_and_every_kind_of_string_is_there(golden_strings):
    texts = [case["text"] for case in lines(golden_strings / "bert_uncased" / "cases.jsonl")]
    assert len(texts) == golden.STRINGS + len(golden.long_texts())
    columns = {ord(letter) // 16 for text in texts for letter in text}
    assert columns >= {column for column in range(0x2000) if not 0xD80 <= column < 0xE00}
    assert {ord(letter) // 0x10000 for text in texts for letter in text} == set(range(17))
    assert {"", " ", "[CLS]"} <= set(texts) and max(map(len, texts)) > 300


def test_words_split_pairs_are_cut_and_windows_are_many(golden_strings):
    for name in golden.COMPLETE:
        rows = lines(golden_strings / name / "cases.jsonl")
        assert sum(window["truncated"] for case in rows for window in case["windows"]) > 100
    windows = [len(case["windows"]) for case in lines(golden_strings / "bert_answer" / "cases.jsonl")]
    assert sum(count > 2 for count in windows) > 300
    pieces = [len(case["windows"][0]["offsets"]) - 2 for case in lines(golden_strings / "bert_cased" / "cases.jsonl")]
    words = [
        len(case["windows"][0]["inputs"]["starts"]) for case in lines(golden_strings / "bert_cased" / "cases.jsonl")
    ]
    assert sum(pieces) > 1.3 * sum(words)


def test_answers_have_outputs_unless_nothing_can_be_read(golden_strings):
    for path in golden_strings.glob("*/answers.jsonl"):
        answers = lines(path)
        assert len(answers) == 63
        assert all(("error" in row["answer"]) == ("outputs" not in row) for row in answers)


def test_a_second_time_gives_the_same_files(golden_strings, tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "COMPLETE", ("bert_cased",))
    golden.write(tmp_path)
    for file in ("cases.jsonl", "answers.jsonl", "bundle.json", "vocab.txt"):
        digests = [
            hashlib.sha256((root / "bert_cased" / file).read_bytes()).hexdigest() for root in (golden_strings, tmp_path)
        ]
        assert digests[0] == digests[1], file
