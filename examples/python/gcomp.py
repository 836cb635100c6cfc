"""gcomp.h from Python: gradient compression for NumPy arrays, PyTorch tensors on the CPU, and whatever else has a buffer.

    import array, gcomp
    grad = array.array("f", [1, -2, 3] + 4093 * [0])
    payload = gcomp.encode("int:bits=4", grad)          # 2208 bytes
    gcomp.decode(payload, grad)                         # grad[1] is -1.83594 now

    with gcomp.open("topk:density=0.01", comm=comm) as gc:     # comm: gcomp.Comm, with callables of yours as collectives
        gc.add_tensor("fc1.weight", 784, 1152)
        gc.exchange([grad])                             # grad is the mean over all workers now

Copy this file beside gcomp.h and gcomp_layouts.h (and stb_ds.h, where the system has none). It needs ctypes alone. It loads the file that GCOMP_LIBRARY
names, or libgcomp.so beside it, or the repository's build/libgcomp.so ("make build/libgcomp.so"); else it compiles gcomp.h once, with
$CC or cc, into the user's cache directory. With gcomp_advise.h beside gcomp.h there is also gcomp.advise: which codec for which
tensor, on this machine, over this link; with gcomp_sockets.h there is gcomp.Sockets: workers that reach each other by TCP. Sizes and
offsets of all structs are compared with those of the library: a difference is an ImportError. "python -m gcomp" prints the version, the
instruction sets, and the codecs with their sizes.

Arrays are used in place, without a copy. They are contiguous, on the CPU, and of fp32, fp16 or bf16; where NumPy has no bf16, arrays of
uint16 with dtype="bf16" do. What does not fit is a TypeError or a ValueError that says what to do. An error of the library is a
gcomp.Error with code, name, kind and the library's sentence. The manual in gcomp.h says what codecs, steps and errors mean.

The GIL is free while the library computes: other threads run, and must leave the arrays of that call alone (a thread that resizes the
storage of a tensor under a call crashes the process, here as in PyTorch). An object serves one thread at a time, else it raises Error.
"""
from __future__ import annotations

import array as _array
import contextlib
import ctypes
import hashlib
import math
import numbers
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p
from struct import Struct as _Form
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

VERSION = 400  # of gcomp.h that this file was written for

# ---------------- structs and enums, as this file believes them to be; _check_layouts compares them with the library's

_RUN = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_void_p, c_void_p)
_ALLREDUCE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int)
_ALLGATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
_ALLGATHERV = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_size_t)
_MAX = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
_ALLTOALLV = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_size_t), c_void_p, POINTER(c_size_t))
_CLOCK = ctypes.CFUNCTYPE(c_double, c_void_p)
_STOP = ctypes.CFUNCTYPE(c_int, c_void_p)

_STRUCTS: List[Any] = []
_VALUES = dict(
    GCOMP_CLASS_OK=0, GCOMP_CLASS_RETRY=1, GCOMP_CLASS_RESYNCHRONISE=2, GCOMP_CLASS_FATAL=3, GCOMP_F32=0, GCOMP_F16=1, GCOMP_BF16=2,
    GCOMP_U8=3, GCOMP_I8=4, GCOMP_I16=5, GCOMP_I32=6, GCOMP_ISA_AUTO=0, GCOMP_ISA_SCALAR=1, GCOMP_ISA_AVX2=2, GCOMP_ISA_AVX512=3,
    GCOMP_ISA_NEON=4, GCOMP_AGGREGATE_AUTO=0, GCOMP_AGGREGATE_GATHER=1, GCOMP_AGGREGATE_SHARDS=2, GCOMP_AGGREGATE_TWO_SHOT=3,
    GCOMP_AGGREGATE_SCATTER=4, GCOMP_OPTIMIZER_UNKNOWN=0, GCOMP_OPTIMIZER_SGD=1, GCOMP_OPTIMIZER_ADAM=2, GCOMP_WAIT=0, GCOMP_DONE=1,
    GCOMP_ALLGATHER=2, GCOMP_ALLREDUCE=3, GCOMP_ALLREDUCE_MAX=4, GCOMP_ALLTOALL=5)


def _struct(name, *fields):
    """A ctypes structure of the fields (type, names...), in order."""
    made = type(name, (ctypes.Structure,), {"_fields_": [(field, kind) for kind, *names in fields for field in names]})
    _STRUCTS.append(made)
    return made


_Parallel = _struct("gcomp_parallel", (c_void_p, "run", "user"))
_Allocator = _struct("gcomp_allocator", (c_void_p, "alloc", "free", "user"))
_Codec = _struct("gcomp_codec", (c_uint8, "method", "value"), (c_uint8 * 6, "reserved"), (c_double * 6, "param", "value_param"))
_Key = _struct("gcomp_key", (c_uint64, "shared", "own"))
_Input = _struct("gcomp_input", (c_void_p, "grad"), (c_int, "dtype"), (c_float, "scale"), (c_void_p, "residual"),
                 (c_size_t, "rows", "cols"), (_Key, "key"), (c_int, "checksum"))
_Exec = _struct("gcomp_exec", (c_int, "isa"), (c_void_p, "scratch"), (c_size_t, "scratch_bytes"), (_Parallel, "parallel"))
_Info = _struct("gcomp_info", (_Codec, "codec"), (c_uint64, "count", "length"), (c_int, "refused", "checksum"))
_CommStruct = _struct("gcomp_comm", (c_void_p, "user"), (c_int, "rank", "world"), (_ALLREDUCE, "allreduce"), (_ALLGATHER, "allgather"),
                      (_ALLGATHERV, "allgatherv"), (_MAX, "allreduce_max"), (_ALLTOALLV, "alltoallv"), (c_void_p, "start", "test", "wait"),
                      (c_uint, "allreduce_dtypes"))
_Desc = _struct("gcomp_desc", (c_char_p, "codec", "schedule"), (_CommStruct, "comm", "node"), (c_uint64, "seed"),
                (c_size_t, "min_elements"), (c_int, "compress_vectors", "no_error_feedback", "no_checksum", "measure", "aggregate"),
                (c_size_t, "bucket_bytes"), (c_uint32, "check_every"), (c_int, "isa"), (_Allocator, "allocator"), (_Parallel, "parallel"),
                (_CLOCK, "clock"), (c_void_p, "clock_user", "why"), (c_size_t, "why_capacity"), (c_char_p, "residual"),
                (c_int, "optimizer"), (c_float, "decay"))
_Tensor = _struct("gcomp_tensor", (c_char_p, "name"), (c_size_t, "rows", "cols", "stack"), (c_int, "dtype"), (c_char_p, "codec"))
_TensorInfo = _struct("gcomp_tensor_info", (c_char_p, "name"), (c_size_t, "rows", "cols", "stack", "elements"), (c_int, "dtype"),
                      (POINTER(_Codec), "codec"), (c_void_p, "residual"))
_Step = _struct("gcomp_step", (c_float, "scale", "learning_rate"), (c_uint32, "epoch"), (c_double, "samples", "batch"),
                (c_uint64, "number"))
_Request = _struct("gcomp_request", (c_int, "kind"), (c_uint32, "id"), (c_void_p, "send", "recv"), (c_size_t, "stride"),
                   (POINTER(c_size_t), "bytes", "send_bytes"), (c_size_t, "count"), (c_int, "dtype"))
_Round = _struct("gcomp_round", (c_int, "kind", "dtype"), (c_size_t, "bytes", "sent"), (c_int, "varies"))
_Report = _struct("gcomp_report", (c_void_p, "text"), (c_size_t, "capacity", "length"))
_Statistics = _struct("gcomp_statistics", (c_uint64, "steps", "skipped", "failed", "not_finite", "switches", "bytes_in", "bytes_out",
                                           "bytes_ring"), (c_double, "ratio", "encode_seconds", "communicate_seconds", "commit_seconds",
                                                           "residual_norm", "relative_error", "mean_norm"), (c_uint64, "memory"))

_G, _P, _Z = c_void_p, c_void_p, c_size_t  # an object, any pointer, a size
_FUNCTIONS = {  # name: (returns, arguments...); tests/examples/test_python.py compares these with the header
    "gcomp_version": (c_int,), "gcomp_result_string": (c_char_p, c_int),
    "gcomp_result_class": (c_int, c_int), "gcomp_isa_name": (c_char_p, c_int),
    "gcomp_key_make": (_Key, c_uint64, c_uint64, c_uint32, c_uint32), "gcomp_codec_parse": (c_int, POINTER(_Codec), c_char_p, _P, _Z),
    "gcomp_codec_format": (_Z, POINTER(_Codec), _P, _Z), "gcomp_method_name": (c_char_p, _Z), "gcomp_bound": (_Z, POINTER(_Codec), _Z, POINTER(_Z)),
    "gcomp_encode": (c_int, POINTER(_Codec), POINTER(_Input), POINTER(_Exec), _P, _Z, POINTER(_Z)),
    "gcomp_check": (c_int, _P, _Z, _Z), "gcomp_decode": (c_int, _P, _Z, _P, c_int, _Z, POINTER(_Exec)),
    "gcomp_decode_add": (c_int, _P, _Z, c_float, _P, c_int, _Z, POINTER(_Exec)),
    "gcomp_decode_mean": (c_int, _P, POINTER(_Z), _Z, _P, c_int, _Z, POINTER(_Exec)),
    "gcomp_retain": (c_int, _P, _Z, POINTER(_Input), _P, POINTER(_Exec)),
    "gcomp_convert": (c_int, _P, c_int, _P, c_int, _Z, POINTER(_Exec)),
    "gcomp_peek": (c_int, _P, _Z, POINTER(_Info)), "gcomp_open": (c_int, POINTER(_G), POINTER(_Desc)), "gcomp_close": (None, _G),
    "gcomp_add_tensor": (c_int, _G, POINTER(_Tensor)), "gcomp_tensor_get": (c_int, _G, _Z, POINTER(_TensorInfo)),
    "gcomp_describe": (_Z, _G, _P, _Z), "gcomp_warning": (c_char_p, POINTER(_Codec), c_int),
    "gcomp_shard": (c_int, _G, _Z, c_int, POINTER(_Z), POINTER(_Z)), "gcomp_residual_get": (c_int, _G, _Z, _P),
    "gcomp_residual_set": (c_int, _G, _Z, _P),
    "gcomp_prepare": (c_int, _G), "gcomp_memory_needed": (_Z, POINTER(_Desc), POINTER(_Tensor), _Z),
    "gcomp_restart": (c_int, _G, c_uint64), "gcomp_step_number": (c_uint64, _G),
    "gcomp_error": (c_char_p, _G), "gcomp_compress": (c_int, _G, _Z, c_uint64, _P, _P, _Z, POINTER(_Z)),
    "gcomp_commit": (c_int, _G, _Z, _P, _P, _Z, _P, POINTER(_Z), _Z), "gcomp_give_back": (c_int, _G, _Z, _P, _Z),
    "gcomp_rounds": (c_int, POINTER(_Desc), POINTER(_Tensor), _Z, POINTER(_Codec), POINTER(_Round)),
    "gcomp_step_begin": (c_int, _G, POINTER(_Step)), "gcomp_step_ready": (c_int, _G, _Z, _P),
    "gcomp_step_next": (c_int, _G, POINTER(_Request)), "gcomp_step_done": (c_int, _G, c_uint32, c_int), "gcomp_step_commit": (c_int, _G),
    "gcomp_step_abort": (c_int, _G), "gcomp_step_finish": (c_int, _G), "gcomp_exchange": (c_int, _G, _P, POINTER(_Step)),
    "gcomp_save": (c_int, _G, _P, _Z, POINTER(_Z)), "gcomp_load": (c_int, _G, _P, POINTER(_Z), _Z, POINTER(_Report)),
    "gcomp_take_over": (c_int, _G, _P, _Z),
    "gcomp_regroup": (c_int, _G, POINTER(_CommStruct), POINTER(_CommStruct)), "gcomp_join": (c_int, _G, _P, _Z),
    "gcomp_stats": (c_int, _G, POINTER(_Statistics)),
    "gcomp_layout": (c_char_p, _Z, POINTER(_Z), POINTER(_Z)),
}
_MORE = {  # the same of gcomp_advise.h and gcomp_sockets.h, which a library may lack
    "gcomp_advise_shared_ring": (None, c_double, c_double, c_int, POINTER(c_double)),
    "gcomp_advise_shared_measure": (c_int, POINTER(_Desc), _Z, POINTER(c_double)),
    "gcomp_advise_shared": (c_int, POINTER(_Desc), POINTER(c_double), POINTER(_Tensor), _Z, POINTER(c_char_p), POINTER(c_double), _Z,
                            POINTER(_Z), POINTER(c_double)),
    "gcomp_sockets_shared_open": (c_int, POINTER(_P), c_int, c_int, c_int, c_char_p, c_char_p, c_char_p, c_double, c_double,
                                  _STOP),
    "gcomp_sockets_shared_carry": (c_int, _P, POINTER(_Request)), "gcomp_sockets_shared_comm": (c_int, _P, POINTER(_CommStruct)),
    "gcomp_sockets_shared_asks": (c_int, _P, POINTER(c_int)),
    "gcomp_sockets_shared_regroup": (c_int, _P, c_double, c_int),
    "gcomp_sockets_shared_who": (c_int, _P, POINTER(c_int), POINTER(c_int), POINTER(c_int)),
    "gcomp_sockets_shared_close": (c_int, _P), "gcomp_sockets_shared_free": (None, _P),
}

