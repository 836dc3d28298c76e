"""The warning of texts that a model cannot read."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, zoo
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text import scripts as script_rules
from keras_ctxrep.text import unread as unread_module
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.scripts import scripts_of
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep.text.unread import Unread

SHIPPED = ("bert_3_384_12", "static_128", "elmo_2x512_128_512cnn_1xhighway")
READ = {
    "English": "The ferry left the harbour at noon, and nobody on the quay looked up from what they were doing.",
    "names and emoji": "Zendaya met Xiomara Acosta at Schiphol 😀😀 🎉 #BeyHive @kpop_stan22 🔥🔥 Timothée ❤️ 👍🏽",
    "names": "Wojciechowski Nguyễn Çelik Björk",
    "emoji": "😀 🎉🔥",
    "numbers": "1,234.50 ± 2½ km² → ∞",
    "no words": " ",
}
UNREAD = {
    "Russian": "Сегодня хорошая погода, и мы идём гулять в парк.",
    "Greek": "Σήμερα ο καιρός είναι καλός και πάμε στο πάρκο.",
    "Chinese": "今天天气很好,我们去公园散步。",
    "Arabic": "اليوم الطقس جميل ونحن نذهب إلى الحديقة",
    "Hindi": "आज मौसम अच्छा है और हम पार्क में टहलने जा रहे हैं।",
    "two words": "Погода сегодня",
}


def message(bundle, texts):
    counts = Unread(bundle)
    counts.add(texts, [[row] for row in bundle.features.encode(texts)])
    return counts.message("a file")


@pytest.fixture(params=SHIPPED)
def shipped(request):
    return bundles.load(zoo.find(f"{request.param}/books_wiki_en"))


@pytest.mark.parametrize("language", READ)
def test_no_warning_of_english(shipped, language):
    assert message(shipped, [READ[language]]) is None


@pytest.mark.parametrize("language", UNREAD)
def test_languages_that_the_shipped_models_lack(shipped, language):
    assert message(shipped, [UNREAD[language]]).startswith("a file: ")
    if language != "two words":
        assert message(shipped, [READ["English"]] * 4 + [UNREAD[language]]).startswith("a file: ")


def test_shares():
    """More than 5% of at least 20 pieces, more than half of fewer; a symbol is not a piece that is missing."""
    bert = Bundle("bert", "embed", {}, 64, vocab=(*SPECIAL_PIECES, "the", "cat"))
    assert message(bert, ["the " * 19 + "dog"]) is None and "10% of the word pieces" in message(
        bert, ["the " * 18 + "dog " * 2]
    )
    assert message(bert, ["the dog"]) is None and "67% of the word pieces" in message(bert, ["the dog dog"])
    assert message(bert, ["the cat 😀 🎉"]) is None


def test_words_without_a_vector():
    table = {"width": 2, "words": 3, "buckets": 0, "min_n": 3, "max_n": 6, "lowercase": True}
    static = Bundle("static", "embed", table, 64, vocab=("<UNK>", "the", "cat"))
    assert message(static, ["The cat, the cat: 1, 2! " * 9]) is None
    assert message(static, ["The dog. " * 3]) is None and "100% of the words have no vector" in message(
        static, ["Dog house"]
    )
    ngrams = replace(static, config=table | {"buckets": 9})
    assert message(ngrams, ["dog house"]) is None and "have no vector" in message(ngrams, ["собака"])


def test_elmo_knows_the_scripts_of_its_text():
    elmo = Bundle("elmo", "tag", {"max_characters": 50}, 8)
    assert message(elmo, ["Погода сегодня"]) is None  # of a bundle that does not say
    for scripts, text in ((("CYRILLIC",), "Погода сегодня"), (("LATIN",), "the weather")):
        assert message(replace(elmo, scripts=scripts), [text]) is None
    assert "(CYRILLIC)" in message(replace(elmo, scripts=("CYRILLIC",)), ["the weather"])


GERMAN = """Die Fähre verließ mittags den Hafen, und niemand am Kai blickte von seiner Arbeit auf. Ich habe gestern mit
    meiner Schwester über das Wetter gesprochen, weil es den ganzen Tag geregnet hat. Der Bundestag hat am Donnerstag
    ein neues Gesetz beschlossen. Viele Menschen in der Stadt fahren lieber mit dem Fahrrad als mit dem Auto."""
CZECH = """Trajekt opustil přístav v poledne a nikdo na nábřeží nezvedl oči od své práce. Dnes je krásné počasí a
    půjdeme se projít do parku s našimi dětmi. Vláda ve středu schválila nový zákon o obnovitelných zdrojích energie.
    Vlak do Brna má dnes bohužel čtyřicet minut zpoždění, protože silnice byla uzavřena."""
TYPOS = """The fery left the harbuor at noon, and nobdy on the quay loked up from waht they were doing. Phtosynthesis
    converts light enregy into chemical energy stored in moleculs such as sugrs. Shares of the compny fell in early
    tradng after the quartelry report missed expectatons, and I can't beleive they cancelled the show again."""


