"""The options of published models: JSON files, whose values are checked as they are read."""

from pathlib import Path
from typing import Any

from keras_ctxrep.checks import Range, check_value, errors_of, read_json, regular

LARGEST = 64 << 20  # bytes of a file of options or of a tokenizer
_NEEDED: Any = object()


class SourceOptions:
    """A JSON object in a file.

    Args:
        source: path of the file, or its name for messages.
        values: the object; None: read it from the file.

    Raises:
        ValueError: the file is not JSON, or not an object.

    >>> SourceOptions("config.json", {"lstm": {"dim": 7}}).get("lstm.dim", int, least=1)
    7
    """

    def __init__(self, source: str | Path, values: dict | None = None):
        self.source = source
        if values is None:
            with errors_of(source):
                if (size := regular(source).stat().st_size) > LARGEST:
                    raise ValueError(f"{size:,} bytes; no more than {LARGEST:,} are read")
                values = read_json(Path(source).read_bytes())
                if not isinstance(values, dict):
                    raise ValueError(f"{type(values).__name__}; an object {{...}} is needed")
        self.values: dict = values

    def get(
        self,
        path: str,
        kind: type | tuple,
        least: float | None = None,
        default: Any = _NEEDED,
        most: float | None = None,
    ) -> Any:
        """Returns a value of the object, checked.

        Args:
            path: its keys, separated by dots.
            kind: allowed type or types.
            least, most: bounds of a number.
            default: returned if the value is missing or null; without a default the value is required.

        Raises:
            ValueError: the value is missing, of another type or out of range.
        """
        value: Any = self.values
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            if default is _NEEDED:
                raise ValueError(f"{self.source}: the option {path} is missing")
            return default
        return check_value(f"{self.source}: {path}", value, kind, Range(least, most))
