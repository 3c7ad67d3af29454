"""Calls that do not fit the polymorphic shapes: the right exception, in JAX's words, wherever the
call is made."""

from __future__ import annotations

import functools
import re
import tokenize

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.extend.core import InconclusiveDimensionOperation

import jax2tf

# name -> (polymorphic shapes, constraints, shapes of the arguments)
CALLS = {
  # fixed sizes
  "fixed": (["b, 3"], [], [(2, 4)]),
  "fixed_first": (["3, b"], [], [(2, 4)]),
  "fixed_only": (["3"], [], [(4,)]),
  "fixed_is_empty": (["b, 3"], [], [(2, 0)]),
  "fixed_of_second_argument": (["b", "b, 2"], [], [(3,), (3, 3)]),
  # rank
  "rank_above": (["b"], [], [(2, 4)]),
  "rank_below": (["b, c"], [], [(2,)]),
  "rank_of_scalar": (["b"], [], [()]),
  "rank_of_empty_spec": ([""], [], [(2,)]),
  "rank_and_repeated": (["a, b, a"], [], [(2, 4)]),
  "rank_of_second_argument": (["b", "b, c"], [], [(3,), (3,)]),
  # remainders
  "remainder": (["2*b"], [], [(3,)]),
  "remainder_4": (["4*b"], [], [(6,)]),
  "remainder_behind_repeated": (["b, b, 2*d"], [], [(3, 3, 5)]),
  "remainder_and_offset": (["3*b+1"], [], [(6,)]),
  "remainder_of_second_argument": (["b", "2*c"], [], [(3,), (5,)]),
  "remainder_of_difference": (["a, a+2*b"], [], [(2, 5)]),
  # inconsistent sizes
  "repeated": (["b, b"], [], [(3, 4)]),
  "repeated_before_product": (["b, b, 2*d"], [], [(3, 4, 4)]),
  "two_arguments": (["b, _", "b"], [], [(3, 2), (4,)]),
  "two_arguments_transposed": (["b, c", "c, b"], [], [(3, 2), (3, 2)]),
  "offset": (["b, b+1"], [], [(3, 5)]),
  "multiple": (["b, 2*b"], [], [(3, 5)]),
  "sum": (["a, b, a+b"], [], [(1, 2, 4)]),
  "product": (["a, b, a*b"], [], [(2, 3, 5)]),
  "floordiv": (["b, floordiv(b, 2)"], [], [(5, 3)]),
  "mod": (["b, mod(b, 3)+1"], [], [(5, 2)]),
  "max": (["a, b, max(a, b)"], [], [(3, 2, 2)]),
  "min": (["a, b, min(a, b)"], [], [(3, 2, 3)]),
  "power": (["a, a^2"], [], [(3, 8)]),
  "ellipsis": (["b, ...", "..., b"], [], [(3, 2), (2, 2)]),
  "three_arguments": (["b"] * 3, [], [(2,), (2,), (1,)]),
  # sizes below 1
  "zero": (["b"], [], [(0,)]),
  "zero_by_offset": (["b+1"], [], [(1,)]),
  "negative_by_offset": (["b+3"], [], [(2,)]),
  "zero_by_factor": (["2*b"], [], [(0,)]),
  "zero_by_difference": (["a, a+b"], [], [(2, 2)]),
  "negative_by_difference": (["a, a+b"], [], [(3, 2)]),
  "zero_of_second": (["a, b"], [], [(3, 0)]),
  # constraints
  "at_least": (["b"], ["b >= 4"], [(3,)]),
  "at_most": (["b"], ["b <= 4"], [(5,)]),
  "mod_constraint": (["b"], ["mod(b, 4) == 0"], [(6,)]),
  "ordered": (["a, b"], ["a >= b"], [(2, 3)]),
  "equal_to_multiple": (["a, b"], ["a == 2*b"], [(3, 2)]),
  "product_constraint": (["a, b, c"], ["a*b == c"], [(2, 3, 5)]),
  "second_of_two": (["a, b"], ["a >= 2", "b <= 3"], [(2, 4)]),
  "between_arguments": (["a", "b"], ["a <= b"], [(3,), (2,)]),
  "floordiv_constraint": (["b"], ["floordiv(b, 2) >= 2"], [(3,)]),
  "max_constraint": (["a, b"], ["max(a, b) <= 4"], [(2, 5)]),
  # JAX solves no products; the words are of its kind
  "solved_product_remainder": (["a, a*b"], [], [(2, 5)]),
  "solved_product_zero": (["a, a*b"], [], [(2, 0)]),
  "solved_product_inconsistent": (["a, a*b, b"], [], [(2, 6, 2)]),
  "solved_product_constraint": (["a, a*b"], ["b >= 3"], [(2, 4)]),
}
PRODUCTS = {
  "solved_product_remainder": "Division had remainder 1 when computing the value of 'b'",
  "solved_product_zero": "Expected value >= 1 for dimension variable 'b'",
  "solved_product_constraint": "constraint b >= 3. Expected 'b - 3' to be greater or equal to 0, "
  "but found -1",
}


