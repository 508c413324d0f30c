"""PyTorch's side of bench/cpu.sh: cpu_torch.py NAME SECONDS [--compile] [--channels-last]

The networks of bench/cpu_nets.cc in f32, eager unless they are compiled. Prints the median of the milliseconds of a
step, and MiB: the process's peak less that after imports and one small call.
"""
import os
import sys

import torch
import torch._dynamo  # which an optimiser imports when the first is made
import torch.nn.functional as F
from torch import nn

import cpu_measure
import cpu_torch_gan_rl

name, seconds, compiled, last = sys.argv[1], float(sys.argv[2]), "--compile" in sys.argv, "--channels-last" in sys.argv
torch.set_num_threads(int(os.environ.get("SLUICE_THREADS", "2")))
torch.manual_seed(7)
empty = lambda x: x + 1
(torch.compile(empty) if compiled else empty)(torch.ones(1))
before = cpu_measure.peak()


def conv_norm(i, o, k, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))


class Residual(nn.Module):
    def __init__(self, i, o, s=1):
        super().__init__()
        self.first, self.second = conv_norm(i, o, 3, s), conv_norm(o, o, 3)
        self.shortcut = conv_norm(i, o, 1, s) if s != 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x), inplace=True)).add_(self.shortcut(x)), inplace=True)


class Block(nn.Module):
    def __init__(self, w, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj, self.up, self.down = nn.Linear(w, 3 * w), nn.Linear(w, w), nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, w)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(96, 192), nn.Embedding(128, 192)
        self.blocks, self.norm, self.head = nn.Sequential(*[Block(192, 6) for _ in range(4)]), nn.LayerNorm(192), nn.Linear(192, 96)

    def forward(self, t):
        x = self.token(t) + self.position(torch.arange(t.shape[1]))
        return self.head(self.norm(self.blocks(x))).view(-1, 96)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(96, 256), nn.Linear(256, 96)

    def forward(self, x):
        return self.head(self.lstm(x)[0]).view(-1, 96)


def resnet18():
    sizes = [(64, 64), (64, 64), (64, 128, 2), (128, 128), (128, 256, 2), (256, 256), (256, 512, 2), (512, 512)]
    return nn.Sequential(conv_norm(3, 64, 3), nn.ReLU(inplace=True), *[Residual(*s) for s in sizes],
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


sgd = lambda lr: lambda p: torch.optim.SGD(p, lr, momentum=0.9, foreach=True)
NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
            sgd(0.1), lambda: torch.randn(64, 784), (64, 10)),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3),
                                  nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(),
                                  nn.Linear(128, 10)), sgd(0.05), lambda: torch.randn(64, 1, 28, 28), (64, 10)),
    "resnet18": (resnet18, sgd(0.05), lambda: torch.randn(16, 3, 32, 32), (16, 10)),
    "gpt": (Gpt, lambda p: torch.optim.AdamW(p, 1e-3, fused=True), lambda: torch.randint(96, (8, 128)), (1024, 96)),
    "lstm": (Recurrent, lambda p: torch.optim.Adam(p, 1e-3, fused=True), lambda: torch.randn(64, 16, 96), (1024, 96)),
}


def training(make, rule, inputs, labels):
    net, x, y = make(), inputs(), torch.randint(labels[1], (labels[0],))
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimiser = rule(list(net.parameters()))
    loss = lambda x, y: F.cross_entropy(net(x), y)
    if compiled:
        loss = torch.compile(loss)

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss(x, y).backward()
        optimiser.step()

    return step


OTHERS = {"gan": cpu_torch_gan_rl.gan, "rl": cpu_torch_gan_rl.rl}
step = OTHERS[name](compiled) if name in OTHERS else training(*NETS[name])
cpu_measure.report(step, seconds, before)
