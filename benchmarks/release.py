"""Writes the weights that come with the package: a model folder in float16, with its model card.

    python benchmarks/release.py pretrained --card card.md --name bert_3_384_12/books_wiki_en

`pretrained` is a folder of `ctxrep pretrain`. The largest difference that rounding makes to the outputs is printed. The
changes in a folder of benchmarks/answers.py are copied as they are, in float16.
"""

import argparse
import os
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.places import SHIPPED
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import UPDATES, WEIGHTS

TEXTS = ["The bank of the river was steep.", "She works at a bank in the city.", "I have not seen him since."]
LIMIT = 32e6  # bytes of a model's weights


def halve(source: Path, target: Path) -> None:
    """Copies a weight file in float16; Keras loads it into float32 variables.

    Raises:
        ValueError: a weight is out of float16's range.
    """

    def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            array = item[()].astype(np.float16) if item.dtype == np.float32 else item[()]
            if not np.isfinite(array).all():
                raise ValueError(f"{name}: out of float16's range")
            copied = new.create_dataset(name, data=array)
        else:
            copied = new.require_group(name)
        copied.attrs.update(item.attrs)

    with h5py.File(source) as old, h5py.File(target, "w") as new:
        new.attrs.update(old.attrs)
        old.visititems(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--card", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--name", required=True, metavar="SIZE/DATASET")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER", help="(default: in the package)")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    bundle = bundles.load(args.folder)
    out = args.out / args.name
    copy, name = (shutil.copyfile, UPDATES) if UPDATES in bundle.files else (halve, WEIGHTS)
    with atomic_folder(out) as new:
        copy(args.folder / name, new / name)
        bundles.save(replace(bundle, card=args.card.read_text(encoding="utf-8")), new)
    layers = []
    for model, own in map(saving.load_encoder, (args.folder, out)):
        layers.append(np.stack(model(own.features.collate(own.features.encode(TEXTS)))["layers"]))
    size = (out / name).stat().st_size
    print(f"{out}: {size / 1e6:.1f} MB, largest difference in the layers {np.abs(layers[0] - layers[1]).max():.1e}")
    if size > LIMIT:
        raise SystemExit(f"more than {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
