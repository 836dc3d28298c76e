# %% [markdown]
# # Bank and bank
#
# A static table has one vector for *bank*. A contextual encoder has another one in every sentence: that of a river's
# bank, or that of a bank with money. Here 24 sentences with the word, each labelled with its sense, come with the
# package.

# %%
import csv
from importlib.resources import files

import numpy as np

import keras_ctxrep as ctx

with (files("keras_ctxrep") / "demo" / "data" / "bank.tsv").open(encoding="utf-8") as file:
    rows = list(csv.DictReader(file, delimiter="\t"))
print(len(rows), "sentences:", {row["label"] for row in rows} == {"river", "money"})


# %% [markdown]
# ```text
# 24 sentences: True
# ```

# %% [markdown]
# The vector of the word in each sentence, from the top layer (N layers, words, width), and for comparison from layer 0,
# which does not know the context but for the position:


# %%
def vectors(model, layer):
    """The unit vector of "bank" in each sentence."""
    found = []
    for words in model.words([row["text"] for row in rows]):
        number = [word.lower().strip(".,") for word in words.words].index("bank")
        found.append(words.vectors[layer, number])
    found = np.stack(found)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


bert = ctx.load("bert_3_384_12/books_wiki_en")
static = ctx.load("static_128/books_wiki_en")
top, table = vectors(bert, -1), vectors(static, 0)
cosines = top @ top.T
labels = np.array([row["label"] for row in rows])
same = labels[:, None] == labels
others = ~np.eye(len(rows), dtype=bool)
nearest = np.where(others, cosines, -1).argmax(1)
print("the static vector is the same everywhere:", np.allclose(table @ table.T, 1, atol=1e-5))
print("the contextual one is not:", cosines.min() < 0.9)
print("it is nearer to those of its own sense:", cosines[same & others].mean() > cosines[~same].mean())
print("the nearest neighbour has the same sense, in context:", (labels[nearest] == labels).mean() > 0.8)

# %% [markdown]
# ```text
# the static vector is the same everywhere: True
# the contextual one is not: True
# it is nearer to those of its own sense: True
# the nearest neighbour has the same sense, in context: True
# ```

# %% [markdown]
# The same as a picture, and from a shell:
#
# ```sh
# ctxrep plot senses bert_3_384_12/books_wiki_en --word bank --data bank.tsv --out bank.png
# ctxrep neighbours bert_3_384_12/books_wiki_en --word bank --input sentences.txt
# ```
