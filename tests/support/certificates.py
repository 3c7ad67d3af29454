"""Certificates for the tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path, password: bytes = b"") -> tuple[str, str]:
  """A certificate of 127.0.0.1 that signs itself, and its key."""
  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
  now = datetime.datetime.now(datetime.UTC)
  address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
  builder = x509.CertificateBuilder(
    name, name, key.public_key(), 1, now, now + datetime.timedelta(1)
  )
  signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
  coded = (
    serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
  )
  (folder / "key.pem").write_bytes(
    key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, coded)
  )
  (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
  return str(folder / "cert.pem"), str(folder / "key.pem")
