"""How does Ray Serve's gRPC proxy speak tensorflow.serving.PredictionService? As bytes, so that it loads no TensorFlow.

Ray Serve (2.60) offers no other place for three things, so they are done around its handlers: bytes that are no request reach
the replica, which says so, instead of an INTERNAL error; the death of a replica is UNAVAILABLE, which clients retry; and since the
proxy listens on all interfaces, requests from other machines are refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import grpc

METHODS = ("Predict", "GetModelMetadata")
SERVICE = "tensorflow.serving.PredictionService"

# ray.exceptions.ActorDiedError and ActorUnavailableError, of which only the text arrives.
_DEAD = re.compile(r"actor died|ActorDied|ActorUnavailable|actor .{0,80}is (temporarily )?unavailable", re.IGNORECASE | re.DOTALL)

Unary = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


class _Handlers(grpc.GenericRpcHandler):
  """The methods of the service; Ray Serve replaces the values of `_method_handlers` by its own."""

  def __init__(self) -> None:
    handler = grpc.unary_unary_rpc_method_handler(None)
    self._method_handlers = {f"/{SERVICE}/{method}": handler for method in METHODS}

  def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
    handler = self._method_handlers.get(handler_call_details.method)
    return handler and grpc.unary_unary_rpc_method_handler(_guarded(handler.unary_unary))


def _guarded(unary: Unary) -> Unary:
  async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    if not _is_local(context.peer()):
      await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this server answers its own machine only")
    response = await unary(request, context)
    if context.code() == grpc.StatusCode.INTERNAL and _DEAD.search(context.details()):
      context.set_code(grpc.StatusCode.UNAVAILABLE)
      context.set_details("the replica that had this request died; send it again")
    return response

  return answer


def _is_local(peer: str) -> bool:
  """ "ipv4:127.0.0.1:40000" and "ipv6:[::1]:40000" (escaped as in a URL) are."""
  kind, _, address = unquote(peer).partition(":")
  if kind == "unix":
    return True
  parsed = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
  return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def add_to_server(servicer: object, server: grpc.aio.Server) -> None:
  """For `gRPCOptions.grpc_servicer_functions`; the servicer is Ray Serve's, which calls the replicas' methods of the same names."""
  del servicer
  server.add_generic_rpc_handlers((_Handlers(),))
