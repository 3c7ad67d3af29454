"""What is inside the closed ops of a SavedModel, for `jax2tf inspect`."""

from __future__ import annotations

import collections
import re
from typing import Any

from jax2tf.errors import ArtifactError, LoweringError
from jax2tf.stablehlo import children, parsing, refusals
from jax2tf.stablehlo.graph import Module, reachable, walk
from jax2tf.stablehlo.rules import COMPOSITES

from ..bundle import graphs
from . import closed, modules

_VERSION = re.compile(rb"StableHLO_v([\d.]+)")


def of_graph(graph: Any) -> list[dict[str, Any]]:
  """The modules of the XlaCallModule nodes of a GraphDef, as JSON values: each once.

  A child process parses them, because MLIR's parser ends the process for some that are damaged.

  Returns:
    for each the function of the library that it is `in`, empty for the graph itself; its
    `platforms`; the `stablehlo` version; its `ops` with their numbers; the `calls` of code outside
    of the module; and why it is `refused`, empty if `opened.save` opens it.
  """
  found: dict[str, dict[str, Any]] = {}
  for each in closed.nodes(graph):
    if each.node.op == graphs.MODULE and (name := closed.program(each.node)) not in found:
      found[name] = {"in": each.place} | _of_node(each.node)
  return list(found.values())


def _of_node(node: Any) -> dict[str, Any]:
  version = _VERSION.search(node.attr["module"].s[:64])
  about: dict[str, Any] = {
    "platforms": [platform.decode() for platform in node.attr["platforms"].list.s],
    "stablehlo": version[1].decode() if version else "",
    "ops": {},
    "calls": [],
    "refused": "",
  }
  try:
    artifact = children.checked(modules.artifact_of(node), f"the module of {node.name!r}")
    module = parsing.parse(artifact.module.take())  # type: ignore[union-attr]
    about |= _of_module(module)
    refusals.check(module)
  except (ArtifactError, LoweringError, NotImplementedError) as error:
    about["refused"] = str(error)
  return about


def _of_module(module: Module) -> dict[str, Any]:
  ops = [op for function in reachable(module, COMPOSITES) for op in walk(function.block)]
  counts = collections.Counter(f"{op.dialect}.{op.name}" for op in ops)
  calls = {str(op.get("call_target_name")) for op in ops if op.name == "custom_call"}
  ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return {"ops": dict(ordered), "calls": sorted(calls)}
