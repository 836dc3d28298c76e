# %% [markdown]
# # A course in cells
#
# What a course on word vectors, language models, ELMo and BERT shows, with the models that come with the package: each
# cell runs without a network, and what is below it is what it printed.
#
# ## Word vectors
#
# The nearest words of a table of static vectors (Pennington et al. 2014, https://aclanthology.org/D14-1162), for the
# words of the table in Collobert et al. 2011 (https://jmlr.org/papers/v12/collobert11a.html, table 7) that it has:

# %%
import numpy as np

import keras_ctxrep as ctx
from keras_ctxrep.recipes.word_vectors import WordTable

glove = WordTable("glove_50/6b")
for word in ["france", "jesus", "xbox", "reddish", "scratched"]:
    print(f"{word:10}", *(neighbour for neighbour, _ in glove.neighbours(word, k=5)))

# %% [markdown]
# ```text
# france     french belgium paris spain netherlands
# jesus      christ god resurrection crucifixion divine
# xbox       playstation ps2 ps3 nintendo console
# reddish    yellowish pinkish greenish mottled brownish
# scratched  inexplicably punched popped sore bruised
# ```

# %% [markdown]
# Analogies: the word nearest to *king - man + woman*, without these three (Mikolov et al. 2013,
# https://aclanthology.org/N13-1090):

# %%
for a, b, c in [
    ("king", "man", "woman"),
    ("uncle", "man", "woman"),
    ("paris", "france", "italy"),
    ("yen", "japan", "europe"),
    ("walking", "walk", "swim"),
    ("bigger", "big", "small"),
    ("german", "germany", "poland"),
]:
    print(f"{a} - {b} + {c} = {glove.analogy(a, b, c, k=1)[0][0]}")

# %% [markdown]
# ```text
# king - man + woman = queen
# uncle - man + woman = daughter
# paris - france + italy = rome
# yen - japan + europe = rising
# walking - walk + swim = swimming
# bigger - big + small = larger
# german - germany + poland = polish
# ```

# %% [markdown]
# One word, one vector: a static table can't tell the senses of a word apart. `ctxrep plot analogies glove_50/6b --out
# analogies.png` draws such pairs.
#
# ## A language model from characters
#
# ELMo (Peters et al. 2018, https://aclanthology.org/N18-1202) reads words as characters, so that a word which it has
# never seen has a vector as well, and predicts the next word and the one before. Its forward half writes:

# %%
elmo = ctx.load("elmo_2x512_128_512cnn_1xhighway/books_wiki_en")
print("She opened the door and", elmo.generate(["She opened the door and"], length=12, temperature=0.5, seed=3)[0])

# %% [markdown]
# ```text
# She opened the door and  said : “ I am not going to see you .
# ```

# %% [markdown]
# ## The senses of a word
#
# *Bank* of a river and *bank* with money, *default* of a loan and of a program: which of the other sentences has the
# nearest vector of the word, in ELMo's layers' mean and in BERT's top layer?

# %%
sentences = {
    "bank": [
        "They sat on the bank of the river and watched the boats.",
        "The bank of the stream was covered with reeds.",
        "She put her savings into the bank.",
        "The bank lent him the money for his house.",
    ],
    "default": [
        "The default on the loan ruined the company.",
        "Greece was close to a default on its debts.",
        "The default font of the editor is too small.",
        "By default the program saves the file every minute.",
    ],
}


def senses(model, word, vector):
    found = []
    for words in model.words(sentences[word]):
        found.append(vector(words.vectors)[[each.lower() for each in words.words].index(word)])
    units = np.stack(found) / np.linalg.norm(found, axis=-1, keepdims=True)
    cosines = units @ units.T - 2 * np.eye(4)
    return [int(number) for number in cosines.argmax(1)]


bert = ctx.load("masked_en")
for word in sentences:
    print(f"{word:8} ELMo", senses(elmo, word, lambda layers: layers.mean(0)), end="  ")
    print("BERT", senses(bert, word, lambda layers: layers[-1]), "  right", [1, 0, 3, 2])

# %% [markdown]
# ```text
# bank     ELMo [2, 3, 0, 1]  BERT [1, 0, 3, 2]   right [1, 0, 3, 2]
# default  ELMo [2, 0, 0, 0]  BERT [1, 0, 0, 0]   right [1, 0, 3, 2]
# ```

# %% [markdown]
# BERT tells the banks apart, and takes three of the four defaults for one sense; this small ELMo tells neither apart.
# `ctxrep plot senses NAME --word bank --data FILE` draws such vectors.
#
# ## A masked language model
#
# BERT (Devlin et al. 2018, https://aclanthology.org/N19-1423) learns to name words that are masked, from both sides:

