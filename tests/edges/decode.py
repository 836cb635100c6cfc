#!/usr/bin/env python3
"""A second decoder of gcomp's payloads, in plain Python, written from the chapter >>format of the manual in gcomp.h alone.

It shares nothing with the library. It is slow, and says in the order of the manual what a decoder does: read it beside the
manual if you write one in another language. tests/edges/check_vectors.py runs it over tests/edges/vectors and tests/edges/corpus.

    python3 tests/edges/decode.py FILE [N]     prints the floats of a payload, one a line; N: the number of elements it must have

As a module: decode(payload, n) returns a list of n floats, or raises Refused. Python 3.8 or newer, its standard library only.
"""
import math
import struct
import sys

seen = set()  # which alternatives of the format were taken: check_vectors.py asks whether the vectors cover all


class Refused(Exception):
    """The bytes are no payload that a decoder may accept."""


# ---------------- floats, as the manual's arithmetic: binary32, each operation rounded to nearest
# A Python float is a binary64. It holds each binary32, the product of two exactly, and their sum closely enough: 53 bits are
# more than 2 * 24 + 1, so that rounding to 53 bits and then to 24 gives the same as rounding to 24 at once.
def rounded(x):
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def times(x, y):
    return rounded(x * y)


def plus(x, y):
    return rounded(x + y)


def fused(x, y, z):
    """x * y + z, rounded once. Both roundings of `rounded(x * y + z)` would be one too many: the first one goes to the odd one of
    two neighbours instead, from which the second one cannot tell the exact sum."""
    product = x * y
    total = product + z
    part = total - product
    rest = (product - (total - part)) + (z - part)
    bits = struct.unpack("<q", struct.pack("<d", total))[0]
    if rest and not bits & 1:
        total = struct.unpack("<d", struct.pack("<q", bits + (1 if (rest > 0) == (total > 0) else -1)))[0]
    return rounded(total)


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


LARGEST = float_of(0x7F7FFFFF)
NF4 = [float_of(bits) for bits in (
    0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0x00000000,
    0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000)]


def small_float(code, e, m):
    """The number of a code of 1 + e + m bits: sign, exponent, mantissa."""
    exponent, mantissa, bias = code >> m & (1 << e) - 1, code & (1 << m) - 1, (1 << (e - 1)) - 1
    size = 2.0 ** (exponent - bias) * (1 + mantissa / 2 ** m) if exponent else 2.0 ** (1 - bias) * mantissa / 2 ** m
    return -size if code >> (e + m) & 1 else size


def refuse_special(code, e, m):
    if (e, m) == (4, 3) and code & 0x7F == 0x7F or (e, m) == (5, 2) and code & 0x7F >= 0x7C:
        raise Refused("a code of NaN or infinity")