# ---------------- the library is found or compiled, and checked


def _headers(header: str) -> List[str]:
    """The paths of gcomp_layouts.h, gcomp_advise.h and gcomp_sockets.h, those that are beside gcomp.h or in examples/adapters there."""
    here, found = os.path.dirname(header), []
    for name in ["gcomp_layouts.h", "gcomp_advise.h"] + ["gcomp_sockets.h"] * (os.name == "posix"):
        found += list(filter(os.path.exists, (os.path.join(here, *place, name) for place in ((), ("examples", "adapters")))))[:1]
    return found


def _why_not(command: List[str], header: str, said: str) -> str:
    """Why a compiler made nothing of the header: one sentence."""
    seen = subprocess.run(command + ["-E", "-x", "c", "-", "-o", os.devnull], input="#include <stddef.h>\n", text=True, capture_output=True)
    if seen.returncode:
        return "%s does not work, or finds no headers of C: install gcc and libc6-dev, or name another compiler by CC" % command[0]
    names = "#if !__has_include(\"stb_ds.h\") && !__has_include(<stb/stb_ds.h>)\n#error stb_ds\n#endif\n"
    seen = subprocess.run(command + ["-E", "-x", "c", "-", "-o", os.devnull], input=names, text=True, capture_output=True)
    if seen.returncode and "GCOMP_STB_DS_H" not in " ".join(command):
        return "gcomp.h needs stb_ds.h, which is not there: install libstb-dev, or copy stb_ds.h beside %s" % header
    errors = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["it says nothing"]
    return "%s cannot be compiled: %s (by: %s)" % (header, errors[0], shlex.join(command))


def _compile(header: str) -> str:
    """The path of the shared object made from the header, which is compiled unless the user's cache has it."""
    text, source_text, headers = b"", '#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n', _headers(header)
    flags = ["-O2", *shlex.split(os.environ.get("CFLAGS") or ""), "-shared", "-fPIC", "-DGCOMP_EXPORT", "-I",
             os.path.dirname(header)]
    if not any(path.endswith("gcomp_layouts.h") for path in headers):
        raise ImportError("gcomp_layouts.h is not beside %s: copy examples/adapters/gcomp_layouts.h there" % header)
    for path in headers:
        where, name = os.path.split(path)
        flags += ["-D%s_SHARED" % name[:-2].upper(), "-I", where] + ["-pthread"] * (name == "gcomp_sockets.h")
        source_text += '#include "%s"\n' % name
    for path in [header] + headers:
        with open(path, "rb") as f:
            text += f.read()
    command = shlex.split(os.environ.get("CC") or "cc") + flags
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "gcomp")
    made = os.path.join(cache, "libgcomp-" + hashlib.sha256(text + "\0".join(command).encode()).hexdigest()[:24] + ".so")
    if os.path.exists(made):
        return made
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w") as lock:  # of processes that start together one compiles
            try:
                import fcntl
                fcntl.flock(lock, fcntl.LOCK_EX)
            except ImportError:
                pass  # then each compiles, and the last one stays
            if os.path.exists(made):
                return made
            with tempfile.TemporaryDirectory(dir=cache) as work:
                source, out = os.path.join(work, "gcomp.c"), os.path.join(work, "libgcomp.so")
                with open(source, "w") as f:
                    f.write(source_text)
                sys.stderr.write("gcomp: compiles %s once, which takes some 20 seconds\n" % header)
                try:
                    done = subprocess.run(command + [source, "-o", out], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT)
                except OSError as error:
                    raise ImportError("there is no C compiler %s (%s): install gcc, name another compiler by CC, or name a shared object "
                                      "of gcomp.h by GCOMP_LIBRARY" % (command[0], error.strerror)) from None
                if done.returncode:
                    raise ImportError(_why_not(command, header, done.stdout.decode(errors="replace")))
                os.replace(out, made)
    except OSError as error:
        raise ImportError("no shared object of gcomp.h can be kept in %s: %s; name one by GCOMP_LIBRARY" % (cache, error)) from error
    return made


def _find() -> str:
    """The path of the shared object."""
    if os.environ.get("GCOMP_LIBRARY"):
        return os.environ["GCOMP_LIBRARY"]
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    if os.path.exists(os.path.join(here, "libgcomp.so")):
        return os.path.join(here, "libgcomp.so")
    for header in (os.path.join(here, "gcomp.h"), os.path.join(root, "gcomp.h")):
        if os.path.exists(header):
            built = os.path.join(os.path.dirname(header), "build", "libgcomp.so")
            if os.path.exists(built) and os.path.getmtime(built) >= max(map(os.path.getmtime, [header] + _headers(header))):
                return built
            return _compile(header)
    raise ImportError("neither libgcomp.so nor gcomp.h is beside %s: copy gcomp.h there, or name a library by GCOMP_LIBRARY" % __file__)


_CODES: dict = {}  # the results of the library: -5 is "NOT_FINITE"


def _check_layouts(lib: Any, path: str) -> None:
    """Compares all sizes, offsets and values with those that the library was compiled with, and takes its results."""
    believed = {}
    for struct in _STRUCTS:
        believed[struct.__name__] = (0, ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            believed[struct.__name__ + "." + field] = (getattr(struct, field).offset, getattr(struct, field).size)
    believed.update((name, (value, 0)) for name, value in _VALUES.items())
    true, offset, size = {}, c_size_t(), c_size_t()
    while True:
        name = lib.gcomp_layout(len(true), byref(offset), byref(size))
        if name is None:
            break
        true[name.decode()] = (offset.value, size.value)
    results = list(true)[list(true).index("GCOMP_OK"):]  # they stand at the end, and are no values that this module believes
    _CODES.update((ctypes.c_ssize_t(true.pop(name)[0]).value, name[6:]) for name in results)
    wrong = ["%s: %s here, %s in the library" % (name, believed.get(name, "missing"), true.get(name, "missing"))
             for name in sorted(set(believed) | set(true)) if believed.get(name) != true.get(name)]
    if wrong:
        raise ImportError("%s has other structs than gcomp.py (offset, size):\n  %s" % (path, "\n  ".join(wrong)))


def _load(path: str) -> Any:
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError("%s cannot be loaded: %s" % (path, error)) from error
    for name, (returns, *arguments) in _FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise ImportError("%s has no %s: make it of all of gcomp.h and gcomp_layouts.h, with -DGCOMP_LAYOUTS_SHARED" %
                              (path, name)) from None
        function.restype, function.argtypes = returns, arguments
    for name, (returns, *arguments) in _MORE.items():
        function = getattr(lib, name, None)
        if function is not None:
            function.restype, function.argtypes = returns, arguments
    if lib.gcomp_version() != VERSION:
        raise ImportError("%s is of version %d, and this gcomp.py is for version %d" % (path, lib.gcomp_version(), VERSION))
    _check_layouts(lib, path)
    return lib


LIBRARY = _find()
_lib = _load(LIBRARY)


def _must_have(header: str) -> None:
    """An ImportError if the library lacks what another header has for it."""
    if not any(name.startswith(header) and hasattr(_lib, name) for name in _MORE):
        raise ImportError("{0} was compiled without {1}.h: copy examples/adapters/{1}.h beside gcomp.h, or make the library with it and with "
                          "-D{2}_SHARED, as \"make build/libgcomp.so\" does{3}".format(
                              LIBRARY, header, header.upper(), ", on a system with POSIX sockets" if header == "gcomp_sockets" else ""))


# ---------------- errors

globals().update((name, code) for code, name in _CODES.items())  # gcomp.NOT_FINITE is -5
_KINDS = ("ok", "retry", "resynchronise", "fatal")
_INVALID, _STATE, _MISSING, _MISMATCH, _PEER, _FAILED, _UNAVAILABLE, _NO_KEY = (
    next(code for code, name in _CODES.items() if name == wanted)
    for wanted in ("INVALID_ARGUMENT", "WRONG_STATE", "MISSING_CALLBACK", "MISMATCH", "PEER_FAILED", "CALLBACK_FAILED", "ISA_UNAVAILABLE",
                   "MISSING_KEY"))


class Error(RuntimeError):
    """An error of the library: code (a number below 0), name ("GCOMP_NOT_FINITE"), kind ("retry", "resynchronise" or "fatal": what to
    do after a step, see WHEN A STEP FAILS in the manual), and the sentence."""

    def __init__(self, code: int, sentence: str = ""):
        self.code = code
        self.name = "GCOMP_" + _CODES.get(code, "unknown")
        self.kind = _KINDS[_lib.gcomp_result_class(code)]
        self.sentence = sentence or _lib.gcomp_result_string(code).decode()
        super().__init__("%s: %s" % (self.name, self.sentence))

    def __reduce__(self):
        return Error, (self.code, self.sentence)


def _must(code: int) -> None:
    if code:
        raise Error(code)


# ---------------- arrays: where their elements are

_DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}
_NAMES = ("fp32", "fp16", "bf16", "uint8", "int8", "int16", "int32")
_SIZES = (4, 2, 2, 1, 1, 2, 4)
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>"
_FORMATS = {prefix + f: d for f, d in (("f", 0), ("e", 1)) for prefix in ("", *_NATIVE)}
_SHORTS = {prefix + f for f in "Hh" for prefix in ("", *_NATIVE)}
_torch_dtypes: dict = {}


def _dtype(name: Any) -> int:
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError('dtype is "fp32", "fp16" or "bf16", not %r' % (name,)) from None


def _of_torch(torch: Any, x: Any, what: str) -> Tuple[int, int, int, Any]:
    if not _torch_dtypes:
        _torch_dtypes.update({torch.float32: 0, torch.float16: 1, torch.bfloat16: 2})
    dtype = _torch_dtypes.get(x.dtype)
    if dtype is None:
        raise TypeError("%s is of %s: make it float32, float16 or bfloat16" % (what, x.dtype))
    if x.layout is not torch.strided:
        raise TypeError("%s is %s: call .to_dense()" % (what, x.layout))
    if x.device.type != "cpu":
        raise TypeError("%s is on %s: call .cpu(), and copy the result back" % (what, x.device))
    if not x.is_contiguous():
        raise ValueError("%s is not contiguous: call .contiguous(), and copy the result back" % what)
    if x.is_neg():
        raise ValueError("%s is a view with the negative bit: call .resolve_neg()" % what)
    address, count = torch.Tensor.data_ptr(x), x.numel()
    if count and not address:
        raise ValueError("%s has no memory of its own" % what)
    return address, count, dtype, x


