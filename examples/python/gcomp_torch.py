"""gcomp.h under PyTorch: compressed gradients for DistributedDataParallel, and for training without it.

    state = gcomp_torch.State(model, "powersgd:rank=4")      # model: a DistributedDataParallel, or any module; all workers call it
    model.register_comm_hook(state, gcomp_torch.hook)        # then train as before

    gcomp_torch.average_gradients(model, state)              # without DistributedDataParallel: after backward, before the optimizer

Matrices are compressed by the codec; a convolution's weight is rows (its output channels) x the rest. Vectors and small tensors travel
uncompressed, together in one sum. state.describe() says what travels: print it before training. What is not sent is kept, and sent in
later steps. All workers get the same bits.

Compression runs on the CPU, in a thread of the state's own, which also carries the collectives over a Gloo group of its own: while the
backward pass makes the next bucket, the tensors of the last one are encoded, and sent when bucket_bytes of them are there. With
transport="sockets" they travel over connections of the state's own instead, which takes less of the processor. Gradients on a GPU, under
NCCL, go by way of pinned host memory. That path has not been run yet on a GPU.

All workers must begin with the same weights. DistributedDataParallel sees to that when it is made; without it, call
broadcast_weights(model) before the first step. State compares the weights once, and raises gcomp.Error where they differ.

Every parameter of the model that requires a gradient is averaged, or an error names it: a layer that was unfrozen or added after the
state was made needs a new State, and so does a new DistributedDataParallel of other parameters. Sparse gradients are refused.

Shared parameters count once. Parameters without a gradient on some worker, or on all: unused=True (taken from
find_unused_parameters); where no worker has a gradient, the parameter is skipped and keeps its residual. Gradient accumulation under
no_sync, and gradients of bf16 and fp16, need nothing else. fp64 is refused.

A step that fails raises gcomp.Error from backward() on every worker that the failure reaches (error.kind says what to do); gradients
are then the worker's own, not the mean. A worker that dies is such an error on the others, at the latest after `timeout` seconds."""

import contextlib
import ctypes
import hashlib
import json
import os
import random
import secrets
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

import gcomp

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_TENSOR_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32)
_WAIT, _DONE, _ALLGATHER, _ALLREDUCE, _MAX, _ALLTOALL = range(6)


