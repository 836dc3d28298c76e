"""The published models: their properties and sources.

A name is SIZE/DATASET, as in GluonNLP's model zoo where that has the model. URLs are those of the authors; SHA-256
hashes are included only where they were published.
"""

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

PATTERNS = {  # file names of weights, the preferred one first
    "huggingface": ("model*.safetensors", "pytorch_model*.bin"),
    "allennlp": ("*.hdf5",),
    "google": ("*.index", "*.data-*"),
}
CHARACTERS, EMBEDDING = 261, 16  # rows and width of ELMo's character table
# of 2048cnn, and from its start of 512cnn: (characters, filters)
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class Entry:
    """A published model.

    Attributes:
        name: SIZE/DATASET.
        format: format of the published files: "google", "huggingface" or "allennlp"; "shipped": none, it comes with
            the package; "" if it is not supported.
        urls: files to download; () if there is no source, and `note` says why.
        licence: licence of the weights.
        citation: URL of the paper.
        lowercase: whether texts are lower-cased and lose their accents; None: the model reads characters.
        vocabulary_size: number of word pieces; 0: characters.
        sha256: file name -> SHA-256 in hexadecimal, of the downloaded files or of those in the archive.
        positions: maximum input length of a BERT.
        note: other remarks.

    >>> entry = lookup("bert_2_128_2/book_corpus_wiki_en_uncased")
    >>> entry.family, entry.casing, entry.parameters
    ('bert', 'uncased', 4385920)
    """

    name: str
    format: str
    urls: tuple[str, ...]
    licence: str
    citation: str
    lowercase: bool | None = None
    vocabulary_size: int = 0
    sha256: dict[str, str] = field(default_factory=dict)
    positions: int = 512
    note: str = ""

    @property
    def family(self) -> str:
        """ "elmo", "bert", or "ernie", which is a BERT with ReLU."""
        return self.name.partition("_")[0]

    @property
    def shipped(self) -> bool:
        """Whether it comes with the package."""
        return self.format == "shipped"

    @property
    def casing(self) -> str:
        """ "cased", "uncased" or "characters"."""
        return {None: "characters", True: "uncased", False: "cased"}[self.lowercase]

    @property
    def config(self) -> dict[str, int]:
        """The fields of our config that follow from the name and the vocabulary."""
        sizes = [int(number) for number in re.findall(r"\d+", self.name.partition("/")[0])]
        config = dict(zip(_SIZES.get(self.family, _SIZES["bert"]), sizes, strict=True))
        return config | ({"vocabulary_size": self.vocabulary_size} if self.vocabulary_size else {})

    @property
    def parameters(self) -> int:
        """Number of weights of the encoder, with the pooler of a BERT."""
        return _PARAMETERS.get(self.family, _bert_parameters)(self)

    def as_dict(self) -> dict:
        """What `ctxrep zoo show` prints."""
        fields = {"name": self.name, "family": self.family, "size": self.name.partition("/")[0]}
        fields |= {"parameters": self.parameters, "casing": self.casing, "vocabulary_size": self.vocabulary_size}
        fields |= {"licence": self.licence, "format": self.format, "urls": list(self.urls), "sha256": self.sha256}
        return fields | {"citation": self.citation, "note": self.note}


# -------------------------------------------------------------------------------------------------------- the models

_BERT, _SMALL = "https://arxiv.org/abs/1810.04805", "https://arxiv.org/abs/1908.08962"
_SCIBERT, _BIOBERT = "https://arxiv.org/abs/1903.10676", "https://doi.org/10.1093/bioinformatics/btz682"
_ELMO = "https://arxiv.org/abs/1802.05365"
_BUCKET = "https://storage.googleapis.com/bert_models/"  # linked in https://github.com/google-research/bert
_AI2 = "https://s3-us-west-2.amazonaws.com/"  # linked in https://allennlp.org/elmo and github.com/allenai/scibert
_NAVER = "https://github.com/naver/biobert-pretrained/releases/download/"
_MEMBERS = ("bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt")

