# %% [markdown]
# # Spelling to phonemes
#
# An English word goes in as letters, and comes out as phonemes of ARPAbet: a text-to-text model that comes with the
# package, a biLSTM over characters and a recurrent decoder with attention. First in Keras, then as a file for a phone.

# %%
import keras_ctxrep as ctx

speller = ctx.load("g2p_en")
words = ["phone", "knight", "thoughtful", "photograph", "lead"]
for word, answer in zip(words, speller.predict(words), strict=True):
    print(f"{word:12}{answer['text']}")

# %% [markdown]
# ```text
# phone       F OW N
# knight      N AY T
# thoughtful  TH AO T F AH L
# photograph  F OW T AH G R AE F
# lead        L EH D
# ```

# %% [markdown]
# The answer is the best hypothesis of a beam search with four beams. All four are in it, with their scores: the
# logarithm of the probability over a penalty of length. A word with two pronunciations has two good hypotheses; one
# without has one:

# %%
for word, answer in zip(words[-2:], speller.predict(words[-2:]), strict=True):
    for hypothesis in answer["n_best"][:2]:
        print(f"{word:12}{hypothesis['score']:5.1f}  {hypothesis['text']}")

# %% [markdown]
# ```text
# photograph   -0.4  F OW T AH G R AE F
# photograph   -2.2  F OW T OW G R AE F
# lead         -0.5  L EH D
# lead         -1.3  L IY D
# ```

# %% [markdown]
# One beam is greedy search, which takes the most probable phoneme each time and has no other hypothesis; more beams
# cost more time. From a shell it is `ctxrep predict g2p_en --beams 8`.

# %%
from keras_ctxrep.inference.engines import open_model

for beams in (1, 8):
    (answer,) = open_model("g2p_en", search={"beams": beams}).answer(["knight"])
    print(beams, answer["text"], len(answer.get("n_best", [])))

# %% [markdown]
# ```text
# 1 N AY T 0
# 8 N AY T 8
# ```

# %% [markdown]
# Where the decoder looked when it wrote each phoneme, with the weight of that letter. The training data has no
# alignments: the attention was learned from spellings and phonemes alone.

# %%
(answer,) = speller.predict(["thoughtful"])
for step in answer["alignment"]:
    letter = "thoughtful"[step["start"] : step["end"]]
    print(f"{step['token']:4}{letter}  more than 0.9: {step['weight'] > 0.9}")

# %% [markdown]
# ```text
# TH  t  more than 0.9: True
# AO  o  more than 0.9: True
# T   t  more than 0.9: True
# F   f  more than 0.9: True
# AH  u  more than 0.9: True
# L   l  more than 0.9: True
# ```

# %% [markdown]
# All the weights, as a picture and as an array: a row for each phoneme, a column for each letter.

# %%
from keras_ctxrep.plots.alignment import alignment

picture = alignment("g2p_en", "thoughtful", "thoughtful.png")
print(picture["attention"].shape, "".join(picture["read"][1:]))

# %% [markdown]
# ```text
# (6, 11) thoughtful
# ```

# %% [markdown]
# There is one column more than letters: the first is the mark of the beginning.
#
# Now a file for the edge. The weights have 8 bits, and the whole beam search is in the file, one call a word:

# %%
file = speller.tflite("speller.tflite", quantize="dynamic", lengths=(48,))
print("smaller than 2.5 MB:", file.stat().st_size < 2.5e6)

# %% [markdown]
# ```text
# smaller than 2.5 MB: True
# ```

# %% [markdown]
# The Python runtime reads it, without TensorFlow and Keras; Java, Swift and JavaScript have their own. The same
# phonemes, and within a tenth the same scores:

# %%
import json
import subprocess
import sys

code = (
    "import json, sys, keras_ctxrep as ctx\n"
    "model = ctx.load('speller.tflite')\n"
    "answers = model.predict(sys.stdin.read().split())\n"
    "print(json.dumps({'answers': answers, 'tensorflow': 'tensorflow' in sys.modules}))\n"
)
result = subprocess.run([sys.executable, "-c", code], input=" ".join(words), capture_output=True, text=True, check=True)
edge = json.loads(result.stdout)
pairs = [*zip(speller.predict(words), edge["answers"], strict=True)]
print("TensorFlow was imported:", edge["tensorflow"])
print("the same phonemes:", all(keras["text"] == lite["text"] for keras, lite in pairs))
print("the same scores:", all(abs(keras["score"] - lite["score"]) < 0.1 for keras, lite in pairs))

# %% [markdown]
# ```text
# TensorFlow was imported: False
# the same phonemes: True
# the same scores: True
# ```

# %% [markdown]
# `ctxrep tflite g2p_en --quantize dynamic --lengths 48 --out speller.tflite` writes the file from a shell, and
# `ctxrep predict speller.tflite` reads a word a line.