def _elements(x: Any, what: str, write: bool, want: Optional[int] = None) -> Tuple[int, int, int, Any]:
    """Address, number and type of the elements of an array, and what keeps them there. want: the type that arrays of 16-bit integers
    stand for."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        return _of_torch(torch, x, what)
    try:
        view = memoryview(x)
    except (TypeError, ValueError, BufferError) as error:
        numpy = sys.modules.get("numpy")  # bfloat16 of ml_dtypes, whose arrays have no buffer
        if numpy is None or not isinstance(x, numpy.ndarray) or x.dtype.name != "bfloat16":
            raise TypeError("%s is no array (%s): pass a NumPy array, a tensor, or what else has a buffer" % (what, error)) from None
        x = x.view(numpy.uint16)
        view, want = memoryview(x), 2
    form = view.format
    dtype = _FORMATS.get(form)
    if dtype is None:
        if form not in _SHORTS or not want:
            raise TypeError("%s holds elements of format %r: make them float32 or float16, or uint16 for bf16 with dtype" % (what, form))
        dtype = want
    address, keep = _address(view, x, what, write)
    return address, view.nbytes // view.itemsize, dtype, keep


_EMPTY = c_double()  # where arrays without elements are


def _address(view: memoryview, x: Any, what: str, write: bool) -> Tuple[int, Any]:
    """Where a buffer is, and what keeps it there."""
    if not view.c_contiguous:
        raise ValueError("%s is not contiguous: copy it (numpy.ascontiguousarray), and copy the result back" % what)
    if not view.readonly:
        if not view.nbytes:
            return ctypes.addressof(_EMPTY), x
        pin = c_char.from_buffer(view)  # while it is there, the buffer can be neither moved nor freed
        return ctypes.addressof(pin), pin
    if write:
        raise ValueError("%s is read-only: pass an array that may be written, or a copy" % what)
    if type(x) is bytes:
        return ctypes.cast(c_char_p(x), c_void_p).value or 0, x
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return numpy.ndarray.__array_interface__.__get__(x)["data"][0], x
    x = bytes(view)
    return ctypes.cast(c_char_p(x), c_void_p).value or 0, x


def _bytes(x: Any, what: str, write: bool = False) -> Tuple[int, int, Any]:
    """Address and length of bytes, and what keeps them there."""
    if type(x) is bytes and not write:
        return ctypes.cast(c_char_p(x), c_void_p).value or 0, len(x), x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        if x.dtype is not torch.uint8 or x.device.type != "cpu" or not x.is_contiguous():
            raise TypeError("%s is a tensor, but not a contiguous one of uint8 on the CPU" % what)
        return torch.Tensor.data_ptr(x), x.numel(), x
    try:
        view = memoryview(x)
    except (TypeError, ValueError, BufferError):
        raise TypeError("%s is of type %s: pass bytes, or what else has a buffer of bytes" % (what, type(x).__name__)) from None
    if view.itemsize != 1:
        raise TypeError("%s has elements of %d bytes: pass bytes" % (what, view.itemsize))
    address, keep = _address(view, x, what, write)
    return address, view.nbytes, keep


def _apart(what: str, out: int, out_bytes: int, *others: Tuple[int, int]) -> None:
    for address, length in others:
        if out < address + length and address < out + out_bytes:
            raise ValueError("%s shares memory with what is read for it: pass another array" % what)


def _bounded(value: Any, what: str, most: int = 2 ** 64 - 1) -> int:
    """A whole number from 0 to most: ctypes would cut off what is too large."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError("%s is %r, not a whole number" % (what, value)) from None
    if not 0 <= number <= most:
        raise ValueError("%s is %d, not in 0 .. %d" % (what, number, most))
    return number


_MOST = 2 ** (8 * ctypes.sizeof(c_size_t)) - 1


def _size(value: Any, what: str) -> int:
    return _bounded(value, what, _MOST)


def _real(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError("%s is %r, not a number" % (what, value)) from None


def _text(value: Any, what: str) -> Optional[bytes]:
    if value is None:
        return None
    if isinstance(value, Codec):
        value = str(value)
    if not isinstance(value, str) or "\0" in value:
        raise TypeError("%s is %r, not a text without NUL" % (what, value))
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError("%s is %r, which is no valid Unicode" % (what, value)) from None


# ---------------- codec layer: pure functions

Key = namedtuple("Key", "shared own")
Info = namedtuple("Info", "codec count length refused checksum")
Round = namedtuple("Round", "kind dtype bytes sent varies")
Statistics = namedtuple("Statistics", [name for name, _ in _Statistics._fields_])
_ISAS = {"auto": 0, "scalar": 1, "avx2": 2, "avx512": 3, "neon": 4}
_OPTIMIZERS = {"unknown": 0, "sgd": 1, "adam": 2}
_AGGREGATES = {"auto": 0, "gather": 1, "shards": 2, "two_shot": 3, "scatter": 4}


def _choice(value: Any, among: dict, what: str) -> int:
    try:
        return among[value]
    except (KeyError, TypeError):
        raise ValueError("%s is %r, not one of %s" % (what, value, ", ".join(among))) from None


class Codec:
    """A method with its parameters: Codec("topk:density=0.01+int:bits=4"). str() gives the shortest text of it. Functions that take a
    codec also take its text."""

    __slots__ = ("_codec",)

    def __init__(self, text: str):
        why = ctypes.create_string_buffer(300)
        made = _Codec()
        raw = _text(text, "codec")
        code = _lib.gcomp_codec_parse(byref(made), raw, why, len(why))
        if code:
            raise Error(code, why.value.decode(errors="replace"))
        self._codec = made

    @classmethod
    def _from(cls, struct: Any) -> "Codec":
        codec = cls.__new__(cls)
        codec._codec = _Codec.from_buffer_copy(struct)
        return codec

    def __str__(self) -> str:
        text = ctypes.create_string_buffer(512)
        _lib.gcomp_codec_format(byref(self._codec), text, len(text))
        return text.value.decode()

    def __repr__(self) -> str:
        return "gcomp.Codec(%r)" % str(self)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Codec) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def bound(self, n: int) -> int:
        """The bytes that a payload of n elements never exceeds; 0 if the codec has no payloads outside of steps."""
        return _lib.gcomp_bound(byref(self._codec), _size(n, "n"), None)

    def warning(self, optimizer: str = "adam") -> Optional[str]:
        """What is known against the codec before the optimizer ("sgd", "adam"), or None."""
        text = _lib.gcomp_warning(byref(self._codec), _choice(optimizer, _OPTIMIZERS, "optimizer"))
        return text.decode() if text is not None else None


_parsed: dict = {}


def _codec(codec: Union[str, Codec]) -> Any:
    if type(codec) is Codec:
        return codec._codec
    found = _parsed.get(codec) if type(codec) is str else None
    if found is None:
        found = Codec(codec)._codec
        if len(_parsed) > 256:
            _parsed.clear()
        _parsed[codec] = found
    return found


def version() -> str:
    """The version of the library, "0.4.0"."""
    number = _lib.gcomp_version()
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


def methods() -> List[str]:
    """The names of all methods."""
    names: List[str] = []
    while True:
        name = _lib.gcomp_method_name(len(names))
        if name is None:
            return names
        names.append(name.decode())


def isas() -> List[str]:
    """The instruction sets of this machine and build."""
    return [name for name, number in _ISAS.items() if number and _lib.gcomp_convert(None, 0, None, 0, 0, byref(_Exec(number))) != _UNAVAILABLE]


def key(seed: int, step: int, tensor: int, rank: int) -> Key:
    """The key of the random numbers of a tensor in a step, for encode."""
    made = _lib.gcomp_key_make(_bounded(seed, "seed"), _bounded(step, "step"), _bounded(tensor, "tensor", 2 ** 32 - 1),
                               _bounded(rank, "rank", 2 ** 32 - 1))
    return Key(made.shared, made.own)


def _input(grad: Any, residual: Any, scale: float, cols: int, random: Sequence[int], dtype: str) -> Tuple[Any, int, int, list, list]:
    """The input, its elements and their type; what was read, as (address, bytes); what to keep."""
    address, n, kind, keep = _elements(grad, "grad", False, _dtype(dtype))
    read, keeps = [(address, n * _SIZES[kind])], [keep]
    kept = None
    if residual is not None:
        kept, m, other, keep = _elements(residual, "residual", False)
        if other or m != n:
            raise ValueError("residual has %d elements of %s, not %d of fp32" % (m, _NAMES[other], n))
        read.append((kept, 4 * n))
        keeps.append(keep)
        _aligned(kept, "residual")
    cols = _size(cols, "cols")
    if cols > 1 and n % cols:
        raise ValueError("grad has %d elements, which are no rows of %d" % (n, cols))
    shared, own = random
    made = _Input(address, kind, _real(scale, "scale"), kept, n // max(cols, 1), cols,
                  _Key(_bounded(shared, "key.shared"), _bounded(own, "key.own")), 0)
    return made, n, kind, read, keeps


def _exec(scratch_bytes: int, isa: str) -> Tuple[Any, Any]:
    scratch = ctypes.create_string_buffer(scratch_bytes) if scratch_bytes else None
    return _Exec(_choice(isa, _ISAS, "isa"), ctypes.addressof(scratch) if scratch else None, scratch_bytes), scratch


def encode(codec: Union[str, Codec], grad: Any, *, residual: Any = None, scale: float = 1.0, cols: int = 0,
           key: Sequence[int] = (0, 0), out: Any = None, checksum: bool = False, dtype: str = "bf16", isa: str = "auto") -> Any:
    """The payload of scale * grad + residual.

    grad[n] is read: fp32, fp16 or bf16. residual[n], fp32, is read; None: none. cols: columns, where grad is a matrix. key: of the
    random numbers, see key(); codecs that use them (qsgd, eden) need it, another one on each worker and in each step. out: a writable buffer of codec.bound(n) bytes, for callers who encode often; the result is then a
    memoryview of it, else a bytearray. dtype: what arrays of uint16 hold, "fp16" or "bf16". A gradient that is not finite raises
    Error; its refusal is in the error's attribute `payload`: send it, so that the receiver learns of it."""
    made = _codec(codec)
    what, n, _, read, keeps = _input(grad, residual, scale, cols, key, dtype)
    what.checksum, needed = bool(checksum), c_size_t()
    bound = _lib.gcomp_bound(byref(made), n, byref(needed))
    run, scratch = _exec(needed.value, isa)
    payload = out
    if out is None:
        payload = bytearray(max(bound, 32))
    address, capacity, keep = _bytes(payload, "out", True)
    _apart("out", address, capacity, *read)
    length = c_size_t()
    code = _lib.gcomp_encode(byref(made), byref(what), byref(run), address, capacity, byref(length))
    if code == _NO_KEY:
        raise ValueError("this codec uses random numbers: pass key=gcomp.key(seed, step, tensor, rank)")
    if code and not length.value:
        raise Error(code)
    if out is not None:
        result = memoryview(out).cast("B")[:length.value] if not hasattr(out, "data_ptr") else out[:length.value]
    else:
        del keep
        del payload[length.value:]
        result = payload
    if code:
        error = Error(code)
        error.payload = bytes(result)  # type: ignore[attr-defined]
        raise error
    return result


def _decode_scratch(n: int, dtype: int) -> int:
    return 4 * n + 127 if dtype else 0


def _output(y: Any, what: str, dtype: str) -> Tuple[int, int, int, Any]:
    address, n, kind, keep = _elements(y, what, True, _dtype(dtype))
    _aligned(address, what, _SIZES[kind])
    return address, n, kind, keep


def decode(payload: Any, y: Any, *, dtype: str = "bf16", isa: str = "auto") -> Any:
    """y[n] <- the decoded payload, and returns y. y: an array of fp32, fp16 or bf16 with as many elements as were encoded; or that
    number, and then y is a new array.array of fp32. On error y is unchanged. Payloads may be of any bytes."""
    made = y
    if isinstance(y, numbers.Integral):
        n = _size(y, "y")
        address, length, _keep = _bytes(payload, "payload")
        _must(_lib.gcomp_check(address, length, n))
        made = _array.array("f", bytes(4)) * n
    _decode(_lib.gcomp_decode, payload, (), made, dtype, isa)
    return made


def _decode(function: Any, payload: Any, more: tuple, y: Any, dtype: str, isa: str) -> None:
    address, length, keep = _bytes(payload, "payload")
    out, n, kind, pin = _output(y, "y", dtype)
    _apart("y", out, n * _SIZES[kind], (address, length))
    run, scratch = _exec(_decode_scratch(n, kind), isa)
    _must(function(address, length, *more, out, kind, n, byref(run)))


def decode_add(payload: Any, y: Any, weight: float = 1.0, *, dtype: str = "bf16", isa: str = "auto") -> Any:
    """y[n] <- y + weight * the decoded payload, and returns y. On error y is unchanged."""
    _decode(_lib.gcomp_decode_add, payload, (_real(weight, "weight"),), y, dtype, isa)
    return y


def _payloads(payloads: Sequence[Any]) -> Tuple[Any, Any, int, list, list]:
    """Addresses and lengths of payloads as C takes them, their number, what is read, what to keep."""
    if isinstance(payloads, (bytes, bytearray, memoryview, str)):
        raise TypeError("payloads is one payload: pass a list of them")
    found = [_bytes(p, "payloads[%d]" % i) for i, p in enumerate(payloads)]
    addresses, lengths = (c_void_p * len(found))(), (c_size_t * len(found))()
    for i, (address, length, _) in enumerate(found):
        addresses[i], lengths[i] = address, length
    return addresses, lengths, len(found), [(address, length) for address, length, _ in found], [keep for _, _, keep in found]


def mean(payloads: Sequence[Any], y: Any, *, dtype: str = "bf16", isa: str = "auto") -> Any:
    """y[n] <- the mean of the decoded payloads, added in this order, and returns y. On error y is unchanged."""
    addresses, lengths, count, read, keeps = _payloads(payloads)
    out, n, kind, pin = _output(y, "y", dtype)
    _apart("y", out, n * _SIZES[kind], *read)
    run, scratch = _exec(_decode_scratch(n, kind), isa)
    _must(_lib.gcomp_decode_mean(addresses, lengths, count, out, kind, n, byref(run)))
    return y


