"""How fast decoders write text: loops in a .tflite file, beams against transformers and CTranslate2, long targets.

    python benchmarks/decoding.py loop
    python benchmarks/decoding.py lengths
    python benchmarks/decoding.py peers --peers peers/bin/python
    python benchmarks/decoding.py peers --peers peers/bin/python --quick     # tiny sizes, as `lengths --quick`

"loop": greedy, one text a time, from text to text, by a published model of the package, an LSTM, and by a Transformer
decoder of 2 layers of 128 with random weights, of 24 tokens: the loop in the .tflite file (the signatures "greedy_N"),
a loop in Python over the file's "step_N", and TensorFlow's: a loop in Python over the Keras model's step, over the
signature "step" of a SavedModel, and the SavedModel's tf.while_loop. Engines take turns, text by text.

"lengths": a Transformer decoder that never ends by itself, greedy, one text: CPU milliseconds a token at some target
lengths. Its cache has a fixed size, `context` tokens: with a context of the greatest length a step costs the same at
any length; with one of the target's length shorter targets are cheaper.

"peers": a BERT encoder and a Transformer decoder of 6 layers of 512 each, with the same random weights in all engines,
32 texts of 20 to 32 tokens, 4 beams, no length penalty; the end has no probability, so that all write `--target`
tokens. Ours is a SavedModel's serving signature, from strings to strings; the peers get tokens. transformers runs the
decoder as a PyTorch module with its cache and PyTorch's fused attention under `generate`, CTranslate2 one of its
Transformer specifications. Engines are processes that take turns, as in bert.py. "same" is the fraction of rows whose
best sequence is ours token by token: sums of float32 in another order now and then choose another one. The peers live
in an environment of their own:

    python3.11 -m venv peers
    peers/bin/pip install torch transformers ctranslate2 numpy

`--out` gets a line of JSON for each row of a table.
"""

import argparse
import importlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import bert
import numpy as np

BEAMS, ROWS = 4, 32
BEGIN, END, NEVER = 0, 1, (0, 2)  # of target tokens; checked against ours
OURS = "keras_ctxrep SavedModel"


@dataclass(frozen=True)
class Size:
    """Of an encoder-decoder: layers of each half, tokens of a text and of a target."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 16_000
    source: int = 32
    target: int = 32
    context: int = 32


TINY = Size(1, 16, 2, 50, 8, 6, 6)
PHONE = Size(2, 128, 4, 4_000, 32, 24, 24)  # of "loop" and "lengths"


def build(folder: Path, size: Size, beams: int) -> None:
    """A model folder with random weights, which attend and vary, of a decoder that never ends."""
    from keras_ctxrep import saving, tasks
    from keras_ctxrep.models import bert as models
    from keras_ctxrep.text.bundle import Bundle
    from keras_ctxrep.text.target_tokens import MARKERS, TargetTokens

    assert (TargetTokens.BEGIN, TargetTokens.END, TargetTokens.NEVER) == (BEGIN, END, NEVER)
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab = special + tuple(f"w{number}" for number in range(size.vocabulary - len(special)))
    labels = MARKERS + tuple(f"t{number}" for number in range(len(MARKERS), size.vocabulary))
    wide = 4 * size.width
    config = models.Config(
        size.vocabulary, size.layers, size.width, size.heads, wide, max_positions=size.source, epsilon=1e-5,
        pooler=False, initializer_range=size.width**-0.5,
    )  # fmt: skip
    head = {"kind": "transformer", "units": size.width, "layers": size.layers, "heads": size.heads, "dropout": 0.0}
    fields = tasks.bundle_fields("translate", units="words", target_length=size.target, beams=beams, alpha=0.0)
    fields |= {"head": head | {"context": size.context}}
    bundle = Bundle("bert", config=asdict(config), max_length=size.source, labels=labels, vocab=vocab, **fields)
    model, rng = saving.build(bundle), np.random.default_rng(0)
    for weight in model.get_layer("target_decoder").weights + [
        weight for layer in model.layers if layer.name.startswith("decoder_memory_") for weight in layer.weights
    ]:
        if len(weight.shape) == 2:
            table = weight.path.endswith("softmax_kernel")
            weight.assign(rng.normal(scale=(2 if table else 1) * (size.width if table else weight.shape[0]) ** -0.5,
                                     size=weight.shape))  # fmt: skip
        elif weight.path.endswith("softmax_bias"):
            weight.assign(np.where(np.isin(np.arange(size.vocabulary), (END, *NEVER)), -1e9, 0))
    saving.save(folder, model, bundle)


def texts_of(size: Size, rows: int) -> list[list[int]]:
    """Ids of random texts, [CLS] and [SEP] among them."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(5 * size.source // 8, size.source + 1, rows)
    return [[2, *rng.integers(5, size.vocabulary, length - 2).tolist(), 3] for length in lengths]


