"""The biLM files of AllenNLP and bilm-tf: options.json and an hdf5 of weights.

https://github.com/allenai/bilm-tf, `bilm/model.py` and `dump_weights` of `bilm/training.py`.
"""

import itertools
import json
import math
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_ctxrep.atomic import atomic_folder, reserve
from keras_ctxrep.checks import errors_of, most, regular
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.weights import Tensor, arrays, check, fill, single
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import elmo
from keras_ctxrep.text.artifacts import VOCAB, visible
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import WordFeatures
from keras_ctxrep.text.tokens import read_vocab, vocab_text

__all__ = ["read", "weight_map", "write"]

WEIGHTS, OPTIONS = "weights.hdf5", "options.json"
SUFFIXES = (".hdf5", ".h5")
BOMB, EXPANSION = 64 << 20, 100  # bytes from which a tensor must be stored, and how far it may be compressed
CHARACTERS = 261  # rows: bytes, begin and end of sentence and word, padding; the file has no row for "no word"
MAX_CHARACTERS = 50  # of a word, with the two that mark its ends; AllenNLP's is fixed
_OWN_CHARACTERS, _OWN_CLIP = "keras_ctxrep.max_characters_per_token", "keras_ctxrep.proj_clip"
LSTM = {  # option in "lstm" -> field of `elmo.Config`, type, minimum, default if it has one, and maximum
    "use_skip_connections": ("residual", bool),
    "dim": ("cells", int, 1),
    "projection_dim": ("projection", int, 1),
    "n_layers": ("layers", int, 1, 1, most(elmo.Config, "layers")),
    "cell_clip": ("cell_clip", (float, int), 1e-6, None),
    "proj_clip": ("projection_clip", (float, int), 1e-6, None),
}
_CELLS = "MultiRNNCell/Cell{}/LSTMCell"
_ONLY_CELL = "LSTMCell"  # the name in `dump_weights` if there is only one layer


