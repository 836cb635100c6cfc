#!/usr/bin/env python3
"""Tests of examples/python/gcomp.py, as TAP. Needs python3-numpy, and the shared object: make build/libgcomp.so.

    tests/examples/test_python.py [--random SEED CALLS]     the second form: only random calls, in this process

TEST_LONG in the environment asks for 100000 random calls instead of 20000.
"""
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
RANDOM_CALLS = 100000 if os.environ.get("TEST_LONG") else 20000


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
    def __init__(self, world):
        self.world, self.box, self.barrier = world, [None] * world, threading.Barrier(world, timeout=120)

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


# ---------------- layouts, and how the library is found


def declared():
    with open(os.path.join(ROOT, "gcomp.h")) as f:
        text = f.read()
    return re.sub(r"/\*.*?\*/", "", text[:text.index("GCOMP_IMPLEMENTED")], flags=re.S), text


@test
def the_list_of_layouts_has_all_structs_fields_and_values_of_the_api():
    api, text = declared()
    wanted = []
    for name, body in re.findall(r"^typedef struct (gcomp_\w+) \{\n(.*?)^\} \1;", api, re.S | re.M):
        fields = []
        for line in filter(None, (" ".join(d.split()) for d in body.split(";"))):
            pointer = re.search(r"\(\*(\w+)\)\(", line)
            fields += [pointer[1]] if pointer else [re.search(r"(\w+)(?:\[\w+\])?$", part.strip())[1] for part in line.split(",")]
        wanted += [name] + [name + "." + field for field in fields]
    for name, body in re.findall(r"^typedef enum (gcomp_\w+) \{\n(.*?)^\}", api, re.S | re.M):
        if name != "gcomp_result":
            wanted += re.findall(r"^\s+(GCOMP_\w+) = ", body, re.M)
    found, name = [], True
    while name:
        name = gcomp._lib.gcomp_layout(len(found), None, None)
        if name:
            found.append(name.decode())
    assert len(wanted) > 100 and found == wanted, set(found) ^ set(wanted)
    codes = {name: int(value) for name, value in re.findall(r"X\((GCOMP_\w+), (-?\d+),", text)}
    assert codes == {"GCOMP_" + name: code for code, name in gcomp._CODES.items()}


@test
def functions_have_the_types_of_the_header():
    api, _ = declared()
    for name in ("gcomp_advise", "gcomp_sockets"):
        with open(os.path.join(ROOT, "examples", "adapters", name + ".h")) as f:
            more = f.read()
        api += more[more.index("#ifdef %s_SHARED" % name.upper()):]
    functions = {**gcomp._FUNCTIONS, **gcomp._MORE}
    kinds = {"int": "c_int", "size_t": "c_ulong", "uint64_t": "c_ulong", "uint32_t": "c_uint", "float": "c_float", "double": "c_double",
             "gcomp_result": "c_int", "gcomp_class": "c_int", "gcomp_dtype": "c_int", "gcomp_isa": "c_int", "gcomp_optimizer": "c_int",
             "gcomp_key": "gcomp_key", "void": "None", "gcomp_sockets_stop": "CFunctionType"}

    def is_kind(c, python, result=False):
        c = " ".join(re.sub(r"\bconst\b", " ", re.sub(r"(\w+)\[\d+\]", r"*\1", c)).split())
        name = python.__name__ if python is not None else "None"
        if c.count("*"):
            if name in ("c_void_p", "c_char_p"):
                return name == "c_void_p" or c.startswith("char *")
            inner = c.split("*")[0].strip()
            inner = {"int": "c_int", "size_t": "c_ulong", "double": "c_double", "char": "c_char_p"}.get(inner, inner)
            assert name.startswith("LP_") and c.count("*") == 1 + (inner == "c_char_p"), (c, name)
            return name == "LP_" + inner
        return name == kinds[c.rsplit(" ", 1)[0] if not result else c]
    seen = 0
    for returns, name, arguments in re.findall(r"^GCOMP_API (?:GCOMP_NODISCARD )?([\w ]+\*?)\s*(gcomp_\w+)\(([^;]*)\);", api, re.S | re.M):
        if name not in functions:
            continue
        seen += 1
        ours, *types = functions[name]
        arguments = [a for a in (" ".join(a.split()) for a in arguments.split(",")) if a != "void"]
        assert len(arguments) == len(types), name
        if name in ("gcomp_open", "gcomp_sockets_shared_open", "gcomp_sockets_shared_team"):  # gcomp **, void **
            arguments, types = arguments[1:], types[1:]
        assert is_kind(returns.strip(), ours, True), (name, returns)
        for c, python in zip(arguments, types):
            assert is_kind(c, python), (name, c, python)
    assert seen == len(functions), "%d of %d" % (seen, len(functions))
    assert type(gcomp._lib) is ctypes.CDLL  # which releases the GIL


@test
def another_layout_is_an_import_error():
    struct = type("gcomp_step", (ctypes.Structure,), {"_fields_": gcomp._Step._fields_[::-1]})
    before = gcomp._STRUCTS[:]
    gcomp._STRUCTS[gcomp._STRUCTS.index(gcomp._Step)] = struct
    try:
        raises(ImportError, lambda: gcomp._check_layouts(gcomp._lib, "a.so"), "gcomp_step.scale", "gcomp_step.epoch")
    finally:
        gcomp._STRUCTS[:] = before
    gcomp._VALUES["GCOMP_BF16"] = 3
    try:
        raises(ImportError, lambda: gcomp._check_layouts(gcomp._lib, "a.so"), "GCOMP_BF16: (3, 0) here, (2, 0) in the library")
    finally:
        gcomp._VALUES["GCOMP_BF16"] = 2
    gcomp._check_layouts(gcomp._lib, "a.so")


