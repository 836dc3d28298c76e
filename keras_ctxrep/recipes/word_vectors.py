"""What static vectors of words know: neighbours, analogies, and correlations with people's judgements of similarity."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from keras_ctxrep import zoo
from keras_ctxrep.checks import of_kind
from keras_ctxrep.inference.silence import start_backend
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import check_finite
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import lines
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.retrieval import mean_rows, unit
from keras_ctxrep.text.scores import pearson, spearman
from keras_ctxrep.text.search import nearest

__all__ = ["WordTable"]

DISTANCES = ("cosine", "euclidean")
BLOCK = 8192  # vectors whose differences are in memory at a time


class WordTable:
    """The words of a model of static vectors, compared by the cosines of their vectors, or by their distances.

    With n-grams every word has a vector; else those of the vocabulary alone.

    Args:
        folder: a model folder of the static family, over words, or the name of a published one.

    Attributes:
        words: of the vocabulary.

    Raises:
        ValueError: a model of another family, or of word pieces.
    """

    def __init__(self, folder: str | Path):
        path = Path(zoo.find(folder))
        bundle = bundles.load(path)
        error = f"{folder}: it has no vectors of words; take a table of words, such as glove_50/6b of the package"
        self._folder, self._features = folder, of_kind(bundle.features, StaticFeatures, error)
        self.words = bundle.vocab[1:]
        self._table = _table(path, bundle)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._units = self.vectors(self.words)

    def vectors(self, words: Sequence[str]) -> np.ndarray:
        """The vectors of words in length 1, float32 (N, D); zero of a word that has none."""
        return unit(self._unscaled(words))

    def number(self, word: str) -> int | None:
        """The number of a word in `words`, as it is looked up; None if it is not there."""
        return self._numbers.get(self._features.normalized([word])[0])

    def neighbours(self, word: str, k: int = 10, distance: str = "cosine") -> list[tuple[str, float]]:
        """The words of the vocabulary whose vectors are nearest to that of a word, which is left out.

        Args:
            word: any that has a vector.
            k: how many.
            distance: "cosine"; or "euclidean", between the vectors as the model has them, of any length.

        Returns: words, the nearest first, with the cosines or the distances of their vectors.

        Raises:
            ValueError: the word has no vector, or there is no such distance.
        """
        if distance not in DISTANCES:
            raise ValueError(f"distance={distance!r}: {' or '.join(DISTANCES)}")
        query = self._known([word])
        return self._nearest(query, [word], k) if distance == "cosine" else self._closest(word, k)

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """The words nearest to a - b + c, of which these three are left out: king - man + woman.

        3CosAdd of Levy and Goldberg 2014, https://aclanthology.org/W14-1618, eq. 1, of vectors of length 1.

        Raises:
            ValueError: a word has no vector.
        """
        vectors = self._known([a, b, c])
        return self._nearest(unit(vectors[:1] - vectors[1:2] + vectors[2:]), [a, b, c], k)

    def score_analogies(self, path: str | Path) -> dict:
        """The fraction of analogies whose fourth word is nearest to b - a + c, as in `analogy`.

        Mikolov et al. 2013, https://arxiv.org/abs/1301.3781, section 4.1, whose file is questions-words.txt: lines
        ": name of a section" and "a b c d". As there, questions with a word that is not in the vocabulary do not count.

        Args:
            path: the file.

        Returns: {"questions", "unknown": how many were answered and left out, "accuracy", "semantic", "syntactic": of
            the sections whose names begin with "gram" and of the others, where there are both, "table": rows of text,
            one for each section}.

        Raises:
            ValueError: a line of the file has not four words, or no question has known words.
        """
        questions, sections, unknown = [], [], 0
        for section, words in sectioned(path, (4,), "a question has four, and a section begins with ':'"):
            numbers = [self.number(word) for word in words]
            if None in numbers:
                unknown += 1
            else:
                questions.append(numbers)
                sections.append(section)
        if not questions:
            raise ValueError(f"{path}: {self._folder} knows the words of none of its {unknown} questions")
        array = np.array(questions)  # (Q, 4)
        a, b, c = (self._units[array[:, column]] for column in range(3))
        best, _ = nearest(unit(b - a + c), self._units, 4)
        allowed = (best[:, :, None] != array[:, None, :3]).all(-1)  # (Q, 4), of which one at least is true
        right = best[np.arange(len(best)), allowed.argmax(1)] == array[:, 3]
        names = np.array(sections)
        syntactic = np.array([name.startswith("gram") for name in sections])
        figures = {"questions": len(questions), "unknown": unknown, "accuracy": float(right.mean())}
        if syntactic.any() and not syntactic.all():
            figures |= {"semantic": float(right[~syntactic].mean()), "syntactic": float(right[syntactic].mean())}
        parts = {name: right[names == name] for name in dict.fromkeys(sections)}
        rows = [[name, str(len(part)), f"{part.mean():.4f}"] for name, part in parts.items()]
        return figures | {"table": [["section", "questions", "accuracy"], *rows]}

    def score_pairs(self, path: str | Path) -> dict:
        """Correlations of the cosines of pairs of words with people's judgements, as in WordSim-353.

        Finkelstein et al. 2001, https://doi.org/10.1145/371920.372094. Pairs with a word that has no vector do not
        count.

        Args:
            path: lines of two words and a number, between tabs, spaces or commas; a first line may name the columns.

        Returns: {"pairs", "unknown": how many were compared and left out, "spearman", "pearson"}.

        Raises:
            ValueError: a line of the file is malformed, or fewer than two pairs are known.
        """
        pairs = [*_pairs(path)]
        sides = [self.vectors([pair[0] for pair in pairs]), self.vectors([pair[1] for pair in pairs])]
        known = np.all([side.any(1) for side in sides], 0)
        if known.sum() < 2:
            raise ValueError(f"{path}: {self._folder} knows {known.sum()} of its {len(pairs)} pairs; two are needed")
        cosines, judged = (sides[0] * sides[1]).sum(1)[known], np.array([score for *_, score in pairs])[known]
        counts = {"pairs": int(known.sum()), "unknown": int((~known).sum())}
        return counts | {"spearman": spearman(judged, cosines), "pearson": pearson(judged, cosines)}

    def _unscaled(self, words: Sequence[str]) -> np.ndarray:
        """The vectors of words as the model has them, float32 (N, D); zero of a word that has none."""
        ids = self._features.ids(words)
        known = (ids if ids.ndim == 1 else ids[:, 0]) > 1  # 1 is <UNK>
        return mean_rows(self._table, ids) * known[:, None]

    @cached_property
    def _vectors(self) -> np.ndarray:
        return self._unscaled(self.words)

    def _closest(self, word: str, k: int) -> list[tuple[str, float]]:
        """The words of the smallest Euclidean distances; of equal ones the first in the vocabulary is first."""
        query = self._unscaled([word]).astype(np.float64)
        parts = (self._vectors[begin : begin + BLOCK] - query for begin in range(0, len(self.words), BLOCK))
        distances = np.concatenate([np.linalg.norm(part, axis=1) for part in parts])
        rows = [row for row in np.argsort(distances, kind="stable").tolist() if row != self.number(word)][:k]
        return [(self.words[row], float(distances[row])) for row in rows]

    def _known(self, words: Sequence[str]) -> np.ndarray:
        vectors = self.vectors(words)
        for word, vector in zip(words, vectors, strict=True):
            if not vector.any():
                raise ValueError(
                    f"{self._folder}: no vector for {word!r}; its vocabulary has {len(self.words):,} words"
                )
        return vectors

    def _nearest(self, query: np.ndarray, without: Sequence[str], k: int) -> list[tuple[str, float]]:
        left_out = {self.number(word) for word in without}
        (rows,), (scores,) = nearest(query, self._units, k + len(left_out))
        ranked = zip(rows.tolist(), scores.tolist(), strict=True)
        return [(self.words[row], score) for row, score in ranked if row not in left_out][:k]


def _table(folder: Path, bundle: Bundle) -> np.ndarray:
    """The table of static vectors in a model folder, float32 (R, D), read without Keras where the file has it alone."""
    path, sizes = folder / bundles.WEIGHTS, [bundle.config.get(name, 0) for name in ("words", "buckets", "width")]
    if bundle.encodes and find_spec("h5py") is not None and path.is_file():
        import h5py

        with h5py.File(path) as file:
            found = file.get("layers/embedding/vars/0")
            own = isinstance(found, h5py.Dataset) and found.file == file and not (found.external or found.is_virtual)
            if own and all(type(size) is int for size in sizes) and found.shape == (sum(sizes[:2]) + 1, sizes[2]):
                table = found[()].astype(np.float32)
                check_finite(path, [("embedding", table)])
                return table
    start_backend()
    from keras_ctxrep import saving

    return saving.load(folder).model.get_layer("word_embedding").get_weights()[0]


def sectioned(path: str | Path, counts: Sequence[int], rule: str, section: str = "") -> Iterator[tuple[str, list[str]]]:
    """The lines of words of a file like questions-words.txt, each with the name of its section.

    Args:
        path: the file: a section begins with ": its name", and empty lines are left out.
        counts: how many words a line may have.
        rule: says so, for the error.
        section: the name of the lines before the first one.

    Raises:
        ValueError: a line of another number of words.
    """
    for number, line in lines(path):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(words) in counts:
            yield section, words
        elif words:
            raise ValueError(f"{path}:{number}: {len(words)} words; {rule}")


def _pairs(path: str | Path) -> Iterator[tuple[str, str, float]]:
    for number, line in lines(path):
        fields = re.split(r"[\t, ]+", line.strip())
        if fields == [""]:
            continue
        try:
            first, second, score, *_ = fields
            yield first, second, float(score)
        except ValueError:
            if number > 1:
                message = f"{path}:{number}: {line.strip()[:60]!r}; two words and a number are needed"
                raise ValueError(message) from None
