"""`ctxrep compare`: agreement, quality, size and latency of a model's exports."""

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from keras_ctxrep.commands.command import Command, Usage, argument, function
from keras_ctxrep.commands.printing import table
from keras_ctxrep.options import LITERT, AnyPath, Columns

__all__ = ["Compare", "compare"]


@dataclass(frozen=True)
class Compare(Columns, Command[tuple[list[dict], str]]):
    """Agreement, quality, size and latency of a model's exports.

    Runs the same texts through a model folder and its exports. Latencies are of single texts,
    alternating between the engines.

    With --engines it measures the two engines of a model folder, as engine="auto" does where it has not yet.

    Returns: a dict for each engine, as in `keras_ctxrep_tflite.compare.compare`, and what agreement means for the task;
        with `engines` a dict for each shape of a batch, {"texts", "LiteRT", "Keras"}, milliseconds a text, and the file
        in the cache that has them.

    Raises:
        ValueError: an artifact cannot be opened or is of another model, or the examples do not fit the model.
    """

    folder: AnyPath = argument("published  the model folder, which is the reference")
    artifacts: Sequence = argument("[ARTIFACT ...]  SavedModel folders and .tflite files", ())
    data: AnyPath | None = argument("[--data FILE]  examples of the model's task")
    _: KW_ONLY
    engines: bool = argument("[--engines]  of the folder alone: the time of a text in LiteRT and in Keras")
    start: bool = argument("[--start]  also start each engine in a process: time to the first answer, memory")
    plot: AnyPath | None = argument("[--plot FILE.png] writes  a picture of size, latency and quality")
    json: bool = argument("[--json]  print one JSON array")

    def __post_init__(self):
        super().__post_init__()
        if self.engines and (self.artifacts or self.data is not None):
            raise Usage("--engines is of a model folder alone; leave out its exports and --data")
        if not self.engines and (not self.artifacts or self.data is None):
            raise Usage("exports of the folder and --data are needed, or --engines")

    def run(self) -> tuple[list[dict], str]:
        from keras_ctxrep.inference.engines import open_model
        from keras_ctxrep_tflite import compare

        if self.engines:
            return self._speeds()
        assert self.data is not None  # see `__post_init__`
        if self.plot is not None:
            from keras_ctxrep.plots.drawing import check_drawable

            check_drawable(self.plot)
        engines = [open_model(path) for path in (self.folder, *self.artifacts)]
        task = engines[0].answer.task
        rows = compare.compare(engines, list(task.read(self.data, self.columns)))
        if self.start:
            paths = (self.folder, *self.artifacts)
            rows = [row | compare.start(path) for path, row in zip(paths, rows, strict=True)]
        if self.plot is not None:
            from keras_ctxrep.plots.engines import draw_engines

            draw_engines(rows, self.plot)
        return rows, f"agreement with {engines[0].name}: {task.agrees}"

    def _speeds(self) -> tuple[list[dict], str]:
        from keras_ctxrep.inference import speeds
        from keras_ctxrep.inference.automatic import AutoEngine
        from keras_ctxrep.inference.engines import open_model

        engine = open_model(self.folder, LITERT)
        if not isinstance(engine, AutoEngine):
            raise ValueError(f"{self.folder}: {engine.name} alone runs it")
        seconds = engine.seconds
        rows = [{"texts": shape} | {name: 1000 * seconds[name][shape] for name in seconds} for shape in speeds.SHAPES]
        return rows, f"kept in {speeds.cache_file()}; delete it to measure again"

    def show(self, result: tuple[list[dict], str]) -> None:
        from keras_ctxrep_tflite.compare import engines_table, lengths_table

        rows, agreement = result
        if self.json:
            print(json.dumps(rows))
            return
        if self.engines:
            lines = [[texts, *(f"{time:.2f} ms a text" for time in times)] for texts, *times in map(dict.values, rows)]
            print(f"{table([[*rows[0]], *lines])}\n\n{agreement}")
            return
        print(f"{table(engines_table(rows))}\n\n{table(lengths_table(rows))}")
        print(f"\n{agreement}; in brackets: the difference in points, its 95% interval")


compare = function(Compare, "compare")
