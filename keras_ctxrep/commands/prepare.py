"""`ctxrep prepare`: a large text, split, and for BERT masked, once before pretraining."""

from dataclasses import dataclass
from typing import Any

from keras_ctxrep.commands.command import Command, Group, argument, function, in_python
from keras_ctxrep.commands.pretrain import CORPUS
from keras_ctxrep.commands.printing import print_line
from keras_ctxrep.options import AnyPath, Preparation

__all__ = ["Prepare", "prepare"]

HELP = "split a large text, and for BERT mask it, once before pretraining"
DESCRIPTION = """\
Writes shards to a folder, for `ctxrep pretrain FAMILY --corpus FOLDER`: for ELMo sentences split into
words, for BERT pairs of segments with their masks. Without it, text is split and masked anew in every pass.
The shards are the same for any number of processes and any runner, and the same command resumes an
interrupted preparation."""


@dataclass(frozen=True)
class Prepare(Preparation, Command[dict]):
    """Split a text once, and for BERT mask it, into shards that `pretrain` reads.

    Notes:
        For BERT as https://github.com/google-research/bert, create_pretraining_data.py; `copies` is its dupe_factor.
        For a biLM, sentences that are split into words. Each pass over a unit of 4 MB of text gives a shard, the same
        for any number of processes and any runner. An interrupted preparation goes on with the missing ones. The folder
        has train-*.tfrecord, valid.tfrecord, vocab.txt and prepared.json, which is written last. In a script, several
        processes need the usual `if __name__ == "__main__":`.

    Returns: the contents of prepared.json: the settings, counts and hashes.

    Raises:
        TypeError: no such option.
        ValueError: no text, a vocabulary that does not fit, an argument out of range, or `out` is a model folder or
            another process is writing in it.
    """

    configurable = True

    corpus: Any = argument(CORPUS)
    out: AnyPath = argument("--out FOLDER  the folder to write")
    family: str = in_python("bert")  # or "elmo"

    def run(self) -> dict:
        from keras_ctxrep.recipes.preparing import run

        return run(self.corpus, self.out, self.family, self)

    def show(self, result: dict) -> None:
        if "sentences" in result:
            text = f"{result['sentences']:,} sentences of {result['words'] / 1e6:.1f} million words"
        else:
            text = f"{result['examples']:,} pairs of segments, {result['pieces'] / 1e6:.1f} million pieces, "
            text += f"{result['copies']} passes, {result['valid_examples']:,} more pairs held out"
        print_line(f"{self.out}: {text}, {len(result['shards'])} shards")


KINDS = {
    "elmo": (Prepare, "sentences split into words, for `ctxrep pretrain elmo --corpus FOLDER`", DESCRIPTION),
    "bert": (Prepare, "pairs of segments with their masks, for `ctxrep pretrain bert --corpus FOLDER`", DESCRIPTION),
}
GROUP = Group(HELP, DESCRIPTION, KINDS)
prepare = function(Prepare, "prepare")
