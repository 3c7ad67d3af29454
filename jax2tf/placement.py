"""Where a jaxpr says that its equations run: `jax.device_put`, `jax.default_device`, `compute_on`, and sharding annotations.

As in JAX outside of jit, computation follows data: an equation runs where its operands were put, and its results stay there until
they are put elsewhere. What nobody places is left to TensorFlow, as it is left to XLA in JAX
(https://docs.jax.dev/en/latest/faq.html#controlling-data-and-computation-placement-on-devices).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax.extend.core import Jaxpr, Literal
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from jax2tf import _jax_compat
from jax2tf.jaxprs import function_of, inner_jaxprs, opened, variables
from jax2tf.lines import user_line

# "cpu:1", a platform and the index among its local devices; "host", the memory of the processor.
Place = str

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
HOST = "host"


def place_of(target: Any) -> Place | None:
  """The one device that a target of `jax.device_put` names; None for several, and for none."""
  if isinstance(target, jax.Device):
    local = jax.local_devices(backend=target.platform)
    return place_named(f"{target.platform}:{local.index(target) if target in local else target.id}")
  if isinstance(target, Sharding):
    if (target.memory_kind or "").endswith(HOST):
      return HOST
    return place_of(next(iter(target.device_set))) if len(target.device_set) == 1 else None
  return HOST if target == jax.memory.Space.Host else None


def place_named(name: str) -> Place:
  """The place of that name; cuda and rocm are the names that `jax.export` has for gpu."""
  return re.sub("^(cuda|rocm)", "gpu", name)


@dataclass(frozen=True)
class Destination:
  """Where the graph will run.

  Attributes:
    platforms: of cpu, cuda, rocm, tpu; empty for this machine, whose devices are then known.
    device_map: place, or platform, -> TensorFlow device; None leaves it to TensorFlow.
    keep_shardings: whether sharding annotations become XlaSharding ops.
  """

  platforms: tuple[str, ...] = ()
  device_map: Mapping[str, str | None] = field(default_factory=dict)
  keep_shardings: bool = False

  def device(self, place: Place) -> str | None:
    """The TensorFlow device of a place."""
    platform, _, index = place.partition(":")
    for key in (place, platform):
      if key in self.device_map:
        return self.device_map[key]
    return "/device:CPU:0" if place == HOST else f"/device:{platform.upper()}:{index}"

  def branch(self, platforms: Sequence[Sequence[str] | None]) -> set[int | None]:
    """The entries that the platforms of the destination choose, the first that names each or is a default; None for no entry."""
    chosen = [[i for i, names in enumerate(platforms) if names is None or here in names] for here in self.platforms or _here()]
    return {indices[0] if indices else None for indices in chosen}

  def missing(self, place: Place) -> str | None:
    """The device of a place that this machine's TensorFlow does not have; None when it does, or when the graph runs elsewhere."""
    device = self.device(place)
    if device is None or self.platforms:
      return None
    wanted = tf.DeviceSpec.from_string(device)
    return None if any(_fits(wanted, d.name) for d in tf.config.list_logical_devices()) else device


def _here() -> tuple[str, ...]:
  if tf.config.list_logical_devices("TPU"):
    return ("tpu",)
  gpu = "rocm" if tf.test.is_built_with_rocm() else "cuda"
  return (gpu,) if tf.config.list_logical_devices("GPU") else ("cpu",)


def _fits(wanted: Any, name: str) -> bool:
  device = tf.DeviceSpec.from_string(name)
  return all(getattr(wanted, part) in (None, getattr(device, part)) for part in ("job", "replica", "task", "device_type", "device_index"))


@dataclass(frozen=True)
class Placement:
  """Where the equations of a jaxpr run, and where their results then are.

  Attributes:
    runs: first result of an equation -> the place where it runs, for those that have one.
    values: variable -> its place, for those that were put somewhere.
  """

  runs: Mapping[Any, Place]
  values: Mapping[Any, Place]

  def of(self, atoms: Sequence[Any]) -> tuple[Place | None, ...]:
    """The places of variables and literals."""
    return tuple(None if isinstance(v, Literal) else self.values.get(v) for v in atoms)

  def run(self, eqn: Any) -> Place | None:
    """The place where an equation runs."""
    return self.runs.get(eqn.outvars[0]) if eqn.outvars else None


NOWHERE = Placement({}, {})


def placement(jaxpr: Any, operands: Sequence[Place | None] = ()) -> Placement:
  """Of a jaxpr whose operands are in these places.

  Raises:
    ValueError: an equation has operands in several places; JAX's words.
  """
  return _placement(opened(jaxpr), tuple(operands) if any(operands) else ())


@_jax_compat.weakly_cached
def _placement(jaxpr: Jaxpr, operands: tuple[Place | None, ...]) -> Placement:
  return propagate(jaxpr.invars, jaxpr.eqns, operands)


@_jax_compat.weakly_cached
def _places_any(jaxpr: Jaxpr) -> bool:
  return any(map(_names_place, jaxpr.eqns))


def _names_place(eqn: Any) -> bool:
  return bool(places_named_by(eqn)) or any(map(_places_any, inner_jaxprs(eqn)))