def strings(ids: Any) -> str:
    """The text of which these are the ids: 7 is "w2"."""
    return " ".join(f"w{token - 5}" for token in ids[1:-1])


# ------------------------------------------------------------------------------------------------------------- loop


def export(folder: Path, base: Path) -> Path:
    from keras_ctxrep import saving
    from keras_ctxrep_export import saved_model

    return saved_model.export(*saving.load(folder), base)


def in_python(step: Callable, start: Callable, bundle: Any) -> Callable[[dict], list[int]]:
    """A greedy loop in Python over two functions of arrays: ids of a text to tokens."""
    from keras_ctxrep.text import beam

    options = {"begin": BEGIN, "end": END, "never": NEVER, "max_length": bundle.settings["target_length"]}

    def run(inputs: dict) -> list[int]:
        ((best, *_),) = beam.generate(start, step, inputs, **options)
        return list(best.tokens)

    return run


def fitted(inputs: dict, length: int) -> dict[str, np.ndarray]:
    return {key: np.pad(ids, ((0, 0), (0, length - ids.shape[1]))).astype(ids.dtype) for key, ids in inputs.items()}


def interpreted(file: Path, threads: int) -> Callable[[str], Callable]:
    """Signatures of a .tflite file as functions, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file), num_threads=threads)
    runners = {}

    def function(name: str) -> Callable:
        runners[name] = runner = interpreter.get_signature_runner(name)
        return lambda inputs: runner(**inputs)

    return function


def loop_engines(folder: Path, work: Path, threads: int) -> tuple[dict[str, Callable[[str], str]], Any]:
    """Text to text by each engine."""
    import tensorflow as tf

    from keras_ctxrep.inference.engines import open_model
    from keras_ctxrep.tasks import translate
    from keras_ctxrep.text import bundle as bundles
    from keras_ctxrep_tflite.quantize import convert

    bundle = bundles.load(folder)
    tokens, longest = translate.tokens_of(bundle), bundle.max_length
    lengths = sorted({min(16, longest), min(32, longest), longest})
    file = convert(folder, work / "model.tflite", lengths=lengths)
    version = export(folder, work / "saved")
    greedy = {"beams": 1}
    function = interpreted(file, threads)
    loaded = tf.saved_model.load(str(version))
    signatures = {name: loaded.signatures[name] for name in ("ids", "step")}

    def signature(name: str) -> Callable:
        def run(inputs: dict) -> dict:
            outputs = signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
            return {key: value.numpy() for key, value in outputs.items()}

        return run

    def fixed(step: Callable) -> Callable:
        return lambda inputs: {key: np.asarray(value) for key, value in step(inputs).items()}

    def from_text(run: Callable[[dict], list[int]]) -> Callable[[str], str]:
        return lambda text: tokens.text(run(bundle.features([text])))

    by_length = {
        length: in_python(fixed(function(f"step_{length}")), fixed(function(f"length_{length}")), bundle)
        for length in lengths
    }

    def steps(inputs: dict) -> list[int]:
        length = min(length for length in lengths if length >= inputs["mask"].shape[1])
        return by_length[length](fitted(inputs, length))

    def predicted(path: Path) -> Callable[[str], str]:
        predictor = open_model(path, search=greedy).answer
        return lambda text: predictor([text])[0]["text"]

    by_signatures = in_python(signature("step"), signature("ids"), bundle)
    engines = {
        ".tflite, its own loop": predicted(file),
        ".tflite, loop in Python": from_text(steps),
        "Keras, loop in Python": predicted(folder),
        "SavedModel, loop in Python": from_text(by_signatures),
        "SavedModel, tf.while_loop": predicted(version),
    }
    return engines, loaded  # whose functions live as long as it does


def loop(args: argparse.Namespace) -> Iterator[dict]:
    import tensorflow as tf

    from keras_ctxrep import zoo

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    words = sorted(set(re.findall("[a-z]{3,}", (__doc__ or "").lower())))[: 4 if args.quick else 40]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        size = TINY if args.quick else PHONE
        build(work / "transformer", size, beams=1)
        random = [strings(ids) for ids in texts_of(size, 2 if args.quick else 10)]
        models = {args.model: (Path(zoo.find(args.model)), words)}
        models["Transformer"] = work / "transformer", random
        for model, (folder, texts) in models.items():
            engines, _kept = loop_engines(folder, work / f"{folder.name} files", args.threads)
            yield from turns(model, engines, texts, args.rounds)


def turns(model: str, engines: dict[str, Callable[[str], str]], texts: list[str], rounds: int) -> Iterator[dict]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    answers: dict[str, list[str]] = {}
    for number in range(rounds + 1):  # the first one warms up
        answers = {name: [] for name in engines}
        for text in texts:
            for name, run in engines.items():
                answer, *seconds = timed(run, text)
                answers[name].append(answer)
                if number:
                    times[name].append((seconds[0], seconds[1]))
    first, *_ = engines
    medians = {name: [*map(statistics.median, zip(*values, strict=True))] for name, values in times.items()}
    for name, (wall, cpu) in medians.items():
        same = np.mean([a == b for a, b in zip(answers[first], answers[name], strict=True)])
        milliseconds = {"ms a text": round(1000 * wall, 2), "ratio": round(wall / medians[first][0], 1)}
        milliseconds |= {"CPU ms": round(1000 * cpu, 2), "CPU ratio": round(cpu / medians[first][1], 1)}
        yield {"model": model, "engine": name} | milliseconds | {"same": float(same)}


def timed(run: Callable, *arguments: Any) -> tuple[Any, float, float]:
    """What a function gives, and its wall and CPU seconds, of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(*arguments)
    return result, time.perf_counter() - wall, time.process_time() - cpu


