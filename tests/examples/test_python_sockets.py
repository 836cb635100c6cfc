#!/usr/bin/env python3
"""Tests of gcomp.Sockets in examples/python/gcomp.py, as TAP: workers that are processes. Needs python3-numpy, and the shared object: make build/libgcomp.so.
"""
from python_tests import *  # noqa: F401, F403

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
        assert net.was == list(range(world - 1)) and net.gone == [] and net.joined == 0
        gc = gcomp.open("int:bits=4", comm=net, min_elements=100)
        tensors(gc)
        gc.exchange(gradients(rank, 0))
        if rank == 1:
            os._exit(3)
        own = gradients(rank, 1)
        assert raises(gcomp.Error, lambda: gc.exchange(own)).kind == "resynchronise"
        assert as_bytes(own) == as_bytes(gradients(rank, 1))
        net.regroup(300)
        assert net.gone == [1] and [w for w in net.was if w >= 0] == [w for w in range(world - 1) if w != 1], (net.gone, net.was)
        gc.regroup(net)
        while not net.joined:
            if net.waiting():
                net.regroup(300)
                assert net.gone == []
                gc.regroup(net)
    assert net.joined == 1 and net.was[-1] == -1 and net.world == world - 1 and (net.rank == world - 2) == newcomer
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
        assert (net.rank, net.world, net.was, net.gone, net.waiting()) == (0, 1, [0], [], 0)
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


def main():
    if sys.argv[1:2] != ["--worker"]:
        return run_tests()
    print(WORKERS[sys.argv[2]](int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