def python(code, *arguments, **environment):
    return subprocess.run([sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)


@test
def libraries_that_do_not_fit_are_import_errors():
    with tempfile.TemporaryDirectory() as d:
        def built(name, source):
            path = os.path.join(d, name)
            subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
            return path
        stubs = "".join("int %s(void) { return 0; }\n" % f for f in gcomp._FUNCTIONS if f != "gcomp_version")
        for path, words in ((os.path.join(d, "none.so"), ("none.so", "cannot be loaded")),
                            (built("empty.so", "int nothing;"), ("has no gcomp_version", "GCOMP_LAYOUTS")),
                            (built("older.so", "int gcomp_version(void) { return 200; }\n" + stubs), ("version 200", "version 400"))):
            done = python("import gcomp", PYTHONPATH=HERE, GCOMP_LIBRARY=path)
            assert done.returncode == 1 and "ImportError" in done.stderr, done.stderr
            for word in words:
                assert word in done.stderr, done.stderr


@test
def the_header_is_compiled_once_into_the_cache_or_the_command_is_shown():
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(os.path.join(HERE, "gcomp.py"), d)
        code = "import gcomp, array; print(len(gcomp.encode('sign', array.array('f', bytes(4096)))), gcomp.LIBRARY)"
        environment = dict(PYTHONPATH=d, XDG_CACHE_HOME=os.path.join(d, "cache"), GCOMP_LIBRARY="", CFLAGS="-O0")
        done = python(code, **environment)
        assert done.returncode == 1 and "copy gcomp.h there" in done.stderr, done.stderr
        shutil.copy(os.path.join(ROOT, "gcomp.h"), d)

        def refused(*words, **more):
            done = python(code, **{**environment, **more})
            assert done.returncode == 1 and done.stderr.count("Traceback") == 1 and "\nImportError: " in done.stderr, done.stderr
            sentence = done.stderr.split("\nImportError: ")[1]
            assert sentence.count("\n") == 1 and all(word in sentence for word in words), sentence
        refused("false", "install gcc", CC="false")
        refused("no C compiler no-such-compiler", "install gcc", "GCOMP_LIBRARY", CC="no-such-compiler")
        system = os.path.join(d, "system")  # the headers of this system without stb_ds.h
        os.mkdir(system)
        for name in os.listdir("/usr/include"):
            if not name.startswith("stb"):
                os.symlink(os.path.join("/usr/include", name), os.path.join(system, name))
        own, machine = (subprocess.run(["gcc", ask], capture_output=True, text=True, check=True).stdout.strip()
                        for ask in ("-print-file-name=include", "-print-multiarch"))
        bare = "gcc -DGCOMP_ONLY_SIGN -DGCOMP_MAX_ISA=1 -nostdinc -isystem %s -isystem %s -isystem %s" % (own, system, os.path.join(system, machine))
        refused("stb_ds.h", "install libstb-dev", "copy stb_ds.h beside", CC=bare)
        with open(os.path.join(d, "stb_ds.h"), "w") as f:
            f.write("#error this is not the right file\n")
        refused("cannot be compiled", "this is not the right file", "-DGCOMP_ONLY_SIGN", CC=bare)
        os.remove(os.path.join(d, "stb_ds.h"))
        compiler = "gcc -DGCOMP_ONLY_SIGN -DGCOMP_MAX_ISA=1"
        first, second = (python(code, CC=compiler, **environment) for _ in range(2))
        assert first.returncode == 0 and first.stdout.startswith("164 ") and "compiles" in first.stderr, first.stderr
        assert second.stdout == first.stdout and second.stderr == "", second.stderr
        ask = "import gcomp; print(gcomp.advise([('w', 300, 300)], bits_per_second=1e8, world=4, candidates=['sign']).codecs, gcomp.LIBRARY)"
        done = python(ask, CC=compiler, **environment)
        assert done.returncode == 1 and "ImportError" in done.stderr and "copy examples/adapters/gcomp_advise.h beside gcomp.h" in done.stderr, done.stderr
        before = os.listdir(os.path.join(d, "cache", "gcomp"))
        for text in ("", "/* another text, another object */\n"):
            with open(os.path.join(ROOT, "examples", "adapters", "gcomp_advise.h")) as f, open(os.path.join(d, "gcomp_advise.h"), "w") as copied:
                copied.write(f.read() + text)
            done, again = (python(ask, CC=compiler, **environment) for _ in range(2))
            assert done.returncode == 0 and done.stdout.startswith("['sign'] ") and "compiles" in done.stderr, done.stderr
            assert again.stdout == done.stdout and again.stderr == "", again.stderr
        assert len(os.listdir(os.path.join(d, "cache", "gcomp"))) == len(before) + 2
        alone = ("import gcomp\nwith gcomp.Sockets(0, 1) as net, gcomp.open('sign', comm=net) as gc:\n    print(net.allgather(b'mine'), gcomp.LIBRARY)")
        done = python(alone, CC=compiler, **environment)
        assert done.returncode == 1 and "ImportError" in done.stderr and "copy examples/adapters/gcomp_sockets.h beside gcomp.h" in done.stderr, done.stderr
        shutil.copy(os.path.join(ROOT, "examples", "adapters", "gcomp_sockets.h"), d)
        done, again = (python(alone, CC=compiler, **environment) for _ in range(2))
        assert done.returncode == 0 and done.stdout.startswith("[b'mine'] ") and "compiles" in done.stderr, done.stderr
        assert again.stdout == done.stdout and again.stderr == "", again.stderr
        blocked = os.path.join(d, "file")
        open(blocked, "w").close()
        done = python(code, CC=compiler, PYTHONPATH=d, XDG_CACHE_HOME=blocked, GCOMP_LIBRARY="")
        assert done.returncode == 1 and "GCOMP_LIBRARY" in done.stderr and "ImportError" in done.stderr, done.stderr


# ---------------- codec layer


@test
def all_methods_with_payloads_go_there_and_back_in_three_types():
    x, payloads = noise(4096), 0
    for method in gcomp.methods():
        codec = gcomp.Codec(method)
        if not codec.bound(4096):
            assert raises(gcomp.Error, lambda: gcomp.encode(codec, x, key=gcomp.key(1, 2, 3, 4))).name == "GCOMP_NEEDS_ROUNDS"
            continue
        payloads += 1
        payload = gcomp.encode(codec, x, checksum=True, key=gcomp.key(1, 2, 3, 4))
        info = gcomp.peek(payload)
        assert info.count == 4096 and info.length == len(payload) and info.checksum and not info.refused, info
        gcomp.check(payload, 4096)
        y = gcomp.decode(bytes(payload), np.empty(4096, "f"))
        assert np.array_equal(y, np.asarray(gcomp.decode(memoryview(payload), 4096))), method
        assert np.array_equal(gcomp.decode_add(payload, np.zeros(4096, "f")), y), method
        residual = gcomp.retain(payload, x, np.zeros(4096, "f"))
        assert np.array_equal(residual, x - y), method
        assert np.array_equal(gcomp.mean([payload], np.zeros(4096, "f")), y) or method == "vote"
        half = gcomp.decode(payload, np.empty(4096, np.float16))
        assert np.array_equal(half, gcomp.from_float(np.empty(4096, np.float16), y)), method
        for dtype, narrow in (("fp16", x.astype(np.float16)), ("bf16", gcomp.from_float(np.empty(4096, np.uint16), x))):
            wide = gcomp.to_float(np.empty(4096, "f"), narrow, dtype=dtype)
            assert gcomp.encode(codec, narrow, dtype=dtype, key=(0, 1)) == gcomp.encode(codec, wide, key=(0, 1)), (method, dtype)
        if method in ("qsgd", "eden", "natural", "terngrad", "wangni"):
            assert "gcomp.key" in str(raises(ValueError, lambda: gcomp.encode(codec, x)))
        else:
            assert gcomp.encode(codec, x, checksum=True) == payload, method
    assert payloads > 20


@test
def what_has_a_buffer_is_encoded_in_place():
    values = [1, -2, 3] + 4093 * [0]
    grad = array.array("f", values)
    payload = gcomp.encode("int:bits=4", grad)
    assert len(payload) == 2208
    assert gcomp.decode(payload, grad) is grad and abs(grad[1] + 2.14286) < 1e-5
    grad = array.array("f", values)
    frozen = np.array(values, "f")
    frozen.flags.writeable = False
    others = [np.array(values, "f"), frozen, memoryview(grad), memoryview(grad).cast("B").cast("f"), (ctypes.c_float * 4096)(*values),
              np.array(values, "f").reshape(64, 64), memoryview(np.array(values, "f").tobytes()).cast("f")]
    out = bytearray(3000)
    for other in others:
        assert gcomp.encode("int:bits=4", other) == payload
        assert gcomp.encode("int:bits=4", other, out=out) == payload
    assert gcomp.encode("int:bits=4", grad, out=np.empty(3000, np.uint8)) == payload
    assert len(gcomp.encode("int", np.empty(0, "f"))) == 32 and len(gcomp.decode(gcomp.encode("int", frozen[:0]), 0)) == 0
    doubled = gcomp.encode("none", grad, residual=array.array("f", values), scale=3)
    assert gcomp.decode(doubled, 4096)[1] == -8


@test
def arrays_that_do_not_fit_are_errors_that_say_what_to_do():
    x, payload = noise(4096), gcomp.encode("int", noise(4096))
    cases = [
        (TypeError, lambda: gcomp.encode("int", x.astype("d")), "make them float32"), (TypeError, lambda: gcomp.encode("int", [1.0]), "array"),
        (TypeError, lambda: gcomp.encode("int", x.astype(">f4")), "float32"), (ValueError, lambda: gcomp.encode("int", x[::2]), "contiguous"),
        (ValueError, lambda: gcomp.decode(payload, x.reshape(64, 64).T), "contiguous"), (TypeError, lambda: gcomp.encode("int", None), "array"),
        (ValueError, lambda: gcomp.decode(payload, np.frombuffer(x.tobytes(), "f")), "read-only"),
        (TypeError, lambda: gcomp.decode("text", x), "bytes"), (TypeError, lambda: gcomp.decode(x, x), "bytes"),
        (TypeError, lambda: gcomp.decode(payload, 0.5), "array"), (ValueError, lambda: gcomp.decode(payload, -1), "y is -1"),
        (ValueError, lambda: gcomp.encode("int", x, residual=x[:5]), "5 elements"), (ValueError, lambda: gcomp.encode("int", x, dtype="fp8"), "dtype"),
        (ValueError, lambda: gcomp.encode("int", x, isa="mmx"), "isa"), (ValueError, lambda: gcomp.encode("int", x, cols=3), "rows of 3"),
        (TypeError, lambda: gcomp.encode("int", x, scale="a"), "scale"), (ValueError, lambda: gcomp.encode("int", x, key=(1, -1)), "key.own"),
        (ValueError, lambda: gcomp.encode("none", x, out=x.view(np.uint8)), "shares memory"),
        (ValueError, lambda: gcomp.decode(memoryview(x).cast("B")[:32], x), "shares memory"),
        (ValueError, lambda: gcomp.mean([payload, x.view(np.uint8)], x), "shares memory"), (TypeError, lambda: gcomp.mean(payload, x), "list"),
        (ValueError, lambda: gcomp.retain(payload, x, x), "shares memory"), (ValueError, lambda: gcomp.retain(payload, x, x[:9]), "9 elements"),
        (ValueError, lambda: gcomp.to_float(x, x[:9]), "as many"), (ValueError, lambda: gcomp.encode("int", x, out=bytes(9)), "read-only"),
        (TypeError, lambda: gcomp.Codec(7), "text"), (ValueError, lambda: gcomp.check(payload, 2 ** 64), "n is"),
        (ValueError, lambda: gcomp.retain(payload, x, memoryview(bytearray(16385))[1:].cast("f")), "aligned"),
        (ValueError, lambda: gcomp.decode(payload, memoryview(bytearray(16385))[1:].cast("f")), "aligned"),
        (ValueError, lambda: gcomp.momentum_step(x, x, x, 1, 1), "shares memory"), (TypeError, lambda: gcomp.check(payload, 1.5), "whole"),
    ]
    for kind, call, word in cases:
        raises(kind, call, word)


@test
def errors_have_code_name_kind_and_the_sentence():
    x, payload = noise(4096), gcomp.encode("int", noise(4096), checksum=True)
    error = raises(gcomp.Error, lambda: gcomp.Codec("topk:density=7"), "GCOMP_BAD_CODEC", "density")
    assert error.code == gcomp.BAD_CODEC == -7 and error.name == "GCOMP_BAD_CODEC" and error.kind == "fatal" and "density" in error.sentence
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.sentence) == (error.code, error.sentence)
    broken = bytearray(payload)
    broken[100] ^= 1
    assert raises(gcomp.Error, lambda: gcomp.decode(broken, x)).code == gcomp.CHECKSUM_MISMATCH
    assert raises(gcomp.Error, lambda: gcomp.decode(payload[:50], x)).code == gcomp.TRUNCATED
    assert raises(gcomp.Error, lambda: gcomp.decode(payload, x[:5])).code == gcomp.COUNT_MISMATCH
    assert raises(gcomp.Error, lambda: gcomp.decode(payload, 2 ** 62)).code == gcomp.COUNT_MISMATCH
    assert raises(gcomp.Error, lambda: gcomp.encode("int", x, out=bytearray(5))).code == gcomp.DST_TOO_SMALL
    x[5] = np.nan
    error = raises(gcomp.Error, lambda: gcomp.encode("int", x))
    assert error.kind == "retry" and gcomp.peek(error.payload).refused
    assert raises(gcomp.Error, lambda: gcomp.decode(error.payload, x)).code == gcomp.NOT_FINITE


# ---------------- objects


def tensors(gc):
    gc.add_tensor("w", 60, 40)
    gc.add_tensor("half", 50, 30, dtype="bf16")
    gc.add_tensor("b", 40)


def gradients(rank, step):
    wide = noise(1500, 1000 + 10 * step + rank)
    return [noise(2400, 10 * step + rank).reshape(60, 40), gcomp.from_float(np.empty(1500, np.uint16), wide), noise(40, rank)]


def as_bytes(grads):
    return b"".join(g.tobytes() for g in grads)


CODECS = ("none", "sign", "topk:density=0.02", "powersgd:rank=2", "int:bits=4", "intsum:bits=16", "sketch:density=0.01", "eden", "fp16",
          "topk:density=0.02,global=1", "randomk:density=0.05", "terngrad:share=1")


@test
def workers_have_the_same_means_by_exchange_and_by_steps():
    for codec in CODECS:
        def work(comm):
            with gcomp.open(codec, comm=comm, min_elements=100) as gc, gcomp.open(codec, comm=comm, min_elements=100) as steps:
                tensors(gc)
                tensors(steps)
                seen = b""
                for step in range(3):
                    one, two = gradients(comm.rank, step), gradients(comm.rank, step)
                    own = as_bytes(one)
                    gc.exchange(one)
                    steps.step_begin()
                    for i in (2, 0, 1):
                        steps.step_ready(i, two[i])
                    while True:
                        request = steps.step_next()
                        if request.kind == "done":
                            break
                        steps.step_done(request, comm.carry_out(request))
                    assert as_bytes(two) == own
                    steps.step_commit()
                    assert as_bytes(one) == as_bytes(two) != own
                    seen += as_bytes(one)
                return seen
        results = Group(4).all_well(work)
        assert len(set(results)) == 1, codec


@test
def the_mean_is_the_mean_and_a_skipped_tensor_stays():
    def work(comm):
        with gcomp.open("none", comm=comm, measure=True, clock=time.perf_counter) as gc:
            gc.add_tensor("a", 30, 20)
            gc.add_tensor("b", 10)
            grads = [noise(600, comm.rank).reshape(30, 20), None]
            gc.exchange(grads, scale=2.0)
            flat = np.concatenate([noise(600, comm.rank), np.full(10, comm.rank, "f")])
            gc.exchange_flat(flat, samples=1, batch=3)
            stats = gc.stats()
            assert stats.steps == 2 and stats.bytes_in == 4 * 1210 and stats.mean_norm > 0 and stats.communicate_seconds > 0
            assert gc.step_number == 2 and len(gc) == 2 and gc.find("b") == 1 and gc.name(1) == "b" and gc.shape(0) == (30, 20, 1)
            assert (gc.rank, gc.world) == (comm.rank, 3) and str(gc.codec(0)) == "none" and gc.shard(0, 0)[0] == 0
            assert "a: 30 x 20 fp32, none" in gc.describe() and gc.memory_used() > 0
            raises(KeyError, lambda: gc.find("c"))
            raises(IndexError, lambda: gc.name(2))
            raises(gcomp.Error, lambda: gc.residual(0), "WRONG_STATE")
            return grads[0], flat
    for grad, flat in Group(3).all_well(work):
        expected = sum(noise(600, rank) for rank in range(3)) / 3
        assert np.allclose(grad.ravel(), 2 * expected, atol=1e-5) and np.allclose(flat[:600], expected, atol=1e-5)
        assert np.allclose(flat[600:], 1)


