"""Exports small PyTorch modules to StableHLO with torchax: python write_torch.py FILE.tar.xz

It needs torch (2.13.0 here), torchax (0.0.13) and JAX (0.10.2), and is no part of the tests: these
read what it wrote. Of each module the archive has `<name>.mlir.bc`, a portable artifact that takes
the weights and then the input, and `<name>.npz`: `w0`, `w1` ..., `x`, and PyTorch's result `y`.
"""

import io
import sys
import tarfile
import warnings

warnings.simplefilter("ignore")
import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

# torchax 0.0.13 lists overloads for named dimensions, which PyTorch 2.13 no longer has: it gets
# another overload of the op in their place, which is in its lists already.
_packet = type(torch.ops.aten.prod)
_overload = _packet.__getattr__


def _or_another(op, name):
  plain = name.replace("_names", "").replace("names_", "")
  if name in op.overloads() or name.startswith("_"):
    return _overload(op, name)
  return _overload(op, plain if plain in op.overloads() else op.overloads()[0])


_packet.__getattr__ = _or_another
import torchax.export  # noqa: E402
from torch._export.utils import _collect_all_valid_cia_ops, _is_preservable_cia_op  # noqa: E402

# PyTorch 2.13 decomposes these by itself, and refuses them in a table.
_table = torchax.decompositions.DECOMPOSITIONS
_taken = _collect_all_valid_cia_ops()
for _op in [op for op in _table if _is_preservable_cia_op(op) and op not in _taken]:
  del _table[_op]


class Residual(nn.Module):
  """Two blocks as those of a ResNet of torchvision."""

  def __init__(self):
    super().__init__()
    self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    self.pool = nn.MaxPool2d(3, 2, 1)
    self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    self.head = nn.Linear(8, 5)

  def forward(self, x):
    x = self.pool(self.stem(x))
    x = torch.relu(x + self.second(torch.relu(self.first(x))))
    return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
  """A layer of a transformer, with PyTorch's own attention."""

  def __init__(self):
    super().__init__()
    self.embed = nn.Embedding(40, 16)
    self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
    self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
    self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

  def forward(self, ids):
    x = self.embed(ids)
    rows, length, width = x.shape
    heads = self.qkv(self.first(x)).view(rows, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
    y = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
    x = x + self.out(y.permute(0, 2, 1, 3).reshape(rows, length, width))
    return torch.softmax(x + self.mlp(self.second(x)), -1)


class Recurrent(nn.Module):
  """A cell over the steps of a sequence, which export unrolls."""

  def __init__(self):
    super().__init__()
    self.cell, self.head = nn.GRUCell(4, 6), nn.Linear(6, 3)

  def forward(self, x):
    state = x.new_zeros(x.shape[0], 6)
    for step in range(x.shape[1]):
      state = self.cell(x[:, step], state)
    return self.head(state)


def modules():
  """{name: (module, input)}."""
  torch.manual_seed(0)
  convolutions = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, stride=2, groups=4),
    nn.Hardswish(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 5),
  )
  return {
    "cnn": (convolutions, torch.randn(2, 3, 16, 16)),
    "resnet": (Residual(), torch.randn(2, 3, 32, 32)),
    "encoder": (Encoder(), torch.randint(0, 40, (2, 7))),
    "recurrent": (Recurrent(), torch.randn(2, 5, 4)),
  }


def written(module, x):
  """(module, {name: array}) of one PyTorch module."""
  module = module.eval()
  with torch.no_grad():
    result = module(x)
  program = torch.export.export(module, (x,))
  weights, exported = torchax.export.exported_program_to_stablehlo(program)
  flat = jax.tree.leaves(weights, is_leaf=lambda leaf: isinstance(leaf, torch.Tensor))
  arrays = {
    f"w{i}": np.asarray(w.detach() if hasattr(w, "detach") else w) for i, w in enumerate(flat)
  }
  kept = np.array(exported.module_kept_var_idx)
  return exported.mlir_module_serialized, arrays | {
    "x": x.numpy(), "y": result.numpy(), "kept": kept,
  }  # fmt: skip


def main(path):
  """Writes the archive."""
  with tarfile.open(path, "w:xz") as archive:
    for name, (module, x) in modules().items():
      try:
        blob, arrays = written(module, x)
      except Exception as problem:
        print(name, type(problem).__name__, str(problem)[:300])
        continue
      values = io.BytesIO()
      np.savez(values, **arrays)
      for end, data in (("mlir.bc", blob), ("npz", values.getvalue())):
        member = tarfile.TarInfo(f"{name}.{end}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
      print(name, len(blob), len(values.getvalue()))


if __name__ == "__main__":
  main(sys.argv[1])
