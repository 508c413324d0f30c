"""The programs examples/{mlp,resnet18,char_gpt,lstm}.cc by PyTorch: nets_torch.py MODEL SEED OUT [STEPS or IMAGES]

The same models, first distributions, batches in the same order, optimisers and schedules; images change by the same
distribution. Writes OUT/loss.csv ("step,loss") and prints the final figure as the example does: the part of test images
that is right, or the perplexity of the whole held-out text.
"""
import gzip
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

model, seed, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
limit = int(sys.argv[4]) if len(sys.argv) > 4 else 0
torch.manual_seed(seed)
torch.set_num_threads(int(os.environ.get("SLUICE_THREADS", "2")))
MASK = 0xFFFFFFFF


def philox(key, low, high):
    """Philox4x32-10 of 64-bit halves: four words."""
    c, k = [low & MASK, low >> 32, high & MASK, high >> 32], [key & MASK, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


class Elements:
    def __init__(self, seed, stream, draw):
        w = philox(seed, draw, stream)
        self.key, self.high = w[1] << 32 | w[0], w[3] << 32 | w[2]

    def integer(self, i, low, high):
        w = philox(self.key, i >> 1, self.high)
        bits = w[3] << 32 | w[2] if i & 1 else w[1] << 32 | w[0]
        return low + (bits * (high - low) >> 64)


def permutation(seed, stream, draw, n):
    order, elements = list(range(n)), Elements(seed, stream, draw)
    for i in range(n - 1, 0, -1):
        j = elements.integer(i, 0, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def warmup_cosine(peak, warm, total, floor=0.0):
    def rate(step):
        if step < warm:
            return peak * min(step + 1, warm) / warm
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1, (step - warm) / (total - warm))))
    return rate


# ---- data ------------------------------------------------------------------------------------------------------------
def idx(name, folder="/usr/share/datasets/fashion-mnist"):
    path = os.path.join(folder, name)
    raw = gzip.open(path + ".gz").read() if os.path.exists(path + ".gz") else open(path, "rb").read()
    axes = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(axes)]
    return torch.tensor(np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape).copy())


def pixels(x):
    return ((x.double() / 255 - 0.286) / 0.353).float()


def augmented(x):
    moved = F.pad(x, (2, 2, 2, 2))
    result = torch.empty_like(x)
    for i in range(len(x)):
        a, b = torch.randint(0, 5, (2,)).tolist()
        image = moved[i, a:a + 28, b:b + 28]
        result[i] = image.flip(1) if torch.rand(()) < 0.5 else image
    return result


def images(batch, epochs, drop_last, change):
    x, y = idx("train-images-idx3-ubyte"), idx("train-labels-idx1-ubyte").long()
    if limit:
        x, y = x[:limit], y[:limit]
    for epoch in range(epochs):
        order = torch.tensor(permutation(seed, 0x6F72646572, epoch, len(x)))
        for i in range(0, len(x) - (batch - 1 if drop_last else 0), batch):
            rows = order[i:i + batch]
            yield pixels(change(x[rows])), y[rows]


def right(net, batch):
    x, y = idx("t10k-images-idx3-ubyte"), idx("t10k-labels-idx1-ubyte").long()
    with torch.no_grad():
        hits = sum(int((net(pixels(x[i:i + batch])).argmax(1) == y[i:i + batch]).sum()) for i in range(0, len(x), batch))
    return f"test images: {100 * hits / len(x):.2f} % right"


def text(folder="/usr/share/common-licenses"):
    files = sorted(f.path for f in os.scandir(folder) if f.is_file(follow_symlinks=False))
    data = b"".join(open(f, "rb").read() for f in files)
    tokens = torch.tensor(np.frombuffer(data, np.uint8).copy()).long()
    held = len(tokens) - len(tokens) // 10
    return tokens[:held], tokens[held:]


def windows(tokens, batch, length, epoch):
    n = (len(tokens) - length) // length
    order = permutation(seed, 0x77696E646F77, epoch, n)
    offset = Elements(seed, 0x6F6666736574, epoch).integer(0, 0, length)
    for i in range(0, n, batch):
        begins = [offset + w * length for w in order[i:i + batch]]
        yield (torch.stack([tokens[b:b + length] for b in begins]),
               torch.stack([tokens[b + 1:b + length + 1] for b in begins]))


