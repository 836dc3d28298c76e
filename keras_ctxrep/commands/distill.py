"""`ctxrep distill`: a small model that learns from the outputs of a larger one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Self

from keras_ctxrep.commands.command import Group, Usage, argument, function, in_python
from keras_ctxrep.commands.pretrain import CORPUS, OUT, LearnsFromText
from keras_ctxrep.commands.printing import print_error, print_evaluation
from keras_ctxrep.commands.train import DEV_HELP, Finetunes, file_or_fraction
from keras_ctxrep.options import AnyPath, Distillation, EncoderDistillation, Options, StaticDistillation

__all__ = ["Distill", "DistillEncoder", "DistillStatic", "distill", "distill_encoder", "distill_static"]

TEACHER = "a model folder that was fine-tuned; with --corpus any BERT"


@dataclass(frozen=True)
class Distill(Finetunes, Distillation):
    """Fine-tune a student on the labels of some data and on the outputs of a fine-tuned teacher.

    Notes:
        The teacher reads all texts once, before the first step; its logits stay in memory. Of texts without labels its
        answers are the labels too. Task, labels, columns and, unless it is given, the length are the teacher's; so are
        the `task_options` that are not given. The loss is in `losses`; `data`, `dev`, `report` and `announce` are as in
        `finetune`.

    Returns: the evaluations on `dev`.

    Raises:
        TypeError: there is no such option.
        ValueError: as in `finetune`, or the teacher was not fine-tuned, has a CRF or does not know a label.
    """

    teacher: AnyPath = argument(f"published  {TEACHER}")
    data: Any = argument("[--data FILE]  labelled examples to learn from", MISSING)
    dev: Any = argument(f"[--dev FILE]  {DEV_HELP}", MISSING, parse=file_or_fraction)
    out: AnyPath = argument(OUT)
    encoder: AnyPath | None = argument("""[--encoder FOLDER] published  what the student begins with, as in `ctxrep
        train`; or give --size""")
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)
    announce: Callable[[str], object] | None = in_python(prints=print_error)
    task_options: Options | Mapping[str, Any] | None = in_python()

    @classmethod
    def from_flags(cls, values: dict[str, Any]) -> Self:
        if "data" not in values:
            raise Usage("give --data, labelled examples of a fine-tuned teacher, or --corpus, text")
        return super().from_flags(values)

    def run(self) -> list[dict]:
        from keras_ctxrep.recipes.distilling import Distilling
        from keras_ctxrep.recipes.finetuning import Observers

        run = Distilling(self.teacher, self.data, self.dev, self.out, self.encoder, self, self.task_options)
        return run.train(Observers(report=self.report, announce=self.announce))


@dataclass(frozen=True)
class DistillEncoder(LearnsFromText, EncoderDistillation):
    """Teach a smaller BERT the vectors of a larger one, from text without labels.

    Notes:
        The student starts with some of the teacher's layers, as DistilBERT does (Sanh et al. 2019,
        https://arxiv.org/abs/1910.01108), and with the vectors of the pieces it keeps. The vector of a word is the mean
        of those of its pieces, so that student and teacher may split it differently. The teacher reads each sentence
        once: its vectors are kept on the disk in float16, 16 KB for a sentence of 20 words at a width of 384. `steps`
        or `minutes` is needed. Of a task model as the teacher the encoder is used.

    Returns: the evaluations on 1,000 held-out sentences.

    Raises:
        TypeError: no such option.
        ValueError: the teacher is no BERT or has no such layer, there is too little text, or `out` has the finished
            model of another run and `overwrite` is not set.
    """

    teacher: AnyPath = argument(f"published  {TEACHER}")
    corpus: Any = argument(CORPUS)
    out: AnyPath = argument(OUT)
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)

    def run(self) -> list[dict]:
        from keras_ctxrep.recipes.encoder_distilling import run

        return run(self.teacher, self.corpus, self.out, self.report, self)


@dataclass(frozen=True)
class DistillStatic(LearnsFromText, StaticDistillation):
    """Make a table of static vectors of an encoder's word pieces, and teach it the encoder's vectors of sentences.

    Notes:
        As in model2vec (https://github.com/MinishLab/model2vec) each piece is read once by the teacher, its vector is
        projected to the principal axes, and scaled by its frequency: a / (a + p), the weights of Arora et al. 2017
        (https://openreview.net/forum?id=SyK00v5xx, eq. 3, "SIF"). The vector of a text is the mean of its pieces' rows,
        in length 1. The rows then learn to give the teacher's vectors of sentences, as in Tokenlearn
        (https://github.com/MinishLab/tokenlearn), here by `losses.TextDistillation`.

        It differs from them: the axes are those of the teacher's vectors of sentences, not of pieces and not centred,
        so that the targets are the teacher's vectors themselves and have nearly its cosines. [CLS], [SEP], [UNK], [PAD]
        and [MASK] have zero rows, which do not learn. A row that no sentence has stays as it began. An interrupted run
        resumes: the teacher's vectors are in `out` until the end.

    Returns: the evaluations on 1,000 held-out sentences, or a tenth of those that there are.

    Raises:
        TypeError: no such option.
        ValueError: the teacher reads no word pieces or is narrower than `dims`, there is too little text, or `out` has
            the finished model of another run and `overwrite` is not set.
    """

    any_backend = False

    teacher: AnyPath = argument(f"published  {TEACHER}")
    corpus: Any = argument(CORPUS)
    out: AnyPath = argument(OUT)
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)
    static: bool = argument("[--static]  a table of vectors of word pieces, instead of a BERT, in minutes", True)

    def run(self) -> list[dict]:
        from keras_ctxrep.recipes.static_distilling import run

        return run(self.teacher, self.corpus, self.out, self.report, self)


HELP = "train a small model on the outputs of a larger one"
DESCRIPTION = """\
From labelled examples (--data): the student learns from the labels and from what a fine-tuned teacher answers, of
texts without labels from its answers alone. Task, labels, columns and length are the teacher's.
From text (--corpus): the student, a smaller encoder, learns the vectors of words and texts of any BERT;
with --static it is a table of word pieces. `ctxrep distill --corpus FILE --help` and
`ctxrep distill --static --help` list the options.

  ctxrep distill TEACHER --corpus text.txt --layers 0,3,5 --vocab-size 12000 --minutes 60 --out small
  ctxrep distill TEACHER --corpus text.txt --static --vocab-size 13000 --out table
  ctxrep distill large --data train.tsv --dev dev.tsv --unlabelled more.txt --size bert_2_128_2 --out small
  ctxrep tflite small --quantize dynamic --out small.tflite"""
KINDS = {
    kind: (command, HELP, DESCRIPTION)
    for kind, command in (("data", Distill), ("corpus", DistillEncoder), ("static", DistillStatic))
}
LABELLED = "with --corpus: it is for labelled examples"
FOREIGN = {  # kind -> kind that has an option -> why it is to be left out
    "data": {"corpus": "without --corpus", "static": "without --corpus and --static"},
    "corpus": {"data": LABELLED, "static": "without --static"},
    "static": {"data": LABELLED, "corpus": "with --static: it is for a student of layers"},
}


def kind_of(given: Collection[str]) -> str:
    """The kind of a command line, or of a configuration file, by the names of its options."""
    return next((kind for kind in ("static", "corpus") if kind in given), "data")


GROUP = Group(HELP, DESCRIPTION, KINDS, kind_of, FOREIGN)
distill = function(Distill, "distill")
distill_encoder = function(DistillEncoder, "distill_encoder")
distill_static = function(DistillStatic, "distill_static")
