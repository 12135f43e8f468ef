"""Requests to gs://: what is sent again, for how long, and what is told of those that fail.

A request that a store refuses ends in `NoAccessError` at once. A request that it does not answer
(silence, a lost connection, 408, 429, 5xx) is sent again for 15 s at a start, and for
`config.checkpoint.retry_minutes` once a run trains; then `NoAnswerError` ends it. TensorStore,
which reads and writes the arrays of checkpoints, tries as often (`checkpoint.failed_save`);
where it or ArrayRecord takes longer, the run's watchdog asks in their place.
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
import gcsfs.core
import google.auth
from aiohttp import ClientError, ClientTimeout
from etils import epath
from gcsfs.core import GCSFile, GCSFileSystem  # not the one that asks for a bucket's type by gRPC
from gcsfs.retry import ChecksumError, HttpError, validate_response
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
# Of a 403 that may pass, unlike others: rateLimitExceeded, userRateLimitExceeded.
TOO_FAST = re.compile(r"\breason\W+(rateLimitExceeded|userRateLimitExceeded)\b")


def check_answer(status: int, content: bytes, *place: Any) -> None:
    """As gcsfs's own check, whose errors tell no reason: a 403 of TOO_FAST becomes a 429."""
    if status == 403 and (reason := TOO_FAST.search(content.decode(errors="replace"))):
        raise HttpError({"code": 429, "message": reason[1]})
    validate_response(status, content, *place)


gcsfs.core.validate_response = check_answer


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
        url = self._format_path(path, args)
        place = "gs://" + "".join(re.findall(r"/b/([^/]+)", url)[-1:])
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
                if "/upload/" in url:
                    raise NoAccessError(404, MEND[404], place) from None
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT), url) from None
            except Exception as error:
                created = "ifGenerationMatch" in options  # the caller asks whether it exists
                reason = refusal(error, created=created)
                if reason and (reason[0] != 401 or wait > FIRST_WAIT):  # a token may just expire
                    why = self._why_anonymous() if reason[0] in (401, 403) else ""
                    raise NoAccessError(reason[0], reason[1] + why, place) from error
                if not (reason or may_pass(error)):
                    raise
                if not reason:
                    tell(first_line(error))
                Patience.failing = Patience.failing or began
                since = min(began, Patience.failing)
                if (left := since + Patience.seconds - time.monotonic()) <= 0:
                    raise no_answer(first_line(error)) from error
            await asyncio.sleep(min(wait, left))
            wait = min(2 * wait, LONGEST_WAIT)

    def _why_anonymous(self) -> str:
        """Returns why gcsfs, which says nothing of it, sends no credentials; "" where it does.

        Also "" where the user asked for none.
        """
        if self.credentials.method != "anon" or self.credentials.token:
            return ""
        try:
            google.auth.default()
        except (GoogleAuthError, ValueError) as error:
            return f"; no credentials were sent: {first_line(error)}"
        return ""

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
        case HttpError(__cause__=GoogleAuthError() as why):  # of a login that is over
            status, text = 401, first_line(why)
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


def no_answer(reason: str) -> NoAnswerError:
    """Returns the error of requests that have been sent again for as long as they may."""
    mend = "see whether this machine's network reaches it, then run the same command again"
    return NoAnswerError(f"{NO_ANSWER} ({reason}): {mend}")


def of_tensorstore(error: Exception, place: epath.Path) -> Exception:
    """Returns the error of this module that one of TensorStore's own requests stands for.

    Other errors are returned as they are.
    """
    text = str(error)
    found = re.search(r"([^:]+?) \[(?:curl_code|http_response_(?:body|code))=", text)
    if not found:
        return error
    code = re.search(r"http_response_code='(\d+)'", text)
    status, reason = int(code[1]) if code else 0, found[1].strip()
    if not code or passes(status) or TOO_FAST.search(text):
        return no_answer(reason)
    bucket = re.match(r"gs://[^/]+", str(place))
    mend = MEND.get(status, "correct what this names")
    return NoAccessError(status, f"{reason} (status {status}); {mend}", bucket[0])


def passes(status: int) -> bool:
    """Returns whether a request that is answered by a status may succeed when it is sent again."""
    return status in LATER or status >= 500


def may_pass(error: Exception) -> bool:
    """Returns whether a request may succeed when it is sent again."""
    if isinstance(error, HttpError):
        cause = error.__cause__
        no_token = isinstance(cause, GoogleAuthError) and may_pass(cause)
        return passes(int(error.code or 0)) or no_token
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
    Patience.failing = None  # an earlier run of this process may have ended with its store
    with found(bucket):
        store.call("GET", "b/{}/o", bucket, prefix=name, json_out=True)
        store.pipe_file(place, b"")
        store.cat_file(place)
        store.rm_file(place)


@contextmanager
def found(bucket: str) -> Iterator[None]:
    """Raises NoAccessError in place of a FileNotFoundError, where this is the bucket's."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoAccessError(404, MEND[404], f"gs://{bucket}") from error


def ask(*places: str) -> None:
    """Lists one object of each of some places; raises as `probe`."""
    store = fsspec.filesystem("gs")
    for place in places:
        bucket, name, _ = store.split_path(place)
        with found(bucket):
            store.call("GET", "b/{}/o", bucket, prefix=name, maxResults=1)


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
