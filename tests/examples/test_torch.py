#!/usr/bin/env python3
"""Tests of examples/python/gcomp_torch.py with 2 and 4 processes over Gloo on loopback, as TAP. Needs python3-torch, python3-numpy, the
shared object (make build/libgcomp.so), and gcc for the program (means.c) that the means are compared with; GCOMP_OBJECT may name an object
of the implementation for that program.

    tests/examples/test_torch.py [WORLD GROUP]     all, or these: 4 all, 2 all, 3 dying, 4 "dying over sockets", 2 readme
"""
from torch_tests import *  # noqa: F401, F403


@scenario
def all_ranks_have_the_same_parameters_and_the_loss_falls(rank, world, directory):
    for codec in CODECS:
        ddp, state, optimizer = made(codec)
        losses = train(ddp, optimizer, range(12))
        same_everywhere(flat(ddp.parameters()))
        assert losses[-1] < 0.6 * losses[0], (codec, losses)
        stats = state.stats()
        assert stats.steps == 12 and stats.failed == 0 and (stats.ratio > 2 or codec == "none"), stats
        text = state.describe()
        assert "conv.weight: 16 x 27 fp32" in text and "one.weight: 48 x 576 fp32, " + codec.split(":")[0] in text, text
        assert "two.bias" not in text
        state.close()


@scenario
def the_means_are_those_of_the_c_program(rank, world, directory):
    for codec in CODECS:
        had, buckets = {}, []

        def recording(state, bucket):
            buckets.append(bucket.index())
            for p, grad in zip(bucket.parameters(), bucket.gradients()):
                had[id(p)] = grad.detach().clone()
            return gcomp_torch.hook(state, bucket)
        recording.__annotations__ = gcomp_torch.hook.__annotations__
        ddp, state, optimizer = made(codec, recording, in_order=world > 2)
        gradients, means = [], []
        for step in range(4):
            train(ddp, optimizer, [step])
            gradients.append(torch.cat([had[id(p)].flatten() for p in ddp.parameters()]))
            means.append(flat(p.grad for p in ddp.parameters()))
        assert max(buckets) > 0 and buckets.count(0) == 4 and len(buckets) > 8, buckets
        parts = [everyone(g) for g in gradients]
        if rank == 0:
            place = os.path.join(directory, "means")
            head = [world, 4, len(state._tensors)]
            for p, _ in state._tensors:
                head += [p.size(0), p.numel() // p.size(0) if p.dim() > 1 else 0]
            with open(place + ".in", "wb") as f:
                f.write(array.array("i", head).tobytes())
                for part in parts:
                    for g in part:
                        f.write(g.numpy().tobytes())
            subprocess.run([os.path.join(directory, "c"), codec, place + ".in", place + ".out"], check=True)
            with open(place + ".out", "rb") as f:
                expected = torch.frombuffer(bytearray(f.read()), dtype=torch.float32).view(4, -1)
            for step, mean in enumerate(means):
                assert torch.equal(expected[step], mean), (codec, step, (expected[step] - mean).abs().max())
        state.close()
        dist.barrier()


@scenario
def gradients_without_ddp_are_those_of_ddp(rank, world, directory):
    for codec in CODECS[:3]:
        ddp, state, optimizer = made(codec, in_order=True)
        train(ddp, optimizer, range(3))
        model = Net()
        other, plain = gcomp_torch.State(model, codec, timeout=120, in_order=True, bucket_bytes=0), torch.optim.SGD(model.parameters(), lr=0.02)
        for step in range(3):
            plain.zero_grad()
            loss_of(model, rank, step).backward()
            gcomp_torch.average_gradients(model, other)
            plain.step()
        assert torch.equal(flat(model.parameters()), flat(ddp.parameters())), codec
        state.close()
        other.close()


@scenario
def over_sockets_steps_have_the_bits_of_sums_in_order_over_gloo(rank, world, directory):
    for codec in CODECS + ("intsum:bits=8", "topk:density=0.02,global=1"):
        weights = []
        for options in (dict(transport="sockets", in_order=False), dict(in_order=True)):
            ddp, state, optimizer = made(codec, **options)
            losses = train(ddp, optimizer, range(8))
            weights.append(same_everywhere(flat(ddp.parameters())))
            assert losses[-1] < losses[0] and state.stats().steps == 8 and state.stats().failed == 0, (codec, losses)
            if options.get("transport"):
                assert isinstance(state.wire, gcomp.Sockets) and not state.wire.closed and state.comm is not state.wire
            state.close()
            assert state.wire is state.comm or state.wire.closed
        assert torch.equal(*weights), codec
    ddp, state, optimizer = made("topk:density=0.02", transport="sockets", root="127.0.0.1")
    train(ddp, optimizer, range(3))
    before, saved = {k: v.clone() for k, v in ddp.module.state_dict().items()}, state.state_dict()
    assert len(saved["saves"]) == world
    train(ddp, optimizer, range(3, 5))
    again, other, plain = made("topk:density=0.02", transport="sockets")
    again.module.load_state_dict(before)
    other.load_state_dict(saved)
    train(again, plain, range(3, 5))
    assert torch.equal(flat(again.parameters()), flat(ddp.parameters()))
    state.close()
    other.close()
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank))
    ddp, state, optimizer = made("topk:density=0.02", model=Choosing(), find_unused_parameters=True, bucket_mb=0.005, transport="sockets")
    for use in ("abc", "a" if rank else "b"):
        optimizer.zero_grad(set_to_none=True)
        (ddp(x, use) ** 2).mean().backward()
        optimizer.step()
        same_everywhere(flat(ddp.parameters()))
    state.close()
    ddp, state, optimizer = made("advise", candidates=["int:bits=4"], transport="sockets")
    codecs = [None] * world
    dist.all_gather_object(codecs, state.advice.codecs)
    assert codecs == [codecs[0]] * world, codecs
    state.close()


