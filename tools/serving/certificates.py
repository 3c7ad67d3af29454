"""Loads certificates in PEM, for the server and for `jax2tf query`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping


def load(context: ssl.SSLContext, files: Mapping[str, str | None], authority: str) -> None:
  """Loads files into a context.

  Args:
    context: gets the certificate with its key, and the authority of the other side.
    files: flag of the command -> file; None or "" for none.
    authority: the flag of the authority.

  Raises:
    ValueError: --tls_cert and --tls_key are not both given, or a file is not valid.
  """
  cert, key, ca = files["--tls_cert"], files["--tls_key"], files[authority]
  if bool(cert) != bool(key):
    raise ValueError("TLS needs both --tls_cert and --tls_key")
  flags = "--tls_cert and --tls_key"
  try:
    if cert:
      # otherwise OpenSSL would ask for it on the terminal
      context.load_cert_chain(cert, key, password=lambda: "")
    flags = authority
    if ca:
      context.load_verify_locations(ca)
  except OSError as error:  # includes SSLError
    raise ValueError(
      f"{flags} cannot be used: {error}; give files in PEM, and a key without a password"
    ) from error
