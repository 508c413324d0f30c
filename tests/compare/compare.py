"""What nets of ours computed (compare_nets) against PyTorch, in f64: python3 compare.py FOLDER

Outputs, gradients, 50 steps of optimisers and 60 rates of schedules within 1e-8 of the largest element. Lion and Lamb,
which PyTorch lacks, are the papers' algorithms; Muon is torch's in f64.
"""
import glob
import math
import os
import sys

import numpy
import safetensors.torch
import torch
import torch.nn.functional as F

TOLERANCE = 1e-8
torch.set_default_dtype(torch.float64)


class File:
    def __init__(self, path):
        self.arrays = dict(numpy.load(path))

    def set(self, name):
        return self.arrays["set." + name].item()

    def of(self, kind):
        return {k[len(kind) + 1:]: v for k, v in self.arrays.items() if k.startswith(kind + ".")}


def close(what, ours, theirs, worst):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else numpy.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} and {theirs.shape}"
    error = numpy.abs(ours - theirs).max(initial=0) / max(1.0, numpy.abs(theirs).max(initial=0))
    worst[0] = max(worst[0], float(error))
    assert error <= TOLERANCE, f"{what}: differs by {error}"


def attend(x, p, heads, kv, causal, prefix=""):
    batch, positions, width = x.shape
    size, queries = width // heads, heads // kv
    linear = lambda name, x: F.linear(x, p[f"{prefix}{name}.weight"], p.get(f"{prefix}{name}.bias"))
    rows = linear("qkv", x).reshape(batch, positions, kv, queries + 2, size)
    q = rows[:, :, :, :queries].permute(0, 2, 3, 1, 4).reshape(batch, heads, positions, size)
    k = rows[:, :, :, queries].permute(0, 2, 1, 3).repeat_interleave(queries, 1)
    v = rows[:, :, :, queries + 1].permute(0, 2, 1, 3).repeat_interleave(queries, 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return linear("proj", y.transpose(1, 2).reshape(batch, positions, width))


def attention(f, p, x):
    return {"y": attend(x["x"], p, int(f.set("heads")), int(f.set("kv_heads")), bool(f.set("causal")))}


def batch_norm(f, p, x):
    mean, var = p["running_mean"].detach().clone(), p["running_var"].detach().clone()
    y = F.batch_norm(x["x"], mean, var, p["weight"], p["bias"], training=True)
    return {"y": y, "after.running_mean": mean, "after.running_var": var}


def lstm(f, p, x):
    net = torch.nn.LSTM(p["weight_ih"].shape[1], p["weight_hh"].shape[1])
    y, (h, c) = torch.func.functional_call(net, {k + "_l0": v for k, v in p.items()},
                                           (x["x"], (x["h"][None], x["c"][None])))
    return {"y": y, "h": h[0], "c": c[0]}


def gru(f, p, x):
    net = torch.nn.GRU(p["weight_ih"].shape[1], p["weight_hh"].shape[1])
    y, h = torch.func.functional_call(net, {k + "_l0": v for k, v in p.items()}, (x["x"], x["h"][None]))
    return {"y": y, "h": h[0]}


def pooling(f, p, x):
    kernel, options = int(f.set("kernel")), {k: int(f.set(k)) for k in ("stride", "padding")}
    out = int(f.set("height")), int(f.set("width"))
    return {"max": F.max_pool2d(x["x"], kernel, **options), "avg": F.avg_pool2d(x["x"], kernel, **options),
            "adaptive_avg": F.adaptive_avg_pool2d(x["x"], out), "adaptive_max": F.adaptive_max_pool2d(x["x"], out)}


def convolution(function, options):
    return lambda f, p, x: {"y": function(x["x"], p["weight"], p.get("bias"), **{k: int(f.set(k)) for k in options})}


CONV = ("stride", "padding", "dilation", "groups")
LAYERS = {
    "linear": lambda f, p, x: {"y": F.linear(x["x"], p["weight"], p.get("bias"))},
    "conv1d": convolution(F.conv1d, CONV),
    "conv2d": convolution(F.conv2d, CONV),
    "conv_transpose1d": convolution(F.conv_transpose1d, CONV + ("output_padding",)),
    "conv_transpose2d": convolution(F.conv_transpose2d, CONV + ("output_padding",)),
    "layer_norm": lambda f, p, x: {"y": F.layer_norm(x["x"], p["weight"].shape, p["weight"], p["bias"])},
    "rms_norm": lambda f, p, x: {"y": F.rms_norm(x["x"], p["weight"].shape, p["weight"], eps=1e-6)},
    "group_norm": lambda f, p, x: {"y": F.group_norm(x["x"], int(f.set("groups")), p["weight"], p["bias"])},
    "batch_norm": batch_norm,
    "embedding": lambda f, p, x: {"y": F.embedding(x["tokens"], p["weight"]),
                                  "logits": F.linear(F.embedding(x["tokens"], p["weight"]), p["weight"])},
    "dropout": lambda f, p, x: {"y": x["x"] * x["mask"] / (1 - f.set("p"))},
    "attention": attention,
    "lstm": lstm,
    "gru": gru,
    "pooling": pooling,
}


def layer(name, f, worst):
    p = {k: torch.tensor(v, requires_grad=not k.startswith("running_")) for k, v in f.of("p").items()}
    wanted = f.of("g")
    x = {k: torch.tensor(v, requires_grad=k in wanted) for k, v in f.of("x").items()}
    y = LAYERS[name](f, p, x)
    for k, v in f.of("after").items():
        close("after." + k, v, y.pop("after." + k), worst)
    ours = f.of("y")
    assert set(ours) == set(y), f"{set(ours)} and {set(y)}"
    for k, v in ours.items():
        close("y." + k, v, y[k], worst)
    sum((y[k] * torch.tensor(c)).sum() for k, c in f.of("c").items()).backward()
    for k, v in wanted.items():
        close("g." + k, v, (p[k] if k in p else x[k]).grad, worst)


def rate(step):  # warmup_cosine(0.05, 10, 50, 0.01)
    if step < 10:
        return 0.05 * (step + 1) / 10
    return 0.01 + 0.04 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 40))


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of the paper."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1e-4, "weight_decay": 0.0})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.numpy()
                m = self.state[p].setdefault("m", numpy.zeros_like(g))
                w = p.detach().numpy()
                c = 0.9 * m + 0.1 * g
                w -= group["lr"] * (numpy.sign(c) + group["weight_decay"] * w)
                m *= 0.99
                m += 0.01 * g


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, with its phi(z) = z; a ratio of 1 where a norm is 0."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * p.grad
                v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * p.grad ** 2
                r = m / (1 - 0.9 ** t) / ((v / (1 - 0.999 ** t)).sqrt() + 1e-6) + group["weight_decay"] * p
                ratio = p.norm() / r.norm() if p.norm() > 0 and r.norm() > 0 else 1
                p -= group["lr"] * ratio * r