@scenario
def an_error_of_one_worker_over_sockets_is_known_to_all(rank, world, directory):
    ddp, state, optimizer = made("sign", transport="sockets")
    right = state._part
    for step in range(4):
        if step == 2 and rank == 1:
            def wrong(number, grad):
                raise ArithmeticError("of rank 1 alone")
            state._part = wrong
        if step == 2:
            error = raises(Exception, lambda: train(ddp, optimizer, [step]))
            assert (type(error) is ArithmeticError) if rank == 1 else error.code == gcomp.PEER_FAILED, error
        else:
            train(ddp, optimizer, [step])
        state._part = right
    same_everywhere(flat(ddp.parameters()))
    state.close()


@scenario
def workers_that_cannot_meet_are_an_error_on_all(rank, world, directory):
    def refused(*words, **options):
        raises(RuntimeError, lambda: gcomp_torch.State(Net(), "sign", transport="sockets", timeout=20, **options), "worker", *words)
    raises(ValueError, lambda: gcomp_torch.State(Net(), "sign", transport="tcp"), "transport")
    refused("did not meet", "no address", root="no.such.host.invalid")
    refused("worker 0 did not meet", "no port at 192.0.2.1", root="192.0.2.1")  # an address of documentation, of no machine
    with socket.socket() as taken:
        if rank == 0:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        port = [taken.getsockname()[1] if rank == 0 else 0]
        dist.broadcast_object_list(port)
        refused("worker 0 did not meet", "in use", root="127.0.0.1:%d" % port[0])
    right, had = gcomp.Sockets, os.environ.pop("MASTER_ADDR")
    refused("MASTER_ADDR")
    os.environ["MASTER_ADDR"] = had

    class Odd(gcomp.Sockets):
        def __init__(self, *arguments):
            if rank == 1:
                raise OSError("of rank 1 alone")
            super().__init__(*arguments)
    gcomp.Sockets = Odd
    try:
        refused("did not meet")
    finally:
        gcomp.Sockets = right
    error = raises(TypeError if rank == 1 else gcomp.Error, lambda: one_step(nn.Linear(40, 40).double() if rank == 1 else nn.Linear(40, 40)))
    assert rank == 1 or error.code == gcomp.CALLBACK_FAILED, error


def one_step(model):
    state = gcomp_torch.State(model, "sign", transport="sockets", timeout=120, check_weights=False)
    model(torch.randn(8, 40)).sum().backward()
    try:
        gcomp_torch.average_gradients(model, state)
    finally:
        state.close()


@scenario
def accumulated_gradients_are_exchanged_once(rank, world, directory):
    ddp, state, optimizer = made("none")
    train(ddp, optimizer, range(2))
    expected = [torch.zeros_like(p) for p in ddp.parameters()]
    for w in range(world):
        for step in (7, 8, 9):
            grads = torch.autograd.grad(loss_of(ddp.module, w, step), list(ddp.parameters()))
            for e, g in zip(expected, grads):
                e += g / world
    optimizer.zero_grad()
    with ddp.no_sync():
        loss_of(ddp, rank, 7).backward()
        loss_of(ddp, rank, 8).backward()
    loss_of(ddp, rank, 9).backward()
    assert state.stats().steps == 3
    for e, p in zip(expected, ddp.parameters()):
        assert torch.allclose(e, p.grad, rtol=1e-4, atol=1e-6)
    same_everywhere(flat(p.grad for p in ddp.parameters()))
    state.close()


