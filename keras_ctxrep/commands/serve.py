"""`ctxrep serve`: any artifact behind TF Serving's REST interface, on the desk."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from keras_ctxrep.commands.command import Command, argument, function, in_python
from keras_ctxrep.commands.printing import print_error, print_line, print_report
from keras_ctxrep.options import AnyPath

__all__ = ["Serve", "serve"]

PORTS = 65535


def port_number(text: str) -> int:
    """The port that an argument names."""
    if not (text.isdecimal() and len(text) < 6 and int(text) <= PORTS):
        raise ValueError(f"{text}: a whole number from 0 to {PORTS}; 0 is any port that is free")
    return int(text)


def _announce(url: str) -> None:
    print_line(f"{url}\n{url.partition('/v1/')[0]}/ has a page to try it; Ctrl-C ends.")
    print_error("For trying a model and tests of clients, one request at a time; in production use TensorFlow Serving.")


@dataclass(frozen=True)
class Serve(Command[None]):
    """Serve a model on the desk, as TF Serving does.

    TF Serving's REST interface on this machine, v1/models/NAME:predict, :classify, :regress, /metadata and
    status, and a page to try the model in a browser; `ctxrep client` and the lines of an export's README.md
    work against it. The port is open at once, and answers 503 until the model is loaded; a new version is
    served without a restart. It is no production server: that is TensorFlow Serving. Needs the extra [serve].

    Notes:
        A model folder has the signatures of its export, and a .tflite file, which needs no TensorFlow, that of texts
        alone. 127.0.0.1 is reached by that name or localhost only, see `server.application`. A version that cannot be
        loaded leaves the one before it in place. `announce` is called with the address when the model answers, `report`
        with a line about what is loaded.

    Raises:
        ValueError: the path is no model, or a number out of its range.
        ImportError: Starlette or Uvicorn is not installed.
        OSError: the port is taken, or the address is not one of this machine.
    """

    tensorflow = False  # it is loaded when the port is open
    path: AnyPath = argument("published  a SavedModel, a model folder or a .tflite file", metavar="artifact")
    name: str | None = argument("[--name NAME]  of the model on the server (default: that of the folder or file)")
    host: str = argument("[--host ADDRESS]  to listen on (default: 127.0.0.1, this machine alone)", "127.0.0.1")
    port: int = argument(
        "[--port N] >=0  0: a free one (default: 8501, as TF Serving)", 8501, parse=port_number, most=PORTS
    )
    announce: Callable[[str], object] = in_python(lambda url: None, prints=_announce)
    report: Callable[[str], object] = in_python(lambda line: None, prints=print_report)
    poll: float = argument(default=1.0)("""[--poll SECONDS] >=0 <1e6  how often to look for a new version, or a
        folder or file that was replaced, which is loaded while the old one answers (default: 1, as TF Serving; 0:
        never)""")

    def run(self) -> None:
        from keras_ctxrep.inference.server import Versions
        from keras_ctxrep.recipes.serving import Source, address_of, http_server, listening

        source = Source(self.path, self.name)
        versions = Versions(source.name)
        stopped, errors = threading.Event(), []
        with listening(self.host, self.port) as listener:
            url, hosts = address_of(listener, self.host)
            server = http_server(versions, hosts=hosts)

            def load() -> None:
                try:
                    source.load(versions)
                    self.announce(f"{url}/v1/models/{source.name}")
                    while self.poll and not stopped.wait(self.poll):
                        source.load_changed(versions, self.report)
                except BaseException as error:
                    errors.append(error)
                    server.should_exit = True

            self.report(f"{self.path}: loading {source.kind}; {url} answers 503 until it is ready")
            threading.Thread(target=load, daemon=True).start()
            server.run([listener])
            stopped.set()
        if errors:
            raise errors[0]


serve = function(Serve, "serve")
