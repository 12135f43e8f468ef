"""Requests to gs://: what is sent again, for how long, and what is told of those that fail.

A request that a store refuses ends in `NoAccessError` at once. A request that it does not answer
(silence, a lost connection, 408, 429, 5xx) is sent again for 15 s at a start, and for
`config.checkpoint.retry_minutes` once a run trains; then `NoAnswerError` ends it. TensorStore,
which reads and writes the arrays of checkpoints, tries as long (`checkpoint.failed_save`); where it
reads packed sets (`data.ranges`), it tries for 15 minutes.
"""

import asyncio
import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOENT
from typing import IO, Any
from uuid import uuid4

import fsspec
from aiohttp import ClientError, ClientTimeout
from etils import epath
from gcsfs.core import GCSFile, GCSFileSystem  # not the one that asks for a bucket's type by gRPC
from gcsfs.retry import ChecksumError, HttpError
from google.auth.exceptions import GoogleAuthError, TransportError
from requests import RequestException

from widenet_jax.errors import NO_ANSWER, NoAccessError, NoAnswerError, first_line

STALL_SECONDS = 60.0  # without a byte: then the request is sent again
REQUEST_SECONDS = 1800.0  # for a whole request: an upload that is not taken, a large download
START_SECONDS = 15.0
TOLD_SECONDS = 30.0  # between two lines about requests that are sent again
FIRST_WAIT, LONGEST_WAIT = 0.5, 16.0
SMALL = 1 << 20  # bytes of an object that is read before its size is known
NOTHING_THERE = 416  # status of a range of an empty object
LATER = (408, 429)  # statuses that may pass, as 500 and above may
ROLE = "a role with list, create, get and delete on its objects, as roles/storage.objectAdmin has"
LOGIN = "log in with `gcloud auth application-default login`"
MEND = {
    401: LOGIN,
    403: f"give this account {ROLE}, or {LOGIN} as another",
    404: "no such bucket; check its name, or create it",
}
request_once = GCSFileSystem._request.__wrapped__  # without gcsfs's own six tries


class Patience:
    """How long requests of this process are sent again.

    Attributes:
      seconds: after which a request is given up; any request, while all of them fail.
      failing: since when all of them fail; None while they are answered.
      told: when a line said so last.
    """

    seconds = START_SECONDS
    failing: float | None = None
    told = -TOLD_SECONDS


class Traffic:
    """What this process has asked by `Store`, each try counted, in requests and bytes."""

    requests = 0
    bytes = 0


class Store(GCSFileSystem):
    """gcsfs with this project's patience, and without its cache.

    With the cache it would answer from the first listing of a directory until the process ends, and
    miss what other hosts, TensorStore and launched runs write there.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"use_listings_cache": False})

    async def _request(self, method: str, path: str, *args, **options):
        """Sends a request until it is answered, refused, or patience is over."""
        began, wait = time.monotonic(), FIRST_WAIT
        stall = min(STALL_SECONDS, Patience.seconds / 3)
        limits = {"sock_connect": stall, "sock_read": stall}
        self.requests_timeout = ClientTimeout(total=REQUEST_SECONDS, **limits)
        while True:
            try:
                Traffic.requests += 1
                answer = await request_once(self, method, path, *args, **options)
                Traffic.bytes += len(options.get("data") or b"") + len(answer[-1])
                Patience.failing = None
                return answer
            except FileNotFoundError:
                Patience.failing = None
                if method == "DELETE":  # perhaps by an earlier try, whose answer was lost
                    return 204, {}, None, b""
                place = self._format_path(path, args)
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT), place) from None
            except Exception as error:
                created = "ifGenerationMatch" in options  # the caller asks whether it exists
                buckets = re.findall(r"/b/([^/]+)", self._format_path(path, args))
                place = "gs://" + "".join(buckets[-1:])
                reason = refusal(error, created=created)
                if reason and (reason[0] != 401 or wait > FIRST_WAIT):  # a token may just expire
                    raise NoAccessError(*reason, place) from error
                if not (reason or may_pass(error)):
                    raise
                if not reason:
                    tell(first_line(error))
                Patience.failing = Patience.failing or began
                since = min(began, Patience.failing)
                if (left := since + Patience.seconds - time.monotonic()) <= 0:
                    raise NoAnswerError(
                        f"{NO_ANSWER} ({first_line(error)}): see whether this machine's network "
                        "reaches it, then run the same command again"
                    ) from error
            await asyncio.sleep(min(wait, left))
            wait = min(2 * wait, LONGEST_WAIT)

    async def _info(self, path: str, generation: str | None = None, **options):
        """Describes an object or a directory, by one listing; gcsfs takes two or three requests."""
        bucket, key, found = self.split_path(self._strip_protocol(path).rstrip("/"))
        if not key or generation or found:
            return await super()._info(path, generation, **options)
        # "key", "key.tmp" and "key/" come before "key0": the slash is the character before 0.
        names = {"prefix": key, "delimiter": "/", "endOffset": f"{key}0", "pageToken": None}
        while True:
            page = await self._call("GET", "b/{}/o", bucket, json_out=True, **names)
            for item in page.get("items", []):
                if item["name"] == key:
                    return self._process_object(bucket, item)
            if f"{key}/" in page.get("prefixes", []):
                return folder(bucket, key)
            if not (token := page.get("nextPageToken")):
                raise FileNotFoundError(path)
            names["pageToken"] = token

    async def _list_objects(self, path: str, prefix: str = "", **options) -> list[dict]:
        """Lists a directory; gcsfs asks once more where it is empty."""
        bucket, key, _ = self.split_path(path)
        items, folders = await self._do_list_objects(path, prefix=prefix, **options)
        if key and not (items or folders):
            raise FileNotFoundError(path)
        return [folder(bucket, name.rstrip("/")) for name in folders] + items

    async def _isdir(self, path: str) -> bool:
        """As gcsfs's, which answers False also where a store refuses or does not answer."""
        try:
            return (await self._info(path))["type"] == "directory"
        except FileNotFoundError:
            return False

    async def _rm_files(self, paths: list[str]) -> list[Exception | None]:
        """Deletes objects, each by one request.

        gcsfs's single request for many objects fails if an earlier try has deleted some, and does
        not tell a refusal or a missing answer from other errors.
        """
        deletions = map(self._rm_file, paths)
        return await asyncio.gather(*deletions, return_exceptions=True)

    async def _mkdir(self, path: str, **options) -> None:
        """Does nothing: a directory is there once an object is. gcsfs asks for the bucket."""

    def _open(self, path: str, mode: str = "rb", **options) -> IO[bytes]:
        """Opens an object; a small one is read or written in one request."""
        if mode == "wb":
            return Written(self, path, mode, **options)
        if mode != "rb":
            return super()._open(path, mode, **options)
        try:
            content = self.cat_file(path, start=0, end=SMALL)
        except NoAccessError as error:
            if error.errno != NOTHING_THERE:
                raise
            content = b""
        return io.BytesIO(content) if len(content) < SMALL else super()._open(path, **options)


