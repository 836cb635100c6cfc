#!/usr/bin/env python3
"""What examples/python/gcomp.py costs over C: gcomp.encode of 2^24 floats, and an exchange of 100 tensors of 64 x 32.

The exchange is that of one worker alone, so that no transport is in it. Both sides run the same shared object, in turns that alternate;
the table has the medians of all turns, and the medians of the differences of neighbouring turns.

    make bench-python        or: bench/python.py [CODEC [TURNS]]
"""
import array
import os
import subprocess
import sys
import time
from statistics import median

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, "examples", "python"))
import gcomp  # noqa: E402

N, TENSORS, COUNT, REPEATS = 2 ** 24, 100, 64 * 32, 21


def milliseconds(call, repeats=REPEATS):
    times = []
    for i in range(-2, repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * median(times[2:])


def arrays(kind):
    """A vector of N floats, and views of COUNT of them."""
    part = [float((i * 2654435761 % 2 ** 64 >> 7) % 2001 - 1000) for i in range(2 ** 16)]
    x = array.array("f", part) * (N // len(part))
    if kind == "numpy":
        import numpy
        x = numpy.array(x, numpy.float32)
    if kind == "torch":
        import torch
        x = torch.tensor(x, dtype=torch.float32)
    views = memoryview(x) if kind == "array" else x
    return x, [views[t * COUNT:(t + 1) * COUNT] for t in range(TENSORS)]


def main():
    codec = sys.argv[1] if len(sys.argv) > 1 else "int:bits=4"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    program = os.path.join(root, "build", "bench_python")
    library = os.path.join(root, "build", "libgcomp.so")
    subprocess.run(["gcc", "-O2", "-I" + root, os.path.join(root, "bench", "python.c"), library, "-o", program], check=True)
    out = bytearray(gcomp.Codec(codec).bound(N))
    print(f"{codec}, {os.cpu_count()} processors; milliseconds: C, Python, Python - C")
    for kind in ("array", "numpy", "torch"):
        try:
            x, grads = arrays(kind)
        except ImportError as missing:
            print(f"{kind}: {missing}")
            continue
        with gcomp.open(codec) as gc:
            for t in range(TENSORS):
                gc.add_tensor(f"t{t}", 64, 32)
            rows = []
            for _ in range(turns):
                said = subprocess.run([program, codec, str(REPEATS)], check=True, capture_output=True, text=True).stdout
                rows.append((*map(float, said.split()), milliseconds(lambda: gcomp.encode(codec, x, out=out)),
                             milliseconds(lambda: gc.exchange(grads))))
        c_encode, c_exchange, encode, exchange = (median(column) for column in zip(*rows))
        more, later = median(e - c for c, _, e, _ in rows), median(e - c for _, c, _, e in rows)
        print(f"{kind:6} encode 2^24    {c_encode:8.3f} {encode:8.3f} {more:8.3f} = {100 * more / c_encode:.1f} %")
        print(f"{kind:6} exchange 100   {c_exchange:8.3f} {exchange:8.3f} {later:8.3f}")


if __name__ == "__main__":
    main()
