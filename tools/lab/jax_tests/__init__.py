"""Runs JAX's own unit tests: what a test computes with JAX, the converted function computes too.

`plugin` is loaded by pytest, in the processes that `processes` starts. `observing` stands for the
functions that a test calls, and `missing` for names that this JAX lacks. A call becomes a
`subjects.Subject`; `values` and `derivatives` compute it in several ways, and `comparing` compares.
Where JAX leaves a result open, `determined` compares what is determined. `report` and `causes`
write docs/coverage.md.
"""