def following(tokens, batch, length):
    row = (len(tokens) - 1) // batch
    for step in range(row // length):
        begins = [i * row + step * length for i in range(batch)]
        yield (torch.stack([tokens[b:b + length] for b in begins]),
               torch.stack([tokens[b + 1:b + length + 1] for b in begins]), step == 0)


# ---- models ----------------------------------------------------------------------------------------------------------
def conv_norm(i, o, k, s=1):
    conv = nn.Conv2d(i, o, k, s, k // 2, bias=False)
    nn.init.normal_(conv.weight, 0, math.sqrt(2 / (i * k * k)))
    return nn.Sequential(conv, nn.BatchNorm2d(o))


class ResBlock(nn.Module):
    def __init__(self, i, o, s=1):
        super().__init__()
        self.first, self.second = conv_norm(i, o, 3, s), conv_norm(o, o, 3)
        self.shortcut = conv_norm(i, o, 1, s) if s != 1 or i != o else None

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + (self.shortcut(x) if self.shortcut else x))


class ResNet18(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        blocks, i = [], width
        for k in range(4):
            blocks += [ResBlock(i, width << k, 2 if k else 1), ResBlock(width << k, width << k)]
            i = width << k
        self.stem, self.blocks, self.head = conv_norm(1, width, 3), nn.Sequential(*blocks), nn.Linear(8 * width, 10)

    def forward(self, x):
        return self.head(self.blocks(torch.relu(self.stem(x[:, None]))).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width=128, heads=4, p=0.1):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.drop1(self.proj(y))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.token, self.position, self.drop = nn.Embedding(256, width), nn.Embedding(64, width), nn.Dropout(0.1)
        self.blocks, self.norm = nn.Sequential(*[GptBlock() for _ in range(4)]), nn.LayerNorm(width)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, 0, 0.02)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return F.linear(self.norm(self.blocks(self.drop(self.token(x) + self.position(torch.arange(x.shape[1]))))),
                        self.token.weight)


class LstmModel(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(256, width), nn.LSTM(width, width), nn.Linear(width, 256)

    def forward(self, x, state):
        y, state = self.lstm(self.embedding(x).swapaxes(0, 1), state)
        return self.head(y.swapaxes(0, 1)), state


# ---- training --------------------------------------------------------------------------------------------------------
losses = []


def step(opt, rate, loss, parameters=None):
    for group in opt.param_groups:
        group["lr"] = rate(len(losses))
    opt.zero_grad()
    loss.backward()
    if parameters:
        nn.utils.clip_grad_norm_(parameters, 1.0)
    opt.step()
    losses.append(loss.detach())


def groups(net, decay):
    return [{"params": [p for p in net.parameters() if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0}]


if model == "mlp":
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    opt = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    for x, y in images(128, 3, False, lambda a: a):
        step(opt, lambda i: 0.05, F.cross_entropy(net(x), y))
    result = right(net.eval(), 1000)
elif model == "resnet18":
    net = ResNet18()
    opt = torch.optim.SGD(groups(net, 5e-4), 0.1, 0.9)
    steps = (limit or 60000) // 128
    rate = warmup_cosine(0.1, max(1, steps // 10), steps + 1)
    for x, y in images(128, 1, True, augmented):
        step(opt, rate, F.cross_entropy(net(x), y))
    result = right(net.eval(), 500)
elif model == "char_gpt":
    net, steps = Gpt(), limit or 600
    train, test = text()
    opt = torch.optim.AdamW(groups(net, 0.1), betas=(0.9, 0.95))
    rate, epoch = warmup_cosine(1e-3, max(1, steps // 12), steps + 1, 1e-4), 0
    while len(losses) < steps:
        for x, y in windows(train, 32, 64, epoch):
            if len(losses) < steps:
                step(opt, rate, F.cross_entropy(net(x).flatten(0, 1), y.flatten()), list(net.parameters()))
        epoch += 1
    net.eval()
    total = count = 0
    with torch.no_grad():
        n = (len(test) - 1) // 64
        for i in range(0, n, 64):
            x = torch.stack([test[b * 64:b * 64 + 64] for b in range(i, min(n, i + 64))])
            y = torch.stack([test[b * 64 + 1:b * 64 + 65] for b in range(i, min(n, i + 64))])
            total += float(F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum"))
            count += y.numel()
    result = f"held-out text: perplexity {math.exp(total / count):.3f} a character"
elif model == "lstm":
    net, steps = LstmModel(), limit or 600
    train, test = text()
    opt = torch.optim.Adam(net.parameters())
    rate, state = warmup_cosine(3e-3, max(1, steps // 12), steps + 1, 3e-4), None
    while len(losses) < steps:
        for x, y, first in following(train, 32, 64):
            if len(losses) == steps:
                break
            state = None if first else tuple(s.detach() for s in state)
            logits, state = net(x, state)
            step(opt, rate, F.cross_entropy(logits.flatten(0, 1), y.flatten()), list(net.parameters()))
    total = count = 0
    with torch.no_grad():
        for x, y, first in following(test, 16, 64):
            logits, state = net(x, None if first else state)
            total += float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
            count += y.numel()
    result = f"held-out text: perplexity {math.exp(total / count):.3f} a character"
else:
    sys.exit(f"no model {model}")
os.makedirs(out, exist_ok=True)
with open(os.path.join(out, "loss.csv"), "w") as file:
    file.write("step,loss\n" + "".join(f"{i + 1},{float(v):.9g}\n" for i, v in enumerate(losses)))
print(result)