def _view(address: int, count: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A tensor over memory of the library, which holds until the request is done."""
    if not count:
        return torch.empty(0, dtype=dtype)
    itemsize = torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * (count * itemsize)).from_address(address), dtype=dtype)


def _bytes_of(data: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


class GlooComm(gcomp.Comm):
    """The workers of a Gloo group, for gcomp.open(comm=...). in_order: sums of floats are made in the order of ranks, from what all
    workers gather: the bits are those of gcomp_threads.h and gcomp_sockets.h, and more is sent."""

    allreduce_dtypes = ("int8", "int16", "int32")

    def __init__(self, group: Any, in_order: bool = False):
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self.group, self.in_order = group, in_order
        # A thread of Gloo may let go of a tensor a moment after its collective. It must not be the last to do so: that would take the
        # GIL, which is deadly while the interpreter ends. So tensors of the last collectives stay here.
        self._held: deque = deque(maxlen=64)

    def _gather(self, parts: List[torch.Tensor], mine: torch.Tensor) -> List[torch.Tensor]:
        self._held.append((parts, mine))
        if mine.numel():  # Gloo divides by it
            dist.all_gather(parts, mine, group=self.group)
        return parts

    def _reduce(self, data: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        self._held.append(data)
        if data.numel():
            dist.all_reduce(data, op=op, group=self.group)

    def sum(self, data: torch.Tensor) -> None:
        if data.dtype is torch.int16:  # which Gloo does not sum
            wide = data.to(torch.int32)
            self._reduce(wide)
            data.copy_(wide)
        elif self.in_order and data.is_floating_point():
            parts = self._gather([torch.empty_like(data) for _ in range(self.world)], data)
            data.copy_(parts[0])
            for part in parts[1:]:
                data.add_(part)
        else:
            self._reduce(data)

    def largest(self, data: torch.Tensor) -> None:
        self._reduce(data, dist.ReduceOp.MAX)

    def swap(self, out: torch.Tensor, out_lengths: Sequence[int], data: torch.Tensor, lengths: Sequence[int]) -> None:
        self._held.append((out, data))
        dist.all_to_all_single(out, data, list(out_lengths), list(lengths), group=self.group)

    def allreduce(self, data: memoryview, dtype: str) -> None:
        self.sum(torch.frombuffer(data, dtype=_TENSOR_DTYPES[gcomp._NAMES.index(dtype)]) if len(data) else torch.empty(0))

    def allreduce_max(self, data: memoryview) -> None:
        self.largest(torch.frombuffer(data, dtype=torch.float32) if len(data) else torch.empty(0))

    def allgather(self, mine: bytes) -> List[bytes]:
        parts = [torch.empty(len(mine), dtype=torch.uint8) for _ in range(self.world)]
        return [part.numpy().tobytes() for part in self._gather(parts, _bytes_of(mine))]

    def gather_uneven(self, mine: bytes) -> List[bytes]:
        """The bytes of all workers, who may bring different numbers of them."""
        lengths = self._gather([torch.empty(1, dtype=torch.int64) for _ in range(self.world)], torch.tensor([len(mine)]))
        longest = max(int(n) for n in lengths)
        return [part[:int(n)] for part, n in zip(self.allgather(mine + bytes(longest - len(mine))), lengths)]

    def alltoall(self, parts: Sequence[bytes]) -> List[bytes]:
        lengths = torch.tensor([len(part) for part in parts])
        theirs = torch.empty_like(lengths)
        self.swap(theirs, [1] * self.world, lengths, [1] * self.world)
        out = torch.empty(int(theirs.sum()), dtype=torch.uint8)
        self.swap(out, theirs.tolist(), _bytes_of(b"".join(parts)), lengths.tolist())
        return [part.numpy().tobytes() for part in out.split(theirs.tolist())]

    def carry_out_raw(self, raw: Any) -> None:
        """Carries out a request over the library's own memory, without copies."""
        if raw.kind == _ALLREDUCE:
            self.sum(_view(raw.recv, raw.count, _TENSOR_DTYPES[raw.dtype]))
        elif raw.kind == _MAX:
            self.largest(_view(raw.recv, raw.count, torch.float32))
        elif raw.kind == _ALLGATHER:
            longest = max(raw.bytes[:self.world])  # at most raw.stride, of which there is room
            if longest:
                parts = [_view(raw.recv + w * raw.stride, longest) for w in range(self.world)]
                self._gather(parts, _view(raw.send, longest))
        else:
            sent, came = raw.send_bytes[:self.world], raw.bytes[:self.world]
            self.swap(_view(raw.recv, sum(came)), came, _view(raw.send, sum(sent)), sent)


def _resolved(host: str) -> str:
    """A host's address as a number; "": it has none here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])  # a machine without IPv6 may still have a name for ::1


def _free_port(host: str) -> int:
    """A port that is free at an address of this machine, below those that systems hand out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(100):
        port = random.SystemRandom().randrange(10000, 32768)
        with socket.socket(family, socket.SOCK_STREAM) as s:
            try:
                s.bind((host, port))
            except OSError as error:
                refused = error
            else:
                return port
    raise refused


def _meet(comm: GlooComm, root: Optional[str], timeout: float) -> gcomp.Sockets:
    """Connections between the workers of a Gloo group. Where one fails, all do."""
    def tell(mine: Dict[str, Any]) -> List[Dict[str, Any]]:
        said = [json.loads(text) for text in comm.gather_uneven(json.dumps(mine).encode())]
        for rank, what in enumerate(said):
            if what.get("error"):
                raise RuntimeError("worker %d did not meet the others over sockets: %s" % (rank, what["error"]))
        return said
    name = root or os.environ.get("MASTER_ADDR") or ""
    host, colon, port = name.rpartition(":") if name.count(":") == 1 or "]:" in name else (name, "", "")
    host = host.strip("[]")
    error = "" if host else "name the host of worker 0, by root or by MASTER_ADDR in the environment"
    try:
        gcomp._must_have("gcomp_sockets")
    except ImportError as missing:
        error = str(missing)
    # A host may have a name that means another address on itself, 127.0.1.1 for instance
    found = [str(what["address"]) for what in tell({"error": error, "address": _resolved(host)}) if what["address"]]
    address = next((a for a in found if not a.startswith("127.") and a != "::1"), found[0] if found else "")
    mine: Dict[str, Any] = {}
    if comm.rank == 0 and not address:
        mine = {"error": "%s has no address" % host}
    elif comm.rank == 0:
        try:
            place = "[%s]:%s" if ":" in address else "%s:%s"
            mine = {"root": place % (address, port or _free_port(address)), "secret": secrets.token_hex(32)}
        except OSError as failed:
            mine = {"error": "no port at %s: %s" % (address, failed)}
    first = tell(mine)[0]
    net, error = None, ""
    try:
        net = gcomp.Sockets(comm.rank, comm.world, first["root"], first["secret"], min(timeout / 2, 60), timeout)
    except Exception as failed:
        error = "%s: %s" % (type(failed).__name__, failed)
    try:
        tell({"error": error})
        assert net is not None
        return net
    except Exception:
        if net is not None:
            net.close()
        raise


def _ranks(group: Any) -> List[int]:
    """The ranks in the world of a group's workers."""
    return [dist.get_global_rank(group or dist.group.WORLD, rank) for rank in range(dist.get_world_size(group))]


def _module_of(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _same_on_all(table: List[Tuple[str, str]], group: Any, what: str) -> None:
    """Raises gcomp.Error, on all workers, for the first entry of a table of names and texts that is another one than worker 0's."""
    said: List[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, hashlib.sha256(repr(table).encode()).digest(), group)
    if said == said[:1] * len(said):
        return
    dist.all_gather_object(said, table, group)
    for worker, theirs in enumerate(said):
        for one, first in zip(theirs + [("", "")], said[0] + [("", "")]):
            if one[0] != first[0]:
                raise gcomp.Error(gcomp.MISMATCH, "worker %d has %s where worker 0 has %s" %  # type: ignore[attr-defined]
                                  (worker, one[0] or "no more weights", first[0] or "no more weights"))
            if one != first:
                raise gcomp.Error(gcomp.MISMATCH, "worker %d has another %s%s than worker 0" %  # type: ignore[attr-defined]
                                  (worker, what, one[0]))


def _digest(x: torch.Tensor) -> str:
    flat = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return "%s %s %s" % (x.dtype, tuple(x.shape), hashlib.sha256(flat.numpy()).hexdigest())


def compare_weights(model: torch.nn.Module, group: Any = None) -> None:
    """Raises gcomp.Error, on all workers of the group, unless all have the same parameters, to the last bit; the sentence names the first
    that differs. Each worker makes a digest of each parameter. Buffers are not compared."""
    skip = getattr(model, "parameters_to_ignore", ())
    table = [(name, _digest(p)) for name, p in _module_of(model).named_parameters() if name not in skip]
    _same_on_all(table, group, "")


def broadcast_weights(model: torch.nn.Module, group: Any = None) -> None:
    """Parameters and buffers <- those of the group's worker 0. All workers of the group call it, before they make optimizer and State.
    Nothing is written before all of it has arrived on all workers; a worker needs room for the weights once more."""
    skip, module = getattr(model, "parameters_to_ignore", ()), _module_of(model)
    found = [(name, x) for named in (module.named_parameters(), module.named_buffers()) for name, x in named if name not in skip]
    _same_on_all([(name, "%s %s" % (x.dtype, tuple(x.shape))) for name, x in found], group, "type or shape of ")
    source, copies = _ranks(group)[0], [x.detach().clone(memory_format=torch.contiguous_format) for _, x in found]
    for copy in copies:
        if copy.numel():
            dist.broadcast(copy.reshape(-1).view(torch.uint8), source, group)  # bytes: no backend has all types
    _same_on_all([], group, "")  # all are here
    with torch.no_grad():
        for (_, x), copy in zip(found, copies):
            x.copy_(copy)


class State:
    """What compression keeps for a model: residuals, a thread, a Gloo group. All workers make it, at the same place of the program.

    model    a module, or the DistributedDataParallel around one. Its parameters that require a gradient are the tensors, in the order of
             named_parameters
    codec    "powersgd:rank=4", "topk:density=0.01", "int:bits=4", ...: see the README's tables. "advise": each parameter gets the codec
             that gcomp.advise finds for it. That measures the link between the workers, and the candidates, for some seconds. Name the
             optimizer: optimizer="sgd" or "adam"; state.advice is what was found
    candidates   of "advise": as gcomp.advise takes them
    transport  what carries the steps. "gloo": the group. "sockets": connections of the state's own, by gcomp.Sockets. They take less of
             the processor, add in the order of ranks, and a worker that dies is an error on the others at once. Worker 0 makes a secret
             for them. The bytes are not encrypted. They need gcomp_sockets.h beside gcomp.h
    root     for "sockets": "HOST" or "HOST:PORT" of worker 0, as all workers reach it. None: the host is MASTER_ADDR of the environment,
             which torchrun sets. Without a port, worker 0 takes a free one from 10000 to 32767
    group    a Gloo group to use, with a timeout of its own, and of the state's own; None: a new one of all workers. Where
             DistributedDataParallel has a process_group of some workers, the group must have the same workers
    timeout  seconds after which a worker that does not answer is an error on the others
    unused   True: some parameters may have no gradient; costs a small collective for each bucket. None: find_unused_parameters of model
    not_finite  "raise"; or "inf": where a gradient holds NaN or Inf, the gradients of all workers become Inf, so that
             torch.cuda.amp.GradScaler skips the step on all, and lowers its scale
    bucket_bytes  tensors are sent when so many bytes of gradient are there, the last parameters first; None: as much as the buckets of
             DistributedDataParallel; 0: all at the end. Over sockets on a slow link, 1 << 20 is faster: each bucket is sent as it comes
    check_weights  True: the workers compare their parameters once, which takes about a second for a gigabyte. Where these differ, all get
             gcomp.Error with the name of the first that does
    options  those of gcomp.open: optimizer="adam", residual="bf16", min_elements, seed, schedule, ...

    state.step is a dict of what gcomp_step has, for all steps to come: state.step["learning_rate"] = 0.1, epoch, samples, batch, scale."""

    def __init__(self, model: torch.nn.Module, codec: str = "powersgd:rank=4", *, transport: str = "gloo",
                 root: Optional[str] = None, group: Any = None, timeout: float = 300.0,
                 in_order: bool = False, unused: Optional[bool] = None, not_finite: str = "raise",
                 bucket_bytes: Optional[int] = None, candidates: Any = None, check_weights: bool = True, **options: Any):
        if not_finite not in ("raise", "inf"):
            raise ValueError('not_finite is %r, not "raise" or "inf"' % (not_finite,))
        if transport not in ("gloo", "sockets"):
            raise ValueError('transport is %r, not "gloo" or "sockets"' % (transport,))
        is_ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self._model, self._ignored = _module_of(model), frozenset(getattr(model, "parameters_to_ignore", ()) if is_ddp else ())
        for name, module in self._model.named_modules():
            if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
                raise TypeError("%s has a sparse gradient, which is not averaged: make the embedding with sparse=False" %
                                (name + ".weight" if name else "weight"))
        if is_ddp:
            self._check_group(model.process_group, group)
        self.unused = bool(model.find_unused_parameters if is_ddp and unused is None else unused)
        if bucket_bytes is None:
            bucket_bytes = int(getattr(model, "bucket_bytes_cap", 25 << 20))
        self.not_finite, self.step, self.error = not_finite, {}, None  # type: ignore[var-annotated]
        self._tensors: List[Tuple[torch.nn.Parameter, Optional[List[int]]]] = []
        self._numbers: Dict[int, int] = {}
        if group is None:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self.comm = GlooComm(group, in_order)
        self.wire = self.comm if transport == "gloo" else _meet(self.comm, root, timeout)  # of the requests of steps
        try:
            if check_weights:
                self._compare_weights()
            self._open(self._model, codec, bucket_bytes, candidates, options)
        except BaseException:
            self._hang_up()
            raise
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gcomp")
        self._inside = False  # of a step. This and what follows is the thread's
        self._waiting: List[Tuple[Any, torch.Tensor, Any]] = []  # futures, buffers of buckets, and copies of these on the host
        self._seen: set = set()

    def _open(self, model: torch.nn.Module, codec: str, bucket_bytes: int, candidates: Any, options: Dict[str, Any]) -> None:
        """Makes the object of gcomp with the model's tensors."""
        try:
            shapes = [self._shape(name, p) for name, p in model.named_parameters()
                      if p.requires_grad and p.numel() and name not in self._ignored]
            if not shapes:
                raise ValueError("the model has no parameter that requires a gradient")
        except Exception:
            if codec == "advise":
                with contextlib.suppress(TypeError):
                    gcomp.advise(None, comm=self.wire)  # type: ignore[arg-type]  # an error: the others learn of it, and do not wait
            raise
        codecs: List[Optional[str]] = [None] * len(shapes)
        self.advice: Optional[gcomp.Advice] = None
        if codec == "advise":
            tensors = [(name, rows, cols, None, _DTYPES[p.dtype]) for name, p, rows, cols, _ in shapes]
            self.advice = gcomp.advise(tensors, comm=self.wire, candidates=candidates, **options)
            codec, codecs = "none", self.advice.codecs
        self._gc = gcomp.open(codec, comm=self.wire, bucket_bytes=bucket_bytes, **options)
        try:
            for (name, p, rows, cols, order), own in zip(shapes, codecs):
                self._numbers[id(p)] = self._gc.add_tensor(name, rows, cols, dtype=_DTYPES[p.dtype], codec=own)
                self._tensors.append((p, order))
        except BaseException:
            self._gc.close()
            raise

    @staticmethod
    def _check_group(theirs: Any, group: Any) -> None:
        """Does the state average over the workers of a DistributedDataParallel, and not over its group at the same time as it does?"""
        ranks, own = _ranks(theirs), _ranks(group)
        if ranks != own:
            raise ValueError("the DistributedDataParallel has a process_group of the ranks %s, and the state %s of the ranks %s: pass "
                             "group=torch.distributed.new_group(ranks, backend=\"gloo\") with the same ranks; new_group is called by "
                             "all workers of the world" % (ranks, "would have one" if group is None else "has one", own))
        if group is not None and group is theirs:
            raise ValueError("group is the process_group of the DistributedDataParallel, whose collectives would meet those of the state: "
                             "pass another group of the same ranks, or None")

    def _compare_weights(self) -> None:
        try:
            _same_on_all([(name, _digest(p)) for name, p in self._model.named_parameters() if name not in self._ignored],
                         self.comm.group, "")
        except gcomp.Error as error:
            raise gcomp.Error(error.code, "the workers begin with other weights: %s. Call gcomp_torch.broadcast_weights(model) on all "
                              "workers, or pass check_weights=False" % error.sentence) from None

    def _number(self, p: torch.Tensor, name: str = "") -> int:
        """The number of a parameter's tensor."""
        if id(p) not in self._numbers:
            names = [name] if name else [name for name, other in self._model.named_parameters() if other is p]
            raise ValueError("%s is not averaged by this State: it was frozen, or was no parameter of the model, when the State was made. "
                             "Make a new State" % (names[0] if names else "a parameter of %s" % " x ".join(map(str, p.shape))))
        return self._numbers[id(p)]

    def _check(self, model: torch.nn.Module) -> None:
        """An error for the first parameter that requires a gradient and that this state does not average."""
        for name, p in model.named_parameters():
            if p.requires_grad and p.numel() and name not in self._ignored:
                self._number(p, name)

    def _hang_up(self) -> None:
        if isinstance(self.wire, gcomp.Sockets):
            self.wire.close()

    @staticmethod
    def _shape(name: str, p: torch.nn.Parameter) -> Tuple[str, torch.nn.Parameter, int, Optional[int], Optional[List[int]]]:
        """Name, parameter, rows and columns as they lie in memory, and the order of dimensions in which they do; None: 0, 1, ..."""
        if p.dtype not in _DTYPES:
            raise TypeError("%s is of %s: make it float32, float16 or bfloat16" % (name, p.dtype))
        order: Optional[List[int]] = None
        if not p.is_contiguous():
            order = sorted(range(p.dim()), key=lambda d: -p.stride(d))
            if not p.permute(order).is_contiguous():
                raise ValueError("%s has gaps in memory: make it contiguous" % name)
        sizes = [p.size(d) for d in order] if order else list(p.size())
        if sum(size > 1 for size in sizes) < 2:
            return name, p, p.numel(), None, order
        return name, p, sizes[0], p.numel() // sizes[0], order

    def describe(self) -> str:
        """What travels in a step, and why."""
        return self._gc.describe()

    def stats(self) -> gcomp.Statistics:
        """Bytes, ratio, steps, residual norm: the fields of gcomp_statistics."""
        return self._gc.stats()

    def close(self) -> None:
        """Ends the thread and frees what the state keeps."""
        self._pool.shutdown()
        self._gc.close()
        self._hang_up()

    # -------- checkpoints

    def state_dict(self, gather: bool = True) -> Dict[str, Any]:
        """What must be saved with the weights. All workers call it: with gather each gets the parts of all, so that one of them may save
        for all, and another number of workers may load. gather=False: the part of this worker alone."""
        save = self._gc.save()
        saves = self.comm.gather_uneven(save) if gather else [save]
        return {"world": self.comm.world, "rank": None if gather else self.comm.rank, "saves": [_bytes_of(s) for s in saves]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict; all workers call it. With as many workers as before, the steps that follow have the same bits. With
        another number, what was not sent is shared out, and nothing is lost. Where a worker cannot load, all keep what they had: it gets
        the error, and the others gcomp.Error."""
        before, error = self._gc.save(), None  # type: Tuple[bytes, Optional[Exception]]
        try:
            saves, rank, world = state["saves"], state["rank"], state["world"]
            if rank is not None and (rank, world) != (self.comm.rank, self.comm.world):
                raise ValueError("this is the state of worker %d of %d alone: call state_dict() with gather" % (rank, world))
            self._gc.load(saves if world != self.comm.world or len(saves) == 1 else [saves[self.comm.rank]])
        except Exception as failed:
            error = failed
        said = self.comm.gather_uneven(str(error).encode() if error else b"")
        if any(said) and error is None:
            self._gc.load([before])
            worker = next(w for w, what in enumerate(said) if what)
            error = gcomp.Error(gcomp.PEER_FAILED, "worker %d could not load: %s" %  # type: ignore[attr-defined]
                                (worker, said[worker].decode(errors="replace")))
        if error:
            raise error

    # -------- a step

    def _part(self, number: int, grad: torch.Tensor) -> torch.Tensor:
        """The gradient as it lies in memory. A bucket shows all memory as if it were in the order of dimensions."""
        p, order = self._tensors[number]
        if order is not None and not (self._in_bucket and grad.is_contiguous()):
            grad = grad.permute(order)
        if not grad.is_contiguous():
            raise ValueError("the gradient of %s does not lie in memory as the parameter does: strides %s and %s" %
                             (self._gc.name(number), tuple(grad.stride()), tuple(p.stride())))
        return grad

    def _begin(self, in_bucket: bool) -> None:
        self._in_bucket = in_bucket
        if self._inside:
            self._gc.step_abort()  # of a backward pass that was left
        self._inside, self.error = True, None
        self._seen.clear()
        self._gc.step_begin(**self.step)

    def _take(self, numbers: Sequence[int], grads: Sequence[Optional[torch.Tensor]], last: bool) -> None:
        """Encodes gradients, and carries out what can be carried out by now."""
        gc = self._gc
        skipped = [grad is None for grad in grads]
        if self.unused:
            used = torch.tensor([grad is not None and bool(grad.any()) for grad in grads], dtype=torch.uint8)
            self.comm.largest(used)
            skipped = [not u for u in used.tolist()]
        for number, grad, skip in zip(numbers, grads, skipped):
            gc.step_ready(number, None if skip else self._part(number, grad))  # type: ignore[arg-type]
            self._seen.add(number)
        if last:
            for number, (p, _) in enumerate(self._tensors):
                if number not in self._seen:
                    if p.requires_grad:
                        raise ValueError("%s is in no bucket of the DistributedDataParallel, which was made when it was frozen or missing: "
                                         "make a new DistributedDataParallel" % gc.name(number))
                    gc.step_ready(number, None)
        while True:
            raw = gc._next()
            if raw.kind == _WAIT:
                return
            if raw.kind == _DONE:
                break
            try:
                self.wire.carry_out_raw(raw)
            except Exception as error:
                try:
                    gc._done(raw, 1)
                except gcomp.Error as failed:
                    raise failed from error
            gc._done(raw, 0)
        gc.step_commit()
        self._inside = False

    def _fail(self, error: BaseException) -> None:
        """The step is over. Where it failed here alone, before the others could learn of it, its frame tells them."""
        self.error = error
        try:
            self._gc.step_abort()
            if not isinstance(error, gcomp.Error):
                self._gc.exchange(None)  # type: ignore[arg-type]
        except Exception:
            pass  # of the second error; the first one is raised
        self._inside = False

    def _work(self, first: bool, last: bool, parameters: Sequence[torch.Tensor], grads: Sequence[torch.Tensor],
              job: Tuple[Any, torch.Tensor, Any], direct: bool) -> None:
        """What the thread does for a bucket."""
        future, buffer, copy = job
        try:
            if first:
                self._finish(True)
                self._begin(True)
            self._waiting.append(job)
            if self.error is None:
                if first:
                    self._check(self._model)
                numbers = [self._number(p) for p in parameters]
                if buffer.layout is not torch.strided:
                    raise TypeError("%s has a sparse gradient: make the embedding with sparse=False" % self._gc.name(numbers[0]))
                if copy is not None:
                    copy[1].synchronize()
                self._take(numbers, grads, last)
        except BaseException as error:
            self._fail(error)
        if last:
            self._finish(direct)

    def _finish(self, direct: bool) -> None:
        """Sets the futures of all buckets. direct: nobody else raises the error."""
        waiting, self._waiting = self._waiting, []
        error = self.error
        if isinstance(error, gcomp.Error) and error.code == gcomp.NOT_FINITE and self.not_finite == "inf":  # type: ignore[attr-defined]
            self.error = error = None
            for _, buffer, copy in waiting:
                (buffer if copy is None else copy[0]).fill_(float("inf"))
        for future, buffer, copy in waiting:
            if error is not None and direct:
                future.set_exception(error)
            elif copy is None:
                future.set_result(buffer)
            else:
                with torch.cuda.stream(copy[2]):
                    buffer.copy_(copy[0], non_blocking=True)
                    future.set_result(buffer)

    def _raise(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def _raise_at_the_end(self) -> bool:
        """Lets backward() raise the error, after DistributedDataParallel has done its part: its own callback is queued between the first
        and the second one here. An error in a future would come out as a RuntimeError with a text. False: no backward pass is running."""
        engine = torch.autograd.Variable._execution_engine
        try:
            engine.queue_callback(lambda: engine.queue_callback(self._raise))
        except RuntimeError:
            return False
        return True


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for DistributedDataParallel.register_comm_hook: a future of the mean of the bucket."""
    buffer, parameters = bucket.buffer(), [p for p in bucket.parameters() if p.numel()]
    dense, copy = buffer.layout is torch.strided, None
    grads = [grad for grad in bucket.gradients() if grad.numel()] if dense else []
    if buffer.is_cuda and dense:
        host = torch.empty(buffer.size(), dtype=buffer.dtype, pin_memory=True)
        host.copy_(buffer, non_blocking=True)
        event, stream = torch.cuda.Event(), torch.cuda.Stream(buffer.device)
        event.record()
        stream.wait_event(event)
        start = buffer.storage_offset()
        grads = [host.as_strided(grad.size(), grad.stride(), grad.storage_offset() - start) for grad in grads]
        copy = (host, event, stream)
    future: torch.futures.Future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
    direct = bucket.is_last() and not state._raise_at_the_end()
    state._pool.submit(state._work, bucket.index() == 0, bucket.is_last(), parameters, grads, (future, buffer, copy), direct)
    return future


def average_gradients(model: torch.nn.Module, state: State) -> None:
    """p.grad <- its mean over all workers, for each parameter of the state's model. Call it on all workers, after backward and before
    the optimizer. A parameter without a gradient is skipped: on all workers, unless the state was made with unused=True; then workers
    without one count as zeros, and get the mean too. A parameter that the state does not have is an error. Buffers (the averages of
    batch norm) stay each worker's own."""
    found, here = [], []
    state._begin(False)
    try:
        state._check(_module_of(model))
        for number, (p, _) in enumerate(state._tensors):
            grad = p.grad
            if grad is not None and grad.layout is not torch.strided:
                raise TypeError("%s has a sparse gradient: make the embedding with sparse=False" % state._gc.name(number))
            if grad is None and state.unused:
                grad = torch.zeros_like(p)
            found.append(grad)
            here.append(grad.cpu() if grad is not None and grad.is_cuda else grad)
        state._take(range(len(here)), here, True)
    except BaseException as error:
        state._fail(error)
        if isinstance(error, gcomp.Error) and error.code == gcomp.NOT_FINITE and state.not_finite == "inf":  # type: ignore[attr-defined]
            for grad in found:
                if grad is not None:
                    grad.fill_(float("inf"))
            return
        raise
    for (p, _), grad, mean in zip(state._tensors, found, here):
        if mean is None or (p.grad is None and not bool(mean.any())):
            continue
        if mean is not grad:
            grad.copy_(mean)
        p.grad = grad
