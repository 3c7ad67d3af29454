"""The manifest of a SavedModel, for users: `bundle/manifest.py` reads and writes it."""

from ..bundle.manifest import Manifest, SignatureRecord, read

__all__ = ["Manifest", "SignatureRecord", "read"]