# SHA-256 of _MEMBERS in Google's archives, from https://github.com/NVIDIA/DeepLearningExamples,
# TensorFlow/LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py
_UNCASED = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_CASED = "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02"
_HASHES = {
    "uncased_L-12_H-768_A-12": (
        "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
        "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
        _UNCASED,
    ),
    "uncased_L-24_H-1024_A-16": (
        "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
        "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
        _UNCASED,
    ),
    "cased_L-12_H-768_A-12": (
        "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
        "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
        _CASED,
    ),
    "cased_L-24_H-1024_A-16": (
        "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
        "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
        _CASED,
    ),
    "multi_cased_L-12_H-768_A-12": (
        "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
        "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
        "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
    ),
    "multilingual_L-12_H-768_A-12": (
        "49063bb061390211d2fdd108cada1ed86faa5f90b80c8f6fdddf406afa4c4624",
        "3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429",
        "87c372c1a3b1dc7effaaa9103c80a81b3cbab04c7933ced224eec3b8ad2cc8e7",
        "87b44292b452f6c05afa49b2e488e7eedf79ea4f4c39db6f2f4b37764228ef3f",
    ),
    "chinese_L-12_H-768_A-12": (
        "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
        "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
        "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
    ),
}


def _elmo_parameters(entry: Entry) -> int:
    config = entry.config
    cells, projection, filters = config["cells"], config["projection"], config["filters"]
    totals = list(itertools.accumulate(number for _, number in FILTERS))
    convolutions = FILTERS[: totals.index(filters) + 1]
    characters = CHARACTERS * EMBEDDING + sum((width * EMBEDDING + 1) * number for width, number in convolutions)
    highways = config["highways"] * 2 * (filters + 1) * filters
    lstm = (2 * projection + 1) * 4 * cells + cells * projection
    return characters + highways + (filters + 1) * projection + 2 * config["layers"] * lstm


def _bert_parameters(entry: Entry) -> int:
    width, layers = entry.config["width"], entry.config["layers"]
    block = 4 * (width + 1) * width + 2 * 4 * width * width + 5 * width + 4 * width  # attention, dense, norms
    return (entry.vocabulary_size + entry.positions + 2 + 2) * width + layers * block + (width + 1) * width


# family -> the fields of the config that a size's name states, elmo_LAYERSxCELLS_PROJECTION_FILTERScnn_HIGHWAYSxhighway
# and bert_LAYERS_WIDTH_HEADS; a family that is not here is built like BERT
_SIZES = {"elmo": ("layers", "cells", "projection", "filters", "highways"), "bert": ("layers", "width", "heads")}
_PARAMETERS = {"elmo": _elmo_parameters}


def _google(name: str, archive: str, lowercase: bool, vocabulary_size: int, citation=_BERT, note="") -> Entry:
    """A checkpoint of Google's bucket; `archive` is DATE/NAME."""
    url, published = f"{_BUCKET}{archive}.zip", _HASHES.get(Path(archive).name, ())
    hashes: dict[str, str] = {}
    if published and not archive.startswith("2020"):  # an archive of the same name
        hashes.update(zip(_MEMBERS, published, strict=True))
    return Entry(name, "google", (url,), "Apache-2.0", citation, lowercase, vocabulary_size, sha256=hashes, note=note)


def _scibert(vocabulary: str, lowercase: bool, vocabulary_size: int) -> Entry:
    dataset = f"scibert_{vocabulary}_{'uncased' if lowercase else 'cased'}"
    url = f"{_AI2}ai2-s2-research/scibert/tensorflow_models/{dataset}.tar.gz"
    return Entry(f"bert_12_768_12/{dataset}", "google", (url,), "Apache-2.0", _SCIBERT, lowercase, vocabulary_size)


