"""What cpu_jax.py and cpu_jax_gan_rl.py share: layers and rules of optimisers, on trees of arrays."""
import itertools
from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp

count = itertools.count()


def normal(shape):
    return jax.random.normal(jax.random.key(next(count)), shape)


def uniform(shape, fan_in):
    return jax.random.uniform(jax.random.key(next(count)), shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5)


def linear(i, o, fan_in=None):
    """Weight and bias of x @ weight + bias."""
    return uniform((i, o), fan_in or i), uniform((o,), fan_in or i)


linear.apply = lambda p, x: x @ p[0] + p[1]


class Rule(NamedTuple):
    begin: Callable  # parameters -> state
    update: Callable  # parameters, gradients, state -> parameters, state


def sgd(rate, momentum=0.9):
    def update(p, g, v):
        v = jax.tree.map(lambda v, g: momentum * v + g, v, g)
        return jax.tree.map(lambda p, v: p - rate * v, p, v), v

    return Rule(lambda p: jax.tree.map(jnp.zeros_like, p), update)


def adam(rate, b1=0.9, b2=0.999, decay=0.0):
    """With a decay it is AdamW."""

    def update(p, g, state):
        m, v, t = state
        t = t + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
        by, root = rate / (1 - b1**t), (1 - b2**t) ** -0.5
        new = lambda p, m, v: p * (1 - rate * decay) - by * m / (jnp.sqrt(v) * root + 1e-8)
        return jax.tree.map(new, p, m, v), (m, v, t)

    return Rule(lambda p: (jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.float32(0)), update)
