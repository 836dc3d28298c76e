"""`ctxrep pretrain`: a biLM, a BERT, a language model in one direction or static word vectors, learned from text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Self

from keras_ctxrep.commands.command import Command, Group, argument, function, in_python
from keras_ctxrep.commands.printing import print_evaluation, print_line
from keras_ctxrep.options import AnyPath, Pretraining, StaticPretraining

__all__ = ["Pretrain", "PretrainStatic", "pretrain", "pretrain_static"]

MINUTES = 30.0  # of pretraining and of distillation from text on the command line, unless --steps is given
CORPUS, OUT = "--corpus FILE ...  text files", "--out FOLDER  the model folder to write"
HELP = "learn an ELMo biLM, a BERT, a language model (lm) or static word vectors from text"
TEXT = """\
Text files are UTF-8, one sentence a line, an empty line between documents; .gz, .bz2 and .xz are read as
they are. The same command resumes an interrupted run."""
DESCRIPTION = f"""\
{TEXT} `ctxrep pretrain FAMILY --help` lists the
options of a family.

  ctxrep pretrain bert --corpus text.txt --minutes 60 --out bert
  ctxrep pretrain static --corpus text.txt --model skipgram --subwords --out vectors"""


class LearnsFromText(Command[list[dict]]):
    """What the commands share that learn from text: the length of a run unless it is given, and what is printed."""

    configurable = True
    out: str | Path

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        return {"minutes": f"{MINUTES:g}, unless --steps is given"}

    @classmethod
    def from_flags(cls, values: dict[str, Any]) -> Self:
        if "minutes" in cls.__dataclass_fields__ and not {"steps", "minutes"} & values.keys():
            values["minutes"] = MINUTES
        return super().from_flags(values)

    def show(self, result: list[dict]) -> None:
        print_line(f"{self.out}: {result[-1]['step']} steps, {result[-1]['minutes']:.1f} minutes")


@dataclass(frozen=True)
class Pretrain(LearnsFromText, Pretraining):
    """Pretrain a biLM, a BERT encoder or a language model in one direction from text files.

    Notes:
        A biLM learns from whole sentences, each by itself, or with `unroll` from running text, as published: then each
        batch starts from the final state of the previous one. A BERT learns from pairs of segments, with new masks in
        every epoch, or from what `prepare` masked once; as published first with `max_length=128`, then, `init` the
        folder of that run, with 512 for a tenth of the steps. A language model in one direction learns from running
        text. The corpus may be of any size: it is read again in every epoch. `steps` or `minutes` is needed. `init`
        gives size, heads and, for BERT, the vocabulary, of ELMo the softmax if it has one over the same vocabulary.
        Adagrad's `learning_rate` stays at its peak.

    Returns: the evaluations, which OUT/run.json has too, with loss and accuracy of both of BERT's tasks, or the
        perplexity, of a biLM in both directions.

    Raises:
        TypeError: no such option.
        ValueError: no such size, no text, a vocabulary that does not fit, an argument out of range, or `out` has the
            finished model of another run and `overwrite` is not set.

    Warns:
        UserWarning: `init` lacks a head, which starts at random.
    """

    family: str = in_python(MISSING)  # "elmo", "bert" or "lm"
    corpus: Any = argument(f"{CORPUS}, or but for lm a folder that `prepare` wrote")
    out: AnyPath = argument(OUT)
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)
    callbacks: Sequence = in_python(())  # of Keras

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        rates = (f"{name} {rate:g}" for name, rate in cls.RATES.items() if (family, name) != ("bert", "adagrad"))
        return {**super().defaults(family), "learning_rate": ", ".join(rates)}

    def run(self) -> list[dict]:
        from keras_ctxrep.recipes.pretraining import run

        return run(self.family, self.corpus, self.out, self.report, self.callbacks, self)


@dataclass(frozen=True)
class PretrainStatic(LearnsFromText, StaticPretraining):
    """Learn static word vectors from text files.

    Notes:
        word2vec's skip-gram and CBOW with negative sampling (Mikolov et al. 2013, https://arxiv.org/abs/1301.3781 and
        https://arxiv.org/abs/1310.4546), with `subwords` fastText's n-grams (Bojanowski et al. 2017,
        https://arxiv.org/abs/1607.04606). Two tables are learned, of which the words' is kept. It differs from both: 32
        neighbouring words share their noise words, and all words of a batch are updated at once
        (`models.static.skipgram`), so that a step is a few products of matrices.

        The corpus is read once, into a file of numbers in `out` that is removed in the end, 4 bytes a word; memory use
        grows with the number of distinct words alone. A window does not go beyond a line. The vector of <UNK> is the
        mean of all, with n-grams zero.

    Returns: the evaluations, {"step", "minutes", "loss"}: the mean loss of a centre.

    Raises:
        TypeError: no such option.
        ValueError: too few words, a batch size that does not fit, an argument out of range, or `out` has the finished
            model of another run and `overwrite` is not set.
    """

    any_backend = False

    corpus: Any = argument(CORPUS)
    out: AnyPath = argument(OUT)
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        return {"learning_rate": "of skipgram 0.025, of cbow 0.05, with --adagrad 0.1"}

    def run(self) -> list[dict]:
        from keras_ctxrep.recipes.static_pretraining import run

        return run(self.corpus, self.out, self.report, self)


def _kind(command: type[Command], help: str, example: str) -> tuple[type[Command], str, str]:
    return command, help, f"Learn {help}.\n\n{TEXT}\n\n  ctxrep pretrain {example}"


_ELMO = "a biLM over the characters of words, whose layers are ELMo's vectors"
_BERT = "a BERT, by masked words and next sentences"
_LM = "a language model in one direction, over words, word pieces or characters"
_STATIC = "static word vectors: skip-gram or CBOW, of words alone or with n-grams"
KINDS = {
    "elmo": _kind(Pretrain, _ELMO, "elmo --corpus text.txt --minutes 30 --out lm"),
    "bert": _kind(Pretrain, _BERT, "bert --corpus text.txt --minutes 60 --out bert"),
    "lm": _kind(Pretrain, _LM, "lm --corpus text.txt --size lm_lstm_2x200 --units characters --out lm"),
    "static": _kind(PretrainStatic, _STATIC, "static --corpus text.txt --model skipgram --subwords --out vectors"),
}
GROUP = Group(HELP, DESCRIPTION, KINDS)
pretrain = function(Pretrain, "pretrain")
pretrain_static = function(PretrainStatic, "pretrain_static")
