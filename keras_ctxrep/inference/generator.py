"""Text from a language model through any engine: the loop that runs the model and samples the next token."""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_ctxrep.inference.predictor import Run
from keras_ctxrep.options import Generation
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import check_texts
from keras_ctxrep.text.sampling import sample

__all__ = ["Generator"]


class Generator:
    """Continues texts, token by token.

    A text does not depend on the others of its batch, but for rounding, nor on the engine: the noise is a function of
    seed, step and token, see `text.sampling`. Unknown and padding tokens are never drawn.

    Args:
        bundle: of a language model.
        run: {"token_ids", "mask", "state"} -> {"logits", "state"}, as in `models.lm.language_model`, or of a biLM as of
            `models.elmo.forward_language_model`.
        state_size: S, numbers of a row's state.
        together: tokens of a prompt that are read in one call; 1 for an engine that reads one at a time.

    Raises:
        ValueError: the bundle is of another model.
    """

    def __init__(self, bundle: Bundle, run: Run, state_size: int, together: int = 256):
        self.bundle, self.features, self.run = bundle, bundle.tokens, run
        self.state_size, self.together = state_size, together

    def __call__(self, prompts: Sequence[str], options: Generation) -> list[str]:
        """The continuation of each prompt, without it; the seed of prompt i is `options.seed` + i."""
        prompts = check_texts(prompts)
        rows: list[list[int]] = [[] for _ in prompts]
        ends = [0] * len(rows)
        for ids in self._tokens(prompts, options):
            for number, token in enumerate(ids):
                if ends[number] != options.lines:
                    rows[number].append(token)
                    ends[number] += token == self.features.end
            if ends and all(end == options.lines for end in ends):
                break
        strings = [self._strings(prompt, iter(row)) for prompt, row in zip(prompts, rows, strict=True)]
        return ["".join(parts) for parts in strings]

    def stream(self, prompt: str, options: Generation) -> Iterator[str]:
        """The continuation of one prompt, a string for each token, as soon as it is drawn."""

        def tokens() -> Iterator[int]:
            lines = 0
            for (token,) in self._tokens([prompt], options):
                yield token
                lines += token == self.features.end
                if lines == options.lines:
                    return

        return self._strings(prompt, tokens())

    def _strings(self, prompt: str, tokens: Iterator[int]) -> Iterator[str]:
        before = self.features.prompt(prompt)[-1]
        for number, text in enumerate(self.features.strings(tokens, before)):
            spaced = number == 0 and prompt[-1:].isspace() and self.features.units in ("words", "pieces")
            yield text.removeprefix(" ") if spaced else text

    def _tokens(self, prompts: Sequence[str], options: Generation) -> Iterator[list[int]]:
        """The next token of each text, `options.length` times."""
        chosen = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        logits, state = self._read([self.features.prompt(prompt) for prompt in prompts])
        for step in range(options.length):
            logits[:, [*self.features.never]] = -np.inf
            ids = [sample(row, options.seed + number, step, **chosen) for number, row in enumerate(logits)]
            yield ids
            if step + 1 < options.length:
                if self.features.by_line:
                    state = np.where(np.array(ids)[:, None] == self.features.end, 0, state)
                outputs = self.run(self.features.inputs(self.features.following(ids)) | {"state": state})
                logits, state = np.array(outputs["logits"])[:, 0], np.asarray(outputs["state"])

    def _read(self, rows: Sequence[list]) -> tuple[np.ndarray, np.ndarray]:
        """The logits after each prompt, float32 (B, V), and the state."""
        inputs, lengths = self.features.inputs(rows), np.array([len(row) for row in rows])
        logits = np.zeros((len(rows), len(self.features.vocab)), np.float32)
        state = np.zeros((len(rows), self.state_size), np.float32)
        for begin in range(0, inputs["mask"].shape[1], self.together):
            part = {name: array[:, begin : begin + self.together] for name, array in inputs.items()}
            outputs = self.run(part | {"state": state})
            state, last = np.asarray(outputs["state"]), lengths - 1 - begin
            here = np.flatnonzero((last >= 0) & (last < part["mask"].shape[1]))
            logits[here] = np.asarray(outputs["logits"])[here, last[here]]
        return logits, state
