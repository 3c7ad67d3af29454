"""`jax2tf inspect`: shows the contents of a SavedModel, or of an exported file."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jax2tf.tools.cli._verb import Answer, takes_sizes, verb


@verb
@click.argument("path", metavar="PATH")
@click.option("--time", is_flag=True, help="For an ONNX file: measure the time of each type of op.")
@click.option(
  "--device",
  type=click.Choice(["gpu", "tpu"]),
  help="List which ops of a SavedModel do not stay on a device, by TensorFlow's kernels.",
)
@takes_sizes
def inspect(path: str, time: bool, device: str | None, sizes: Sequence[str]) -> Answer:
  """Shows the contents of a SavedModel, an ONNX or LiteRT file, or a folder of TF.js.

  For an exported file, it lists ops with their dtypes, the bytes of their weights, and, for LiteRT,
  how many ops XNNPACK and the GPU delegate take.

  \b
  Example:
    jax2tf inspect build/model
    jax2tf inspect build/model --device gpu
    jax2tf inspect model.onnx --time --size "b=8"
  """
  from jax2tf.tools.cli import _exported, _inspection  # noqa: PLC0415

  form = _exported.format_of(path)
  if time and not hasattr(form, "seconds_by_op"):
    raise click.BadParameter("only ONNX Runtime says how long an op takes", param_hint="--time")
  if device is not None:
    if form is not None:
      raise click.BadParameter("TensorFlow runs a SavedModel only", param_hint="--device")
    return _on_device(path, device)
  if form is None:
    content = _inspection.inspect(path)
    return {"verdict": "read"} | content, _inspection.text(content), 0
  from jax2tf.converters.export import verified  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  contents = form.inspect(path)
  seconds = {}
  if time:
    seconds = form.seconds_by_op(path, verified.drawn(contents, _loading.sizes(sizes)))
  times = {"seconds": seconds} if time else {}
  answer = {"verdict": "read"} | contents.as_json() | times
  return answer, _exported.text(contents, seconds), 0


def _on_device(path: str, device: str) -> Answer:
  """What of each signature stays on a device."""
  from jax2tf.tools.cli import _devices  # noqa: PLC0415

  found = _devices.of_saved_model(path, device)
  is_ready = all(each.is_ready for each in found.values())
  verdicts = "; ".join(f"{name}: {_devices.verdict(each)}" for name, each in found.items())
  answer = {
    "verdict": verdicts or "no signatures",
    "signatures": {name: _devices.as_json(each) for name, each in found.items()},
  }
  shown = "\n\n".join(f"{name}\n{_devices.text(each)}" for name, each in found.items())
  return answer, shown, int(not is_ready)
