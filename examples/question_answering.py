# %% [markdown]
# # Question answering over a text
#
# An answerer finds where in a text the answer stands, or that it has none (Devlin et al. 2018, section 4.3). SQuAD's
# questions are the usual training data, `ctxrep train --task answer --data train-v2.0.json`. This page makes a small
# set of its own, so that it runs in two minutes and without a network: short texts about people, and questions with the
# words of their answers.

# %%
import random

import keras_ctxrep as ctx

PEOPLE = ["Ada", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karla", "Leo"]
TOWNS = ["Berlin", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Rome", "Quito", "Tokyo", "Dakar"]
WORK = ["a baker", "a nurse", "a pilot", "a painter", "a farmer", "a judge", "a sailor", "a tailor"]


def example(draw):
    """One question, a text with two people, and the answer."""
    (first, second), towns, work = draw.sample(PEOPLE, 2), draw.sample(TOWNS, 2), draw.sample(WORK, 2)
    context = (
        f"{first} lives in {towns[0]} and works as {work[0]}. "
        f"In {towns[1]} lives {second}, who is {work[1]} and has known {first} for years."
    )
    asked = draw.choice([0, 1])
    name = (first, second)[asked]
    kind = draw.choice(["town", "work"])
    question = f"Where does {name} live?" if kind == "town" else f"What is the work of {name}?"
    answer = (towns if kind == "town" else work)[asked]
    return {"question": question, "context": context, "answers": [{"text": answer, "start": context.index(answer)}]}


draw = random.Random(0)
rows = [example(draw) for _ in range(800)]
columns = {name: [row[name] for row in rows] for name in rows[0]}
print(rows[0]["question"], "|", rows[0]["answers"][0]["text"])

# %% [markdown]
# ```text
# What is the work of Leo? | Greta lives in Berlin and works as a tailor. In Delhi lives Leo, who is a painter and has known Greta for years.
# ```

# %% [markdown]
# Texts longer than the model reads are cut into windows that overlap; the shipped BERT is small enough for a CPU.

# %%
answerer = ctx.finetune(
    columns, dev=0.1, encoder="bert_3_384_12/books_wiki_en", task="answer", epochs=8, max_length=64, learning_rate=3e-4
)

# %%
text = (
    "Olga lives in Madrid and works as a doctor. In Vienna lives Peter, who is a teacher and has known Olga for years."
)
questions = ["Where does Peter live?", "What is the work of Olga?"]
for question, answer in zip(questions, answerer.predict(questions, [text, text]), strict=True):
    right = text[answer["start"] : answer["end"]] == answer["answer"]
    print(question, answer["answer"], "(at its place in the text)" if right else "")

# %% [markdown]
# ```text
# Where does Peter live? Vienna (at its place in the text)
# What is the work of Olga? a teacher (at its place in the text)
# ```

# %% [markdown]
# Names, towns and work of the last text were in no training text. Over a folder of texts the search comes first, then
# the answerer:
#
# ```sh
# ctxrep index text.txt --encoder bert_3_384_12/books_wiki_en --passages 100 --out passages
# ctxrep ask passages "Where does Peter live?" --reader answerer
# ```
