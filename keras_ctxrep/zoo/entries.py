"""The published models: their properties and sources.

A name is SIZE/DATASET, as in GluonNLP's model zoo where that has the model. URLs are those of the authors; SHA-256
hashes are included only where they were published.
"""

import difflib
import itertools
import re
from dataclasses import dataclass, field

__all__ = ["ENTRIES", "Entry", "lookup"]

PATTERNS = {  # file names of weights, the preferred one first
    "huggingface": ("model*.safetensors", "pytorch_model*.bin"),
    "allennlp": ("*.hdf5",),
    "google": ("*.index", "*.data-*"),
}
FIGURES = {  # what is measured of the models that come with the package
    "STS-B": "Spearman correlation x 100 of cosines with the scores of the test set, without any training",
    "SST-2": "accuracy in percent on the dev set, fine-tuned on 8,000 rows; of ELMo and the table under a biLSTM",
    "WNUT-17": "F1 x 100 of the entities of the test set, likewise",
    "MB": "size of the int8 .tflite file, the vocabulary included",
    "ms": "for one text of 16 tokens in it, on 2 cores of an AMD EPYC",
}
CHARACTERS, EMBEDDING = 261, 16  # rows and width of ELMo's character table
# of 2048cnn, and from its start of 512cnn: (characters, filters)
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class Entry:
    """A published model.

    >>> entry = lookup("bert_2_128_2/book_corpus_wiki_en_uncased")
    >>> entry.family, entry.casing, entry.parameters
    ('bert', 'uncased', 4385920)
    """

    name: str  #: SIZE/DATASET
    format: str  #: of the files: "google", "huggingface", "allennlp"; "shipped": with the package; "": not supported
    urls: tuple[str, ...]  #: files to download; () if there is no source, and `note` says why
    licence: str  #: of the weights
    citation: str  #: URL of the paper
    lowercase: bool | None = None  #: whether texts are lower-cased and lose their accents; None: reads characters
    vocabulary_size: int = 0  #: number of word pieces, or of words with <UNK>; 0: characters
    sha256: dict[str, str] = field(default_factory=dict)  #: file name -> SHA-256, of those in an archive too
    positions: int = 512  #: maximum input length of a BERT
    embedding_width: int | None = None  #: of a BERT's table of pieces, if it is projected
    base: str = ""  #: of a model with answers: the name of the encoder that it changes
    use: str = ""  #: what it is for, of those that come with the package
    note: str = ""
    figures: dict[str, float] = field(default_factory=dict)  #: what it is worth, of those that come with the package

    @property
    def family(self) -> str:
        """ "elmo", "bert", "static", "g2p", a decoder over characters, or "ernie", which is a BERT with ReLU."""
        return (self.base or self.name).partition("_")[0].replace("glove", "static")

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
        if self.base:
            return lookup(self.base).config
        sizes = [int(number) for number in re.findall(r"\d+", self.name.partition("/")[0].partition("_")[2])]
        config = dict(zip(_SIZES.get(self.family, _BERT_SIZE), sizes, strict=True))
        config |= {"vocabulary_size": self.vocabulary_size} if self.vocabulary_size else {}
        return config | ({"embedding_width": self.embedding_width} if self.embedding_width else {})

    @property
    def parameters(self) -> int:
        """Number of weights of the encoder, with the pooler of a BERT; of a decoder all of them."""
        return lookup(self.base).parameters if self.base else _PARAMETERS.get(self.family, _bert_parameters)(self)

    def as_dict(self) -> dict:
        """What `ctxrep zoo show` prints."""
        names = "name family size parameters casing vocabulary_size licence format urls sha256 citation base use note"
        values = {name: getattr(self, name, None) for name in (*names.split(), "figures")}
        return values | {"size": self.name.partition("/")[0], "urls": list(self.urls)}


# -------------------------------------------------------------------------------------------------------- the models

