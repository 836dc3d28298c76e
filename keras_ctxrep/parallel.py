"""One function for many items at once: in processes of this machine, on Apache Beam or on Spark."""

import multiprocessing
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from keras_ctxrep.version import install_hint

__all__ = ["run_in_processes", "run_on"]


def run_in_processes(
    function: Callable[..., None], items: Iterable[tuple], processes: int, start: Callable[[], None] | None = None
) -> None:
    """Calls a function with each item's parts; an item per process, and two or three more, are in memory at a time.

    Args:
        function: it can be pickled.
        items: tuples of its arguments.
        processes: how many; 1: no other process than this one.
        start: called in each process when it begins.

    Raises:
        ValueError: a process was killed, for example because memory was short.
    """
    if processes == 1:
        for item in items:
            function(*item)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    running: set[Future] = set()
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(function, start)) as pool:
        try:
            for item in items:
                if len(running) > processes:
                    running = _finished(running)
                running.add(pool.submit(_call, *item))
            while running:
                running = _finished(running)
        except BrokenProcessPool:
            message = "one of the processes has ended; is memory short? The same command goes on where it stopped"
            raise ValueError(message) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(running: set[Future]) -> set[Future]:
    """Waits for one; those that still run."""
    done, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return rest


_functions: list[Callable[..., None]] = []  # the one of a process of the pool


def _begin(function: Callable[..., None], start: Callable[[], None] | None) -> None:
    _functions.append(function)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:  # a process of a pool would wait for ever if its parent was killed
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    if start is not None:
        start()


def _call(*item: Any) -> None:
    _functions[0](*item)


def run_on(runner: str, function: Callable[[Any], None], items: Sequence, options: str | None = None) -> None:
    """Calls a function with each item, on the machines of a runner.

    A runner may call it twice with the same item, after a failure or at the same time.

    Args:
        runner: "spark", or what Apache Beam knows, such as "direct", "FlinkRunner" or "DataflowRunner".
        function: it can be pickled, and its module can be imported on all machines.
        items: strings or numbers.
        options: of the runner, as on a command line: "--master local[8]" of spark-submit, or
            "--flink_master=host:8081 --parallelism=8".

    Raises:
        ValueError: the runner is not installed, or there is none of this name.
    """
    run = _run_on_spark if runner == "spark" else _run_on_beam
    run(runner, function, items, options or "")


def _run_on_beam(runner: str, function: Callable[[Any], None], items: Sequence, options: str) -> None:
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"runner={runner!r}: needs Apache Beam: {install_hint('beam')}") from None
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *shlex.split(options)]))
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"runner={runner!r}: Apache Beam cannot run it: {error}") from None
    with pipeline as root:
        _ = root | beam.Create(items) | beam.Reshuffle() | beam.Map(function)


def _run_on_spark(runner: str, function: Callable[[Any], None], items: Sequence, options: str) -> None:
    try:
        from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"runner={runner!r}: needs PySpark: {install_hint('spark')}") from None
    if options:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} pyspark-shell"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.appName("ctxrep").getOrCreate()
    session.sparkContext.parallelize(items, max(1, len(items))).foreach(function)
