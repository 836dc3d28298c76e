# %% [markdown]
# # Summaries
#
# A summary is either made of sentences of the text, which needs no training, or written by a decoder, which learns from
# texts with their summaries. Both are measured here by ROUGE: the words, pairs of words and longest common sequence
# that they share with what a person wrote (Lin 2004, https://aclanthology.org/W04-1013/).
#
# Three short articles, each with the summary of a person:

# %%
articles = {
    "The bridge over the Linde will stay closed until spring, after engineers found cracks in two of its pillars.": [
        "The town council met on Monday evening for almost four hours.",
        "Before the talks began, the members thanked the fire brigade for its work during the storm.",
        "Most of the evening was spent on the old bridge over the Linde, which has been closed for a week.",
        "Engineers who examined it found cracks in two of the four pillars.",
        "The bridge will stay closed until spring, said the mayor, because repairs can't begin before the frost ends.",
        "Buses take the road through Altdorf, which makes the way to school twenty minutes longer.",
        "Some parents asked for a ferry, but the council found it too expensive.",
        "The next meeting is in January.",
    ],
    "A night bus will connect the suburbs with the centre on weekends, as a trial of one year.": [
        "Anyone who goes to a concert on Saturday has to leave before the end, or pay for a taxi.",
        "For years young people in the suburbs have complained about it.",
        "From March on, a night bus will connect the suburbs with the centre on weekends.",
        "It leaves every hour from half past eleven, and the last one starts at four.",
        "The trial ends after one year, and then the city will count the passengers.",
        "A ticket costs as much as by day.",
        "Drivers had asked for a second person on board, for their safety.",
        "The company will send guards on the lines where there was trouble.",
    ],
    "Researchers taught a small robot to find ripe strawberries by their smell; it is slower than a person.": [
        "Strawberries are picked by hand, because they bruise easily.",
        "There are too few workers in June, and much of the harvest rots in the fields.",
        "At the university, researchers have built a small robot that finds ripe strawberries by their smell.",
        "A sensor in its arm compares the air around a fruit with samples of ripe ones.",
        "Cameras had failed, since leaves hide most of the berries.",
        "The robot picks ninety berries an hour, far fewer than a person, but it works at night too.",
        "Farmers who have seen it want to know the price.",
        "The group hopes to sell a first machine in three years.",
    ],
}

# %% [markdown]
# ## Sentences of the text
#
# The sentence whose vector is nearest to the mean of all says most of what the article says; a second one should be
# near to the mean as well, and not repeat the first (Carbonell & Goldstein 1998,
# https://dl.acm.org/doi/10.1145/290941.291025). The baseline of every work on summaries is the beginning of the text.

# %%
import numpy as np

import keras_ctxrep as ctx
from keras_ctxrep.text.generation_scores import METRICS

encoder = ctx.load("similar_en")


def summary(sentences, count=1, novelty=0.3):
    vectors = encoder.encode(sentences, normalize=True)
    to_all, to_each = vectors @ vectors.mean(0), vectors @ vectors.T
    chosen = []
    for _ in range(count):
        repeated = to_each[:, chosen].max(1) if chosen else np.zeros(len(sentences))
        scores = (1 - novelty) * to_all - novelty * repeated
        scores[chosen] = -np.inf
        chosen.append(int(scores.argmax()))
    return " ".join(sentences[number] for number in sorted(chosen))


def rouge(summaries):
    references = [[reference] for reference in articles]
    for name in ("rouge_1", "rouge_2", "rouge_l"):
        statistics, ratio = METRICS[name]
        print(f"  {name} {100 * ratio(statistics(references, summaries).sum(0)):5.1f}", end="")
    print()


for count in (1, 2):
    print(f"the first {count}:  ", end="")
    rouge([" ".join(sentences[:count]) for sentences in articles.values()])
    print(f"the nearest {count}:", end="")
    rouge([summary(sentences, count) for sentences in articles.values()])
print(summary(list(articles.values())[2]))

# %% [markdown]
# ```text
# the first 1:    rouge_1  14.4  rouge_2   0.0  rouge_l  12.6
# the nearest 1:  rouge_1  42.1  rouge_2  20.1  rouge_l  36.2
# the first 2:    rouge_1  15.8  rouge_2   1.4  rouge_l  11.6
# the nearest 2:  rouge_1  47.3  rouge_2  31.5  rouge_l  44.4
# At the university, researchers have built a small robot that finds ripe strawberries by their smell.
# ```

# %% [markdown]
# ## Written by a decoder
#
# `task="translate"` learns to write any text for a text. Here are forecasts with their headlines, made from a few
# words, so that it takes half a minute; of a collection of your own the columns are `text` and `target`, in a file or a
# DataFrame. Towns and kinds of weather of the development rows are known, their combinations are not.

# %%
import itertools
import random

weather = {
    "rain": "It will rain from morning to night, so take an umbrella.",
    "snow": "Snow will fall all day, and the roads may be icy.",
    "fog": "Fog covers the valleys and lifts only in the evening.",
    "sun": "The sky stays clear, and the sun shines until the evening.",
    "storms": "Storms are expected in the afternoon, with strong gusts.",
}
towns = ["Bern", "Lyon", "Turin", "Graz", "Ghent", "Porto", "Malmo", "Riga"]
days = ["Monday", "Tuesday", "Friday", "Sunday"]
rows = [
    (f"This is the forecast for {town} on {day}. {weather[kind]}", f"{day} brings {kind} to {town}")
    for town, day, kind in itertools.product(towns, days, weather)
]
random.Random(0).shuffle(rows)
writer = ctx.finetune(
    {"text": [text for text, _ in rows[:-32]], "target": [headline for _, headline in rows[:-32]]},
    {"text": [text for text, _ in rows[-32:]], "target": [headline for _, headline in rows[-32:]]},
    "words",
    task="translate",
    target_units="words",
    metric="rouge_l",
    epochs=40,
    batch_size=16,
    patience=10,
    learning_rate=5e-3,
    verbose=False,
)
print({name: round(100 * value, 1) for name, value in writer.metrics.items() if name.startswith("rouge")})
print(writer(f"This is the forecast for Porto on Sunday. {weather['fog']}")["text"])

# %% [markdown]
# ```text
# {'rouge_1': 100.0, 'rouge_2': 100.0, 'rouge_l': 100.0}
# Sunday brings fog to Porto
# ```
