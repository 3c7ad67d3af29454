"""The graphs that TensorFlow makes of a call, one a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.eager import context


def partitioned(call: Callable[[], Any]) -> Iterator[Any]:
  """Runs a call and yields the NodeDefs of the graphs into which its functions were divided, one a
  device: tensors that go from one device to another have `_Send` and `_Recv` nodes there."""
  context.enable_run_metadata()
  try:
    call()
    metadata = context.export_run_metadata()
  finally:
    context.disable_run_metadata()
  for graphs in metadata.function_graphs:
    for graph in graphs.partition_graphs:
      yield from graph.node
      for function in graph.library.function:
        yield from function.node_def