# %%
for text in [
    "Deep learning [MASK] fun.",
    "She opened the [MASK] and looked out.",
    "He put the [MASK] into the oven and baked it.",
]:
    pieces = bert(text)[0]
    print(text, *(f"{piece} {probability:.0%}" for piece, probability in pieces[:4]))

# %% [markdown]
# ```text
# Deep learning [MASK] fun. and 49% , 15% is 5% of 4%
# She opened the [MASK] and looked out. door 19% table 10% room 4% house 2%
# He put the [MASK] into the oven and baked it. bread 20% dish 3% paper 1% table 1%
# ```

# %% [markdown]
# and to tell whether a second sentence follows the first:

# %%
first = "He opened the letter with a knife."
for second in ["It was from his sister in Vienna.", "The bridge was built in 1911 by the railway."]:
    print(f"{bert.predict(first, second)['label']:9} {second}")

# %% [markdown]
# ```text
# next      It was from his sister in Vienna.
# random    The bridge was built in 1911 by the railway.
# ```

# %% [markdown]
# Which word looks at which, in each head of each layer: `ctxrep plot attention masked_en "The bank of the river"
# --out attention.html`; and which position may look at which, in ELMo, BERT and a decoder: `ctxrep plot masks --out
# masks.png`.
#
# ## Answers
#
# With a head and low-rank updates of a megabyte, the same BERT says whether a sentence is positive, and which names are
# in it:

# %%
sentiment, names = ctx.load("sentiment_en"), ctx.load("names_en")
for text in ["A warm, funny film that I will watch again.", "Two hours that I will never get back."]:
    print(f"{sentiment(text)['label']:9} {text}")

# %% [markdown]
# ```text
# positive  A warm, funny film that I will watch again.
# negative  Two hours that I will never get back.
# ```

# %%
for entity in names("Angela Merkel met Tim Cook in Berlin to talk about the new iPhone.")["entities"]:
    print(entity["type"], "-", entity["text"])

# %% [markdown]
# ```text
# person - Angela Merkel
# person - Tim Cook
# location - Berlin
# product - iPhone
# ```

# %% [markdown]
# and where the answer to a question is in a text, after 11,284 questions of SQuAD (Rajpurkar et al. 2016,
# https://aclanthology.org/D16-1264). The last answer is too long:

# %%
answers = ctx.load("answers_en")
text = (
    "AMLC 2019, a conference on machine learning, is held in Seattle. Its keynote is given by Jacob Devlin of Google."
)
for question in ["Where is AMLC held?", "Who gives the keynote?", "Where does Devlin work?"]:
    print(f"{question:24} {answers(question, text)['answer']}")

# %% [markdown]
# ```text
# Where is AMLC held?      Seattle
# Who gives the keynote?   Jacob Devlin
# Where does Devlin work?  Seattle. Its keynote is given by Jacob Devlin of Google
# ```

# %% [markdown]
# ## Sentences of like meaning

# %%
similar = ctx.load("similar_en")
texts = ["A man is playing a guitar.", "Someone makes music.", "A man is eating a sandwich.", "The stock market fell."]
print(np.round(similar.similarity(similar(texts[:1]), similar(texts[1:]))[0], 2))

# %% [markdown]
# ```text
# [ 0.59  0.25 -0.08]
# ```

# %% [markdown]
# ## Eight bits on a phone
#
# The same model as a `.tflite` file, in numbers of 32 and of 8 bits, and how often both give Keras's label:

# %%
from pathlib import Path

reviews = [
    "A warm, funny film.",
    "Two lost hours.",
    "Nothing works in this plot.",
    "What a voice!",
    "A dull, slow story.",
]
expected = [answer["label"] for answer in sentiment(reviews)]
for form in ("none", "dynamic"):
    file = sentiment.tflite(f"sentiment-{form}.tflite", quantize=form, lengths=(32,))
    agreed = sum(answer["label"] == label for answer, label in zip(ctx.load(file)(reviews), expected, strict=True))
    print(f"{form:8} {Path(file).stat().st_size / 1e6:4.0f} MB, {agreed} of {len(reviews)} labels are the same")

# %% [markdown]
# ```text
# none       62 MB, 5 of 5 labels are the same
# dynamic    16 MB, 5 of 5 labels are the same
# ```

# %% [markdown]
# Tables of quality, size and latency, measured on the whole of the usual sets: [results](../explanation/results.md).
