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
    """One question, a text about a person, and the answer."""
    name, town, work, year = draw.choice(PEOPLE), draw.choice(TOWNS), draw.choice(WORK), str(draw.randint(1940, 2005))
    context = draw.choice(
        [
            f"{name} was born in {year}, lives in {town} and works as {work}.",
            f"In {town} lives {name}, who is {work} and was born in {year}.",
        ]
    )
    question, answer = draw.choice(
        [
            (f"Where does {name} live?", town),
            (f"What is the work of {name}?", work),
            (f"When was {name} born?", year),
        ]
    )
    return {"question": question, "context": context, "answers": [{"text": answer, "start": context.index(answer)}]}


draw = random.Random(0)
rows = [example(draw) for _ in range(480)]
columns = {name: [row[name] for row in rows] for name in rows[0]}
print(rows[0]["question"], "|", rows[0]["answers"][0]["text"])

# %% [markdown]
# ```text
# What is the work of Greta? | a baker
# ```

# %% [markdown]
# Texts longer than the model reads are cut into windows that overlap; the shipped BERT is small enough for a CPU.

# %%
answerer = ctx.finetune(
    columns, dev=0.1, encoder="bert_6_384_12/books_wiki_en", task="answer", epochs=5, max_length=64, learning_rate=3e-4
)

# %%
text = "Olga was born in 1968, lives in Madrid and works as a doctor."
questions = ["Where does Olga live?", "What is the work of Olga?", "When was Olga born?"]
for question, answer in zip(questions, answerer.predict(questions, 3 * [text]), strict=True):
    right = text[answer["start"] : answer["end"]] == answer["answer"]
    print(question, answer["answer"], "(at its place in the text)" if right else "")

# %% [markdown]
# ```text
# Where does Olga live? Madrid (at its place in the text)
# What is the work of Olga? a doctor (at its place in the text)
# When was Olga born? 1968 (at its place in the text)
# ```

# %% [markdown]
# Name, town and work of the last text were in no training text. Over a folder of texts the search comes first, then the
# answerer:
#
# ```sh
# ctxrep index text.txt --encoder bert_6_384_12/books_wiki_en --passages 100 --out passages
# ctxrep ask passages "Where does Olga live?" --reader answerer
# ```