def retain(payload: Any, grad: Any, residual: Any, *, scale: float = 1.0, dtype: str = "bf16", isa: str = "auto") -> Any:
    """residual[n] <- scale * grad + residual - the decoded payload: what was not sent. residual is fp32, and is returned."""
    address, length, keep = _bytes(payload, "payload")
    made, n, _, read, keeps = _input(grad, None, scale, 0, (0, 0), dtype)
    out, m, kind, pin = _elements(residual, "residual", True)
    if kind or m != n:
        raise ValueError("residual has %d elements of %s, not %d of fp32" % (m, _NAMES[kind], n))
    _aligned(out, "residual")
    _apart("residual", out, 4 * n, (address, length), *read)
    run, scratch = _exec(0, isa)
    _must(_lib.gcomp_retain(address, length, byref(made), out, byref(run)))
    return residual


def _aligned(address: int, what: str, size: int = 4) -> None:
    if address % size:
        raise ValueError("%s is not aligned to %d bytes: copy it" % (what, size))


def check(payload: Any, n: int) -> None:
    """Raises Error unless the payload is valid to the last bit, for n elements."""
    address, length, keep = _bytes(payload, "payload")
    _must(_lib.gcomp_check(address, length, _size(n, "n")))


def peek(payload: Any) -> Info:
    """What the first 32 bytes of a payload say: Info(codec, count, length, refused, checksum)."""
    address, length, keep = _bytes(payload, "payload")
    info = _Info()
    _must(_lib.gcomp_peek(address, length, byref(info)))
    return Info(Codec._from(info.codec), info.count, info.length, bool(info.refused), bool(info.checksum))


def to_float(y: Any, x: Any, *, dtype: str = "bf16") -> Any:
    """y[n] <- x[n] as fp32, exactly; returns y. x: fp16 or bf16."""
    return _convert(y, x, dtype, False)


def from_float(y: Any, x: Any, *, dtype: str = "bf16") -> Any:
    """y[n] <- x[n], fp32, rounded to nearest; returns y. y: fp16 or bf16. What is too large becomes the largest number."""
    return _convert(y, x, dtype, True)


def _convert(y: Any, x: Any, dtype: str, narrow: bool) -> Any:
    source, n, kind, keep = _elements(x, "x", False, _dtype(dtype))
    out, m, made, pin = _elements(y, "y", True, _dtype(dtype))
    if m != n or (kind if narrow else made):
        raise ValueError("x has %d elements of %s, y has %d of %s: as many, and %s of fp32" %
                         (n, _NAMES[kind], m, _NAMES[made], "x" if narrow else "y"))
    _aligned(source if narrow else out, "x" if narrow else "y")
    _apart("y", out, m * _SIZES[made], (source, n * _SIZES[kind]))
    _must(_lib.gcomp_convert(out, made, source, kind, n, None))
    return y

# ---------------- collectives


class Comm:
    """The workers, and collectives that your callables carry out. Each runs on the thread that calls the library, in the same order on
    all workers. What it raises ends the step, and comes out of the call; gradients are as they were. All get and give copies.

    allreduce(data, dtype)   data[count] <- the sum over all workers, in place, with the same bits on all. data is a memoryview: of
                             floats ("fp32"), integers ("int8", "int16", "int32"), or uint16 ("fp16", "bf16"); its type is "fp32", or one
                             of allreduce_dtypes. numpy.asarray(data) and torch.frombuffer(data, dtype=...) see the same memory
    allgather(mine)          returns the bytes of all workers, in order of ranks (mpi4py: comm.allgather). All bring as many bytes, or
                             with uneven=True any number
    allreduce_max(data)      optional: the largest float of all workers, in place
    alltoall(parts)          optional: parts[w] goes to worker w; returns what each worker sent here (mpi4py: comm.alltoall)

    Instead of passing callables you may derive a class that has these methods."""

    allreduce: Optional[Callable] = None
    allgather: Optional[Callable] = None
    allreduce_max: Optional[Callable] = None
    alltoall: Optional[Callable] = None
    allreduce_dtypes: Sequence[str] = ()
    uneven = False

    def __init__(self, rank: int = 0, world: int = 1, allreduce: Optional[Callable] = None, allgather: Optional[Callable] = None,
                 allreduce_max: Optional[Callable] = None, alltoall: Optional[Callable] = None, allreduce_dtypes: Sequence[str] = (),
                 uneven: bool = False):
        self.rank, self.world = rank, world
        given = dict(allreduce=allreduce, allgather=allgather, allreduce_max=allreduce_max, alltoall=alltoall,
                     allreduce_dtypes=allreduce_dtypes, uneven=uneven)
        self.__dict__.update((name, value) for name, value in given.items() if value)

    def carry_out(self, request: "Request") -> Any:
        """Carries out a request of the step API, and returns what gcomp.step_done wants as its result."""
        if request.kind == "allreduce":
            return self.allreduce(request.data, request.dtype)  # type: ignore[misc]
        if request.kind == "allreduce_max":
            return self.allreduce_max(request.data)  # type: ignore[misc]
        return (self.allgather if request.kind == "allgather" else self.alltoall)(request.send)  # type: ignore[misc]


class Request:
    """What a step asks for: kind "allgather", "allreduce", "allreduce_max", "alltoall", "wait" or "done"; send (bytes to gather; or a
    list, a part for each worker); data (a memoryview to sum in place, or to replace by a buffer of as many elements of the same type)
    and its dtype."""

    __slots__ = ("kind", "id", "send", "data", "dtype", "_raw", "_lengths")


_KIND_NAMES = ("wait", "done", "allgather", "allreduce", "allreduce_max", "alltoall")
_CASTS = ("f", "H", "H", "B", "b", "h", "i")


def _numbers(address: int, count: int, dtype: int) -> memoryview:
    """A copy, of which a callable or a user makes the sum."""
    return memoryview(bytearray(ctypes.string_at(address, count * _SIZES[dtype]) if count else b"")).cast(_CASTS[dtype])


def _numbers_of(data: Any, dtype: int, what: str, write: bool) -> Tuple[int, int, Any]:
    """Address and number of the elements of a buffer, which must be of that type, and what keeps them there."""
    try:
        view = memoryview(data)
    except (TypeError, BufferError):
        raise TypeError("%s is of type %s: pass a buffer of %s" % (what, type(data).__name__, _NAMES[dtype])) from None
    if view.format.lstrip(_NATIVE) not in (_CASTS[dtype], "e" if dtype == 1 else None):
        raise TypeError("%s holds elements of format %r, not of %s" % (what, view.format, _NAMES[dtype]))
    address, keep = _address(view, data, what, write)
    return address, view.nbytes // _SIZES[dtype], keep


def _put_numbers(data: Any, place: int, count: int, dtype: int, what: str) -> None:
    """Copies a sum to its place in the library; it must have as many elements."""
    address, found, keep = _numbers_of(data, dtype, what, False)
    if found != count:
        raise ValueError("%s has %d elements of %s, not %d" % (what, found, _NAMES[dtype], count))
    if count:
        ctypes.memmove(place, address, count * _SIZES[dtype])


def _put(parts: Any, lengths: Sequence[int], places: Sequence[int], room: int) -> None:
    """Copies what came from each worker to its place; it must have the right length."""
    try:
        parts = list(parts)
    except TypeError:
        raise TypeError("a gather returned %s, not a list of what each worker sent" % type(parts).__name__) from None
    if len(parts) != len(lengths):
        raise ValueError("a gather returned the bytes of %d workers, not of %d" % (len(parts), len(lengths)))
    found = [_bytes(part, "what worker %d sent" % w) for w, part in enumerate(parts)]
    for w, (address, length, _) in enumerate(found):
        if not lengths[w] <= length <= max(room, lengths[w]):
            raise ValueError("worker %d sent %d bytes, not %d" % (w, length, lengths[w]))
    for (address, _, _), length, place in zip(found, lengths, places):
        if length:
            ctypes.memmove(place, address, length)


def _cut(address: int, lengths: Sequence[int]) -> List[bytes]:
    parts = []
    for length in lengths:
        parts.append(ctypes.string_at(address, length) if length else b"")
        address += length
    return parts


def _offsets(start: int, lengths: Sequence[int]) -> List[int]:
    places = []
    for length in lengths:
        places.append(start)
        start += length
    return places


class _Bridge:
    """C callbacks that call those of a Comm, and keep what these raise. A Comm that has carry_out_raw gets all as requests, over the
    memory of the library itself. Sockets has callbacks of its own, in C."""

    def __init__(self, comm: Any, raised: list):
        if not isinstance(comm, Comm):
            raise TypeError("comm is %r, not a gcomp.Comm" % (comm,))
        self.comm, self.raised = comm, raised
        self.rank, self.world = _bounded(comm.rank, "comm.rank", 2 ** 31 - 1), max(_bounded(comm.world, "comm.world", 2 ** 31 - 1), 1)
        self.keep: list = []
        if isinstance(comm, Sockets):
            self.struct = comm._struct()
            return
        self.struct = made = _CommStruct()
        made.rank, made.world = self.rank, self.world
        for name in comm.allreduce_dtypes:
            if name not in _NAMES[1:] or name == "uint8":
                raise ValueError("comm.allreduce_dtypes has %r, not fp16, bf16, int8, int16 or int32" % (name,))
            made.allreduce_dtypes |= 1 << _NAMES.index(name)
        for name in ("allreduce", "allgather", "allreduce_max", "alltoall"):
            if getattr(comm, name, None) is not None and not callable(getattr(comm, name)):
                raise TypeError("comm.%s is %r, which cannot be called" % (name, getattr(comm, name)))
        raw = hasattr(comm, "carry_out_raw")
        if comm.allreduce is not None:
            made.allreduce = self._wrap(_ALLREDUCE, self._raw_allreduce if raw else self._allreduce)
        if comm.allgather is not None:
            made.allgather = self._wrap(_ALLGATHER, self._raw_allgather if raw else self._allgather)
            if comm.uneven:
                made.allgatherv = self._wrap(_ALLGATHERV, self._allgatherv)
        if comm.allreduce_max is not None:
            made.allreduce_max = self._wrap(_MAX, self._raw_max if raw else self._max)
        if comm.alltoall is not None:
            made.alltoallv = self._wrap(_ALLTOALLV, self._raw_alltoallv if raw else self._alltoallv)

    def _wrap(self, kind: Any, function: Callable) -> Any:
        raised = self.raised

        def called(*arguments):
            try:
                function(*arguments)
                return 0
            except BaseException as error:  # comes out of the call of the library, see Gcomp._called
                raised.append(error)
                return 1
        made = kind(called)
        self.keep.append(made)
        return made

    def _allreduce(self, _user, data, count, dtype):
        view = _numbers(data, count, dtype)
        self.comm.allreduce(view, _NAMES[dtype])
        _put_numbers(view, data, count, dtype, "the data of allreduce")

    def _max(self, _user, data, count):
        view = _numbers(data, count, 0)
        self.comm.allreduce_max(view)
        _put_numbers(view, data, count, 0, "the data of allreduce_max")

    def _allgather(self, _user, mine, everyone, length):
        parts = self.comm.allgather(ctypes.string_at(mine, length) if length else b"")
        lengths = [length] * self.world
        _put(parts, lengths, _offsets(everyone or 0, lengths), length)

    def _allgatherv(self, _user, mine, everyone, lengths, stride):
        lengths = lengths[:self.world]
        parts = self.comm.allgather(ctypes.string_at(mine, lengths[self.rank]) if lengths[self.rank] else b"")
        _put(parts, lengths, [(everyone or 0) + w * stride for w in range(self.world)], 0)

    def _alltoallv(self, _user, send, send_lengths, recv, recv_lengths):
        parts = self.comm.alltoall(_cut(send, send_lengths[:self.world]))
        lengths = recv_lengths[:self.world]
        _put(parts, lengths, _offsets(recv or 0, lengths), 0)

    def _raw_allreduce(self, _user, data, count, dtype):
        self.comm.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLREDUCE"], recv=data, count=count, dtype=dtype))

    def _raw_max(self, _user, data, count):
        self.comm.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLREDUCE_MAX"], recv=data, count=count))

    def _raw_allgather(self, _user, mine, everyone, length):
        lengths = (c_size_t * self.world)(*[length] * self.world)
        self.comm.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLGATHER"], send=mine, recv=everyone, stride=length, bytes=lengths))

    def _raw_alltoallv(self, _user, send, send_lengths, recv, recv_lengths):
        self.comm.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLTOALL"], send=send, recv=recv, send_bytes=send_lengths, bytes=recv_lengths))


