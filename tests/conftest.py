"""Settings that must be made before TensorFlow is imported, and the fixtures that every room shares."""

import os
import random
from dataclasses import replace
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pytest
import tensorflow as tf

# Two logical devices, for MirroredStrategy(["CPU:0", "CPU:1"]).
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator with a fixed seed; Keras' initializers are seeded too."""
    keras.utils.set_random_seed(0)
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """ELMO/ and BERT/ pretrained/ and classifier/ folders, trained for seconds on sentences told apart by their words.

    With the labelled test sentences in test.tsv and the plain ones in corpus.txt.
    """
    from keras_ctxrep import recipes
    from keras_ctxrep.models import bert, elmo
    from keras_ctxrep.tasks.classify import Example

    root = tmp_path_factory.mktemp("models")
    topics = {
        "weather": ["rain", "storm", "wind", "cloud", "snow", "thunder", "frost", "fog", "sunny", "drizzle"],
        "kitchen": ["bread", "butter", "oven", "spoon", "soup", "pepper", "onion", "plate", "knife", "café"],
        "music": ["violin", "piano", "chord", "rhythm", "drum", "song", "choir", "flute", "melody", "tune"],
    }
    draw = random.Random(0)
    examples = []
    for _ in range(600):
        label = draw.choice(sorted(topics))
        nouns = draw.choices(topics[label], k=draw.randint(1, 6))
        words = [draw.choice(["the ", "the ", ""]) + noun for noun in nouns]
        end = draw.choice([" is good.", " was bad!", " — number 7?", ""])
        examples.append(Example(" ".join(words) + end, label))
    (root / "corpus.txt").write_text("\n".join(example.text for example in examples), encoding="utf-8")
    rows = "".join(f"{example.text}\t{example.label}\n" for example in examples[400:])
    (root / "test.tsv").write_text("text\tlabel\n" + rows, encoding="utf-8")
    sizes = {
        "elmo": replace(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"], cells=32, projection=16, max_characters=12),
        "bert": replace(bert.SIZES["bert_2_64_2"], width=32, initializer_range=0.1),
    }
    for family, rate, steps in (("elmo", 0.02, 80), ("bert", 0.005, 200)):
        table = {"elmo": elmo, "bert": bert}[family].SIZES
        table["test"] = sizes[family]
        try:
            recipes.pretrain(
                family,
                [root / "corpus.txt"],
                root / family / "pretrained",
                size="test",
                max_length=32,
                vocab_size=200,
                steps=60,
                learning_rate=rate,
            )
        finally:
            del table["test"]
        recipes.finetune(
            examples[:360],
            examples[360:400],
            root / family / "pretrained",
            root / family / "classifier",
            steps=steps,
            learning_rate=rate / 2,
            dropout=0.1,
            freeze=False,
        )
    return root
