"""Whether TensorFlow runs with oneDNN, as tests/conftest.py sets it if the environment does not.

TensorFlow enables it by default only on processors with AVX512_VNNI, AVX512_BF16 or AMX. Grappler
fuses more with it, and its kernels round in another order.
"""

from __future__ import annotations

import os

ENABLED = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"
