"""Tags that mark spans of words: IOB2, and conversion from other schemes."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["is_spans", "spans", "to_iob2"]

_TAG = re.compile(r"O|[BI]|[BIESLU]-.+")


def is_spans(labels: Iterable[str]) -> bool:
    """Whether labels mark spans: each is "O", "B", "I", or a type with the prefix B-, I-, E-, S-, L- or U-.

    >>> is_spans(["O", "B-PER", "I-PER"]), is_spans(["NN", "VB"]), is_spans(["O"])
    (True, False, False)
    """
    labels = set(labels)
    return bool(labels - {"O"}) and all(map(_TAG.fullmatch, labels))


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Converts a sentence's tags to IOB2, where every span begins with B-; other tags, such as parts of speech, stay.

    One rule is right for IOB1, IOB2, BIOES and BILOU (https://aclanthology.org/E99-1023/ compares them): a tag that
    does not continue a span of its type begins a new one. I- after another type, after O, or after the end of a span
    (E-, L-, S-, U-) becomes B-, as in conlleval; E- and L- within a span become I-; S- and U- become B-; B- stays.

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O", "S-LOC"])
    ('B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC')
    """
    if not all(map(_TAG.fullmatch, tags)):
        return tuple(tags)
    iob2 = []
    current = None  # the type of the span that the next word may continue
    for tag in tags:
        inside = tag[0] in "IEL" and tag[1:] == current
        iob2.append(tag if tag == "O" else ("I" if inside else "B") + tag[1:])
        current = tag[1:] if tag[0] in "BI" else None
    return tuple(iob2)


def spans(tags: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """(type, begin, end) of each span of a sentence, end exclusive; unknown tags count as "O".

    As in conlleval, https://www.clips.uantwerpen.be/conll2000/chunking/output.html, I- begins a span if there is
    none to continue.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    result: list[tuple[str, int, int]] = []
    for index, tag in enumerate(to_iob2([tag if tag and _TAG.fullmatch(tag) else "O" for tag in tags])):
        if tag[0] == "B":
            result.append((tag[2:], index, index + 1))
        elif tag[0] == "I":
            kind, begin, _ = result[-1]
            result[-1] = kind, begin, index + 1
    return result
