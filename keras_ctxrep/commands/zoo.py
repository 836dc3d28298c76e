"""`ctxrep zoo`: published models by name."""

import json
from dataclasses import dataclass
from typing import Any

from keras_ctxrep.commands.command import Command, Usage, argument
from keras_ctxrep.commands.printing import print_error, print_line, table
from keras_ctxrep.options import AnyPath

__all__ = ["Zoo"]


@dataclass(frozen=True)
class Zoo(Command[Any]):
    """Published models by name.

    list shows the published models, first those that come with the package; show gives the details of one,
    with its model card if it is here; get makes a model folder of it in the cache and prints its path. The
    same command resumes an interrupted download. push uploads a model folder to the Hugging Face Hub.

      ctxrep zoo push mine hf://OWNER/NAME --dry-run

    Returns: list: all models, as `zoo.describe` has them; show: one of them, with its "card"; get: the model folder;
        push: file -> its size.
    """

    tensorflow = False
    action: str = argument("list|show|get|push  what to do")
    name: AnyPath | None = argument("""[NAME]  SIZE/DATASET, or one of the two if no other model has it; get:
        hf://OWNER/NAME too, of the Hugging Face Hub; push: a model folder""")
    target: str | None = argument("[hf://OWNER/NAME]  push: the repository to write")
    dry_run: bool = argument("[--dry-run]  push: list the files, and send nothing")
    private: bool = argument("[--private]  push: a new repository is private")
    json: bool = argument("[--json]  list, show: print JSON")
    source: AnyPath | None = argument("[--from PATH]  get: a local copy of the files: folder, archive or weight file")
    mirror: str | None = argument("[--mirror URL]  get: address to download from in place of the publisher's")
    cache: AnyPath | None = argument("[--cache FOLDER]  of models (default: $CTXREP_CACHE, or ~/.cache/keras_ctxrep)")

    def __post_init__(self):
        super().__post_init__()
        if (self.name is None) != (self.action == "list"):
            raise Usage(f"{self.action}: {'leave out NAME' if self.name else 'NAME is missing'}")
        if self.action in ("get", "push") and self.json:
            raise Usage(f"{self.action}: --json is for list and show")
        if self.action != "get" and (self.source is not None or self.mirror is not None):
            raise Usage(f"{self.action}: --from and --mirror are for get")
        if self.action != "push" and (self.target is not None or self.dry_run or self.private):
            raise Usage(f"{self.action}: hf://OWNER/NAME as a second name, --dry-run and --private are for push")
        if self.action == "push" and self.target is None:
            raise Usage("push: give the folder and hf://OWNER/NAME")

    def run(self) -> Any:
        from keras_ctxrep import zoo
        from keras_ctxrep.inference.silence import start_tensorflow
        from keras_ctxrep.text import bundle
        from keras_ctxrep.zoo import entries, hub

        name = str(self.name)
        if self.action == "list":
            return [zoo.describe(entry, self.cache) for entry in entries.ENTRIES]
        if self.action == "show":
            model = zoo.describe(zoo.lookup(name), self.cache)
            card = bundle.load(model["cached"]).card if model["cached"] else ""
            return model | ({"card": card} if card else {})
        if self.action == "push":
            start_tensorflow()
            return hub.push(name, str(self.target), self.dry_run, self.private, report=print_line)
        if name.startswith(hub.PREFIX) or zoo.cached(zoo.lookup(name), self.cache) is None:
            start_tensorflow()  # else its messages appear during the conversion
        return zoo.get(name, self.source, self.mirror, self.cache, print_error)

    def show(self, result: Any) -> None:
        if self.action == "push":
            state = "would be uploaded" if self.dry_run else "uploaded"
            print_line(f"{len(result)} files, {sum(result.values()):,} bytes, {state}")
        elif self.action == "get":
            print(result)
        elif self.json:
            print_line(json.dumps(result, indent=1, ensure_ascii=False))
        elif self.action == "list":
            _print_list(result)
        else:
            _print_model(result)


def _print_list(models: list[dict]) -> None:
    from keras_ctxrep.zoo import entries

    rows = [["name", "family", "parameters", "casing", "licence", "source"]]
    shipped, uses = [["with the package", *entries.FIGURES]], ["for", "---"]
    for model in models:
        source = "cached" if model["cached"] and model["format"] != "shipped" else model["format"] or "none"
        millions = f"{model['parameters'] / 1e6:.1f} M"
        rows.append([model["name"], model["family"], millions, model["casing"], model["licence"], source])
        if source == "shipped":
            figures = (model["figures"].get(name) for name in entries.FIGURES)
            shipped.append([model["name"], *("-" if value is None else f"{value:.1f}" for value in figures)])
            uses.append(model["use"])
    lines = table(shipped).splitlines()
    width = len(lines[1])
    print("\n".join(f"{line:{width}}  {use}" for line, use in zip(lines, uses, strict=True)), end="\n\n")
    for name, meaning in entries.FIGURES.items():
        print(f"  {name:8} {meaning}")
    print(f"\n{table(rows)}")


def _print_model(model: dict) -> None:
    card = model.pop("card", "")
    for name, value in model.items():
        lines = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else value
        for line in (lines or ["none"]) if isinstance(lines, list) else [lines or "none"]:
            print_line(f"{name:15} {f'{line:,}' if isinstance(line, int) else line}")
            name = ""
    if card:
        print_line(f"\n{card.strip()}")