def _biobert(version: str, corpora: str) -> Entry:
    url = f"{_NAVER}v{version}-{corpora.replace('_', '-')}/biobert_v{version}_{corpora}.tar.gz"
    note = "the licence of github.com/dmis-lab/biobert; it adds the terms of the National Library of Medicine"
    name = f"bert_12_768_12/biobert_v{version}_{corpora}_cased"
    return Entry(name, "google", (url,), "Apache-2.0", _BIOBERT, False, 28996, note=note)


def _elmo(name: str, folder: str, weights: str, options: str, licence: str, note: str) -> Entry:
    urls = tuple(f"{_AI2}allennlp/models/elmo/{folder}/elmo_{file}" for file in (weights, options))
    return Entry(name, "allennlp", urls, licence, _ELMO, note=note)


def _elmo_of_ai2(size: str, dataset: str, tokens: str, suffix: str = "") -> Entry:
    folder = size.removeprefix("elmo_") + suffix
    files = f"{folder}_weights.hdf5", f"{folder}_options.json"
    note = f"{tokens}; its authors impose no restrictions: github.com/allenai/allennlp/issues/1462"
    return _elmo(f"{size}/{dataset}", folder, *files, "unrestricted", note)


def _without(name: str, licence: str, citation: str, lowercase: bool, vocabulary_size: int, note: str, **kwargs):
    """An entry that nothing can be downloaded for."""
    return Entry(name, "", (), licence, citation, lowercase, vocabulary_size, note=note, **kwargs)


def _ours(size: str, lowercase: bool | None, vocabulary_size: int, citation: str, note: str) -> Entry:
    """A model of our own, which comes with the package."""
    return Entry(f"{size}/books_wiki_en", "shipped", (), "Apache-2.0", citation, lowercase, vocabulary_size, note=note)