def _signals(raised: list) -> Any:
    """Each next(None) runs Python's handlers of signals that have come, on the main thread, and says if one has raised. A generator,
    since Python runs handlers where a function begins, and what they raise there no `try` of that function sees."""
    while True:
        try:
            while True:
                yield len(raised)
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)


class Sockets(Comm):
    """Workers that are processes and reach each other by TCP: gcomp_sockets.h, whose head says what holds. All workers open it:

        with gcomp.Sockets(rank, world, "10.0.0.1:7077", secret=os.environ["JOB_SECRET"]) as net, gcomp.open("sign", comm=net) as gc:
            gc.add_tensor("fc1.weight", 784, 1152)
            gc.exchange([grad])                         # grad is the mean over all workers now

    root        "HOST:PORT", or "[IPv6]:PORT", where rank 0 listens; best a number and no name, and a port below 32768
    secret      1 to 64 bytes or characters, the same on all. None: whoever reaches the port can take a rank
    rendezvous  seconds until all must have come: else TimeoutError. Another secret is a PermissionError, another world or a rank that
                is taken a ConnectionResetError, and what the system says another OSError
    silence     seconds without a byte after which a worker is lost
    elastic     True on all: those who are left when a worker dies call regroup(), and newcomers come by Sockets.join(root, secret)

    A worker that dies is an Error on all others at once, and so is close() of one of them; then nothing goes on over these
    connections: open new ones, and call regroup. Collectives run in C, without the GIL, in the memory of the library. Sums are made in
    the order of ranks. A child that fork() makes has no connections. One thread at a time.

    Python's handlers of signals run while a call of the main thread waits. What a handler raises, KeyboardInterrupt for instance, comes
    out of the call; then the connections are of no use any more."""

    allreduce_dtypes = ("fp16", "bf16", "int8", "int16", "int32")
    uneven = True
    closed = True
    _group: Optional[int] = None

    def __init__(self, rank: int, world: int, root: str = "127.0.0.1:7077", secret: Union[str, bytes, None] = None,
                 rendezvous: float = 300.0, silence: float = 300.0, *, elastic: bool = False):
        _must_have("gcomp_sockets")
        super().__init__(_bounded(rank, "rank", 65534), _bounded(world, "world", 65535))
        if rank >= world and not (elastic and world == 0):
            raise ValueError("rank is %d of %d workers" % (rank, world))
        host, colon, port = root.rpartition(":") if isinstance(root, str) else ("", "", "")
        host = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
        if not (host and port.isdigit() and 0 < int(port) < 65536 and len(host) < 56):
            raise ValueError("root is %r, not \"HOST:PORT\"" % (root,))
        word = secret if secret is None or isinstance(secret, bytes) else _text(secret, "secret")
        if word is not None and (not 1 <= len(word) <= 64 or b"\0" in word):
            raise ValueError("secret has %d bytes: 1 to 64, without NUL" % len(word))
        times = _real(rendezvous, "rendezvous"), _real(silence, "silence")
        if not all(0 < t <= 1e6 for t in times):
            raise ValueError("rendezvous is %g and silence %g: seconds, above 0 and at most 1e6" % times)
        self._free = _lib.gcomp_sockets_shared_free  # for __del__, when the interpreter ends
        self._raised: list = []  # by handlers of signals
        signals = _signals(self._raised)
        next(signals)
        self._stop = _STOP(signals.send)  # of a pointer, which is NULL
        group = c_void_p()
        code = _lib.gcomp_sockets_shared_open(byref(group), bool(elastic), self.rank, self.world, _text(host, "root"), port.encode(), word,
                                              *times, self._stop)
        if self._raised:
            raise self._raised.pop()
        if code:
            raise OSError(code, "worker %d of %d did not meet the others at %s: %s" % (self.rank, self.world, root, os.strerror(code)))
        self._group, self.closed = group.value, False
        if elastic:
            self._look()

    def _look(self) -> None:
        """Sets what a team tells about its workers."""
        count = (c_int * 4)()
        self._call(_lib.gcomp_sockets_shared_who, count, None, None)
        was, gone = (c_int * count[1])(), (c_int * max(count[2], 1))()
        self._call(_lib.gcomp_sockets_shared_who, count, was, gone)
        self.rank, self.world, self.joined = count[0], count[1], count[3]
        self.was, self.gone = list(was), list(gone)[:count[2]]

    @classmethod
    def join(cls, root: str = "127.0.0.1:7077", secret: Union[str, bytes, None] = None, rendezvous: float = 300.0,
             silence: float = 300.0) -> "Sockets":
        """A newcomer: waits until the workers that listen at root regroup, at most `rendezvous` seconds, and has a rank then."""
        return cls(0, 0, root, secret, rendezvous, silence, elastic=True)

    def waiting(self) -> int:
        """A collective of elastic workers: how many newcomers wait, the same number on all. If there are any, all call regroup."""
        count = c_int()
        self._call(_lib.gcomp_sockets_shared_asks, byref(count))
        return count.value

    def regroup(self, seconds: float = 60.0, least: int = 1) -> None:
        """Elastic workers that are left meet again, after an Error or for newcomers; then call regroup of each object. Sets rank and
        world; was, the old rank of each worker, -1 for a newcomer; gone, the old ranks that are lost; joined, the number of newcomers.
        TimeoutError: fewer than `least` came in time. ConnectionResetError: the others went on without this worker."""
        if not self._group or self.closed:
            self._did(4)
        code = _lib.gcomp_sockets_shared_regroup(self._group, _real(seconds, "seconds"), _bounded(least, "least", 65535))
        if self._raised:
            raise self._raised.pop()
        if code:
            raise OSError(code, "worker %d of %d did not regroup: %s" % (self.rank, self.world, os.strerror(code)))
        self._look()

    def _did(self, status: int) -> None:
        if status and getattr(self, "_raised", None):
            raise self._raised.pop()
        if status:
            raise Error(*{1: (_MISMATCH, "the workers brought different sizes or kinds to a collective"),
                          4: (_STATE, "the transport is closed"),
                          5: (_STATE, "another thread uses the transport")}.get(
                              status, (_FAILED, "a worker is gone, or was silent: the connections are of no use any more")))

    def _call(self, function: Any, *arguments: Any) -> None:
        self._did(function(self._group, *arguments) if self._group else 4)

    def _struct(self) -> Any:
        made = _CommStruct()
        self._call(_lib.gcomp_sockets_shared_comm, byref(made))
        return made

    def carry_out_raw(self, raw: Any) -> None:
        """Carries out a request in the memory of the library."""
        self._call(_lib.gcomp_sockets_shared_carry, byref(raw))

    def _in_place(self, kind: str, data: Any, dtype: int) -> None:
        address, count, keep = _numbers_of(data, dtype, "data", True)
        _aligned(address, "data", _SIZES[dtype])
        self.carry_out_raw(_Request(kind=_VALUES[kind], recv=address, count=count, dtype=dtype))

    def allreduce(self, data: Any, dtype: str = "fp32") -> None:
        """data <- the sum over all workers, in the order of ranks: a writable buffer of fp32, or of one of allreduce_dtypes."""
        if dtype != "fp32" and dtype not in self.allreduce_dtypes:
            raise ValueError("dtype is %r, not fp32, %s" % (dtype, ", ".join(self.allreduce_dtypes)))
        self._in_place("GCOMP_ALLREDUCE", data, _NAMES.index(dtype))

    def allreduce_max(self, data: Any) -> None:
        """data <- the largest of all workers: a writable buffer of fp32."""
        self._in_place("GCOMP_ALLREDUCE_MAX", data, 0)

    def _gather(self, mine: bytes, lengths: Sequence[int]) -> List[bytes]:
        stride = max(lengths)
        everyone = ctypes.create_string_buffer(stride * self.world or 1)
        sizes, (address, _, keep) = (c_size_t * self.world)(*lengths), _bytes(mine, "mine")
        place = ctypes.addressof(everyone)
        self.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLGATHER"], send=address, recv=place, stride=stride, bytes=sizes))
        return [ctypes.string_at(place + w * stride, length) for w, length in enumerate(lengths)]

    def allgather(self, mine: Any) -> List[bytes]:
        """The bytes of all workers, in the order of ranks; each may bring another number of them."""
        mine = bytes(memoryview(mine))
        lengths = self._gather(len(mine).to_bytes(8, "little"), [8] * self.world)
        return self._gather(mine, [int.from_bytes(length, "little") for length in lengths])

    def alltoall(self, parts: Sequence[Any]) -> List[bytes]:
        """parts[w] goes to worker w. Returns what each worker sent here."""
        if len(parts) != self.world:
            raise ValueError("parts are %d, for %d workers" % (len(parts), self.world))
        parts = [bytes(memoryview(part)) for part in parts]  # nobody changes their lengths from here on
        lists = self._gather(b"".join(len(part).to_bytes(8, "little") for part in parts), [8 * self.world] * self.world)
        sent, came = ([int.from_bytes(of[8 * at:8 * at + 8], "little") for of, at in pairs] for pairs in (
            [(lists[self.rank], w) for w in range(self.world)], [(of, self.rank) for of in lists]))
        out, (address, _, keep) = ctypes.create_string_buffer(sum(came) or 1), _bytes(b"".join(parts), "parts")
        self.carry_out_raw(_Request(kind=_VALUES["GCOMP_ALLTOALL"], send=address, recv=ctypes.addressof(out),
                                    send_bytes=(c_size_t * self.world)(*sent), bytes=(c_size_t * self.world)(*came)))
        return _cut(ctypes.addressof(out), came)

    def close(self) -> None:
        """Closes the connections. The other workers get an Error where they still wait for this one."""
        if not self.closed:
            self._call(_lib.gcomp_sockets_shared_close)
            self.closed = True

    def __enter__(self) -> "Sockets":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("connections are neither copied nor pickled")

    def __del__(self) -> None:
        group, self._group = self._group, None
        if group:  # objects of gcomp that use it keep a reference
            self._free(group)


# ---------------- objects


def _heard(keep: list, raised: list) -> None:
    """Moves what handlers of signals raised while Sockets waited to what callables raised."""
    for bridge in keep:
        if isinstance(bridge, _Bridge) and isinstance(bridge.comm, Sockets):
            raised += bridge.comm._raised
            bridge.comm._raised.clear()


def _desc(codec: Any, comm: Any, node: Any, options: dict, raised: list) -> Tuple[Any, list]:
    """A gcomp_desc, and what must be kept while the object is there."""
    desc, keep = _Desc(), []
    desc.codec = _text(codec, "codec")
    if comm is not None:
        keep.append(_Bridge(comm, raised))
        desc.comm = keep[-1].struct
    if node is not None:
        keep.append(_Bridge(node, raised))
        desc.node = keep[-1].struct
    known = dict(seed=lambda v: _bounded(v, "seed"), min_elements=lambda v: _size(v, "min_elements"),
                 bucket_bytes=lambda v: _size(v, "bucket_bytes"), check_every=lambda v: _bounded(v, "check_every", 2 ** 32 - 1),
                 schedule=lambda v: _text(v, "schedule"), residual=lambda v: _text(v, "residual"),
                 aggregate=lambda v: _choice(v, _AGGREGATES, "aggregate"), isa=lambda v: _choice(v, _ISAS, "isa"),
                 optimizer=lambda v: _choice(v, _OPTIMIZERS, "optimizer"), decay=lambda v: _real(v, "decay"), compress_vectors=bool,
                 no_error_feedback=bool, no_checksum=bool, measure=bool)
    for name, value in options.items():
        if name == "clock":
            if value is not None:
                if not callable(value):
                    raise TypeError("clock is %r, which cannot be called" % (value,))
                keep.append(_CLOCK(lambda _user, clock=value: clock()))
                desc.clock = keep[-1]
        elif name not in known:
            raise TypeError("%s is no option; these are: %s, clock" % (name, ", ".join(known)))
        else:
            setattr(desc, name, known[name](value))
    why = ctypes.create_string_buffer(400)
    desc.why, desc.why_capacity = ctypes.addressof(why), len(why)
    return desc, keep + [why]


def _tensor(name: str, rows: int, cols: Optional[int], stack: Optional[int], dtype: str, codec: Any) -> Any:
    """None: the tensor has no such dimension. In C that is 0, which in a shape of Python means that there are no elements."""
    for what, size in (("rows", rows), ("cols", cols), ("stack", stack)):
        if size is not None and not _size(size, what):
            raise ValueError("tensor %r: %s is 0, so that the tensor has no elements: leave it out. A vector has cols=None" % (name, what))
    cols, stack = cols or 0, stack or 0
    return _Tensor(_text(name, "name"), _size(rows, "rows"), _size(cols, "cols"), _size(stack, "stack"), _dtype(dtype),
                   _text(codec, "codec"))


