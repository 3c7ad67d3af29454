"""Which models run where, and how closely: the rows of docs/reports/models.md.

Each section of the page is a module here, with `rows()`, the names of its rows, and
`measured(names)`, which yields (name, numbers) for each.
"""

SECTIONS = ("zoo", "minilm", "libraries", "qwix", "decoders")
