"""Makes transformers_bert.npz: small random BERT models of `transformers`, and what they compute.

    python tests/reference/transformers_bert.py       (made with transformers 5.23, torch 2.15)

For each architecture "NAME|config" (JSON), "NAME|weights|TENSOR" as `save_pretrained` writes them, "NAME|input|..." and
"NAME|output|...", computed in float64 from the float32 weights.
"""

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
    "max_position_embeddings": 11,
    "attn_implementation": "eager",
}
CHANGES = {
    "BertModel": {},
    "BertForPreTraining": {"hidden_act": "gelu_new"},
    "BertForMaskedLM": {"layer_norm_eps": 1e-5},
    "BertForNextSentencePrediction": {"type_vocab_size": 4},
    "BertForSequenceClassification": {"id2label": {0: "no", 1: "yes", 2: "both"}, "classifier_dropout": 0.25},
    "BertForTokenClassification": {"num_labels": 5, "hidden_act": "relu"},
    "BertForQuestionAnswering": {"hidden_act": "gelu_pytorch_tanh"},
}


def main():
    rng, saved = np.random.default_rng(0), {}
    for name, changes in CHANGES.items():
        model = getattr(transformers, name)(transformers.BertConfig(**SIZES, **changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                mean = 1.0 if parameter.ndim == 1 and (parameter == 1).all() else 0.0
                parameter.copy_(torch.tensor(rng.normal(mean, 0.4, parameter.shape)))
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                saved[f"{name}|config"] = np.array((Path(folder) / "config.json").read_text())
                for tensor, array in load_file(Path(folder) / "model.safetensors").items():
                    saved[f"{name}|weights|{tensor}"] = array
            mask = np.array([[1] * 9, [1] * 4 + [0] * 5], np.int32)
            inputs = {
                "input_ids": rng.integers(0, SIZES["vocab_size"], mask.shape),
                "token_type_ids": rng.integers(0, model.config.type_vocab_size, mask.shape),
                "attention_mask": mask,
            }
            saved |= {f"{name}|input|{key}": array.astype(np.int32) for key, array in inputs.items()}
            tensors = {key: torch.tensor(array, dtype=torch.long) for key, array in inputs.items()}
            outputs = model.double()(**tensors, output_hidden_states=True)
            saved[f"{name}|output|hidden_states"] = torch.stack(outputs.hidden_states).numpy()
            keys = (
                "pooler_output",
                "logits",
                "prediction_logits",
                "seq_relationship_logits",
                "start_logits",
                "end_logits",
            )
            for key in keys:
                if key in outputs:
                    saved[f"{name}|output|{key}"] = outputs[key].numpy()
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **saved)


if __name__ == "__main__":
    main()
