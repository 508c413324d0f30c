"""JAX's side of bench/cpu.sh: cpu_jax.py NAME SECONDS

The networks of bench/cpu_nets.cc, and gan and rl as cpu_torch_gan_rl.py says, in f32: a step is one compiled function
whose state is donated. Prints the median of the milliseconds of a step, and MiB: the process's peak less that after
imports and one small call. Threads are as many as the processor's cores that the process may use (taskset).
"""
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
from jax import lax, nn

import cpu_jax_gan_rl
import cpu_measure
from cpu_jax_common import adam, linear, normal, sgd, uniform

name, seconds = sys.argv[1], float(sys.argv[2])
jax.config.update("jax_default_prng_impl", "unsafe_rbg")
jax.jit(lambda x: x + 1)(jnp.ones(1)).block_until_ready()
before = cpu_measure.peak()


def cross_entropy(logits, labels):
    """By a one-hot mask, which is one fused loop; taking elements has a gradient that scatters."""
    hot = labels[:, None] == jnp.arange(logits.shape[1])
    return -jnp.sum(jnp.where(hot, nn.log_softmax(logits), 0)) / labels.size


def conv(w, x, stride=1, padding="VALID"):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_weight(i, o, k):
    return uniform((k, k, i, o), i * k * k)


def pool(x):
    """2x2; a row or column that is left over is dropped. The gradient of a windowed maximum takes longer."""
    n, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def mlp():
    def forward(p, s, x):
        return linear.apply(p[2], nn.relu(linear.apply(p[1], nn.relu(linear.apply(p[0], x))))), s

    return [linear(784, 256), linear(256, 128), linear(128, 10)], (), forward


def cnn():
    def forward(p, s, x):
        for w, b in p[:2]:
            x = pool(nn.relu(conv(w, x) + b))
        return linear.apply(p[3], nn.relu(linear.apply(p[2], x.reshape(len(x), -1)))), s

    convs = [(conv_weight(1, 32, 3), uniform((32,), 9)), (conv_weight(32, 64, 3), uniform((64,), 288))]
    return convs + [linear(1600, 128), linear(128, 10)], (), forward