class Muon64(torch.optim.Optimizer):
    """torch.optim.Muon's formulas; torch computes its iteration in bf16."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.1})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - 0.95)
                x = p.grad.lerp(m, 0.95)
                tall = x.size(0) > x.size(1)
                x = x.T if tall else x
                x = x / x.norm().clamp(min=1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                x = x.T if tall else x
                with torch.no_grad():
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(x, alpha=-group["lr"] * math.sqrt(max(1, p.size(0) / p.size(1))))


OPTIMISERS = {
    "sgd": lambda g: torch.optim.SGD(g),
    "momentum": lambda g: torch.optim.SGD(g, momentum=0.9),
    "nesterov": lambda g: torch.optim.SGD(g, momentum=0.9, nesterov=True),
    "adam": lambda g: torch.optim.Adam(g),
    "adamw": lambda g: torch.optim.AdamW(g, betas=(0.9, 0.95)),
    "rms_prop": lambda g: torch.optim.RMSprop(g, momentum=0.5),
    "adagrad": lambda g: torch.optim.Adagrad(g),
    "lamb": Lamb,
    "adafactor": lambda g: torch.optim.Adafactor(g),
    "lion": Lion,
}
RATES = {"adafactor": 20}  # on both sides of its 1 / sqrt(t)


def optimiser(name, f, worst):
    p = {k: torch.tensor(v, requires_grad=k != "frozen") for k, v in f.of("p").items()}
    if name == "muon":
        optimisers = [Muon64([{"params": [p["weight"], p["wide"]]}]), torch.optim.SGD([{"params": [p["bias"]]}])]
    else:
        groups = [{"params": [p["weight"], p["wide"]], "weight_decay": 0.1}, {"params": [p["bias"]], "weight_decay": 0.0}]
        optimisers = [OPTIMISERS[name](groups)]
    gradients, norms = f.of("g"), f.of("norm")
    for step in range(50):
        for k in ("weight", "wide", "bias"):
            g = gradients.get(f"{k}.{step}")
            p[k].grad = None if g is None else torch.tensor(g)
        if norms:
            norm = torch.nn.utils.clip_grad_norm_([p[k] for k in ("weight", "wide", "bias")], 3.0)
            close(f"norm.{step}", norms[str(step)], norm, worst)
        for o in optimisers:
            for group in o.param_groups:
                group["lr"] = RATES.get(name, 1) * rate(step)
            o.step()
    for k, v in f.of("y").items():
        close(k, v, p[k], worst)


S = torch.optim.lr_scheduler
SCHEDULES = {
    "linear": lambda o: S.LinearLR(o, 1, 0.25, 40),
    "cosine": lambda o: S.CosineAnnealingLR(o, 59, 0.1),
    "step_decay": lambda o: S.StepLR(o, 7, 0.3),
    "exponential": lambda o: S.ExponentialLR(o, 0.9),
    "polynomial": lambda o: S.PolynomialLR(o, 40, 1.5),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 7, 2, 0.1),
    "restarts_alike": lambda o: S.CosineAnnealingWarmRestarts(o, 7),
    "one_cycle": lambda o: S.OneCycleLR(o, 2, 60),
    "one_cycle_other": lambda o: S.OneCycleLR(o, 2, 60, pct_start=0.41, div_factor=10, final_div_factor=50),
    "plateau": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=2, threshold=0.05, cooldown=3, min_lr=0.1),
    "plateau_absolute": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=2, threshold=0.05, threshold_mode="abs",
                                                      cooldown=3, min_lr=0.1),
}


def schedule(name, f, worst):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0, momentum=0.9)
    theirs, rates = SCHEDULES[name](optimiser), []
    losses = f.of("x").get("loss")
    for step in range(60):
        if losses is not None:
            theirs.step(losses[step])
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if losses is None and step < 59:
            theirs.step()
    close("rate", f.of("y")["rate"], rates, worst)
    if losses is not None:
        assert len(set(rates)) > 3, "the rate hardly falls"


def gpt(p, tokens):
    norm = lambda name, x: F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"])
    linear = lambda name, x: F.linear(x, p[name + ".weight"], p[name + ".bias"])
    x = p["token.weight"][tokens] + p["position.weight"][: tokens.shape[1]]
    for block in ("blocks.0.", "blocks.1."):
        x = x + attend(norm(block + "norm1", x), p, 5, 5, True, block + "attention.")
        x = x + linear(block + "down", F.gelu(linear(block + "up", norm(block + "norm2", x))))
    return norm("norm", x) @ p["token.weight"].T


def on_a_mesh(name, f, worst):
    """Four steps of a program for one device."""
    p = {k: torch.tensor(v, requires_grad=True) for k, v in f.of("p").items()}
    optimiser = torch.optim.AdamW(p.values(), lr=0.01, eps=1e-4, weight_decay=0.1)
    x, gradients, losses, norms = f.of("x"), f.of("g"), f.of("loss"), f.of("norm")
    for step in range(4):
        labels = torch.tensor(x[f"labels.{step}"]).flatten()
        logits = gpt(p, torch.tensor(x[f"tokens.{step}"])).flatten(0, 1)
        loss = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=0.1, reduction="sum")
        loss = loss / (labels >= 0).sum()
        optimiser.zero_grad()
        loss.backward()
        close(f"loss.{step}", losses[str(step)], loss, worst)
        for k, v in p.items():
            close(f"g.{k}.{step}", gradients[f"{k}.{step}"], v.grad, worst)
        close(f"norm.{step}", norms[str(step)], torch.nn.utils.clip_grad_norm_(p.values(), 0.5), worst)
        optimiser.step()
    assert set(f.of("y")) == set(p)
    for k, v in f.of("y").items():
        close(k, v, p[k], worst)


def files_both_ways(folder):
    """A state_dict from our file, and back with all numbers doubled."""
    state = safetensors.torch.load_file(os.path.join(folder, "net.safetensors"))
    net = torch.nn.ModuleDict({"up": torch.nn.Linear(3, 4), "norm": torch.nn.BatchNorm1d(4, dtype=torch.float32)}).float()
    rest = net.load_state_dict(state, strict=False)
    assert set(rest.missing_keys) <= {"norm.num_batches_tracked"}, rest.missing_keys
    assert all(k.startswith("layers.") for k in rest.unexpected_keys), rest.unexpected_keys
    safetensors.torch.save_file({k: 2 * v for k, v in state.items()}, os.path.join(folder, "back.safetensors"))


def event_files(folder):
    """What TensorBoard makes of a log: the steps that were made again count once. False without it."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return False
    events = EventAccumulator(os.path.join(folder, "board"))
    events.Reload()
    loss = [(e.step, e.value) for e in events.Scalars("loss")]
    expected = [(step, numpy.float32(1 / (step + 1))) for step in range(6)] + [(6, 600), (7, 700)]
    assert loss == expected, loss
    rate = [(e.step, e.value) for e in events.Scalars("rate")]
    assert rate == [(step, 0.5 * step) for step in range(6)], rate
    return True