_BERT, _ELMO = "https://arxiv.org/abs/1810.04805", "https://arxiv.org/abs/1802.05365"
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
    narrow = entry.embedding_width
    table = (entry.vocabulary_size + width) * narrow if narrow else entry.vocabulary_size * width
    return table + (entry.positions + 2 + 2) * width + layers * block + (width + 1) * width


def _static_parameters(entry: Entry) -> int:
    rows = entry.vocabulary_size + entry.name.startswith("glove")  # a table of words has a row for no word
    return rows * entry.config["width"]


# family -> the fields of the config that a size's name states, elmo_LAYERSxCELLS_PROJECTION_FILTERScnn_HIGHWAYSxhighway
# bert_LAYERS_WIDTH_HEADS and static_WIDTH; a family that is not here is built like BERT
_BERT_SIZE = ("layers", "width", "heads")
_SIZES = {"elmo": ("layers", "cells", "projection", "filters", "highways"), "static": ("width",), "g2p": ()}
_PARAMETERS = {"elmo": _elmo_parameters, "static": _static_parameters}
_PARAMETERS |= {"g2p": lambda entry: 1_853_512}  # biLSTMs of 2 x 128 units and an LSTM of 256


def _google(name: str, archive: str, lowercase: bool, vocabulary_size: int, citation=_BERT, note="") -> Entry:
    """A checkpoint of Google's bucket; `archive` is DATE/NAME."""
    date, _, stem = archive.partition("/")
    digests = () if date == "2020_02_20" else _HASHES.get(stem, ())  # that date has an archive of the same name
    hashes: dict[str, str] = {}
    hashes.update(zip(_MEMBERS, digests, strict=False))
    url = f"{_BUCKET}{archive}.zip"
    return Entry(name, "google", (url,), _APACHE, citation, lowercase, vocabulary_size, sha256=hashes, note=note)


def _small_bert(layers: int, heads: int) -> Entry:
    """Of heads of width 64; one has a size that was published before."""
    size, again = f"bert_{layers}_{64 * heads}_{heads}", (layers, heads) == (12, 12)
    archive = f"2020_02_20/uncased_L-{layers}_H-{64 * heads}_A-{heads}"
    about = ("https://arxiv.org/abs/1908.08962", "trained again, with the small ones" if again else "")
    return _google(f"{size}/{_WIKI}_uncased{'_2020' if again else ''}", archive, True, 30522, *about)


def _elmo(name: str, path: str, note: str, licence="unrestricted", weights="weights.hdf5") -> Entry:
    """A biLM of AI2's bucket; `path` is FOLDER/STEM, and a file is called STEM_weights.hdf5 or STEM_options.json."""
    urls = tuple(f"{_AI2}allennlp/models/elmo/{path}_{file}" for file in (weights, "options.json"))
    return Entry(f"elmo_{name}", "allennlp", urls, licence, _ELMO, note=note)


def _scibert(dataset: str, vocabulary_size: int) -> Entry:
    urls = (f"{_AI2}ai2-s2-research/scibert/tensorflow_models/scibert_{dataset}.tar.gz",)
    about = (_APACHE, "https://arxiv.org/abs/1903.10676", dataset.endswith("_uncased"), vocabulary_size)
    return Entry(f"{_BASE}/scibert_{dataset}", "google", urls, *about)


def _biobert(version: str, corpora: str) -> Entry:
    urls = (f"{_NAVER}v{version}-{corpora.replace('_', '-')}/biobert_v{version}_{corpora}.tar.gz",)
    about = (_APACHE, "https://doi.org/10.1093/bioinformatics/btz682", False, 28996)
    note = "the licence of github.com/dmis-lab/biobert; it adds the terms of the National Library of Medicine"
    return Entry(f"{_BASE}/biobert_v{version}_{corpora}_cased", "google", urls, *about, note=note)