def doubled(*xs):
  return [2 * x for x in xs]


def converted(name):
  specs, constraints, _ = CALLS[name]
  return jax2tf.convert(doubled, polymorphic_shapes=specs, polymorphic_constraints=constraints)


def arguments(name):
  return [np.ones(shape, np.float32) for shape in CALLS[name][2]]


def words_of_jax(name):
  """What jax.export says."""
  specs, constraints, _ = CALLS[name]
  args = arguments(name)
  with pytest.raises(ValueError) as error:
    symbolic = export.symbolic_args_specs(args, specs, constraints)
    export.export(jax.jit(doubled))(*symbolic).call(*args)
  return str(error.value)


def unknown_specs(name):
  """TensorSpecs that know the sizes that the polymorphic shapes know; None where the rank does not
  fit."""
  specs, constraints, shapes = CALLS[name]
  avals = []
  for spec, shape in zip(specs, shapes, strict=True):
    try:
      avals.append(export.symbolic_shape(spec, constraints=constraints, like=shape))
    except ValueError:  # a fixed size, which tf.function refuses itself
      return None
  if [len(a) for a in avals] != [len(s) for s in shapes]:
    return None
  return [tf.TensorSpec([d if isinstance(d, int) else None for d in a]) for a in avals]


DYNAMIC = [name for name in CALLS if unknown_specs(name)]
WAYS = {
  "eager": lambda f: f,
  "graph": lambda f: tf.function(f, autograph=False),
  "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_known_sizes(name):
  """Where the sizes are known, the call itself raises, so that XLA, which drops assertions, refuses
  as well."""
  function = converted(name)
  for way in WAYS.values():
    with pytest.raises(ValueError) as error:
      way(function)(*arguments(name))
    if name in PRODUCTS:
      assert PRODUCTS[name] in str(error.value)
    elif not name.startswith("solved_product"):
      assert str(error.value) == words_of_jax(name)


def without_numbers(words):
  """The parts of a message that stand between the numbers that TensorFlow prints in brackets."""
  start = words.split(" Obtained")[0].split(". Using")[0]
  return [part for part in re.split(r"\(?=? ?-?\d+\)?", start) if len(part) > 20]


@pytest.mark.parametrize("name", DYNAMIC)
def test_unknown_sizes(name):
  function = tf.function(converted(name), autograph=False).get_concrete_function(
    *unknown_specs(name)
  )
  with pytest.raises(tf.errors.InvalidArgumentError) as error:
    function(*map(tf.constant, arguments(name)))
  assert "Input shapes do not match the " in error.value.message
  if not name.startswith("solved_product"):
    message = error.value.message.replace("\\'", "'")
    assert all(part in message for part in without_numbers(words_of_jax(name))[:1]), message


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  """All functions of unknown sizes, through one SavedModel; what they return is not what is
  used."""
  module = tf.Module()
  for name in DYNAMIC:
    sizes = functools.partial(
      lambda function, *xs: [tf.size(y) for y in function(*xs)], converted(name)
    )
    setattr(module, name, tf.function(sizes, autograph=False, input_signature=unknown_specs(name)))
  path = str(tmp_path_factory.mktemp("bad_calls"))
  tf.saved_model.save(module, path)
  return tf.saved_model.load(path)


@pytest.mark.parametrize("name", DYNAMIC)
def test_after_reload(name, loaded):
  with pytest.raises(tf.errors.InvalidArgumentError, match="Input shapes do not match the "):
    getattr(loaded, name)(*map(tf.constant, arguments(name)))


@pytest.mark.parametrize(
  "name", ["remainder_behind_repeated", "two_arguments", "zero", "mod_constraint"]
)
def test_in_a_session(name, tmp_path):
  """As TensorFlow Serving loads a model and runs its signature."""
  module = tf.Module()
  module.f = tf.function(converted(name), autograph=False, input_signature=unknown_specs(name))
  tf.saved_model.save(module, str(tmp_path), signatures=signature_of(module.f))
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    model = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
    signature = model.signature_def["serving_default"]
    inputs = [signature.inputs[key].name for key in sorted(signature.inputs)]
    outputs = [tensor.name for tensor in signature.outputs.values()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Input shapes do not match the "):
      session.run(outputs, dict(zip(inputs, arguments(name), strict=True)))


def signature_of(function):
  """The concrete function, with results that have names."""
  specs = function.input_signature
  named = tf.function(
    lambda *xs: {f"y{i}": y for i, y in enumerate(function(*xs))}, autograph=False
  )
  return named.get_concrete_function(
    *[tf.TensorSpec(spec.shape, spec.dtype, f"x{i}") for i, spec in enumerate(specs)]
  )


def test_checks_run_when_nobody_uses_the_values():
  function = jax2tf.convert(lambda x: np.float32(1), polymorphic_shapes=["b, b"])
  concrete = tf.function(function, autograph=False).get_concrete_function(
    tf.TensorSpec([None, None])
  )
  assert concrete(tf.ones([2, 2])).numpy() == 1
  with pytest.raises(tf.errors.InvalidArgumentError, match="Found inconsistency"):
    concrete(tf.ones([2, 3]))


def test_the_gradient_is_checked_too():
  function = jax2tf.convert(
    lambda x: x.sum(), polymorphic_shapes=["b"], polymorphic_constraints=["mod(b, 2) == 0"]
  )

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([None])])
  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = function(x)
    return tape.gradient(y, x)

  assert gradient(tf.ones(4)).shape == 4
  with pytest.raises(tf.errors.InvalidArgumentError, match="mod"):
    gradient(tf.ones(3))


