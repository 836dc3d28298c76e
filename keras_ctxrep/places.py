"""Where models are kept: folders of the package and of the cache, and what is a .tflite file by its name."""

import os
import re
from pathlib import Path

CACHE = "CTXREP_CACHE"  # environment variable: the folder of downloaded models
SHIPPED = Path(__file__).with_name("zoo") / "weights"  # NAME/ is the model folder of one that comes with the package


def cache_folder(cache: str | Path | None = None) -> Path:
    """The folder of downloaded models: `cache`, $CTXREP_CACHE or ~/.cache/keras_ctxrep."""
    return Path(cache or os.environ.get(CACHE) or Path.home() / ".cache" / "keras_ctxrep").expanduser()


def is_tflite(path: str | Path) -> bool:
    """Whether a path is that of a .tflite file, FILE.tflite, or of a model in one with several, FILE.tflite/NAME."""
    return ".tflite" in (Path(path).suffix, Path(path).parent.suffix)


def published(name: str) -> Path | None:
    """The folder of a model by its name, SIZE/DATASET, in the package or in the cache; None: it is in neither.

    >>> published("../weights") is None
    True
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):  # nothing that leads out of these folders
        return None
    folders = (root / name for root in (SHIPPED, cache_folder()))
    return next((folder for folder in folders if folder.is_dir()), None)
