# %% [markdown]
# # A language model that writes
#
# A model of the next character (an LSTM), trained for 500 steps on the reference of the Python language, then asked to
# go on.

# %%
import re
from pathlib import Path
from pydoc_data.topics import topics

import keras_ctxrep as ctx
from keras_ctxrep import recipes

lines = [re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", "\n\n".join(topics.values()))]
lines = [line for line in lines if len(line) > 60 and line.isascii()]
Path("train.txt").write_text("\n".join(lines[:-100]))
Path("heldout.txt").write_text("\n".join(lines[-100:]))
recipes.pretrain(
    "lm",
    ["train.txt"],
    "lm",
    size="lm_lstm_2x200",
    units="characters",
    steps=500,
    batch_size=8,
    unroll=64,
    learning_rate=4e-3,
    valid="heldout.txt",
    seed=0,
)

# %%
figures = recipes.score("lm", "heldout.txt")
print("below 3 bits a character:", figures["bits_per_character"] < 3)

# %% [markdown]
# ```text
# below 3 bits a character: True
# ```

# %%
model = ctx.load("lm")
one, two = model.generate(["The ", "The "], length=80, temperature=0.7, seed=1)
print("two seeds, two texts:", one != two)
print("one seed, one text:", model.generate(["The "], length=80, temperature=0.7, seed=1)[0] == one)

# %% [markdown]
# ```text
# two seeds, two texts: True
# one seed, one text: True
# ```

# %% [markdown]
# `ctxrep generate lm --prompt "The "` prints each character as soon as it is drawn. `ctxrep tflite lm --out lm.tflite`
# writes a step with its state, with which the same seed gives the same text on a phone or a board.
