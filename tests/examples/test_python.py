#!/usr/bin/env python3
"""Tests of examples/python/gcomp.py, as TAP: how the library is found, the codec layer, objects, the code of the README. Needs python3-numpy, and the shared object: make build/libgcomp.so.
"""
from python_tests import *  # noqa: F401, F403

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
    del found[found.index("GCOMP_OK"):]  # results, which are compared below
    assert len(wanted) > 100 and found == wanted, set(found) ^ set(wanted)
    codes = {name: int(value) for name, value in re.findall(r"X\((GCOMP_\w+), (-?\d+),", text)}
    assert codes == {"GCOMP_" + name: code for code, name in gcomp._CODES.items()}


@test
def functions_have_the_types_of_the_header():
    api, _ = declared()
    for name in ("gcomp_advise", "gcomp_sockets", "gcomp_layouts"):
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
        if name in ("gcomp_open", "gcomp_sockets_shared_open"):  # gcomp **, void **
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


@test
def libraries_that_do_not_fit_are_import_errors():
    with tempfile.TemporaryDirectory() as d:
        def built(name, source):
            path = os.path.join(d, name)
            subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
            return path
        stubs = "".join("int %s(void) { return 0; }\n" % f for f in gcomp._FUNCTIONS if f != "gcomp_version")
        for path, words in ((os.path.join(d, "none.so"), ("none.so", "cannot be loaded")),
                            (built("empty.so", "int nothing;"), ("has no gcomp_version", "GCOMP_LAYOUTS_SHARED")),
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
        done = python(code, **environment)
        assert done.returncode == 1 and "copy examples/adapters/gcomp_layouts.h there" in done.stderr, done.stderr
        shutil.copy(os.path.join(ROOT, "examples", "adapters", "gcomp_layouts.h"), d)

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
        ask = "import gcomp; print(gcomp.advise([('w', 300, 300)], bits_per_second=1e5, world=4, candidates=['sign']).codecs, gcomp.LIBRARY)"
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
    assert gcomp.decode(payload, grad) is grad and abs(grad[1] + 1.83594) < 1e-5
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
        (TypeError, lambda: gcomp.check(payload, 1.5), "whole"),
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
    (codec, found), (_, summed) = gcomp.rounds("powersgd:rank=2", [("w", 100, 50), ("b", 50)], comm=gcomp.Comm(0, 2))
    assert [(r.kind, r.bytes) for r in summed] == [("allreduce", 200)]
    raises(gcomp.Error, lambda: gcomp.rounds("sign", [("w", 10), ("w", 10)]), "'w'")
    assert str(codec) == "powersgd:rank=2" and [r.kind for r in found] == ["allreduce", "allreduce"] and found[0].dtype == "fp32"
    assert gcomp.memory_needed("sign", [("w", 100, 50), ("b", 7)]) > 20000
    assert "warning" in describe_of("sign", "adam") and "warning" not in describe_of("sign", "sgd")
    assert gcomp.Codec("sign").warning("adam") and gcomp.Codec("int").warning("adam") is None


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
        payload = gcomp.encode("sign", array.array("f", 4096 * [number - 1.5]), checksum=True)
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


if __name__ == "__main__":
    sys.exit(run_tests())
