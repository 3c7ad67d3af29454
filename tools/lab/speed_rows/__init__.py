"""How fast converted functions are: the rows of docs/reports/speed.md.

Each section of the page is a module here, with `ROWS`, a mapping from the name of a row to what it
measures, and `measured(name)`, which returns the numbers of a row. `rules` asks for one thread of
JAX's LAPACK (`make speed`).
"""

SECTIONS = ("models", "functions", "rules", "growth", "saving", "idioms")
