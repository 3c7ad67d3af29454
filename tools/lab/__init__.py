"""Tools of maintainers: `make conformance`, `speed`, `targets`, `load` and others. The wheel does
not contain them."""
