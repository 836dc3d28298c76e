# %% [markdown]
# # word2vec to a picture
#
# Skip-gram with negative sampling (Mikolov et al. 2013) on the reference of the Python language, which comes with
# Python: 100,000 words, enough for half a minute and for some neighbours.

# %%
import re
from pathlib import Path
from pydoc_data.topics import topics

from keras_ctxrep import recipes
from keras_ctxrep.recipes.word_vectors import WordTable

text = " ".join(topics.values())
sentences = [" ".join(re.findall(r"[a-z]+", sentence.lower())) for sentence in re.split(r"[.:;]\s", text)]
Path("python.txt").write_text("\n".join(sentence for sentence in sentences if len(sentence.split()) > 3))
recipes.pretrain_static(["python.txt"], "vectors", model="skipgram", dims=64, epochs=15, seed=0)

# %%
words = WordTable("vectors")
for word in ("integer", "true", "tuple"):
    print(word, "->", len(words.neighbours(word, 5)), "neighbours")
numbers = {word for word, _ in words.neighbours("integer", 20)}
print(
    "integers are near other numbers:",
    bool(numbers & {"float", "floating", "integers", "decimal", "number", "complex"}),
)

# %% [markdown]
# ```text
# integer -> 5 neighbours
# true -> 5 neighbours
# tuple -> 5 neighbours
# integers are near other numbers: True
# ```

# %% [markdown]
# Two axes of the largest variance show the words that keep company:

# %%
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import keras_ctxrep as ctx

shown = [
    "integer",
    "float",
    "complex",
    "number",
    "string",
    "bytes",
    "list",
    "tuple",
    "class",
    "method",
    "import",
    "module",
]
vectors = ctx.load("vectors").encode(shown)
vectors -= vectors.mean(0)
points = vectors @ np.linalg.svd(vectors, full_matrices=False)[2][:2].T
figure, axes = plt.subplots(figsize=(6, 5))
axes.scatter(*points.T, s=12)
for word, point in zip(shown, points, strict=True):
    axes.annotate(word, point)
figure.savefig("words.png", dpi=120)
print(Path("words.png").stat().st_size > 5000)

# %% [markdown]
# ```text
# True
# ```

# %% [markdown]
# From a shell:
#
# ```sh
# ctxrep pretrain static --corpus python.txt --model skipgram --out vectors
# ctxrep neighbours vectors integer
# ctxrep convert vectors --to word2vec --out vectors.txt
# ```