# ---------------------------------------------------------------------------------------------------------- lengths


def lengths(args: argparse.Namespace) -> Iterator[dict]:
    import tensorflow as tf

    from keras_ctxrep.text import bundle as bundles
    from keras_ctxrep_tflite.quantize import convert

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    size, every = (TINY, (2, 4)) if args.quick else (PHONE, (16, 32, 64, 128, 256))
    longest = max(every)
    text = strings(texts_of(size, 1)[0])
    with tempfile.TemporaryDirectory() as temporary:
        work, files = Path(temporary), {}
        for length in every:
            build(work / f"{length}", replace(size, target=length, context=length), beams=1)
            files[length] = convert(work / f"{length}", work / f"{length}.tflite", lengths=[size.source])
        inputs = fitted(bundles.load(work / f"{longest}").features([text]), size.source)
        function = interpreted(files[longest], args.threads)
        start, step = function(f"length_{size.source}"), function(f"step_{size.source}")
        loaded: Any = tf.saved_model.load(str(export(work / f"{longest}", work / "saved")))
        runs: dict[tuple[str, int], Callable[[], Any]] = {}
        for length, file in files.items():
            greedy = interpreted(file, args.threads)(f"greedy_{size.source}")
            runs[".tflite loop, context of the target", length] = partial(by_loop, greedy, inputs)
            steps = partial(by_steps, start, step, inputs, length)
            runs[f".tflite steps in Python, context {longest}", length] = steps
            search = partial(by_search, loaded.signatures["search"], text, length)
            runs[f"SavedModel, context {longest}", length] = search
        seconds: dict[tuple, list[float]] = {key: [] for key in runs}
        for number in range(args.rounds + 1):  # the first one warms up
            for key, run in runs.items():
                tokens, _, cpu = timed(run)
                assert len(tokens) == key[1] and min(tokens) >= 0, (key, tokens)
                if number:
                    seconds[key].append(cpu)
    for name in dict.fromkeys(name for name, _ in runs):
        medians = {length: statistics.median(seconds[name, length]) for length in every}
        yield {"engine": name} | {f"CPU ms a token, {n}": round(1000 * s / n, 3) for n, s in medians.items()}


