"""What becomes other equations after JAX has differentiated: primitives of libraries, programs for
several devices, and kernels.

libraries: primitives without a lowering rule, by the JAX functions that define them.
retracing: evaluates a jaxpr by tracing its equations again, some of them by other functions.
meshes: shard_map as reshapes and one vmap for each axis of the mesh.
collectives: communication between devices, as operations on the values of all devices.
kernels: Pallas kernels as loops over their grids.
  calls: what the call of a kernel says.
  grids: the loop, and the dimensions of a grid whose steps are computed at the same time.
  blocks: what a step sees of an array.
  bodies: what a step computes.
"""