def open(codec: Union[str, Codec, None] = None, *, comm: Optional[Comm] = None, node: Optional[Comm] = None, **options: Any) -> "Gcomp":
    """An object: gcomp_open. The options are those of gcomp_desc, with its defaults: schedule, seed, min_elements, compress_vectors,
    no_error_feedback, no_checksum, measure, aggregate ("auto", "gather", "shards", "two_shot", "scatter"), bucket_bytes, check_every,
    isa, residual ("fp32", "bf16", "int8"), optimizer ("sgd", "adam"), decay (what is kept of residuals), clock (a callable that returns
    seconds; each call costs about a microsecond). comm None: one worker."""
    return Gcomp(codec, comm, node, options)


def rounds(codec: Any, tensors: Sequence[Sequence[Any]], *, comm: Optional[Comm] = None,
           **options: Any) -> List[Tuple[Codec, List[Round]]]:
    """What steps would do for the tensors of an object, each (name, rows[, cols[, stack[, dtype]]]): for each tensor its codec, and its
    rounds (kind, dtype, bytes, sent, varies)."""
    desc, keep = _desc(codec, comm, None, options, [])
    count = len(tensors)
    found, made = (_Codec * count)(), (_Round * (3 * count))()
    code = _lib.gcomp_rounds(byref(desc), _tensors(tensors), count, found, made)
    if code:
        raise Error(code, keep[-1].value.decode(errors="replace"))
    return [(Codec._from(found[i]), [Round(_KIND_NAMES[r.kind], _NAMES[r.dtype], r.bytes, r.sent, bool(r.varies)) for r in made[3 * i:3 * i + 3] if r.kind])
            for i in range(count)]


def memory_needed(codec: Any, tensors: Sequence[Sequence[Any]], *, comm: Optional[Comm] = None, **options: Any) -> int:
    """The bytes that an object takes with these tensors, each (name, rows[, cols[, stack[, dtype]]])."""
    desc, keep = _desc(codec, comm, None, options, [])
    return _lib.gcomp_memory_needed(byref(desc), _tensors(tensors), len(tensors))


def _tensors(tensors: Sequence[Sequence[Any]]) -> Any:
    made = (_Tensor * len(tensors))()
    for i, (name, rows, *more) in enumerate(tensors):
        cols, stack, dtype = (more + [None, None, "fp32"][len(more):])[:3]
        made[i] = _tensor(name, rows, cols, stack, dtype, None)
    return made


class Gcomp:
    """Tensors with their codecs, residuals and steps: what open() returns. `with` closes it; so does close(). One thread at a time may
    use it, and callables of a Comm may not: else Error with the code WRONG_STATE."""

    def __init__(self, codec: Any = None, comm: Optional[Comm] = None, node: Optional[Comm] = None, options: Optional[dict] = None):
        self._gc: Optional[int] = None
        self._lock = threading.Lock()
        self._free = _lib.gcomp_close  # for __del__, when the interpreter ends
        self._raised: list = []
        self._sizes: List[Tuple[int, int]] = []  # elements and type of each tensor
        self._names: List[str] = []
        self._ready: dict = {}  # gradients of the step under way
        self._requests: dict = {}
        desc, self._keep = _desc(codec, comm, node, options or {}, self._raised)
        made = c_void_p()
        code = _lib.gcomp_open(byref(made), byref(desc))
        why = self._keep.pop()
        if code:
            raise Error(code, why.value.decode(errors="replace"))
        self._gc = made.value
        self._place = desc.comm.rank, max(desc.comm.world, 1)  # rank and world

    # -------- calls

    def _enter(self) -> int:
        if not self._lock.acquire(False):
            raise Error(_STATE, "another call on this object is under way, on another thread or around this one")
        if not self._gc:
            self._lock.release()
            raise Error(_STATE, "the object is closed")
        return self._gc

    def _call(self, function: Any, *arguments: Any, ends: bool = False) -> None:
        """Calls a function of the library that returns a result. Raises what a callback raised, or Error. ends: a step, when it is well"""
        gc = self._enter()
        try:
            code = function(gc, *arguments)
            if ends and code == 0:
                self._end()
            self._called(code, gc)
        finally:
            self._lock.release()

    def _called(self, code: int, gc: int) -> None:
        if code:
            _heard(self._keep, self._raised)
        if self._raised:
            raised, self._raised[:] = self._raised[0], []
            if code or not isinstance(raised, Exception):
                raise raised  # without code: a last sum within a machine, which cannot fail on its first worker
        if code:
            raise Error(code, _lib.gcomp_error(gc).decode(errors="replace"))

    def _ask(self, function: Any, *arguments: Any, use: Callable = lambda found: found) -> Any:
        """What use makes of what a function of the library returns: use copies what a pointer shows, while nobody can free that."""
        gc = self._enter()
        try:
            return use(function(gc, *arguments))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Frees everything. A step under way is lost: gradients stay as they are."""
        if not self._lock.acquire(False):
            raise Error(_STATE, "another call on this object is under way, on another thread or around this one")
        try:
            gc, self._gc = self._gc, None
            if gc:
                self._free(gc)
            self._ready.clear()
            self._requests.clear()
        finally:
            self._lock.release()

    @property
    def closed(self) -> bool:
        return not self._gc

    def __enter__(self) -> "Gcomp":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an object of gcomp is neither copied nor pickled: use save and load")

    def __del__(self) -> None:
        if getattr(self, "_gc", None):
            self._free(self._gc)
            self._gc = None

    # -------- tensors

    def add_tensor(self, name: str, rows: int, cols: Optional[int] = None, *, stack: Optional[int] = None, dtype: str = "fp32",
                   codec: Union[str, Codec, None] = None) -> int:
        """Adds a tensor, in the same order on all workers: `stack` matrices of rows x cols; cols None: a vector. dtype: of its gradient,
        "fp32", "fp16" or "bf16". codec None: that of the object, by its rules. Returns the tensor's number."""
        tensor = _tensor(name, rows, cols, stack, dtype, codec)
        gc = self._enter()
        try:
            self._called(_lib.gcomp_add_tensor(gc, byref(tensor)), gc)
            self._names.append(name)
            self._sizes.append((tensor.rows * max(tensor.cols, 1) * max(tensor.stack, 1), tensor.dtype))
            return len(self._sizes) - 1
        finally:
            self._lock.release()

    def __len__(self) -> int:
        return len(self._sizes)

    def find(self, name: str) -> int:
        """The number of the tensor of that name; KeyError if there is none."""
        self._ask(_lib.gcomp_step_number)  # is it open?
        try:
            return self._names.index(name)
        except ValueError:
            raise KeyError(name) from None

    def _number(self, tensor: int) -> int:
        number = _size(tensor, "tensor")
        if number >= len(self._sizes):
            raise IndexError("tensor %d of %d" % (number, len(self._sizes)))
        return number

    def _tell(self, tensor: int, use: Callable) -> Any:
        """What use makes of all that the library knows of a tensor."""
        info = _TensorInfo()
        return self._ask(_lib.gcomp_tensor_get, self._number(tensor), byref(info), use=lambda code: use(info))

    def name(self, tensor: int) -> str:
        return self._tell(tensor, lambda info: info.name.decode())

    def shape(self, tensor: int) -> Tuple[int, int, int]:
        """rows, cols and stack of a tensor, each 1 or more."""
        return self._tell(tensor, lambda info: (info.rows, info.cols, info.stack))

    def codec(self, tensor: int) -> Codec:
        """The codec that the tensor really has now."""
        return self._tell(tensor, lambda info: Codec._from(info.codec.contents))

    def shard(self, tensor: int, worker: int) -> Tuple[int, int]:
        """begin and end of the range of a tensor that belongs to a worker."""
        begin, end = c_size_t(), c_size_t()
        self._call(_lib.gcomp_shard, self._number(tensor), _bounded(worker, "worker", 2 ** 31 - 1), byref(begin), byref(end))
        return begin.value, end.value

    def residual(self, tensor: int) -> Any:
        """A copy of the residual, as an array.array of fp32; Error if the tensor keeps none."""
        number = self._number(tensor)
        made = _array.array("f", bytes(4)) * self._sizes[number][0]
        self._call(_lib.gcomp_residual_get, number, made.buffer_info()[0])
        return made

    def set_residual(self, tensor: int, values: Any) -> None:
        """residual <- values, as many fp32 numbers as the tensor has elements; Error if one is not finite, or the tensor keeps none."""
        number = self._number(tensor)
        address, count, dtype, keep = _elements(values, "values", False)
        if dtype or count != self._sizes[number][0]:
            raise ValueError("values: %d elements of %s, not %d of fp32" % (count, _NAMES[dtype], self._sizes[number][0]))
        _aligned(address, "values")
        self._call(_lib.gcomp_residual_set, number, address)

    @property
    def rank(self) -> int:
        return self._ask(_lib.gcomp_step_number, use=lambda _: self._place[0])

    @property
    def world(self) -> int:
        return self._ask(_lib.gcomp_step_number, use=lambda _: self._place[1])

    def describe(self) -> str:
        """What travels in a step: a line for each tensor, with its codec and why, a line with the sums, and warnings by
        options optimizer."""
        gc = self._enter()
        try:
            text = ctypes.create_string_buffer(_lib.gcomp_describe(gc, None, 0) + 1)
            _lib.gcomp_describe(gc, text, len(text))
            return text.value.decode(errors="replace")
        finally:
            self._lock.release()

    def prepare(self) -> None:
        """Reserves all memory that steps need. If it is not called, the first step reserves."""
        self._call(_lib.gcomp_prepare)

    def memory_used(self) -> int:
        return self.stats().memory

    def reset(self, tensor: int) -> None:
        """Sets a tensor's residual and warm start back to the beginning: on all workers, or on none."""
        self._call(_lib.gcomp_residual_set, self._number(tensor), None)

    def restart(self, step: int) -> None:
        """Forgets residuals, warm starts and a step under way, and goes on with this step number."""
        self._call(_lib.gcomp_restart, _bounded(step, "step"), ends=True)

    @property
    def step_number(self) -> int:
        return self._ask(_lib.gcomp_step_number)

    def stats(self) -> Statistics:
        """What was sent, how long it took (with the option clock), how much was lost: the fields of gcomp_statistics."""
        made = _Statistics()
        self._call(_lib.gcomp_stats, byref(made))
        return Statistics(*(getattr(made, name) for name in Statistics._fields))

    def _gradient(self, grad: Any, tensor: int, write: bool = True) -> Tuple[int, Any]:
        n, dtype = self._sizes[tensor]
        try:
            address, count, found, keep = _elements(grad, "the gradient", write, dtype)
            if found != dtype or count != n:
                raise ValueError("the gradient has %d elements of %s, not %d of %s" % (count, _NAMES[found], n, _NAMES[dtype]))
            _aligned(address, "the gradient", _SIZES[dtype])
        except (TypeError, ValueError) as error:
            raise type(error)("tensor %r: %s" % (self._names[tensor], error)) from None
        return address, keep

    # -------- tensors with any transport

    def compress(self, tensor: int, step: int, grad: Any, *, out: Any = None) -> Any:
        """The payload of grad with the tensor's codec and residual. Changes no state. out: as in encode."""
        number = self._number(tensor)
        address, keep = self._gradient(grad, number, False)
        payload = out
        if out is None:
            codec = self.codec(number)
            payload = bytearray(max(codec.bound(self._sizes[number][0]), 32))
        place, capacity, pin = _bytes(payload, "out", True)
        _apart("out", place, capacity, (address, self._sizes[number][0] * _SIZES[self._sizes[number][1]]))
        length = c_size_t()
        self._call(_lib.gcomp_compress, number, _bounded(step, "step"), address, place, capacity, byref(length))
        if out is not None:
            return memoryview(out).cast("B")[:length.value] if not hasattr(out, "data_ptr") else out[:length.value]
        del pin
        del payload[length.value:]
        return payload

    def commit(self, tensor: int, grad: Any, own: Any = None, payloads: Sequence[Any] = ()) -> None:
        """residual <- grad + residual - decode(own); grad <- the mean of the payloads, if there are any. own None: nothing was sent."""
        number = self._number(tensor)
        address, keep = self._gradient(grad, number)
        place, length, pin = _bytes(own, "own") if own is not None else (None, 0, None)
        addresses, lengths, count, read, keeps = _payloads(payloads)
        _apart("grad", address, self._sizes[number][0] * _SIZES[self._sizes[number][1]], (place or 0, length), *read)
        self._call(_lib.gcomp_commit, number, address, place, length, addresses, lengths, count)

    def give_back(self, tensor: int, payload: Any) -> None:
        """residual <- residual + decode(payload): it was committed as own, and was lost after all."""
        address, length, keep = _bytes(payload, "payload")
        self._call(_lib.gcomp_give_back, self._number(tensor), address, length)

    # -------- exchange

    @staticmethod
    def _step(scale: float = 1.0, learning_rate: Optional[float] = None, epoch: int = 0, samples: float = 0.0, batch: float = 0.0,
              number: int = 0) -> Any:
        rate = -1.0 if learning_rate is None else _real(learning_rate, "learning_rate")  # None: it is not known
        return _Step(_real(scale, "scale"), rate, _bounded(epoch, "epoch", 2 ** 32 - 1),
                     _real(samples, "samples"), _real(batch, "batch"))

    def exchange(self, grads: Sequence[Any], **step: Any) -> None:
        """grads[i] <- the mean over all workers, in place. None, on all workers: the tensor is skipped. step: the fields of gcomp_step:
        scale (gradients are read as scale * gradient), learning_rate (None: unknown), epoch, samples, batch, number. After any error gradients and residuals of
        this worker are as they were; what a callable raised is raised here. Where the arguments are wrong, the other workers get
        GCOMP_PEER_FAILED, and do not wait."""
        self._exchange(lambda: self._found(grads), step)

    def _found(self, grads: Sequence[Any]) -> Tuple[Any, list]:
        if len(grads) != len(self._sizes):
            raise ValueError("grads has %d arrays, and there are %d tensors" % (len(grads), len(self._sizes)))
        addresses, keeps, spans = (c_void_p * (len(grads) + 1))(), [], []
        for i, grad in enumerate(grads):
            if grad is not None:
                address, keep = self._gradient(grad, i)
                addresses[i] = address
                keeps.append(keep)
                spans.append((address, address + self._sizes[i][0] * _SIZES[self._sizes[i][1]], i))
        spans.sort()
        for (_, end, i), (begin, _, j) in zip(spans, spans[1:]):
            if begin < end:
                raise ValueError("the gradients of tensors %r and %r share memory" % (self._names[i], self._names[j]))
        return addresses, keeps

    def exchange_flat(self, grads: Any, **step: Any) -> None:
        """exchange for gradients that lie back to back in one array of fp32, in the order of the tensors."""
        def found():
            address, count, dtype, keep = _elements(grads, "grads", True)
            if dtype or any(d for _, d in self._sizes) or count != sum(n for n, _ in self._sizes):
                raise ValueError("grads has %d elements of %s; the tensors have %d, and must all be fp32" %
                                 (count, _NAMES[dtype], sum(n for n, _ in self._sizes)))
            _aligned(address, "grads")
            addresses = (c_void_p * (len(self._sizes) + 1))()
            for i, place in enumerate(_offsets(address, [4 * n for n, _ in self._sizes])):
                addresses[i] = place
            return addresses, [keep]
        self._exchange(found, step)

    def _exchange(self, find: Callable, step: dict) -> None:
        gc = self._enter()
        try:
            try:
                addresses, keeps = find()
                made = byref(self._step(**step)) if step else None
            except Exception:  # this worker's error goes into its frame, so that no other waits for it
                _lib.gcomp_exchange(gc, None, None)
                self._raised.clear()
                raise
            self._called(_lib.gcomp_exchange(gc, addresses, made), gc)
        finally:
            self._lock.release()

    # -------- step

    def _end(self) -> None:
        self._ready.clear()
        self._requests.clear()

    def step_begin(self, **step: Any) -> None:
        """Begins a step. step: as in exchange."""
        self._call(_lib.gcomp_step_begin, byref(self._step(**step)) if step else None, ends=True)  # what a step that failed has left

    def step_ready(self, tensor: int, grad: Any) -> None:
        """Encodes a tensor's gradient, which must stay as it is until the commit. None skips the tensor, on all workers."""
        number = self._number(tensor)
        address, keep = self._gradient(grad, number) if grad is not None else (None, None)
        gc = self._enter()
        try:
            self._called(_lib.gcomp_step_ready(gc, number, address), gc)
            self._ready[number] = keep
        finally:
            self._lock.release()

    def _next(self, use: Callable = lambda gc, raw: raw) -> Any:
        """What use makes of the request as C has it. Its pointers hold until it is done, and no longer."""
        gc = self._enter()
        try:
            raw = _Request()
            code = _lib.gcomp_step_next(gc, byref(raw))
            if code and code != _STATE:
                self._requests.clear()
            self._called(code, gc)
            return use(gc, raw)
        finally:
            self._lock.release()

    def _done(self, raw: Any, status: int) -> None:
        gc = self._enter()
        try:
            code = _lib.gcomp_step_done(gc, raw.id, status)
            if code and code != _STATE:
                self._requests.clear()
            self._called(code, gc)
        finally:
            self._lock.release()

    def step_next(self) -> Request:
        """The next request. An error ends the step."""
        return self._next(self._request)

    def _request(self, gc: int, raw: Any) -> Request:
        """The request with copies of what C shows, made while nobody can free that."""
        request = Request()
        request.kind, request.id, request._raw = _KIND_NAMES[raw.kind], raw.id, raw
        request.send = request.data = request.dtype = request._lengths = None
        if raw.kind < 2:
            return request
        rank, world = self._place
        if request.kind == "allgather":
            request._lengths = raw.bytes[:world]
            request.send = ctypes.string_at(raw.send, request._lengths[rank]) if request._lengths[rank] else b""
        elif request.kind == "alltoall":
            request._lengths = raw.bytes[:world]
            request.send = _cut(raw.send, raw.send_bytes[:world])
        else:
            request.data = _numbers(raw.recv, raw.count, raw.dtype)
            request.dtype = _NAMES[raw.dtype]
        self._requests[raw.id] = request
        return request

    def step_done(self, request: Request, result: Any = None, *, failed: bool = False) -> None:
        """Says that a request was carried out: with its sum in request.data, or with what each worker sent in result, a list of bytes.
        failed=True ends the step."""
        raw = getattr(request, "_raw", None)
        gc = self._enter()
        try:
            if not isinstance(request, Request) or raw is None or self._requests.get(raw.id) is not request:
                raise Error(_STATE, "this is no request under way")
            if not failed:
                if request._lengths is None:
                    _put_numbers(request.data, raw.recv or 0, raw.count, raw.dtype, "request.data")
                elif raw.kind == _VALUES["GCOMP_ALLGATHER"]:
                    _put(result, request._lengths, [(raw.recv or 0) + w * raw.stride for w in range(len(request._lengths))], raw.stride)
                else:
                    _put(result, request._lengths, _offsets(raw.recv or 0, request._lengths), 0)
            del self._requests[raw.id]
            code = _lib.gcomp_step_done(gc, raw.id, int(bool(failed)))
            if code and code != _STATE:
                self._requests.clear()
            self._called(code, gc)
        finally:
            self._lock.release()

    def step_commit(self) -> None:
        """After the request "done": writes the means into the gradients, and what was not sent into the residuals."""
        self._call(_lib.gcomp_step_commit, ends=True)

    def step_abort(self) -> None:
        """Ends a step without a commit: nothing has changed."""
        self._call(_lib.gcomp_step_abort, ends=True)

    def step_finish(self) -> None:
        """Carries out the rest of a step whose tensors are all ready, through the callables of comm, and commits."""
        self._call(_lib.gcomp_step_finish, ends=True)

    # -------- checkpoint; workers that come and go

    def save(self) -> bytes:
        """All that this worker must not lose: residuals, momenta, warm starts, the step's number. Each worker has its own."""
        gc = self._enter()
        try:
            length = c_size_t()
            self._called(_lib.gcomp_save(gc, None, 0, byref(length)), gc)
            made = ctypes.create_string_buffer(length.value)
            self._called(_lib.gcomp_save(gc, made, len(made), byref(length)), gc)
            return ctypes.string_at(made, length.value)
        finally:
            self._lock.release()

    def load(self, saves: Sequence[Any]) -> None:
        """Goes on from saves: [the save of this rank], or those of all ranks, in order; then there may be another number of workers now.
        On error nothing is changed."""
        addresses, lengths, count, _, keeps = _payloads(saves)
        self._call(_lib.gcomp_load, addresses, lengths, count, None)

    def load_some(self, saves: Sequence[Any]) -> str:
        """load for a model that has changed: tensors are found by name, and take what fits. Returns the report: a line for each tensor
        of which not all was taken, "" if all was."""
        addresses, lengths, count, _, keeps = _payloads(saves)
        room = 1 << 14
        gc = self._enter()
        try:
            while True:
                text = ctypes.create_string_buffer(room)
                report = _Report(ctypes.addressof(text), room, 0)
                self._called(_lib.gcomp_load(gc, addresses, lengths, count, byref(report)), gc)
                if report.length < room:
                    return text.value.decode(errors="replace")
                room = report.length + 1  # once more, with room for the whole report: the same saves give the same state
        finally:
            self._lock.release()

    def take_over(self, save: Any) -> None:
        """Adds what a worker that leaves has not sent to what this worker has not sent; then all that stay call regroup."""
        address, length, keep = _bytes(save, "save")
        self._call(_lib.gcomp_take_over, address, length)

    def join(self, save: Any) -> None:
        """Makes a new object one of a group of workers; save: that of any of these."""
        address, length, keep = _bytes(save, "save")
        self._call(_lib.gcomp_join, address, length)

    def regroup(self, comm: Comm, node: Optional[Comm] = None) -> None:
        """Gives the object another rank, world and callables, between two steps. With node, the workers of this machine change too."""
        raised = self._raised
        bridges = [_Bridge(comm, raised)] + ([_Bridge(node, raised)] if node is not None else [])
        gc = self._enter()
        try:
            self._keep += bridges  # those of before stay: a node may be among them
            self._called(_lib.gcomp_regroup(gc, byref(bridges[0].struct), byref(bridges[1].struct) if node is not None else None), gc)
            self._place = comm.rank, max(comm.world, 1)
        finally:
            self._lock.release()


