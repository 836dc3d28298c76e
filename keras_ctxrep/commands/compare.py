"""`ctxrep compare`: agreement, quality, size and latency of a model's exports."""

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from keras_ctxrep.commands.command import Command, argument, function
from keras_ctxrep.commands.printing import table
from keras_ctxrep.options import AnyPath, Columns

__all__ = ["Compare", "compare"]


@dataclass(frozen=True)
class Compare(Columns, Command[tuple[list[dict], str]]):
    """Agreement, quality, size and latency of a model's exports.

    Runs the same texts through a model folder and its exports. Latencies are of single texts,
    alternating between the engines.

    Returns: a dict for each engine, as in `keras_ctxrep_tflite.compare.compare`, and what agreement means for the task.

    Raises:
        ValueError: an artifact cannot be opened or is of another model, or the examples do not fit the model.
    """

    folder: AnyPath = argument("published  the model folder, which is the reference")
    artifacts: Sequence = argument("...  SavedModel folders and .tflite files")
    data: AnyPath = argument("--data FILE  examples of the model's task")
    _: KW_ONLY
    start: bool = argument("[--start]  also start each engine in a process: time to the first answer, memory")
    plot: AnyPath | None = argument("[--plot FILE.png] writes  a picture of size, latency and quality")
    json: bool = argument("[--json]  print one JSON array")

    def run(self) -> tuple[list[dict], str]:
        from keras_ctxrep.inference.engines import open_model
        from keras_ctxrep_tflite import compare

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

    def show(self, result: tuple[list[dict], str]) -> None:
        from keras_ctxrep_tflite.compare import engines_table, lengths_table

        rows, agreement = result
        if self.json:
            print(json.dumps(rows))
            return
        print(f"{table(engines_table(rows))}\n\n{table(lengths_table(rows))}")
        print(f"\n{agreement}; in brackets: the difference in points, its 95% interval")


compare = function(Compare, "compare")
