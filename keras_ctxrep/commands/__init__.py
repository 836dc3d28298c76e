"""The commands: one file each, which the command line, and the functions of `keras_ctxrep.recipes`, are made from."""

from keras_ctxrep.commands import distill, prepare, pretrain
from keras_ctxrep.commands.analogy import Analogy
from keras_ctxrep.commands.ask import Ask
from keras_ctxrep.commands.client import Client
from keras_ctxrep.commands.command import Command, Group
from keras_ctxrep.commands.compare import Compare
from keras_ctxrep.commands.convert import Convert
from keras_ctxrep.commands.demo import Demo
from keras_ctxrep.commands.embed import Embed
from keras_ctxrep.commands.export import Export
from keras_ctxrep.commands.fill import Fill
from keras_ctxrep.commands.generate import Generate
from keras_ctxrep.commands.glue import Glue
from keras_ctxrep.commands.index import Index
from keras_ctxrep.commands.neighbours import Neighbours
from keras_ctxrep.commands.plot import Plot
from keras_ctxrep.commands.predict import Predict
from keras_ctxrep.commands.score import Score
from keras_ctxrep.commands.search import Search
from keras_ctxrep.commands.serve import Serve
from keras_ctxrep.commands.tflite import Tflite
from keras_ctxrep.commands.train import Train
from keras_ctxrep.commands.zoo import Zoo

COMMANDS: dict[str, type[Command] | Group] = {
    "pretrain": pretrain.GROUP,
    "prepare": prepare.GROUP,
    "train": Train,
    "glue": Glue,
    "distill": distill.GROUP,
    "score": Score,
    "embed": Embed,
    "analogy": Analogy,
    "neighbours": Neighbours,
    "fill": Fill,
    "plot": Plot,
    "index": Index,
    "search": Search,
    "ask": Ask,
    "convert": Convert,
    "zoo": Zoo,
    "serve": Serve,
    "export": Export,
    "tflite": Tflite,
    "predict": Predict,
    "generate": Generate,
    "client": Client,
    "compare": Compare,
    "demo": Demo,
}
