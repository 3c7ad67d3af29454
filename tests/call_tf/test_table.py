"""The functions of docs/reports/call-tf-table.md: a few of their derivatives, each way in one jit.
`make call-tf` has all."""

import pytest

from jax2tf.tools.lab import call_tf_table as table
from jax2tf.tools.lab.call_tf_rows import ROWS

WITHOUT_DERIVATIVES = {
  "tf.image.adjust_contrast": "No gradient defined",
  "tf.numpy_function": "PyFunc has no gradient",
}
WITHOUT_TANGENTS = {
  "tf.image.resize, bicubic": "No gradient defined",
  "tf.image.resize, bilinear": "ResizeBilinearGrad has no gradient",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", ROWS)
def test_row(name):
  ways = {"vmap": ["value", "grad 1"], "callback": ["value", "grad 2", "jvp 1"]}
  if (reason := (WITHOUT_DERIVATIVES | WITHOUT_TANGENTS).get(name)) is not None:
    ways = {"callback": ["value", "grad 1"] if name in WITHOUT_TANGENTS else ["value"]}
    with pytest.raises(LookupError, match=reason):
      table.answers(name, "eager", ["jvp 1"])
  expected = table.expected(name, sorted({d for derivatives in ways.values() for d in derivatives}))
  for way, derivatives in ways.items():
    assert (
      table.difference(table.answers(name, way, derivatives), {d: expected[d] for d in derivatives})
      < table.TOLERANCE
    )
