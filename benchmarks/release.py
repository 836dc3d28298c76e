"""Writes the weights that come with the package: a model folder in float16, with its model card.

    python benchmarks/release.py pretrained --card card.md --name bert_3_384_12/books_wiki_en
    python benchmarks/release.py second --average first=0.3 --card card.md --name bert_6_384_12/books_wiki_en
    python benchmarks/release.py --graphs

`pretrained` is a folder of `ctxrep pretrain` or `ctxrep distill`; with `--average` the weights are the mean of its own
and of those of another run, which have this share (Wortsman et al. 2022, https://arxiv.org/abs/2203.05482). The largest
difference that rounding makes to the outputs is printed. The changes in a folder of benchmarks/answers.py are copied as
they are, in float16. Beside the weights is the graph by which LiteRT answers without TensorFlow; `--graphs` writes
those of all models of the package anew, after a change of a bundle.json or of what a model computes.
"""

import argparse
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

import keras_ctxrep as ctx
from keras_ctxrep import saving, zoo
from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.options import Tflite
from keras_ctxrep.places import SHIPPED
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import UPDATES, WEIGHTS
from keras_ctxrep_tflite import graphs, quantize

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


def average(folder: Path, given: str, target: Path) -> None:
    """Writes the mean of the weights of a model folder and of another one, FOLDER=SHARE."""
    other, _, share = given.rpartition("=")
    (model, bundle), (second, _) = saving.load(folder), saving.load(zoo.find(other))
    for weight, more in zip(model.weights, second.weights, strict=True):
        weight.assign((1 - float(share)) * weight.numpy() + float(share) * more.numpy())
    saving.save(target, model, bundle)


def write_graphs(folder: Path) -> None:
    """Writes the graphs of a model folder: of what answers or encodes, its masked language model, and its encoder."""
    bundle = bundles.load(folder)
    if UPDATES in bundle.files and not bundle.encodes:
        with tempfile.TemporaryDirectory() as temporary:
            encoder = ctx.load(folder, engine="keras").encoder.save(Path(temporary) / "encoder")
            conversion = quantize.build(encoder, bundles.load(encoder), "model.tflite", Tflite())
            graphs.write(folder, conversion.data, conversion.bundle, graphs.ENCODER)
    for name in (graphs.GRAPH, graphs.MASKED) if bundle.fills else (graphs.GRAPH,):
        conversion = quantize.build(folder, bundle, "model.tflite", Tflite(fill=name == graphs.MASKED))
        graphs.write(folder, conversion.data, conversion.bundle, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--card", type=Path, metavar="FILE.md")
    parser.add_argument("--name", metavar="SIZE/DATASET")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER", help="(default: in the package)")
    parser.add_argument("--average", metavar="FOLDER=SHARE", help="the share of the weights of another run")
    parser.add_argument("--graphs", action="store_true", help="write the graphs of all models of --out")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if args.graphs:
        for folder in sorted(args.out.glob("*/*")):
            write_graphs(folder)
            print(folder)
        return
    if not (args.folder and args.card and args.name):
        parser.error("a folder, --card and --name, or --graphs")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder
        if args.average:
            average(args.folder, args.average, folder := Path(temporary) / "average")
        release(folder, args.out / args.name, args.card)


def release(folder: Path, out: Path, card: Path) -> None:
    """Writes a model folder with a card, in float16, and compares it with the one that it is of."""
    bundle = bundles.load(folder)
    copy, name = (shutil.copyfile, UPDATES) if UPDATES in bundle.files else (halve, WEIGHTS)
    with atomic_folder(out) as new:
        copy(folder / name, new / name)
        bundles.save(replace(bundle, card=card.read_text(encoding="utf-8")), new)
        write_graphs(new)
    layers = []
    for model, own in map(saving.load_encoder, (folder, out)):
        layers.append(np.stack(model(own.features.collate(own.features.encode(TEXTS)))["layers"]))
    size = (out / name).stat().st_size
    print(f"{out}: {size / 1e6:.1f} MB, largest difference in the layers {np.abs(layers[0] - layers[1]).max():.1e}")
    if size > LIMIT:
        raise SystemExit(f"more than {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
