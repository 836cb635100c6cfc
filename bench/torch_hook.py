#!/usr/bin/env python3
"""A whole step of PowerSGD, rank 2, four workers: PyTorch's hook over Gloo on loopback beside gcomp_exchange over threads.

The gradients are those of a ResNet-18, in one bucket, as DistributedDataParallel hands them to powerSGD_hook; the hook is called
directly, so that the time is its own. Each worker is a process with one thread; warm start and error feedback are on in both.
Both begin together and end when the last worker has the mean; gradients are written anew before each step, untimed. Medians of
turns that alternate, so that a change of the machine meets both.

    make bench-torch        or: bench/torch_hook.py [STEPS a turn [TURNS]]
"""
import argparse
import os
import re
import socket
import subprocess
import sys
import time
from statistics import median

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="?", type=int, default=10, help="of a turn; 10 if it is not given")
    parser.add_argument("turns", nargs="?", type=int, default=3, help="3 if it is not given")
    options = parser.parse_args()

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook
except ImportError as missing:
    sys.exit(f"{missing}: apt-get install python3-torch")

WORKERS, RANK = 4, 2
SHAPES = ([(64, 3, 7, 7)] + 4 * [(64, 64, 3, 3)] + [(128, 64, 3, 3)] + 3 * [(128, 128, 3, 3)] + [(128, 64, 1, 1)] +
          [(256, 128, 3, 3)] + 3 * [(256, 256, 3, 3)] + [(256, 128, 1, 1)] + [(512, 256, 3, 3)] + 3 * [(512, 512, 3, 3)] +
          [(512, 256, 1, 1), (1000, 512), (1000,)] + 10 * [(64,)] + 10 * [(128,)] + 10 * [(256,)] + 10 * [(512,)])


class Bucket:
    """What the hook asks of a bucket."""

    def __init__(self, shapes):
        sizes = [torch.Size(s).numel() for s in shapes]
        self.flat = torch.zeros(sum(sizes))
        self.views = [v.view(s) for v, s in zip(self.flat.split(sizes), shapes)]

    def buffer(self):
        return self.flat

    def gradients(self):
        return self.views

    def index(self):
        return 0

    def is_last(self):
        return True


def work(rank, port, steps, results):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    state = hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, use_error_feedback=True,
                               warm_start=True)
    bucket = Bucket(SHAPES)
    torch.manual_seed(rank)
    times = torch.zeros(steps, 2, dtype=torch.float64)
    for step in range(-4, steps):  # two steps uncompressed, two for memory and the warm start
        bucket.flat.normal_()
        dist.barrier()
        began = time.monotonic()
        hook.powerSGD_hook(state, bucket).wait()
        if step >= 0:
            times[step, 0], times[step, 1] = began, time.monotonic()
    everyone = [torch.zeros_like(times) for _ in range(WORKERS)]
    dist.all_gather(everyone, times)
    if rank == 0:
        everyone = torch.stack(everyone)
        took = everyone[:, :, 1].max(0).values - everyone[:, :, 0].min(0).values
        results.put((1e3 * took).tolist())
        results.put(state.total_numel_before_compression / state.total_numel_after_compression)
    dist.barrier()
    dist.destroy_process_group()


def torch_turn(steps):
    with socket.socket() as s:  # a free port
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    results = processes.get_context("spawn").SimpleQueue()
    processes.spawn(work, args=(port, steps, results), nprocs=WORKERS)
    return results.get(), results.get()


def gcomp_turn(steps):
    out = subprocess.run(["build/resnet", "--codec", f"powersgd:rank={RANK}", "--steps", str(steps)], check=True,
                         capture_output=True, text=True).stdout
    found = re.search(r"([\d.]+) ms a step .* ([\d.]+) times fewer", out)
    return float(found[1]), float(found[2])


def main():
    steps, turns = options.steps, options.turns
    theirs, ours = [], []
    for _ in range(turns):
        milliseconds, theirs_fewer = torch_turn(steps)
        theirs += milliseconds
        milliseconds, ours_fewer = gcomp_turn(3 * steps)
        ours.append(milliseconds)
    print(f"ResNet-18, {sum(torch.Size(s).numel() for s in SHAPES) / 1e6:.1f} million parameters, {WORKERS} workers, "
          f"rank {RANK}; {os.cpu_count()} processors")
    print(f"{'':40}{'ms a step':>10}{'fewer bytes':>13}")
    print(f"{'PyTorch ' + torch.__version__ + ', powerSGD_hook, Gloo':40}{median(theirs):10.1f}{theirs_fewer:13.1f}")
    print(f"{'gcomp, threads':40}{median(ours):10.1f}{ours_fewer:13.1f}")
    print(f"{median(theirs) / median(ours):.1f} times as fast")


if __name__ == "__main__":
    main()
