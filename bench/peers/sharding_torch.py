"""PyTorch's side of bench/sharding.sh: sharding_torch.py ROUNDS STEPS LAYERS WIDTH VOCABULARY LENGTH BATCH

Two processes of one thread, joined by gloo, train the model of bench/sharding.cc: each a net of its own on half of the
batch ("two nets"), then one net by DistributedDataParallel, by fully_shard (FSDP2) and by tensor parallelism over
DTensor with a cut vocabulary (loss_parallel). Prints a line "side<TAB>ms of a step" for each round.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

HEADS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.size = width // HEADS

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, vocabulary, length):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if "norm" not in name and name.endswith("weight"):
                nn.init.normal_(p, std=0.02)
        self.out.weight = self.token.weight

    def forward(self, x):
        h = self.token(x) + self.position.weight
        for block in self.blocks:
            h = block(h)
        return self.out(self.norm(h)).flatten(0, 1)


def sides(args):
    layers, width, vocabulary, length, batch = args
    mesh = init_device_mesh("cpu", (2,))
    draw = torch.Generator().manual_seed(2)
    x, y = (torch.randint(vocabulary, (batch, length), generator=draw) for _ in range(2))
    mine = slice(dist.get_rank() * batch // 2, (dist.get_rank() + 1) * batch // 2)

    def made():
        torch.manual_seed(1)
        return Gpt(layers, width, vocabulary, length)

    def step(net, x, y, context=None):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

        def run():
            optimizer.zero_grad()
            if context:
                with context():
                    F.cross_entropy(net(x), y.flatten()).backward()
            else:
                F.cross_entropy(net(x), y.flatten()).backward()
            optimizer.step()

        return run

    yield "two nets", step(made(), x[mine], y[mine])
    yield "DDP", step(DistributedDataParallel(made()), x[mine], y[mine])
    net = made()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    yield "FSDP2", step(fully_shard(net, mesh=mesh), x[mine], y[mine])
    net = made()
    plan = {"token": RowwiseParallel(input_layouts=Replicate()), "out": ColwiseParallel(use_local_output=False)}
    for name in ("q", "k", "v", "up"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    for name in ("proj", "down"):
        plan[f"blocks.*.{name}"] = RowwiseParallel()
    net = parallelize_module(net, mesh, plan)
    net.out.weight = net.token.weight
    for block in net.blocks:
        block.size = width // HEADS
    yield "DTensor tp", step(net, x, y, loss_parallel)


def work(rank, port, rounds, steps, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    programs = list(sides(args))
    for turn in range(-1, rounds):
        for name, step in programs:
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            dist.barrier()
            if rank == 0 and turn >= 0:
                print(f"{name}\t{1e3 * (time.perf_counter() - start) / steps:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:]]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, numbers[0], numbers[1], numbers[2:]), nprocs=2)
