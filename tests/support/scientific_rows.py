"""Functions of scientific libraries, as (name, function, arguments): the rows of
docs/reports/models.md. A row imports its library."""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Row = tuple[str, Callable[..., Any], tuple[Any, ...]]

_RNG = np.random.default_rng(0)
_MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
_VECTOR = np.array([1.0, 2.0, 3.0])
_TALL = _RNG.standard_normal((5, 3))
_KEY = np.array([0, 7], np.uint32)


def lineax() -> Iterator[Row]:
  import lineax as lx

  def solve(solver: Any, tag: Any = ()) -> Any:
    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a, tag), b, solver).value

  yield "LU", solve(lx.LU()), (_MATRIX, _VECTOR)
  yield "Cholesky", solve(lx.Cholesky(), lx.positive_semidefinite_tag), (_MATRIX, _VECTOR)
  yield "QR, least squares", solve(lx.QR()), (_TALL, _RNG.standard_normal(5))
  yield "SVD", solve(lx.SVD()), (_MATRIX, _VECTOR)
  yield "CG", solve(lx.CG(1e-9, 1e-9), lx.positive_semidefinite_tag), (_MATRIX, _VECTOR)
  yield "GMRES", solve(lx.GMRES(1e-9, 1e-9)), (_MATRIX, _VECTOR)
  yield (
    "tridiagonal",
    lambda d, b: lx.linear_solve(lx.TridiagonalLinearOperator(d, d[1:] / 4, d[1:] / 5), b).value,
    (_VECTOR + 2, _VECTOR),
  )
  yield (
    "LU, vmap",
    jax.vmap(solve(lx.LU())),
    (np.stack([_MATRIX, _MATRIX + 1]), np.stack([_VECTOR, -_VECTOR])),
  )


def optimistix() -> Iterator[Row]:
  import optimistix as optx

  tolerance = {"rtol": 1e-9, "atol": 1e-9}
  start = jnp.array([0.5, 0.5])

  def cubic(y: Any, a: Any) -> Any:
    return y**3 - a

  def residuals(y: Any, a: Any) -> Any:
    return jnp.stack([y[0] - a[0], 10 * (y[1] - y[0] ** 2), y[1] * a[1]])

  def quartic(y: Any, a: Any) -> Any:
    return jnp.sum((y - a) ** 2) + jnp.sum(y**4)

  two = (np.array([1.0, 0.1]),)
  bounds = {"lower": 0.0, "upper": 4.0}
  yield (
    "root_find, Newton",
    lambda a: optx.root_find(cubic, optx.Newton(**tolerance), 1.5, a).value,
    (3.0,),
  )
  yield (
    "root_find, Bisection",
    lambda a: optx.root_find(cubic, optx.Bisection(**tolerance), 1.5, a, options=bounds).value,
    (3.0,),
  )
  fixed = optx.FixedPointIteration(**tolerance)
  yield (
    "fixed_point",
    lambda a: optx.fixed_point(lambda y, a: jnp.cos(a * y), fixed, 0.5, a).value,
    (0.8,),
  )
  yield (
    "least_squares, LM",
    lambda a: optx.least_squares(residuals, optx.LevenbergMarquardt(**tolerance), start, a).value,
    two,
  )
  yield (
    "minimise, BFGS",
    lambda a: optx.minimise(quartic, optx.BFGS(**tolerance), start, a).value,
    two,
  )


def diffrax() -> Iterator[Row]:
  import diffrax as dfx

  term = dfx.ODETerm(lambda t, y, k: -k * y + jnp.sin(t))

  def ode(solver: Any, term: Any = term, **options: Any) -> Any:
    return lambda y, k: (
      dfx.diffeqsolve(term, solver, 0.0, 1.0, 0.25, y, k, max_steps=64, **options).ys
    )

  def noise(y: Any, k: Any) -> Any:
    path = dfx.VirtualBrownianTree(
      0.0, 1.0, 1e-2, (3,), jax.random.wrap_key_data(jnp.asarray(_KEY))
    )
    control = dfx.ControlTerm(lambda t, y, k: 0.1 * jnp.eye(3), path)
    return ode(dfx.Euler(), dfx.MultiTerm(dfx.ODETerm(lambda t, y, k: -k * y), control))(y, k)

  args = (_VECTOR, 0.7)
  adaptive = dfx.PIDController(1e-6, 1e-6)
  yield "Euler", ode(dfx.Euler()), args
  yield (
    "Tsit5, adaptive, at times",
    ode(dfx.Tsit5(), stepsize_controller=adaptive, saveat=dfx.SaveAt(ts=np.linspace(0, 1, 5))),
    args,
  )
  yield (
    "Kvaerno3, implicit",
    ode(dfx.Kvaerno3(), stepsize_controller=dfx.PIDController(1e-4, 1e-4)),
    args,
  )
  yield "Dopri5, backsolve", ode(dfx.Dopri5(), adjoint=dfx.BacksolveAdjoint()), args
  yield "Heun, direct adjoint", ode(dfx.Heun(), adjoint=dfx.DirectAdjoint()), args
  yield "Euler, Brownian tree", noise, args


