"""Primitives that have no graph lowering: the reason, and what a user can do."""

from jax2tf.errors import ACROSS_DEVICES
from jax2tf.registry import UNSUPPORTED

_KERNEL = (
  "its body is a compiled kernel, not JAX equations",
  "give the function a plain JAX path for export, or lower natively",
)
_HOST = (
  "it calls back into Python, which a TensorFlow graph cannot save",
  "remove this line, or do this in TensorFlow outside the converted function",
)
_STATE = (
  "it uses a mutable array created outside the function",
  "make it an argument of the function, and pass jax2tf.Ref(variable) there",
)
_TOKEN = (
  "it orders side effects, which the graph lowering does not support",
  "remove the ordered effect before conversion",
)

UNSUPPORTED.update(
  {
    **dict.fromkeys(
      [
        "all_gather",
        "all_gather_invariant",
        "all_gather_reduced",
        "all_to_all",
        "axis_index",
        "custom_partitioning",
        "pbroadcast",
        "ppermute",
        "psum_invariant",
        "psend",
        "precv",
        "pvary",
        "preduced",
        "ragged_all_to_all",
        "reduce_scatter",
        "reduced_vary_cast",
        "shard_map",
        "unreduced_psum",
        "unreduced_reduce_scatter",
        "pbroadcast_dynamic",
        "unreduced_pmax",
        "unreduced_pmin",
        *(
          f"{name}_{half}"
          for half in ("start", "done")
          for name in (
            "all_gather",
            "all_to_all",
            "pbroadcast",
            "ppermute",
            "psum",
            "reduce_scatter",
          )
        ),
        "all_gather_reduced_start",
        "psum_invariant_start",
        "unreduced_psum_start",
        "unreduced_reduce_scatter_start",
        "vary_unreduced_cast",
        "reduced_vary_cast_p",
        "vary_unreduced_cast_p",
      ],
      ACROSS_DEVICES,
    ),
    **dict.fromkeys(
      [
        "ffi_call",
        "core_map",
        "cudnn_fusion",
        "run_scoped",
        "multiple_of",
        "reciprocal",
        "scaled_matmul",
        "scaled_matmul_wrapper",
        "mosaic_gpu_p",
        "tpu_custom_call",
        "triton_kernel_call",
        "dot_product_attention_fwd",
        "dot_product_attention_fwd_wrapper",
        "dot_product_attention_bwd",
        "dot_product_attention_bwd_wrapper",
        "dot_product_attention_fp8_fwd",
        "dot_product_attention_fp8_fwd_wrapper",
        "dot_product_attention_fp8_bwd",
        "dot_product_attention_fp8_bwd_wrapper",
      ],
      _KERNEL,
    ),
    **dict.fromkeys(["host_local_array_to_global_array", "inspect_sharding"], _HOST),
    **dict.fromkeys(
      [
        "get",
        "swap",
        "addupdate",
        "new_ref",
        "freeze",
        "empty_ref",
        "create_linear",
        "pin",
        "unpin",
      ],
      _STATE,
    ),
    **dict.fromkeys(["after_all", "create_token"], _TOKEN),
    "call_tf": (
      "it is JAX's own call_tf, which only JAX's own convert takes into a graph",
      "use jax2tf.call_tf, or jax2tf.install() before the import, or lower natively with "
      "native_serialization=True",
    ),
    "custom_lin": (
      "JAX can't apply forward-mode differentiation (jvp) to a custom_vjp function",
      "ask a GradientTape for its gradient, or define it with jax.custom_jvp",
    ),
    "unreachable": ("this branch must never run", "remove the branch"),
  }
)
