"""The names by which Keras finds the classes of this package, whose modules are imported when a name is looked up."""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

NAMES = {  # module -> what it registers with Keras
    "keras_ctxrep.layers": (
        "Attention AttentionalRNN Bias CRF CarriedState CausalTransformerBlock CharCNN ConvolutionalDecoderBlock "
        "Dropout Embedding "
        "FactorizedEmbedding GatedConvolution MarkIndicator MaskedPooling MemoryAttention NgramContext "
        "PositionEmbedding ProjectedLSTM RelativePositionBias ReversibleEmbedding ScalarMix SentenceMarkers "
        "SinusoidalPositions SpanMean SpanPooling SubwordEmbedding TakePositions TiedSoftmax "
        "TransformerBlock TransformerDecoderBlock TwoWayAttention VocabularySoftmax WindowMean ZeroPadding"
    ),
    "keras_ctxrep.layers.initializers": "RandomWeights",
    "keras_ctxrep.layers.transformer": "gelu_tanh",
    "keras_ctxrep.models.model": "Model",
    "keras_ctxrep.models.static": "Trainer",
    "keras_ctxrep.losses": "CoSENT CosineRegression CrossEntropy Distillation MultipleNegatives NegativeSampling "
    "TextDistillation WordDistillation",
    "keras_ctxrep.metrics": "Accuracy Perplexity SpanF1",
    "keras_ctxrep.optimizers": "Adagrad AdamW LAMB LossScale RowwiseAdagrad SGD",
    "keras_ctxrep_export.preprocessor": "Preprocessor",
}


class _Class(NamedTuple):
    """Stands for a class until its module is imported, which then registers the class itself."""

    module: str
    name: str

    def from_config(self, config: dict) -> Any:
        return getattr(importlib.import_module(self.module), self.name).from_config(config)


def _function(module: str, name: str) -> FunctionType:
    """Stands for a function, as `_Class` for a class; Keras saves it by its name."""

    def function(*args: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args)

    function.__name__ = f"keras_ctxrep>{name}"
    return function


class _WithKeras:
    """Finds Keras when it is imported, and has it register our names then."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "keras" else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if module.__name__ == "keras":  # a loader may be that of other modules too
                _register(module)

        spec.loader.exec_module = exec_module
        return spec


def _register(keras: Any) -> None:
    known = keras.saving.get_custom_objects()
    for module, names in NAMES.items():
        for name in names.split():
            stand_in = _function if name.islower() else _Class
            known.setdefault(f"keras_ctxrep>{name}", stand_in(module, name))


def register() -> None:
    """Makes `keras.models.load_model` find the classes of this package, now or once Keras is imported."""
    if hasattr(sys.modules.get("keras"), "saving"):
        _register(sys.modules["keras"])
    else:
        sys.meta_path.insert(0, _WithKeras)
