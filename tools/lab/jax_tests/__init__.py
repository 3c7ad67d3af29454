"""Runs JAX's own unit tests: what a test computes with JAX, the converted function computes too.

`plugin` is loaded by pytest, in the processes that `processes` starts. `observing` stands for the
functions that a test calls. A call becomes a `subjects.Subject`; `values` and `derivatives` compute
it in several ways, `comparing` compares, and `explaining` says what else JAX computes where results
differ. `report` and `causes` write docs/coverage.md.
"""
