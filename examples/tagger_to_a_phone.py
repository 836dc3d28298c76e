# %% [markdown]
# # A tagger of names, to a phone
#
# Fine-tune, quantize, and tag without TensorFlow. The messages with marked names are those of WNUT-2017 that come with
# the package.

# %%
import lzma
from importlib.resources import files
from pathlib import Path

import keras_ctxrep as ctx

data = files("keras_ctxrep") / "demo" / "data" / "wnut17"
for part in ("train", "test"):
    text = lzma.decompress((data / f"{part}.conll.xz").read_bytes())
    Path(f"{part}.conll").write_bytes(text)

tagger = ctx.finetune(
    "train.conll",
    dev=0.1,
    encoder="bert_3_384_12/books_wiki_en",
    task="tag",
    epochs=2,
    learning_rate=3e-4,
    max_length=64,
)
tagger.save("tagger")
print(tagger.bundle.labels[:3])

# %% [markdown]
# ```text
# ('O', 'B-corporation', 'B-creative-work')
# ```

# %% [markdown]
# Two lengths over one copy of the weights, with 8 bits; the ranges of its activations are measured in every run.

# %%
file = tagger.tflite("tagger.tflite", quantize="dynamic", lengths=(32, 64))
print("smaller than 12 MB:", file.stat().st_size < 12e6)

# %% [markdown]
# ```text
# smaller than 12 MB: True
# ```

# %% [markdown]
# On the phone or the board the file alone is needed: vocabulary, labels and lengths are in it. Here the Python runtime
# reads it, which imports neither TensorFlow nor Keras; Java, Swift and JavaScript have their own.

# %%
import subprocess
import sys

lines = "Meeting Angela Merkel in Berlin tomorrow\nthe new iPhone is out\n"
code = (
    "import sys, keras_ctxrep as ctx\n"
    "model = ctx.load('tagger.tflite')\n"
    "for answer in model.predict(sys.stdin.read().splitlines()):\n"
    "    print([entity['text'] for entity in answer['entities']])\n"
    "print('TensorFlow was imported:', 'tensorflow' in sys.modules)\n"
)
print(
    subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=True).stdout, end=""
)

# %% [markdown]
# ```text
# ['Angela Merkel', 'Berlin']
# ['iPhone']
# TensorFlow was imported: False
# ```

# %% [markdown]
# How many words get the tag of the float32 model:

# %%
import numpy as np

from keras_ctxrep import tasks

examples = list(tasks.get("tag").read("test.conll"))[:100]
texts = [" ".join(example.words) for example in examples]
answers = [ctx.load(name).predict(texts) for name in ("tagger", "tagger.tflite")]
tags = [[word["label"] for answer in side for word in answer["words"]] for side in answers]
print("the same tag for at least 98% of the words:", np.mean(np.equal(*tags)) >= 0.98)

# %% [markdown]
# ```text
# the same tag for at least 98% of the words: True
# ```
