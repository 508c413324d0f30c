"""gan and rl of bench/cpu.sh in PyTorch. What they compute, on every side, in f32:

gan, WGAN-GP. Generator G 64-256-256-784, ReLU, tanh at its end; critic C 784-256-256-1, leaky ReLU of 0.2; all with
biases. Data: two batches of 64 x 784 normals, drawn once. A step is
  5 times: clear C's gradients; for each of the two batches, with z of 64 x 64 normals and eps of 64 x 1 uniforms drawn
    anew, fake = G(z) without gradients, mixed = eps * real + (1 - eps) * fake,
    penalty = 10 * mean((|| dC(mixed) / dmixed || - 1)^2), the norm over a row,
    loss = (mean(C(fake)) - mean(C(real)) + penalty) / 2, whose gradients add up over both; then Adam on C;
  once: loss = -mean(C(G(z))) for a new z of 64 x 64, gradients of G alone, Adam on G;
  once: average += 0.01 * (w - average) for all weights w of G; average begins as w.
Adam has rate 1e-4, betas 0.5 and 0.9, epsilon 1e-8.

rl, REINFORCE with a baseline on 32 cart-poles. Net 4-64-64-3, tanh after the first two layers; its outputs are the
logits of "left" and "right", and the baseline. A state is x, x', a, a' (a: the angle); with f = -10 for left and 10 for
right, g = 9.8, cart 1.0, pole 0.1, half length 0.5, t = 0.02, by Euler with the old derivatives:
  m = (f + 0.05 * a'^2 * sin a) / 1.1
  a'' = (g * sin a - m * cos a) / (0.5 * (4/3 - 0.1 * cos^2 a / 1.1)), x'' = m - 0.05 * a'' * cos a / 1.1
It fell if then |x| > 2.4 or |a| > 0.2095, and goes on from a state of uniforms in (-0.05, 0.05), as at the beginning of
the run; updates do not reset it. A step is
  64 moves without gradients: the net, an action drawn from the softmax of the two logits, the equations, resets;
  returns backwards: R = 1 + 0.98 * (0 if it fell in this move, else the next move's R; 0 after the last);
  once, on all 2048 states x 4: advantage = R - baseline (no gradient), less its mean, over its deviation (of n) + 1e-8;
    loss = -mean(log softmax(logits)[action] * advantage) + 0.5 * mean((baseline - R)^2);
    gradients times min(1, 0.5 / (their norm + 1e-6)); Adam of rate 3e-3, betas 0.9 and 0.999, epsilon 1e-8.
Random numbers of a step may be drawn at once, before it.
"""
import torch
import torch.nn.functional as F
from torch import nn


def gan(compiled):
    """Through compiled code no gradient can be taken twice; the inner one is then taken within, as a function's."""
    generator = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 784),
                              nn.Tanh())
    critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
                           nn.Linear(256, 1))
    adam = lambda net: torch.optim.Adam(net.parameters(), 1e-4, (0.5, 0.9), fused=True)
    of_generator, of_critic = adam(generator), adam(critic)
    weights = [w.detach() for w in generator.parameters()]
    average = [w.clone() for w in weights]
    data = [torch.randn(64, 784) for _ in range(2)]

    def slope(mixed):
        if compiled:
            return torch.func.grad(lambda m: critic(m).sum())(mixed)
        mixed.requires_grad_(True)
        return torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]

    def critic_loss(real, fake, eps):
        penalty = (slope(torch.lerp(fake, real, eps)).norm(dim=1) - 1).square().mean()
        with_fake, with_real = critic(torch.cat((fake, real))).view(2, 64).mean(1)
        return 0.5 * (with_fake - with_real + 10 * penalty)

    generator_loss = lambda z: -critic(generator(z)).mean()
    fakes = generator
    if compiled:
        critic_loss, generator_loss, fakes = map(torch.compile, (critic_loss, generator_loss, fakes))

    def step():
        for _ in range(5):
            of_critic.zero_grad(set_to_none=True)
            for real in data:
                with torch.no_grad():
                    fake = fakes(torch.randn(64, 64))
                loss = critic_loss(real, fake, torch.rand(64, 1))
                loss.backward()
            of_critic.step()
        critic.requires_grad_(False)
        of_generator.zero_grad(set_to_none=True)
        generator_loss(torch.randn(64, 64)).backward()
        of_generator.step()
        critic.requires_grad_(True)
        torch._foreach_lerp_(average, weights, 0.01)
        return loss

    return step


def rl(compiled):
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    optimiser = torch.optim.Adam(net.parameters(), 3e-3, fused=True)
    state = torch.empty(32, 4).uniform_(-0.05, 0.05)

    def move(state, uniform, fresh):
        """Each pole's next state, whether it went right, and 0.98 where it did not fall."""
        out = net(state)
        right = uniform < torch.sigmoid(out[:, 1] - out[:, 0])
        x, dx, a, da = state.unbind(1)
        sin, cos = a.sin(), a.cos()
        m = (torch.where(right, 10.0, -10.0) + 0.05 * da * da * sin) / 1.1
        dda = (9.8 * sin - m * cos) / (0.5 * (4 / 3 - 0.1 / 1.1 * cos * cos))
        ddx = m - 0.05 / 1.1 * dda * cos
        after = torch.add(state, torch.stack((dx, ddx, da, dda), 1), alpha=0.02)
        fell = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.2095)
        return torch.where(fell[:, None], fresh, after), right, torch.where(fell, 0.0, 0.98)

    def loss_of(states, rights, returns):
        out = net(states)
        value = out[:, 2]
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        # Of two logits, log softmax of one is log sigmoid of its lead.
        lead = out[:, 1] - out[:, 0]
        return 0.5 * F.mse_loss(value, returns) - (F.logsigmoid(torch.where(rights, lead, -lead)) * advantage).mean()

    if compiled:
        move, loss_of = torch.compile(move), torch.compile(loss_of)

    def step():
        nonlocal state
        states, rights, keeps, returns = [], [], [], []
        with torch.no_grad():
            uniform, fresh = torch.rand(64, 32), torch.empty(64, 32, 4).uniform_(-0.05, 0.05)
            for u, f in zip(uniform.unbind(), fresh.unbind()):
                states.append(state)
                state, right, keep = move(state, u, f)
                rights.append(right)
                keeps.append(keep)
            later, one = torch.zeros(32), torch.ones(())
            for keep in reversed(keeps):
                later = torch.addcmul(one, keep, later)
                returns.append(later)
            returns = torch.cat(returns[::-1])
        optimiser.zero_grad(set_to_none=True)
        loss_of(torch.cat(states), torch.cat(rights), returns).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=True)
        optimiser.step()
        return returns

    return step
