"""The commands: one file each, which the command line, and the functions of `keras_ctxrep.recipes`, are made from."""

from keras_ctxrep.commands.analogy import Analogy
from keras_ctxrep.commands.command import Command
from keras_ctxrep.commands.compare import Compare
from keras_ctxrep.commands.convert import Convert
from keras_ctxrep.commands.export import Export
from keras_ctxrep.commands.fill import Fill
from keras_ctxrep.commands.generate import Generate
from keras_ctxrep.commands.neighbours import Neighbours
from keras_ctxrep.commands.tflite import Tflite

COMMANDS: dict[str, type[Command]] = {
    "analogy": Analogy,
    "neighbours": Neighbours,
    "fill": Fill,
    "convert": Convert,
    "export": Export,
    "tflite": Tflite,
    "generate": Generate,
    "compare": Compare,
}