def folder(bucket: str, key: str) -> dict[str, Any]:
    """Returns what fsspec tells of a directory."""
    return {"bucket": bucket, "name": f"{bucket}/{key}", "size": 0, "type": "directory"}


class Written(GCSFile):
    """An object that is written; in one request if it is smaller than a block, 5 MB."""

    def flush(self, force: bool = False) -> None:
        if force and self.offset is None and not self.forced:
            self.forced = True
            return self.fs.pipe_file(self.path, self.buffer.getvalue())
        super().flush(force)


def tell(reason: str) -> None:
    """Prints that requests are sent again; one line for all of them in TOLD_SECONDS."""
    if time.monotonic() < Patience.told + TOLD_SECONDS:
        return
    Patience.told = time.monotonic()
    limit = f"{Patience.seconds:g} s"
    print(f"warning: {NO_ANSWER} ({reason}); asking again for {limit}", file=sys.stderr)


def refusal(error: Exception, *, created: bool = False) -> tuple[int, str] | None:
    """Returns status and reason of an error by which a store refuses a request; None for others.

    Args:
      error: gcsfs's.
      created: whether 412 says that an object exists.
    """
    status, text = getattr(error, "code", 0), first_line(error)
    match error:
        case Exception() if may_pass(error):
            return None
        case HttpError():
            status = int(status or 0)
        case GoogleAuthError():
            status = 401
        case FileExistsError() if not created:
            status, text = 412, "412, a condition on this object or bucket does not hold"
        case OSError() if text.startswith("Forbidden: "):
            status, text = 403, str(error).partition("\n")[2]
        case ValueError() if text.startswith("Bad Request: "):
            status, text = 400, str(error).partition("\n")[2]
        case _:
            return None
    mend = MEND.get(status, "correct what this names")
    return status, f"{text or f'status {status}'}; {mend}"


def may_pass(error: Exception) -> bool:
    """Returns whether a request may succeed when it is sent again."""
    if isinstance(error, HttpError):
        status, cause = int(error.code or 0), error.__cause__
        no_token = isinstance(cause, GoogleAuthError) and may_pass(cause)
        return status in LATER or status >= 500 or no_token
    if isinstance(error, GoogleAuthError):  # the cause: of a virtual machine's metadata server
        return error.retryable or TransportError in (type(error), type(error.__cause__))
    lost = (ClientError, RequestException, ChecksumError, ConnectionError, TimeoutError)
    return isinstance(error, lost)


@contextmanager
def patience(minutes: float) -> Iterator[None]:
    """Sends requests again for so many minutes, in place of START_SECONDS."""
    Patience.seconds = max(START_SECONDS, 60 * minutes)
    try:
        yield
    finally:
        Patience.seconds = START_SECONDS


def probe(directory: epath.Path) -> None:
    """Lists, writes, reads and deletes in a directory.

    Raises:
      NoAccessError: the store refuses one of these.
      NoAnswerError: it does not answer.
    """
    store, place = fsspec.filesystem("gs"), f"{directory}/probe-{uuid4().hex[:8]}.tmp"
    bucket, name, _ = store.split_path(place)
    try:
        store.call("GET", "b/{}/o", bucket, prefix=name, json_out=True)
        store.pipe_file(place, b"")
        store.cat_file(place)
        store.rm_file(place)
    except FileNotFoundError as error:
        raise NoAccessError(404, MEND[404], f"gs://{bucket}") from error


def write(path: str, data: bytes) -> None:
    """Writes an object in one request; in several where it has more than 50 MB."""
    fsspec.filesystem("gs").pipe_file(path, data)


def below(path: str) -> dict[str, int]:
    """Returns the bytes of each object under a place, at any depth, or of the object there.

    Google's console and others make empty objects such as "a/" for folders; these are left out.
    """
    found = fsspec.filesystem("gs").find(path, detail=True)
    sizes = {f"gs://{name}": about["size"] for name, about in sorted(found.items())}
    return {name: size for name, size in sizes.items() if not name.endswith("/")}


def register() -> None:
    """Has etils, Orbax and fsspec use `Store` for gs://."""
    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, Store, clobber=True)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
