"""The contents of a SavedModel, and the differences of two: signatures, variables, functions, ops,
gradients, assets, the manifest."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf.converters import stages
from jax2tf.converters.bundle import files, graphs, manifest, paths, publish, tables
from jax2tf.converters.saved_model import values
from jax2tf.tools import outside
from jax2tf.tools.cli import _graphs, _weights


def inspect(directory: str | Path, argument: str = "path") -> dict[str, Any]:
  """The contents of a SavedModel, as JSON values. `argument` has the name of the directory in
  errors.

  Raises:
    FileNotFoundError: there is no SavedModel.
  """
  saved = publish.saved_model_in(paths.of(directory, argument))
  with paths.fetched(saved) as path:
    return {"path": str(saved)} | _contents(path)


def _contents(path: Path) -> dict[str, Any]:
  with stages.stage("read the graph"):
    graph = values.meta_graph(path)
    functions = _graphs.of_functions(graph)
  nodes = graphs.nodes(graph.graph_def)
  content: dict[str, Any] = {
    "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
    "signatures": {
      name: {
        "inputs": {key: _info(value) for key, value in sorted(signature.inputs.items())},
        "outputs": {key: _info(value) for key, value in sorted(signature.outputs.items())},
        "defaults": {
          key: tf.make_ndarray(value).tolist() for key, value in sorted(signature.defaults.items())
        },
      }
      for name, signature in sorted(graph.signature_def.items())
      if not name.startswith("__saved_model")
    },
    "variables": _variables(graph),
    "functions": functions,
    "ops": dict(
      sorted(collections.Counter(n.op for n in nodes).items(), key=lambda item: (-item[1], item[0]))
    ),
    "modules": _modules_of(graph.graph_def, nodes),
    "outside": {
      op: {"effect": each.effect, "in": list(each.places)}
      for op, each in outside.in_graph(graph).items()
    },
    "devices": sorted({n.device for n in nodes if n.device}),
    "gradients": len(graph.graph_def.library.registered_gradients),
    "assets": _graphs.of_assets(path),
    "tensorflow": graph.meta_info_def.tensorflow_version,
    "warmup_requests": _count(path / files.WARM_UP),
  }
  try:
    record = manifest.read(path)
    content["manifest"] = {
      "created": record.created,
      "versions": dict(record.versions),
      "constraints": list(record.constraints),
      "weights": record.weights,
      "with_gradient": record.with_gradient,
      "idioms": record.idioms,
      "state": dict(record.state),
      "state_values": record.state_values,
      "signatures": {
        name: {
          "inputs": dict(s.inputs),
          "outputs": dict(s.outputs),
          "jaxpr": s.jaxpr,
          "stateful": s.stateful,
        }
        for name, s in record.signatures.items()
      },
    }
  except FileNotFoundError:
    content["manifest"] = None
  return content


def _modules_of(graph: Any, nodes: Iterable[Any]) -> list[dict[str, Any]]:
  """The modules in a graph. JAX is imported for graphs alone that have any."""
  if not any(node.op == graphs.MODULE for node in nodes):
    return []
  from jax2tf.converters.opened import contents  # noqa: PLC0415

  return contents.of_graph(graph)


def _variables(graph: Any) -> dict[str, dict[str, Any]]:
  by_name: dict[str, dict[str, Any]] = {}
  for variable in (
    node.variable for node in graph.object_graph_def.nodes if node.HasField("variable")
  ):
    # several variables may share a name
    same = sum(name.partition(" ")[0] == variable.name for name in by_name)
    name = f"{variable.name} ({same + 1})" if same else variable.name
    by_name[name] = {
      "dtype": tf.as_dtype(variable.dtype).name,
      "shape": _shape(variable.shape),
      "trainable": variable.trainable,
    }
  return by_name


def _shape(proto: Any) -> list[int | None] | None:
  return tf.TensorShape(proto).as_list() if not proto.unknown_rank else None


def _info(info: Any) -> str:
  """int32[?,384]."""
  shape = _shape(info.tensor_shape)
  sizes = "..." if shape is None else ",".join("?" if d is None else str(d) for d in shape)
  return f"{tf.as_dtype(info.dtype).name}[{sizes}]"


def _count(file: Path) -> int:
  return sum(1 for _ in tf.data.TFRecordDataset(str(file))) if file.exists() else 0


def text(content: Mapping[str, Any]) -> str:
  """The contents as tables for a terminal."""
  size = content["bytes"] / 2**20
  head = (
    f"{content['path']}: {size:.1f} MB, written by TensorFlow {content['tensorflow']}, "
    f"{content['gradients']} gradient functions, "
  )
  head += f"{content['warmup_requests']} warm-up requests"
  rows = [
    (
      name,
      key,
      what,
      str(spec) + (f" = {signature['defaults'][key]}" if key in signature["defaults"] else ""),
    )
    for name, signature in content["signatures"].items()
    for what, specs in (("input", signature["inputs"]), ("output", signature["outputs"]))
    for key, spec in specs.items()
  ]
  parameters = [
    (n, v["dtype"], str(v["shape"]), "yes" if v["trainable"] else "")
    for n, v in content["variables"].items()
  ]
  parts = [
    head,
    table(("signature", "tensor", "", "dtype and shape"), rows),
    table((f"{len(parameters)} variables", "dtype", "shape", "trainable"), parameters),
    table(("function", "hash"), content["functions"].items()),
    table(("op", "count"), [(op, str(n)) for op, n in content["ops"].items()]),
  ]
  if content["assets"]:
    parts.append(table(("asset", "hash"), content["assets"].items()))
  if content["outside"]:
    reached = [
      (op, each["effect"], ", ".join(each["in"])) for op, each in content["outside"].items()
    ]
    parts.append(table(("op that serve and batch refuse", "because it", "in"), reached))
  if content["modules"]:
    parts.append(_modules(content["modules"]))
  if any(map(graphs.is_closed, content["ops"])):
    parts.append("closed: jax2tf open writes it as an ordinary SavedModel")
  if content["devices"]:
    parts.append("devices: " + ", ".join(content["devices"]))
  if record := content["manifest"]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    if record["state"]:
      stateful = ", ".join(
        name for name, signature in record["signatures"].items() if signature["stateful"]
      )
      parts.insert(3, table((f"state of {stateful}", "dtype and shape"), record["state"].items()))
    parts.append(
      f"converted {record['created']} by {versions}; constraints: "
      f"{', '.join(record['constraints']) or 'none'}; idioms: {record['idioms']}"
    )
  else:
    parts.append("no manifest: not saved by jax2tf")
  return _visible("\n\n".join(parts))


def _modules(modules: Iterable[Mapping[str, Any]]) -> str:
  rows = [
    (
      f"{each['in']} ({', '.join(each['platforms'])}; StableHLO {each['stablehlo'] or 'as text'})",
      ", ".join(f"{name.removeprefix('stablehlo.')} {n}" for name, n in each["ops"].items()),
      ", ".join(each["calls"]),
      each["refused"],
    )
    for each in modules
  ]
  return table(("module in", "its ops", "its calls", "it is refused because"), rows)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """A table for a terminal, without control characters of the model's."""
  return tables.text(header, ([*map(_visible, row)] for row in rows), width=140)