@test
def one_worker_compresses_commits_and_gets_back():
    with gcomp.open("topk:density=0.02", residual="bf16") as gc:
        gc.add_tensor("w", 100, 20)
        gc.prepare()
        grad = noise(2000)
        payload = gc.compress(0, 0, grad)
        assert gc.compress(0, 0, grad, out=bytearray(9000)) == payload
        before = grad.copy()
        gc.commit(0, grad, payload)
        assert np.array_equal(grad, before)
        sent = np.asarray(gcomp.decode(payload, 2000))
        assert np.allclose(gc.residual(0), before - sent, rtol=0.01) and np.count_nonzero(sent) == 40
        gc.give_back(0, payload)
        assert np.allclose(gc.residual(0), before, rtol=0.01)
        gc.reset(0)
        assert not np.any(gc.residual(0))
        gc.commit(0, grad, payload, [payload, payload])
        assert np.array_equal(grad, sent)
        raises(TypeError, lambda: gc.commit(0, payload, payload))
        raises(gcomp.Error, lambda: gc.commit(0, grad, b"x" * 40), "NOT_A_PAYLOAD")
    with gcomp.open("topk:density=0.02,chunk=500", decay=0.5) as gc:
        gc.add_tensor("w", 100, 20)
        grad = noise(2000)
        payload = gc.compress(0, 0, grad)
        gc.commit(0, grad, payload)
        sent = np.asarray(gcomp.decode(payload, 2000))
        assert np.array_equal(gc.residual(0), (grad - sent) / 2) and np.all(np.count_nonzero(sent.reshape(4, 500), 1) == 10)
    raises(gcomp.Error, lambda: gcomp.open("sign", decay=2), "decay")
    raises(TypeError, lambda: gcomp.open("sign", decay="much"))
    codec, found = gcomp.rounds("powersgd:rank=2", "w", 100, 50, comm=gcomp.Comm(0, 2))
    assert str(codec) == "powersgd:rank=2" and [r.kind for r in found] == ["allreduce", "allreduce"] and found[0].dtype == "fp32"
    assert gcomp.memory_needed("sign", [("w", 100, 50), ("b", 7)]) > 20000
    assert "warning" in describe_of("sign", "adam") and "warning" not in describe_of("sign", "sgd")
    assert gcomp.Codec("sign").warning("adam") and gcomp.Codec("int").warning("adam") is None
    x, v, m = np.ones(5, "f"), np.ones(5, "f"), np.ones(5, "f")
    gcomp.momentum_step(x, v, m, 0.5, 0.5)
    assert np.all(v == 1.5) and np.all(x == 1 - 0.5 * 2.5)


def describe_of(codec, optimizer):
    with gcomp.open(codec, optimizer=optimizer, comm=gcomp.Comm(0, 2)) as gc:
        gc.add_tensor("w", 100, 50)
        return gc.describe()


@test
def a_model_that_changed_loads_what_fits_and_residuals_are_set():
    def opened(*tensors):
        gc = gcomp.open("sign", comm=gcomp.Comm(0, 2, None, lambda mine, out: None))
        for name, rows in tensors:
            gc.add_tensor(name, rows, 40)
        return gc
    with opened(("kept", 60), ("grown", 60), ("gone", 60)) as old, opened(("grown", 70), ("new", 60), ("kept", 60)) as gc:
        for t in range(3):
            old.set_residual(t, noise(2400, t))
            assert np.array_equal(old.residual(t), noise(2400, t))
        raises(gcomp.Error, lambda: gc.load([old.save()]), "SAVE_MISMATCH", "it has tensor 'kept' where this object has tensor 'grown'")
        report = gc.load_some([old.save()])
        assert [line.split(":")[0] for line in report.splitlines()] == ["grown", "new", "gone"], report
        assert "it is 60 x 40 there, 70 x 40 here: the residual of the first 60 rows is taken" in report
        assert np.array_equal(gc.residual(2), noise(2400, 0)) and not np.any(gc.residual(1))
        assert np.array_equal(gc.residual(0), np.concatenate((noise(2400, 1), np.zeros(400, "f"))))
        assert gc.load_some([gc.save()]) == "" and np.array_equal(gc.residual(2), noise(2400, 0))
        raises(gcomp.Error, lambda: gc.set_residual(1, np.full(2400, np.nan, "f")), "NOT_FINITE")
        raises(ValueError, lambda: gc.set_residual(1, noise(2399)))
        raises(ValueError, lambda: gc.set_residual(1, noise(2400).astype("e")))
        raises(IndexError, lambda: gc.set_residual(3, noise(2400)))
    names = ["layer %d %s" % (i, 100 * "x") for i in range(200)]  # a report longer than the first room for it
    with opened(*((name, 60) for name in names)) as old, opened(("other", 60)) as gc:
        report = gc.load_some([old.save()]).splitlines()
        assert len(report) == 201 and all(line == name + ": only the save has it: it is left out" for line, name in zip(report[1:], names))


@test
def saves_go_on_with_the_same_bits_and_other_numbers_of_workers():
    def train(gc, comm, steps):
        seen = b""
        for step in steps:
            grads = gradients(comm.rank, step)
            gc.exchange(grads)
            seen += as_bytes(grads)
        return seen

    def whole(comm):
        with gcomp.open("topk:density=0.02", comm=comm, min_elements=100) as gc:
            tensors(gc)
            train(gc, comm, range(3))
            save = gc.save()
            return save, train(gc, comm, range(3, 6)), np.asarray(gc.residual(0))
    results = Group(4).all_well(whole)
    saves = [r[0] for r in results]

    def loaded(comm):
        with gcomp.open("topk:density=0.02", comm=comm, min_elements=100) as gc:
            tensors(gc)
            gc.load([saves[comm.rank]])
            return train(gc, comm, range(3, 6))
    assert Group(4).all_well(loaded) == [r[1] for r in results]

    def fewer(comm):
        with gcomp.open("topk:density=0.02", comm=comm, min_elements=100) as gc:
            tensors(gc)
            raises(gcomp.Error, lambda: gc.load([saves[0]]), "SAVE_MISMATCH")
            raises(gcomp.Error, lambda: gc.load([b"x" * 200] * 4), "NOT_A_SAVE")
            raises(TypeError, lambda: gc.load(saves[0]))
            gc.load(saves)
            assert gc.step_number == 3
            return np.asarray(gc.residual(0))
    means = Group(2).all_well(fewer)
    for mean in means:
        assert np.any(mean) and np.array_equal(mean, means[0])

    smaller = Group(2)

    def leave(comm):
        with gcomp.open("sign", comm=comm) as gc:
            gc.add_tensor("w", 60, 40)
            gc.exchange([noise(2400, comm.rank)])
            mine = np.asarray(gc.residual(0))
            saves = comm.swap(gc.save())
            everyone = sum(comm.swap(mine)) / 3
            if comm.rank == 2:
                return everyone
            if comm.rank == 0:
                gc.take_over(saves[2])
            gc.regroup(Threads(smaller, comm.rank))
            now = np.asarray(gc.residual(0))
            rest = sum(Threads(smaller, comm.rank).swap(now)) / 2
            assert np.allclose(rest, everyone, atol=1e-6) and gc.world == 2
            gc.exchange([noise(2400, comm.rank)])
            return everyone
    Group(3).all_well(leave)

    def joins(comm):
        with gcomp.open("sign", comm=comm) as gc:
            gc.add_tensor("w", 60, 40)
            raises(gcomp.Error, lambda: gc.join(b""), "GCOMP_")
            with gcomp.open("sign", comm=comm) as other:
                other.add_tensor("w", 60, 40)
                other.restart(17)
                gc.join(other.save())
            assert gc.step_number == 17
            gc.exchange([noise(2400, comm.rank)])
    Group(2).all_well(joins)


# ---------------- errors of steps


@test
def an_error_of_one_worker_is_known_to_all_and_changes_nothing():
    def work(comm, spoil):
        with gcomp.open("int:bits=4", comm=comm) as gc:
            gc.add_tensor("w", 60, 40)
            grad = noise(2400, comm.rank)
            given, words = spoil(grad) if comm.rank == 1 else ([grad], {})
            before = grad.tobytes()
            try:
                gc.exchange(given, **words)
            except Exception as error:
                found = error
            else:
                raise AssertionError("no error")
            assert grad.tobytes() == before
            gc.exchange([noise(2400, comm.rank)])  # and the next step works
            return getattr(found, "name", type(found).__name__)

    def not_finite(grad):
        grad[7] = np.inf
        return [grad], {}
    spoilers = [(not_finite, "GCOMP_NOT_FINITE", "GCOMP_NOT_FINITE"), (lambda g: ([g[:-1]], {}), "ValueError", "GCOMP_PEER_FAILED"),
                (lambda g: ([g.astype("d")], {}), "TypeError", "GCOMP_PEER_FAILED"), (lambda g: ([], {}), "ValueError", "GCOMP_PEER_FAILED"),
                (lambda g: (None, {}), "TypeError", "GCOMP_PEER_FAILED"), (lambda g: ([g], {"scale": "x"}), "TypeError", "GCOMP_PEER_FAILED"),
                (lambda g: ([g], {"scale": np.nan}), "GCOMP_INVALID_ARGUMENT", "GCOMP_PEER_FAILED"),
                (lambda g: ([g], {"rate": 1}), "TypeError", "GCOMP_PEER_FAILED")]
    for spoil, own, others in spoilers:
        assert Group(3).run(lambda comm: work(comm, spoil)) == [others, own, others], (own, Group(3).run(lambda comm: work(comm, spoil)))


@test
def what_a_callable_raises_comes_out_and_gradients_are_as_they_were():
    class Odd(Exception):
        pass

    class Bad(gcomp.Comm):
        def __init__(self, at, what):
            super().__init__(0, 2)
            self.at, self.what = at, what

        def allgather(self, mine):
            return self.do("allgather", lambda: [mine, mine])

        def allreduce(self, data, dtype):
            return self.do("allreduce", lambda: None)

        def do(self, name, right):
            if name == self.at:
                return self.what()
            return right()

    def throw(error):
        def raise_it():
            raise error
        return raise_it
    for codec in ("sign", "none"):
        for at, what, kind in (("allgather", throw(Odd("x")), Odd), ("allreduce", throw(Odd("x")), Odd), ("allgather", throw(SystemExit(3)), SystemExit),
                               ("allgather", throw(KeyboardInterrupt()), KeyboardInterrupt), ("allgather", lambda: None, TypeError),
                               ("allgather", lambda: [b""], ValueError), ("allgather", lambda: [b"", b""], ValueError),
                               ("allgather", lambda: [1, 2], TypeError), ("allgather", lambda: "ab", TypeError)):
            with gcomp.open(codec, comm=Bad(at, what)) as gc:
                gc.add_tensor("w", 60, 40)
                gc.add_tensor("b", 10)
                grads = [noise(2400), noise(10)]
                before = as_bytes(grads)
                try:
                    gc.exchange(grads)
                except BaseException as error:
                    assert type(error) is kind or (isinstance(error, gcomp.Error) and at == "allreduce"), (at, kind, error)
                else:
                    raise AssertionError("no error")
                assert as_bytes(grads) == before
    raises(TypeError, lambda: gcomp.open("sign", comm=gcomp.Comm(0, 2, allgather=7)), "cannot be called")
    raises(ValueError, lambda: gcomp.open("sign", comm=gcomp.Comm(0, 2, allreduce_dtypes=["int4"])), "int4")
    raises(gcomp.Error, lambda: gcomp.open("sign", comm=gcomp.Comm(2, 2)), "rank")
    raises(gcomp.Error, lambda: gcomp.open("intsum", comm=gcomp.Comm(0, 2)), "MISSING_CALLBACK")
    raises(TypeError, lambda: gcomp.open("sign", comm=7), "gcomp.Comm")
    raises(TypeError, lambda: gcomp.open("sign", colour=1), "colour")
    raises(ValueError, lambda: gcomp.open("sign", aggregate="ring"), "ring")
    raises(gcomp.Error, lambda: gcomp.open("sing"), "sing")


