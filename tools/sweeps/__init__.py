"""What maintainers run: `make conformance`, `speed`, `targets`, `load` and their like. No part of the wheel."""