def by_loop(greedy: Callable, inputs: dict) -> Any:
    return greedy(inputs)["tokens"][0, 0]


def by_steps(start: Callable, step: Callable, inputs: dict, length: int) -> list[int]:
    begun, token, tokens = start(inputs), BEGIN, []
    state, memory = begun["state"], {"memory": begun["memory"], "memory_mask": inputs["mask"]}
    for _ in range(length):
        outputs = step(memory | {"token_ids": np.array([[token]], np.int32), "state": state})
        token, state = int(outputs["logits"].argmax()), outputs["state"]
        tokens.append(token)
    return tokens


def by_search(search: Callable, text: str, length: int) -> list[int]:
    import tensorflow as tf

    options = {name: tf.constant([value]) for name, value in (("max_length", length), ("beams", 1))}
    return saved_model_tokens({"text": search(text=tf.constant([text]), **options)["text"].numpy()})[0]


def saved_model_tokens(outputs: Mapping[str, Any]) -> list[list[int]]:
    """The tokens of the best texts of a batch: "t5 t17" are 5 and 17."""
    return [[int(word[1:]) for word in text.decode().split()] for text in outputs["text"]]


# ------------------------------------------------------------------------------------------- peers: their weights


def write_weights(folder: Path, target: Path) -> None:
    """The encoder as a BertModel of transformers, and the decoder's weights under plain names, (out, in)."""
    from keras_ctxrep import saving
    from keras_ctxrep.convert import huggingface

    model, bundle = saving.load(folder)
    huggingface.write(target / "encoder", *saving.ModelFolder(model, bundle).encoder())
    inner, weights = model.get_layer("target_decoder"), {}

    def dense(name: str, layer: Any) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.asarray(layer.kernel).T, np.asarray(layer.bias)

    def norm(name: str, layer: Any) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.asarray(layer.gamma), np.asarray(layer.beta)

    softmax = inner.get_layer("target_softmax")
    weights["table"], weights["bias"] = np.asarray(softmax.kernel), np.asarray(softmax.bias)
    norm("norm", inner.get_layer("decoder_norm"))
    for index in range(bundle.head["layers"]):
        block, name = inner.get_layer(f"decoder_layer_{index}"), f"layers.{index}"
        norm(f"{name}.attention_norm", block.attention_norm)
        dense(f"{name}.qkv", block.qkv)
        dense(f"{name}.attention_output", block.attention_output)
        norm(f"{name}.memory_norm", block.memory_norm)
        dense(f"{name}.query", block.memory_attention.query_dense)
        dense(f"{name}.memory", model.get_layer(f"decoder_memory_{index}"))
        dense(f"{name}.memory_output", block.memory_attention.output_dense)
        norm(f"{name}.feed_forward_norm", block.feed_forward_norm)
        dense(f"{name}.feed_forward", block.feed_forward)
        dense(f"{name}.feed_forward_output", block.feed_forward_output)
    np.savez(target / "decoder.npz", **weights)


# --------------------------------------------------------- engines: functions of ids, mask (B, S) to tokens (B, T)


@dataclass(frozen=True)
class Job:
    """What an engine is told."""

    folder: str
    threads: int
    size: dict

    @staticmethod
    def read(path: str) -> "Job":
        return Job(**json.loads(Path(path).read_text()))