@test
def what_a_callable_keeps_is_its_own():
    kept = []

    class Keeps(Threads):
        def allreduce(self, data, dtype):
            super().allreduce(data, dtype)
            kept.extend((np.asarray(data), data))

    def work(comm):
        with gcomp.open("none", comm=Keeps(comm.group, comm.rank)) as gc:
            gc.add_tensor("w", 300, 300)
            gc.exchange([noise(90000)])
    Group(2).all_well(work)
    assert len(kept) == 4
    for view in kept:
        np.asarray(view)[:] = 1  # the object is closed; its memory is not under this


@test
def objects_that_are_closed_busy_or_copied_say_so():
    gc = gcomp.open("sign")
    gc.add_tensor("w", 60, 40)
    raises(TypeError, lambda: copy.copy(gc), "neither copied")
    raises(TypeError, lambda: pickle.dumps(gc), "neither copied")
    gc.close()
    gc.close()
    assert gc.closed
    for call in (lambda: gc.exchange([noise(2400)]), gc.describe, gc.stats, gc.save, gc.step_begin, gc.step_next, gc.prepare,
                 lambda: gc.add_tensor("x", 1), lambda: gc.compress(0, 0, noise(2400)), lambda: gc.rank, lambda: gc.residual(0)):
        assert raises(gcomp.Error, call, "closed").code == gcomp.WRONG_STATE

    class Nested(Threads):
        def allreduce(self, data, dtype):
            seen.append(raises(gcomp.Error, lambda: self.gc.exchange([noise(2400)]), "under way").code)
            seen.append(raises(gcomp.Error, self.gc.close, "under way").code)
            other = threading.Thread(target=lambda: seen.append(raises(gcomp.Error, self.gc.describe, "under way").code))
            other.start()
            other.join()
            super().allreduce(data, dtype)
    seen = []

    def work(comm):
        comm = Nested(comm.group, comm.rank)
        with gcomp.open("none", comm=comm) as comm.gc:
            comm.gc.add_tensor("w", 60, 40)
            comm.gc.exchange([noise(2400)])
    Group(2).all_well(work)
    assert seen == 6 * [gcomp.WRONG_STATE]


@test
def steps_out_of_order_are_errors():
    def work(comm):
        with gcomp.open("sign", comm=comm) as gc:
            gc.add_tensor("w", 60, 40)
            grad = noise(2400, comm.rank)
            raises(gcomp.Error, gc.step_next, "WRONG_STATE")
            raises(gcomp.Error, gc.step_commit, "WRONG_STATE")
            raises(gcomp.Error, lambda: gc.step_ready(0, grad), "WRONG_STATE")
            gc.step_begin()
            raises(gcomp.Error, gc.step_begin, "WRONG_STATE")
            raises(gcomp.Error, gc.step_finish, "WRONG_STATE")
            raises(IndexError, lambda: gc.step_ready(1, grad))
            gc.step_ready(0, grad)
            raises(gcomp.Error, lambda: gc.step_ready(0, grad), "WRONG_STATE")
            request = gc.step_next()
            assert request.kind == "allgather" and len(request.send) == 64
            raises(ValueError, lambda: gc.step_done(request, [b"", b""]))
            raises(TypeError, lambda: gc.step_done(request, None))
            gc.step_done(request, comm.allgather(request.send))
            raises(gcomp.Error, lambda: gc.step_done(request, [request.send] * 2), "no request")
            gc.step_abort()
            raises(gcomp.Error, gc.step_next, "WRONG_STATE")
            gc.step_begin()
            gc.step_ready(0, grad)
            request = gc.step_next()
            gc.step_done(request, comm.allgather(request.send))
            gc.step_abort()
            gc.exchange([grad])
    Group(2).all_well(work)
    with gcomp.open("sign", comm=gcomp.Comm(0, 2)) as gc:
        gc.add_tensor("w", 60, 40)
        gc.step_begin()
        gc.step_ready(0, noise(2400))
        request = gc.step_next()
        raises(gcomp.Error, lambda: gc.step_done(request, failed=True), "CALLBACK_FAILED")
        raises(gcomp.Error, lambda: gc.step_done(request, [request.send] * 2), "no request")


