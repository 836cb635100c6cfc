"""What the tests of gcomp.py share: a group of workers that are threads, and the harness, which speaks TAP."""
import array
import contextlib
import copy
import ctypes
import faulthandler
import hashlib
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "examples", "python")
sys.path.insert(0, HERE)
import numpy as np  # noqa: E402

import gcomp  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def raises(kind, call, *text):
    """The exception of that kind that a call raises; its text has all of these words."""
    try:
        call()
    except kind as error:
        for word in text:
            assert word in str(error), "%r is not in %r" % (word, str(error))
        return error
    raise AssertionError("no %s is raised" % kind)


def noise(n, seed=0, dtype="f"):
    return np.random.RandomState(seed).randn(n).astype(dtype)


class Threads(gcomp.Comm):
    """Workers that are threads of this process. Sums are made in the order of ranks."""

    allreduce_dtypes = ("int8", "int16", "int32")

    def __init__(self, group, rank):
        super().__init__(rank, group.world)
        self.group = group

    def swap(self, mine):
        self.group.box[self.rank] = mine
        self.group.barrier.wait()
        everyone = list(self.group.box)
        self.group.barrier.wait()
        return everyone

    def allreduce(self, data, dtype):
        numbers = np.asarray(data)
        everyone = self.swap(numbers.copy())
        numbers[:] = everyone[0]
        for other in everyone[1:]:
            numbers += other

    def allreduce_max(self, data):
        np.asarray(data)[:] = np.maximum.reduce(self.swap(np.array(data)))

    def allgather(self, mine):
        return self.swap(mine)

    def alltoall(self, parts):
        return [of[self.rank] for of in self.swap(parts)]


class Group:
    def __init__(self, world, seconds=120):
        self.world, self.box, self.barrier = world, [None] * world, threading.Barrier(world, timeout=seconds)

    def run(self, work):
        """work(comm) on all workers; returns what each returned or raised."""
        results = [None] * self.world

        def one(rank):
            try:
                results[rank] = work(Threads(self, rank))
            except BaseException as error:
                results[rank] = error
                if not isinstance(error, gcomp.Error):
                    self.barrier.abort()
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return results

    def all_well(self, work):
        results = self.run(work)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


CODECS = ("none", "sign", "topk:density=0.02", "powersgd:rank=2", "int:bits=4", "intsum:bits=16", "sketch:density=0.01", "eden", "fp16",
          "topk:density=0.02,global=1", "randomk:density=0.05", "terngrad:share=1")

MODEL = [("one", 400, 300), ("half", 300, 200, None, "bf16"), ("stack", 50, 60, 4), ("bias", 400)]
FIGURES = {"none": (1e-6, 1e-10, 0, 0), "topk:density=0.01": (2e-6, 2e-9, 1e-10, 0.05), "sign": (2e-6, 5e-10, 1e-10, 0.13),
           "int:bits=4": (2e-6, 1e-9, 2e-10, 0.53), "powersgd:rank=2": (2e-5, 3e-9, 0, 0)}


def python(code, *arguments, **environment):
    return subprocess.run([sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)


def tensors(gc):
    gc.add_tensor("w", 60, 40)
    gc.add_tensor("half", 50, 30, dtype="bf16")
    gc.add_tensor("b", 40)


def gradients(rank, step):
    wide = noise(1500, 1000 + 10 * step + rank)
    return [noise(2400, 10 * step + rank).reshape(60, 40), gcomp.from_float(np.empty(1500, np.uint16), wide), noise(40, rank)]


def as_bytes(grads):
    return b"".join(g.tobytes() for g in grads)


def free_port():
    """Below those that the system hands out to others."""
    while True:
        port = random.SystemRandom().randrange(10000, 32768)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def run_tests():
    """The exit status."""
    failed = 0
    for number, function in enumerate(TESTS, 1):
        name = function.__name__.replace("_", " ")
        try:
            function()
            print("ok %d - %s" % (number, name), flush=True)
        except BaseException:
            failed = 1
            import traceback
            print("not ok %d - %s" % (number, name))
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
    print("1..%d" % len(TESTS))
    return failed