# ------------------------------------------------------------------------------- what cannot be
# converted

# spec -> words of JAX
GRAMMAR = [
  *(
    "a+",
    "a b",
    "a, ..., ...",
    "(a",
    "floordiv(a)",
    "foo(a)",
    "a/2",
    "2a",
    "a!",
    "1.5",
    "a**2",
    "a, (3)",
    "a,,b",
    "a*",
    "mod(a, )",
    "max(a",
  ),
  *("a, _, _", "..., a, b, c", "a = 3", "_a + ...", "-", "@"),
]


@pytest.mark.parametrize("spec", GRAMMAR)
def test_grammar(spec):
  x = np.ones((3, 4), np.float32)
  with pytest.raises((ValueError, tokenize.TokenError)) as theirs:
    export.symbolic_args_specs((x,), (spec,))
  with pytest.raises(ValueError, match="syntax error in symbolic shape") as ours:
    jax2tf.convert(doubled, polymorphic_shapes=[spec])(x)
  if isinstance(theirs.value, ValueError):
    assert str(ours.value) == str(theirs.value)
    assert any("args[0]" in note for note in ours.value.__notes__)


@pytest.mark.parametrize(
  "specs",
  [
    ["a", "b"],
    ["a"] * 3,
    {"x": "a"},
    [{"x": "a"}, None],
    [("a", "b"), "c"],
    [3, None],
    [None, 1.5],
  ],
  ids=str,
)
def test_trees_that_do_not_fit(specs):
  x = np.ones(3, np.float32)
  args = (
    [(x, x, x), x]
    if isinstance(specs, list) and isinstance(specs[0], tuple)
    else [x, x]
    if specs != ["a", "b"]
    else [x]
  )
  with pytest.raises(ValueError, match=r"polymorphic.shape"):
    jax2tf.convert(lambda *args: x, polymorphic_shapes=specs)(*args)


