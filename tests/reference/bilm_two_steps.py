"""Makes bilm_two_steps.npz: two training steps of a small biLM in plain PyTorch, in float64.

    python tests/reference/bilm_two_steps.py       (made with torch 2.13)

After Peters et al. 2018 and the description of https://github.com/allenai/bilm-tf alone, whose names the arrays have:
truncated back-propagation through time over three streams of four steps, the gradient of the loss times the steps,
clipped by its norm, Adagrad. Both clips of the LSTMs bite. Character ids are those of training: 0 is a byte.
"""

import json
from pathlib import Path

import numpy as np
import torch

OPTIONS = {
    "cells": 6, "projection": 4, "layers": 2, "cell_clip": 0.5, "projection_clip": 0.3, "residual": False,
    "filters": [[1, 3], [2, 4]], "embedding_dim": 3, "highways": 1, "activation": "tanh", "max_characters": 7,
    "words": 11, "streams": 3, "steps": 4, "learning_rate": 0.2, "clip": 0.5,
}  # fmt: skip
CELLS, P, STREAMS, STEPS, WORDS = (OPTIONS[name] for name in ("cells", "projection", "streams", "steps", "words"))


def parameters(rng):
    total = sum(number for _, number in OPTIONS["filters"])
    shapes = {"char_embed": (261, OPTIONS["embedding_dim"]), "softmax/W": (WORDS, P), "softmax/b": (WORDS,)}
    for index, (width, number) in enumerate(OPTIONS["filters"]):
        shapes[f"CNN/W_cnn_{index}"] = (1, width, OPTIONS["embedding_dim"], number)
        shapes[f"CNN/b_cnn_{index}"] = (number,)
    for index in range(OPTIONS["highways"]):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{gate}"] = (total, total)
            shapes[f"CNN_high_{index}/b_{gate}"] = (total,)
    shapes |= {"CNN_proj/W_proj": (total, P), "CNN_proj/b_proj": (P,)}
    for direction in (0, 1):
        for layer in range(OPTIONS["layers"]):
            cell = f"RNN_{direction}/rnn/multi_rnn_cell/cell_{layer}/lstm_cell"
            shapes[f"{cell}/kernel"] = (2 * P, 4 * CELLS)
            shapes[f"{cell}/bias"] = (4 * CELLS,)
            shapes[f"{cell}/projection/kernel"] = (CELLS, P)
    arrays = {name: rng.normal(scale=0.5, size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in arrays.items()}


def tokens(p, ids):
    x = p["char_embed"][torch.tensor(ids, dtype=torch.long)]  # (B, T, W, E)
    result = []
    for index, (width, _) in enumerate(OPTIONS["filters"]):
        windows = x.unfold(2, width, 1)  # (B, T, W - width + 1, E, width)
        z = torch.einsum("btpew,wef->btpf", windows, p[f"CNN/W_cnn_{index}"][0]) + p[f"CNN/b_cnn_{index}"]
        result.append(torch.tanh(z.max(2).values))
    x = torch.cat(result, -1)
    for index in range(OPTIONS["highways"]):
        carry, transform = (
            x @ p[f"CNN_high_{index}/W_{gate}"] + p[f"CNN_high_{index}/b_{gate}"] for gate in ("carry", "transform")
        )
        gate = torch.sigmoid(carry)
        x = gate * torch.relu(transform) + (1 - gate) * x
    return x @ p["CNN_proj/W_proj"] + p["CNN_proj/b_proj"]


def lstm(p, cell, x, h, c):
    out = []
    for t in range(x.shape[1]):
        i, j, f, o = torch.chunk(torch.cat([x[:, t], h], 1) @ p[f"{cell}/kernel"] + p[f"{cell}/bias"], 4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
        c = c.clamp(-OPTIONS["cell_clip"], OPTIONS["cell_clip"])
        h = (torch.sigmoid(o) * torch.tanh(c)) @ p[f"{cell}/projection/kernel"]
        h = h.clamp(-OPTIONS["projection_clip"], OPTIONS["projection_clip"])
        out.append(h)
    return torch.stack(out, 1), h, c


def main():
    rng = np.random.default_rng(0)
    p = parameters(rng)
    saved = {"options": np.array(json.dumps(OPTIONS))} | {f"init|{name}": x.detach().numpy() for name, x in p.items()}
    saved = {name: array.copy() for name, array in saved.items()}
    accumulators = {name: torch.ones_like(x) for name, x in p.items()}
    places = [(direction, layer) for direction in (0, 1) for layer in range(OPTIONS["layers"])]
    state = {place: (torch.zeros(STREAMS, P).double(), torch.zeros(STREAMS, CELLS).double()) for place in places}
    for step in range(2):
        losses = []
        for direction, suffix in enumerate(("", "_reverse")):
            ids = rng.integers(0, 261, (STREAMS, STEPS, OPTIONS["max_characters"]))
            targets = rng.integers(0, WORDS, (STREAMS, STEPS))
            saved[f"batch{step}|tokens_characters{suffix}"] = ids.astype(np.int32)
            saved[f"batch{step}|next_token_id{suffix}"] = targets.astype(np.int32)
            x = tokens(p, ids)
            for layer in range(OPTIONS["layers"]):
                cell = f"RNN_{direction}/rnn/multi_rnn_cell/cell_{layer}/lstm_cell"
                x, h, c = lstm(p, cell, x, *state[direction, layer])
                state[direction, layer] = h.detach(), c.detach()
                saved[f"batch{step}|state_h_{direction}_{layer}"] = h.detach().numpy()
                saved[f"batch{step}|state_c_{direction}_{layer}"] = c.detach().numpy()
            logits = x @ p["softmax/W"].T + p["softmax/b"]
            losses.append(torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS), torch.tensor(targets.ravel())))
        gradients = torch.autograd.grad(0.5 * sum(losses) * STEPS, list(p.values()))
        norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
        saved |= {f"batch{step}|loss_fwd": losses[0].item(), f"batch{step}|loss_bwd": losses[1].item()}
        saved[f"batch{step}|grad_norm_before_clip"] = norm.item()
        with torch.no_grad():
            for (name, x), gradient in zip(p.items(), gradients, strict=True):
                gradient = gradient * min(1, OPTIONS["clip"] / norm)
                accumulators[name] += gradient**2
                x -= OPTIONS["learning_rate"] * gradient / torch.sqrt(accumulators[name])
                saved[f"after{step}|{name}"] = x.detach().numpy().copy()
    shrink = {name: np.float32(array) for name, array in saved.items() if np.asarray(array).dtype == np.float64}
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **saved | shrink)


if __name__ == "__main__":
    main()
