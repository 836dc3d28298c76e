"""Makes transformers_NAME.npz: small random models of BERT's relatives by `transformers`, and what they compute.

    python tests/reference/transformers_families.py [mpnet distilbert ...]     (made with transformers 5.24, torch 2.13)

For each architecture "NAME|config" (JSON), "NAME|weights|TENSOR" as `save_pretrained` writes them, "NAME|input|..." and
"NAME|output|...", computed in float64 from the float32 weights. All architectures of a family share an encoder, whose
weights are under the name of the first one.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

SIZES = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": 13,
    "attn_implementation": "eager",
}
FAMILIES = {  # model type -> start of the names of its classes, and other options
    "mpnet": ("MPNet", {"relative_attention_num_buckets": 32, "layer_norm_eps": 1e-5}),
    "distilbert": ("DistilBert", {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 16}),
    "electra": ("Electra", {"embedding_size": 8}),
    "roberta": ("Roberta", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
}
HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": {"id2label": {0: "no", 1: "yes", 2: "both"}},
    "ForTokenClassification": {"num_labels": 5},
    "ForQuestionAnswering": {},
}
OUTPUTS = ("pooler_output", "logits", "start_logits", "end_logits")


def main():
    for family in sys.argv[1:] or FAMILIES:
        classes, changes = FAMILIES[family]
        rng, saved, shared = np.random.default_rng(0), {}, {}
        for head, options in HEADS.items():
            name = f"{classes}{head}"
            config = getattr(transformers, f"{classes}Config")(**SIZES | changes | options)
            model = getattr(transformers, name)(config).eval()
            with torch.no_grad():
                for tensor, parameter in model.named_parameters():
                    key = (
                        tensor.removeprefix(f"{family}.")
                        if f"{family}." in tensor or head == "Model"
                        else (head, tensor)
                    )
                    if key not in shared:
                        mean = 1.0 if parameter.ndim == 1 and (parameter == 1).all() else 0.0
                        values = rng.normal(mean, 0.4, parameter.shape)
                        if "position_embeddings" in tensor and config.pad_token_id == 1:
                            values[:2] = 0  # of no token
                        shared[key] = torch.tensor(values)
                    parameter.copy_(shared[key])
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                saved[f"{name}|config"] = np.array((Path(folder) / "config.json").read_text())
                for tensor, array in load_file(Path(folder) / "model.safetensors").items():
                    first = f"{classes}Model|weights|{tensor.removeprefix(f'{family}.')}"
                    # under its own name, but the values only once
                    saved[f"{name}|weights|{tensor}"] = np.zeros(0, np.float32) if first in saved else array
            mask = np.array([[1] * 9, [1] * 4 + [0] * 5], np.int32)
            inputs = {"input_ids": rng.integers(5, SIZES["vocab_size"], mask.shape), "attention_mask": mask}
            inputs["input_ids"][mask == 0] = config.pad_token_id
            if getattr(config, "type_vocab_size", 0):
                inputs["token_type_ids"] = rng.integers(0, config.type_vocab_size, mask.shape)
            saved |= {f"{name}|input|{key}": array.astype(np.int32) for key, array in inputs.items()}
            tensors = {key: torch.tensor(array, dtype=torch.long) for key, array in inputs.items()}
            with torch.no_grad():
                outputs = model.double()(**tensors, output_hidden_states=True)
            saved[f"{name}|output|hidden_states"] = torch.stack(outputs.hidden_states).numpy()
            saved |= {f"{name}|output|{key}": outputs[key].numpy() for key in OUTPUTS if key in outputs}
        np.savez_compressed(Path(__file__).with_name(f"transformers_{family}.npz"), **saved)


if __name__ == "__main__":
    main()
