"""gan and rl of bench/cpu.sh in JAX, as cpu_torch_gan_rl.py defines them."""
import jax
import jax.numpy as jnp
from jax import lax, nn

from cpu_jax_common import adam, linear, normal


def layers(p, x, between):
    for one in p[:-1]:
        x = between(linear.apply(one, x))
    return linear.apply(p[-1], x)


def generate(p, z):
    return jnp.tanh(layers(p, z, nn.relu))


def criticise(p, x):
    return layers(p, x, lambda x: nn.leaky_relu(x, 0.2))[:, 0]


def gan():
    rule = adam(1e-4, 0.5, 0.9)

    def critic_loss(critic, real, fake, eps):
        slope = jax.grad(lambda mixed: criticise(critic, mixed).sum())(eps * real + (1 - eps) * fake)
        penalty = jnp.square(jnp.sqrt(jnp.square(slope).sum(1)) - 1).mean()
        scores = criticise(critic, jnp.concatenate((fake, real)))
        return 0.5 * (scores[:64].mean() - scores[64:].mean() + 10 * penalty)

    def update(state, data):
        generator, critic, of_generator, of_critic, average, key = state
        key, *keys = jax.random.split(key, 4)

        def critic_step(state, drawn):
            critic, of_critic = state
            zs, epss = drawn
            fakes = [generate(generator, z) for z in zs]
            loss, gradients = 0, None
            for real, fake, eps in zip(data, fakes, epss):
                loss, more = jax.value_and_grad(critic_loss)(critic, real, fake, eps)
                gradients = more if gradients is None else jax.tree.map(jnp.add, gradients, more)
            return rule.update(critic, gradients, of_critic), loss

        drawn = jax.random.normal(keys[0], (5, 2, 64, 64)), jax.random.uniform(keys[1], (5, 2, 64, 1))
        (critic, of_critic), losses = lax.scan(critic_step, (critic, of_critic), drawn, unroll=5)
        z = jax.random.normal(keys[2], (64, 64))
        gradients = jax.grad(lambda p: -criticise(critic, generate(p, z)).mean())(generator)
        generator, of_generator = rule.update(generator, gradients, of_generator)
        average = jax.tree.map(lambda a, w: a + 0.01 * (w - a), average, generator)
        return (generator, critic, of_generator, of_critic, average, key), losses[-1]

    generator = [linear(64, 256), linear(256, 256), linear(256, 784)]
    critic = [linear(784, 256), linear(256, 256), linear(256, 1)]
    average = jax.tree.map(jnp.copy, generator)
    state = generator, critic, rule.begin(generator), rule.begin(critic), average, jax.random.key(1)
    return update, state, (normal((2, 64, 784)),)


def rl():
    rule = adam(3e-3)

    def move(p, state, drawn):
        """The state after; the state before, whether it went right, and 0.98 where it did not fall."""
        uniform, fresh = drawn
        out = layers(p, state, jnp.tanh)
        right = uniform < nn.sigmoid(out[:, 1] - out[:, 0])
        x, dx, a, da = state.T
        sin, cos = jnp.sin(a), jnp.cos(a)
        m = (jnp.where(right, 10.0, -10.0) + 0.05 * da * da * sin) / 1.1
        dda = (9.8 * sin - m * cos) / (0.5 * (4 / 3 - 0.1 / 1.1 * cos * cos))
        ddx = m - 0.05 / 1.1 * dda * cos
        after = state + 0.02 * jnp.stack((dx, ddx, da, dda), 1)
        fell = (jnp.abs(after[:, 0]) > 2.4) | (jnp.abs(after[:, 2]) > 0.2095)
        return jnp.where(fell[:, None], fresh, after), (state, right, jnp.where(fell, 0.0, 0.98))

    def loss_of(p, states, rights, returns):
        out = layers(p, states, jnp.tanh)
        value, lead = out[:, 2], out[:, 1] - out[:, 0]
        advantage = returns - lax.stop_gradient(value)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        # Of two logits, log softmax of one is log sigmoid of its lead.
        chosen = nn.log_sigmoid(jnp.where(rights, lead, -lead))
        return 0.5 * jnp.square(value - returns).mean() - (chosen * advantage).mean()

    def update(state):
        p, of_p, poles, key = state
        key, first, second = jax.random.split(key, 3)
        drawn = jax.random.uniform(first, (64, 32)), jax.random.uniform(second, (64, 32, 4), minval=-0.05, maxval=0.05)
        poles, (states, rights, keeps) = lax.scan(lambda s, d: move(p, s, d), poles, drawn)

        def back(later, keep):
            later = 1 + keep * later
            return later, later

        returns = lax.scan(back, jnp.zeros(32), keeps, reverse=True)[1].ravel()
        gradients = jax.grad(loss_of)(p, states.reshape(-1, 4), rights.ravel(), returns)
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
        by = jnp.minimum(1, 0.5 / (norm + 1e-6))
        p, of_p = rule.update(p, jax.tree.map(lambda g: by * g, gradients), of_p)
        return (p, of_p, poles, key), returns.mean()

    p = [linear(4, 64), linear(64, 64), linear(64, 3)]
    poles = jax.random.uniform(jax.random.key(1), (32, 4), minval=-0.05, maxval=0.05)
    return update, (p, rule.begin(p), poles, jax.random.key(2)), ()
