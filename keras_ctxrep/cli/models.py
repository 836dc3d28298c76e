"""Models by name, and from and to other formats."""

import argparse
import json

from keras_ctxrep.cli.command import Command
from keras_ctxrep.cli.flags import Flags
from keras_ctxrep.commands.command import Usage
from keras_ctxrep.commands.printing import print_error, print_line, table
from keras_ctxrep.inference.silence import start_tensorflow


def _zoo(args: argparse.Namespace) -> None:
    if (args.name is None) != (args.action == "list"):
        raise Usage(f"zoo {args.action}: {'leave out NAME' if args.name else 'NAME is missing'}")
    if args.action in ("get", "push") and args.json:
        raise Usage(f"zoo {args.action}: --json is for list and show")
    if args.action != "get" and (args.source is not None or args.mirror is not None):
        raise Usage(f"zoo {args.action}: --from and --mirror are for get")
    if args.action != "push" and (args.target is not None or args.dry_run or args.private):
        raise Usage(f"zoo {args.action}: hf://OWNER/NAME as a second name, --dry-run and --private are for push")
    if args.action == "push" and args.target is None:
        raise Usage("zoo push: give the folder and hf://OWNER/NAME")
    {"list": _zoo_list, "show": _zoo_show, "get": _zoo_get, "push": _zoo_push}[args.action](args)


def _zoo_list(args: argparse.Namespace) -> None:
    from keras_ctxrep import zoo
    from keras_ctxrep.zoo import entries

    models = [zoo.describe(entry, args.cache) for entry in entries.ENTRIES]
    if args.json:
        print(json.dumps(models, indent=1, ensure_ascii=False))
        return
    rows = [["name", "family", "parameters", "casing", "licence", "source"]]
    shipped = [["with the package", *entries.FIGURES]]
    for model in models:
        source = "cached" if model["cached"] and model["format"] != "shipped" else model["format"] or "none"
        millions = f"{model['parameters'] / 1e6:.1f} M"
        rows.append([model["name"], model["family"], millions, model["casing"], model["licence"], source])
        if source == "shipped":
            figures = (model["figures"].get(name) for name in entries.FIGURES)
            shipped.append([model["name"], *("-" if value is None else f"{value:.1f}" for value in figures)])
    print(f"{table(shipped)}\n")
    for name, meaning in entries.FIGURES.items():
        print(f"  {name:8} {meaning}")
    print(f"\n{table(rows)}")


def _zoo_show(args: argparse.Namespace) -> None:
    from keras_ctxrep import zoo
    from keras_ctxrep.text import bundle

    model = zoo.describe(zoo.lookup(args.name), args.cache)
    card = bundle.load(model["cached"]).card if model["cached"] else ""
    if args.json:
        print_line(json.dumps(model | ({"card": card} if card else {}), indent=1, ensure_ascii=False))
        return
    for name, value in model.items():
        lines = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else value
        for line in (lines or ["none"]) if isinstance(lines, list) else [lines or "none"]:
            print_line(f"{name:15} {f'{line:,}' if isinstance(line, int) else line}")
            name = ""
    if card:
        print_line(f"\n{card.strip()}")


def _zoo_get(args: argparse.Namespace) -> None:
    from keras_ctxrep import zoo
    from keras_ctxrep.zoo import hub

    if args.name.startswith(hub.PREFIX) or zoo.cached(zoo.lookup(args.name), args.cache) is None:
        start_tensorflow()  # else its messages appear during the conversion
    print(zoo.get(args.name, args.source, args.mirror, args.cache, print_error))


def _zoo_push(args: argparse.Namespace) -> None:
    from keras_ctxrep.zoo import hub

    start_tensorflow()
    sizes = hub.push(args.name, args.target, args.dry_run, args.private, report=print_line)
    state = "would be uploaded" if args.dry_run else "uploaded"
    print_line(f"{len(sizes)} files, {sum(sizes.values()):,} bytes, {state}")


def _zoo_flags(flags: Flags) -> None:
    flags.add("action", "what to do", choices=("list", "show", "get", "push"))
    name = "SIZE/DATASET, or one of the two if no other model has it; get: hf://OWNER/NAME too, of the Hugging Face Hub"
    flags.add("name", f"{name}; push: a model folder", nargs="?", metavar="NAME")
    flags.add("target", "push: the repository to write", nargs="?", metavar="hf://OWNER/NAME")
    flags.add("--dry-run", "push: list the files, and send nothing", action="store_true")
    flags.add("--private", "push: a new repository is private", action="store_true")
    flags.add("--json", "list, show: print JSON", action="store_true")
    flags.add("--from", "get: a local copy of the files: folder, archive or weight file", dest="source", metavar="PATH")
    flags.add("--mirror", "get: address to download from in place of the publisher's", metavar="URL")
    flags.add("--cache", "folder of models (default: $CTXREP_CACHE, or ~/.cache/keras_ctxrep)", metavar="FOLDER")


COMMANDS = {
    "zoo": Command(
        _zoo,
        _zoo_flags,
        "published models by name",
        "list shows the published models, first those that come with the package; show gives the details of one,\n"
        "with its model card if it is here; get makes a model folder of it in the cache and prints its path. The\n"
        "same command resumes an interrupted download. push uploads a model folder to the Hugging Face Hub.\n\n"
        "  ctxrep zoo push mine hf://OWNER/NAME --dry-run",
        tensorflow=lambda args: False,
    ),
}
