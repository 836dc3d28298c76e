"""`ctxrep export`: a model folder as the next version of a SavedModel for TF Serving."""

from dataclasses import dataclass
from typing import Any

from keras_ctxrep.commands.command import FOLDER, Command, Usage, argument, function
from keras_ctxrep.options import AnyPath

__all__ = ["Export", "export"]


@dataclass(frozen=True)
class Export(Command):
    """Write a SavedModel for TF Serving.

    Writes the next version, BASE/NAME/1, 2, ..., with raw strings as its input; a README.md in it has the lines
    to run and to ask it, and BASE/model.config lists the models for the server. Or, with --check, tests one.

    Returns: the folder of the new version; with `check` the version, and how many of each thing in it are as they were
        exported.

    Raises:
        ValueError: as in `keras_ctxrep_export.saved_model.export`, or what was checked has changed.
    """

    any_backend = False

    folder: AnyPath | None = argument(f"""[FOLDER] published  {FOLDER}: a task model or an encoder; of a pretraining
        model the encoder is exported""")
    out: AnyPath | None = argument("[--out BASE/NAME]  where TF Serving looks for versions")
    windows: str | None = argument("""[--windows mean|max]  classify, multilabel, regress: read a long text in
        overlapping windows, and give the mean or the maximum of their probabilities (default: the text is cut)""")
    keep: int | None = argument("[--keep N] >0  remove all versions but the N highest, in the end")
    tflite: AnyPath | None = argument("""[--tflite FILE.tflite]  a .tflite file of the same model, written with
        --data: the model card has what it loses""")
    check: AnyPath | None = argument("""[--check PATH]  instead: replay the manifest of an export, BASE/NAME or a
        version of it: hashes, signatures, answers""")

    def __post_init__(self):
        super().__post_init__()
        others = (self.folder, self.out, self.windows, self.keep, self.tflite)
        if self.check is not None and any(value is not None for value in others):
            raise Usage("--check PATH checks an export that is there; leave out the rest")
        if self.check is None and (self.folder is None or self.out is None):
            raise Usage("FOLDER and --out BASE/NAME are needed, or --check PATH")

    def run(self) -> Any:
        from keras_ctxrep import saving, zoo
        from keras_ctxrep_export import saved_model

        if self.check is not None:
            return saved_model.check(self.check)
        assert self.folder is not None and self.out is not None
        model, bundle = saving.load_served(zoo.find(self.folder))
        return saved_model.export(
            model, bundle, self.out, windows=self.windows, keep=self.keep, source=self.folder, tflite=self.tflite
        )

    def show(self, result: Any) -> None:
        if self.check is None:
            print(result)
            return
        version, counts = result
        print(f"{version}: {', '.join(f'{count} {name}' for name, count in counts.items())} as they were exported")


export = function(Export, "export")
