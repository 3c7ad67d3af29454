"""What runs where: the rows of docs/reports/targets.md.

Each section of the page is a module here, with `rows()`, the names of its rows, and
`measured(names)`, which yields (name, numbers) for each. `primitives` has too many rows to keep
each: its `sweep` keeps their counts. `faults(numbers)` of a module says what must not be.
"""

SECTIONS = ("primitives", "plain", "readers", "onnx", "registry")