_WIKI = "book_corpus_wiki_en"
_GBW = "800 million words of news, the 1 Billion Word Benchmark"
_OURS = "20 million words of public-domain books and Wikipedia"
ENTRIES: tuple[Entry, ...] = (
    _ours("bert_4_256_4", True, 8000, _BERT, _OURS),
    _ours("elmo_2x512_128_512cnn_1xhighway", None, 0, _ELMO, _OURS),
    _google(f"bert_12_768_12/{_WIKI}_uncased", "2018_10_18/uncased_L-12_H-768_A-12", True, 30522),
    _google(f"bert_12_768_12/{_WIKI}_cased", "2018_10_18/cased_L-12_H-768_A-12", False, 28996),
    _google(f"bert_24_1024_16/{_WIKI}_uncased", "2018_10_18/uncased_L-24_H-1024_A-16", True, 30522),
    _google(f"bert_24_1024_16/{_WIKI}_cased", "2018_10_18/cased_L-24_H-1024_A-16", False, 28996),
    _google(
        f"bert_24_1024_16/{_WIKI}_uncased_wwm",
        "2019_05_30/wwm_uncased_L-24_H-1024_A-16",
        True,
        30522,
        note="all pieces of a word were masked together",
    ),
    _google(
        f"bert_24_1024_16/{_WIKI}_cased_wwm",
        "2019_05_30/wwm_cased_L-24_H-1024_A-16",
        False,
        28996,
        note="all pieces of a word were masked together",
    ),
    _google(
        "bert_12_768_12/wiki_multilingual_cased",
        "2018_11_23/multi_cased_L-12_H-768_A-12",
        False,
        119547,
        note="104 languages",
    ),
    _google(
        "bert_12_768_12/wiki_multilingual_uncased",
        "2018_11_03/multilingual_L-12_H-768_A-12",
        True,
        105879,
        note="102 languages; its authors recommend wiki_multilingual_cased instead",
    ),
    _google(
        "bert_12_768_12/wiki_cn_cased",
        "2018_11_03/chinese_L-12_H-768_A-12",
        True,
        21128,
        note="GluonNLP's name; Google's tokenization.py lower-cases its Latin letters",
    ),
    *(_scibert("scivocab", lowercase, size) for lowercase, size in ((True, 31090), (False, 31116))),
    *(_scibert("basevocab", lowercase, size) for lowercase, size in ((True, 30522), (False, 28996))),
    _biobert("1.0", "pmc"),
    _biobert("1.0", "pubmed"),
    _biobert("1.0", "pubmed_pmc"),
    _biobert("1.1", "pubmed"),
    _without(
        "bert_12_768_12/openwebtext_book_corpus_wiki_en_uncased",
        "Apache-2.0",
        "https://arxiv.org/abs/1907.04433",
        True,
        30522,
        "GluonNLP's own training, published as an MXNet parameter file only",
    ),
    _without(
        "bert_12_768_12/clinicalbert_uncased",
        "not stated",
        "https://arxiv.org/abs/1904.05342",
        True,
        30522,
        "published as a PyTorch pickle on a file-sharing service, without a hash; --from reads such files beside their "
        "config.json",
    ),
    _without(
        "bert_12_768_12/kobert_news_wiki_ko_cased",
        "Apache-2.0",
        "https://github.com/SKTBrain/KoBERT",
        False,
        8002,
        "its pieces are SentencePiece's, which no word-piece vocabulary states",
    ),
    _without(
        "ernie_12_768_12/baidu_ernie_uncased",
        "Apache-2.0",
        "https://arxiv.org/abs/1904.09223",
        True,
        18000,
        "published as Paddle parameter files only",
        positions=513,
    ),
    *(
        _google(
            f"bert_{layers}_{width}_{heads}/{_WIKI}_uncased{'_2020' if (layers, width) == (12, 768) else ''}",
            f"2020_02_20/uncased_L-{layers}_H-{width}_A-{heads}",
            True,
            30522,
            _SMALL,
            "trained again, with the small ones" if (layers, width) == (12, 768) else "",
        )
        for layers in (2, 4, 6, 8, 10, 12)
        for width, heads in ((128, 2), (256, 4), (512, 8), (768, 12))
    ),
    _elmo_of_ai2("elmo_2x1024_128_2048cnn_1xhighway", "gbw", _GBW),
    _elmo_of_ai2("elmo_2x2048_256_2048cnn_1xhighway", "gbw", _GBW),
    _elmo_of_ai2("elmo_2x4096_512_2048cnn_2xhighway", "gbw", _GBW),
    _elmo_of_ai2("elmo_2x4096_512_2048cnn_2xhighway", "5bw", "5.5 billion words of Wikipedia and news", "_5.5B"),
    _elmo(
        "elmo_2x4096_512_2048cnn_2xhighway/pubmed",
        "contributed/pubmed",
        "2x4096_512_2048cnn_2xhighway_weights_PubMed_only.hdf5",
        "2x4096_512_2048cnn_2xhighway_options.json",
        "not stated",
        "a contribution to AllenNLP's page",
    ),
)


def lookup(name: str) -> Entry:
    """The entry with a name.

    Args:
        name: SIZE/DATASET, or one of the two if only one entry has it.

    Raises:
        ValueError: no entry matches, or several.

    >>> lookup("scibert_scivocab_uncased").name
    'bert_12_768_12/scibert_scivocab_uncased'
    """
    exact = [entry for entry in ENTRIES if entry.name == name]
    entries = exact or [entry for entry in ENTRIES if name in entry.name.split("/")]
    if len(entries) == 1:
        return entries[0]
    if entries:
        raise ValueError(f"{name}: {len(entries)} models have it; choose one of {_listed(entries)}")
    close = difflib.get_close_matches(name, [entry.name for entry in ENTRIES], 3, 0.5)
    like = f"; like it: {', '.join(close)}" if close else ""
    raise ValueError(f"{name}: no published model of that name{like}; `ctxrep zoo list` shows all")


def _listed(entries: Sequence[Entry]) -> str:
    return ", ".join(entry.name for entry in entries)