@pytest.mark.parametrize("name", ["bert_3_384_12", "bert_6_384_12", "static_128"])
def test_words_that_fall_to_pieces(name):
    """Those of other languages in the same script, not names, typing errors or source code."""
    bundle = bundles.load(zoo.find(f"{name}/books_wiki_en"))
    for text in (GERMAN, CZECH):
        assert re.fullmatch(
            r"a file: [6-9]\d% of the words fall to pieces of one or two letters; .*", message(bundle, [text])
        )
    code = Path(script_rules.__file__).read_text("utf-8").splitlines()
    for texts in ([TYPOS], code, [READ["English"], READ["names"], READ["names and emoji"]] * 9):
        assert message(bundle, texts) is None
    assert message(bundle, [GERMAN[:90]]) is None  # too few to know


def test_a_sample_of_each_call_is_looked_at(monkeypatch):
    monkeypatch.setattr(unread_module, "_SAMPLE", 40)
    counts = Unread(bundles.load(zoo.find("bert_3_384_12/books_wiki_en")))
    for _ in range(2):
        with pytest.warns(UserWarning, match="fall to pieces"), counts.warning():
            for text in [GERMAN] * 9:
                counts.add([text], [counts.bundle.features.encode([text])])
    assert 80 <= counts.words < 200


def test_scripts_of_vocabularies():
    """Not those of names and single letters."""
    english = [*SPECIAL_PIECES, *(f"word{'a' * n}" for n in range(2000)), *"жщ中天", "##ж", "он"]
    assert scripts_of(english) == {"LATIN"}
    chinese = [*SPECIAL_PIECES, "the", "##ing", *map(chr, range(0x4E00, 0x4F00))]
    assert scripts_of(chinese) == {"LATIN", "CJK"}


def test_the_rule_of_a_vocabulary_is_made_once(monkeypatch):
    """Each predictor of a model has one; another vocabulary has another one."""
    asked, of_vocab = [], script_rules.scripts_of
    monkeypatch.setattr(script_rules, "scripts_of", lambda vocab: asked.append(vocab) or of_vocab(vocab))
    cyrillic = ["once", "##made", "ж"]
    for _ in range(2):
        rule = script_rules.rule_of_pieces(cyrillic, 1, 2)
        assert rule.foreign and [rule.foreign(id) for id in (0, 2)] == [False, True]
    rule = script_rules.rule_of_pieces([*cyrillic[:2], "он", "##жж"], 1, 2)
    assert rule.foreign and not rule.foreign(2) and len(asked) == 2


def test_the_scripts_of_a_bundle_are_optional(tmp_path):
    elmo = Bundle("elmo", "embed", {"max_characters": 50}, 8)
    assert "scripts" not in json.loads(elmo.files_as_bytes()["bundle.json"])
    for bundle in (elmo, replace(elmo, scripts=("LATIN", "GREEK"))):
        bundles.save(bundle, tmp_path)
        assert bundles.load(tmp_path) == replace(bundle, files={})


def test_one_warning_for_each_call(tmp_path):
    model = ctx.load("elmo_2x512_128_512cnn_1xhighway/books_wiki_en").encoder
    texts = [*UNREAD.values()] * 250
    (tmp_path / "texts.txt").write_text("\n".join(texts), "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode([READ["English"]])
    index = ctx.Index.of_texts([READ["English"]], model)
    for call in (
        lambda: model.encode(texts),
        lambda: model.encodings(texts[:3]),
        lambda: model.predict(texts[:3]),
        lambda: index.search(["Погода сегодня"]),
        lambda: recipes.index([tmp_path / "texts.txt"], model, tmp_path / "index"),
    ):
        with pytest.warns(UserWarning, match=r"\d+% of the words are in another script.*\(LATIN\)") as record:
            call()
        assert len(record) == 1