# ---------------- bytes and bits
class Bytes:
    """Bytes, read from the front; whoever asks for more than there are is refused."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Refused("the body is shorter than its content")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, count):
        return int.from_bytes(self.take(count), "little")

    def float(self):
        return float_of(self.number(4))

    def scale(self):
        x = self.float()
        if not (0 <= x < math.inf) or math.copysign(1, x) < 0:
            raise Refused("a scale is NaN, infinite, negative or -0")
        return x

    def end(self):
        if self.at != len(self.data):
            raise Refused("the body is longer than its content")


class Bits:
    """A stream of bits in these bytes, which fills each byte from bit 0 on, or from bit 7 on."""

    def __init__(self, data, from_high=False):
        self.data, self.at, self.from_high = data, 0, from_high

    def take(self, count):
        first, self.at = self.at, self.at + count
        if self.at > 8 * len(self.data):
            raise Refused("a stream of bits ends early")
        piece = self.data[first >> 3:(self.at + 7) >> 3]
        if self.from_high:
            return int.from_bytes(piece, "big") >> (-self.at & 7) & (1 << count) - 1
        return int.from_bytes(piece, "little") >> (first & 7) & (1 << count) - 1

    def padding(self):
        if self.take(-self.at & 7):
            raise Refused("padding bits are not zero")

    def end(self):
        self.padding()
        if self.at != 8 * len(self.data):
            raise Refused("a stream of bits is followed by other bytes")

    def rice(self, r):
        """A Golomb-Rice code: ones, a zero, r low bits."""
        ones = 0
        while self.take(1):
            ones += 1
        return ones << r | self.take(r)


def signed(code, width):
    return code - (1 << width) if code >> (width - 1) else code


def codes(body, n, width, from_high=False):
    """n codes of `width` bits without gaps, padded to a byte behind the last one."""
    stream = Bits(body.take((n * width + 7) // 8), from_high)
    found = [stream.take(width) for _ in range(n)]
    stream.end()
    return found


# ---------------- the parameter word
BY_ROWS = None


class Word:
    """The parameter word: fields from bit 0 on, then zeros."""

    def __init__(self, word):
        self.rest = word

    def field(self, width):
        value = self.rest & (1 << width) - 1
        self.rest >>= width
        return value

    def block(self, n, may_have_rows=False):
        """B: the number of elements of a block. 0 means that the tensor is the block. BY_ROWS: blocks by rows."""
        log2 = self.field(5)
        if log2 == 1 and may_have_rows:
            return BY_ROWS
        if log2 and not 4 <= log2 <= 16:
            raise Refused("a block size out of range")
        return 1 << log2 if log2 else max(n, 1)

    def code(self, packed_only):
        c = self.field(1)
        if c and packed_only:
            raise Refused("values of a sparse method are packed")
        return c

    def end(self):
        if self.rest:
            raise Refused("reserved bits of the parameter word are not zero")


def blocks(n, size):
    return (n + size - 1) // size


# ---------------- CODED LEVELS
def table_of(body, tokens):
    """The symbol of each number: q or None for the escape, f and start."""
    escape = body.number(1)
    f = [0] + [body.number(1) for _ in range(tokens - 1)]
    f[0] = 512 - escape - 2 * sum(f)
    if f[0] < 0:
        raise Refused("symbols have more numbers than there are")
    symbols = [(0, f[0])] + [(sign * t, f[t]) for t in range(1, tokens) for sign in (1, -1)] + [(None, escape)]
    table = []
    for q, share in symbols:
        table += [(q, share, len(table))] * share
    return table


def part_of(body, m, levels, table, x):
    """The q of a part of m elements, and the table for the next one; x: the states."""
    tokens = body.number(1)
    if tokens > levels + 1:
        raise Refused("a table of more sizes than there are")
    if tokens:
        table = table_of(body, tokens)
    if table is None:
        raise Refused("there is no table before")
    seen.add("states: a new table" if tokens else "states: the table before")
    all_q = []
    while len(all_q) < m:
        q = []
        for i in range(min(len(x), m - len(all_q))):
            level, f, start = table[x[i] % 512]
            q.append(level)
            x[i] = f * (x[i] // 512) + x[i] % 512 - start
            if x[i] < 1 << 15:
                x[i] = x[i] << 16 | body.number(2)
        for i, level in enumerate(q):
            if level is None:
                q[i] = signed(body.number(1), 8)
                seen.add("states: escaped")
        all_q += q
    return all_q, table


def chunk_of_levels(body, m, width, levels):
    """The q of a chunk of m elements."""
    first, head, q, table = body.at, body.number(1), [], None
    if head == 0:
        seen.add("states: packed in %d bits" % width)
        return [signed(code, width) for code in codes(body, m, width)]
    if head != 1:
        raise Refused("an unknown form of a chunk")
    lanes = 32 if m >= 16384 else 16 if m >= 8192 else 8 if m >= 4096 else 4
    seen.add("states: %d" % lanes)
    seen.add("states of levels of %d bits" % width)
    x = [body.number(4) for _ in range(lanes)]
    if any(not 1 << 15 <= state < 1 << 31 for state in x):
        raise Refused("a state that is none")
    while len(q) < m:
        more, table = part_of(body, min(16384, m - len(q)), levels, table, x)
        q += more
    if any(state != 1 << 15 for state in x):
        raise Refused("a stream does not end with the first state")
    if body.at - first > (m * width + 7) // 8:
        raise Refused("a chunk is longer than packed codes are")
    return q


def levels_of(body, n, width, levels, coded):
    """n levels q, packed or coded."""
    if not coded or n == 0:
        return [signed(code, width) for code in codes(body, n, width)]
    ends, q = [body.number(8) for _ in range((n - 1) // 65536)], []
    if ends:
        seen.add("offsets of chunks")
    start = body.at
    while len(q) < n:
        q += chunk_of_levels(body, min(65536, n - len(q)), width, levels)
        if len(q) < n and ends[len(q) // 65536 - 1] != body.at - start:
            raise Refused("an offset is not where its chunk ends")
    if any(abs(x) > levels for x in q):
        raise Refused("a level above the number of levels")
    return q


# ---------------- bodies of block methods: each takes the word, n, the body, and whether its values are those of a sparse method
def scaled(n, block, scales, units):
    """The scale of the block of each element, times a number of its own."""
    return [times(scales[i // block], units[i]) for i in range(n)]


def none(word, n, body, sparse):
    return [body.float() for _ in range(n)]


def fp16(word, n, body, sparse):
    return [struct.unpack("<e", body.take(2))[0] for _ in range(n)]


def bf16(word, n, body, sparse):
    return [float_of(body.number(2) << 16) for _ in range(n)]


def blocks_of_bits(word, n, body, sparse):
    """The number of elements of each block, and whether the bits of each begin with a byte."""
    block = word.block(n, may_have_rows=not sparse)
    if block is not BY_ROWS:
        return [min(block, n - i) for i in range(0, n, block)], False
    if n == 0:
        return [], True
    row, before = body.number(4), body.number(4)
    if not 16 <= row <= 1 << 30 or before >= row:
        raise Refused("rows out of range")
    seen.add("rows from the beginning" if before == 0 else "rows from within")
    counts, i = [], 0
    while i < n:
        place = (i + before) % row
        counts.append(min(n - i, row - place, 65536 - place % 65536))
        seen.update({"rows of several blocks"} if row > 65536 else ())
        i += counts[-1]
    return counts, True


def bits_of_blocks(body, counts, by_rows):
    """(number of its block, bit) of each element."""
    number = [b for b, count in enumerate(counts) for _ in range(count)]
    found = [bit for count in counts for bit in codes(body, count, 1)] if by_rows else codes(body, sum(counts), 1)
    return zip(number, found)


def sign(word, n, body, sparse):
    counts, by_rows = blocks_of_bits(word, n, body, sparse)
    scales = [body.scale() for _ in counts]
    return [-scales[b] if bit else scales[b] for b, bit in bits_of_blocks(body, counts, by_rows)]


def onebit(word, n, body, sparse):
    counts, by_rows = blocks_of_bits(word, n, body, sparse)
    means = [(body.scale(), body.float()) for _ in counts]
    if not all(math.isfinite(mean) for pair in means for mean in pair):
        raise Refused("a mean is not finite")
    return [means[b][bit] for b, bit in bits_of_blocks(body, counts, by_rows)]


def vote(word, n, body, sparse):
    return [-1.0 if bit else 1.0 for bit in codes(body, n, 1)]


def twobit(word, n, body, sparse):
    bits = word.field(32)
    t = float_of(bits)
    if bits == 0:
        t = body.scale() if n else 0.0
    elif not rounded(1e-22) <= t <= rounded(1e22):
        raise Refused("a threshold out of range")
    seen.add("threshold of the " + ("word" if bits else "body"))
    found = codes(body, n, 2, from_high=True)
    if 1 in found:
        raise Refused("code 01 of twobit")
    return [(0.0, 0.0, -t, t)[code] for code in found]


def threshold1(word, n, body, sparse):
    t = float_of(word.field(32))
    if not 0 <= t <= rounded(1e22) or math.copysign(1, t) < 0:
        raise Refused("a threshold out of range")
    return [1.0 if bit else -1.0 for bit in codes(body, n, 1, from_high=True)]


def terngrad(word, n, body, sparse):
    block, c = word.block(n), word.code(sparse)
    word.end()
    scales = [body.scale() for _ in range(blocks(n, block))]
    return scaled(n, block, scales, levels_of(body, n, 2, 1, c))


def qsgd(word, n, body, sparse):
    levels, block, c, powers = word.field(15), word.block(n), word.code(sparse), word.field(1)
    word.end()
    if levels == 0 or powers and levels > 100 or c and levels > 127:
        raise Refused("a number of levels out of range")
    width = 2 if levels <= 1 and not powers else 4 if levels <= 7 else 8 if levels <= 127 else 16
    scales = [body.scale() for _ in range(blocks(n, block))]
    q = levels_of(body, n, width, levels, c)
    if powers:
        seen.add("spacing of powers")
        q = [math.copysign(2.0 ** (abs(x) - levels), x) if x else 0.0 for x in q]
    return scaled(n, block, scales, q)


def natural(word, n, body, sparse):
    values = []
    for _ in range(blocks(n, 16)):
        exponents, negative = body.take(16), body.number(2)
        for i, e in enumerate(exponents):
            if e == 255:
                raise Refused("the exponent 255 of natural")
            size = 2.0 ** (e - 127) if e else 0.0
            values.append(-size if negative >> i & 1 else size)
    if any(x or math.copysign(1, x) < 0 for x in values[n:]):
        raise Refused("padding is not zero")
    return values[:n]


def int_(word, n, body, sparse):
    bits, block, affine = word.field(2), word.block(n), word.field(1)
    word.end()
    if bits == 3 and affine:
        raise Refused("range of int out of range")
    width, constants = (8, 4, 2, 3)[bits], []
    for _ in range(blocks(n, block)):
        if affine:
            constants.append((body.scale(), body.float()))
        else:
            number = body.number(2)
            grid = number & 1 if width == 2 else 0
            d = float_of((number - grid) << 16)
            constants.append((d, d / 2 if grid else 0.0))
            seen.add("grid without a zero" if grid else "step below 0" if d < 0 else "step above 0")
    if not all(math.isfinite(x) for pair in constants for x in pair):
        raise Refused("the constant of a block is not finite")
    q = [signed(code, width) for code in codes(body, n, width)]
    values = scaled(n, block, [scale for scale, _ in constants], q)
    if affine or width == 2:
        if affine:
            seen.add("range affine")
        values = [plus(x, constants[i // block][1]) for i, x in enumerate(values)]
    return values


def fp8(word, n, body, sparse):
    e, m = (5, 2) if word.field(1) else (4, 3)
    block = word.block(n)
    word.end()
    scales = [body.scale() for _ in range(blocks(n, block))]
    found = codes(body, n, 8)
    for code in found:
        refuse_special(code, e, m)
    return scaled(n, block, scales, [small_float(code, e, m) for code in found])


def mx(word, n, body, sparse):
    form = word.field(3)
    if form > 5:
        raise Refused("a format of mx out of range")
    e, m = ((2, 1), (4, 3), (5, 2), (0, 0), (2, 3), (3, 2))[form]
    width = 8 if form == 3 else 1 + e + m
    exponents = list(body.take(blocks(n, 32)))
    if 255 in exponents:
        raise Refused("the scale 255 of mx")
    found = codes(body, n, width)
    for code in found:
        refuse_special(code, e, m)
    numbers = [signed(code, 8) / 64 if form == 3 else small_float(code, e, m) for code in found]
    return scaled(n, 32, [2.0 ** (x - 127) for x in exponents], numbers)


def nvfp4(word, n, body, sparse):
    tensor = body.scale() if n else 0.0
    found = list(body.take(blocks(n, 16)))
    if any(x >= 0x7F for x in found):
        raise Refused("a scale of nvfp4 out of range")
    scales = [times(tensor, small_float(x, 4, 3)) for x in found]
    return scaled(n, 16, scales, [small_float(code, 2, 1) for code in codes(body, n, 4)])


def e3m0(word, n, body, sparse):
    block = word.block(n)
    scales = [body.scale() for _ in range(blocks(n, block))]
    return scaled(n, block, scales, [small_float(code, 3, 0) for code in codes(body, n, 4)])


def nf4(word, n, body, sparse):
    block = word.block(n)
    scales = [body.scale() for _ in range(blocks(n, block))]
    return scaled(n, block, scales, [NF4[code] for code in codes(body, n, 4)])


def lloyd(word, n, body, sparse):
    words = []
    for _ in range(blocks(n, 128)):
        words.append(body.number(4))
        if words[-1] >= 0x7F800000:
            raise Refused("a word of lloyd that is no scale")
    high = [float_of(w & 0xFFFF0000) for w in words]
    low = [times(h, (w & 0xFFFF) / 65536) for h, w in zip(high, words)]
    sizes = {0: (low, 1), 1: (high, 1), -1: (low, -1), -2: (high, -1)}
    found = [sizes[signed(code, 2)] for code in codes(body, n, 2)]
    return [sign * size[i // 128] for i, (size, sign) in enumerate(found)]


# ---------------- PIECES: eden
SIZES = {1: [1], 2: [3, 10], 3: [29, 89, 158, 253], 4: [12, 36, 61, 87, 115, 147, 187, 248]}


def mixed(a, b, i):
    """H(A, B, i): 32 random bits."""
    h = (i + a + (i >> 32) * 0x9E3779B9) & 0xFFFFFFFF
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13 ^ b) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def turned(a, b, i):
    """S(A, B, i): shall the sign of element i change?"""
    d = i // 256 * 16 + i % 16
    return mixed(a, b, d // 2) >> (15 - i // 16 % 16 + (16 if d & 1 else 0)) & 1


def transform(x):
    s = len(x) // 2
    while s:
        for j in range(len(x)):
            if j // s % 2 == 0:
                x[j], x[j + s] = plus(x[j], x[j + s]), plus(x[j], -x[j + s])
        s //= 2


def numbers_of(body, m, bits):
    """The numbers c of m elements of a piece."""
    found = []
    for _ in range(m // 16):
        stream = Bits(body.take(2 * bits))
        if bits == 4:
            for q in [stream.take(4) for _ in range(16)]:
                found.append(float(SIZES[4][q] if q < 8 else -SIZES[4][15 - q]))
        else:
            sizes = [SIZES[bits][stream.take(bits - 1)] for _ in range(16)]
            found += [-float(size) if stream.take(1) else float(size) for size in sizes]
    return found


def eden(word, n, body, sparse):
    bits, block = word.field(2) + 1, 64 << word.field(4)
    word.end()
    if block > 65536:
        raise Refused("a block of eden out of range")
    if n == 0:
        return []
    a, b = body.number(4), body.number(4)
    pieces, rest = [block] * (n // block), blocks(n % block, 16) * 16
    while rest:
        pieces.append(1 << (rest.bit_length() - 1))
        rest -= pieces[-1]
    words, y, i = [body.number(4) for _ in pieces], [], 0
    for m, u in zip(pieces, words):
        f, small, twice = float_of(u & 0x7FFFFFFF), u >> 31, u & 1
        if u and not 2.0 ** -100 <= f < math.inf or small and f > 1 + 2.0 ** -23:
            raise Refused("a scale of eden out of range")
        if u == 0 and any(body.data[body.at:body.at + m // 8 * bits]):
            raise Refused("a piece of zeros has codes")
        seen.add("piece " + ("of zeros" if u == 0 else "that is small" if small else "rotated twice" if twice else "rotated once"))
        x = [times(c, 2.0 ** -100) if small else c for c in numbers_of(body, m, bits)]
        transform(x)
        if twice:
            x = [-v if turned(b, a, i + j) else v for j, v in enumerate(x)]
            w, t = min(m, 512), 15 / 64
            for first in range(0, m, w):
                part = x[first:first + w]
                for j in range(w // 2 if w > 16 else 0):
                    k = j + w // 2
                    part[j], part[k] = plus(part[j], times(t, part[k])), plus(times(t, part[j]), -part[k])
                transform(part)
                x[first:first + w] = part
        for j in range(m):
            v = times(f, x[j])
            v = math.copysign(min(abs(v), LARGEST), v)
            y.append(-v if turned(a, b, i + j) else v)
        i += m
    return y[:n]


# ---------------- sparse methods
def indices_of(body, k, below):
    """k increasing indices below this number, in one of the codings."""
    coder = body.number(1)
    return coder, lambda: read_indices(body, coder, k, below)


def read_indices(body, coder, k, below):
    if coder <= 32:
        stream = Bits(body.data[body.at:])
        gaps = [stream.rice(coder) for _ in range(k)]
        stream.padding()
        body.take(stream.at // 8)
    elif coder == 253:
        found = [body.number(4) for _ in range(k)]
        gaps = [index - before - 1 for before, index in zip([-1] + found, found)]
    elif coder == 254:
        gaps = []
        while len(gaps) < k:
            width, count = body.number(1), min(128, k - len(gaps))
            gaps += codes(body, count, width)
            if max(gaps[-count:]).bit_length() != width:
                raise Refused("a width that is not that of the largest gap")
    elif coder == 255:
        found = [i for i, bit in enumerate(codes(body, below, 1)) if bit]
        if len(found) != k:
            raise Refused("a bitmap with another number of indices")
        gaps = [index - before - 1 for before, index in zip([-1] + found, found)]
    else:
        raise Refused("an unknown coder of indices")
    if k:
        seen.add("indices " + ("by Golomb-Rice" if coder <= 32 else {253: "of 4 bytes", 254: "packed", 255: "in a bitmap"}[coder]))
    indices, at = [], -1
    for gap in gaps:
        at += 1 + gap
        if gap < 0 or at >= below:
            raise Refused("indices do not increase, or reach n")
        indices.append(at)
    return indices


def sparse(method, value_method, word, n, body):
    if value_method not in VALUE_METHODS:
        raise Refused("a value method that is none")
    if n > 1 << 32:
        raise Refused("too many elements for a sparse method")
    k, coder = body.number(8), body.number(1)
    if k > n:
        raise Refused("more values than elements")
    if method == 29:
        b = body.number(1)
        if not 4 <= b <= 16:
            raise Refused("a block of blocktopk out of range")
        indices = [i for j in read_indices(body, coder, blocks(k, 1 << b), blocks(n, 1 << b))
                   for i in range(j << b, min((j + 1) << b, n))]
        if len(indices) != k:
            raise Refused("blocks with another number of elements")
    else:
        indices = read_indices(body, coder, k, n)
    y = [0.0] * n
    for i, value in zip(indices, METHODS[value_method](word, k, body, True)):
        y[i] = plus(0.0, value)
    return y


# ---------------- dct
def cosines(n):
    """Row k of the result holds C(n, k, j) for j = 0 .. n - 1."""
    wave = [0.0] * (4 * n + 1)
    for m in range(n + 1):
        late = 2 * m > n
        x = 6746518852 * (n - m if late else m) // n
        y, s = x * x >> 32, 1 << 32
        for d in (110, 72, 42, 20, 6) if late else (90, 56, 30, 12, 2):
            s = (1 << 32) - (y * s >> 32) // d
        if late:
            s = x * s >> 32
        w = rounded(s * math.isqrt((1 << 63) // n) >> 32) * 2.0 ** -31
        wave[2 * n - m], wave[2 * n + m], wave[m], wave[4 * n - m] = -w, -w, w, w
    flat = rounded(math.isqrt((1 << 62) // n)) * 2.0 ** -31
    return [[wave[(2 * j + 1) * k % (4 * n)] if k else flat for j in range(n)] for k in range(n)]


def read_places(body, k, c):
    """The increasing places of k of c coefficients."""
    if k == c:
        seen.add("all coefficients")
        return range(c)
    low = (c // k).bit_length() - 1
    upper = k + ((c - 1) >> low) if low else c
    seen.add("places with low bits" if low else "places in a bitmap")
    stream = Bits(body.take((upper + k * low + 7) // 8))
    ones = [i for i in range(upper) if stream.take(1)]
    if len(ones) != k:
        raise Refused("a chunk with another number of places")
    found = [(one - i) << low | stream.take(low) if low else one for i, one in enumerate(ones)]
    stream.end()
    if found[-1] >= c or any(a >= b for a, b in zip(found, found[1:])):
        raise Refused("places do not increase, or leave the chunk")
    return found


def chunk_of(q, h, w, tables):
    """The h rows of w elements of the coefficients q, which are {place: value}."""
    rows, columns = tables
    large = any(abs(value) >= 2.0 ** 120 for value in q.values())
    x = [[0.0] * w for _ in range(h)]
    for u in range(h):
        row = [(place - u * w, value) for place, value in sorted(q.items()) if place // w == u and value]
        if not row:
            continue
        out = [0.0] * w
        for v, value in row:
            value = times(value, 2.0 ** -16) if large else value
            out = [fused(value, c, sum_) for c, sum_ in zip(columns[v], out)]
        for r in range(h):
            x[r] = [fused(rows[u][r], o, sum_) for o, sum_ in zip(out, x[r])]
    if large:
        seen.add("large coefficients")
        x = [[math.copysign(min(abs(times(v, 65536.0)), LARGEST), v) for v in line] for line in x]
    return x


def dct(value_method, word, n, body):
    if value_method not in VALUE_METHODS:
        raise Refused("a value method that is none")
    if not n:
        METHODS[value_method](word, 0, Bytes(b""), True)
        return []
    cols, h, w, k = body.number(8), body.number(1), body.number(1), body.number(2)
    if not 1 <= cols <= n or n % cols or not (1 <= h <= 64 and 1 <= w <= 64 and 1 <= k <= h * w):
        raise Refused("a shape out of range")
    if n // cols % h or cols % w:
        raise Refused("chunks do not divide the matrix")
    chunks = n // (h * w)
    places = [read_places(body, k, h * w) for _ in range(chunks)]
    values = METHODS[value_method](word, k * chunks, body, True)
    y, tables = [0.0] * n, (cosines(h), cosines(w))
    for i in range(chunks):
        begin = i // (cols // w) * h * cols + i % (cols // w) * w
        x = chunk_of(dict(zip(places[i], values[i * k:])), h, w, tables)
        for r in range(h):
            y[begin + r * cols:begin + r * cols + w] = x[r]
    return y


def ecsq(word, n, body, sparse):
    word.end()
    constants = [(body.scale(), body.float()) for _ in range(blocks(n, 65536))]
    if not all(math.isfinite(c) for _, c in constants):
        raise Refused("the constant of a block is not finite")
    q = levels_of(body, n, 8, 127, True)
    return [plus(times(constants[i // 65536][0], x), -times(constants[i // 65536][1], (x > 0) - (x < 0))) for i, x in enumerate(q)]


METHODS = {1: none, 2: fp16, 3: bf16, 4: sign, 7: onebit, 9: vote, 10: twobit, 11: threshold1, 12: terngrad, 13: qsgd, 15: natural,
           40: int_, 17: fp8, 18: mx, 35: nvfp4, 36: e3m0, 37: nf4, 41: lloyd, 42: ecsq, 20: eden}
VALUE_METHODS = {1, 2, 3, 4, 7, 10, 11, 12, 13, 15, 17, 18, 35, 36, 37, 40, 41}
SPARSE_METHODS = {5, 22, 23, 24, 27, 28, 29, 31}


# ---------------- KEYS
def philox(k, c, d, e):
    """The first two words of a block of Philox4x32-10, as one number."""
    c0, c1, c2, c3, k0, k1 = c & 0xFFFFFFFF, c >> 32, d, e, k & 0xFFFFFFFF, k >> 32
    for _ in range(10):
        x, y = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = y >> 32 ^ c1 ^ k0, y & 0xFFFFFFFF, x >> 32 ^ c3 ^ k1, x & 0xFFFFFFFF
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return c0 | c1 << 32


def places(seed, step, tensor, n, k, neighbours):
    """The k of n elements that randomk sends in a step, in increasing order."""
    words = philox(philox(seed, step, tensor, 0), 0, 5, 0)
    a, b = words & 0xFFFFFFFF, words >> 32

    def draw(i):
        return (mixed(a, b, 2 * i) << 32 | mixed(a, b, 2 * i + 1)) * n >> 64

    if neighbours:
        return sorted((draw(0) + i) % n for i in range(k))
    found, i = set(), 0
    while len(found) < min(k, n - k):
        found.add(draw(i))
        i += 1
    return [j for j in range(n) if (j in found) == (k <= n - k)]


# ---------------- payloads
CRC = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def decode(payload, n):
    """The n floats of a payload, each a binary32 that is finite. Raises Refused for all other bytes."""
    if len(payload) < 32:
        raise Refused("shorter than a header")
    magic, version, method, flags, value_method, count, length, word, crc = struct.unpack("<4sBBBBQQII", payload[:32])
    if magic != b"GCMP":
        raise Refused("no payload")
    if version != 1:
        raise Refused("a version that is not 1")
    if flags & ~3:
        raise Refused("reserved flags")
    if count != n:
        raise Refused("%d elements, not %d" % (count, n))
    if length != len(payload) - 32:
        raise Refused("%d bytes of body, not %d" % (len(payload) - 32, length))
    if crc != (crc32c(payload[:28] + payload[32:]) if flags & 2 else 0):
        raise Refused("a checksum that differs")
    if flags & 1:
        raise Refused("the input of the encoder was not finite")
    word, body = Word(word), Bytes(payload[32:])
    if method in SPARSE_METHODS:
        y = sparse(method, value_method, word, n, body)
    elif method == 38:
        y = dct(value_method, word, n, body)
    elif method in METHODS and value_method == 0:
        y = METHODS[method](word, n, body, False)
    else:
        raise Refused("an unknown method")
    word.end()
    body.end()
    if not all(map(math.isfinite, y)):
        raise Refused("a value that is not finite")
    seen.add("checksum" if flags & 2 else "no checksum")
    return y


def main(arguments):
    with open(arguments[0], "rb") as file:
        payload = file.read()
    n = int(arguments[1]) if len(arguments) > 1 else int.from_bytes(payload[8:16], "little")
    try:
        print("\n".join(map(repr, decode(payload, n))))
    except Refused as why:
        print("refused: %s" % why, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
