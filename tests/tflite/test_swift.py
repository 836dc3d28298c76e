"""The part of docs/how-to/swift.md that is Python; the rest is untested and says so."""

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from keras_ctxrep import tasks
from keras_ctxrep.text.bundle import Bundle, write_tflite
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES

PAGE = (Path(__file__).parents[2] / "docs/how-to/swift.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("split", [{"lowercase": True}, {"lowercase": False, "split_cjk": False}])
def test_the_tokenizer_json_gives_the_same_ids(tmp_path, monkeypatch, split):
    monkeypatch.chdir(tmp_path)
    vocab = (*SPECIAL_PIECES, "ete", "Été", "a", "##a", "中", "[", "]", "##中")
    fields = tasks.bundle_fields("classify")
    bundle = Bundle("bert", config={}, max_length=64, labels=("no", "yes"), vocab=vocab, **split, **fields)
    write_tflite("model.tflite", b"", bundle)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    tokenizer = Tokenizer.from_file("tokenizer/tokenizer.json")
    assert isinstance(bundle.features, WordPieceFeatures)
    for text in ("Été aa中a", "[SEP] [CLS]a", "a" * 100, "a" * 101, ""):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == [piece.id for piece in bundle.features.wordpiece.encode(text)]
    assert json.loads(Path("tokenizer/tokenizer_config.json").read_text())["tokenizer_class"] == "BertTokenizer"


def test_it_says_that_it_is_untested():
    assert "**UNTESTED.**" in PAGE[:200]
