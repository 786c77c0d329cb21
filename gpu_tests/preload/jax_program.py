# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""JAX; XLA_PYTHON_CLIENT_ALLOCATOR and its kin choose the allocator."""

import common
import jax
import jax.numpy as jnp
import numpy


@jax.jit
def train(weights, batch):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.square(jnp.tanh(batch @ w))))(weights)
    return weights - 0.1 * grad, loss


weights = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)) / 32


def step(i):
    global weights
    batch = jax.random.normal(jax.random.PRNGKey(i), (1024 * (1 + i % 4), 1024))
    weights, loss = train(weights, batch)
    common.add(numpy.asarray(loss).reshape(1))
    jax.block_until_ready(weights)


common.play(step, 40, per_round=40)
common.add(numpy.ascontiguousarray(numpy.asarray(weights)[:8]).reshape(-1))
common.finish()
