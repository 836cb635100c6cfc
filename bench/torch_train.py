#!/usr/bin/env python3
"""One worker of the training of examples/train/train.c, made of PyTorch: Gloo's all-reduce, or PyTorch's powerSGD_hook over Gloo.

The network, its first weights, the batches, the learning rate, the momentum and the files written are those of examples/train/train.c.
The whole gradient is one bucket, and the hook is called directly, as in torch_hook.py, without DistributedDataParallel.
The hook begins with two uncompressed steps, the fewest it allows.

    bench/net.sh --transport torch --methods powersgd:rank=4        four workers on four hosts with slow links
"""
import argparse
import gzip
import os
import time

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

from torch_hook import Bucket

DATA = "/usr/share/datasets/fashion-mnist/train-%s.gz"
BATCH, SEED, EXACT_STEPS = 64, 1, 2
u64 = numpy.uint64


def mix(x):
    """train_mix of examples/train/train_data.h, of an array."""
    x = x + u64(0x9E3779B97F4A7C15)
    x = (x ^ x >> u64(30)) * u64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> u64(27)) * u64(0x94D049BB133111EB)
    return x ^ x >> u64(31)


def first_weights(layer, inputs, outputs):
    """train_net_init of examples/train/train_net.h."""
    bits = mix(mix(numpy.array([SEED + layer], u64)) ^ numpy.arange(inputs * outputs, dtype=u64))
    u = ((bits >> u64(40)).astype(float) + 0.5) / 2**24
    v = (bits >> u64(16) & u64(0xFFFFFF)).astype(float) / 2**24
    normal = numpy.sqrt(-2 * numpy.log(u)) * numpy.cos(2 * numpy.pi * v)
    return torch.from_numpy(normal.reshape(inputs, outputs) * (2 / inputs) ** 0.5).float()


def read(name, offset):
    with gzip.open(DATA % name) as file:
        return torch.frombuffer(bytearray(file.read())[offset:], dtype=torch.uint8)


def interface(name):
    with open(f"/sys/class/net/{name}/statistics/tx_bytes") as file:
        return int(file.read())


def arguments():
    parser = argparse.ArgumentParser()
    for name, kind in (("method", str), ("rank", int), ("root", str), ("out", str), ("interface", str), ("hidden", str),
                       ("rate", float), ("steps", int), ("transport", str)):
        parser.add_argument("--" + name, type=kind, required=True)
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--no-pictures", action="store_true")
    parser.add_argument("--alone", action="store_true")
    return parser.parse_args()


def main():
    o = arguments()
    host, port = o.root.split(":")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, GLOO_SOCKET_IFNAME=o.interface)
    torch.set_num_threads(1)
    images = read("images-idx3-ubyte", 16).view(60000, 784)
    labels = read("labels-idx1-ubyte", 8)
    mean = images[::8].float().mean(0)
    dist.init_process_group("gloo", rank=o.rank, world_size=o.world)

    widths = [784, *map(int, o.hidden.split(",")), 10]
    shapes = [s for w in zip(widths, widths[1:]) for s in (w, w[1:])]
    parameters = [first_weights(i // 2, *s) if len(s) > 1 else torch.zeros(s) for i, s in enumerate(shapes)]
    momentum = [torch.zeros(s) for s in shapes]
    bucket = Bucket(shapes)
    for p, g in zip(parameters, bucket.views):
        p.requires_grad_().grad = g
    rank = int(o.method.partition("rank=")[2] or 0)
    state = rank and hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=EXACT_STEPS,
                                        use_error_feedback=True, warm_start=True)
    exact = 4 * bucket.flat.numel()
    summed = [exact] * EXACT_STEPS + [4 * sum(rank * sum(s) if len(s) > 1 else s[0] for s in shapes) if rank else exact] * o.steps
    sums = numpy.cumsum(summed[:o.steps])
    losses, seconds, computed, hooked = [], [], 0.0, 0.0
    dist.barrier()
    sent, began = interface(o.interface), time.monotonic()
    for step in range(o.steps):
        at = time.process_time()
        first = (step * o.world + o.rank) * BATCH
        batch = mix(mix(numpy.array([SEED + 1000], u64)) + numpy.arange(first, first + BATCH, dtype=u64)) % u64(60000)
        batch = torch.from_numpy(batch.astype(numpy.int64))
        x = (images[batch].float() - mean) / 90
        for i in (0, 2):
            x = torch.relu(torch.addmm(parameters[i + 1], x, parameters[i]))
        bucket.flat.zero_()
        loss = torch.nn.functional.cross_entropy(torch.addmm(parameters[5], x, parameters[4]), labels[batch].long())
        loss.backward()
        computed += time.process_time() - at
        if rank:
            at = time.process_time()
            hook.powerSGD_hook(state, bucket).wait()
            hooked += (time.process_time() - at) * (step >= EXACT_STEPS)  # the transport's with it
        else:
            dist.all_reduce(bucket.flat.div_(o.world))
        with torch.no_grad():
            torch._foreach_mul_(momentum, 0.9)
            torch._foreach_add_(momentum, bucket.views)
            torch._foreach_add_([p.detach() for p in parameters], momentum, alpha=-o.rate)
        losses.append(loss.item())
        seconds.append(time.monotonic() - began)
    sent = (interface(o.interface) - sent) / o.steps
    means = torch.tensor(losses)
    dist.all_reduce(means)
    means = (means / o.world).tolist()
    if o.rank == 0:
        os.makedirs(o.out, exist_ok=True)
        with open(o.out + "/demo.csv", "w") as file:
            print("method,step,loss,bytes,seconds", file=file)
            for i in range(o.steps):
                print(f"{o.method},{i + 1},{means[i]:.6g},{sums[i]},{seconds[i]:.6f}", file=file)
        with open(o.out + "/runs.csv", "w") as file:
            print("method,steps,reported,sent,received,calls,sent_by_interface,received_by_interface,compute_ms,"
                  "codec_ms,step_ms", file=file)
            bytes_of_step = 2 * (o.world - 1) / o.world * sums[-1] / o.steps # of a ring all-reduce
            print(f"{o.method},{o.steps},{bytes_of_step:.0f},{bytes_of_step:.0f},{bytes_of_step:.0f},0,{sent:.0f},0,"
                  f"{1e3 * computed / o.steps:.3f},{1e3 * hooked / max(o.steps - EXACT_STEPS, 1):.3f},{1e3 * seconds[-1] / o.steps:.3f}", file=file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
