"""HTTP answers that are bounded in time and in size, whatever a server sends."""

import http.client
import io
import math
import time
from functools import partial
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from keras_ctxrep.checks import printable


def open_url(request: Request, seconds: float, least: float = math.inf) -> Any:
    """The answer to a request, as in `urllib.request.urlopen`; a slow one ends with a TimeoutError.

    Redirects from https:// to another scheme are refused, and carry no token to another server.

    Args:
        request: to http:// or https://.
        seconds: for connection and headers; then time in which `least` bytes of the body must come, again and again.
        least: bytes; infinite: the whole answer must come in that time.

    Raises:
        HTTPError: the server refuses; it is read as the answer itself.
        OSError, http.client.HTTPException: no answer, or none of HTTP.
    """
    pace = _Pace(seconds)
    try:
        response = build_opener(_Redirects, _AtAPace(pace)).open(request, timeout=seconds)
    except ValueError as error:  # of an address in a redirect
        for response in pace.responses:
            response.close()
        raise URLError(f"redirected to what is no address: {error}") from None
    pace.read_at_least(least)
    return response


def read_all(response: Any, most: int) -> bytes:
    """The whole body of an answer.

    Raises:
        ValueError: it is longer than `most` bytes.
        OSError, http.client.HTTPException: it breaks off, or is not whole in time.
    """
    content = response.read(most + 1)
    if len(content) > most:
        raise ValueError(f"longer than {most / 1e6:g} MB")
    if response.length:
        raise http.client.IncompleteRead(content, response.length)
    return content


def reason_of(error: Exception) -> str:
    """Why a request failed, on one line.

    >>> reason_of(http.client.BadStatusLine("SSH-2.0\\r\\n"))
    'not HTTP: SSH-2.0'
    """
    if isinstance(error, http.client.IncompleteRead):
        return "the connection closed before the end"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return f"not HTTP: {printable(str(error).strip())}"
    return printable(getattr(error, "reason", None) or error) or type(error).__name__


class _Pace:
    """Raises a TimeoutError unless `least` bytes come in `seconds`, again and again."""

    def __init__(self, seconds: float):
        self.seconds, self.least = seconds, math.inf
        self.responses: list[http.client.HTTPResponse] = []
        self._begin, self._count = time.monotonic(), 0

    def read_at_least(self, least: float) -> None:
        """Begins to count the bytes of the body, unless the whole answer has to come in the time that began before."""
        if math.isfinite(least):
            self.least, self._begin, self._count = least, time.monotonic(), 0

    def left(self) -> float:
        return self._begin + self.seconds - time.monotonic()

    def add(self, count: int) -> None:
        self._count += count
        if count and self.left() <= 0 and self._count < self.least:
            raise self.too_slow()
        if self._count >= self.least:
            self._begin, self._count = time.monotonic(), 0

    def too_slow(self) -> TimeoutError:
        return TimeoutError(f"too slow: {self._count:,} bytes in {self.seconds:g} s")


class _Paced(io.RawIOBase):
    """The bytes of a socket, at a pace."""

    def __init__(self, raw: Any, sock: Any, pace: _Pace):
        self._raw, self._sock, self._pace = raw, sock, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(max(self._pace.left(), 1e-3))
        try:
            count = self._raw.readinto(buffer) or 0
        except TimeoutError:
            raise self._pace.too_slow() from None
        self._pace.add(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(pace: _Pace, sock: Any, *args: Any, **options: Any) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(sock, *args, **options)
    response.fp = io.BufferedReader(_Paced(response.fp.detach(), sock, pace))
    pace.responses.append(response)
    return response


class _AtAPace(HTTPHandler, HTTPSHandler):
    """The handler of http:// and https://."""

    def __init__(self, pace: _Pace):
        super().__init__()
        self._pace = pace

    def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
        def connection(*args: Any, **options: Any) -> http.client.HTTPConnection:
            made = http_class(*args, **options)
            made.response_class = partial(_response, self._pace)
            return made

        return super().do_open(connection, req, **options)


class _Redirects(HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("https", old.scheme):
            fp.close()
            raise ConnectionError(f"redirected to {printable(newurl)}, which is not encrypted")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            request.remove_header("Authorization")
        fp.chunked, fp.length = False, 0  # else its body would be read, however long
        return request
