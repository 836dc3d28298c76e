"""Tags of words that mark spans: IOB2, and the other schemes made into it."""

import re
from collections.abc import Iterable, Sequence

_TAG = re.compile(r"O|[BI]|[BIESLU]-.+")


def is_spans(labels: Iterable[str]) -> bool:
    """Whether labels mark spans: each is "O", "B", "I" or one of B-, I-, E-, S-, L- and U- before a type.

    >>> is_spans(["O", "B-PER", "I-PER"]), is_spans(["NN", "VB"]), is_spans(["O"])
    (True, False, False)
    """
    labels = set(labels)
    return bool(labels - {"O"}) and all(map(_TAG.fullmatch, labels))


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """A sentence's tags in IOB2, where every span begins with B-; other tags, such as parts of speech, stay.

    One rule is right for IOB1, IOB2, BIOES and BILOU, so that the scheme need not be known: what does not continue a
    span of its type begins one. I- after another type, after O, or after the end of a span (E-, L-, S-, U-) becomes B-;
    E- and L- within a span become I-; S- and U- become B-. B- stays: in IOB1 it stands only where a span follows
    another of its type at once, and begins one there too. An I- without a B- in IOB2, an error, is read as conlleval
    does. https://aclanthology.org/E99-1023/ compares the schemes.

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O", "S-LOC"])
    ('B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC')
    """
    if not all(map(_TAG.fullmatch, tags)):
        return tuple(tags)
    found = []
    current = None  # the type of the span that the next word may continue
    for tag in tags:
        if tag == "O":
            found.append(tag)
            current = None
            continue
        inside = tag[0] in "IEL" and tag[1:] == current
        found.append(("I" if inside else "B") + tag[1:])
        current = tag[1:] if tag[0] in "BI" else None
    return tuple(found)


def spans(tags: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """(type, begin, end) of each span of a sentence, end exclusive; what is no tag of a scheme is outside of spans.

    As lenient as conlleval, https://www.clips.uantwerpen.be/conll2000/chunking/output.html: I- begins a span where it
    cannot continue one.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(to_iob2([tag if tag and _TAG.fullmatch(tag) else "O" for tag in tags])):
        if tag[0] == "B":
            found.append((tag[2:], place, place + 1))
        elif tag[0] == "I":
            kind, begin, _ = found[-1]
            found[-1] = kind, begin, place + 1
    return found