def propagate(invars: Sequence[Any], eqns: Sequence[Any], operands: Sequence[Place | None]) -> Placement:
  """As `placement`, of equations."""
  if not any(operands) and not any(map(_names_place, eqns)):
    return NOWHERE
  found = Placement(runs := {}, values := {v: p for v, p in zip(invars, operands, strict=False) if p})
  for eqn in eqns:
    places = found.of(eqn.invars)
    if eqn.primitive is P.device_put_p:
      results: Sequence[Place | None] = [_place_after(*put) for put in zip(eqn.params["devices"], eqn.params["srcs"], places, strict=True)]
    else:
      inner = function_of(eqn)  # which knows better than the equation where to run
      committed = None if inner else _common(eqn, places)
      # jax.default_device is for what nobody has put anywhere; compute_on is for all.
      here = _computed_on(eqn) or committed or _jax_compat.default_device_of(eqn)
      if here and eqn.outvars:
        runs[eqn.outvars[0]] = here
      results = [committed] * len(eqn.outvars) if committed else _results(eqn, inner, places)
    values.update((v, place) for v, place in zip(eqn.outvars, results, strict=True) if place)
  return found


def _place_after(target: Any, source: Any, before: Place | None) -> Place | None:
  """The place of a result of device_put: without a target it stays, but for the transpose of one, which goes back."""
  if target is not None:
    return place_of(target)
  return before if source is None else None


def _scope(eqn: Any) -> Place | None:
  """What a `compute_on` or `default_device` around the equation says."""
  return _computed_on(eqn) or _jax_compat.default_device_of(eqn)


def _computed_on(eqn: Any) -> Place | None:
  return HOST if eqn.params.get("compute_type", eqn.ctx.compute_type) == "device_host" else None


def _common(eqn: Any, places: Sequence[Place | None]) -> Place | None:
  distinct = sorted({place for place in places if place})
  if len(distinct) > 1:
    raise ValueError(
      f"Received incompatible devices for '{eqn.primitive}': its operands are on {' and '.join(distinct)}, at "
      f"{user_line(eqn)}; bring them together with jax.device_put"
    )
  return distinct[0] if distinct else None


def _results(eqn: Any, inner: Jaxpr | None, places: Sequence[Place | None]) -> Sequence[Place | None]:
  """The places of the results of an equation without operands in a place: what the jaxprs inside agree on."""
  if inner:
    return placement(inner, places).of(inner.outvars)
  bodies = [body for body in inner_jaxprs(eqn) if len(body.outvars) == len(eqn.outvars)]
  if not bodies:
    return [None] * len(eqn.outvars)
  outcomes = [placement(body).of(body.outvars) for body in bodies]
  return [p[0] if len(set(p)) == 1 else None for p in zip(*outcomes, strict=True)]


def places_named_by(eqn: Any) -> list[Place]:
  """The places that an equation says itself."""
  targets = eqn.params["devices"] if eqn.primitive is P.device_put_p else ()
  return [place for place in (_scope(eqn), *map(place_of, targets)) if place]


_SHARDINGS = {"sharding", "out_sharding", "dst_sharding", "layout", "devices", "in_shardings", "out_shardings", "mesh"}


def has_sharding(eqn: Any) -> bool:
  """Whether an equation spreads a value over several devices."""
  values = (eqn.params[name] for name in _SHARDINGS.intersection(eqn.params))
  return any(map(is_spread, itertools.chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in values)))


def is_spread(sharding: Any) -> bool:
  """Whether a sharding, or a mesh, has several devices."""
  if isinstance(sharding, Mesh | AbstractMesh):
    return sharding.size > 1
  return isinstance(sharding, Sharding) and sharding.num_devices > 1


def spread_operands(jaxpr: Any) -> dict[Any, Any]:
  """Variable -> sharding, for the arguments and results of a jaxpr, and what is between."""
  found = {v: s for v in variables((*jaxpr.invars, *jaxpr.outvars)) if is_spread(s := _jax_compat.explicit_sharding(v.aval))}
  for eqn in jaxpr.eqns:
    params = eqn.params
    befores, afters = params.get("in_shardings", ()), params.get("out_shardings", ())
    if "in_specs" in params and isinstance(params.get("mesh"), Mesh | AbstractMesh):
      befores, afters = ([NamedSharding(params["mesh"], spec) for spec in params[specs]] for specs in ("in_specs", "out_specs"))
    elif inner := function_of(eqn):
      of = spread_operands(inner)
      befores = [s if is_spread(s) else of.get(v) for s, v in zip(befores or [None] * len(inner.invars), inner.invars, strict=True)]
      results = [None if isinstance(v, Literal) else of.get(v) for v in inner.outvars]
      afters = [s if is_spread(s) else r for s, r in zip(afters or [None] * len(results), results, strict=True)]
    for v, sharding in (*zip(eqn.invars, befores, strict=False), *zip(eqn.outvars, afters, strict=False)):
      if is_spread(sharding) and not isinstance(v, Literal):
        found.setdefault(v, sharding)
  return found