CHECKS = {"optim": optimiser, "schedule": schedule, "mesh": on_a_mesh}


def main():
    files_both_ways(sys.argv[1])
    print("TensorBoard:", "event files are read" if event_files(sys.argv[1]) else "not installed, event files not read")
    files = sorted(glob.glob(os.path.join(sys.argv[1], "*.npz")))
    table = {}
    for path in files:
        name = os.path.basename(path)[:-4]
        parts = name.split(".")
        row = table.setdefault(name if parts[0] in CHECKS else parts[0], [0, [0.0], []])
        row[0] += 1
        try:
            CHECKS.get(parts[0], layer)(parts[1 if parts[0] in CHECKS else 0], File(path), row[1])
        except AssertionError as error:
            row[2].append(f"{name}: {error}")
    print(f"PyTorch {torch.__version__}, f64\n\n| | settings | largest difference |\n|---|---|---|")
    for name, (count, worst, wrong) in table.items():
        print(f"| {name} | {count} | {worst[0]:.1e} |" + ("  DIFFERS" if wrong else ""))
    wrong = [line for row in table.values() for line in row[2]]
    missing = [name for name in LAYERS if name not in table] + [n for n in OPTIMISERS if f"optim.{n}.fused" not in table]
    missing += [n for n in SCHEDULES if f"schedule.{n}" not in table]
    missing += ["mesh"] * (6 - sum(name.startswith("mesh.") for name in table))
    print("\n".join(wrong))
    print(f"{len(files)} files, {len(wrong)} differ, {len(missing)} missing")
    sys.exit(1 if wrong or missing or not files else 0)


main()
