"""What the tests of gcomp_torch.py share: a small network, its batches, trainings, and the list of scenarios."""
import array
import contextlib
import copy
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "examples", "python")
sys.path.insert(0, HERE)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import gcomp  # noqa: E402
import gcomp_torch  # noqa: E402

SCENARIOS = {"all": [], "dying": [], "dying over sockets": []}
CODECS = ("powersgd:rank=2", "topk:density=0.02", "int:bits=4", "sign", "none")


def scenario(function, group="all"):
    SCENARIOS[group].append(function)
    return function


class Net(nn.Module):
    """A convolution, two layers, and a shared weight."""

    def __init__(self, hidden=48):
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.one, self.two, self.three = nn.Conv2d(3, 16, 3), nn.Linear(16 * 36, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 10)
        self.two.bias = self.one.bias

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        return self.three(torch.relu(self.two(torch.relu(self.one(x)))))


def batch(rank, step, size=8):
    return torch.randn(size, 3, 8, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model, rank, step):
    return ((model(batch(rank, step)) - torch.arange(10.0)) ** 2).mean()


def made(codec, hook=gcomp_torch.hook, model=None, bucket_mb=0.02, **options):
    """A model under DistributedDataParallel in small buckets, which are rebuilt after the first step; its state; its optimizer."""
    unused = options.pop("find_unused_parameters", False)
    ddp = DistributedDataParallel(model or Net(), bucket_cap_mb=bucket_mb, find_unused_parameters=unused)
    state = gcomp_torch.State(ddp, codec, **{"timeout": 120, **options})
    ddp.register_comm_hook(state, hook)
    return ddp, state, torch.optim.SGD(ddp.parameters(), lr=0.02)


def flat(tensors):
    return torch.cat([t.detach().flatten().float() for t in tensors])


def everyone(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def same_everywhere(x):
    parts = everyone(x.contiguous())
    assert all(torch.equal(parts[0], part) for part in parts), "workers differ"
    return x


def train(ddp, optimizer, steps):
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(ddp, dist.get_rank(), step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), "%r is not in %r" % (word, str(error))
        return error
    raise AssertionError("no %s is raised" % (kind,))
