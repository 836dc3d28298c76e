# %% [markdown]
# # An ELMo in your own functional model
#
# The biLM's layers, frozen and mixed (Peters et al. 2018, eq. 1), under a biLSTM that is yours.

# %%
import keras
import numpy as np

import keras_ctxrep as ctx
from keras_ctxrep.layers import ScalarMix

loaded = ctx.load("elmo_2x512_128_512cnn_1xhighway/books_wiki_en")
encoder, features = loaded.encoder.keras_model, loaded.features
encoder.trainable = False
print(sorted(encoder.input), [layer.shape[-1] for layer in encoder.output["layers"]])

# %% [markdown]
# ```text
# ['char_ids', 'mask'] [256, 256, 256]
# ```

# %%
outputs = encoder(encoder.input)
mixed = ScalarMix(name="mix")(outputs["layers"], mask=encoder.input["mask"])
states = keras.layers.Bidirectional(keras.layers.LSTM(32, return_sequences=True))(mixed)
logits = keras.layers.Dense(3, name="tags")(states)
tagger = keras.Model(encoder.input, logits)
tagger.compile(
    keras.optimizers.Adam(5e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)

# %% [markdown]
# Words are split already, and each has a tag: 0 none, 1 a person, 2 a town. Padding has the weight 0.

# %%
PEOPLE, TOWNS = ["Anna", "Peter", "Maria", "John", "Sarah"], ["London", "Boston", "Madrid", "Vienna", "Dublin"]
sentences, tags = [], []
for person in PEOPLE:
    for town in TOWNS:
        sentences += [["Yesterday", person, "went", "to", town, "."], ["In", town, "we", "met", person]]
        tags += [[0, 1, 0, 0, 2, 0], [0, 2, 0, 0, 1]]
inputs = features(sentences)
targets, weights = np.zeros(inputs["mask"].shape), np.zeros(inputs["mask"].shape)
for row, tag in enumerate(tags):
    targets[row, : len(tag)], weights[row, : len(tag)] = tag, 1
keras.utils.set_random_seed(0)
tagger.fit(inputs, targets, sample_weight=weights, epochs=15, batch_size=16, verbose=0)

# %% [markdown]
# The character network reads names that the model has never seen:

# %%
new = [["Later", "Helena", "drove", "to", "Glasgow"], ["In", "Toronto", "they", "saw", "Robert"]]
answers = tagger.predict(features(new), verbose=0).argmax(-1)
for words, row in zip(new, answers, strict=True):
    print([(word, ["-", "person", "town"][tag]) for word, tag in zip(words, row, strict=False) if tag])
mix = tagger.get_layer("mix")
print("layers that are mixed:", len(np.asarray(mix.learned()[0])))

# %% [markdown]
# ```text
# [('Helena', 'person'), ('Glasgow', 'town')]
# [('Toronto', 'town'), ('Robert', 'person')]
# layers that are mixed: 3
# ```