@test
def a_sum_of_another_length_or_type_is_refused_and_nothing_is_copied():
    def odd(data):
        return memoryview(bytearray(data)).cast
    for codec in ("none", "intsum:bits=8"):
        with gcomp.open(codec, comm=gcomp.Comm(0, 2, allreduce=print, allreduce_max=print, allreduce_dtypes=("int8", "int16", "int32"))) as gc:
            gc.add_tensor("w", 60, 40)
            gc.step_begin()
            gc.step_ready(0, noise(2400))
            request = gc.step_next()
            while request.kind == "allgather":
                gc.step_done(request, frames(request.send, 2))
                request = gc.step_next()
            right, one = request.data, request.data.itemsize
            assert right.nbytes < 10000 and request.kind.startswith("allreduce")
            count = len(right)
            for wrong, kind, words in (
                    (odd(4 << 20)(right.format), ValueError, ("%d elements" % ((4 << 20) // one), "not %d" % count)),
                    (odd(one * (count - 1))(right.format), ValueError, ("%d elements" % (count - 1), "not %d" % count)),
                    (odd(0)(right.format), ValueError, ("0 elements",)), (odd(8 * count)("d"), TypeError, ("format 'd'",)),
                    (odd(count)("B"), TypeError, ("format 'B'",)), (None, TypeError, ("NoneType",)), ([1.0] * count, TypeError, ("list",)),
                    (np.zeros((count, 2), right.format)[:, :1 + (count == 1)], ValueError, ("contiguous",) if count > 1 else ("2 elements",))):
                request.data = wrong
                raises(kind, lambda: gc.step_done(request), "request.data", *words)
            request.data = np.asarray(right) * (2 if request.kind == "allreduce" else 1)
            request.kind, request.id = "allgather", 0  # only what C has asked for counts
            gc.step_done(request)
            del request.data
            raises(gcomp.Error, lambda: gc.step_done(request), "no request")
            raises(gcomp.Error, lambda: gc.step_done(gcomp.Request()), "no request")
            gc.step_abort()

    class Grows(Threads):
        def allreduce(self, data, dtype):
            super().allreduce(data, dtype)
            memory = data.obj
            data.release()
            memory.extend(bytes(1 << 20))

    def work(comm):
        with gcomp.open("none", comm=Grows(comm.group, comm.rank)) as gc:
            gc.add_tensor("w", 60, 40)
            raises(ValueError, lambda: gc.exchange([noise(2400)]), "released")
    Group(2).all_well(work)


def frames(mine, world):
    """What workers would bring to an allgather who do what this one does. A frame has the rank and a checksum of its own."""
    made = [bytearray(mine) for _ in range(world)]
    for rank, frame in enumerate(made):
        if len(frame) == 64 and frame[:4] == b"GCF1":
            crc, frame[4:8] = 0xffffffff, rank.to_bytes(4, "little")
            for byte in frame[:60]:
                crc ^= byte
                for _ in range(8):
                    crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
            frame[60:] = (crc ^ 0xffffffff).to_bytes(4, "little")
    return made


@test
def what_c_shows_is_copied_before_another_thread_may_free_it():
    with gcomp.open("none", comm=gcomp.Comm(0, 2)) as gc:
        gc.add_tensor("w", 60, 40)
        seen, rights = [], {}

        def watched(name, right):
            def call(*arguments):
                seen.append((name, gc._lock.locked()))
                return right(*arguments)
            return call
        for name in ("_numbers", "_cut", "_offsets"):
            rights[name] = getattr(gcomp, name)
            setattr(gcomp, name, watched(name, rights[name]))
        right, gcomp.Codec._from = gcomp.Codec._from, watched("_from", gcomp.Codec._from)
        end, gc._end = gc._end, lambda: (seen.append(("_end", gc._lock.locked())), end())
        try:
            assert str(gc.codec(0)) == "none"
            gc.step_begin()
            gc.step_ready(0, noise(2400))
            request = gc.step_next()
            while request.kind == "allgather":
                gc.step_done(request, frames(request.send, 2))
                request = gc.step_next()
            gc.step_abort()
            gc.restart(5)
        finally:
            gcomp.Codec._from = right
            for name, function in rights.items():
                setattr(gcomp, name, function)
        assert {"_from", "_numbers", "_end"} <= {name for name, _ in seen} and all(locked for _, locked in seen), seen


@test
def shapes_without_elements_and_gradients_that_overlap_are_refused():
    with gcomp.open("none") as gc:
        for shape, words in (((10, 0), "cols is 0"), ((0, 10), "rows is 0"), ((0,), "rows is 0"), ((0, 0), "rows is 0")):
            raises(ValueError, lambda: gc.add_tensor("empty", *np.zeros(shape).shape), "tensor 'empty'", words, "no elements")
        raises(ValueError, lambda: gc.add_tensor("empty", 3, 3, stack=0), "tensor 'empty'", "stack is 0")
        for call in (gcomp.rounds, lambda codec, *tensor: gcomp.memory_needed(codec, [tensor]), lambda codec, *tensor: gcomp.advise([tensor], bits_per_second=1, world=2)):
            raises(ValueError, lambda: call("sign", "empty", 10, 0), "tensor 'empty'", "cols is 0")
        assert len(gc) == 0
        assert gc.add_tensor("a", 30, 20) == 0 and gc.add_tensor("b", 30, None) == 1 and gc.shape(1) == (30, 1, 1)
        raises(ValueError, lambda: gc.exchange([np.zeros((30, 0), "f"), noise(30)]), "tensor 'a'", "0 elements", "not 600")
        raises(ValueError, lambda: gc.exchange([memoryview(bytearray(2401))[1:].cast("f"), noise(30)]), "tensor 'a'", "aligned")
        raises(ValueError, lambda: gc.exchange_flat(memoryview(bytearray(2521))[1:].cast("f")), "aligned")
        both = noise(640)
        raises(ValueError, lambda: gc.exchange([both[:600], both[590:620]]), "'a' and 'b'", "share memory")
        raises(ValueError, lambda: gc.exchange([both[10:610], both[:30]]), "'b' and 'a'", "share memory")
        gc.exchange([both[:600], both[600:630]])


# ---------------- weights

def weights_of(rank):
    return {"a": noise(3000, rank).reshape(60, 50), "steps": np.arange(3) + rank, "b": array.array("d", [rank] * 300000), "none": np.zeros(0, "f")}


@test
def workers_get_the_weights_of_worker_0_or_are_told_which_differ():
    def alike(comm):
        comm.uneven = comm.group.world == 2
        weights = weights_of(comm.rank)
        with gcomp.open("int", comm=comm) as gc:  # an exchange does not notice
            gc.add_tensor("a", 60, 50)
            gc.exchange([noise(3000)])
        error = raises(gcomp.Error, lambda: gcomp.compare_weights(weights, comm), "worker 1 has another 'a' than worker 0")
        assert error.code == gcomp.MISMATCH
        gcomp.broadcast_weights(weights, comm)
        gcomp.compare_weights(list(weights.items()), comm)
        assert all(x.tobytes() == y.tobytes() for x, y in zip(weights.values(), weights_of(0).values()))
        weights["b"][299999] += comm.rank == comm.world - 1
        raises(gcomp.Error, lambda: gcomp.compare_weights(weights, comm), "worker %d has another 'b'" % (comm.world - 1))
    for world in (2, 3):
        Group(world).all_well(alike)
    gcomp.compare_weights(weights_of(0), gcomp.Comm())
    gcomp.broadcast_weights(weights_of(0), gcomp.Comm())

    def unlike(comm, spoil):
        weights = weights_of(comm.rank)
        if comm.rank == 1:
            spoil(weights, comm)
        before = {name: bytes(memoryview(x)) for name, x in weights.items() if not isinstance(x, list)}
        found = []
        for call in (gcomp.broadcast_weights, gcomp.compare_weights)[:1 if spoil is fails else 2]:
            try:
                call(weights, comm)
            except Exception as error:
                found.append("%s %s" % (getattr(error, "name", type(error).__name__), getattr(error, "sentence", "")))
        assert before == {name: bytes(memoryview(x)) for name, x in weights.items() if not isinstance(x, list)}
        return found

    def fails(weights, comm):
        right, calls = comm.allgather, []

        def call(mine):
            calls.append(1)
            everyone = right(mine)
            return everyone[:1] if len(calls) == 6 else everyone  # the last piece of the last array
        comm.allgather = call
    for spoil, own, others in (
            (lambda w, c: w.update(a=noise(2999)), "another size of 'a'", "another size of 'a'"), (lambda w, c: w.pop("b"), "has 3 weights", "has 3 weights"),
            (lambda w, c: w.update(steps=[1, 2]), "TypeError", "GCOMP_PEER_FAILED"), (fails, "ValueError", "GCOMP_PEER_FAILED")):
        for rank, found in enumerate(Group(3).all_well(lambda comm: unlike(comm, spoil))):
            assert found and (own if rank == 1 else others) in found[0], (rank, found)
            assert spoil is fails or (own if rank == 1 else others).split(" size of ")[-1] in found[1], (rank, found)


# ---------------- advice

MODEL = [("one", 400, 300), ("half", 300, 200, None, "bf16"), ("stack", 50, 60, 4), ("bias", 400)]
FIGURES = {"none": (1e-6, 1e-10, 0, 0), "topk:density=0.01": (2e-6, 2e-9, 1e-10, 0.05), "sign": (2e-6, 5e-10, 1e-10, 0.13),
           "int:bits=4": (2e-6, 1e-9, 2e-10, 0.53), "powersgd:rank=2": (2e-5, 3e-9, 0, 0)}


@test
def figures_that_are_given_decide_and_advice_is_ready_for_use():
    for optimizer in ("sgd", "adam", "unknown"):
        slow = gcomp.advise(MODEL, bits_per_second=1e8, world=4, candidates=FIGURES, optimizer=optimizer)
        assert all(slow.codecs[:3]) and slow.codecs[3] is None, slow
        assert slow.seconds < slow.plain / 4 and abs(slow.seconds - slow.codec_seconds - slow.link_seconds) < 1e-9
        for codec in slow.codecs[:3]:
            assert optimizer != "adam" or gcomp.Codec(codec).warning("adam") is None, codec
        assert "one: " + slow.codecs[0] in str(slow) and "bias: none" in str(slow) and "4 workers" in str(slow)
        with gcomp.open(optimizer=optimizer) as gc:
            for (name, *shape), codec in zip(MODEL[::3], slow.codecs[::3]):
                gc.add_tensor(name, *shape, codec=codec)
            assert gc.codec(0) == gcomp.Codec(slow.codecs[0]) and str(gc.codec(1)) == "none"
        fast = gcomp.advise(MODEL, bits_per_second=1e12, latency=0, world=4, candidates=slow.figures, optimizer=optimizer)
        assert fast.codecs == [None] * 4 and fast.seconds == fast.plain > 0 and "do not compress" in str(fast), fast
        assert fast.figures == slow.figures == FIGURES
        assert abs(fast.seconds - fast.codec_seconds - fast.link_seconds) < 1e-12
        measured = gcomp.advise(MODEL, bits_per_second=1e9, world=4, optimizer=optimizer)  # what this machine takes is nobody's to know
        assert set(measured.codecs) <= {None, *measured.figures} and "none" in measured.figures and len(measured.figures) == 4, measured
        assert all(len(four) == 4 and min(four) >= 0 for four in measured.figures.values())
        for codec in filter(None, measured.codecs):
            assert optimizer == "sgd" or gcomp.Codec(codec).warning("adam") is None, codec
        assert abs(measured.seconds - measured.codec_seconds - measured.link_seconds) < 1e-9 and str(measured)


@test
def advice_adds_up_what_candidates_and_links_take():
    def ask(bits, **more):
        return gcomp.advise(MODEL, **{"bits_per_second": bits, "world": 4, "candidates": FIGURES, "latency": 1e-5, **more})
    found = ask(1e8)
    assert found.figures == FIGURES and found.world == 4 and found.tensors == ["one", "half", "stack", "bias"]
    assert all(abs(a / b - 1) < 1e-9 for a, b in zip(found.link, (6e-5, 1.2e-7, 3e-5, 2.4e-7, 3e-5, 6e-8))), found.link
    n = 120000
    one = gcomp.advise(MODEL[:1], bits_per_second=1e8, world=4, latency=1e-5, candidates={k: FIGURES[k] for k in ("none", "powersgd:rank=2")})
    frame = 3e-5 + 64 * 2.4e-7
    assert abs(one.plain / (1e-6 + n * 1e-10 + 4 * n * 1.2e-7 + 6e-5 + frame) - 1) < 1e-9, one.plain
    assert one.codecs == ["powersgd:rank=2"] and abs(one.codec_seconds / (2e-5 + n * 3e-9) - 1) < 1e-9
    assert abs(one.link_seconds / (4 * 2 * 700 * 1.2e-7 + 2 * 6e-5 + frame) - 1) < 1e-9, one.link_seconds
    assert found.codecs[0] == "powersgd:rank=2"
    poor = ({k: FIGURES[k] for k in ("topk:density=0.01", "sign")}, [gcomp.Codec("sign"), "none", "topk:density=0.01"], ("sign", "topk:density=0.01"))
    for candidates in poor:  # which Adam does not get
        assert ask(1e8, candidates=candidates).codecs[0] in ("sign", "topk:density=0.01")
        assert ask(1e8, candidates=candidates, optimizer="adam").codecs == [None] * 4
    assert ask(1e8, optimizer="adam", candidates={k: FIGURES[k] for k in ("none", "sign", "int:bits=4")}).codecs[:3] == ["int:bits=4"] * 3
    assert ask(1e8, world=1).codecs == [None] * 4 and ask(1e8, candidates=[]).codecs == [None] * 4
    assert ask(1e8, min_elements=70000).codecs[1:] == [None] * 3
    part = 1 - found.seconds / found.plain
    assert ask(1e8, least_gain=part - 0.001).codecs == found.codecs and ask(1e8, least_gain=part + 0.001).codecs == [None] * 4
    ticks = []

    def clock():
        ticks.append(1)
        return float(len(ticks))
    slow = ask(1e8, candidates=["sign"], clock=clock)
    assert len(ticks) > 10 and slow.codecs == [None] * 4 and slow.figures["sign"][0] + slow.figures["sign"][1] > 0  # seconds for each of its calls
    assert gcomp.advise([], bits_per_second=1e8, world=4).codecs == []


@test
def wrong_questions_to_the_adviser_are_errors():
    link = dict(bits_per_second=1e9, world=4)
    cases = [
        (TypeError, lambda: gcomp.advise(MODEL), "bits_per_second"), (TypeError, lambda: gcomp.advise(MODEL, bits_per_second=1e9), "world"),
        (TypeError, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(), **link), "comm"), (TypeError, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(), world=2), "comm"),
        (TypeError, lambda: gcomp.advise(MODEL, comm=7), "gcomp.Comm"), (TypeError, lambda: gcomp.advise(7, **link), ""),
        (ValueError, lambda: gcomp.advise(["w"], **link), "unpack"), (ValueError, lambda: gcomp.advise([("w", 5, 5, None, "fp8")], **link), "dtype"),
        (ValueError, lambda: gcomp.advise([("w", 0)], **link), "tensor 'w': rows"), (ValueError, lambda: gcomp.advise([("w", -1)], **link), "rows"),
        (gcomp.Error, lambda: gcomp.advise([("w", 2 ** 40, 2 ** 40)], **link), "tensor 'w'"),
        (ValueError, lambda: gcomp.advise(MODEL, bits_per_second=0, world=4), "bits_per_second"),
        (ValueError, lambda: gcomp.advise(MODEL, bits_per_second=float("nan"), world=4), "bits_per_second"),
        (TypeError, lambda: gcomp.advise(MODEL, bits_per_second="fast", world=4), "bits_per_second"),
        (ValueError, lambda: gcomp.advise(MODEL, latency=-1, **link), "latency"), (TypeError, lambda: gcomp.advise(MODEL, bits_per_second=1e9, world=2.5), "whole"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, candidates=["sing"], **link), "sing"), (TypeError, lambda: gcomp.advise(MODEL, candidates="sign", **link), "list"),
        (TypeError, lambda: gcomp.advise(MODEL, candidates=[7], **link), "text"), (TypeError, lambda: gcomp.advise(MODEL, candidates={"sign": 1}, **link), ""),
        (ValueError, lambda: gcomp.advise(MODEL, candidates={"sign": (1, 2)}, **link), "not 4"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, candidates={"sign": (1, 2, 3, -4)}, **link), "figures are finite"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, candidates=["int:bits=4"] + ["topk:density=0.0%d" % i for i in range(1, 17)], **link), "16 candidates"),
        (ValueError, lambda: gcomp.advise(MODEL, least_gain=1, **link), "least_gain"), (ValueError, lambda: gcomp.advise(MODEL, link_bytes=-1, **link), "link_bytes"),
        (TypeError, lambda: gcomp.advise(MODEL, colour=1, **link), "colour"), (ValueError, lambda: gcomp.advise(MODEL, optimizer="lamb", **link), "lamb"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(0, 2)), "allgather is missing"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(2, 2, allreduce=print, allgather=lambda mine: [mine, mine])), "comm.rank is 2"),
        (gcomp.Error, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(0, 2, allgather=lambda mine: [mine, mine])), "allreduce is missing"),
        (ValueError, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(0, 2, allreduce=print, allgather=lambda mine: [mine])), "1 workers, not of 2"),
        (TypeError, lambda: gcomp.advise(MODEL, comm=gcomp.Comm(0, 2, allreduce=print, allgather=lambda mine: None)), "list"),
    ]
    for kind, call, words in cases:
        raises(kind, call, words)


