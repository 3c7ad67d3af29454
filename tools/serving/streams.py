"""What a proxy and a replica send to each other for REST, and for what is answered in parts.

A request has one line, of a verb and a path, and then its body. Of what is answered in parts,
b"POST /v1/completions\\n..." asks for the bytes of an HTTP answer, and
b"GRPC /v1/completions\\n..." for messages of gRPC.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

METHOD = "Stream"  # of the service balance.REST_SERVICE
# Public: {service: {method: path of the same by REST}}.
SERVICE = "jax2tf.Generation"
METHODS = {"Completions": "/v1/completions", "ChatCompletions": "/v1/chat/completions"}
PATHS = {path: method for method, path in METHODS.items()}
OVER_HTTP, OVER_GRPC = "POST", "GRPC"


def request(verb: str, path: str, body: bytes) -> bytes:
  return f"{verb} {path}\n".encode() + body


def verb_path_body(data: bytes) -> tuple[str, str, bytes]:
  """What a request was made of."""
  line, _, body = data.partition(b"\n")
  verb, _, path = line.decode().partition(" ")
  return verb, path, body


@dataclass(frozen=True)
class Part:
  """A part of an answer, with what the proxy measures.

  Attributes:
    data: what the client gets; empty if there is nothing for it yet.
    tokens: how many were generated so far.
    seconds: when the last of them was chosen, since the text was begun.
    media_type: of the whole answer, in the first part with data or before it.
    cache_bytes: of the session, in the first part.
    model, version: what answers, in the first part.
  """

  data: bytes = b""
  tokens: int = 0
  seconds: float = 0.0
  media_type: str = ""
  cache_bytes: int = 0
  model: str = ""
  version: str = ""

  def encoded(self) -> bytes:
    fields = {name: value for name, value in asdict(self).items() if value and name != "data"}
    return json.dumps(fields).encode() + b"\n" + self.data

  @classmethod
  def decoded(cls, message: bytes) -> Part:
    head, _, data = message.partition(b"\n")
    return cls(data=data, **json.loads(head))
