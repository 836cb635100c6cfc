#!/usr/bin/env python3
"""Runs the decoder of tests/edges/decode.py over tests/edges/vectors, tests/edges/corpus and changed payloads, beside the library. TAP.

    python3 tests/edges/check_vectors.py PROGRAM     PROGRAM: what tests/edges/vectors.c builds to

Run it at the root of the repository.
"""
import filecmp
import os
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decode

VECTORS, CORPUS, ROUNDS = "tests/edges/vectors", "tests/edges/corpus", 24
WITHOUT = {"randomk", "leadertopk", "sketch", "fetch", "powersgd", "intsum"}  # no payload in the codec layer: the README of VECTORS has them
ALTERNATIVES = (  # what decode.seen must hold after all vectors
    ["checksum", "no checksum", "threshold of the word", "threshold of the body", "spacing of powers", "range affine",
     "rows from the beginning", "rows from within", "rows of several blocks", "step above 0", "step below 0", "grid without a zero",
     "indices by Golomb-Rice", "indices of 4 bytes", "indices packed", "indices in a bitmap",
     "piece of zeros", "piece that is small", "piece rotated once", "piece rotated twice",
     "all coefficients", "places in a bitmap", "places with low bits", "large coefficients",
     "states: a new table", "states: the table before", "states: escaped", "states: 4", "states: 32"]
    + ["states%s %d bits" % (what, bits) for what in (": packed in", " of levels of") for bits in (2, 4, 8)])

program = sys.argv[1]
complaints = []
tests = 0


def complain(text):
    complaints.append(text)
    if len(complaints) < 10:
        print("# " + text)


def end_of_test(name):
    global tests
    tests += 1
    print("%s %d - %s" % ("not ok" if complaints else "ok", tests, name))
    failed.append(bool(complaints))
    complaints.clear()


failed = []


def read(path):
    with open(path, "rb") as file:
        return file.read()


def name_of(text):
    return re.sub("[:,+=]", "_", text)


def decoded(payload, n):
    """The floats of a payload as bytes, or why it is refused."""
    try:
        return struct.pack("<%df" % n, *decode.decode(payload, n)), None
    except decode.Refused as why:
        return None, str(why)


def output_of(*arguments):
    return subprocess.run([program] + list(arguments), stdout=subprocess.PIPE, check=True).stdout


def test_vectors():
    names = sorted(name[:-8] for name in os.listdir(VECTORS) if name.endswith(".payload"))
    for name in names:
        floats = read("%s/%s.floats" % (VECTORS, name))
        y, why = decoded(read("%s/%s.payload" % (VECTORS, name)), len(floats) // 4)
        if y != floats:
            complain("%s: %s" % (name, why or "other floats"))
    if len(names) < 100:
        complain("%d vectors only" % len(names))


def test_coverage():
    for alternative in ALTERNATIVES:
        if alternative not in decode.seen:
            complain("no vector has: " + alternative)


def test_each_method_has_a_vector():
    codecs = [line.split(" ", 1) for line in output_of("--methods").decode().splitlines()]
    vectors = set(os.listdir(VECTORS))
    with_payload = {re.split("[:+]", text)[0] for kind, text in codecs if kind == "payload"}
    with open("gcomp.h") as header:
        table = re.search(r"#define GCOMP__METHODS\(X\)(.*?[^\\])\n", header.read(), re.S).group(1)
    methods = ["none"] + re.findall(r"X\([A-Z0-9]+, ([a-z0-9]+),", table)
    readme = read(VECTORS + "/README.md").decode()
    if len(methods) < 30:
        complain("the table of methods was not found")
    for method in methods:
        if method in WITHOUT and method not in with_payload:
            if "`%s`" % method not in readme:
                complain("%s has no payload, and the README of the vectors does not say what it sends" % method)
        elif not vectors >= {method + ".payload", method + ".floats"}:
            complain("%s has no vector: %s --write %s" % (method, program, VECTORS))
    for kind, text in codecs:
        if kind == "payload" and name_of(text) + ".payload" not in vectors:
            complain("%s has no vector: %s --write %s" % (text, program, VECTORS))


def test_library_writes_the_vectors():
    with tempfile.TemporaryDirectory() as folder:
        output_of("--write", folder)
        written, kept = set(os.listdir(folder)), set(os.listdir(VECTORS)) - {"README.md"}
        for name in sorted(written ^ kept):
            complain(name + (" is not among the vectors" if name in written else " is written by nothing"))
        for name in sorted(filecmp.cmpfiles(VECTORS, folder, sorted(written & kept), shallow=False)[1]):
            complain(name + " has changed")


def test_places():
    """Which elements randomk sends."""
    names = [name for name in os.listdir(VECTORS) if name.endswith(".places")]
    for name in names:
        data = read("%s/%s" % (VECTORS, name))
        numbers = list(struct.unpack("<%dQ" % (len(data) // 8), data))
        if decode.places(*numbers[:6]) != numbers[6:]:
            complain(name)
    if len(names) < 3:
        complain("%d lists of places" % len(names))


def test_corpus():
    names = sorted(os.listdir(CORPUS))
    for name in names:
        data = read("%s/%s" % (CORPUS, name))
        y, why = decoded(data[4:], int.from_bytes(data[:4], "little"))
        if (y is not None) != name.startswith("valid_"):
            complain("%s: %s" % (name, why or "accepted"))
    if len(names) < 150:
        complain("%d files only" % len(names))


def test_library_agrees():
    """The corpus, long payloads, and changed ones: both decoders accept the same bytes, and find the same floats."""
    records = output_of("--records", str(ROUNDS), *["%s/%s" % (CORPUS, name) for name in sorted(os.listdir(CORPUS))])
    at, accepted, refused = 0, 0, 0
    while at < len(records):
        n, length, good = struct.unpack_from("<3I", records, at)
        at += 12
        payload = records[at:at + length]
        at += length
        floats = records[at:at + 4 * n] if good else None
        at += 4 * n if good else 0
        y, why = decoded(payload, n)
        accepted, refused = accepted + good, refused + 1 - good
        if y != floats:
            complain("method %d, n = %d, %d bytes: %s here, the library %s: %s" % (
                payload[5] if length > 5 else 0, n, length, why or "accepted", "accepts it" if good else "refuses it",
                payload[:64].hex()))
    print("# %d payloads accepted, %d refused" % (accepted, refused))
    if accepted < 500 or refused < 500 or not {"offsets of chunks", "states: 8", "states: 16"} <= decode.seen:
        complain("too few payloads to say anything")


def test_example():
    """The payload that the manual shows byte by byte."""
    with open("gcomp.h") as header:
        text = header.read()
    shown = text[text.index("sign:block=16 makes 43 bytes"):text.index("A decoder also refuses")]
    rows = re.findall(r"^ {7}((?:[0-9a-f]{2} +)+[0-9a-f]{2})$", shown, re.M)
    payload = bytes.fromhex("".join(rows))
    y, why = decoded(payload, 20)
    expected = [1.5, -1.5] + 14 * [1.5] + 3 * [0.25] + [-0.25]
    if y != struct.pack("<20f", *expected):
        complain("the example of %d bytes: %s" % (len(payload), why or "other floats"))


for test in [test_vectors, test_coverage, test_each_method_has_a_vector, test_library_writes_the_vectors, test_places, test_corpus,
             test_library_agrees, test_example]:
    test()
    end_of_test(test.__name__)
print("1..%d" % tests)
sys.exit(any(failed))