class Choosing(nn.Module):
    """Three layers, of which a step uses some."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.a, self.b, self.c = nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x, use):
        return sum(layer(x) for name, layer in (("a", self.a), ("b", self.b), ("c", self.c)) if name in use)


@scenario
def parameters_without_a_gradient_are_skipped_and_keep_their_residual(rank, world, directory):
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank))
    ddp, state, optimizer = made("topk:density=0.02", model=Choosing(), find_unused_parameters=True, bucket_mb=0.005)
    assert state.unused
    for use in ("abc", "ab", "a" if rank else "b"):
        optimizer.zero_grad(set_to_none=True)
        (ddp(x, use) ** 2).mean().backward()
        before = state._gc.residual(4)
        optimizer.step()
        same_everywhere(flat(ddp.parameters()))
    number = state._numbers[id(ddp.module.c.weight)]
    kept = state._gc.residual(number)
    assert any(kept)
    (ddp(x, "ab") ** 2).mean().backward()
    assert state._gc.residual(number) == kept and ddp.module.c.weight.grad is None
    state.close()

    model = Choosing()
    state = gcomp_torch.State(model, "none", timeout=120, unused=True)
    use = "a" if rank else "ab"
    (model(x, use) ** 2).mean().backward()
    own = None if model.b.weight.grad is None else model.b.weight.grad.clone()
    gcomp_torch.average_gradients(model, state)
    expected = everyone(torch.zeros(40, 40) if own is None else own)
    assert torch.allclose(model.b.weight.grad, sum(expected) / world, atol=1e-6) and model.c.weight.grad is None
    state.close()
    state = gcomp_torch.State(model, "none", timeout=120)
    model.zero_grad(set_to_none=True)
    (model(x, use) ** 2).mean().backward()
    raises(gcomp.Error, lambda: gcomp_torch.average_gradients(model, state))
    state.close()


@scenario
def gradients_may_be_bf16_and_fp16(rank, world, directory):
    for dtype, codec in ((torch.bfloat16, "int:bits=4"), (torch.float16, "topk:density=0.1"), (torch.bfloat16, "powersgd:rank=2"),
                         (torch.float16, "none"), (torch.bfloat16, "bf16")):
        model = nn.Sequential(nn.Linear(60, 50), nn.Linear(50, 30)).to(dtype)
        state = gcomp_torch.State(model, codec, timeout=120)
        assert ("bf16" if dtype is torch.bfloat16 else "fp16") in state.describe()
        for step in range(3):
            for i, p in enumerate(model.parameters()):
                p.grad = torch.randn(p.size(), generator=torch.Generator().manual_seed(100 * step + 10 * rank + i)).to(dtype)
            expected = [sum(everyone(p.grad.float())) / world for p in model.parameters()]
            gcomp_torch.average_gradients(model, state)
            same_everywhere(flat(p.grad for p in model.parameters()))
            if codec in ("none", "bf16"):
                for e, p in zip(expected, model.parameters()):
                    assert torch.allclose(e, p.grad.float(), rtol=0.02, atol=0.02) and p.grad.dtype is dtype
        state.close()


@scenario
def weights_that_lie_otherwise_in_memory_are_matrices_too(rank, world, directory):
    ddp, state, optimizer = made("powersgd:rank=2", model=Net().to(memory_format=torch.channels_last), min_elements=100)
    assert not ddp.module.conv.weight.is_contiguous() and "conv.weight: 16 x 27 fp32, powersgd:rank=2" in state.describe()
    losses = train(ddp, optimizer, range(12))
    same_everywhere(flat(ddp.parameters()))
    assert losses[-1] < 0.6 * losses[0], losses
    state.close()
    turned = nn.Module()
    turned.w = nn.Parameter(torch.randn(60, 40).t())
    state = gcomp_torch.State(turned, "int", timeout=120)
    assert "w: 60 x 40 fp32, int" in state.describe()
    turned.w.grad = torch.randn(60, 40, generator=torch.Generator().manual_seed(rank)).t()
    expected = sum(everyone(turned.w.grad.contiguous())) / world
    gcomp_torch.average_gradients(turned, state)
    assert torch.allclose(turned.w.grad, expected, atol=0.05)
    turned.w.grad = torch.randn(40, 60)
    raises(ValueError, lambda: gcomp_torch.average_gradients(turned, state), "strides")
    state.close()


@scenario
def a_bucket_travels_while_the_backward_pass_makes_the_next(rank, world, directory):
    carried = threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(not waiting or carried.wait(120))
            return grad

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(60, 60), nn.Linear(60, 60)

        def forward(self, x):
            return self.last(Waits.apply(self.first(x)))
    ddp, state, optimizer = made("int:bits=4", model=Slow(), bucket_mb=0.01)
    right = state.comm.carry_out_raw
    kinds, seen, waiting = [], [], False

    def carry_out(raw):
        right(raw)
        kinds.append(raw.kind)
        if kinds.count(gcomp_torch._ALLGATHER) >= 1:
            carried.set()
    state.comm.carry_out_raw = carry_out
    for step in range(3):
        waiting = step == 2  # DistributedDataParallel has its last buckets then
        kinds.clear()
        carried.clear()
        (ddp(torch.randn(8, 60)) ** 2).mean().backward()
    assert seen[-1] is True, "no collective was carried out before the last gradient was there"
    state.close()


@scenario
def a_gradient_that_is_not_finite_skips_the_step_on_all(rank, world, directory):
    ddp, state, optimizer = made("int:bits=4")
    train(ddp, optimizer, range(3))
    weights = flat(ddp.parameters())
    optimizer.zero_grad()
    x = batch(rank, 3)
    if rank == world - 1:
        x[0] = float("nan")
    error = raises(gcomp.Error, lambda: ddp(x).sum().backward(), "NOT_FINITE")
    assert error.code == gcomp.NOT_FINITE and error.kind == "retry" and state.stats().skipped == 1
    own = torch.autograd.grad(ddp.module(batch(rank, 3)).sum(), list(ddp.parameters()))
    if rank < world - 1:
        assert torch.equal(flat(own), flat(p.grad for p in ddp.parameters()))
    assert torch.equal(weights, flat(ddp.parameters()))
    train(ddp, optimizer, range(4, 7))
    same_everywhere(flat(ddp.parameters()))
    state.close()

    ddp, state, optimizer = made("int:bits=4", not_finite="inf")
    for step in range(4):
        optimizer.zero_grad()
        x = batch(rank, step)
        if step == 2 and rank == 0:
            x[0] = float("inf")
        ddp(x).sum().backward()
        assert all(torch.isinf(p.grad).all() for p in ddp.parameters()) == (step == 2)
    state.close()


@scenario
def an_error_of_one_worker_is_known_to_all(rank, world, directory):
    ddp, state, optimizer = made("sign")
    train(ddp, optimizer, range(2))
    right = state._part
    if rank == 1:
        def wrong(number, grad):
            raise ArithmeticError("of rank 1 alone")
        state._part = wrong
    error = raises(Exception, lambda: train(ddp, optimizer, [2]))
    assert (type(error) is ArithmeticError) if rank == 1 else error.code == gcomp.PEER_FAILED, error
    state._part = right
    train(ddp, optimizer, range(2, 4))
    same_everywhere(flat(ddp.parameters()))
    state.close()


@scenario
def what_does_not_fit_is_refused_with_a_sentence(rank, world, directory):
    raises(TypeError, lambda: gcomp_torch.State(nn.Linear(4, 4).double(), "sign"), "weight is of torch.float64", "float32")
    raises(ValueError, lambda: gcomp_torch.State(nn.ReLU(), "sign"), "no parameter")
    raises(gcomp.Error, lambda: gcomp_torch.State(Net(), "sing"), "sing")
    raises(TypeError, lambda: gcomp_torch.State(Net(), "sign", colour=1), "colour")
    raises(ValueError, lambda: gcomp_torch.State(Net(), "sign", not_finite="no"), "not_finite")
    state = gcomp_torch.State(Net(), "sign", timeout=120)
    state.close()
    raises(gcomp.Error, state.describe, "closed")
    for spoil in (lambda s: s.update(saves=[torch.zeros(90, dtype=torch.uint8)] * world), lambda s: s.update(rank=7, saves=s["saves"][:1])):
        state = gcomp_torch.State(Net(), "sign", timeout=120)
        saved = state.state_dict()
        spoil(saved)
        raises((gcomp.Error, ValueError), lambda: state.load_state_dict(saved))
        state.close()


def all_or_one(rank, one, own, *words):
    """What comes out where all workers do wrong, or worker 1 alone: own, with these words, or GCOMP_PEER_FAILED."""
    def check(call):
        if one and rank != 1:
            assert raises(gcomp.Error, call).code == gcomp.PEER_FAILED
        else:
            raises(own, call, *words)
    return check


@scenario
def sparse_gradients_are_refused_by_name(rank, world, directory):
    for made_sparse in (nn.Embedding(50, 20, sparse=True), nn.EmbeddingBag(50, 20, sparse=True, mode="sum")):
        model = nn.Sequential(made_sparse, nn.Linear(20, 20))
        raises(TypeError, lambda: gcomp_torch.State(model, "sign"), "0.weight", "sparse=False")
        raises(TypeError, lambda: gcomp_torch.State(DistributedDataParallel(model), "sign"), "0.weight", "sparse=False")
    for one in (False, True):
        model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 20))
        state = gcomp_torch.State(model, "sign", timeout=120)
        refused = all_or_one(rank, one, TypeError, "0.weight", "sparse=False")
        model[0].sparse = not one or rank == 1
        model(torch.tensor([rank, 2])).sum().backward()
        refused(lambda: gcomp_torch.average_gradients(model, state))
        model.zero_grad()
        model[0].sparse = False
        model(torch.tensor([rank, 2])).sum().backward()
        gcomp_torch.average_gradients(model, state)
        same_everywhere(flat(p.grad for p in model.parameters()))
        state.close()
    model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 20))
    state = gcomp_torch.State(model, "sign", timeout=120)
    model[0].sparse = True
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, gcomp_torch.hook)
    raises(TypeError, lambda: ddp(torch.tensor([rank, 2])).sum().backward(), "0.weight", "sparse=False")
    state.close()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x):
        for layer in self.children():
            x = torch.tanh(layer(x))
        return x


@scenario
def parameters_that_a_state_does_not_have_are_refused_by_name(rank, world, directory):
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(rank))

    def add(model):
        model.c = nn.Linear(20, 20)

    def replace(model):
        model.b = nn.Linear(20, 20)
    for change, name in ((lambda model: model.a.requires_grad_(True), "a.weight"), (add, "c.weight"), (replace, "b.weight")):
        for one in (False, True):
            model = Layers()
            model.a.requires_grad_(False)
            state = gcomp_torch.State(model, "int:bits=4", timeout=120)
            model(x).sum().backward()
            gcomp_torch.average_gradients(model, state)
            before = copy.deepcopy(model)
            if not one or rank == 1:
                change(model)
            model.zero_grad()
            model(x).sum().backward()
            all_or_one(rank, one, ValueError, name, "Make a new State")(lambda: gcomp_torch.average_gradients(model, state))
            state.close()
            model = before  # and a new one has all
            change(model)
            gcomp_torch.broadcast_weights(model)
            state = gcomp_torch.State(model, "int:bits=4", timeout=120)
            model.zero_grad()
            model(x).sum().backward()
            gcomp_torch.average_gradients(model, state)
            same_everywhere(flat(p.grad for p in model.parameters() if p.requires_grad))
            state.close()

    model = Layers()  # DistributedDataParallel made anew, and a layer unfrozen in it
    model.a.requires_grad_(False)
    state = gcomp_torch.State(model, "int:bits=4", timeout=120)
    for again in (False, True):
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, gcomp_torch.hook)
        if not again:
            ddp(x).sum().backward()
            same_everywhere(flat(model.b.parameters()))
            model.a.requires_grad_(True)
        raises(ValueError, lambda: ddp(x).sum().backward(), "a.weight", "Make a new State")
    state.close()
    model = Layers()
    model.a.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    model.a.requires_grad_(True)
    state = gcomp_torch.State(ddp, "int:bits=4", timeout=120)
    ddp.register_comm_hook(state, gcomp_torch.hook)
    raises(ValueError, lambda: ddp(x).sum().backward(), "a.weight", "make a new DistributedDataParallel")
    state.close()

    model = Layers()  # frozen later on all, or on one
    state = gcomp_torch.State(model, "int:bits=4", timeout=120)
    for one in (False, True):
        model.zero_grad(set_to_none=True)
        model.a.requires_grad_(one and rank != 1)
        model(x).sum().backward()
        if one:
            raises(gcomp.Error, lambda: gcomp_torch.average_gradients(model, state))
        else:
            gcomp_torch.average_gradients(model, state)
            same_everywhere(flat(model.b.parameters()))
    state.close()
    model = Layers()  # another type, another size
    state = gcomp_torch.State(model, "int:bits=4", timeout=120)
    model.zero_grad(set_to_none=True)
    model.bfloat16()(x.bfloat16()).sum().backward()
    raises(ValueError, lambda: gcomp_torch.average_gradients(model, state), "'a.weight'", "bf16")
    state.close()

    model = Layers()  # what DistributedDataParallel leaves alone stays alone
    model._ddp_params_and_buffers_to_ignore = ["a.weight"]
    ddp = DistributedDataParallel(model)
    model.a.weight.data += rank
    state = gcomp_torch.State(ddp, "int:bits=4", timeout=120)
    ddp.register_comm_hook(state, gcomp_torch.hook)
    ddp(x).sum().backward()
    assert "a.weight" not in state.describe()
    same_everywhere(flat([model.a.bias.grad, model.b.weight.grad]))
    state.close()


@scenario
def a_state_averages_over_the_workers_of_the_process_group(rank, world, directory):
    if world < 4:
        return
    halves = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3))]
    others = [dist.new_group(ranks, backend="gloo") for ranks in ((0, 1), (2, 3))]
    own, other = halves[rank // 2], others[rank // 2]
    ddp = DistributedDataParallel(Layers(), process_group=own)
    raises(ValueError, lambda: gcomp_torch.State(ddp, "none"), "ranks [%d, %d]" % (rank // 2 * 2, rank // 2 * 2 + 1), "new_group")
    raises(ValueError, lambda: gcomp_torch.State(ddp, "none", group=dist.new_group(backend="gloo")), "process_group")
    raises(ValueError, lambda: gcomp_torch.State(ddp, "none", group=own), "pass another group")
    state = gcomp_torch.State(ddp, "none", group=other)
    ddp.register_comm_hook(state, gcomp_torch.hook)
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(rank))
    grads = torch.autograd.grad(ddp.module(x).sum(), list(ddp.parameters()))
    parts = everyone(flat(grads))
    ddp(x).sum().backward()
    first = rank // 2 * 2
    assert torch.allclose(flat(p.grad for p in ddp.parameters()), (parts[first] + parts[first + 1]) / 2, atol=1e-6)
    state.close()
    everything = dist.new_group(backend="gloo")  # of all workers, but by name
    state = gcomp_torch.State(DistributedDataParallel(Layers(), process_group=everything), "none", timeout=120)
    state.close()


@scenario
def workers_begin_with_the_same_weights_or_are_told_which_differ(rank, world, directory):
    def model_of(seed):
        model = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Linear(20, 20).bfloat16())
        for p in model.parameters():
            p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
        return model
    model = model_of(5)
    if rank == 1:
        model[1].weight.data[7] += 1e-6
    for call in (lambda: gcomp_torch.State(model, "int", timeout=120), lambda: gcomp_torch.compare_weights(model)):
        error = raises(gcomp.Error, call, "worker 1 has another 1.weight than worker 0")
        assert error.code == gcomp.MISMATCH
    gcomp_torch.State(model, "int", timeout=120, check_weights=False).close()
    ddp = DistributedDataParallel(model_of(5).float())
    ddp.module[2].weight.data += rank  # loaded behind the back of DistributedDataParallel
    raises(gcomp.Error, lambda: gcomp_torch.State(ddp, "int", timeout=120), "worker 1 has another 2.weight", "broadcast_weights")
    model = model_of(rank)
    model[0].weight.data = model[0].weight.data.t()
    model[1].num_batches_tracked += rank
    gcomp_torch.broadcast_weights(model)
    gcomp_torch.compare_weights(model)
    assert model[1].num_batches_tracked == 0 and not model[0].weight.is_contiguous()
    first = model_of(0)
    first[0].weight.data = first[0].weight.data.t()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), first.parameters()))
    gcomp_torch.State(model, "int", timeout=120).close()
    for other, words in ((nn.Linear(20, 20 + (rank == 1)), "another type or shape of weight"), (nn.Linear(20, 20, bias=rank != 1), "no more weights where worker 0 has bias"),
                         (nn.Sequential(nn.Linear(20, 20)) if rank == 1 else nn.Linear(20, 20), "worker 1 has 0.weight where worker 0 has weight")):
        before = flat(other.parameters())
        raises(gcomp.Error, lambda: gcomp_torch.broadcast_weights(other), words)
        assert torch.equal(before, flat(other.parameters()))


@scenario
def a_state_is_loaded_on_all_workers_or_on_none(rank, world, directory):
    ddp, state, optimizer = made("topk:density=0.02", in_order=True)
    train(ddp, optimizer, range(2))
    saved = state.state_dict()
    train(ddp, optimizer, range(2, 4))
    before = state.state_dict(gather=False)["saves"][0]
    for spoil in (lambda s: s.update(saves=[torch.zeros(90, dtype=torch.uint8)] * world), lambda s: s.pop("saves"), lambda s: s.update(rank=7)):
        broken = dict(saved)
        if rank == 1:
            spoil(broken)
        error = raises(Exception, lambda: state.load_state_dict(broken))
        assert rank == 1 or (error.code == gcomp.PEER_FAILED and "worker 1 could not load" in str(error)), error
        assert torch.equal(before, state.state_dict(gather=False)["saves"][0])
    train(ddp, optimizer, range(4, 6))
    state.load_state_dict(saved)
    assert state._gc.step_number == 2
    state.close()


@scenario
def all_ranks_compress_as_advised(rank, world, directory):
    for optimizer, bad in (("adam", ("sign", "topk", "powersgd")), ("sgd", ("sign",))):
        ddp, state, plain = made("advise", optimizer=optimizer)
        codecs = [None] * world
        dist.all_gather_object(codecs, state.advice.codecs)
        assert codecs == [codecs[0]] * world, codecs
        text = state.describe()
        for (name, p), codec in zip(ddp.module.named_parameters(), codecs[0]):
            line = next(line for line in text.splitlines() if line.startswith(name + ":"))
            assert "fp32, " + (codec or "none").split(":")[0] in line and (codec is None or codec.split(":")[0] not in bad), (line, codec)
        losses = train(ddp, plain, range(12))
        same_everywhere(flat(ddp.parameters()))
        assert losses[-1] < 0.6 * losses[0] and state.stats().failed == 0, losses
        state.close()
    figures = {"none": (1e-9, 1e-12, 0, 0), "int:bits=4": (1e-9, 1e-12, 0, 0.5)}  # of which nothing is measured
    ddp, state, optimizer = made("advise", candidates=figures, optimizer="adam")
    assert set(state.advice.codecs) <= {None, "int:bits=4"} and state.advice.figures == figures
    state.close()
    ddp, state, optimizer = made("advise", candidates=["bf16"], optimizer="adam", min_elements=2 ** 30)
    assert state.advice.codecs == [None] * 7 and str(state.advice).endswith("do not compress"), state.advice
    losses = train(ddp, optimizer, range(3))
    same_everywhere(flat(ddp.parameters()))
    state.close()


@scenario
def workers_with_other_models_get_no_advice_but_an_error(rank, world, directory):
    for check_weights in (True, False):
        for model in (Net(48 + rank), nn.Linear(40, 40) if rank else Net(), nn.Sequential(*[nn.Linear(40, 40) for _ in range(1 + rank)])):
            error = raises(gcomp.Error, lambda: gcomp_torch.State(model, "advise", timeout=120, check_weights=check_weights))
            assert error.code == gcomp.MISMATCH, error
    for model, kind in ((nn.Linear(40, 40).double() if rank == 1 else nn.Linear(40, 40), TypeError), (nn.ReLU() if rank == 1 else Net(), ValueError)):
        error = raises((gcomp.Error, kind), lambda: gcomp_torch.State(model, "advise", timeout=120, check_weights=False))
        assert type(error) is kind if rank == 1 else error.code == gcomp.PEER_FAILED, error
    state = gcomp_torch.State(Net(), "advise", timeout=120)
    state.close()


@scenario
def the_comm_carries_any_object_of_gcomp(rank, world, directory):
    comm = gcomp_torch.GlooComm(dist.new_group(backend="gloo", timeout=timedelta(seconds=120)))
    assert comm.allgather(b"") == comm.gather_uneven(b"") == comm.alltoall([b""] * world) == [b""] * world
    assert comm.alltoall([b"a" if rank == 0 else b""] * world) == [b"a"] + [b""] * (world - 1)
    comm.sum(torch.empty(0))
    comm.largest(torch.empty(0))
    weights = {"a": torch.randn(300000, generator=torch.Generator().manual_seed(rank))}
    raises(gcomp.Error, lambda: gcomp.compare_weights(weights, comm), "worker 1 has another 'a'")
    gcomp.broadcast_weights(weights, comm)
    gcomp.compare_weights(weights, comm)
    for codec in CODECS + ("intsum:bits=8", "intsum:bits=16", "sketch:density=0.01", "fp16", "terngrad:share=1", "topk:density=0.02,global=1"):
        with gcomp.open(codec, comm=comm) as gc:
            gc.add_tensor("w", 64, 64)
            grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))
            gc.exchange([grad])
            same_everywhere(grad)


@scenario
def a_checkpoint_goes_on_with_the_same_bits_and_other_numbers_of_workers(rank, world, directory):
    ddp, state, optimizer = made("topk:density=0.02", in_order=True)
    train(ddp, optimizer, range(3))
    weights = {k: v.clone() for k, v in ddp.module.state_dict().items()}
    saved = state.state_dict()
    assert len(saved["saves"]) == world
    place = os.path.join(directory, "checkpoint%d" % world)
    if rank == 0:  # one worker saves for all
        torch.save({"model": weights, "gcomp": saved}, place)
    dist.barrier()
    train(ddp, optimizer, range(3, 6))
    for gather in (True, False):
        own = saved if gather else None
        again, other, plain = made("topk:density=0.02", in_order=True)
        again.module.load_state_dict(weights)
        if own is None:
            fresh = gcomp_torch.State(Net(), "topk:density=0.02", timeout=120)
            fresh.load_state_dict(saved)
            own = fresh.state_dict(gather=False)
            fresh.close()
        other.load_state_dict(own)
        train(again, plain, range(3, 6))
        assert torch.equal(flat(again.parameters()), flat(ddp.parameters()))
        other.close()
    for before in (2, 4):
        place = os.path.join(directory, "checkpoint%d" % before)
        if before == world or not os.path.exists(place):
            continue
        loaded = torch.load(place)
        again, other, plain = made("topk:density=0.02")
        again.module.load_state_dict(loaded["model"])
        other.load_state_dict(loaded["gcomp"])
        assert other.stats().residual_norm > 0 and other._gc.step_number == 3
        losses = train(again, plain, range(3, 9))
        same_everywhere(flat(again.parameters()))
        assert losses[-1] < losses[0], losses
        other.close()
    state.close()


def a_worker_that_dies_is_an_error_on_all_within_the_timeout(rank, world, directory, group="dying", timeout=30, **options):
    ddp, state, optimizer = made("int:bits=4", timeout=timeout, **options)
    train(ddp, optimizer, range(2))
    if rank == 1:
        with open(os.path.join(directory, group + ".1"), "w") as f:
            json.dump({SCENARIOS[group][0].__name__: ""}, f)
        right, count = state.wire.carry_out_raw, []

        def carry_out(raw):
            count.append(1)
            if len(count) == 2:
                os._exit(3)
            right(raw)
        state.wire.carry_out_raw = carry_out
    before = flat(ddp.parameters())
    error = raises(gcomp.Error, lambda: train(ddp, optimizer, [2]))
    assert error.code == gcomp.CALLBACK_FAILED and error.kind == "resynchronise" and error.__cause__ is not None, error
    assert torch.equal(before, flat(ddp.parameters()))
    state.close()


def a_worker_that_dies_is_an_error_on_all_at_once_over_sockets(rank, world, directory):
    a_worker_that_dies_is_an_error_on_all_within_the_timeout(rank, world, directory, "dying over sockets", 1e5, transport="sockets")  # longer than a test may take


SCENARIOS["dying"].append(a_worker_that_dies_is_an_error_on_all_within_the_timeout)
SCENARIOS["dying over sockets"].append(a_worker_that_dies_is_an_error_on_all_at_once_over_sockets)


# ---------------- processes


def worker(rank, world, port, directory, group):
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # else one bucket of 1 MB takes these small models
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=300))
    results = {}
    for function in SCENARIOS[group]:
        try:
            torch.manual_seed(9)  # all workers begin with the same weights
            function(rank, world, directory)
            results[function.__name__] = ""
        except BaseException:
            results[function.__name__] = traceback.format_exc()
        with open(os.path.join(directory, "%s.%d" % (group, rank)), "w") as f:
            json.dump(results, f)
        if results[function.__name__]:
            break  # the others may be elsewhere now
    sys.stdout.flush()
    os._exit(0)  # without waiting for connections to workers that are gone


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run(world, directory, group):
    """What each scenario said on each worker: {name: [text of rank 0, ...]}."""
    port = free_port()
    fork = multiprocessing.get_context("fork")  # what was imported, which takes seconds, is imported
    workers = [fork.Process(target=worker, args=(rank, world, port, directory, group)) for rank in range(world)]
    for w in workers:
        w.start()
    end = time.monotonic() + 900  # which is not a fact, but the end of a test that hangs
    for w in workers:
        w.join(max(end - time.monotonic(), 1))
        w.kill()
    said = {function.__name__: [] for function in SCENARIOS[group]}
    for rank in range(world):
        try:
            with open(os.path.join(directory, "%s.%d" % (group, rank))) as f:
                results = json.load(f)
        except OSError:
            results = {}
        for name in said:
            said[name].append(results.get(name, "did not run"))
    return said


def readme(directory):
    """The code of examples/README.md, on two workers."""
    with open(os.path.join(ROOT, "examples", "README.md")) as f:
        code = next(block for block in re.findall(r"^```python\n(.*?)^```", f.read(), re.S | re.M) if "gcomp_torch" in block)
    environment = {**os.environ, "PYTHONPATH": HERE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    workers = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env={**environment, "RANK": str(rank)}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    texts = []
    for w in workers:
        out, errors = w.communicate(timeout=600)
        texts.append("" if w.returncode == 0 and "times less" in out else out + errors + "status %d" % w.returncode)
    return {"the code of the document runs": texts}


def main():
    number = failed = 0
    with tempfile.TemporaryDirectory() as directory:
        object_file = os.environ.get("GCOMP_OBJECT")  # of the implementation, if there is one
        with open(os.path.join(directory, "one.c"), "w") as f:
            f.write('#define GCOMP_IMPLEMENTATION\n#include "gcomp.h"\n')
        subprocess.run(["gcc", "-O1", "-I" + ROOT, "-I" + os.path.join(ROOT, "examples", "adapters"), os.path.join(ROOT, "tests", "examples", "means.c"), object_file or os.path.join(directory, "one.c"), "-o",
                        os.path.join(directory, "c"), "-lm", "-pthread"], check=True)
        for world, group in ((4, "all"), (2, "all"), (3, "dying"), (2, "dying over sockets"), (4, "dying over sockets"), (2, "readme")):
            if sys.argv[1:] and [str(world), group] != sys.argv[1:]:
                continue
            for name, texts in (readme(directory) if group == "readme" else run(world, directory, group)).items():
                number += 1
                bad = ["rank %d: %s" % (rank, text) for rank, text in enumerate(texts) if text]
                print("%sok %d - %d workers: %s" % ("not " if bad else "", number, world, name.replace("_", " ")))
                for text in bad:
                    failed = 1
                    print("".join("# " + line + "\n" for line in text.splitlines()), end="")
                sys.stdout.flush()
    print("1..%d" % number)
    return failed


if __name__ == "__main__":
    sys.exit(main())
