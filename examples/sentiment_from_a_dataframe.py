# %% [markdown]
# # Sentiment from a DataFrame, with `model.fit`
#
# The encoder is a plain `keras.Model`, its features turn strings into a dict of arrays, and the rest is Keras.

# %%
import itertools

import keras
import numpy as np
import pandas as pd

import keras_ctxrep as ctx
from keras_ctxrep.models import heads

THINGS = ["film", "story", "acting", "music", "ending", "book", "meal", "hotel"]
GOOD = ["wonderful", "moving", "clever", "a delight", "warm and funny", "better than I hoped"]
BAD = ["dull", "a waste of time", "badly made", "too long", "cold and empty", "worse than I feared"]
rows = [(f"The {thing} was {word}.", 1) for thing, word in itertools.product(THINGS, GOOD)]
rows += [(f"The {thing} was {word}.", 0) for thing, word in itertools.product(THINGS, BAD)]
frame = pd.DataFrame(rows, columns=["text", "good"]).sample(frac=1, random_state=0)
train, test = frame[:72], frame[72:]
print(frame.shape, train.good.nunique())

# %% [markdown]
# ```text
# (96, 2) 2
# ```

# %%
loaded = ctx.load("bert_6_384_12/books_wiki_en")
keras.utils.set_random_seed(0)
network = heads.classify(loaded.encoder.keras_model, classes=2)
network.compile(
    keras.optimizers.AdamW(2e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
network.fit(loaded.features(train.text), train.good.to_numpy(), batch_size=16, epochs=6, verbose=0)
figures = network.evaluate(loaded.features(test.text), test.good.to_numpy(), verbose=0, return_dict=True)
print("accuracy on sentences that were held out is at least 90%:", figures["accuracy"] >= 0.9)

# %% [markdown]
# ```text
# accuracy on sentences that were held out is at least 90%: True
# ```

# %% [markdown]
# Judgements that were in no training sentence:

# %%
new = pd.Series(["What a charming little film!", "The service was terrible.", "An awful room and rude people."])
logits = network.predict(loaded.features(new), verbose=0)["logits"]
print(["good" if row[1] > row[0] else "bad" for row in np.asarray(logits)])

# %% [markdown]
# ```text
# ['good', 'bad', 'bad']
# ```

# %% [markdown]
# `ctx.finetune((frame.text, frame.good), dev=0.1)` does the same with the schedule of the paper, keeps the best
# weights, and returns a model that can be saved and exported.
