"""All-reduces of f32 by gloo, for bench/collectives.sh: PyTorch's processes of one thread each on one machine.

  all_reduce_torch.py ROUNDS PLACES MIB...

Prints a line "MIB<TAB>milliseconds" for each round and size. A round is one all-reduce in place, between barriers, behind
two that are not counted.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, port, rounds, places, sizes):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(places))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for mebibytes in sizes:
        term = torch.ones(mebibytes << 18)
        for turn in range(-2, rounds):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(term)
            dist.barrier()
            if rank == 0 and turn >= 0:
                print(f"{mebibytes}\t{1e3 * (time.perf_counter() - start):.4f}", flush=True)
            term.fill_(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    rounds, places, *sizes = [int(text) for text in sys.argv[1:]]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, rounds, places, sizes), nprocs=places)
