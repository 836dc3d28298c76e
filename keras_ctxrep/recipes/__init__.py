"""From files to model folders and back: what each `ctxrep` subcommand does, as one function."""

from keras_ctxrep.recipes.embedding import embed
from keras_ctxrep.recipes.finetuning import finetune
from keras_ctxrep.recipes.pretraining import prepare, pretrain
from keras_ctxrep.recipes.scoring import score, score_sentences

__all__ = ["embed", "finetune", "prepare", "pretrain", "score", "score_sentences"]
