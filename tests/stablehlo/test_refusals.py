"""What cannot be read ends in one clear error."""

import random

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax2tf
from jax2tf import stablehlo
from jax2tf.errors import ArtifactError, LoweringError
from jax2tf.stablehlo import children, export_files
from tests.support.conformance import mutants

_SINE = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2,), jnp.float32))


def _with_kernel():
  allowed = [export.DisabledSafetyCheck.custom_call("kernel")]
  function = jax.jit(lambda x: jax.ffi.ffi_call("kernel", x)(x))
  return export.export(function, disabled_checks=allowed)(jax.ShapeDtypeStruct((2,), jnp.float32))


def test_all_refusals_at_once():
  text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %a = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1]]> :
      tensor<1x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
    %b = stablehlo.custom_call @kernel(%a) : (tensor<2xf32>) -> tensor<2xf32> loc("model.py":12:3)
    %c = stablehlo.custom_call @xla_ffi_python_cpu_callback(%b) : (tensor<2xf32>) -> tensor<2xf32>
    return %c : tensor<2xf32> }"""
  with pytest.raises(LoweringError) as refused:
    stablehlo.load(text)
  assert [gap.primitive.split()[-1] for gap in refused.value.gaps] == [
    "stablehlo.collective_permute",
    "kernel",
    "xla_ffi_python_cpu_callback",
  ]
  message = str(refused.value)
  assert "at model.py:12" in message
  assert "it communicates between devices" in message
  assert "it calls a Python function of the process that wrote the artifact" in message


def test_the_line_of_the_user():
  with pytest.raises(LoweringError, match=r"test_refusals\.py:\d+"):
    stablehlo.load(_with_kernel())


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("", "the module has no functions"),
    (b"", "neither a file of jax.export nor a StableHLO module"),
    (b"\x10\0\0\0 some other file of bytes", "neither a file of jax.export"),
    ("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { %y = stablehlo.ad", "is unknown"),
    ("func.func @main(" + "(" * 100_000, "nest deeper than 200 levels"),
    (
      "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n%y = call @main(%x) : "
      "(tensor<f32>) -> tensor<f32>\n return %y : tensor<f32> }",
      "the function main of the module calls itself",
    ),
    (
      "func.func @main(%x: tensor<f32>) -> tensor<f32> { cf.br ^b(%x: tensor<f32>)\n"
      "^b(%y: tensor<f32>): return %y: tensor<f32> }",
      "a region of 2 blocks",
    ),
  ],
)
def test_unreadable(source, message):
  with pytest.raises(ArtifactError, match=message):
    stablehlo.load(source)


def test_other_dialects():
  text = "func.func @main(%x: f32) -> f32 { %y = arith.addf %x, %x : f32\n return %y : f32 }"
  with pytest.raises(LoweringError, match=r"'arith\.addf' cannot become operations of JAX"):
    stablehlo.load(text)


def test_no_artifact():
  with pytest.raises(TypeError, match="source = <class 'int'>: it is no artifact"):
    stablehlo.load(3)
  with pytest.raises(FileNotFoundError):
    stablehlo.load("no-such-file.bin")


def test_damaged_files():
  """Without MLIR, whose parser ends the process for some: the reader of the flatbuffer."""
  draw, data = random.Random(0), bytes(_SINE.serialize())
  outcomes = set()
  for _ in range(600):
    damaged = bytearray(data)
    if draw.random() < 0.3:
      damaged = damaged[: draw.randrange(len(damaged))]
    else:
      for _ in range(draw.choice((1, 3, 20))):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    try:
      export_files.read(bytes(damaged))
      outcomes.add("read")
    except export_files.NoExportError:
      outcomes.add("refused")
  assert outcomes == {"read", "refused"}


def test_untrusted():
  """A child process parses, and hands over what this process reads."""
  data = bytearray(_SINE.serialize())
  assert stablehlo.load(bytes(data), untrusted=True)(jnp.zeros(2)).shape == (2,)
  start = data.index(b"ML\xefR")
  data[start + 60 : start + 90] = bytes(30)
  with pytest.raises(ArtifactError, match="the source has"):
    stablehlo.load(bytes(data), untrusted=True)


@pytest.mark.one_python
def test_untrusted_takes_an_end(monkeypatch):
  """MLIR never ends with this file."""
  monkeypatch.setattr(children, "seconds", lambda size: 1)
  with pytest.raises(ArtifactError, match="MLIR does not parse within 1 seconds"):
    stablehlo.load(mutants.mutant(750).contents, untrusted=True)


@pytest.mark.parametrize(
  ("seed", "message"),
  [
    (1289, "no sizes where sizes stand"),
    (3517, "no sizes where sizes stand"),
    (2105, r"says that result 1 of its module is float32\[4\]; it is tensor<4xf16>"),
  ],
)
def test_changed_files(seed, message):
  with pytest.raises(ArtifactError, match=message):
    stablehlo.load(mutants.mutant(seed).contents)


def test_convert_of_a_call_of_an_exported_function():
  exported = export.deserialize(_SINE.serialize(vjp_order=1))
  converted = jax2tf.convert(lambda x: exported.call(x) + 1)
  assert converted(jnp.ones(2)).numpy().tolist() == (jnp.sin(jnp.ones(2)) + 1).tolist()


def test_convert_of_a_call_that_is_refused():
  with pytest.raises(LoweringError, match="it calls code outside of the artifact"):
    jax2tf.convert(_with_kernel().call)(jnp.ones(2))