def resnet18():
    """Parameters and running statistics are lists, in the order in which the layers are called."""
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
             (512, 512, 1)]
    layers = [(3, 64, 3)]
    for i, o, stride in sizes:
        layers += [(i, o, 3), (o, o, 3)] + ([(i, o, 1)] if stride != 1 else [])

    def forward(p, s, x):
        weights, running, new = iter(p[:-1]), iter(s), []

        def conv_norm(x, stride=1):
            w, scale, shift = next(weights)
            x = conv(w, x, stride, [(w.shape[0] // 2,) * 2] * 2)
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            old_mean, old_var = next(running)
            n = x.size // x.shape[3]
            new.append(lax.stop_gradient((0.9 * old_mean + 0.1 * mean, 0.9 * old_var + 0.1 * n / (n - 1) * var)))
            return (x - mean) * (lax.rsqrt(var + 1e-5) * scale) + shift

        x = nn.relu(conv_norm(x))
        for i, o, stride in sizes:
            y = conv_norm(nn.relu(conv_norm(x, stride)))
            x = nn.relu(y + (conv_norm(x, stride) if stride != 1 else x))
        return linear.apply(p[-1], x.mean((1, 2))), new

    p = [(conv_weight(i, o, k), jnp.ones(o), jnp.zeros(o)) for i, o, k in layers] + [linear(512, 10)]
    return p, [(jnp.zeros(o), jnp.ones(o)) for i, o, k in layers], forward


def gpt():
    width, heads = 192, 6
    ones = lambda: (jnp.ones(width), jnp.zeros(width))

    def norm(p, x):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p[0] + p[1]

    causal = jnp.tril(jnp.ones((128, 128), bool))

    def attend(q, k, v):
        """Faster on a processor than nn.dot_product_attention."""
        q, k, v = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))
        scores = q @ jnp.swapaxes(k, 2, 3) * (width // heads) ** -0.5
        return jnp.swapaxes(nn.softmax(jnp.where(causal, scores, -jnp.inf)) @ v, 1, 2)

    def block(p, x):
        b, n, w = x.shape
        qkv = jnp.split(linear.apply(p["qkv"], norm(p["norm1"], x)), 3, -1)
        y = attend(*(a.reshape(b, n, heads, w // heads) for a in qkv)).reshape(b, n, w)
        x = x + linear.apply(p["proj"], y)
        return x + linear.apply(p["down"], nn.gelu(linear.apply(p["up"], norm(p["norm2"], x)), approximate=False))

    def forward(p, s, tokens):
        x = p["token"][tokens] + p["position"]
        for one in p["blocks"]:
            x = block(one, x)
        return linear.apply(p["head"], norm(p["norm"], x)).reshape(-1, 96), s

    blocks = [{"norm1": ones(), "norm2": ones(), "qkv": linear(width, 3 * width), "proj": linear(width, width),
               "up": linear(width, 4 * width), "down": linear(4 * width, width)} for _ in range(4)]
    return {"token": normal((96, width)), "position": normal((128, width)), "blocks": blocks, "norm": ones(),
            "head": linear(width, 96)}, (), forward


def lstm():
    """The inputs' product is one, outside of the loop, and so is that of the recurrent weight's gradient, of which the
    loop backwards would add up 64. Unrolled loops are slower."""

    def cell(gates, c):
        i, f, g, o = jnp.split(gates, 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        return nn.sigmoid(o) * jnp.tanh(c), c

    @jax.custom_vjp
    def recurrent(w, gates):
        return forwards(w, gates)[0]

    def forwards(w, gates):
        def one(carry, gate):
            h, c = carry
            gate = gate + h @ w
            after = cell(gate, c)
            return after, (after[0], (h, gate, c))

        zero = jnp.zeros((gates.shape[1], 256))
        outputs, kept = lax.scan(one, (zero, zero), gates)[1]
        return outputs, (w, kept)

    def backwards(kept, d_outputs):
        w, (before, gates, cells) = kept

        def one(carry, this):
            d_h, d_c = carry
            gate, c, d_output = this
            d_gate, d_c = jax.vjp(cell, gate, c)[1]((d_h + d_output, d_c))
            return (d_gate @ w.T, d_c), d_gate

        zero = jnp.zeros_like(d_outputs[0])
        d_gates = lax.scan(one, (zero, zero), (gates, cells, d_outputs), reverse=True)[1]
        return jnp.einsum("tbi,tbo->io", before, d_gates), d_gates

    recurrent.defvjp(forwards, backwards)

    def forward(p, s, x):
        w, bias = p["again"]
        outputs = recurrent(w, linear.apply(p["in"], x) + bias)
        return linear.apply(p["head"], outputs).reshape(-1, 96), s

    return {"in": linear(96, 1024, 256), "again": linear(256, 1024), "head": linear(256, 96)}, (), forward


def labels(n, classes):
    return jax.random.randint(jax.random.key(2), (n,), 0, classes)


# Images are NHWC: NCHW takes half as long again.
NETS = {
    "mlp": (mlp, sgd(0.1), lambda: normal((64, 784)), (64, 10)),
    "cnn": (cnn, sgd(0.05), lambda: normal((64, 28, 28, 1)), (64, 10)),
    "resnet18": (resnet18, sgd(0.05), lambda: normal((16, 32, 32, 3)), (16, 10)),
    "gpt": (gpt, adam(1e-3, decay=0.01), lambda: labels(1024, 96).reshape(8, 128), (1024, 96)),
    "lstm": (lstm, adam(1e-3), lambda: normal((64, 16, 96)), (1024, 96)),
}


def training(make, rule, inputs, of_labels):
    p, s, forward = make()
    x, y = inputs(), labels(*of_labels)

    def loss_of(p, s, x, y):
        logits, s = forward(p, s, x)
        return cross_entropy(logits, y), s

    def update(state, x, y):
        p, s, o = state
        (loss, s), gradients = jax.value_and_grad(loss_of, has_aux=True)(p, s, x, y)
        p, o = rule.update(p, gradients, o)
        return (p, s, o), loss

    return update, (p, s, rule.begin(p)), (x, y)


OTHERS = {"gan": cpu_jax_gan_rl.gan, "rl": cpu_jax_gan_rl.rl}
update, state, data = OTHERS[name]() if name in OTHERS else training(*NETS[name])
update = jax.jit(update, donate_argnums=0)


def step():
    global state
    state, result = update(state, *data)
    return result.block_until_ready()


cpu_measure.report(step, seconds, before)