@pytest.mark.parametrize(
  "spec",
  [
    "a*b, c",
    "a*a",
    "mod(a, 2)",
    "max(a, 2)",
    "floordiv(a, 2)",
    "a*b, b*c, c*a",
    "a*b+a*c, a",
    "a-a*a",
  ],
)
def test_variables_that_cannot_be_solved(spec):
  x = np.ones((4,) * (1 + spec.count(",") - spec.count("(")), np.float32)
  with pytest.raises(
    ValueError,
    match=r"Cannot solve for values of dimension variables \{.*We can only solve linear "
    r"uni-variate",
  ) as ours:
    jax2tf.convert(doubled, polymorphic_shapes=[spec])(x)
  assert "args[0].shape" in str(ours.value)


def test_a_variable_that_is_in_no_argument():
  (unknown,) = export.symbolic_shape("unknown")
  with pytest.raises(ValueError, match="Invalid mixing of symbolic scopes"):
    jax2tf.convert(lambda x: x.reshape(unknown, -1), polymorphic_shapes=["b"])(
      np.ones(4, np.float32)
    )
  with pytest.raises(
    Exception,
    match="Encountered dimension variable 'b' that is not appearing in the shapes of the function "
    "arguments",
  ):
    jax2tf.convert(doubled, polymorphic_shapes=["a"], polymorphic_constraints=["b >= 2"])(
      np.ones(4, np.float32)
    )


CONTRADICTIONS = [
  ["b >= 5", "b <= 3"],
  ["b <= 0"],
  ["b >= 5", "b <= 6", "mod(b, 4) == 0"],
  ["mod(b, 2) == 0", "b <= 1"],
  ["a >= b + 1", "b >= a + 1"],
  ["a*b == c", "a <= 3", "b <= 3", "c >= 10"],
  ["a == 2*b", "b >= 3", "a <= 5"],
  ["floordiv(b, 2) == 3", "b >= 8"],
  ["max(a, b) == 3", "a >= 4"],
  ["a + b <= 1"],
]
CONSISTENT = [
  ["b >= 2", "mod(b, 4) == 0", "a*b == c"],
  ["b >= 5", "b <= 5"],
  ["a == b"],
  ["a*a == b", "b <= 9", "a >= 3"],
  ["b >= 1000000"],
  ["a >= b + 1", "b >= c + 1"],
  ["a*b == c", "a <= 3", "b <= 3", "c >= 9"],
  ["mod(a, b - 1) == 0", "b <= 4"],
]


@pytest.mark.parametrize("constraints", CONTRADICTIONS, ids=str)
def test_contradictory_constraints(constraints):
  with pytest.raises(
    ValueError, match=r"polymorphic_constraints = .*contradict each other"
  ) as error:
    jax2tf.convert(doubled, polymorphic_shapes=["b"], polymorphic_constraints=constraints)
  assert all(repr(constraint) in str(error.value) for constraint in constraints)


