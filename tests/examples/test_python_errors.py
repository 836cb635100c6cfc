#!/usr/bin/env python3
"""Tests of examples/python/gcomp.py, as TAP: errors of steps, weights, advice, random calls. Needs python3-numpy, and the shared object: make build/libgcomp.so.

    tests/examples/test_python_errors.py [--random SEED CALLS]     the second form: only random calls, in this process

TEST_LONG in the environment asks for 60000 random calls instead of 20000.
"""
from python_tests import *  # noqa: F401, F403

RANDOM_CALLS = 60000 if os.environ.get("TEST_LONG") else 20000


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
        for call in (lambda codec, *tensor: gcomp.rounds(codec, [tensor]), lambda codec, *tensor: gcomp.memory_needed(codec, [tensor]), lambda codec, *tensor: gcomp.advise([tensor], bits_per_second=1, world=2)):
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
        codec, group, seed = rng.choice(codecs[:-4]), Group(2, 4), rng.randrange(10 ** 6)
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
    functions = [gcomp.encode, gcomp.decode, gcomp.decode_add, gcomp.mean, gcomp.retain, gcomp.check, gcomp.peek, gcomp.to_float,
                 gcomp.from_float, gcomp.key, gcomp.Codec, gcomp.rounds, gcomp.memory_needed, gcomp.open, gcomp.advise]
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
            tensors = [rng.choice((("x", 2 ** rng.choice((0, 5, 12, 40, 63, 65)), 2 ** rng.choice((0, 3, 39))), anything(), [anything(), anything()]))]
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


if __name__ == "__main__":
    sys.exit(random_calls(int(sys.argv[2]), int(sys.argv[3])) if sys.argv[1:2] == ["--random"] else run_tests())