@test
def workers_measure_their_link_and_all_get_the_advice_of_the_first():
    def work(comm):
        found = gcomp.advise(MODEL, comm=comm, optimizer="adam", link_bytes=100000)
        given = {**FIGURES, "sign": (1e-6 * (1 + comm.rank), 1e-10, 0, 0.1)}  # of worker 0 they count
        own = gcomp.advise(MODEL, comm=comm, candidates=given, min_elements=1 if comm.rank else 2 ** 40)
        return found, own
    results = Group(3).all_well(work)
    for found, own in results:
        assert vars(found) == vars(results[0][0]) and vars(own) == vars(results[0][1])
        assert len(found.link) == 6 and all(0 <= x < float("inf") for x in found.link) and set(found.codecs) <= {None, *found.figures}, found.link
        assert own.codecs == [None] * 4 and own.figures["sign"] == (1e-6, 1e-10, 0, 0.1)
    one = gcomp.advise(MODEL, comm=gcomp.Comm())
    assert one.link == (0,) * 6 and one.world == 1


@test
def an_error_of_one_worker_that_asks_is_known_to_all():
    class Odd(Exception):
        pass

    def work(comm, spoil):
        question = dict(comm=comm, candidates=FIGURES, link_bytes=5000)
        if comm.rank == 1:
            spoil(question)
        try:
            gcomp.advise(question.pop("tensors", MODEL), **question)
        except Exception as error:
            return getattr(error, "name", type(error).__name__)
        return "none"

    def fail_at(name, count):
        def spoil(question):
            comm, calls = question["comm"], []
            right = getattr(comm, name)

            def call(*arguments):
                calls.append(1)
                if len(calls) == count:
                    comm.group.barrier.abort()
                    raise Odd("call %d" % count)
                return right(*arguments)
            setattr(comm, name, call)
        return spoil
    peer, other = "GCOMP_PEER_FAILED", "GCOMP_MISMATCH"
    for spoil, own, theirs in (
            (lambda q: q.update(tensors=[("w", "x")]), "TypeError", peer), (lambda q: q.update(candidates=["sing"]), "GCOMP_BAD_CODEC", peer),
            (lambda q: q.update(colour=1), "TypeError", peer), (lambda q: setattr(q["comm"], "allreduce", None), "GCOMP_MISSING_CALLBACK", peer),
            (lambda q: q.update(tensors=MODEL[:2]), other, other), (lambda q: q.update(candidates=["sign"]), other, other),
            (lambda q: q.update(link_bytes=6000), other, other), (lambda q: q.update(candidates={**FIGURES, "sign": (-1, 0, 0, 0)}), "GCOMP_INVALID_ARGUMENT", peer),
            (lambda q: setattr(q["comm"], "alltoall", None), other, other)):
        assert Group(3).run(lambda comm: work(comm, spoil)) == [theirs, own, theirs], (own, Group(3).run(lambda comm: work(comm, spoil)))
    broken = "BrokenBarrierError"  # of the transport of the others: it comes out too
    for name, counts in (("allgather", (1, 2, 5, 10)), ("allreduce", (1, 2, 6, 10)), ("alltoall", (1, 8))):
        for count in counts:
            assert Group(3).run(lambda comm: work(comm, fail_at(name, count))) == [broken, "Odd", broken], (name, count)


@test
def the_module_prints_what_it_has():
    done = subprocess.run([sys.executable, "-m", "gcomp"], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0 and "gcomp " + gcomp.version() in done.stdout and "scalar" in done.stdout, done.stderr
    for method in gcomp.methods():
        assert "\n%s " % method in done.stdout, method


def readme_blocks():
    with open(os.path.join(ROOT, "README.md")) as f:
        return re.findall(r"^```python\n(.*?)^```", f.read(), re.S | re.M)


@test
def the_code_of_the_readme_runs_and_prints_what_it_says():
    code = readme_blocks()[0]
    assert len(code.splitlines()) <= 10
    done = python(code, PYTHONPATH=HERE)
    assert done.returncode == 0, done.stderr
    said = re.search(r"^print.*# (.*)$", code, re.M)[1]
    assert done.stdout == said + "\n", done.stdout


@test
def the_server_of_the_readme_learns_from_three_devices():
    port, means = free_port(), []
    code = readme_blocks()[1]
    assert len(code.splitlines()) <= 12 and '("", 7077)' in code and "560" in code

    class Enough(Exception):
        pass

    def learn(mean):
        means.append(list(mean))
        if len(means) == 2:
            raise Enough

    def device(number):
        payload = gcomp.seal(gcomp.encode("sign", array.array("f", 4096 * [number - 1.5])))
        for attempt in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    server.sendall(payload)
                return
            except ConnectionRefusedError:
                time.sleep(0.05)

    devices = [threading.Thread(target=device, args=(number % 3 + 1,)) for number in range(6)]
    for thread in devices:
        thread.start()
    try:
        exec(code.replace("7077", str(port)), {"learn": learn})
    except Enough:
        pass
    for thread in devices:
        thread.join()
    assert len(means) == 2, means
    assert abs(sum(mean[0] for mean in means) / 2 - 0.5) < 1e-6, means  # the mean of -0.5, 0.5 and 1.5, twice


# ---------------- workers over TCP

WORKERS = {}  # what a process does, by name: from rank, world and address to what it prints
SECRET = "6" * 64


def worker(function):
    WORKERS[function.__name__] = function
    return function


def over_sockets(work, world):
    """What the workers print, or "died"."""
    roots = ["127.0.0.1:%d" % port for port in (free_port(), free_port())]
    processes = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--worker", work.__name__, str(rank), str(world), roots[0]],
                                  env={**os.environ, "NEXT_ROOT": roots[1]}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for rank in range(world)]
    results = []
    for process in processes:
        out, errors = process.communicate(timeout=600)  # which is not a fact, but the end of a test that hangs
        assert process.returncode in (0, 3), errors
        results.append(out.strip() if process.returncode == 0 else "died")
    return results


def free_port():
    """Below those that the system hands out to others."""
    while True:
        port = random.SystemRandom().randrange(10000, 32768)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class InOrder(Threads):
    """Sums of all types, as gcomp_sockets.h makes them: of halves in fp32, rounded once."""

    allreduce_dtypes = gcomp.Sockets.allreduce_dtypes

    def allreduce(self, data, dtype):
        if dtype not in ("fp16", "bf16"):
            return super().allreduce(data, dtype)
        numbers = np.asarray(data)
        total, other = (np.empty(numbers.size, np.float32) for _ in range(2))
        for w, part in enumerate(self.swap(numbers.copy())):
            gcomp.to_float(other if w else total, part, dtype=dtype)
            if w:
                total += other
        gcomp.from_float(numbers, total, dtype=dtype)


def means_of(comm, codec):
    """The means of three steps: by exchange, and by steps over the library's memory or by copies."""
    with gcomp.open(codec, comm=comm, min_elements=100) as gc, gcomp.open(codec, comm=comm, min_elements=100) as steps:
        tensors(gc)
        tensors(steps)
        seen = b""
        for step in range(3):
            one, two = gradients(comm.rank, step), gradients(comm.rank, step)
            gc.exchange(one)
            steps.step_begin()
            for i in (2, 0, 1):
                steps.step_ready(i, two[i])
            if step == 2:
                steps.step_finish()
            while step < 2:
                if step and hasattr(comm, "carry_out_raw"):
                    raw = steps._next()
                    if raw.kind == 1:
                        break
                    comm.carry_out_raw(raw)
                    steps._done(raw, 0)
                else:
                    request = steps.step_next()
                    if request.kind == "done":
                        break
                    steps.step_done(request, comm.carry_out(request))
            if step < 2:
                steps.step_commit()
            assert as_bytes(one) == as_bytes(two) != as_bytes(gradients(comm.rank, step))
            seen += as_bytes(one)
        return seen


@worker
def exchange(rank, world, root):
    with gcomp.Sockets(rank, world, root, SECRET, 300, 300) as net:
        return [hashlib.sha256(means_of(net, codec)).hexdigest() for codec in CODECS]


@worker
def threads(rank, world, root):
    """Workers that are threads of one process: each waits in C for the other one, which a GIL that is held would keep from coming."""
    came = []

    def one(rank):
        with gcomp.Sockets(rank, 2, root, SECRET, 1e5, 1e5) as net, gcomp.open("int:bits=4", comm=net, min_elements=100) as gc:
            tensors(gc)
            for step in range(3):
                grads = gradients(rank, step)
                gc.exchange(grads)
            came.append(as_bytes(grads))
    both = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    return len(came) == 2 and came[0] == came[1]


@test
def the_gil_is_free_while_c_works():
    assert over_sockets(threads, 1) == ["True"]


@test
def workers_over_sockets_have_the_bits_of_sums_in_the_order_of_ranks():
    for world in (2, 4):
        expected = [hashlib.sha256(Group(world).all_well(lambda comm: means_of(InOrder(comm.group, comm.rank), codec))[0]).hexdigest()
                    for codec in CODECS]
        results = over_sockets(exchange, world)
        assert results == [str(expected)] * world, (world, expected, results)


@worker
def collectives(rank, world, root):
    every = [noise(5001, w) for w in range(world)]
    with gcomp.Sockets(rank, world, root, SECRET.encode(), 300, 300) as net:
        for dtype in ("fp32", "fp16", "bf16", "int8", "int16", "int32"):
            if dtype in ("fp16", "bf16"):
                parts = [gcomp.from_float(np.empty(5001, np.uint16), x, dtype=dtype) for x in every]
                wide = [gcomp.to_float(np.empty(5001, np.float32), part, dtype=dtype) for part in parts]
                expected = gcomp.from_float(np.empty(5001, np.uint16), sum(wide[1:], wide[0]), dtype=dtype)
            else:
                parts = [x if dtype == "fp32" else (20 * x).astype(dtype) for x in every]
                expected = sum(parts[1:], parts[0])
            own = parts[rank].copy()
            net.allreduce(own, dtype)
            assert own.tobytes() == expected.tobytes() and own.dtype == expected.dtype, dtype
        own = every[rank].copy()
        net.allreduce_max(own)
        assert own.tobytes() == np.maximum.reduce(every).tobytes()
        net.allreduce(array.array("f"))
        assert net.allgather(b"") == [b""] * world
        assert net.allgather(bytes([rank]) * 100 * rank) == [bytes([w]) * 100 * w for w in range(world)]
        assert net.allgather(every[rank]) == [x.tobytes() for x in every]
        assert net.alltoall([bytes([rank, w]) * (rank + 3 * w) for w in range(world)]) == [bytes([w, rank]) * (w + 3 * rank) for w in range(world)]
        raises(TypeError, lambda: net.allreduce(np.zeros(4, np.int32)), "format 'i'")
        raises(ValueError, lambda: net.allreduce(np.zeros(4, np.uint8), "uint8"), "uint8")
        raises(ValueError, lambda: net.alltoall([b""] * (world + 1)), "parts")
        raises(TypeError, lambda: copy.copy(net), "copied")
        net.allgather(b"")
        error = raises(gcomp.Error, lambda: net.allreduce(np.zeros(8 + rank, np.float32)), "different sizes")
        assert error.code == gcomp.MISMATCH
        advice = gcomp.advise(MODEL, comm=net, candidates=FIGURES, link_bytes=5000)
        assert net.allgather(str(advice).encode()) == [str(advice).encode()] * world
    raises(gcomp.Error, lambda: net.allgather(b""), "closed")
    net.close()
    return "well"


