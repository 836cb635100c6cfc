#!/usr/bin/env python3
"""What examples/python/gcomp.py costs over C: gcomp.encode of 2^24 floats, and an exchange of 100 tensors of 64 x 32.

The exchange is that of one worker alone, so that no transport is in it. Calls from C (bench/python.c) and from Python alternate, in one
process, on the same arrays, so that a change of the machine meets both. The table has processor time: the medians of both, and of the
differences of neighbours.

    make bench-python        or: bench/python.py [CODEC [PAIRS]]
"""
import array
import ctypes
import argparse
import os
import subprocess
import sys
import time
from statistics import median

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codec", nargs="?", type=str, default="int:bits=4", help="int:bits=4 if it is not given")
    parser.add_argument("pairs", nargs="?", type=int, default=101, help="101 if it is not given")
    options = parser.parse_args()

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, "examples", "python"))
import gcomp  # noqa: E402

N, TENSORS, ROWS, COLS = 2 ** 24, 100, 64, 32


def library():
    path = os.path.join(root, "build", "bench_python.so")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-DGCOMP_EXPORT", "-I" + root, os.path.join(root, "bench", "python.c"), gcomp.LIBRARY, "-o", path],
                   check=True)
    lib = ctypes.CDLL(path)
    size = ctypes.c_size_t
    lib.time_encode.restype, lib.time_encode.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_void_p, size] + 2 * [ctypes.c_void_p, size]
    lib.open_tensors.restype, lib.open_tensors.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int, size, size]
    lib.time_exchange.restype, lib.time_exchange.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_void_p]
    return lib


def pairs(c, python, count):
    """The medians, in milliseconds: C, Python, Python - C."""
    rows = []
    for i in range(-3, count):
        seconds = c()
        assert seconds >= 0
        began = time.thread_time()
        python()
        rows.append((seconds, time.thread_time() - began))
    rows = rows[3:]
    return [1e3 * median(column) for column in (*zip(*rows), [p - c for c, p in rows])]


def arrays(kind):
    """A vector of N floats, and views of the gradients of all tensors in it."""
    part = [float((i * 2654435761 % 2 ** 64 >> 7) % 2001 - 1000) for i in range(2 ** 16)]
    x = array.array("f", part) * (N // len(part))
    if kind == "numpy":
        import numpy
        x = numpy.array(x, numpy.float32)
    if kind == "torch":
        import torch
        x = torch.tensor(x, dtype=torch.float32)
    views = memoryview(x) if kind == "array" else x
    return x, [views[t * ROWS * COLS:(t + 1) * ROWS * COLS] for t in range(TENSORS)]


def main():
    text, count = options.codec, options.pairs
    lib, codec = library(), gcomp.Codec(text)
    raw = ctypes.addressof(codec._codec)
    out, scratch = bytearray(codec.bound(N)), bytearray(14 * N + 65536)  # GCOMP_SCRATCH
    buffers = [(ctypes.addressof((ctypes.c_char * len(b)).from_buffer(b)), len(b)) for b in (out, scratch)]
    print(f"{text}, {os.cpu_count()} processors; milliseconds: C, Python, Python - C")
    for kind in ("array", "numpy", "torch"):
        try:
            x, grads = arrays(kind)
        except ImportError as missing:
            print(f"{kind}: {missing}")
            continue
        place = gcomp._elements(x, "x", True)[0]
        c, p, more = pairs(lambda: lib.time_encode(raw, place, N, *buffers[0], *buffers[1]), lambda: gcomp.encode(codec, x, out=out), count)
        print(f"{kind:6} encode 2^24    {c:8.3f} {p:8.3f} {more:8.3f} = {100 * more / c:.1f} %")
        theirs = lib.open_tensors(text.encode(), TENSORS, ROWS, COLS)
        addresses = (ctypes.c_void_p * TENSORS)(*(place + 4 * t * ROWS * COLS for t in range(TENSORS)))
        with gcomp.open(codec, aggregate="gather") as gc:  # one worker, who encodes all the same
            for t in range(TENSORS):
                gc.add_tensor(f"t{t}", ROWS, COLS)
            c, p, more = pairs(lambda: lib.time_exchange(theirs, addresses), lambda: gc.exchange(grads), 3 * count)
        print(f"{kind:6} exchange 100   {c:8.3f} {p:8.3f} {more:8.3f}")


if __name__ == "__main__":
    main()