def _answers(name: str, use: str, note: str, citation: str, **figures: float) -> Entry:
    """A model with answers that comes with the package, over its encoder of six layers."""
    about = ("shipped", (), _APACHE, citation, True, 26000)
    return Entry(name, *about, base=_SIX, embedding_width=176, use=use, note=note, figures=figures)


_APACHE, _WIKI = "Apache-2.0", "book_corpus_wiki_en"
_SIX = "bert_6_384_12/books_wiki_en"
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_OURS = "20 million words of public-domain books and Wikipedia"
_AI2_TERMS = "its authors impose no restrictions: github.com/allenai/allennlp/issues/1462"
_LARGE = "2x4096_512_2048cnn_2xhighway"
_SMALLER = ("2x1024_128_2048cnn_1xhighway", "2x2048_256_2048cnn_1xhighway")
_NEWS, _PUBMED = "800 million words of news, the 1 Billion Word Benchmark", "a contribution to AllenNLP's page"
_BASE = "bert_12_768_12"
_WHOLE = "all pieces of a word were masked together"
_102 = "102 languages; its authors recommend wiki_multilingual_cased instead"
_CHINESE = "GluonNLP's name; Google's tokenization.py lower-cases its Latin letters"
ENTRIES: tuple[Entry, ...] = (
    _answers(
        "sentiment_en/sst2",
        "is a sentence positive or negative?",
        "fine-tuned on SST-2: accuracy 88.9 on its development set",
        "https://aclanthology.org/D13-1170",
    ),
    _answers(
        "names_en/wnut17",
        "persons, places, groups, products in a text",
        "fine-tuned on WNUT-17 (CC BY 4.0): F1 38.8 on its test set",
        "https://aclanthology.org/W17-4418",
    ),
    _answers(
        "answers_en/squad",
        "the answer to a question in a text",
        "fine-tuned on a part of SQuAD 1.1 (CC BY-SA 4.0): F1 70.4 on its development set",
        "https://aclanthology.org/D16-1264",
    ),
    _answers(
        "similar_en/books_wiki_en",
        "vectors of texts: similarity, search",
        f"the encoder of {_SIX}",
        "https://aclanthology.org/D19-1410",
        **{"STS-B": 81.1, "MB": 16.1, "ms": 1.4},
    ),
    Entry(
        _SIX,
        *("shipped", (), _APACHE, _BERT, True, 26000),
        use="words for [MASK], as masked_en; the best to fine-tune",
        note=f"taught by {_MINILM}, on {_OURS}, with both heads of pretraining",
        embedding_width=176,
        figures={"STS-B": 81.1, "SST-2": 86.4, "WNUT-17": 40.5, "MB": 16.1, "ms": 1.4},
    ),
    Entry(
        "bert_3_384_12/books_wiki_en",
        *("shipped", (), _APACHE, "https://arxiv.org/abs/1910.01108", True, 26000),
        use="similar texts, search, fine-tuning",
        note=f"taught by {_MINILM}, on {_OURS}",
        embedding_width=176,
        figures={"STS-B": 80.5, "SST-2": 83.3, "WNUT-17": 35.3, "MB": 10.7, "ms": 0.9},
    ),
    Entry(
        "static_128/books_wiki_en",
        *("shipped", (), _APACHE, "https://github.com/MinishLab/model2vec", True, 26000),
        use="similar texts, fastest and smallest",
        note=f"word pieces without context, taught by {_MINILM}, on {_OURS}",
        figures={"STS-B": 74.2, "SST-2": 81.3, "WNUT-17": 12.4, "MB": 3.6, "ms": 0.2},
    ),
    Entry(
        "glove_50/6b",
        *("shipped", (), "PDDL-1.0", "https://aclanthology.org/D14-1162", True, 60_001),
        use="word vectors: neighbours, analogies",
        note="word vectors for neighbours and analogies: the most frequent words of Stanford's glove.6B",
        figures={"MB": 3.7},
    ),
    Entry(
        "elmo_2x512_128_512cnn_1xhighway/books_wiki_en",
        *("shipped", (), _APACHE, _ELMO),
        use="words from their characters; a language model",
        note=_OURS,
        figures={"STS-B": 20.5, "SST-2": 71.5, "WNUT-17": 25.0, "MB": 3.4, "ms": 2.1},
    ),
    Entry(
        "g2p_en/cmudict",
        *("shipped", (), _APACHE, "https://arxiv.org/abs/1508.04025"),
        use="spelling to phonemes",
        note="spelling to phonemes, trained on CMUdict (BSD-2-Clause): 22.6% of unseen words wrong, 5.3% of phonemes",
        figures={"MB": 2.1},
    ),
    _google(f"bert_12_768_12/{_WIKI}_uncased", "2018_10_18/uncased_L-12_H-768_A-12", True, 30522),
    _google(f"bert_12_768_12/{_WIKI}_cased", "2018_10_18/cased_L-12_H-768_A-12", False, 28996),
    _google(f"bert_24_1024_16/{_WIKI}_uncased", "2018_10_18/uncased_L-24_H-1024_A-16", True, 30522),
    _google(f"bert_24_1024_16/{_WIKI}_cased", "2018_10_18/cased_L-24_H-1024_A-16", False, 28996),
    _google(
        f"bert_24_1024_16/{_WIKI}_uncased_wwm", "2019_05_30/wwm_uncased_L-24_H-1024_A-16", True, 30522, note=_WHOLE
    ),
    _google(f"bert_24_1024_16/{_WIKI}_cased_wwm", "2019_05_30/wwm_cased_L-24_H-1024_A-16", False, 28996, note=_WHOLE),
    _google(
        f"{_BASE}/wiki_multilingual_cased",
        "2018_11_23/multi_cased_L-12_H-768_A-12",
        False,
        119547,
        note="104 languages",
    ),
    _google(f"{_BASE}/wiki_multilingual_uncased", "2018_11_03/multilingual_L-12_H-768_A-12", True, 105879, note=_102),
    _google(f"{_BASE}/wiki_cn_cased", "2018_11_03/chinese_L-12_H-768_A-12", True, 21128, note=_CHINESE),
    _scibert("scivocab_uncased", 31090),
    _scibert("scivocab_cased", 31116),
    _scibert("basevocab_uncased", 30522),
    _scibert("basevocab_cased", 28996),
    *(_biobert(*release) for release in (("1.0", "pmc"), ("1.0", "pubmed"), ("1.0", "pubmed_pmc"), ("1.1", "pubmed"))),
    Entry(
        f"{_BASE}/openwebtext_book_corpus_wiki_en_uncased",
        *("", (), _APACHE, "https://arxiv.org/abs/1907.04433", True, 30522),
        note="GluonNLP's own training, published as an MXNet parameter file only",
    ),
    Entry(
        "bert_12_768_12/clinicalbert_uncased",
        *("", (), "not stated", "https://arxiv.org/abs/1904.05342", True, 30522),
        note="published as a PyTorch pickle on a file-sharing service, without a hash; --from reads such files beside "
        "their config.json",
    ),
    Entry(
        "bert_12_768_12/kobert_news_wiki_ko_cased",
        *("", (), _APACHE, "https://github.com/SKTBrain/KoBERT", False, 8002),
        note="its pieces are SentencePiece's, which no word-piece vocabulary states",
    ),
    Entry(
        "ernie_12_768_12/baidu_ernie_uncased",
        *("", (), _APACHE, "https://arxiv.org/abs/1904.09223", True, 18000),
        positions=513,
        note="published as Paddle parameter files only",
    ),
    *(_small_bert(layers, heads) for layers in (2, 4, 6, 8, 10, 12) for heads in (2, 4, 8, 12)),
    *(_elmo(f"{size}/gbw", f"{size}/elmo_{size}", f"{_NEWS}; {_AI2_TERMS}") for size in (*_SMALLER, _LARGE)),
    _elmo(
        f"{_LARGE}/5bw", f"{_LARGE}_5.5B/elmo_{_LARGE}_5.5B", f"5.5 billion words of Wikipedia and news; {_AI2_TERMS}"
    ),
    _elmo(f"{_LARGE}/pubmed", f"contributed/pubmed/elmo_{_LARGE}", _PUBMED, "not stated", "weights_PubMed_only.hdf5"),
)