def ours(job: Job) -> Callable:
    import tensorflow as tf

    from keras_ctxrep.inference.engines import open_model

    tf.config.threading.set_intra_op_parallelism_threads(job.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    run = open_model(Path(job.folder, "saved", "1")).answer.runner.run

    def search(ids, mask, labels):
        texts = [strings(row[: sum(real)]) for row, real in zip(ids, mask, strict=True)]
        return np.array(saved_model_tokens(run({"text": np.array(texts, object)})))

    return search


def transformers(job: Job) -> Callable:
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        BertModel,
        DynamicCache,
        EncoderDecoderCache,
        GenerationConfig,
        GenerationMixin,
        PretrainedConfig,
        PreTrainedModel,
    )  # fmt: skip
    from transformers.modeling_outputs import Seq2SeqLMOutput  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(job.threads)
    torch.set_grad_enabled(False)
    size, attend = Size(**job.size), nn.functional.scaled_dot_product_attention
    D, H = size.width, size.heads

    def by_head(x):
        return x.unflatten(-1, (H, D // H)).transpose(1, 2)

    def rotated(x, position):
        half = x.shape[-1] // 2
        angles = position * 10000.0 ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    class Block(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.index = index
            self.qkv, self.memory = nn.Linear(D, 3 * D), nn.Linear(D, 2 * D)
            self.attention_output, self.query, self.memory_output = (nn.Linear(D, D) for _ in range(3))
            self.feed_forward, self.feed_forward_output = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
            self.attention_norm, self.memory_norm, self.feed_forward_norm = (nn.LayerNorm(D) for _ in range(3))

        def forward(self, x, cache, position, memory, mask):
            query, key, value = map(by_head, self.qkv(self.attention_norm(x)).chunk(3, -1))
            own = cache.self_attention_cache.update(rotated(key, position), value, self.index)
            mixed = attend(rotated(query, position), *own)
            x = x + self.attention_output(mixed.transpose(1, 2).flatten(2))
            query, across = by_head(self.query(self.memory_norm(x))), cache.cross_attention_cache
            if cache.is_updated.get(self.index):
                pair = across.layers[self.index].keys, across.layers[self.index].values
            else:
                pair = across.update(*map(by_head, self.memory(memory).chunk(2, -1)), self.index)
                cache.is_updated[self.index] = True
            mixed = attend(query, *pair, attn_mask=mask)
            x = x + self.memory_output(mixed.transpose(1, 2).flatten(2))
            return x + self.feed_forward_output(nn.functional.gelu(self.feed_forward(self.feed_forward_norm(x))))

    class Network(PreTrainedModel, GenerationMixin):
        config_class, main_input_name = PretrainedConfig, "input_ids"

        def __init__(self, config, encoder):
            super().__init__(config)
            self.encoder = encoder
            self.table = nn.Parameter(torch.zeros(size.vocabulary, D))
            self.bias = nn.Parameter(torch.zeros(size.vocabulary))
            self.layers, self.norm = nn.ModuleList(Block(index) for index in range(size.layers)), nn.LayerNorm(D)
            self.post_init()

        def get_encoder(self, *_, **__):
            return self.encoder

        def forward(self, input_ids=None, attention_mask=None, encoder_outputs=None, decoder_input_ids=None,
                    past_key_values=None, cache=None, use_cache=True, **_) -> Any:  # fmt: skip
            kept = cache if cache is not None else past_key_values  # by the version
            if kept is None:
                kept = EncoderDecoderCache(DynamicCache(), DynamicCache())
            assert decoder_input_ids is not None and encoder_outputs is not None and attention_mask is not None
            position, x = kept.get_seq_length(), self.table[decoder_input_ids]
            mask = attention_mask[:, None, None].bool()
            for block in self.layers:
                x = block(x, kept, position, encoder_outputs[0], mask)
            logits = nn.functional.linear(self.norm(x), self.table, self.bias)
            given = {"cache": kept} if cache is not None else {"past_key_values": kept}
            return Seq2SeqLMOutput(logits=logits, **given)

    config = PretrainedConfig(
        is_encoder_decoder=True, vocab_size=size.vocabulary, hidden_size=D, num_attention_heads=H,
        num_hidden_layers=size.layers, decoder_start_token_id=BEGIN, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    encoder = BertModel.from_pretrained(f"{job.folder}/encoder", add_pooling_layer=False)
    model = Network(config, encoder).eval()
    weights = np.load(f"{job.folder}/decoder.npz")
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(weights[k]) for k in weights}, strict=False)
    assert not unexpected and all(name.startswith("encoder.") for name in missing), (missing, unexpected)
    options = GenerationConfig(
        num_beams=BEAMS, max_new_tokens=size.target, do_sample=False, early_stopping="never", length_penalty=0.0,
        decoder_start_token_id=BEGIN, eos_token_id=END, pad_token_id=END, use_cache=True,
    )  # fmt: skip

    def search(ids, mask, labels):
        inputs = {"input_ids": torch.from_numpy(ids).long(), "attention_mask": torch.from_numpy(mask).long()}
        return model.generate(**inputs, generation_config=options)[:, 1:].numpy()

    return search


def ctranslate2(job: Job) -> Callable:
    import ctranslate2 as library  # pyright: ignore[reportMissingImports]
    from ctranslate2.specs import common_spec, transformer_spec  # pyright: ignore[reportMissingImports]
    from safetensors.numpy import load_file

    size = Size(**job.size)
    GELU = common_spec.Activation.GELU
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(
            size.layers, size.heads, pre_norm=False, activation=GELU, layernorm_embedding=True
        ),
        transformer_spec.TransformerDecoderSpec(
            size.layers, size.heads, activation=GELU, rotary_dim=0, rotary_interleave=False
        ),
    )
    theirs, own = load_file(f"{job.folder}/encoder/model.safetensors"), np.load(f"{job.folder}/decoder.npz")

    def filled(part: Any, weights: Any, *names: str) -> None:
        """A dense layer, of several side by side, or a norm."""
        weight, bias = ("weight", "bias") if hasattr(part, "weight") else ("gamma", "beta")
        setattr(part, weight, np.concatenate([weights[f"{name}.weight"] for name in names]))
        setattr(part, bias, np.concatenate([weights[f"{name}.bias"] for name in names]))

    encoder, decoder = spec.encoder, spec.decoder
    encoder.scale_embeddings = decoder.scale_embeddings = False
    # all texts are first segments
    encoder.embeddings[0].weight = (
        theirs["embeddings.word_embeddings.weight"] + theirs["embeddings.token_type_embeddings.weight"][:1]
    )
    encoder.position_encodings.encodings = theirs["embeddings.position_embeddings.weight"]
    filled(encoder.layernorm_embedding, theirs, "embeddings.LayerNorm")
    for index, layer in enumerate(encoder.layer):
        name = f"encoder.layer.{index}"
        parts = (f"{name}.attention.self.{part}" for part in ("query", "key", "value"))
        filled(layer.self_attention.linear[0], theirs, *parts)
        filled(layer.self_attention.linear[1], theirs, f"{name}.attention.output.dense")
        filled(layer.self_attention.layer_norm, theirs, f"{name}.attention.output.LayerNorm")
        filled(layer.ffn.linear_0, theirs, f"{name}.intermediate.dense")
        filled(layer.ffn.linear_1, theirs, f"{name}.output.dense")
        filled(layer.ffn.layer_norm, theirs, f"{name}.output.LayerNorm")
    decoder.embeddings.weight = decoder.projection.weight = own["table"]
    decoder.projection.bias = own["bias"]
    filled(decoder.layer_norm, own, "norm")
    for index, layer in enumerate(decoder.layer):
        name = f"layers.{index}"
        filled(layer.self_attention.layer_norm, own, f"{name}.attention_norm")
        filled(layer.self_attention.linear[0], own, f"{name}.qkv")
        filled(layer.self_attention.linear[1], own, f"{name}.attention_output")
        filled(layer.attention.layer_norm, own, f"{name}.memory_norm")
        for place, part in enumerate(("query", "memory", "memory_output")):
            filled(layer.attention.linear[place], own, f"{name}.{part}")
        filled(layer.ffn.layer_norm, own, f"{name}.feed_forward_norm")
        filled(layer.ffn.linear_0, own, f"{name}.feed_forward")
        filled(layer.ffn.linear_1, own, f"{name}.feed_forward_output")
    markers = ["<s>", "</s>", "<unk>"]
    spec.register_source_vocabulary([f"s{number}" for number in range(size.vocabulary - 1)] + ["<unk>"])
    spec.register_target_vocabulary(markers + [f"t{number}" for number in range(3, size.vocabulary)])
    spec.config.bos_token = spec.config.decoder_start_token = "<s>"
    spec.config.eos_token, spec.config.unk_token, spec.config.layer_norm_epsilon = "</s>", "<unk>", 1e-5
    spec.validate()
    spec.optimize()
    folder = Path(job.folder, "ctranslate2")
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    translator = library.Translator(str(folder), intra_threads=job.threads, compute_type="float32")

    def search(ids, mask, labels):
        rows = [[f"s{token}" for token in row[: sum(real)]] for row, real in zip(ids, mask, strict=True)]
        results = translator.translate_batch(
            rows, beam_size=BEAMS, max_decoding_length=size.target, length_penalty=0, max_batch_size=ROWS
        )
        return np.array([[int(token[1:]) for token in result.hypotheses[0]] for result in results])

    return search


def engine(path: str, maker: Callable[[Job], Callable], needs: str) -> dict:
    """An engine of `bert.work`: its one kind of work, made when it is first asked for."""
    importlib.import_module(needs)  # an ImportError tells that the engine is missing
    return {"search": lambda: maker(Job.read(path))}


ENGINES = {
    OURS: lambda path: engine(path, ours, "tensorflow"),
    "transformers": lambda path: engine(path, transformers, "transformers"),
    "CTranslate2": lambda path: engine(path, ctranslate2, "ctranslate2"),
}


def peers(args: argparse.Namespace) -> Iterator[dict]:
    size = (
        TINY if args.quick else Size(args.layers, args.width, args.width // 64, target=args.target, context=args.target)
    )
    rows = 4 if args.quick else ROWS
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder / "model", size, BEAMS)
        export(folder / "model", folder / "saved")
        write_weights(folder / "model", folder)
        job, batch = folder / "job.json", folder / "batch.json"
        job.write_text(json.dumps(asdict(Job(temporary, args.threads, asdict(size)))))
        batch.write_text(json.dumps([{"rows": texts_of(size, rows), "labels": [0] * rows, "length": size.source}]))
        workers = {
            name: bert.Worker(sys.executable if name == OURS else args.peers, name, folder, str(job), __file__)
            for name in ENGINES
        }
        for name, worker in workers.items():
            if worker.missing:
                print(f"{name}: left out, {worker.missing}")
        workers = {name: worker for name, worker in workers.items() if not worker.missing}
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        cpu: dict[str, list[float]] = {name: [] for name in workers}
        tokens = {}
        for number in range(args.rounds + 1):  # the first one warms up
            for name, worker in workers.items():
                kept = str(folder / "tokens.npz")
                reply = worker("search", batch, 1, "" if number else kept)
                if not number:
                    tokens[name] = np.load(kept)["arr_0"]
                elif reply["seconds"]:
                    seconds[name].append(reply["median"])
                    cpu[name].append(reply["cpu"])
        for worker in workers.values():
            worker.end()
    for name in workers:
        median = statistics.median(seconds[name])
        yield {
            "engine": name,
            "s a batch": round(median, 3),
            "CPU s": round(statistics.median(cpu[name]), 3),
            "tokens/s": round(rows * size.target / median),
            "speed of ours over it": round(median / statistics.median(seconds[OURS]), 2),
            "same": float((tokens[name] == tokens[OURS]).all(1).mean()),
            "same tokens": round(float((tokens[name] == tokens[OURS]).mean()), 4),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["loop", "lengths", "peers"], default="loop")
    parser.add_argument(
        "--model", default="g2p_en", help="of the loop: a model folder of the task translate, or a name"
    )
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with the peers")
    parser.add_argument("--layers", type=int, default=Size.layers, help="of the encoder, and of the decoder")
    parser.add_argument("--width", type=int, default=Size.width)
    parser.add_argument("--target", type=int, default=Size.target, help="tokens that are written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="rows are appended to it")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, path = args.worker
        return bert.work(name, path, ENGINES)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs, {args.threads} threads, {args.rounds} rounds\n")
    rows = list({"loop": loop, "lengths": lengths, "peers": peers}[args.part](args))
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")
    if args.out:
        with args.out.open("a") as file:
            file.writelines(json.dumps({"part": args.part, "threads": args.threads} | row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