def _visible(raw: str) -> str:
  """The text with its control characters written out."""
  return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in raw)


# Entries in which two SavedModels always differ.
_OF_EACH = {"path", "bytes"}


def diff(
  before: str | Path, after: str | Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """([{"what": path in the result of `inspect`, "before": ..., "after": ...}], differences of
  variables); both empty for equal models.

  Raises:
    FileNotFoundError: there is no SavedModel.
    ValueError: a SavedModel is damaged.
  """
  old, new = inspect(before, "before"), inspect(after, "after")
  for content in (old, new):
    if content["manifest"]:
      del content["manifest"]["created"]
  with (
    stages.stage("read the variables"),
    paths.fetched(paths.of(old["path"])) as one,
    paths.fetched(paths.of(new["path"])) as other,
  ):
    weights = _weights.differences(one, other)
  changes = differences(
    "",
    {k: v for k, v in old.items() if k not in _OF_EACH},
    {k: v for k, v in new.items() if k not in _OF_EACH},
  )
  values = [
    {"what": f"values/{d['path']}", "before": d["before"], "after": d["after"]} for d in weights
  ]
  return [*changes, *values], weights


def differences(path: str, before: Any, after: Any) -> Iterable[dict[str, Any]]:
  """[{"what": path, "before": ..., "after": ...}] of two JSON values."""
  if isinstance(before, dict) and isinstance(after, dict):
    for key in sorted({*before, *after}):
      yield from differences(f"{path}/{key}" if path else key, before.get(key), after.get(key))
  elif before != after:
    yield {"what": path, "before": before, "after": after}


def weights_text(differences: Iterable[Mapping[str, Any]]) -> str:
  """The differences of variables as a table for a terminal, the largest first."""
  return table(
    ("variable", "elements that differ", "max abs", "max rel"), _weights.rows(differences)
  )


def diff_text(differences: Iterable[Mapping[str, Any]]) -> str:
  """The differences as a table for a terminal."""
  rows = [
    (d["what"], *("-" if d[side] is None else str(d[side]) for side in ("before", "after")))
    for d in differences
  ]
  return table(("what", "before", "after"), rows) if rows else "no difference"
