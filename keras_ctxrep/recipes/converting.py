"""Published weights to a model folder, and a model folder to a published format."""

import importlib
from pathlib import Path

from keras_ctxrep import saving, zoo
from keras_ctxrep.atomic import atomic_folder, check_folder
from keras_ctxrep.convert import bert, vectors
from keras_ctxrep.text.artifacts import CARD
from keras_ctxrep.training import checkpoints, runs

__all__ = ["convert"]


def convert(
    source: str | Path,
    out: str | Path,
    source_format: str | None = None,
    target_format: str | None = None,
    pairs: bool = False,
) -> str:
    """Reads published weights and writes a model folder, or the other way round.

    Args:
        source: published weights, as `read` of the format's module takes them; with `target_format` a model.
        out: the folder to write; of word vectors the file.
        source_format: that of `source`: "allennlp", "google", "huggingface", "kerashub" or "vectors".
        target_format: the format to write, "allennlp", "huggingface", "kerashub" or one of `convert.vectors.WRITTEN`;
            either this or `source_format`.
        pairs: of "huggingface": the classifier reads pairs of texts, which its files do not record.

    Returns: a summary of the model.

    Raises:
        ValueError: both formats or neither, or what `read` and `write` of the format's module refuse.
        ImportError: a package that the format needs is not installed.

    Warns:
        UserWarning: a part of the published weights is not in the model.
    """
    if (source_format is None) == (target_format is None):
        raise ValueError(f"source_format={source_format}, target_format={target_format}: either of them is needed")
    if target_format in vectors.WRITTEN:
        model, bundle = saving.load(zoo.find(source))
        vectors.write(out, model, bundle, str(target_format))
        return f"{len(bundle.vocab) - 1:,} words of {bundle.config['width']} dimensions"
    check_folder(out)
    converter = importlib.import_module(f"keras_ctxrep.convert.{source_format or target_format}")
    if source_format:
        model, bundle = converter.read(source, **({"pairs": True} if pairs else {}))
        # the card and the record of an earlier model are not those of this one
        with atomic_folder(out, without=(CARD, runs.NAME)) as folder:
            saving.save(folder, model, bundle)
        checkpoints.remove(out)
    else:
        model, bundle = saving.load(zoo.find(source))
        converter.write(out, model, bundle)
    if "heads" in bundle.config:
        return bert.summary(model, bundle)
    return f"{bundle.task}: {model.count_params() / 1e6:.1f} million weights"
