"""Makes transformers_gpt2.npz: a small random GPT-2 by `transformers`, its logits, and what it generates greedily.

    python tests/reference/transformers_gpt2.py     (made with transformers 5.24, torch 2.13)

"config" (JSON), "weights|TENSOR" as `save_pretrained` writes them, "input", int32 (B, T), "logits", computed in float64
from the float32 weights, and "generated", int32 (B, T + 12): the input and what follows it.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {"vocab_size": 300, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3, "bos_token_id": 0}


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZES, eos_token_id=0, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float((parameter == 1).all()), 0.4)
    ids = torch.randint(1, SIZES["vocab_size"], (3, 7))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = {"config": np.array((Path(folder) / "config.json").read_text())}
        tensors = load_file(Path(folder) / "model.safetensors")
        saved |= {f"weights|{name}": array for name, array in tensors.items()}
    with torch.no_grad():
        model.double()
        saved |= {"input": ids.numpy().astype(np.int32), "logits": model(ids).logits.numpy()}
        for _ in range(12):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    saved["generated"] = ids.numpy().astype(np.int32)
    np.savez_compressed(Path(__file__).with_name("transformers_gpt2.npz"), **saved)


if __name__ == "__main__":
    main()