# ---------------- advice

_SUIT_SGD = ("powersgd:rank=4", "topk:density=0.01", "int:bits=4")
_SUIT_ALL = ("int:bits=4", "qsgd", "eden:bits=2")  # Adam too: see WITH ADAM in the manual


class Advice:
    """What advise() found. print() shows it.

    codecs         for each tensor the text of its codec, as add_tensor takes it; None: do not compress
    seconds        that a step is expected to take, without forward and backward pass: codec_seconds + link_seconds
    plain          the same without compression
    figures        what the candidates cost: {codec: (seconds a tensor, seconds an element, seconds an element for each further payload,
                   bytes an element)}. As candidates of another question it saves measuring
    link           start, in seconds, and seconds a byte of a sum, of a gather, and of an alltoall
    tensors, world as in the question"""

    def __init__(self, tensors: List[str], world: int, codecs: List[Optional[str]], link: Sequence[float], seconds: Sequence[float],
                 figures: dict):
        self.tensors, self.world, self.codecs, self.link, self.figures = tensors, world, codecs, link, figures
        self.seconds, self.codec_seconds, self.link_seconds, self.plain = seconds

    def __str__(self) -> str:
        lines = ["%d workers: a step takes %.4g ms without compression, beside forward and backward pass" % (self.world, 1e3 * self.plain)]
        if any(self.codecs):
            lines.append("as follows %.4g ms: %.4g to compress, %.4g to communicate" %
                         (1e3 * self.seconds, 1e3 * self.codec_seconds, 1e3 * self.link_seconds))
            lines += ["  %s: %s" % (name, codec or "none") for name, codec in zip(self.tensors, self.codecs)]
        else:
            lines.append("do not compress")
        return "\n".join(lines)


