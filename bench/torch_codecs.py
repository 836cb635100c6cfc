#!/usr/bin/env python3
"""What encoding takes on one core: PyTorch's operations, as compressors in Python are made of them, beside gcomp_encode.

Both add the residual first and stop at what would be sent: places and values of top-k, packed bits, 8-bit levels, halves. gcomp
also packs places and finds numbers that are not finite. GB/s of gradient (4 bytes an element); medians of turns that alternate.

    make bench-torch        or: bench/torch_codecs.py [ELEMENTS [TURNS]]
"""
import argparse
import os
import subprocess
import sys
import time
from statistics import median

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("elements", nargs="?", type=int, default=1 << 24, help="2^24 if it is not given")
    parser.add_argument("turns", nargs="?", type=int, default=3, help="3 if it is not given")
    options = parser.parse_args()

try:
    import torch
except ImportError as missing:
    sys.exit(f"{missing}: apt-get install python3-torch")


def top_k(p):
    places = torch.topk(p.abs(), p.numel() // 100, sorted=False).indices
    return places, p[places]


def stochastic(p):
    step = p.abs().max() / 127
    return step, torch.floor(p / step + torch.rand_like(p)).to(torch.int8)


def nearest(p):
    step = p.abs().max() / 127
    return step, torch.round(p / step).to(torch.int8)


WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def one_bit(p):
    return p.abs().mean(), ((p >= 0).view(-1, 8) * WEIGHTS).sum(1, dtype=torch.uint8)


ROWS = [("topk", "torch.topk of 1 %", top_k), ("int:rounding=stochastic", "8 bits, torch.rand", stochastic),
        ("int", "8 bits, torch.round", nearest), ("sign", "1 bit, packed", one_bit),
        ("fp16", "torch.half", lambda p: p.half())]


def gcomp_rates(n):
    out = subprocess.run(["build/bench", "--n", str(n), "--filter", "encode"], check=True, capture_output=True, text=True).stdout
    rates = {}
    for row in map(str.split, out.splitlines()):
        if len(row) > 4 and row[1] == "encode":
            rates[row[0]] = float(row[4])  # of the last instruction set, which is the one a user gets
    return rates


def torch_rate(encode, g, e):
    times = []
    for _ in range(3):
        began = time.monotonic()
        encode(g + e)
        times.append(time.monotonic() - began)
    return 4e-9 * g.numel() / min(times)


def main():
    n, turns = options.elements, options.turns
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    g, e = torch.randn(n), torch.randn(n)
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(gcomp_rates(n))
        theirs.append({codec: torch_rate(encode, g, e) for codec, _, encode in ROWS})
    print(f"encode with residual, {n} elements, one core; GB/s of gradient")
    print(f"{'codec':26}{'gcomp':>8}{'PyTorch ' + torch.__version__:>20}  {'':22}{'times':>6}")
    for codec, what, _ in ROWS:
        a, b = median([o[codec] for o in ours]), median([t[codec] for t in theirs])
        print(f"{codec:26}{a:8.2f}{b:20.2f}  {what:22}{a / b:6.1f}")


if __name__ == "__main__":
    main()