def numpyro() -> Iterator[Row]:
  import numpyro
  import numpyro.distributions as dist
  from numpyro.infer import Predictive, Trace_ELBO
  from numpyro.infer.hmc import hmc
  from numpyro.infer.util import log_density

  errors = np.array([15.0, 10.0, 16.0, 11.0])
  effects = np.array([28.0, 8.0, -3.0, 7.0])

  def schools(y: Any) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([4]).to_event(1))
    numpyro.sample("obs", dist.Normal(theta, errors).to_event(1), obs=y)

  def guide(y: Any) -> None:
    del y
    loc = numpyro.param("loc", jnp.zeros(4))
    numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("tau", dist.LogNormal(0, 1))
    numpyro.sample("theta", dist.Normal(loc, 1).to_event(1))

  def density(mu: Any, tau: Any, theta: Any, y: Any) -> Any:
    return log_density(schools, (y,), {}, {"mu": mu, "tau": tau, "theta": theta})[0]

  def elbo(loc: Any, y: Any) -> Any:
    return Trace_ELBO().loss(jax.random.PRNGKey(0), {"loc": loc}, schools, guide, y)

  def predictive(mu: Any, tau: Any) -> Any:
    samples = {"mu": mu, "tau": tau}
    return Predictive(schools, samples)(jax.random.PRNGKey(1), None)["obs"]

  def mixture(x: Any, w: Any) -> Any:
    parts = dist.MixtureSameFamily(
      dist.Categorical(logits=w), dist.StudentT(4.0, jnp.arange(3.0), 1.0)
    )
    return parts.log_prob(x) + dist.Gamma(jnp.exp(w), 1.0).log_prob(jnp.exp(x)).sum()

  def sampler(algorithm: str) -> Any:
    init, sample = hmc(lambda z: 0.5 * jnp.sum(z**2) + 0.1 * jnp.sum(z**4), algo=algorithm)

    def step(z: Any, key: Any) -> Any:
      more = {"max_tree_depth": 3} if algorithm == "NUTS" else {"num_steps": 4}
      state = init(
        z,
        num_warmup=0,
        step_size=0.2,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        rng_key=key,
        **more,
      )
      return sample(state).z

    return step

  yield "log_density", density, (1.0, 2.0, effects / 10, effects)
  yield "ELBO", elbo, (effects / 10, effects)
  yield "Predictive", predictive, (np.array([1.0, 2.0]), np.array([0.5, 1.5]))
  yield "mixture, gamma", mixture, (_VECTOR, _VECTOR / 3)
  yield "HMC step", sampler("HMC"), (_VECTOR, _KEY)
  yield "NUTS step", sampler("NUTS"), (_VECTOR, _KEY)


def blackjax() -> Iterator[Row]:
  import blackjax as bj

  def density(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)

  def step(algorithm: Any) -> Any:
    return lambda x, key: algorithm.step(key, algorithm.init(x))[0].position

  yield "HMC step", step(bj.hmc(density, 0.2, np.ones(3), 4)), (_VECTOR, _KEY)
  yield "NUTS step", step(bj.nuts(density, 0.2, np.ones(3), max_num_doublings=3)), (_VECTOR, _KEY)
  yield "MALA step", step(bj.mala(density, 0.1)), (_VECTOR, _KEY)


_PENDULUM = """<mujoco><option solver="Newton" iterations="4" ls_iterations="8"/><worldbody>
<body pos="0 0 1"><joint name="j" type="hinge" axis="0 1 0" damping="0.1"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.5"/>
<body pos="0 0 -0.5"><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/></body></body>
</worldbody><actuator><motor joint="j"/></actuator></mujoco>"""


def mjx() -> Iterator[Row]:
  import mujoco
  from mujoco import mjx as mjx_

  model = mjx_.put_model(mujoco.MjModel.from_xml_string(_PENDULUM), impl="jax")

  def forward(q: Any, v: Any) -> Any:
    return mjx_.forward(model, mjx_.make_data(model).replace(qpos=q, qvel=v)).qacc

  def step(q: Any, v: Any, control: Any) -> Any:
    data = mjx_.step(model, mjx_.make_data(model).replace(qpos=q, qvel=v, ctrl=control))
    return data.qpos, data.qvel

  yield "forward", forward, (np.array([0.3, -0.2]), np.array([0.1, 0.4]))
  yield "step", step, (np.array([0.3, -0.2]), np.array([0.1, 0.4]), np.array([0.5]))


def brax() -> Iterator[Row]:
  from brax import envs

  for backend in ("generalized", "spring"):
    env = envs.get_environment("inverted_pendulum", backend=backend)

    def step(q: Any, qd: Any, action: Any, env: Any = env) -> Any:
      state = env.pipeline_step(env.pipeline_init(q, qd), action)
      return state.q, state.qd

    yield (
      f"pipeline_step, {backend}",
      step,
      (np.array([0.1, 0.05]), np.array([0.2, -0.1]), np.array([0.3])),
    )


LIBRARIES: dict[str, Callable[[], Iterator[Row]]] = {
  "lineax": lineax,
  "optimistix": optimistix,
  "diffrax": diffrax,
  "numpyro": numpyro,
  "blackjax": blackjax,
  "mujoco-mjx": mjx,
  "brax": brax,
}


def row(library: str, name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  """The function of that name, and its arguments."""
  [found] = [(fun, args) for other, fun, args in LIBRARIES[library]() if other == name]
  return found
