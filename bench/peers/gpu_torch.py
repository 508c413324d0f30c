"""PyTorch's side of bench/gpu.sh: the figures of bench_gpu and bench_train, as the same lines of JSON.

    python3 bench/peers/gpu_torch.py [PART...]      small_op chain gemm elementwise overlap operators train
"""
import json
import statistics
import sys
import time

import torch
from torch import nn


def show(part, what, unit, value, side="pytorch"):
    print(json.dumps({"side": side, "part": part, "what": what, "unit": unit, "value": float(f"{value:.5g}")}), flush=True)


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def timed(run):
    """The median of 7 runs with a wait for the device, after one that is not counted."""

    def whole():
        run()
        torch.cuda.synchronize()

    whole()
    return statistics.median(seconds(whole) for _ in range(7))


def small_op():
    a, b = torch.ones(16, device="cuda"), torch.full((16,), 0.5, device="cuda")

    def push(count):
        for _ in range(count):
            c = a + b

    push(2000)
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        times.append(seconds(lambda: push(2000)))
        torch.cuda.synchronize()
    show("small_op", "push", "ns", statistics.median(times) * 1e9 / 2000)
    show("small_op", "rate", "op/s", 20000 / timed(lambda: push(20000)))


def chain():
    b = torch.full((16,), 0.5, device="cuda")

    def run():
        c = b
        for _ in range(1000):
            c = c + b
        return c

    show("chain", "1000 ops", "ns", timed(run) * 1e9 / 1000)


def gemm():
    for name, dtype, tf32 in (("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for n in (1024, 2048, 4096, 8192):
            a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
            times = 50 if n < 4096 else 10
            spent = timed(lambda: [a @ b for _ in range(times)][-1])
            show("gemm", f"{name} {n}", "TFLOP/s", 2 * n**3 * times / spent * 1e-12)
    torch.backends.cuda.matmul.allow_tf32 = False


def elementwise():
    n = 1 << 27
    a, b = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
    for name, arrays, run in (("copy", 2, a.clone), ("exp", 2, a.exp), ("add", 3, lambda: a + b)):

        def ten():
            for _ in range(10):
                run()

        show("elementwise", name, "GB/s", n * 4 * arrays * 10 / timed(ten) * 1e-9)


def overlap():
    n, size = 4096, 1 << 26
    a, host = torch.randn(n, n, device="cuda"), torch.ones(size // 4).pin_memory()
    side = torch.cuda.Stream()

    def copies():
        with torch.cuda.stream(side):
            for _ in range(8):
                host.to("cuda", non_blocking=True)

    def products():
        for _ in range(8):
            a @ a

    copying, computing = timed(copies), timed(products)
    both = timed(lambda: (copies(), products()))
    show("overlap", "to the device", "GB/s", 8 * size / copying * 1e-9)
    show("overlap", "hidden part of the shorter", "%", 100 * (copying + computing - both) / min(copying, computing))


def operators():
    f = nn.functional
    tokens, words, width = 8192, 50257, 768

    def each(what, run):
        show("operators", what, "ms", timed(lambda: [run() for _ in range(5)][-1]) * 1e3 / 5)

    def gradient(inputs, run):
        for x in inputs:
            x.grad = None
        run().backward()
        return inputs[0].grad

    x = torch.rand(1 << 28, device="cuda")
    each("sum of 2^28", x.sum)
    each("argmax of 2^28", x.argmax)
    x = torch.rand(16384, 16384, device="cuda")
    each("sum of rows (16384, 16384)", lambda: x.sum(1))
    each("sum of columns (16384, 16384)", lambda: x.sum(0))
    each("transpose (16384, 16384)", lambda: x.t().contiguous())
    del x
    few = torch.randn(1000000, 10, device="cuda")
    each("softmax (1000000, 10)", lambda: few.softmax(-1))
    logits, labels = torch.randn(tokens, words, device="cuda"), torch.randint(words, (tokens,), device="cuda")
    each("softmax (8192, 50257)", lambda: logits.softmax(-1))
    each("cross_entropy (8192, 50257)", lambda: f.cross_entropy(logits, labels))
    logits.requires_grad_()
    each("cross_entropy with gradient", lambda: gradient([logits], lambda: f.cross_entropy(logits, labels)))
    del logits
    table = torch.randn(words, width, device="cuda", requires_grad=True)
    each("embedding (50257, 768) of 8192 with gradient", lambda: gradient([table], lambda: f.embedding(labels, table).sum()))
    x = torch.randn(tokens, width, device="cuda", requires_grad=True)
    w, b = torch.ones(width, device="cuda", requires_grad=True), torch.zeros(width, device="cuda", requires_grad=True)
    with torch.no_grad():
        each("layer_norm (8192, 768)", lambda: f.layer_norm(x, (width,), w, b))
    each("layer_norm with gradient", lambda: gradient([x, w, b], lambda: f.layer_norm(x, (width,), w, b).sum()))
    q, k, v = (torch.randn(8, 16, 1024, 64, device="cuda") for _ in range(3))
    each("attention (8, 16, 1024, 64), causal", lambda: f.scaled_dot_product_attention(q, k, v, is_causal=True))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    each("attention with gradients",
         lambda: gradient(leaves, lambda: f.scaled_dot_product_attention(*leaves, is_causal=True).sum()))
    halves = [x.bfloat16() for x in (q, k, v)]
    each("attention in bf16", lambda: f.scaled_dot_product_attention(*halves, is_causal=True))
    torch.backends.cudnn.allow_tf32 = False
    x, w = torch.randn(64, 64, 56, 56, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    each("conv2d (64, 64, 56, 56), 3x3", lambda: f.conv2d(x, w, padding=1))
    dx, dw = x.clone().requires_grad_(), w.clone().requires_grad_()
    each("conv2d with gradients", lambda: gradient([dx, dw], lambda: f.conv2d(dx, dw, padding=1).sum()))
    weight, bias = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    each("batch_norm (64, 64, 56, 56)", lambda: f.batch_norm(x, None, None, weight, bias, training=True))
    lines = torch.randn(1024, 4096, device="cuda")
    each("cumsum (1024, 4096)", lambda: lines.cumsum(-1))
    each("sort (1024, 4096)", lambda: lines.sort(-1))
    weights = torch.randn(100000000, device="cuda", requires_grad=True)
    adam = torch.optim.Adam([weights], lr=1e-3, fused=True)

    def step():
        adam.zero_grad()
        weights.sum().backward()
        adam.step()

    each("Adam of 1e8, gradient of a sum", step)


def train():
    # What Sluice does in f32 is not rounded to TF32, so neither is this.
    torch.backends.cudnn.allow_tf32 = False
    for batch in (64, 512):
        for side in ("pytorch", "torch.compile"):
            net = nn.Sequential(
                nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(),
                nn.Linear(128, 10)).cuda()
            sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            x, y = torch.randn(batch, 1, 28, 28, device="cuda"), torch.arange(batch, device="cuda") % 10
            forward = torch.compile(net) if side == "torch.compile" else net

            def steps(count):
                for _ in range(count):
                    sgd.zero_grad()
                    nn.functional.cross_entropy(forward(x), y).backward()
                    sgd.step()

            steps(20)
            show("train", f"batch {batch}", "images/s", 200 * batch / timed(lambda: steps(200)), side)


PARTS = {f.__name__: f for f in (small_op, chain, gemm, elementwise, overlap, operators, train)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
