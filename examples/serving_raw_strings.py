# %% [markdown]
# # TF Serving from raw strings
#
# A SavedModel with the text preparation in its graph: strings in, answers out, in any language that can send JSON.

# %%
import keras_ctxrep as ctx

texts = ["rain and snow", "wind, then fog", "bread and butter", "soup with onions"] * 8
labels = ["weather", "weather", "kitchen", "kitchen"] * 8
topics = ctx.finetune((texts, labels), dev=0.25, encoder="bert_6_384_12/books_wiki_en", epochs=6)
version = topics.export("serving/topics")
print(version)

# %% [markdown]
# ```text
# serving/topics/1
# ```

# %% [markdown]
# In production the container serves it:
#
# ```sh
# docker run -p 8501:8501 -v "$PWD/serving/topics:/models/topics" -e MODEL_NAME=topics tensorflow/serving
# ```
#
# On the desk `ctxrep serve` speaks the same REST interface, with a page to try the model in a browser:

# %%
import subprocess
import sys

command = [sys.executable, "-m", "keras_ctxrep.cli", "serve", "serving/topics", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
url = server.stdout.readline().strip()
print(url.partition("/v1/")[2])

# %% [markdown]
# ```text
# models/topics
# ```

# %%
import json
from urllib.request import urlopen

body = json.dumps({"instances": [{"text": "Snow and wind."}, {"text": "Butter and bread."}]}).encode()
with urlopen(f"{url}:predict", body) as response:
    answers = json.load(response)["predictions"]
print([answer["label"] for answer in answers])

# %% [markdown]
# ```text
# ['weather', 'kitchen']
# ```

# %% [markdown]
# `ctxrep client --url http://localhost:8501 --model topics "Snow and wind."` asks either of them. The same answers as
# in Keras:

# %%
expected = [answer["label"] for answer in topics.predict(["Snow and wind.", "Butter and bread."])]
print([answer["label"] for answer in answers] == expected)
server.terminate()

# %% [markdown]
# ```text
# True
# ```
