"""Beam search against that of Hugging Face transformers: the same hypotheses and scores for the same logits.

    python benchmarks/beams.py --peers peers/bin/python

The peer lives in an environment of its own:

    python3.11 -m venv peers
    peers/bin/pip install torch transformers numpy

A case is a random table: the logits of 12 tokens, of which one ends a sequence, are a function of all tokens before.
`--cases` of them, with 2 to 5 beams and at most 4 to 24 tokens, are searched with each length penalty by
`text.beam.search`, which is the definition, by the graph of `models.beam_search`, in float64 and, as .tflite files
have it, in float32, and by `generate(num_beams=K, num_return_sequences=K)` of transformers. A case agrees when all K
sequences are the same, in the same order, and their scores are equal to 1e-4 of their size.

Our penalty is ((5 + n) / 6)^alpha, theirs n^length_penalty, where n is the number of tokens: their `length_penalty`
is a number here whose power is ours, without a change of their code, so that alpha 0 and 1 test the same search as 0.3.
Their `early_stopping="never"` ends a search by our rule. Their other two rules are other definitions: the rows of
these tell how often they find the same, which is no goal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ALPHAS = (0.0, 0.3, 0.6, 1.0, 2.0)
VOCABULARY, ROWS = 12, 509  # tokens, and rows of a table
BEGIN, END = 0, 1
TOLERANCE = 1e-4  # of a score, relative; theirs is a sum in float32
RULES = ("never", False, True)  # early_stopping of transformers

Sequences = list[list[tuple[list[int], float]]]  # of each case the tokens, without the end, and the score of each


class Cases:
    """Random tables, float32 (cases, `ROWS`, `VOCABULARY`), and the options of each case."""

    def __init__(self, count: int):
        rng = np.random.default_rng(0)
        self.tables = (2 * rng.standard_normal((count, ROWS, VOCABULARY))).astype(np.float32)
        self.tables[..., END] += rng.uniform(-6, 2, (count, 1))  # in some cases most sequences are short
        self.beams = np.arange(count, dtype=np.int32) % 4 + 2
        self.longest = rng.integers(4, 25, count).astype(np.int32)


def after(row: Any, token: Any) -> Any:
    """The row of the table after another token, of integers in NumPy, TensorFlow or PyTorch."""
    return (31 * row + token + 7) % ROWS


# -------------------------------------------------------------------------------------------------------------- ours


def by_definition(cases: Cases, alpha: float) -> Sequences:
    from keras_ctxrep.text import beam

    result = []
    for table, beams, longest in zip(cases.tables, cases.beams, cases.longest, strict=True):

        def step(tokens, rows, state, table=table):
            state = after(state, tokens[:, None])
            return table[state[:, 0]], state

        start = np.zeros((1, 1), np.int64)
        (found,) = beam.search(step, start, BEGIN, END, int(longest), int(beams), alpha)
        result.append([([*map(int, hypothesis.tokens)], hypothesis.score) for hypothesis in found])
    return result


def graph(cases: Cases, dtype: str) -> Callable[[float], Sequences]:
    """A function of alpha, which searches all cases in one call, each with its own options."""
    import tensorflow as tf

    from keras_ctxrep.models import beam_search

    tables = tf.constant(cases.tables.reshape(-1, VOCABULARY))
    count = len(cases.beams)

    def step(inputs: dict) -> dict:
        case, row = tf.split(tf.cast(inputs["state"], tf.int32), 2, axis=1)
        row = after(row, inputs["token_ids"])
        state = tf.cast(tf.concat([case, row], 1), tf.float32)
        return {"logits": tf.gather(tables, (case * ROWS + row)[:, 0]), "state": state}

    @tf.function(input_signature=[tf.TensorSpec([count], dtype)])
    def search(alphas: Any) -> tuple:
        memory, mask = tf.zeros([count, 1, 1]), tf.ones([count, 1], tf.int32)
        state = tf.stack([tf.range(count, dtype=tf.float32), tf.zeros([count])], 1)
        longest, beams = tf.constant(cases.longest), tf.constant(cases.beams)
        options = beam_search.Options(BEGIN, END, longest, beams, alphas, dtype=dtype)
        found = beam_search.search(step, memory, mask, state, options)
        return found.tokens, found.scores

    def run(alpha: float) -> Sequences:
        rows = zip(*(x.numpy() for x in search(tf.fill([count], tf.constant(alpha, dtype)))), strict=True)
        return [
            [(own[own >= 0].tolist(), float(score)) for own, score in zip(tokens, scores, strict=True) if score > -1e38]
            for tokens, scores in rows
        ]

    return run


# ------------------------------------------------------------------------------------------------------------- peer


def by_transformers(cases: Cases) -> dict[str, Sequences]:
    """`key` of a rule and an alpha -> what `generate` gives."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers.modeling_outputs import CausalLMOutput  # pyright: ignore[reportMissingImports]

    class Penalty(float):
        """length ** penalty is ((5 + length) / 6)^alpha."""

        def __rpow__(self, length, modulus=None):
            return ((5 + length) / 6) ** float(self)

    class Table(transformers.PreTrainedModel, transformers.GenerationMixin):
        config_class = transformers.PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.unused = torch.nn.Parameter(torch.zeros(1))  # a model without one has no device
            self.table = torch.zeros(ROWS, VOCABULARY)
            self.post_init()

        def forward(self, input_ids, **_):
            row = torch.zeros_like(input_ids[:, 0])
            for token in input_ids.T:
                row = after(row, token)
            return CausalLMOutput(logits=self.table[row][:, None])

    config = transformers.PretrainedConfig(vocab_size=VOCABULARY, bos_token_id=BEGIN, eos_token_id=END)
    model = Table(config).eval()
    result: dict[str, Sequences] = {}
    for rule in RULES:
        for alpha in ALPHAS:
            found = result[key(rule, alpha)] = []
            for table, beams, longest in zip(cases.tables, cases.beams.tolist(), cases.longest.tolist(), strict=True):
                model.table = torch.from_numpy(table)
                options = transformers.GenerationConfig(
                    num_beams=beams, num_return_sequences=beams, max_new_tokens=longest, do_sample=False,
                    early_stopping=rule, length_penalty=Penalty(alpha), use_cache=False, eos_token_id=END,
                    pad_token_id=VOCABULARY, return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
                start = torch.tensor([[BEGIN]])
                out = model.generate(start, generation_config=options, attention_mask=torch.ones_like(start))
                rows = zip(out.sequences[:, 1:].tolist(), out.sequences_scores.tolist(), strict=True)
                found.append(
                    [([t for t in row if t not in (END, VOCABULARY)], score) for row, score in rows if score > -1e8]
                )
    return result


def key(rule: Any, alpha: float) -> str:
    return f"{rule} {alpha}"


# ----------------------------------------------------------------------------------------------------------- report


def compare(ours: Sequences, theirs: Sequences) -> tuple[int, int, float]:
    """The cases in which all sequences and scores agree, those in which the best one does, and the greatest relative
    difference of two scores of the same sequence."""
    every, best, worst = 0, 0, 0.0
    for own, other in zip(ours, theirs, strict=True):
        differences = [
            abs(a - b) / abs(b) for (left, a), (right, b) in zip(own, other, strict=False) if left == right and b
        ]
        worst = max([worst, *differences])
        same = [tokens for tokens, _ in own] == [tokens for tokens, _ in other]
        every += same and max(differences, default=0) <= TOLERANCE
        best += own[0][0] == other[0][0]
    return every, best, worst


def main() -> int | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with the peer")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # this file as the peer: where its answers go
    args = parser.parse_args()
    cases = Cases(args.cases)
    if args.peer:
        args.peer.write_text(json.dumps(by_transformers(cases)))
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "answers.json")
        command = [args.peers, "-W", "ignore", __file__, "--cases", str(args.cases), "--peer", str(file)]
        subprocess.run(command, check=True, env=os.environ | {"TRANSFORMERS_VERBOSITY": "error"})
        theirs = json.loads(file.read_text())
    engines: dict[str, Callable[[float], Sequences]] = {
        "text.beam": lambda alpha: by_definition(cases, alpha),
        "models.beam_search, float64": graph(cases, "float64"),
        "models.beam_search, float32": graph(cases, "float32"),
    }
    print(f"{args.cases} cases; lengths of the best sequences {lengths(by_definition(cases, 0.6))}\n")
    print("| early_stopping | alpha | engine | cases that agree | best sequence agrees | scores, relative |")
    print("|---|---|---|---|---|---|")
    missed = 0
    for alpha in ALPHAS:
        for engine, run in engines.items():
            ours = run(alpha)
            for rule in RULES if engine == "text.beam" else RULES[:1]:
                every, best, worst = compare(ours, theirs[key(rule, alpha)])
                missed += (args.cases - every) * (rule == "never")
                print(f"| {rule} | {alpha} | {engine} | {every} | {best} | {worst:.1e} |", flush=True)
    return int(missed > 0)


def lengths(found: Sequences) -> str:
    counts = [len(case[0][0]) for case in found]
    return f"{min(counts)} to {max(counts)}, mean {np.mean(counts):.1f}"


if __name__ == "__main__":
    sys.exit(main())
