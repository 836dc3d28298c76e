"""Training data of the two objectives: by hand, and by counting."""

import numpy as np
import pytest

from keras_ctxrep.text.features import CharacterFeatures, Row, WordFeatures, WordPieceFeatures
from keras_ctxrep.text.pretraining import (
    Stretch,
    Vocabulary,
    for_sampling,
    language_model_batch,
    next_sentence_rows,
    pretrainer_batch,
    stream_batch,
    stretches,
)
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece

ORDINARY = 3000
SPECIALS = range(len(SPECIAL_PIECES))


@pytest.fixture
def features():
    return WordPieceFeatures(WordPiece([*SPECIAL_PIECES, *(f"w{i}" for i in range(ORDINARY))]), max_length=64)


def corpus(rng, documents, sentences=(40, 60), pieces=(1, 12)):
    """Documents in which every piece occurs once, so that each names its document and place."""
    number = iter(range(len(SPECIAL_PIECES), 10**9))
    return [
        [[next(number) for _ in range(rng.integers(*pieces))] for _ in range(rng.integers(*sentences))]
        for _ in range(documents)
    ]


def test_vocabulary():
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a", "b"])
    ids = vocabulary.ids(["b", "x", "a", "<S>", "<UNK>"])
    assert ids.tolist() == [4, 2, 3, 0, 2] and ids.dtype == np.int32
    assert len(vocabulary) == 5 and vocabulary.ids([]).shape == (0,)


def test_counted_vocabulary():
    sentences = [["b", "a", "c"], ["b", "a", "<S>", "<S>"], ["b", "d"]]
    assert Vocabulary.count(sentences).vocab == ["<S>", "</S>", "<UNK>", "b", "a"]
    assert Vocabulary.count(sentences, minimum=1).vocab[3:] == ["b", "a", "c", "d"]
    assert Vocabulary.count(sentences, minimum=1, size=3).vocab[3:] == ["b", "a", "c"]


def test_vocabulary_errors():
    with pytest.raises(ValueError, match="first three lines must be <S>, </S>, <UNK>; found"):
        Vocabulary(["<S>", "<UNK>", "</S>"])
    with pytest.raises(ValueError, match="'a' stands in it twice"):
        Vocabulary(["<S>", "</S>", "<UNK>", "b", "a", "a"])


def test_the_largest_id_of_some_published_vocabularies_is_no_word():
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a", "!!!MAXTERMID", "b"])
    assert len(vocabulary) == 5 and vocabulary.ids(["b", "!!!MAXTERMID"]).tolist() == [4, 2]
    assert Vocabulary(["!!!MAXTERMID", "<S>", "</S>", "<UNK>"]).vocab == ["<S>", "</S>", "<UNK>"]


def test_order_of_a_vocabulary():
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *"abcd"])
    often, rare = [list("ab")] * 4, [list("cd")] * 2
    vocabulary.check_order(iter(often + rare))
    vocabulary.check_order([["x"] * 100])  # says nothing about the order
    with pytest.raises(ValueError, match="the words up to 'b' occur 6 times, those after it 4 times; sort it"):
        vocabulary.check_order(often[:3] + rare)
    with pytest.raises(ValueError, match="not sorted by count"):
        Vocabulary(["<S>", "</S>", "<UNK>", *"dcba"]).check_order(often + rare)
    Vocabulary(["<S>", "</S>", "<UNK>"]).check_order(often)


# Two streams, three words at a step. The first takes the first document, the second the second, and whichever needs
# more text first takes the next one.
DOCUMENTS = [[["a", "b"], ["c"]], [["d", "e", "f", "g"]], [["h"]]]
S, E = "<S>", "</S>"
STRETCHES = [
    [
        Stretch([S, "a", "b"], ["a", "b", E], [E, "b", "a"], ["b", "a", S]),
        Stretch([S, "d", "e"], ["d", "e", "f"], [E, "g", "f"], ["g", "f", "e"]),
    ],
    [
        Stretch([S, "c", S], ["c", E, "h"], [E, "c", E], ["c", S, "h"]),
        Stretch(["f", "g"], ["g", E], ["e", "d"], ["d", S]),
    ],
    [Stretch(["h"], [E], ["h"], [S]), Stretch([], [], [], [])],
]


