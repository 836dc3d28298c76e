"""What the scripts of this folder measure with: the machine, the memory of a process, and rows for run.py."""

import ctypes
import gc
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

VARIABLE = "BENCHMARK_FIGURES"  # of the environment: the file that gets the rows
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def row(
    table: str,
    engine: str,
    seconds: Sequence[float],
    operations: float | None = None,
    rate: float | None = None,
    precision: str = "float32",
    **more,
) -> None:
    """Writes a row of a table as a line of JSON; does nothing unless run.py has started the script.

    Args:
        table: its title. The engine of its first row is the one that the others are compared with.
        seconds: of each round.
        operations: of floating point in the matrix products of a round's call.
        rate: operations a second of one large matrix product of this precision.
        more: other figures, with their unit in the name; "tokens" of a table whose rows are lengths of a text.
    """
    if VARIABLE in os.environ:
        with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
            known = {"operations": operations, "rate": rate, "precision": precision}
            file.write(json.dumps({"table": table, "engine": engine, "seconds": [*seconds]} | known | more) + "\n")


def machine() -> dict:
    """Processor, its instructions that matter here, cores and memory in GB."""
    path = Path("/proc/cpuinfo")  # Linux
    lines = path.read_text().splitlines() if path.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = facts.get("model name", platform.processor() or platform.machine())
    if "cpu family" in facts:
        model += f", family {facts['cpu family']} model {facts['model']}"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    flags = [flag for flag in FLAGS if flag in facts.get("flags", "").split()]
    return {"processor": model, "flags": flags, "cores": os.cpu_count(), "memory_gb": round(pages / 1e9, 1)}


def reset_peak() -> None:
    """Gives freed memory back to the system, and lets `peak` begin anew (Linux)."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The greatest memory of this process since `reset_peak`, MB; NaN where the system does not tell."""
    status = Path("/proc/self/status")  # Linux
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1000 if status.exists() else float("nan")
