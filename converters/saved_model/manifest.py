"""The manifest of a SavedModel, for users: `bundle/manifest.py` reads and writes it."""

from ..bundle.manifest import GenerationRecord, Manifest, SignatureRecord, read

__all__ = ["GenerationRecord", "Manifest", "SignatureRecord", "read"]
