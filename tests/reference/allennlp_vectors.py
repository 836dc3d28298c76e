"""The layers that AllenNLP computes from options.json and weights.hdf5, in an environment without this library.

    PYTHON tests/reference/allennlp_vectors.py FOLDER IDS.npy LAYERS.npy

PYTHON has torch, h5py and AllenNLP: pip install torch h5py, pip install --no-deps allennlp==2.10.1. IDS are
the char_ids of a batch, without the ends of sentences; LAYERS are (3, B, T, D), or as many as the biLM has.
"""

import importlib.abc
import importlib.machinery
import sys
import types

import numpy as np

UNUSED = {  # packages that AllenNLP imports and ELMo makes no use of
    *("transformers", "spacy", "cached_path", "lmdb", "tqdm", "dill", "base58"),
    *("huggingface_hub", "more_itertools", "torchvision", "fairscale"),
}


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of the unused ones."""

    def find_spec(self, fullname, path, target=None):
        unused = fullname.split(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if unused else None

    def create_module(self, spec):
        class Stub(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Stub(spec.name)

    def exec_module(self, module):
        pass


def main(folder, ids, layers):
    import torch  # pyright: ignore[reportMissingImports]

    sys.meta_path.insert(0, Stubs())
    from allennlp.modules import elmo, elmo_lstm  # pyright: ignore[reportMissingImports]

    elmo.cached_path = elmo_lstm.cached_path = str
    bilm = elmo._ElmoBiLm(f"{folder}/options.json", f"{folder}/weights.hdf5").eval()
    with torch.no_grad():
        outputs = bilm(torch.from_numpy(np.load(ids).astype(np.int64)))
    mask = outputs["mask"]
    stripped = [elmo.remove_sentence_boundaries(layer, mask)[0].numpy() for layer in outputs["activations"]]
    np.save(layers, np.stack(stripped))


if __name__ == "__main__":
    main(*sys.argv[1:])