def test_stretches_by_hand():
    assert list(stretches(DOCUMENTS, streams=2, steps=3)) == STRETCHES


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_no_word_is_lost_between_stretches(rng, steps):
    """n+1 pairs for each sentence, in order, of whole documents that lie in one stream."""
    texts = [[[f"{d}.{s}.{w}" for w in range(rng.integers(1, 9))] for s in range(rng.integers(1, 6))] for d in range(9)]
    batches = list(stretches(iter(texts), 3, steps))
    found = []
    for row in range(3):
        words, following, reverse, preceding = (
            [word for batch in batches for word in batch[row][field]] for field in range(4)
        )
        assert len(words) == len(following) == len(reverse) == len(preceding)
        start = 0
        while start < len(words):
            size = following.index(E, start) - start
            sentence = words[start + 1 : start + size + 1]
            assert words[start] == S and following[start : start + size] == sentence
            assert reverse[start] == E and preceding[start : start + size + 1] == [*sentence[::-1], S]
            assert reverse[start + 1 : start + size + 1] == sentence[::-1]
            found.append((row, sentence))
            start += size + 1
    assert sorted(s for _, s in found) == sorted(s for text in texts for s in text)
    rows = {}
    for row, sentence in found:
        rows.setdefault(row, []).append(sentence)
    for sentences in rows.values():
        places = [tuple(map(int, sentence[0].split(".")[:2])) for sentence in sentences]
        assert places == sorted(places)  # documents one after the other
    for text in texts:
        assert len({row for row, sentence in found if sentence in text}) == 1
    full = [all(len(stretch.words) == steps for stretch in batch) for batch in batches]
    assert full == sorted(full, reverse=True)  # only the last ones are shorter


def test_documents_are_read_as_they_are_needed():
    def endless():
        while True:
            yield iter([["a"] * 5] * 100)

    source = stretches(endless(), 4, 7)
    assert [len(stretch.words) for stretch in next(source)] == [7] * 4


def test_text_without_sentences():
    assert list(stretches([], 2, 3)) == list(stretches([[], []], 2, 3)) == []


@pytest.mark.parametrize("read_words", [False, True])
def test_stream_batch_by_hand(read_words):
    vocabulary = Vocabulary([S, E, "<UNK>", *"abcdefg"])  # h is unknown
    features = WordFeatures(vocabulary.vocab) if read_words else CharacterFeatures(max_characters=6)
    inputs, targets, weights = stream_batch(features, vocabulary, STRETCHES[1])
    assert inputs["mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    key = features.keys[0]
    assert set(inputs) == {key, f"{key}_reverse", "mask"}
    assert np.array_equal(inputs[key], features([[S, "c", S], ["f", "g"]])[key])
    assert np.array_equal(inputs[f"{key}_reverse"], features([[E, "c", E], ["e", "d"]])[key])
    assert targets["forward_logits"].tolist() == [[5, 1, 2], [9, 1, 0]]
    assert targets["backward_logits"].tolist() == [[5, 0, 2], [6, 0, 0]]
    for name in targets:
        assert targets[name].dtype == np.int32 and weights[name].dtype == np.float32
        np.testing.assert_allclose(weights[name], inputs["mask"] * (6 / 5), rtol=1e-6)
    assert not np.shares_memory(*weights.values())


def test_batches_for_sampling():
    features, vocabulary = CharacterFeatures(max_characters=6), Vocabulary([S, E, "<UNK>", *"abcdefg"])
    batch = stream_batch(features, vocabulary, STRETCHES[0])
    inputs, targets, weights = for_sampling(*batch)
    assert set(inputs) == {*batch[0], "forward_targets", "backward_targets"}
    for direction in ("forward", "backward"):
        assert np.array_equal(inputs[f"{direction}_targets"], batch[1][f"{direction}_logits"])
        assert targets[f"{direction}_logits"].tolist() == [[0] * 3] * 2
        assert targets[f"{direction}_logits"].dtype == np.int32
    assert weights is batch[2]


def test_language_model_batch_by_hand():
    features = CharacterFeatures(max_characters=6)
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a", "b"])
    inputs, targets, weights = language_model_batch(features, vocabulary, features.encode(["a b", "c", ""]))
    assert inputs["mask"].tolist() == [[1, 1], [1, 0], [0, 0]]
    assert np.array_equal(inputs["char_ids"], features(["a b", "c", ""])["char_ids"])
    forward, backward = targets["forward_logits"], targets["backward_logits"]
    assert forward.dtype == backward.dtype == np.int32
    real = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    assert (forward * real).tolist() == [[3, 4, 1], [2, 1, 0], [1, 0, 0]]
    assert (backward * real).tolist() == [[0, 3, 4], [0, 2, 0], [0, 0, 0]]
    for key in targets:
        np.testing.assert_allclose(weights[key], real * (9 / 6), rtol=1e-7)


def test_weights_make_the_mean_over_all_positions_that_over_the_real_ones(rng, features):
    characters = CharacterFeatures(max_length=30)
    sentences = [["w"] * int(n) for n in rng.integers(1, 40, 16)]
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "w"])
    inputs, _, weights = language_model_batch(characters, vocabulary, characters.encode(sentences))
    real = np.pad(inputs["mask"], ((0, 0), (1, 0)), constant_values=1).astype(bool)
    pairs = list(next_sentence_rows(corpus(rng, 3), features, rng))
    _, _, masked = pretrainer_batch(features, pairs, rng)
    for weight, chosen in (
        (weights["forward_logits"], real),
        (weights["backward_logits"], real),
        (masked["mlm_logits"], masked["mlm_logits"] > 0),
    ):
        assert weight.dtype == np.float32
        losses = rng.random(weight.shape)
        np.testing.assert_allclose((losses * weight).mean(), losses[chosen].mean(), rtol=1e-6)