@test
def collectives_over_sockets_are_those_of_numpy():
    for world in (2, 4):
        assert over_sockets(collectives, world) == ["well"] * world


@worker
def wrong_secret(rank, world, root):
    secret = "another" if rank == 1 else SECRET
    with gcomp.Sockets(rank, world, os.environ["NEXT_ROOT"], SECRET, 300, 300) as net:  # they begin together
        net.allgather(b"")
    error = raises(OSError, lambda: gcomp.Sockets(rank, world, root, secret, 5, 300), "worker %d of %d" % (rank, world))
    return type(error).__name__


@test
def a_wrong_secret_is_an_error_on_all():
    for world in (2, 4):
        assert over_sockets(wrong_secret, world) == ["PermissionError" if rank == 1 else "TimeoutError" for rank in range(world)]


@worker
def dies(rank, world, root):
    net = gcomp.Sockets(rank, world, root, SECRET, 300, 1e5)  # a silence that is longer than a test may take
    with gcomp.open("int:bits=4", comm=net, min_elements=100) as gc:
        tensors(gc)
        gc.exchange(gradients(rank, 0))
        own = gradients(rank, 1)
        net.allgather(b"")
        if rank == 1:
            time.sleep(0.3)  # the others wait for this one now
            os._exit(3)
        error = raises(gcomp.Error, lambda: gc.exchange(own), "allgather")
        assert error.code == gcomp.CALLBACK_FAILED and error.kind == "resynchronise", error
        assert as_bytes(own) == as_bytes(gradients(rank, 1))
        for call in (lambda: net.allreduce(own[0]), lambda: net.allgather(b"")):
            assert raises(gcomp.Error, call, "gone").code == gcomp.CALLBACK_FAILED
        assert net.closed is False
        net.close()
        if world > 2:  # those that are left go on
            left = [w for w in range(world) if w != 1]
            with gcomp.Sockets(left.index(rank), len(left), os.environ["NEXT_ROOT"], SECRET, 300, 300) as net:
                gc.regroup(net)
                gc.exchange(own)
                assert len({*net.allgather(as_bytes(own))}) == 1 and net.world == gc.world == world - 1
    return "well"


@test
def a_worker_that_dies_is_an_error_on_the_others_at_once():
    for world in (2, 4):
        assert over_sockets(dies, world) == ["died" if rank == 1 else "well" for rank in range(world)]


@worker
def comes_and_goes(rank, world, root):
    """Worker 1 dies in a step; the last one comes later, and is there before or after the others have regrouped."""
    newcomer = rank == world - 1
    net = gcomp.Sockets.join(root, SECRET, 300, 1e5) if newcomer else gcomp.Sockets(rank, world - 1, root, SECRET, 300, 1e5, elastic=True)
    if not newcomer:
        assert net.left == list(range(world - 1)) and net.gone == [] and net.joined == 0
        gc = gcomp.open("int:bits=4", comm=net, min_elements=100)
        tensors(gc)
        gc.exchange(gradients(rank, 0))
        if rank == 1:
            os._exit(3)
        own = gradients(rank, 1)
        assert raises(gcomp.Error, lambda: gc.exchange(own)).kind == "resynchronise"
        assert as_bytes(own) == as_bytes(gradients(rank, 1))
        net.regroup(300)
        assert net.gone == [1] and [w for w in net.left if w >= 0] == [w for w in range(world - 1) if w != 1], (net.gone, net.left)
        gc.regroup(net)
        while not net.joined:
            if net.waiting():
                net.regroup(300)
                assert net.gone == []
                gc.regroup(net)
    assert net.joined == 1 and net.left[-1] == -1 and net.world == world - 1 and (net.rank == world - 2) == newcomer
    if newcomer:
        gc = gcomp.open("int:bits=4", comm=net, min_elements=100)
        tensors(gc)
    save = net.allgather(b"" if net.rank else gc.save())[0]
    if newcomer:
        gc.join(save)
        own = gradients(rank, 1)
    assert gc.step_number == 1 and gc.world == net.world
    gc.exchange(own)
    assert len({*net.allgather(as_bytes(own))}) == 1
    net.allgather(b"")
    gc.close()
    net.close()
    raises(gcomp.Error, net.regroup, "closed")
    return "well"


@test
def workers_that_are_left_regroup_and_a_newcomer_joins():
    for world in (3, 4):
        assert over_sockets(comes_and_goes, world) == ["died" if rank == 1 else "well" for rank in range(world)]
    root = "127.0.0.1:%d" % free_port()
    with gcomp.Sockets(0, 1, root) as net:
        raises(OSError, net.regroup, "did not regroup")  # not elastic
        raises(gcomp.Error, net.waiting)
    with gcomp.Sockets(0, 1, root, elastic=True) as net:
        raises(TimeoutError, lambda: net.regroup(5, 2), "did not regroup")  # nobody else comes
        raises(gcomp.Error, net.waiting)
        net.regroup()
        assert (net.rank, net.world, net.left, net.gone, net.waiting()) == (0, 1, [0], [], 0)
        raises(OSError, lambda: net.regroup(0), "did not regroup")
        raises(OSError, lambda: net.regroup(5, 0), "did not regroup")
    raises(TimeoutError, lambda: gcomp.Sockets.join(root, rendezvous=0.3), "did not meet")


@worker
def forks(rank, world, root):
    listener = socket.socket()
    if rank == 1:
        listener.bind(("127.0.0.1", int(os.environ["NEXT_ROOT"].split(":")[1])))
        listener.listen()
    with gcomp.Sockets(rank, world, root, SECRET, 300, 300) as net:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(gcomp.Error):
                net.allgather(b"")
                os._exit(1)
            net.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert net.allgather(bytes([rank])) == [bytes([w]) for w in range(world)]
        host, port = os.environ["NEXT_ROOT"].split(":")
        if rank == 0:  # the call of the other thread waits for worker 1, which waits for a word
            waits = threading.Thread(target=lambda: net.allgather(b"late"))
            waits.start()
            with contextlib.suppress(gcomp.Error):
                while True:
                    gcomp.open("sign", comm=net).close()
            for call in (lambda: net.allgather(b""), net.close, lambda: gcomp.open("sign", comm=net)):
                assert raises(gcomp.Error, call, "another thread").code == gcomp.WRONG_STATE
            socket.create_connection((host, int(port))).close()
            waits.join()
        else:
            listener.accept()[0].close()
            net.allgather(b"late")
        gc = gcomp.open("sign", comm=net)
        gc.add_tensor("w", 40, 40)
        net.allgather(b"")
    assert raises(gcomp.Error, lambda: gc.exchange([noise(1600)])).code == gcomp.CALLBACK_FAILED
    del net  # gc keeps what it calls
    raises(gcomp.Error, lambda: gc.exchange([noise(1600)]))
    return "well"


