"""What becomes other equations after JAX has differentiated: primitives of libraries, and programs
for several devices.

libraries: primitives without a lowering rule, by the JAX functions that define them.
retracing: evaluates a jaxpr by tracing its equations again, some of them by other functions.
meshes: shard_map as reshapes and one vmap for each axis of the mesh.
collectives: communication between devices, as operations on the values of all devices.
"""
