"""`ctxrep convert`: published weights to a model folder, and a model folder to a published format."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from keras_ctxrep.commands.command import Command, Usage, argument, function
from keras_ctxrep.commands.printing import print_line, print_report
from keras_ctxrep.options import AnyPath

__all__ = ["Convert", "convert"]

READ = ("allennlp", "google", "huggingface", "kerashub", "vectors")
WORD_VECTORS = ("word2vec", "word2vec-binary", "fasttext")
WRITTEN = ("allennlp", "changes", "huggingface", "kerashub", *WORD_VECTORS)


def _prefix(text: str) -> list[tuple[str, str]]:
    """NAME=PREFIX as a pair."""
    name, sign, prefix = text.partition("=")
    if not sign:
        raise ValueError(f"{text}: write NAME=PREFIX, e.g. query='query: '")
    return [(name, prefix)]


@dataclass(frozen=True)
class Convert(Command[str]):
    """Published weights to a model folder, and back.

    With --from, reads published weights and writes a model folder; with --to, reads a model folder and writes
    the published format, and prints which heads were there.

      allennlp     the options.json and hdf5 of AllenNLP and bilm-tf: ELMo
      google       bert_config.json and a TensorFlow 1 checkpoint: BERT
      huggingface  config.json and safetensors of `transformers`: BERT and its relatives, and GPT-2, read
      kerashub     a preset of KerasHub, by its folder or name: BERT,
                   DistilBERT, ELECTRA, RoBERTa
      vectors      word2vec text and binary, GloVe, fastText .vec and .bin: static word vectors, read
      word2vec, word2vec-binary, fasttext (.bin)                       static word vectors, written
      changes      what fine-tuning changed of a published encoder, in a megabyte; it is loaded with that encoder

    Returns: a summary of the model.

    Raises:
        ValueError: both formats or neither, or what `read` and `write` of the format's module refuse.
        ImportError: a package that the format needs is not installed.

    Warns:
        UserWarning: a part of the published weights is not in the model.
    """

    source: AnyPath = argument("published weights, a folder or file; with --to, a model folder or name of the zoo")
    out: AnyPath = argument("--out FOLDER  the folder to write; of word vectors the file")
    source_format: str | None = argument("[--from]  the format that is read", choices=READ)
    target_format: str | None = argument("[--to]  the format that is written", choices=WRITTEN)
    base: str | None = argument(
        "[--base NAME]  changes: the published encoder (default: the one that it was trained from)"
    )
    rank: int = argument("[--rank N] >=1  changes: of the differences of matrices; that of --lora loses nothing", 16)
    pairs: bool = argument("[--pairs]  huggingface: the classifier reads pairs, which its files do not record")
    roles: Mapping[str, str] | None = argument(
        "[--role NAME=PREFIX ...]  --from: put before texts of a role: query='query: ' (default: prompts in the files)",
        parse=_prefix,
    )

    def __post_init__(self):
        super().__post_init__()
        if (self.source_format is None) == (self.target_format is None):
            formats = f"source_format={self.source_format}, target_format={self.target_format}"
            raise Usage(f"{formats}: give either --from or --to")
        if self.pairs and self.source_format != "huggingface":
            raise Usage("--pairs is for --from huggingface")
        if self.roles and self.source_format is None:
            raise Usage("--role is for --from")
        if self.base is not None and self.target_format != "changes":
            raise Usage("--base is for --to changes")

    def main(self) -> None:
        from keras_ctxrep.zoo.folders import warnings_reported

        with warnings_reported(print_report):
            super().main()

    def run(self) -> str:
        from keras_ctxrep import saving, zoo
        from keras_ctxrep.atomic import atomic_folder, check_folder
        from keras_ctxrep.convert import bert, vectors
        from keras_ctxrep.models.families import FAMILIES
        from keras_ctxrep.text.bundle import CARD, complete_roles
        from keras_ctxrep.training import checkpoints, runs

        if self.target_format in WORD_VECTORS:
            model, bundle = saving.load(zoo.find(self.source))
            vectors.write(self.out, model, bundle, self.target_format)
            return f"{len(bundle.vocab) - 1:,} words of {bundle.config['width']} dimensions"
        check_folder(self.out)
        if self.target_format == "changes":
            return self._changes(Path(zoo.find(self.source)))
        converter = importlib.import_module(f"keras_ctxrep.convert.{self.source_format or self.target_format}")
        if self.source_format:
            model, bundle = converter.read(self.source, **({"pairs": True} if self.pairs else {}))
            bundle = replace(bundle, roles=complete_roles(bundle.roles | dict(self.roles or {})))
            # the card and the record of an earlier model are not those of this one
            with atomic_folder(self.out, without=(CARD, runs.NAME)) as folder:
                saving.save(folder, model, bundle)
            checkpoints.remove(self.out)
        else:
            model, bundle = saving.load(zoo.find(self.source))
            converter.write(self.out, model, bundle)
        if FAMILIES[bundle.family].layout is not None:
            return bert.summary(model, bundle)
        return f"{bundle.task}: {model.count_params() / 1e6:.1f} million weights"

    def _changes(self, source: Path) -> str:
        from keras_ctxrep import saving
        from keras_ctxrep.text.artifacts import UPDATES
        from keras_ctxrep.training import history
        from keras_ctxrep.zoo.folders import name_of

        trained_from = history.record(source).get("arguments", {}).get("encoder")
        base = self.base or (trained_from and name_of(trained_from))
        if base is None:
            raise ValueError(f"{source}: no record of the encoder that it was trained from; name it by --base")
        model, bundle = saving.load(source)
        saving.save_changes(self.out, model, bundle, base, self.rank)
        return f"{bundle.task} over {base}: {(Path(self.out) / UPDATES).stat().st_size / 1e6:.2f} MB"

    def show(self, result: str) -> None:
        print_line(f"{self.out}: {result}")


convert = function(Convert, "convert")
