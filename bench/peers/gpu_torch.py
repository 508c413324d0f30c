"""PyTorch's side of bench/gpu.sh: the figures of bench_gpu and bench_train, as the same lines of JSON.

    python3 bench/peers/gpu_torch.py [PART...]      small_op chain gemm elementwise overlap train
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


PARTS = {f.__name__: f for f in (small_op, chain, gemm, elementwise, overlap, train)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
