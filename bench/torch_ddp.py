#!/usr/bin/env python3
"""One worker of bench/torch_net.sh: DistributedDataParallel over Gloo, with PyTorch's hooks and with those of gcomp_torch.py.

Network, first weights, batches, learning rate and momentum are those of torch_train.py and of examples/train/train.c. Each method has a model
of its own, and all start alike. Methods take turns of some steps, so that a change of the machine meets all of them. "alone" is the
computation of four processes at once without communication. Over Gloo all gradients are one bucket: with more of them, powerSGD_hook
starts the collectives of the buckets in other orders on other workers, and Gloo ends the program ("preamble.length"). Over gcomp.Sockets
the buckets are those that DistributedDataParallel makes without being told. Gradients lie in the bucket (gradient_as_bucket_view), so
that DistributedDataParallel copies them for no method. Rank 0 prints a line for each method:

    method, ms a step (median), processor ms a step, bytes that its interface sends a step, steps until the loss was 0.40 or -, the loss
    after all steps (mean of the last 10)
"""
import argparse
import os
import sys
import time
from statistics import median

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torch_train import BATCH, SEED, first_weights, interface, mix, read, u64

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "python"))
WIDTHS = (784, 1152, 1152, 10)
RATE, MOMENTUM, GOAL = 0.05, 0.9, 0.40


class Training:
    """A model with its optimizer and its way to communicate: "alone", "none", "fp16", "hook" (powerSGD_hook, rank 4), a codec, or
    "advise": what gcomp advises for the link, which it measures here and now. CODEC@sockets: over gcomp.Sockets, not over Gloo."""

    def __init__(self, method, rank, world):
        layers = []
        for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            with torch.no_grad():
                layers[-2].weight.copy_(first_weights(i, inputs, outputs).t())
                layers[-2].bias.zero_()
        self.model = torch.nn.Sequential(*layers[:-1])
        codec, _, transport = method.partition("@")
        if method != "alone":
            dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 20 if transport else 1 << 30
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=25 if transport else 1024, gradient_as_bucket_view=True)
        if method == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif method == "hook":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)  # the fewest it allows
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif method not in ("alone", "none"):
            import gcomp_torch
            state = gcomp_torch.State(self.model, codec, transport=transport or "gloo", bucket_bytes=1 << 20 if transport else 0,
                                      optimizer="sgd")
            self.model.register_comm_hook(state, gcomp_torch.hook)
            if state.advice and rank == 0:
                print("\n".join("advice: " + line for line in str(state.advice).splitlines()), file=sys.stderr)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.method, self.rank, self.world = method, rank, world
        self.steps, self.losses, self.seconds, self.processor, self.sent = 0, [], [], [], []

    def step(self, images, labels, mean):
        first = (self.steps * self.world + self.rank) * BATCH
        batch = mix(mix(numpy.array([SEED + 1000], u64)) + numpy.arange(first, first + BATCH, dtype=u64)) % u64(60000)
        batch = torch.from_numpy(batch.astype(numpy.int64))
        loss = torch.nn.functional.cross_entropy(self.model((images[batch].float() - mean) / 90), labels[batch].long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.steps += 1

    def turn(self, steps, data, counted):
        """Some steps. Those of turns that are not counted have no times, only losses."""
        dist.barrier()
        sent, processor = interface("eth0"), time.process_time()
        for _ in range(steps):
            began = time.monotonic()
            self.step(*data)
            if counted:
                self.seconds.append(time.monotonic() - began)
        if counted:
            self.processor.append((time.process_time() - processor) / steps)
        dist.barrier()  # what the others still send is of this turn; a barrier is some 100 bytes
        if counted:
            self.sent.append((interface("eth0") - sent) / steps)

    def losses_of_all(self):
        """Steps until the loss, the mean over the workers and the last 10 steps, was GOAL; that loss at the end. All workers call it."""
        means = torch.tensor(self.losses, dtype=torch.float64)
        dist.all_reduce(means)
        means = (means / self.world).tolist()
        return next((i for i in range(10, len(means) + 1) if sum(means[i - 10:i]) <= 10 * GOAL), None), sum(means[-10:]) / 10


def main():
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("root", str), ("methods", str), ("turns", int), ("steps", int)):
        parser.add_argument("--" + name, type=kind, required=True)
    o = parser.parse_args()
    host, port = o.root.split(":")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, GLOO_SOCKET_IFNAME="eth0")
    torch.set_num_threads(1)
    images = read("images-idx3-ubyte", 16).view(60000, 784)
    data = images, read("labels-idx1-ubyte", 8), images[::8].float().mean(0)
    dist.init_process_group("gloo", rank=o.rank, world_size=4)
    trainings = [Training(method, o.rank, 4) for method in o.methods.split()]
    for turn in range(-1, o.turns):  # the first turn is for connections, memory, and uncompressed first steps
        for training in trainings:
            training.turn(o.steps if turn >= 0 else 4, data, turn >= 0)
    for t in trainings:
        goal, loss = t.losses_of_all()
        if o.rank == 0:
            print("%s,%.2f,%.2f,%.0f,%s,%.4f" % (t.method, 1e3 * median(t.seconds), 1e3 * median(t.processor), median(t.sent), goal or "-",
                                                loss), flush=True)
    dist.barrier()
    os._exit(0)  # the groups of some trainings have threads that would wait


if __name__ == "__main__":
    main()