@pytest.fixture
def pairs(rng, features):
    """Documents, and the place (document, sentence) of the first and last piece of both segments of each pair."""
    documents = corpus(rng, 60)
    place = {
        piece: (number, index)
        for number, document in enumerate(documents)
        for index, sentence in enumerate(document)
        for piece in sentence
    }
    rows = []
    for _ in range(6):
        for row, follows in next_sentence_rows(documents, features, rng):
            first, second = row.tokens[1 : row.first - 1], row.tokens[row.first : -1]
            rows.append((row, follows, first, second))
    return documents, place, rows


def test_segments_are_whole_and_marked(pairs, features):
    _, _, rows = pairs
    pieces = features.wordpiece
    for row, _, first, second in rows:
        assert len(row) <= features.max_length and first and second
        assert row.tokens[0] == pieces.cls and row.tokens[row.first - 1] == row.tokens[-1] == pieces.sep
        for segment in (first, second):
            assert segment == list(range(segment[0], segment[0] + len(segment)))  # consecutive pieces of the corpus


def test_what_follows_really_follows_in_one_document(pairs, features):
    documents, place, rows = pairs
    seen = {True: 0, False: 0}
    for row, follows, first, second in rows:
        seen[follows] += 1
        (document, last), (other, start) = place[first[-1]], place[second[0]]
        assert place[first[0]][0] == document and place[second[-1]][0] == other  # no segment crosses a document
        if follows:
            assert document == other
            assert second[0] == documents[document][start][0]
            # the next sentence, unless the first segment lost its end because the pair was too long
            assert start == last + 1 or (start > last - 1 and len(row) == features.max_length)
            assert second[0] > first[-1]
        else:
            assert document != other
    assert min(seen.values()) > 1000


def test_first_segments_begin_with_a_sentence_in_the_order_of_the_corpus(pairs):
    documents, _, rows = pairs
    flat = [sentence[0] for document in documents for sentence in document]
    starts = [first[0] for _, _, first, _ in rows]
    assert set(starts) <= set(flat)
    assert starts.count(flat[0]) == 6  # each pass over the corpus begins with its first sentence
    begin = [i for i, start in enumerate(starts) if start == flat[0]]
    for one, two in zip(begin, [*begin[1:], len(starts)], strict=True):
        assert starts[one:two] == sorted(starts[one:two])


def test_half_of_the_second_segments_follow(features, rng):
    documents = corpus(rng, 60)
    last = {piece for document in documents for piece in document[-1]}
    free = [
        follows
        for _ in range(20)
        for row, follows in next_sentence_rows(documents, features, rng, short=0.0)
        if row.tokens[1] not in last  # nothing can follow a document's last sentence
    ]
    assert len(free) > 5000
    assert abs(np.mean(free) - 0.5) < 3 * 0.5 / len(free) ** 0.5


def test_a_single_document_gives_pairs_too(rng, features):
    rows = list(next_sentence_rows(corpus(rng, 1, (200, 201)), features, rng))
    assert {follows for _, follows in rows} == {True, False}
    for row, follows in rows:
        first, second = row.tokens[1 : row.first - 1], row.tokens[row.first : -1]
        assert follows or second[0] != first[-1] + 1