# a model that came with the package -> the one that replaced it
SUCCESSORS = {"bert_4_256_4/books_wiki_en": "bert_3_384_12/books_wiki_en"}

# other names of models: plain ones, and those of Hugging Face and KerasHub, with "_" for "-"
_ALIASES = {
    "masked_en": _SIX,
    "bert_base_multilingual_cased": "bert_12_768_12/wiki_multilingual_cased",
    "bert_base_multilingual_uncased": "bert_12_768_12/wiki_multilingual_uncased",
    "bert_base_multi": "bert_12_768_12/wiki_multilingual_cased",
    "bert_base_chinese": "bert_12_768_12/wiki_cn_cased",
    "bert_base_zh": "bert_12_768_12/wiki_cn_cased",
    "elmo": f"elmo_{_LARGE}/gbw",
}
_SIZE_NAMES = {"tiny": "2_128_2", "mini": "4_256_4", "small": "4_512_8", "medium": "8_512_8"}
_SIZE_NAMES |= {"base": "12_768_12", "large": "24_1024_16"}


def _alias(name: str) -> str:
    """The name of the entry that Hugging Face or KerasHub call so; any other name unchanged.

    >>> _alias("google-bert/bert-base-uncased"), _alias("bert_tiny_en_uncased")
    ('bert_12_768_12/book_corpus_wiki_en_uncased', 'bert_2_128_2/book_corpus_wiki_en_uncased')
    """
    theirs = name.rpartition("/")[2].lower().replace("-", "_")
    if match := re.fullmatch(r"bert_uncased_l_(\d+)_h_(\d+)_a_(\d+)", theirs):
        return f"bert_{'_'.join(match.groups())}/{_WIKI}_uncased"
    match = re.fullmatch(r"bert_([a-z]+)(?:_en|(?:_en)?_(cased|uncased))(_whole_word_masking)?", theirs)
    if match and match[1] in _SIZE_NAMES:  # KerasHub's bert_base_en is cased
        return f"bert_{_SIZE_NAMES[match[1]]}/{_WIKI}_{match[2] or 'cased'}{'_wwm' if match[3] else ''}"
    return _ALIASES.get(theirs, name)