class _Question:
    """The arguments of advise(), checked, and what it finds."""

    def __init__(self, tensors: Any, comm: Comm, candidates: Any, least_gain: float, link_bytes: int, options: dict):
        _must_have("gcomp_advise")
        self.raised: list = []
        self.desc, self.keep = _desc(None, comm, None, options, self.raised)
        self.rank, self.world = self.desc.comm.rank, self.desc.comm.world
        if self.rank >= self.world:
            raise Error(_INVALID, "comm.rank is %d, and there are %d workers" % (self.rank, self.world))
        if self.world > 1 and comm.allreduce is None:
            raise Error(_MISSING, "comm.allreduce is missing")
        self.tensors = _tensors(tensors)
        self.least_gain = _real(least_gain, "least_gain")
        if not 0 <= self.least_gain < 1:
            raise ValueError("least_gain is %r, not at least 0 and below 1" % (least_gain,))
        self._take_candidates(candidates, options.get("optimizer"))
        shapes = [(t.name, t.rows, t.cols, t.stack, t.dtype) for t in self.tensors]
        elements = sum(rows * max(cols, 1) * max(stack, 1) for _, rows, cols, stack, _ in shapes)
        self.link_bytes = _size(link_bytes, "link_bytes") or min(4 * elements, 2 ** 20)
        same = (shapes, self.codecs, self.link_bytes, self.world, self.desc.comm.allreduce_dtypes, bool(self.desc.comm.alltoallv))
        self.digest = hashlib.sha256(repr(same).encode()).digest()  # of what is equal on all workers
        self.link, self.seconds, self.choices = (c_double * 6)(), (c_double * 4)(), (c_size_t * (len(self.tensors) + 1))()
        self.form = _Form("<%dB%dd" % (len(self.tensors), 10 + len(self.figures)))

    def _take_candidates(self, candidates: Any, optimizer: Any) -> None:
        if candidates is None:
            candidates = [c for c in (_SUIT_SGD if optimizer == "sgd" else _SUIT_ALL) if c.split(":")[0] in methods()]
        if isinstance(candidates, (str, Codec)):
            raise TypeError("candidates is one codec: pass a list of them")
        given = dict(candidates) if isinstance(candidates, dict) else dict.fromkeys(candidates, (0, 0, 0, 0))
        given = {"none" if str(Codec(codec)) == "none" else str(codec): four for codec, four in given.items()}
        given = {"none": given.pop("none", (0, 0, 0, 0)), **given}
        self.codecs, self.figures = list(given), (c_double * (4 * len(given)))()
        for i, (codec, four) in enumerate(given.items()):
            if len(four) != 4:
                raise ValueError("the figures of %s are %d, not 4" % (codec, len(four)))
            self.figures[4 * i:4 * i + 4] = [_real(x, "a figure of " + codec) for x in four]

    def _called(self, code: int) -> None:
        if code:
            _heard(self.keep, self.raised)
        if self.raised:
            raise self.raised[0]
        if code:
            raise Error(code, self.keep[-1].value.decode(errors="replace"))

    def measure_link(self) -> None:
        self._called(_lib.gcomp_advise_shared_measure(byref(self.desc), self.link_bytes, self.link))

    def ask(self) -> bytes:
        """The answer, for all workers."""
        codecs = (c_char_p * len(self.codecs))(*(codec.encode() for codec in self.codecs))
        for count in (len(self.codecs), 1):  # the second time about "none" alone
            self._called(_lib.gcomp_advise_shared(byref(self.desc), self.link, self.tensors, len(self.tensors), codecs, self.figures,
                                                  count, self.choices, self.seconds))
            if self.seconds[0] < (1 - self.least_gain) * self.seconds[3]:
                break
        return self.form.pack(*self.choices[:len(self.tensors)], *self.link, *self.seconds, *self.figures)

    def advice(self, answer: bytes) -> Advice:
        numbers, n = self.form.unpack(answer), len(self.tensors)
        if any(choice >= len(self.codecs) for choice in numbers[:n]):
            raise Error(_MISMATCH, "worker 0 chose a codec that is no candidate")
        codecs = [self.codecs[choice] if choice else None for choice in numbers[:n]]
        figures = {codec: numbers[n + 10 + 4 * i:n + 14 + 4 * i] for i, codec in enumerate(self.codecs)}
        return Advice([t.name.decode() for t in self.tensors], self.world, codecs, numbers[n:n + 6], numbers[n + 6:n + 10], figures)


def _agreed(bridge: _Bridge, length: int, work: Callable[[], bytes], what: str = "ask the adviser") -> List[bytes]:
    """The bytes that work() returns on each worker, `length` of them. Where it raises, so does this; the others get PEER_FAILED."""
    def tell(mine: bytes) -> List[bytes]:
        if bridge.world == 1:
            return [mine]
        everyone = ctypes.create_string_buffer(len(mine) * bridge.world)
        bridge._allgather(None, mine, ctypes.addressof(everyone), len(mine))
        return _cut(ctypes.addressof(everyone), [len(mine)] * bridge.world)
    try:
        mine = b"\1" + work()
    except Exception:
        with contextlib.suppress(Exception):  # this worker's error is the one to raise
            tell(bytes(1 + length))
        raise
    said = tell(mine)
    for worker, one in enumerate(said):
        if not one[0]:
            raise Error(_PEER, "worker %d could not %s" % (worker, what))
    return [one[1:] for one in said]


def advise(tensors: Sequence[Sequence[Any]], *, comm: Optional[Comm] = None, bits_per_second: Optional[float] = None,
           latency: float = 50e-6, world: Optional[int] = None, candidates: Any = None, least_gain: float = 0.25, link_bytes: int = 0,
           **options: Any) -> Advice:
    """Which codec for which tensor, on this machine, over this link: gcomp_advise.h says how.

        advice = gcomp.advise([("fc1.weight", 784, 1152), ("fc1.bias", 1152)], comm=comm, optimizer="adam")
        print(advice)
        for (name, *shape), codec in zip(tensors, advice.codecs):
            gc.add_tensor(name, *shape, codec=codec)           # of gcomp.open(comm=comm, optimizer="adam")

    tensors      each (name, rows[, cols[, stack[, dtype]]])
    comm         the link is measured over its collectives. All workers call advise together, and get the advice of worker 0. Where the
                 arguments are wrong on one worker, the others get GCOMP_PEER_FAILED; where they differ, all get GCOMP_MISMATCH
    bits_per_second, latency (in seconds), world    instead of comm: a ring of so many workers, who have all collectives. Nothing is sent
    candidates   codecs; or Advice.figures, of which nothing is measured again. None: what suits the optimizer, and where options do not
                 name it, any. Those that gcomp.Codec.warning warns of are not chosen
    least_gain   the part by which a step must be shorter, else nothing is compressed: what is expected is good to a quarter
    link_bytes   that each worker brings to collectives that are timed; 0: as many as the gradients have, at most 1 MiB
    options      those of gcomp.open; of these schedule is not read. clock: None is a clock of the library's own

    The candidates are measured first: gradients of up to 2^23 elements, a few steps each."""
    if (comm is None) == (bits_per_second is None) or (comm is None) != (world is not None):
        raise TypeError("advise takes comm; or bits_per_second and world")
    arguments = (candidates, least_gain, link_bytes, options)
    if comm is None:
        bits, seconds = _real(bits_per_second, "bits_per_second"), _real(latency, "latency")
        if not (0 < bits < math.inf and 0 <= seconds < math.inf):
            raise ValueError("bits_per_second is %g and latency %g: numbers above 0, latency also 0" % (bits, seconds))
        never = Comm(0, world, print, print, print, print, ("int8", "int16", "int32"))  # type: ignore[arg-type]
        question = _Question(tensors, never, *arguments)
        _lib.gcomp_advise_shared_ring(bits, seconds, question.world, question.link)
        return question.advice(question.ask())
    bridge, made = _Bridge(comm, []), []
    if bridge.world > 1 and comm.allgather is None:
        raise Error(_MISSING, "comm.allgather is missing")

    def digest() -> bytes:
        made.append(_Question(tensors, comm, *arguments))
        return made[0].digest
    digests = _agreed(bridge, 32, digest)
    for worker, other in enumerate(digests):
        if other != digests[0]:
            raise Error(_MISMATCH, "worker %d asks about other tensors, candidates or collectives than worker 0" % worker)
    question = made[0]
    question.measure_link()
    return question.advice(_agreed(bridge, question.form.size, question.ask)[0])


# ---------------- the weights: workers must begin with the same

Weights = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


def _weights(weights: Weights, write: bool) -> Iterator[Tuple[str, int, int, Any]]:
    """Name, address, bytes of each array, of elements of any type, and what keeps it there."""
    torch = sys.modules.get("torch")
    for name, x in weights.items() if isinstance(weights, Mapping) else weights:
        what = "the weight %r" % (name,)
        if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
            if x.layout is not torch.strided or x.device.type != "cpu" or not x.is_contiguous():
                raise ValueError("%s is not contiguous on the CPU" % what)
            yield name, torch.Tensor.data_ptr(x), x.numel() * x.element_size(), x
            continue
        try:
            view = memoryview(x)
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError("%s is no array (%s)" % (what, error)) from None
        address, keep = _address(view, x, what, write)
        yield name, address, view.nbytes, keep


def _same_on_all(bridge: _Bridge, make: Callable[[], List[Tuple[str, bytes]]], what: str) -> None:
    """Raises Error, on all workers, for the first entry of a list of names and digests that is another one than worker 0's."""
    if bridge.world > 1 and bridge.comm.allgather is None:
        raise Error(_MISSING, "comm.allgather is missing")
    made: List[Tuple[str, bytes]] = []

    def digest() -> bytes:
        made.extend((name, hashlib.sha256(repr((name, of)).encode()).digest()) for name, of in make())
        return len(made).to_bytes(8, "little") + hashlib.sha256(b"".join(of for _, of in made)).digest()
    said = _agreed(bridge, 40, digest, "compare its weights")
    if all(one == said[0] for one in said):
        return
    counts = [int.from_bytes(one[:8], "little") for one in said]
    for worker, count in enumerate(counts):
        if count != counts[0]:
            raise Error(_MISMATCH, "worker %d has %d weights, and worker 0 has %d" % (worker, count, counts[0]))
    lists = _agreed(bridge, 32 * len(made), lambda: b"".join(of for _, of in made), "compare its weights")
    for i, (name, _) in enumerate(made):
        for worker, of in enumerate(lists):
            if of[32 * i:32 * i + 32] != lists[0][32 * i:32 * i + 32]:
                raise Error(_MISMATCH, "worker %d has %s %r than worker 0" % (worker, what, name))


def compare_weights(weights: Weights, comm: Comm) -> None:
    """Raises Error (GCOMP_MISMATCH), on all workers, unless all have the same weights, to the last bit; the sentence names the first
    that differs. weights: a dict of arrays by name, or pairs of a name and an array; of elements of any type. All workers call it: before
    the first step, for workers that begin with other weights train apart, and the exchange of gradients does not show that."""
    def digests() -> List[Tuple[str, bytes]]:
        return [(name, hashlib.sha256((c_char * n).from_address(address) if n else b"").digest() + n.to_bytes(8, "little"))
                for name, address, n, _keep in _weights(weights, False)]
    _same_on_all(_Bridge(comm, []), digests, "another")


def broadcast_weights(weights: Weights, comm: Comm) -> None:
    """weights <- those of worker 0, in place. All workers call it, with arrays of the same names and sizes. Nothing is written before
    all of it has arrived on all workers; an error changes nothing. A worker needs room for the weights once more."""
    bridge, found = _Bridge(comm, []), []  # type: Tuple[_Bridge, List[Tuple[str, int, int, Any]]]

    def sizes() -> List[Tuple[str, bytes]]:
        found.extend(_weights(weights, True))
        return [(name, n.to_bytes(8, "little")) for name, _, n, _ in found]
    _same_on_all(bridge, sizes, "another size of")
    came: List[bytes] = []

    def receive() -> bytes:
        for _, address, n, _ in found if bridge.world > 1 else ():
            for at in range(0, n, 1 << 20):
                length = min(n - at, 1 << 20)
                mine = ctypes.string_at(address + at, length) if bridge.rank == 0 else b"" if comm.uneven else bytes(length)
                parts = list(comm.allgather(mine))  # type: ignore[misc]
                if len(parts) != bridge.world or len(parts[0]) != length:
                    raise ValueError("an allgather did not return what all workers brought")
                if bridge.rank:
                    came.append(bytes(parts[0]))
        return b""
    _agreed(bridge, 0, receive, "receive the weights")
    pieces = iter(came)
    for _, address, n, _ in found if bridge.rank else ():
        for at in range(0, n, 1 << 20):
            ctypes.memmove(address + at, next(pieces), min(n - at, 1 << 20))


# ---------------- python -m gcomp


def _main() -> None:
    import random
    n = 2 ** 20
    print("gcomp %s, %s" % (version(), LIBRARY))
    print("instruction sets: " + ", ".join(isas()))
    random.seed(1)
    x = _array.array("f", [random.gauss(0, 1) for _ in range(2 ** 14)]) * (n // 2 ** 14)
    print("\n%d normally distributed numbers, %d bytes of fp32, by each method with its defaults:" % (n, 4 * n))
    for method in methods():
        try:
            length = len(encode(method, x, key=key(1, 0, 0, 0)))
            print("%-12s %8d bytes, %6.2f bits an element" % (method, length, 8.0 * length / n))
        except Error as error:
            print("%-12s %s" % (method, error.sentence))


if __name__ == "__main__":
    _main()
