"""Two computations that XLA compiles into several objects. `loop SECONDS` runs one fusion in a loop."""

import sys
import time

import jax
import jax.numpy as jnp


@jax.jit
def damped_wave(x):
    return jnp.sin(x) * jnp.exp(-x * x) + jnp.sqrt(jnp.abs(x))


@jax.jit
def polynomial(x):
    return ((x * 3 + 1) * x - 2) * x


x = damped_wave(jnp.linspace(0.0, 1.0, 200_000))
print("%.3f" % float(jnp.max(x)), "%.3f" % float(polynomial(x)[1000]), flush=True)
if sys.argv[1:2] == ["loop"]:
    print("loops", flush=True)
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        damped_wave(x).block_until_ready()