def test_pairs_are_the_same_for_the_same_seed(features):
    documents = corpus(np.random.default_rng(1), 5)
    one, two, three = (list(next_sentence_rows(documents, features, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert one == two and one != three


def test_short_pairs(features):
    documents = corpus(np.random.default_rng(1), 30, pieces=(1, 2))
    always, never = (
        [len(row) for row, _ in next_sentence_rows(documents, features, np.random.default_rng(1), short)]
        for short in (1.0, 0.0)
    )
    assert np.mean(always) < 0.7 * np.mean(never)


@pytest.mark.parametrize("max_length", [5, 6, 8])
def test_little_room_for_pairs(features, rng, max_length):
    short = WordPieceFeatures(features.wordpiece, max_length)
    rows = list(next_sentence_rows(corpus(rng, 3), short, rng, short=1.0))
    assert rows and all(len(row) <= max_length for row, _ in rows)


def test_no_room_for_pairs(features, rng):
    with pytest.raises(ValueError, match="max_length=4"):
        list(next_sentence_rows([[[5], [6]]], WordPieceFeatures(features.wordpiece, 4), rng))


@pytest.fixture
def rows(rng):
    """Pairs of segments of ordinary pieces, over 200,000 of them."""
    rows = []
    for _ in range(6000):
        one, two = (rng.integers(len(SPECIAL_PIECES), ORDINARY, rng.integers(5, 31)).tolist() for _ in range(2))
        rows.append((Row([2, *one, 3, *two, 3], first=len(one) + 2), bool(rng.random() < 0.5)))
    assert sum(len(row) for row, _ in rows) > 200_000
    return rows


def test_masked_pieces(features, rows, rng):
    inputs, targets, weights = pretrainer_batch(features, rows, rng)
    before = features.collate([row for row, _ in rows])
    assert np.array_equal(before["mask"], inputs["mask"]) and inputs["mask"].sum() > 200_000
    assert np.array_equal(before["segment_ids"], inputs["segment_ids"])
    assert targets["nsp_logits"].tolist() == [int(not follows) for _, follows in rows]
    assert weights["nsp_logits"].tolist() == [1.0] * len(rows)

    positions, labels = inputs["mlm_positions"], targets["mlm_logits"]
    real = weights["mlm_logits"] > 0
    assert positions.dtype == labels.dtype == np.int32 and positions.shape == labels.shape == real.shape
    assert not positions[~real].any() and not labels[~real].any()
    assert np.array_equal(labels[real], np.take_along_axis(before["token_ids"], positions, 1)[real])
    assert not np.isin(labels[real], SPECIALS).any()  # special pieces are never masked, nor is padding
    chosen = np.zeros(before["token_ids"].shape, int)
    np.add.at(chosen, (np.nonzero(real)[0], positions[real]), 1)
    assert chosen.max() == 1  # no position twice
    assert (before["token_ids"] == inputs["token_ids"])[chosen == 0].all()  # nothing else has changed

    # 15% of each row's pieces, rounded
    sizes = inputs["mask"].sum(1)
    assert chosen.sum(1).tolist() == [max(1, round(0.15 * size)) for size in sizes]
    total = real.sum()
    assert abs(total / sizes.sum() - 0.15) < 3 * (0.15 * 0.85 / sizes.sum()) ** 0.5

    after = np.take_along_axis(inputs["token_ids"], positions, 1)[real]
    random = (after != labels[real]) & (after != features.wordpiece.mask)
    chance = 1 / ORDINARY  # that a random piece is the same as before
    for found, share in (
        (after == features.wordpiece.mask, 0.8),
        (random, 0.1 * (1 - chance)),
        (after == labels[real], 0.1 * (1 + chance)),
    ):
        assert abs(found.mean() - share) < 3 * (share * (1 - share) / total) ** 0.5
    assert not np.isin(after[random], SPECIALS).any()
    expected, deviation = (len(SPECIAL_PIECES) + ORDINARY / 2 - 0.5), ORDINARY / 12**0.5
    assert abs(after[random].mean() - expected) < 3 * deviation / random.sum() ** 0.5  # from the whole vocabulary


def test_every_position_is_masked_equally_often(features, rng):
    rows = [(Row([2, *[7] * 10, 3, *[8] * 27, 3], first=12), True)] * 20_000
    inputs, _, weights = pretrainer_batch(features, rows, rng)
    counts = np.bincount(inputs["mlm_positions"][weights["mlm_logits"] > 0], minlength=40)
    assert counts[[0, 11, 39]].sum() == 0
    candidates = np.delete(counts, [0, 11, 39])
    share = 6 / 37
    assert abs(candidates - share * len(rows)).max() < 4 * (share * (1 - share) * len(rows)) ** 0.5


def test_masking_is_drawn_anew_and_repeats_with_the_seed(features, rows):
    one, two, three = (pretrainer_batch(features, rows[:20], np.random.default_rng(seed)) for seed in (1, 1, 2))
    for left, right in zip(one, two, strict=True):
        assert all(np.array_equal(left[key], right[key]) for key in left)
    assert not np.array_equal(one[0]["token_ids"], three[0]["token_ids"])


def test_a_tiny_pair_is_masked_once(features, rng):
    inputs, targets, weights = pretrainer_batch(features, [(Row([2, 9, 3, 10, 3], first=3), False)], rng)
    assert inputs["mlm_positions"].shape == (1, 1) and inputs["mlm_positions"][0, 0] in (1, 3)
    assert targets["nsp_logits"].tolist() == [1] and weights["mlm_logits"].tolist() == [[1.0]]