@test
def a_transport_that_is_closed_busy_or_forked_says_so():
    assert over_sockets(forks, 2) == ["well"] * 2
    for wrong in (dict(rank=2), dict(world=0), dict(root="10.0.0.1"), dict(root=":7077"), dict(root="here:none"), dict(root="here:70000"),
                  dict(secret=""), dict(secret="7" * 65), dict(secret="a\0b".encode()), dict(silence=0), dict(rendezvous=2e6)):
        raises(ValueError, lambda: gcomp.Sockets(**{**dict(rank=0, world=2, root="127.0.0.1:1"), **wrong}))
    raises(TypeError, lambda: gcomp.Sockets("0", 2))
    raises(OSError, lambda: gcomp.Sockets(1, 2, "127.0.0.1:%d" % free_port(), rendezvous=0.2), "worker 1 of 2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        raises(OSError, lambda: gcomp.Sockets(0, 2, "127.0.0.1:%d" % taken.getsockname()[1], rendezvous=5), "in use")
    closed = gcomp.Sockets(0, 1)
    closed.close()
    raises(gcomp.Error, lambda: gcomp.open("sign", comm=closed), "closed")
    raises(gcomp.Error, lambda: gcomp.Sockets.__new__(gcomp.Sockets).carry_out_raw(gcomp._Request()), "closed")


@worker
def interrupted(rank, world, root):
    """Worker 0 waits: for worker 1 to come, or in a collective, or in a step. All times are longer than a test may take."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    where = os.environ["WAITS"]
    if where == "to open" and rank == 1:
        sys.stdin.read()
        return "well"
    if where == "to open":
        print("began", flush=True)
    net = gcomp.Sockets(rank, world, root, SECRET, 1e5, 1e5)
    gc = gcomp.open("int:bits=4", comm=net, min_elements=100)
    tensors(gc)
    own = gradients(rank, 0)
    if rank == 1:
        sys.stdin.read()  # worker 0 is gone
        raises(gcomp.Error, lambda: net.allgather(b""))
        return "well"
    print("began", flush=True)
    try:
        if where == "in a step":
            gc.exchange(own)
        net.allgather(b"")
    finally:
        assert as_bytes(own) == as_bytes(gradients(rank, 0))
    return "not interrupted"


@test
def ctrl_c_is_heard_while_sockets_wait():
    for where in ("to open", "in a collective", "in a step"):
        root = "127.0.0.1:%d" % free_port()
        one, two = (subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--worker", "interrupted", str(rank), "2", root],
                                     env={**os.environ, "WAITS": where}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE) for rank in range(2))
        assert one.stdout.readline() == "began\n"
        time.sleep(0.5)  # it waits by now; if not, the test is about less, and passes
        one.send_signal(signal.SIGINT)
        errors = one.communicate(timeout=300)[1]
        assert one.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt"), (where, one.returncode, errors)
        assert "ignored" not in errors, errors
        out, errors = two.communicate("", timeout=300)
        assert out.strip() == "well", (where, out, errors)


# ---------------- random calls


def random_calls(seed, calls):
    """Calls anything with anything. Only errors of the known kinds may come out, and the interpreter must stay."""
    faulthandler.enable()
    rng = random.Random(seed)
    allowed = (gcomp.Error, TypeError, ValueError, IndexError, KeyError, OverflowError, BufferError, threading.BrokenBarrierError)
    n = 1500
    codecs = gcomp.methods() + ["int:bits=4", "topk:density=0.1+sign", "powersgd:rank=2", "none", "int:bits=3", "", "a" * 400, "é", "none\0"]

    def payload():
        codec = rng.choice(codecs)
        try:
            made = bytearray(gcomp.encode(codec, noise(rng.choice((0, 1, 60, n)), rng.randrange(9)), checksum=rng.random() < 0.3, key=(0, 7)))
        except allowed:
            made = bytearray(rng.randrange(80))
        if rng.random() < 0.5:
            for _ in range(rng.randrange(4)):
                if made:
                    made[rng.randrange(len(made))] = rng.randrange(256)
            if rng.random() < 0.2:
                del made[rng.randrange(len(made) + 1):]
        return rng.choice((bytes, bytearray, memoryview, lambda b: np.frombuffer(bytes(b), np.uint8)))(made)

    def anything():
        return rng.choice((
            lambda: None, lambda: rng.randrange(-2, 4), lambda: 2 ** rng.randrange(70), lambda: rng.choice((0.5, -1.0, float("nan"), 1e300)),
            lambda: rng.choice(codecs), lambda: b"\0" * rng.randrange(100), lambda: [payload()], lambda: [], lambda: {}, lambda: object(),
            lambda: np.zeros(rng.choice((0, 1, n)), rng.choice(("f", "d", "e", "H", ">f4", "?", "U3", "O", "V0"))), lambda: noise(n)[::2],
            lambda: noise(n).reshape(-1, 5).T, lambda: np.float32(1), lambda: np.array(1.0, "f"), lambda: np.int64(3), payload, lambda: gcomp,
            lambda: "x" * rng.randrange(3), lambda: gcomp.Comm(rng.randrange(-1, 3), rng.randrange(-1, 3)), lambda: gcomp.Codec,
            lambda: memoryview(bytearray(4 * n + 1))[1:].cast("f"), lambda: iter([]), lambda: (1, 2), lambda: True, lambda: complex(1, 1)))()

    def floats():
        x = noise(rng.choice((n, n, n, 60)), rng.randrange(9))
        if rng.random() < 0.05:
            x[rng.randrange(len(x))] = rng.choice((np.inf, np.nan))
        return x

    def array_like():
        return rng.choice((floats, floats, floats, lambda: floats().astype("e"), lambda: floats().view(np.uint16), lambda: array.array("f", floats())))()

    def comm():
        def odd(right):
            def call(*arguments):
                if rng.random() < 0.1:
                    return rng.choice((lambda: None, lambda: 1 / 0, lambda: [b"x"], lambda: rng.choice(alive).close(), lambda: anything()))()
                return right(*arguments)
            return call
        made = gcomp.Comm(rng.randrange(2), 2, odd(lambda data, dtype: None), odd(lambda mine: [mine, mine]))
        if rng.random() < 0.5:
            made.alltoall = odd(lambda parts: [parts[made.rank]] * 2)
            made.allreduce_max = odd(lambda data: None)
            made.uneven = rng.random() < 0.5
        if rng.random() < 0.5:
            made.allreduce_dtypes = ("int8", "int16", "int32")
        return made

    def new():
        options = {}
        for name, values in (("residual", ("bf16", "int8", "fp32", None)), ("min_elements", (0, 1, 10)), ("aggregate", ("two_shot", "shards", "gather", "scatter")),
                             ("compress_vectors", (1,)), ("bucket_bytes", (4000,)), ("no_checksum", (1,)), ("measure", (1,)), ("check_every", (1, 2)),
                             ("isa", ("scalar", "auto"))):
            if rng.random() < 0.3:
                options[name] = rng.choice(values)
        gc = gcomp.open(rng.choice(codecs), comm=comm() if rng.random() < 0.6 else None, **options)
        for i in range(rng.randrange(4)):
            try:
                gc.add_tensor("t%d" % i, 30, 50, dtype=rng.choice(("fp32", "fp32", "fp16", "bf16")))
            except allowed:
                pass
        alive[rng.randrange(len(alive))] = gc

    def gradient(gc, i):
        x = floats()
        if i < len(gc._sizes) and rng.random() < 0.95:
            x = noise(n, rng.randrange(99))
            return x.astype("e") if gc._sizes[i][1] == 1 else x.view(np.uint16)[1::2].copy() if gc._sizes[i][1] == 2 else x
        return x

    def pair():
        """Two workers, whose collectives fail at times."""
        codec, group, seed = rng.choice(codecs[:-4]), Group(2), rng.randrange(10 ** 6)
        wrong = rng.choice((0, 0, 0.05, 0.2))

        def work(comm):
            mine = random.Random(seed + comm.rank)

            def odd(right):
                def call(*arguments):
                    if mine.random() < wrong:
                        return mine.choice((lambda: None, lambda: 1 / 0, lambda: [b"x"], gc.close, lambda: [b"", b""]))()
                    return right(*arguments)
                return call
            for name in ("allreduce", "allgather", "alltoall", "allreduce_max"):
                setattr(comm, name, odd(getattr(comm, name)))
            try:
                with gcomp.open(codec, comm=comm, aggregate=("auto", "two_shot", "scatter")[seed % 3]) as gc:
                    dtype = ("fp32", "fp16", "bf16")[seed % 7 % 3]
                    gc.add_tensor("w", 30, 50, dtype=dtype)
                    gc.add_tensor("v", 50, dtype=dtype)
                    for i in range(3):
                        x = [noise(size, i).astype("f" if dtype == "fp32" else "e") for size in (1500, 50)]
                        x = [a.view(np.uint16) for a in x] if dtype == "bf16" else x
                        if mine.random() < 0.1:
                            gc.exchange([anything(), x[1]])
                        elif mine.random() < 0.5:
                            gc.exchange(x)
                        else:
                            gc.step_begin()
                            gc.step_ready(1, x[1])
                            gc.step_ready(0, x[0])
                            while True:
                                request = gc.step_next()
                                if request.kind == "done":
                                    break
                                gc.step_done(request, comm.carry_out(request))
                            gc.step_commit()
            except BaseException:
                group.barrier.abort()
                raise
        for result in group.run(work):
            if isinstance(result, BaseException):
                raise result
    requests = []

    def step(gc):
        """A step by hand, left at any point."""
        if rng.random() < 0.9:
            gc.step_begin()
        for i in range(len(gc)):
            if rng.random() < 0.95:
                gc.step_ready(i, gradient(gc, i) if rng.random() < 0.95 else None)
        for _ in range(rng.randrange(14)):
            request = gc.step_next()
            requests[3:] = [request]
            if request.kind == "done":
                return gc.step_commit()
            if request.kind == "wait":
                return None
            same = [request.send] * 2 if request.kind == "allgather" else [request.send[0]] * 2 if request.send else None
            gc.step_done(request if rng.random() < 0.97 else rng.choice(requests), same if rng.random() < 0.97 else anything())
        return None
    alive = [gcomp.open("sign") for _ in range(6)]
    functions = [gcomp.encode, gcomp.decode, gcomp.decode_add, gcomp.mean, gcomp.retain, gcomp.check, gcomp.seal, gcomp.peek, gcomp.to_float,
                 gcomp.from_float, gcomp.momentum_step, gcomp.key, gcomp.Codec, gcomp.rounds, gcomp.memory_needed, gcomp.open, gcomp.advise]
    methods = [m for m in dir(gcomp.Gcomp) if not m.startswith("_")]

    def wild_function():
        rng.choice(functions)(*(anything() for _ in range(rng.randrange(5))))

    def wild_method():
        found = getattr(rng.choice(alive), rng.choice(methods))
        if callable(found):
            found(*(anything() for _ in range(rng.randrange(4))))

    def threads():
        gc, errors = rng.choice(alive), []
        x = [gradient(gc, i) for i in range(len(gc))]

        def call():
            try:
                gc.exchange(x)
                gc.stats()
            except allowed + (ZeroDivisionError,) as error:
                errors.append(error)
        both = [threading.Thread(target=call) for _ in range(2)]
        for t in both:
            t.start()
        for t in both:
            t.join()

    def any_of(gc):
        return rng.choice((lambda: gc.exchange([gradient(gc, i) for i in range(len(gc))]), lambda: gc.exchange_flat(noise(n * len(gc))),
                           lambda: step(gc), lambda: gc.load([gc.save()] * rng.randrange(1, 3)), lambda: gc.compress(0, 1, gradient(gc, 0)),
                           lambda: gc.commit(0, gradient(gc, 0), payload(), [payload(), payload()]), lambda: gc.give_back(0, payload()),
                           gc.step_abort, gc.describe, gc.stats, gc.prepare, lambda: gc.residual(0), lambda: gc.restart(3),
                           lambda: gc.regroup(comm()), lambda: gc.take_over(payload()), lambda: gc.join(gc.save()), gc.close))()
    def advice():
        """Mostly of figures that are given: what is measured takes 5 milliseconds and more."""
        numbers = (1e-9, 1e-6, 1) if rng.random() < 0.9 else (0, 1e-9, -1, float("nan"), 1e308)
        figures = {rng.choice(codecs[:-4]): [rng.choice(numbers) for _ in range(4)] for _ in range(rng.randrange(4))}
        tensors = [("t%d" % i, rng.choice((1, 30, 60)), rng.choice((0, None, 50)), rng.choice((0, None, 2)), rng.choice(("fp32", "bf16"))) for i in range(rng.randrange(4))]
        if rng.random() < 0.2:
            tensors = [rng.choice((("x", 2 ** rng.randrange(66), 2 ** rng.randrange(40)), anything(), [anything(), anything()]))]
        over = {"comm": comm()} if rng.random() < 0.6 else {"bits_per_second": rng.choice((1e6, 1e9, 1e308, 0)), "world": rng.choice((1, 2, 9, 2 ** 31 - 1))}
        options = {"optimizer": rng.choice(("sgd", "adam"))} if rng.random() < 0.5 else {"aggregate": rng.choice(("two_shot", "gather", "scatter"))}
        found = gcomp.advise(tensors, candidates=figures or ["sign"] if rng.random() < 0.9 else anything(), link_bytes=rng.choice((1, 64, 5000)), **over, **options)
        assert len(found.codecs) == len(tensors) and str(found)
    plausible = [
        lambda: gcomp.encode(rng.choice(codecs), array_like(), residual=floats() if rng.random() < 0.3 else None, cols=rng.choice((0, 0, 5)),
                             key=(0, rng.randrange(3)), out=bytearray(rng.choice((10, 100, 9000))) if rng.random() < 0.4 else None),
        lambda: gcomp.decode(payload(), array_like() if rng.random() < 0.9 else rng.choice((0, 60, n))),
        lambda: gcomp.decode_add(payload(), array_like(), 0.5), lambda: gcomp.mean([payload() for _ in range(rng.randrange(4))], array_like()),
        lambda: gcomp.retain(payload(), array_like(), floats()), lambda: gcomp.check(payload(), n), lambda: gcomp.peek(payload()),
        lambda: any_of(rng.choice(alive)), lambda: any_of(rng.choice(alive)), lambda: any_of(rng.choice(alive)), wild_function, wild_function,
        wild_method, wild_method]
    came_out = {}
    for i in range(calls):
        call = new if rng.random() < 0.04 else threads if rng.random() < 0.01 else pair if rng.random() < 0.03 else rng.choice(plausible)
        call = advice if rng.random() < 0.02 else call
        try:
            call()
            name = "no error"
        except allowed + (ZeroDivisionError,) as error:
            name = getattr(error, "name", None) or type(error).__name__
        came_out[str(name)] = came_out.get(str(name), 0) + 1
    print(", ".join("%s %d" % item for item in sorted(came_out.items(), key=lambda item: -item[1])))
    assert came_out["no error"] > calls / 10 and len(came_out) > 15, came_out


@test
def random_calls_do_not_crash_the_interpreter():
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, "--random", "1", str(RANDOM_CALLS)], capture_output=True, text=True)
    assert done.returncode == 0, "status %d\n%s" % (done.returncode, done.stderr[-3000:])
    print("# %d calls: %s" % (RANDOM_CALLS, done.stdout.strip()))


def main():
    if sys.argv[1:2] == ["--random"]:
        return random_calls(int(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1:2] == ["--worker"]:
        print(WORKERS[sys.argv[2]](int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
        return 0
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


if __name__ == "__main__":
    sys.exit(main())