@pytest.mark.parametrize("constraints", CONSISTENT, ids=str)
def test_constraints_that_can_be_met(constraints):
  jax2tf.convert(doubled, polymorphic_shapes=["b"], polymorphic_constraints=constraints)


@pytest.mark.parametrize(
  "constraint", ["b > 2", "b", "b >= ", "b >= x!", "2 >= 3", "b + 1 == b", "mod(b) == 0"]
)
def test_bad_constraints(constraint):
  with pytest.raises((ValueError, tokenize.TokenError)):
    export.SymbolicScope([constraint])
  with pytest.raises(ValueError, match=r"onstraint|syntax error"):
    jax2tf.convert(doubled, polymorphic_shapes=["b"], polymorphic_constraints=[constraint])


def test_constraints_as_one_string():
  with pytest.raises(ValueError, match=r"sequence of strings.*b >= 2"):
    jax2tf.convert(doubled, polymorphic_shapes=["b"], polymorphic_constraints="b >= 2")


def test_scopes():
  (a,), (b,) = export.symbolic_shape("a"), export.symbolic_shape("b")
  x = np.ones(3, np.float32)
  with pytest.raises(ValueError, match="Invalid mixing of symbolic scopes"):
    jax2tf.convert(doubled, polymorphic_shapes=[(a,), (b,)])(x, x)
  with pytest.raises(ValueError, match="have a scope already"):
    jax2tf.convert(doubled, polymorphic_shapes=[(a,)], polymorphic_constraints=["a >= 2"])
  both = export.symbolic_shape("a, 2*b", constraints=["a >= 2"])
  function = jax2tf.convert(doubled, polymorphic_shapes=[both, both[:1]])
  assert [y.shape for y in function(np.ones((3, 4), np.float32), x)] == [(3, 4), (3,)]
  with pytest.raises(ValueError, match="constraint a >= 2"):
    function(np.ones((1, 4), np.float32), x[:1])
  with pytest.raises(ValueError, match="contradict each other"):
    jax2tf.convert(
      doubled, polymorphic_shapes=[export.symbolic_shape("a", constraints=["a >= 2", "a <= 1"])]
    )


# ------------------------------------------------------------------------------- what JAX cannot
# decide

# name -> (function, spec, the constraint that the error proposes)
UNDECIDED = {
  "greater": (lambda x: x if x.shape[0] > 3 else 2 * x, "b, c", "b >= 4"),
  "less": (lambda x: lax.top_k(x, 5)[0], "b, c", "c >= 5"),
  "at_least": (lambda x: lax.dynamic_slice(x, (0, 0), (4, 6)), "b, _", "b >= 4"),
  "at_most": (lambda x: x if x.shape[0] <= 4 else 2 * x, "b, c", "b <= 4"),
  "reshape": (lambda x: x.reshape(-1, 4), "b, c", "mod(b*c, - 4) == 0"),
  "reshape_3": (lambda x: x.reshape(2, -1, 6), "b, _", "mod(6*b, - 12) == 0"),
  "split": (lambda x: jnp.split(x, 2)[0], "b, c", "mod(b, 2) == 0"),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_jax_cannot_decide_names_the_constraint_that_would(name):
  fun, spec, constraint = UNDECIDED[name]
  x = np.arange(24, dtype=np.float32).reshape(4, 6)
  with pytest.raises((ValueError, InconclusiveDimensionOperation)) as theirs:
    export.export(jax.jit(fun))(*export.symbolic_args_specs((x,), (spec,)))
  with pytest.raises(type(theirs.value)) as ours:
    jax2tf.convert(fun, polymorphic_shapes=[spec])(x)
  assert str(ours.value) == str(theirs.value)
  assert any(
    f'polymorphic_constraints=["{constraint}"]' in note or f'["{constraint}"]' in note
    for note in ours.value.__notes__
  )
  np.testing.assert_array_equal(
    jax2tf.convert(fun, polymorphic_shapes=[spec], polymorphic_constraints=[constraint])(x), fun(x)
  )
