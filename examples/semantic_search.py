# %% [markdown]
# # Semantic search
#
# The shipped encoders make one vector of a text; texts of like meaning have like vectors. Search finds texts that share
# no word with the query.

# %%
import keras_ctxrep as ctx

texts = [
    "The children built a snowman in the garden.",
    "The bank raised its interest rates again.",
    "She plays the violin in an orchestra.",
    "A new vaccine protects against the flu.",
    "The train to Munich was an hour late.",
    "He baked bread and a cake with apples.",
    "The telescope found a planet around a distant star.",
    "Their team lost the final in the last minute.",
]
model = ctx.load("bert_6_384_12/books_wiki_en")
index = ctx.Index.of_texts(texts, model)
for query in ["loans get more expensive", "classical music", "astronomers made a discovery", "a football match"]:
    print(query, "->", index.search([query], top=1)[0][0].text)

# %% [markdown]
# ```text
# loans get more expensive -> The bank raised its interest rates again.
# classical music -> She plays the violin in an orchestra.
# astronomers made a discovery -> The telescope found a planet around a distant star.
# a football match -> Their team lost the final in the last minute.
# ```

# %% [markdown]
# The static table is ten times as fast, for a board or for millions of texts, and a little less precise:

# %%
table = ctx.load("static_128/books_wiki_en")
small = ctx.Index.of_texts(texts, table)
print(small.search(["medicine against an illness"], top=1)[0][0].text)

# %% [markdown]
# ```text
# A new vaccine protects against the flu.
# ```

# %% [markdown]
# An index is a folder: `index.save("texts")`, then `ctxrep search texts "classical music"`; a `.tflite` file of the
# encoder searches it without TensorFlow, and `ctxrep tflite MODEL --web FOLDER` makes a page that searches in the
# browser.

# %%
index.save("texts")
table.tflite("table.tflite", quantize="dynamic", lengths=(32,))
print(len(ctx.Index.open("texts")), "texts")

# %% [markdown]
# ```text
# 8 texts
# ```
