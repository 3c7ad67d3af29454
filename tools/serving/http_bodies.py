"""Reads the bodies of HTTP requests, within the limits of a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import zlib

from starlette.requests import Request

from jax2tf.tools.serving import bodies
from jax2tf.tools.serving.balance import RefusedError
from jax2tf.tools.serving.child import Options

# RFC 9110, 8.4.1: the names have no case, and x-gzip is another one for gzip.
_PLAIN, _GZIPPED = ("", "identity"), ("gzip", "x-gzip")
_CLOSE = {"connection": "close"}


class HttpError(Exception):
  """A request that HTTP itself answers.

  Attributes:
    status: of the answer.
    reason: a sentence for the client.
    headers: of the answer.
  """

  def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None):
    super().__init__(reason)
    self.status, self.reason, self.headers = status, reason, headers


def later(refusal: RefusedError) -> HttpError:
  """The answer to a request that may be sent again."""
  return HttpError(429, refusal.reason, {"retry-after": "1", **_CLOSE})


def check_lengths(request: Request) -> None:
  """Raises HttpError where a proxy before this server may see another end of the body, and so
  another next request (RFC 9112, 6.1)."""
  if "transfer-encoding" in request.headers and "content-length" in request.headers:
    raise HttpError(
      400, "the request has Content-Length and Transfer-Encoding; send one of them", _CLOSE
    )


async def discard(request: Request, seconds: float) -> None:
  """Reads a body that nobody needs: a client that is disconnected while it sends does not see the
  answer."""
  with contextlib.suppress(TimeoutError):
    async with asyncio.timeout(seconds):
      async for _ in request.stream():
        pass


async def read(request: Request, share: bodies.Share, options: Options) -> bytes:
  """The body of a request, decompressed.

  Args:
    request: of the client.
    share: counts its bytes.
    options: have the limits.

  Raises:
    HttpError: it is too large or too slow, or not as its head says.
  """
  most, seconds = options.max_bytes, options.client_seconds
  coding = _coding(request)
  try:
    async with asyncio.timeout(seconds):
      body = await _all_of(request, most, share)
    # TF Serving accepts gzip too
    if body is not None and coding in _GZIPPED:
      body = await asyncio.to_thread(bodies.decompressed, body, most)
      share.take(len(body or b""))
  except TimeoutError:
    raise HttpError(408, f"the body did not arrive within {seconds:g} s", _CLOSE) from None
  except zlib.error as error:
    raise HttpError(
      400, f"the body is not gzip, although its Content-Encoding says so: {error}"
    ) from error
  except RefusedError as refusal:
    raise later(refusal) from refusal
  if body is None:
    raise HttpError(413, f"the body has more than {most} bytes; send fewer rows")
  if coding not in (*_PLAIN, *_GZIPPED):
    raise HttpError(
      415, f"the Content-Encoding of the body is {coding[:100]!r}; send gzip, or none"
    )
  return body


async def _all_of(request: Request, most: int, share: bodies.Share) -> bytes | None:
  """The body of a request; None if it is larger than `most`. Raises RefusedError if the other
  bodies leave too few bytes for it."""
  body, size, refusal = bytearray(), 0, None
  # reads to the end, because a client that is disconnected while it sends does not see the answer
  async for part in request.stream():
    size += len(part)
    try:
      if size <= most and not refusal:
        share.take(len(part))
        body += part
        continue
    except RefusedError as error:
      refusal = error
    share.give_back()
    body.clear()
  if refusal:
    raise refusal
  return bytes(body) if size <= most else None


def _coding(request: Request) -> str:
  return ", ".join(request.headers.getlist("content-encoding")).strip().lower()
