"""PyTorch's side of bench/pipeline.sh: the quickstart's network on made-up images, as a pipeline of two processes.

    pipeline_torch.py STAGES SCHEDULE MICROBATCHES BATCH STEPS

Prints the images a second of STEPS steps, after a third as many to warm up. STAGES 1 is one process that runs the
microbatches one after the other, without a pipeline (SCHEDULE is not looked at). With 2 there are two processes of one
thread each, which send by gloo, and SCHEDULE is gpipe or 1f1b (one stage a process), or interleaved-zb or zbv (two).
Each process steps its own weights, as PyTorch's tutorials do: there is no gate.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules

torch.set_num_threads(1)


def make_layers():
    torch.manual_seed(1)
    return [nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU()),
            nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10))]


def make_batch(batch):
    torch.manual_seed(2)
    return torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10


def make_optimizer(modules):
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.01, momentum=0.9)


def timed(step, steps, batch):
    for _ in range(1 + steps // 3):
        step()
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if dist.is_initialized():
        dist.barrier()
    return steps * batch / (time.perf_counter() - start)


def one_device(microbatches, batch, steps):
    net = nn.Sequential(*make_layers())
    optimizer = make_optimizer([net])
    x, y = make_batch(batch)
    loss = nn.CrossEntropyLoss(reduction="sum")

    def step():
        for xs, ys in zip(x.chunk(microbatches), y.chunk(microbatches)):
            (loss(net(xs), ys) / batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    print(f"{timed(step, steps, batch):.1f}")


def process(rank, port, name, microbatches, batch, steps):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    layers = make_layers()
    if name in ("gpipe", "1f1b"):
        parts, mine = [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])], [rank]
    else:
        parts, mine = layers, ([rank, 3 - rank] if name == "zbv" else [rank, rank + 2])
    loss = nn.CrossEntropyLoss(reduction="sum")
    stages = [PipelineStage(parts[s], s, len(parts), torch.device("cpu")) for s in mine]
    make = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B,
            "interleaved-zb": schedules.ScheduleInterleavedZeroBubble, "zbv": schedules.ScheduleZBVZeroBubble}[name]
    schedule = make(stages if len(parts) == 4 else stages[0], microbatches,
                    loss_fn=lambda out, target: loss(out, target) / batch, scale_grads=False)
    optimizer = make_optimizer([parts[s] for s in mine])
    x, y = make_batch(batch)
    last = len(parts) - 1

    def step():
        schedule.step(*([x] if 0 in mine else []), **({"target": y} if last in mine else {}))
        optimizer.step()
        optimizer.zero_grad()

    speed = timed(step, steps, batch)
    if rank == 0:
        print(f"{speed:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    stages, name = int(sys.argv[1]), sys.argv[2]
    microbatches, batch, steps = map(int, sys.argv[3:])
    if stages == 1:
        one_device(microbatches, batch, steps)
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        mp.spawn(process, (port, name, microbatches, batch, steps), nprocs=2)