def lookup(name: str) -> Entry:
    """The entry with a name.

    Args:
        name: SIZE/DATASET, or one of the two if only one entry has it; or what Hugging Face or KerasHub call the model,
            e.g. bert-base-uncased.

    Raises:
        ValueError: no entry matches, or several.

    >>> lookup("scibert_scivocab_uncased").name
    'bert_12_768_12/scibert_scivocab_uncased'
    """
    known_as = _alias(name)
    if known_as in SUCCESSORS:
        raise ValueError(f"{name}: no longer comes with the package; use {SUCCESSORS[known_as]}, which is better")
    exact = [entry for entry in ENTRIES if entry.name == known_as]
    entries = exact or [entry for entry in ENTRIES if known_as in entry.name.split("/")]
    if len(entries) == 1:
        return entries[0]
    if entries:
        names = ", ".join(entry.name for entry in entries)
        raise ValueError(f"{name}: {len(entries)} models have it; choose one of {names}")
    close = difflib.get_close_matches(name, [entry.name for entry in ENTRIES], 3, 0.5)
    like = f"; like it: {', '.join(close)}" if close else ""
    hub = f"; of the Hugging Face Hub: hf://{name if '/' in name else f'OWNER/{name}'}"
    raise ValueError(f"{name}: no published model of that name{like}; `ctxrep zoo list` shows all{hub}")