def read(source: str | Path) -> tuple[keras.Model, Bundle]:
    """The encoder of a biLM, and its bundle.

    Args:
        source: the weight file with options.json beside it, or the folder of both. For NAME_weights.hdf5
            NAME_options.json is preferred. A biLM over words reads its vocabulary from a vocab*.txt beside it.

    Raises:
        ValueError: a file or an option is missing or damaged, or the tensors are not those that the options call for.

    >>> import tempfile
    >>> config = elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder, elmo.encoder(config), Bundle("elmo", "embed", asdict(config), 128))
    ...     model, bundle = read(folder)
    >>> model.name, bundle.config["cells"]
    ('elmo_encoder', 128)
    """
    path = _weight_file(Path(source))
    options = _options(path)
    with _open(path) as file:
        stored: dict[str, Any] = {}
        file.visititems(lambda name, item: stored.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        config = _config(options, stored)
        single = config.layers == 1 and any(name.startswith(f"RNN_0/RNN/{_ONLY_CELL}/") for name in stored)
        tensors = weight_map(config, _ONLY_CELL if single else _CELLS)
        _leave_identities_out(config, stored, path)
        check(tensors, stored, path)
        vocab = _vocabulary(path.parent, config.words) if config.words else ()
        with no_random_weights():
            model = elmo.encoder(config, config.dropout)
        fill(model, tensors, stored, path)
    return model, Bundle("elmo", "embed", asdict(config), max_length=128, vocab=vocab)


def write(folder: str | Path, model: keras.Model, bundle: Bundle) -> None:
    """Writes options.json and weights.hdf5, and vocab.txt if the bundle has a vocabulary.

    bilm-tf and AllenNLP 2.10.1 read them; AllenNLP adds a layer's input to its output (`residual`) in every biLM, and
    reads none over words. Both projections are written, since AllenNLP reads them; where ours has none, as identities.
    AllenNLP reads 50 characters of a word: of a biLM with fewer, the number is kept in "keras_ctxrep", and longer words
    have other vectors there.

    Args:
        folder: the folder to write.
        model, bundle: an encoder, a language model or a model of a task; only the weights of its biLM are written.

    Raises:
        ValueError: the model is not a biLM, or does not match the bundle.
    """
    if bundle.family != "elmo":
        raise ValueError(f"a model of the family {bundle.family!r}: this format holds a biLM")
    config = elmo.Config(**bundle.config)
    with atomic_folder(folder, without=(VOCAB,)) as new:
        tensors = weight_map(config)
        reserve(Path(folder, WEIGHTS), sum(4 * math.prod(tensor.shape) + 4096 for tensor in tensors))
        with h5py.File(new / WEIGHTS, "w") as file:
            for name, array in arrays(model, tensors):
                file[name] = array
            for name, array in _identities(config).items():
                file[name] = array
        (new / OPTIONS).write_bytes((json.dumps(_options_json(config), indent=1) + "\n").encode())
        if bundle.vocab:
            (new / VOCAB).write_bytes(vocab_text(bundle.vocab).encode())


def weight_map(config: elmo.Config, cells: str = _CELLS) -> list[Tensor]:
    """The weight map of a biLM: its tensors, and our weights that each contains.

    Args:
        config: sizes.
        cells: format of the names of a direction's layers in the file.

    >>> [tensor.name for tensor in weight_map(elmo.Config(words=9, layers=1))]  # doctest: +ELLIPSIS
    ['embedding', 'RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0', ...]
    """
    if config.words:  # our table has a row for "no word" before those of the words
        tensors = [Tensor("embedding", (config.words, config.width), ("word_embedding/embeddings",), skip=1)]
    else:
        tensors = _char_cnn(config)
    for number, direction in enumerate(("forward", "backward")):
        for index in range(config.layers):
            theirs, ours = f"RNN_{number}/RNN/{cells.format(index)}", f"{direction}_{index}"
            kernels = (f"{ours}/kernel", f"{ours}/recurrent_kernel")
            tensors.append(Tensor(f"{theirs}/W_0", (2 * config.width, 4 * config.cells), kernels))
            tensors.append(Tensor(f"{theirs}/B", (4 * config.cells,), (f"{ours}/bias",)))
            if config.width < config.cells:
                tensors.append(Tensor(f"{theirs}/W_P_0", (config.cells, config.width), (f"{ours}/projection_kernel",)))
    return tensors


def _identities(config: elmo.Config) -> dict[str, np.ndarray]:
    """Projections that AllenNLP reads and the biLM does not have, as it keeps the width."""
    identities: dict[str, np.ndarray] = {}
    if not config.words and config.width == sum(number for _, number in config.filters):
        identities |= {"CNN_proj/W_proj": np.eye(config.width, dtype=np.float32)}
        identities |= {"CNN_proj/b_proj": np.zeros(config.width, np.float32)}
    if config.width == config.cells:
        for number, index in itertools.product(range(2), range(config.layers)):
            name = f"RNN_{number}/RNN/{_CELLS.format(index)}/W_P_0"
            identities[name] = np.eye(config.width, dtype=np.float32)
    return identities


def _leave_identities_out(config: elmo.Config, stored: dict[str, Any], path: Path) -> None:
    """Removes the projections that a file has as identities; a ValueError if one to the same width is none."""
    for name, identity in _identities(config).items():
        if name in stored and stored[name].shape == identity.shape:
            if not np.array_equal(stored[name][...], identity):
                raise ValueError(
                    f"{path}: {name} projects to the same width and is no identity, which is not supported"
                )
            del stored[name]


def _char_cnn(config: elmo.Config) -> list[Tensor]:
    total = sum(number for _, number in config.filters)
    tensors = [Tensor("char_embed", (CHARACTERS, config.embedding_dim), ("char_cnn/char_embed",))]
    for index, (width, number) in enumerate(config.filters):
        name, shape = f"W_cnn_{index}", (1, width, config.embedding_dim, number)  # a 2D convolution in the file
        tensors += [
            Tensor(f"CNN/{name}", shape, (f"char_cnn/{name}",), forth=lambda x: x[0], back=lambda x: x[None]),
            Tensor(f"CNN/b_cnn_{index}", (number,), (f"char_cnn/b_cnn_{index}",)),
        ]
    for index in range(config.highways):
        for name, shape in (("W", (total, total)), ("b", (total,))):
            for gate in ("carry", "transform"):
                ours = f"char_cnn/high_{index}_{name}_{gate}"
                tensors.append(Tensor(f"CNN_high_{index}/{name}_{gate}", shape, (ours,)))
    if config.width != total:
        tensors.append(Tensor("CNN_proj/W_proj", (total, config.width), ("char_cnn/W_proj",)))
        tensors.append(Tensor("CNN_proj/b_proj", (config.width,), ("char_cnn/b_proj",)))
    return tensors


def _weight_file(source: Path) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise ValueError(f"{source}: no such file or folder")
    files = visible(path for path in source.iterdir() if path.suffix in SUFFIXES)
    if len(files) > 1:
        files = [path for path in files if _holds_a_bilm(path)] or files
    return single(files, f"{source}: one weight file, {' or '.join(SUFFIXES)},")


def _holds_a_bilm(path: Path) -> bool:
    try:
        with _open(path) as file:
            return "RNN_0" in file
    except ValueError:
        return False


@contextmanager
def _open(path: Path):
    try:
        file = h5py.File(regular(path), "r")
    except OSError as error:
        raise ValueError(f"{path}: not a whole hdf5 file; copy it again: {error}") from None
    with file:
        external = file.visititems_links(_external) or file.visititems(_external)
        if external:
            raise ValueError(f"{path}: {external}; write the file again with the tensors in it")
        yield file


def _external(name: str, item: Any) -> str | None:
    """Describes an item whose values are not in the file itself, a link or external storage; None for others."""
    if isinstance(item, h5py.SoftLink | h5py.ExternalLink):
        return f"{name} is a link to {getattr(item, 'filename', item.path)}"
    if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
        return f"{name} lies in another file"
    if isinstance(item, h5py.Dataset) and item.shape is not None:
        size, stored = item.nbytes, item.id.get_storage_size()
        if size > max(BOMB, EXPANSION * stored):
            return f"{name} has {size / 1e6:,.0f} MB, of which {stored / 1e6:,.0f} are stored"
    return None


def _options(weights: Path) -> SourceOptions:
    """The options of the file that belongs to a weight file."""
    folder = weights.parent
    for path in (folder / f"{weights.stem.removesuffix('weights')}{OPTIONS}", folder / OPTIONS):
        if path.is_file():
            return SourceOptions(path)
    paths = visible(folder.glob(f"*{OPTIONS}"))
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise ValueError(f"{weights}: {OPTIONS} is needed beside it; found {names}")
    return SourceOptions(paths[0])


def _vocabulary(folder: Path, words: int) -> tuple[str, ...]:
    """The words of the only vocab*.txt; empty if there is no such file."""
    files = sorted(folder.glob("vocab*.txt"))
    if len(files) > 1:
        raise ValueError(f"{folder}: several vocabularies: {', '.join(path.name for path in files)}; leave one")
    if not files:
        return ()
    vocab = tuple(line.strip() for line in read_vocab(files[0]) if line.strip() != "!!!MAXTERMID")
    if len(vocab) != words:
        raise ValueError(f"{files[0]}: {len(vocab)} words; the tensor embedding has {words} rows, one for each")
    with errors_of(files[0]):
        WordFeatures(vocab)
    return vocab


def _config(options: SourceOptions, stored: dict[str, Any]) -> elmo.Config:
    get, source = options.get, options.source
    fields: dict[str, Any] = {field: get(f"lstm.{name}", *bounds) for name, (field, *bounds) in LSTM.items()}
    if fields["projection_clip"] is None:  # an identity in AllenNLP would clip what ours does not project
        fields["projection_clip"] = get(_OWN_CLIP, (float, int), 1e-6, None)
    fields["dropout"] = get("dropout", (float, int), 0, elmo.Config.dropout)
    if "char_cnn" in options.values:
        fields |= {
            "filters": _filters(get("char_cnn.filters", list), source),
            "embedding_dim": get("char_cnn.embedding.dim", int, 1),
            "highways": get("char_cnn.n_highway", int, 0, 0, most(elmo.Config, "highways")),
            "activation": get("char_cnn.activation", str),
            "max_characters": get(_OWN_CHARACTERS, int, 3, get("char_cnn.max_characters_per_token", int, 3)),
        }
        characters = get("char_cnn.n_characters", int)
        if characters not in (CHARACTERS, CHARACTERS + 1):
            needed = f"{CHARACTERS} (of training) or {CHARACTERS + 1} is needed"
            raise ValueError(f"{source}: the option char_cnn.n_characters is {characters}; {needed}")
        if fields["activation"] not in ("relu", "tanh"):
            raise ValueError(f"{source}: the option char_cnn.activation is {fields['activation']!r}; relu or tanh")
        widest = max(width for width, _ in fields["filters"])
        if widest > fields["max_characters"]:
            option = f"char_cnn.max_characters_per_token is {fields['max_characters']}"
            raise ValueError(f"{source}: a filter {widest} characters wide; {option}")
    elif "embedding" in stored:
        rows = stored["embedding"].shape[0] if stored["embedding"].shape else 0
        fields["words"] = get("n_tokens_vocab", int, 1, rows)
    else:
        raise ValueError(f"{source}: the option char_cnn is missing, and there is no tensor embedding of words")
    with errors_of(source):
        return elmo.Config(**fields)


def _options_json(config: elmo.Config) -> dict[str, Any]:
    lstm = {name: getattr(config, field) for name, (field, *_) in LSTM.items()} | {"projection_dim": config.width}
    characters = {
        "activation": config.activation,
        "embedding": {"dim": config.embedding_dim},
        "filters": config.filters,
        "n_highway": config.highways,
        "n_characters": CHARACTERS + 1,
        "max_characters_per_token": max(MAX_CHARACTERS, config.max_characters),
    }
    tokens = {"n_tokens_vocab": config.words} if config.words else {"char_cnn": characters}
    own: dict[str, Any] = {}
    if not config.words and config.max_characters < MAX_CHARACTERS:
        own[_OWN_CHARACTERS] = config.max_characters
    if config.width == config.cells and config.projection_clip is not None:
        own[_OWN_CLIP], lstm["proj_clip"] = config.projection_clip, None
    kept = {"keras_ctxrep": {name.partition(".")[2]: value for name, value in own.items()}} if own else {}
    return {"lstm": lstm, "dropout": config.dropout, "bidirectional": True} | tokens | kept


def _filters(pairs: Sequence, source: object) -> tuple[tuple[int, int], ...]:
    valid = [isinstance(pair, list) and [type(x) for x in pair] == [int, int] and min(pair) > 0 for pair in pairs]
    if not pairs or not all(valid):
        raise ValueError(f"{source}: the option char_cnn.filters is {pairs!r}; [characters, filters] pairs are needed")
    return tuple((width, number) for width, number in pairs)
