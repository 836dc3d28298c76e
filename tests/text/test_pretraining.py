"""Training data of the two objectives: by hand, and by counting."""

import itertools

import numpy as np
import pytest

from keras_ctxrep.text.features import CharacterFeatures, Row, WordFeatures, WordPieceFeatures
from keras_ctxrep.text.pretraining import (
    BpttSegment,
    Masked,
    Masking,
    Vocabulary,
    _truncate,
    bptt_segments,
    for_sampling,
    language_model_batch,
    next_sentence_rows,
    pretrainer_batch,
    read_masked,
    segment_pairs,
    single_segments,
    stream_batch,
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
    with pytest.raises(ValueError, match="first lines must be <S>, </S>, <UNK>; found"):
        Vocabulary(["<S>", "<UNK>", "</S>"])
    with pytest.raises(ValueError, match="'a' occurs twice"):
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
BPTT_BATCHES = [
    [
        BpttSegment([S, "a", "b"], ["a", "b", E], [E, "b", "a"], ["b", "a", S]),
        BpttSegment([S, "d", "e"], ["d", "e", "f"], [E, "g", "f"], ["g", "f", "e"]),
    ],
    [
        BpttSegment([S, "c", S], ["c", E, "h"], [E, "c", E], ["c", S, "h"]),
        BpttSegment(["f", "g"], ["g", E], ["e", "d"], ["d", S]),
    ],
    [BpttSegment(["h"], [E], ["h"], [S]), BpttSegment([], [], [], [])],
]


def test_bptt_segments_by_hand():
    assert list(bptt_segments(DOCUMENTS, streams=2, steps=3)) == BPTT_BATCHES


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_no_word_is_lost_between_bptt_segments(rng, steps):
    """n+1 pairs for each sentence, in order, of whole documents that lie in one stream."""
    texts = [[[f"{d}.{s}.{w}" for w in range(rng.integers(1, 9))] for s in range(rng.integers(1, 6))] for d in range(9)]
    batches = list(bptt_segments(iter(texts), 3, steps))
    read = []
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
            read.append((row, sentence))
            start += size + 1
    assert sorted(s for _, s in read) == sorted(s for text in texts for s in text)
    rows = {}
    for row, sentence in read:
        rows.setdefault(row, []).append(sentence)
    for sentences in rows.values():
        places = [tuple(map(int, sentence[0].split(".")[:2])) for sentence in sentences]
        assert places == sorted(places)  # documents one after the other
    for text in texts:
        assert len({row for row, sentence in read if sentence in text}) == 1
    full = [all(len(segment.words) == steps for segment in batch) for batch in batches]
    assert full == sorted(full, reverse=True)  # only the last ones are shorter


def test_documents_are_read_as_they_are_needed():
    def endless():
        while True:
            yield iter([["a"] * 5] * 100)

    source = bptt_segments(endless(), 4, 7)
    assert [len(segment.words) for segment in next(source)] == [7] * 4


def test_text_without_sentences():
    assert list(bptt_segments([], 2, 3)) == list(bptt_segments([[], []], 2, 3)) == []


@pytest.mark.parametrize("read_words", [False, True])
def test_stream_batch_by_hand(read_words):
    vocabulary = Vocabulary([S, E, "<UNK>", *"abcdefg"])  # h is unknown
    features = WordFeatures(vocabulary.vocab) if read_words else CharacterFeatures(max_characters=6)
    inputs, targets, weights = stream_batch(features, vocabulary, BPTT_BATCHES[1])
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
    batch = stream_batch(features, vocabulary, BPTT_BATCHES[0])
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


def test_a_weighted_mean_over_all_positions_equals_that_over_the_real_ones(rng, features):
    characters = CharacterFeatures(max_length=30)
    sentences = [["w"] * int(n) for n in rng.integers(1, 40, 16)]
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "w"])
    inputs, _, weights = language_model_batch(characters, vocabulary, characters.encode(sentences))
    real = np.pad(inputs["mask"], ((0, 0), (1, 0)), constant_values=1).astype(bool)
    small = [[[id % 3000 + 5 for id in s] for s in document] for document in corpus(rng, 3)]
    masking = Masking(features.wordpiece)
    examples = [masking(pair, rng) for pair in next_sentence_rows(small, features, rng)]
    inputs, _, masked = pretrainer_batch(features, examples)
    masks = np.arange(inputs["mlm_positions"].shape[1]) < np.array([[len(example.positions)] for example in examples])
    for weight, chosen in (
        (weights["forward_logits"], real),
        (weights["backward_logits"], real),
        (masked["mlm_logits"], masks),
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


def test_next_sentences_follow_in_the_same_document(pairs, features):
    documents, place, rows = pairs
    seen = {True: 0, False: 0}
    for row, follows, first, second in rows:
        seen[follows] += 1
        (document, last), (other, start) = place[first[-1]], place[second[0]]
        assert place[first[0]][0] == document and place[second[-1]][0] == other  # no segment crosses a document
        if follows:
            assert document == other
            # the next sentence, unless a segment lost its beginning or its end because the pair was too long
            whole = second[0] == documents[document][start][0] and start == last + 1
            assert whole or (start >= last and len(row) == features.max_length)
            assert second[0] > first[-1]
        else:
            assert document != other
    assert min(seen.values()) > 1000


def test_first_segments_begin_with_a_sentence_in_the_order_of_the_corpus(pairs, features):
    documents, _, rows = pairs
    flat = [sentence[0] for document in documents for sentence in document]
    starts = [first[0] for _, _, first, _ in rows]
    assert all(first[0] in flat for row, _, first, _ in rows if len(row) < features.max_length)
    assert starts.count(min(starts)) >= 1
    begin = [0, *(i for i in range(1, len(starts)) if starts[i] < starts[i - 1] - 500)]
    assert len(begin) == 6  # each pass over the corpus begins with its first sentences
    for first, second in zip(begin, [*begin[1:], len(starts)], strict=True):
        assert starts[first:second] == sorted(starts[first:second])


def test_single_segments_hold_every_piece_once(features, rng):
    """Whole sentences of one document; only a sentence that is too long alone is split."""
    vocab = features.wordpiece.vocab
    texts = [[" ".join(vocab[id] for id in rng.integers(5, 9, size)) for size in (3, 9, 40, 2, 15)] for _ in range(6)]
    encoded = [features.wordpiece.ids_batch(text) for text in texts]
    short = WordPieceFeatures(features.wordpiece, 16)
    rows = [row for row, follows in single_segments(texts, short, rng, buffer=4) if follows]
    assert max(map(len, rows)) == 16 and all(row.first == len(row) for row in rows)
    pieces = [id for row in rows for id in row.tokens[1:-1]]
    assert pieces == [id for document in encoded for sentence in document for id in sentence]
    assert [len(row) - 2 for row in rows[:5]] == [12, 14, 14, 14, 14]


@pytest.mark.trains
@pytest.mark.parametrize("sentences", [(1, 4), (1, 12), (30, 60)])
@pytest.mark.parametrize("max_length", [32, 128])
def test_half_of_the_second_segments_follow(features, rng, sentences, max_length):
    """Of all pairs of more than a million pieces, the last sentences of documents included."""
    features = WordPieceFeatures(features.wordpiece, max_length)
    documents = corpus(rng, 40_000 // sum(sentences), sentences)
    result, size = [], 0
    while size < 1_000_000:
        for row, follows in next_sentence_rows(documents, features, rng):
            result.append(follows)
            size += len(row)
    assert abs(np.mean(result) - 0.5) < 3 * 0.5 / len(result) ** 0.5


def test_long_segments_are_cut_at_both_ends(rng):
    """As the loop of the reference does it, one piece at a time."""

    def loop(left, right, room):
        while len(left) + len(right) > room:
            longer = left if len(left) > len(right) else right
            del longer[0 if rng.random() < 0.5 else -1]
        return left, right

    for first, second, room in itertools.product(range(7), range(7), range(9)):
        sizes = [len(part) for part in loop(list(range(first)), list(range(second)), room)]
        for part, size in zip(_truncate(list(range(first)), list(range(second)), room, rng), sizes, strict=True):
            assert len(part) == size and part == list(range(part[0], part[0] + size)) if part else not size
    left, right = np.array(
        [[part[0] for part in _truncate(list(range(30)), list(range(20)), 10, rng)] for _ in range(4000)]
    ).T
    assert abs(left.mean() - 12.5) < 3 * (25 / 4 / 4000) ** 0.5 and abs(right.mean() - 7.5) < 3 * (15 / 4 / 4000) ** 0.5


def test_documents_of_one_sentence_have_no_next_ones(features, rng):
    following = [follows for _, follows in next_sentence_rows(corpus(rng, 50, (1, 2)), features, rng)]
    assert following == [False] * 50
    assert not list(next_sentence_rows([[[7]], [[]], []], features, rng))  # and a single one has no pair


def test_segment_pairs_of_a_text_in_parts():
    """Three parts of two documents: no pair has segments of two parts, and each part begins anew."""
    features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, *"abcdef"]), max_length=8)
    documents = [[letter] * 50 for letter in "abcdef"]
    rows = list(segment_pairs(iter(documents), features, np.random.default_rng(0), buffer=100))
    ids = [{*row.tokens[1 : row.first - 1], *row.tokens[row.first : -1]} for row, _ in rows]
    assert all(len({(id - 5) // 2 for id in row}) == 1 for row in ids)
    assert {frozenset(row) for row in ids} == {
        frozenset(pair) for a in (5, 7, 9) for pair in ({a}, {a + 1}, {a, a + 1})
    }


def test_a_single_document_gives_pairs_too(rng, features):
    rows = list(next_sentence_rows(corpus(rng, 1, (200, 201)), features, rng))
    assert {follows for _, follows in rows} == {True, False}
    for row, follows in rows:
        first, second = row.tokens[1 : row.first - 1], row.tokens[row.first : -1]
        assert follows or not {*range(first[0], first[-1] + 2)} & {*second}


def test_pairs_are_the_same_for_the_same_seed(features):
    documents = corpus(np.random.default_rng(1), 5)
    first, second, third = (
        list(next_sentence_rows(documents, features, np.random.default_rng(seed))) for seed in (1, 1, 2)
    )
    assert first == second and first != third


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


@pytest.fixture(scope="module")
def wordpiece():
    """A third of its pieces are inner ones."""
    inner = ORDINARY // 3
    return WordPiece([*SPECIAL_PIECES, *(f"##{i}" for i in range(inner)), *(f"w{i}" for i in range(ORDINARY - inner))])


@pytest.fixture(scope="module")
def rows():
    """Pairs of segments of any pieces, unknown ones too, over a million that can be masked."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(18_000):
        left, right = (rng.integers(len(SPECIAL_PIECES) - 5, ORDINARY, rng.integers(5, 55)) for _ in range(2))
        left, right = (np.where(part < len(SPECIAL_PIECES), 1, part).tolist() for part in (left, right))
        rows.append((Row([2, *left, 3, *right, 3], first=len(left) + 2), bool(rng.random() < 0.5)))
    assert sum(len(row) for row, _ in rows) > 1_060_000
    return rows


@pytest.mark.trains
@pytest.mark.parametrize("whole_words", [False, True])
def test_masked_pieces(wordpiece, rows, rng, whole_words):
    masking = Masking(wordpiece, whole_words=whole_words)
    maskable, after, labels = 0, [], []
    for row, follows in rows:
        masked = masking((row, follows), rng)
        before = np.array(row.tokens)
        assert (masked.first, masked.follows, len(masked.tokens)) == (row.first, follows, len(row))
        assert masked.positions == sorted(set(masked.positions))
        assert before[masked.positions].tolist() == masked.labels
        assert not np.isin(masked.labels, SPECIALS).any()  # special pieces are never chosen
        rest = np.delete(np.arange(len(before)), masked.positions)
        assert (np.array(masked.tokens)[rest] == before[rest]).all()  # nothing else has changed
        ordinary = (before >= len(SPECIAL_PIECES)).sum()
        most = int(0.15 * ordinary) + 1
        assert len(masked.positions) <= most and (whole_words or len(masked.positions) >= most - 1)
        maskable += ordinary
        after += np.array(masked.tokens)[masked.positions].tolist()
        labels += masked.labels
    assert maskable > 1_000_000
    after, labels, total = np.array(after), np.array(labels), len(labels)
    assert abs(total / maskable - 0.15) < 3 * (0.15 * 0.85 / maskable) ** 0.5

    random = (after != labels) & (after != wordpiece.mask)
    chance = 1 / (ORDINARY)  # that a random piece is the same as before
    for actual, fraction in (
        (after == wordpiece.mask, 0.8),
        (random, 0.1 * (1 - chance)),
        (after == labels, 0.1 * (1 + chance)),
    ):
        assert abs(actual.mean() - fraction) < 3 * (fraction * (1 - fraction) / total) ** 0.5
    assert not np.isin(after[random], SPECIALS).any()
    expected, deviation = (len(SPECIAL_PIECES) + ORDINARY / 2 - 0.5), ORDINARY / 12**0.5
    assert abs(after[random].mean() - expected) < 3 * deviation / random.sum() ** 0.5  # from the whole vocabulary


def test_whole_words_are_masked_whole(wordpiece, rows, rng):
    masking, inner = Masking(wordpiece, whole_words=True), range(5, 5 + ORDINARY // 3)
    for row, follows in rows[:2000]:
        chosen = set(masking((row, follows), rng).positions)
        for position, piece in enumerate(row.tokens):
            if piece in inner and row.tokens[position - 1] not in (1, 2, 3):
                assert (position in chosen) == (position - 1 in chosen)


def test_a_word_longer_than_the_remaining_count_is_skipped(rng):
    masking = Masking(WordPiece([*SPECIAL_PIECES, "a", "##b", "c"]), fraction=0.2, whole_words=True)
    row = Row([2, 5, *[6] * 7, 7, 3, 7, 3], first=11)  # one word of eight pieces, and two of one
    result = [masking((row, True), rng).positions for _ in range(50)]
    assert {tuple(positions) for positions in result} == {(9, 11)}


def test_every_position_is_masked_equally_often(wordpiece, rng):
    pair, masking = (Row([2, *[2000] * 10, 3, *[2001] * 27, 3], first=12), True), Masking(wordpiece)
    count = 20_000
    counts = np.bincount(np.concatenate([masking(pair, rng).positions for _ in range(count)]).astype(int), minlength=40)
    assert counts[[0, 11, 39]].sum() == 0
    assert abs(np.delete(counts, [0, 11, 39]) - 0.15 * count).max() < 4 * (0.15 * 0.85 * count) ** 0.5


def test_masking_is_drawn_anew_and_repeats_with_the_seed(wordpiece, rows):
    masking = Masking(wordpiece)
    first, second, third = ([masking(row, rng) for row in rows[:20]] for rng in map(np.random.default_rng, (1, 1, 2)))
    assert first == second and first != third


def test_masking_errors(wordpiece):
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"fraction={fraction}: of the pieces"):
            Masking(wordpiece, fraction)
    with pytest.raises(ValueError, match="only special pieces"):
        Masking(WordPiece(SPECIAL_PIECES))


def test_pretrainer_batch_by_hand(features):
    examples = [Masked([2, 4, 8, 3, 9, 3], 4, [1, 4], [7, 9], True), Masked([2, 9, 3, 10, 3], 3, [], [], False)]
    inputs, targets, weights = pretrainer_batch(features, examples)
    assert inputs["token_ids"].tolist() == [[2, 4, 8, 3, 9, 3], [2, 9, 3, 10, 3, 0]]
    assert inputs["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert inputs["mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
    assert inputs["mlm_positions"].tolist() == [[1, 4], [0, 0]]
    assert targets["mlm_logits"].tolist() == [[7, 9], [0, 0]] and targets["nsp_logits"].tolist() == [0, 1]
    assert weights["mlm_logits"].tolist() == [[2, 2], [0, 0]] and weights["nsp_logits"].tolist() == [1, 1]
    for array in (inputs["mlm_positions"], *targets.values()):
        assert array.dtype == np.int32
    nothing = pretrainer_batch(features, examples[1:])
    assert nothing[0]["mlm_positions"].shape == (1, 1) and nothing[2]["mlm_logits"].tolist() == [[0]]


def test_examples_in_a_file(wordpiece, rows, rng, tmp_path, write_masked):
    masking = Masking(wordpiece)
    examples = [masking(row, rng) for row in rows[:50]] + [Masked([2, 9, 3, 10, 3], 3, [], [], False)]
    write_masked(tmp_path / "a.npz", examples)
    assert list(read_masked(tmp_path / "a.npz")) == examples
    assert list(read_masked(tmp_path / "a.npz", lambda count: np.arange(count)[::-1])) == examples[::-1]
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:500])
    np.savez(tmp_path / "c.npz", tokens=np.zeros(3))
    np.savez(tmp_path / "d.npz", tokens=np.array([{}], object))
    for name in "bcd":
        with pytest.raises(ValueError, match=f"{name}.npz: not a file of pretraining examples; run `ctxrep prepare`"):
            next(read_masked(tmp_path / f"{name}.npz"))
