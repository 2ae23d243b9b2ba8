"""Embeddings whose rows are on servers train as PyTorch's own, which have theirs in the model."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.optim.swa_utils import AveragedModel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from zmqps.client.sparse.tables import TableOptions  # noqa: E402
from zmqps.errors import ConfigurationError, DeadlineError  # noqa: E402

DIM, NUM_IDS, BATCH, STEPS = 5, 40, 8, 10
START = 0.25
TABLE = zmqps.table(DIM, optimizer=zmqps.optim.sgd(0.1), initial=zmqps.initial.constant(START))
MODES = ("async", "sync")


@pytest.fixture
def worker() -> Iterator[Any]:
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as connected:
        yield connected


class Model(torch.nn.Module):  # type: ignore[misc]
    """A tower over rows of ids, and over bags of them."""

    def __init__(self, one: Any, bag: Any) -> None:
        super().__init__()
        self.one, self.bag = one, bag
        torch.manual_seed(3)
        self.tower = torch.nn.Sequential(torch.nn.Linear(2 * DIM, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

    def forward(self, ids: Any, bags: Any, offsets: Any, weights: Any = None) -> Any:
        rows = torch.cat([self.one(ids).sum(1), self.bag(bags, offsets, weights)], 1)
        return self.tower(rows)


def plain(mode: str = "sum", **options: Any) -> Model:
    def filled(module: Any) -> Any:
        torch.nn.init.constant_(module.weight, START)
        return module

    return Model(
        filled(torch.nn.Embedding(NUM_IDS, DIM)), filled(torch.nn.EmbeddingBag(NUM_IDS, DIM, mode=mode, **options))
    )


def remote(mode: str = "sum", **options: Any) -> Model:
    return Model(zmqps.torch.Embedding("items", TABLE), zmqps.torch.EmbeddingBag("words", TABLE, mode=mode, **options))


def batch(step: int, size: int = BATCH) -> tuple[Any, ...]:
    """Return ids with duplicates, bags of which some are empty, and what is to be said of them."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(0, 4, size)
    bags = torch.from_numpy(rng.zipf(1.4, int(lengths.sum())) % NUM_IDS)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]))
    return torch.from_numpy(rng.zipf(1.4, (size, 3)) % NUM_IDS), bags, offsets, torch.randn(size, 1)


DATA = [batch(step) for step in range(4)]


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def rows_of(worker: Any, name: str) -> Any:
    return worker.table(name).rows(np.arange(NUM_IDS), timeout=PATIENCE)


def check(worker: Any, model: Model, expected: Model) -> None:
    for name, module in (("items", expected.one), ("words", expected.bag)):
        np.testing.assert_allclose(rows_of(worker, name), module.weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(model.tower.parameters(), expected.tower.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def loop(model: Any, optimizer: Any, data: Sequence[Any], before: Callable[[Any], None] = lambda batch: None) -> None:
    for number, (ids, bags, offsets, y) in enumerate(data):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(ids, bags, offsets), y)
        before(data[(number + 1) % len(data)])
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("bag", ["sum", "mean"])
@pytest.mark.parametrize("mode", MODES)
def test_one_worker_trains_as_one_process(worker: Any, mode: str, bag: str, prefetch: bool) -> None:
    data = [batch(step) for step in range(STEPS)]
    expected = plain(bag)
    loop(expected, sgd(expected), data)
    model = remote(bag)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode=mode, timeout=PATIENCE)
    pulls: list[Any] = []

    def ask(following: Any) -> None:
        if prefetch:
            model.one.prefetch(following[0])
            model.bag.prefetch(following[1])

    for module in (model.one, model.bag):
        way = module._way
        found = way.pull
        way.pull = lambda *args, way=way, found=found, **more: (pulls.append(way.coming), found(*args, **more))[1]
    loop(model, optimizer, data, ask)
    assert sum(coming is not None for coming in pulls) == (2 * (STEPS - 1) if prefetch else 0)
    check(worker, model, expected)
    assert list(model.state_dict()) == [name for name in expected.state_dict() if "tower" in name]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is asked of tables from now on."""
    calls: list[str] = []

    def spy(name: str) -> None:
        original = getattr(zmqps.Table, name)
        monkeypatch.setattr(zmqps.Table, name, lambda *args, **more: (calls.append(name), original(*args, **more))[1])

    for name in ("push_async", "pull", "pull_async", "push_pull_async"):
        spy(name)
    return calls


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_the_next_batch_come_with_the_push_of_this_one(worker: Any, mode: str, asked: list[str]) -> None:
    model = zmqps.torch.Embedding("items", TABLE)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode=mode, timeout=PATIENCE)
    batches = [torch.tensor(ids) for ids in ([3, 3, 7], [7, 3, 9, 7], [9, 9, 1], [3, 7, 9, 1])]
    expected = torch.nn.Embedding(NUM_IDS, DIM)
    torch.nn.init.constant_(expected.weight, START)
    theirs = sgd(expected)
    for ids, following in zip(batches, [*batches[1:], None], strict=True):
        optimizer.zero_grad()
        theirs.zero_grad()
        rows, others = model(ids), expected(ids)
        torch.testing.assert_close(rows, others)
        if following is not None:
            model.prefetch(following)
        (rows * ids[:, None]).sum().backward()
        (others * ids[:, None]).sum().backward()
        optimizer.step()
        theirs.step()
    together = ["push_pull_async"] if mode == "async" else ["push_async", "pull_async"]
    assert asked == ["pull", *together * 3, "push_async"]


@pytest.mark.parametrize("mode", MODES)
def test_layers_that_share_a_table_have_the_updates_of_both(worker: Any, mode: str, asked: list[str]) -> None:
    data = [batch(step) for step in range(STEPS)]
    expected = plain()
    expected.bag.weight = expected.one.weight
    loop(expected, sgd(expected), data)
    model = Model(zmqps.torch.Embedding("items", TABLE), zmqps.torch.EmbeddingBag("items", TABLE, mode="sum"))
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode=mode, timeout=PATIENCE)

    def ask(following: Any) -> None:
        model.one.prefetch(following[0])
        model.bag.prefetch(following[1])

    loop(model, optimizer, data, ask)
    assert asked.count("pull") == 2
    assert asked.count("push_pull_async") == (STEPS if mode == "async" else 0)
    assert asked.count("push_async") == (0 if mode == "async" else STEPS), "one gradient of each step"
    np.testing.assert_allclose(rows_of(worker, "items"), expected.one.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_rows_come_with_a_step_whose_gradients_were_pushed_while_backward_ran(worker: Any, mode: str) -> None:
    data = [batch(step) for step in range(STEPS)]
    expected, model = plain(), remote()
    loop(expected, sgd(expected), data)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode=mode, overlap=True, timeout=PATIENCE)
    loop(model, optimizer, data, lambda following: model.one.prefetch(following[0]))
    optimizer.synchronize()
    check(worker, model, expected)


@pytest.mark.parametrize("mode", MODES)
def test_after_a_step_that_was_too_late_rows_are_asked_for_again(mode: str, asked: list[str]) -> None:
    held = threading.Event()
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
        model = zmqps.torch.Embedding("items", TABLE)
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode=mode, timeout=1.0)
        ids, following = torch.tensor([3, 3, 7]), torch.tensor([7, 9])
        model(ids).sum().backward()
        model.prefetch(following)
        cluster._loop.call_soon_threadsafe(held.wait, PATIENCE)
        try:
            with pytest.raises(DeadlineError):
                optimizer.step()
        finally:
            held.set()
        asked.clear()
        rows = model(following)
        assert asked == (["pull"] if mode == "async" else [])
        assert rows[1].tolist() == [START] * DIM
        assert rows[0].tolist() in (pytest.approx([START] * DIM), pytest.approx([START - 0.1] * DIM))
        assert rows_of(worker, "items")[7].tolist() == rows[0].tolist()


def test_two_synchronous_workers_are_one_process_with_whole_batches() -> None:
    halves = [[batch(2 * step + rank) for step in range(STEPS)] for rank in range(2)]
    expected = plain()
    optimizer = sgd(expected)
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for ids, bags, offsets, y in parts:
            (torch.nn.functional.mse_loss(expected(ids, bags, offsets), y) / 2).backward()
        optimizer.step()
    with InProcessCluster(servers=2, workers=2) as cluster, ThreadPoolExecutor(2) as threads:
        made = [remote() for _ in range(2)]

        def work(number: int) -> None:
            with zmqps.connect(cluster.address, timeout=PATIENCE) as one:
                optimizer = zmqps.torch.Optimizer(made[number], one, sgd(made[number]), timeout=PATIENCE)
                loop(made[number], optimizer, halves[one.rank])
                check(one, made[number], expected)
                one.barrier("read", timeout=PATIENCE)

        list(threads.map(work, range(2)))


def test_gradients_add_up_are_dropped_and_are_scaled_as_those_of_parameters(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for one, opt in ((model, optimizer), (expected, theirs)):
        for step in range(3):  # forgotten
            ids, bags, offsets, y = batch(step)
            torch.nn.functional.mse_loss(one(ids, bags, offsets), 0 * y).backward()
        opt.zero_grad()
        for step in range(3):
            ids, bags, offsets, y = batch(step)
            torch.nn.functional.mse_loss(one(ids, bags, offsets), 0 * y).backward()
        opt.step()
    check(worker, model, expected)
    for factor, steps in ((8.0, 1), (float("inf"), 0)):  # that one is skipped
        optimizer.zero_grad()
        theirs.zero_grad()
        ids, bags, offsets, y = batch(7)
        (torch.nn.functional.mse_loss(model(ids, bags, offsets), 0 * y) * factor).backward()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(factor), torch.tensor(float(factor == float("inf")))
        optimizer.step()
        for _ in range(steps):
            torch.nn.functional.mse_loss(expected(ids, bags, offsets), 0 * y).backward()
            theirs.step()
    check(worker, model, expected)


def test_weights_of_samples_have_a_gradient(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode="async", timeout=PATIENCE)
    found = []
    for one, opt in ((model, optimizer), (expected, sgd(expected))):
        ids, bags, offsets, y = batch(4)
        weights = torch.linspace(-1, 2, bags.numel(), requires_grad=True)
        torch.nn.functional.mse_loss(one(ids, bags, offsets, weights), 0 * y).backward()
        opt.step()
        found.append(weights.grad)
    torch.testing.assert_close(found[0], found[1])
    check(worker, model, expected)


def test_without_an_optimizer_backward_pushes_at_once(worker: Any) -> None:
    bag = zmqps.torch.EmbeddingBag("words", TABLE)
    worker.init({}, tables=zmqps.torch.tables(bag, worker), mode="async", timeout=PATIENCE)
    bag.prefetch(torch.tensor([7, 7, 9]))
    for _ in range(3):
        bag(torch.tensor([7, 7, 9]), torch.tensor([0, 2])).sum().backward()
    bag.synchronize()
    assert rows_of(worker, "words")[[7, 8, 9], 0].tolist() == pytest.approx([START - 0.6, START, START - 0.3])


def test_nothing_is_pushed_in_evaluation(worker: Any) -> None:
    one = zmqps.torch.Embedding("items", TABLE)
    worker.init({}, tables=zmqps.torch.tables(one, worker), mode="async", timeout=PATIENCE)
    with torch.no_grad():
        assert not one(torch.tensor([1, 2])).requires_grad
    one.eval()
    assert not one(torch.tensor([[1], [2]])).requires_grad
    assert len(worker.table("items")) == 0


@pytest.mark.parametrize("bag", ["sum", "mean"])
def test_padding_counts_for_nothing(worker: Any, bag: str) -> None:
    ids = torch.tensor([[3, 0, 5], [0, 0, 0]])
    ours = zmqps.torch.EmbeddingBag("words", TABLE, mode=bag, padding_idx=0)
    one = zmqps.torch.Embedding("items", TABLE, padding_idx=0)
    both = torch.nn.ModuleList([ours, one])
    worker.init({}, tables=zmqps.torch.tables(both, worker), mode="async", timeout=PATIENCE)
    theirs = torch.nn.EmbeddingBag(NUM_IDS, DIM, mode=bag, padding_idx=0)
    torch.nn.init.constant_(theirs.weight, START)
    torch.testing.assert_close(ours(ids), theirs(ids).detach())
    assert one(ids)[0, :, 0].tolist() == [START, 0.0, START]
    (ours(ids).sum() + one(ids).sum()).backward()
    for module in (ours, one):
        module.synchronize()
    assert len(worker.table("words")) == len(worker.table("items")) == 2
    assert rows_of(worker, "items")[[0, 3], 0].tolist() == pytest.approx([START, START - 0.1])


class Jagged:
    """What TorchRec's ``JaggedTensor`` answers."""

    def __init__(self, weights: Any = None) -> None:
        self._weights = weights

    def values(self) -> Any:
        return torch.tensor([4, 6, 4])

    def offsets(self) -> Any:
        return torch.tensor([0, 2, 2, 3])

    def weights_or_none(self) -> Any:
        return self._weights


def test_a_jagged_tensor_brings_ids_offsets_and_weights(worker: Any) -> None:
    bag = zmqps.torch.EmbeddingBag("words", TABLE)
    worker.init({}, tables=zmqps.torch.tables(bag, worker), mode="async", timeout=PATIENCE)
    assert bag(Jagged())[:, 0].tolist() == [2 * START, 0.0, START]
    assert bag(Jagged(torch.tensor([1.0, 2.0, 4.0])))[:, 0].tolist() == [3 * START, 0.0, 4 * START]
    last = zmqps.torch.EmbeddingBag("words", TABLE, include_last_offset=True)
    last.attach(worker)
    assert last(torch.tensor([4, 6]), torch.tensor([0, 2, 2]))[:, 0].tolist() == [2 * START, 0.0]


def test_no_ids_at_all(worker: Any) -> None:
    bag, one = zmqps.torch.EmbeddingBag("words", TABLE), zmqps.torch.Embedding("items", TABLE)
    both = torch.nn.ModuleList([bag, one])
    worker.init({}, tables=zmqps.torch.tables(both, worker), mode="async", timeout=PATIENCE)
    nothing = torch.empty(0, dtype=torch.int64)
    found = bag(nothing, torch.tensor([0, 0]))
    assert found.shape == (2, DIM)
    assert one(nothing.reshape(0, 3)).shape == (0, 3, DIM)
    found.sum().backward()
    bag.synchronize()


@pytest.mark.parametrize(
    ("ids", "offsets", "weights", "what"),
    [
        ([1, 2], None, None, "with offsets"),
        ([[1, 2]], [0], None, "with offsets"),
        ([1, 2], [1], None, "begin with 0"),
        ([1, 2], [0, 2, 1], None, "do not fall"),
        ([1, 2], [0, 3], None, "within the 2 ids"),
        ([1, 2], [0], [1.0], "weights of samples are"),
        ([1.5], [0], None, "ids are integers"),
    ],
)
def test_what_does_not_fit_is_refused(worker: Any, ids: Any, offsets: Any, weights: Any, what: str) -> None:
    bag = zmqps.torch.EmbeddingBag("words", TABLE)
    worker.init({}, tables=zmqps.torch.tables(bag, worker), mode="async", timeout=PATIENCE)

    def tensor(some: Any) -> Any:
        return None if some is None else torch.tensor(some)

    with pytest.raises(ConfigurationError, match=what):
        bag(tensor(ids), tensor(offsets), tensor(weights))


def test_weights_need_a_sum_and_modules_a_worker_and_one_description() -> None:
    with pytest.raises(ConfigurationError, match="mode='sum'"):
        zmqps.torch.EmbeddingBag("words", TABLE, mode="mean")(torch.tensor([1]), torch.tensor([0]), torch.tensor([1.0]))
    with pytest.raises(ConfigurationError, match="one of sum, mean"):
        zmqps.torch.EmbeddingBag("words", TABLE, mode="max")
    with pytest.raises(ConfigurationError, match="has no worker"):
        zmqps.torch.Embedding("items", TABLE)(torch.tensor([1]))
    other = zmqps.table(DIM, optimizer=zmqps.optim.sgd(0.2))
    both = torch.nn.ModuleList([zmqps.torch.Embedding("items", TABLE), zmqps.torch.Embedding("items", other)])
    with pytest.raises(ConfigurationError, match="differently"):
        zmqps.torch.tables(both, None)  # type: ignore[arg-type]
    assert repr(zmqps.torch.EmbeddingBag("words", TABLE)) == "EmbeddingBag('words', 5, mode='sum')"


def test_an_embedding_has_a_cache_by_one_argument(worker: Any) -> None:
    cache = zmqps.row_cache(30, staleness=4, defer=True)
    expected, model = (
        plain(),
        Model(
            zmqps.torch.Embedding("items", TABLE, cache=cache), zmqps.torch.EmbeddingBag("words", TABLE, cache=cache)
        ),
    )
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), mode="async")
    theirs = sgd(expected)
    for step in range(STEPS):
        ids, bags, offsets, wanted = batch(step)
        for trained, other in ((model, optimizer), (expected, theirs)):
            other.zero_grad()
            torch.nn.functional.mse_loss(trained(ids, bags, offsets), wanted).backward()
            other.step()
    figures = worker.table("items").cache_statistics()
    assert figures.hits > 0
    assert figures.deferred > figures.sent > 0
    check(worker, model, expected)  # which reads all rows, with what was kept


def test_two_embeddings_of_a_table_have_one_cache(worker: Any) -> None:
    first = zmqps.torch.Embedding("items", TABLE, cache=zmqps.row_cache(30))
    second = zmqps.torch.EmbeddingBag("items", TABLE, cache=zmqps.row_cache(40))
    with pytest.raises(ConfigurationError, match="different caches"):
        zmqps.torch.tables(torch.nn.ModuleList([first, second]), worker)
    third = zmqps.torch.EmbeddingBag("items", TABLE)
    assert list(zmqps.torch.tables(torch.nn.ModuleList([first, third]), worker)) == ["items"]


# --- gradients between backward and step -------------------------------------------------------


def backward(model: Any, data: Any, loss: Callable[..., Any] = torch.nn.functional.mse_loss) -> None:
    ids, bags, offsets, y = data
    loss(model(ids, bags, offsets), y).backward()


def to_none(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def zero_data(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.data.zero_()


def scaled(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)
        parameter.grad = parameter.grad * 3


#: What a script does to gradients between `backward` and `step`.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda model, optimizer: None,
    "model.zero_grad": lambda model, optimizer: model.zero_grad(),
    "model.zero_grad to zeros": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "optimizer.zero_grad": lambda model, optimizer: optimizer.zero_grad(),
    "optimizer.zero_grad to zeros": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "p.grad = None": to_none,
    "p.grad.data.zero_": zero_data,
    "p.grad.mul_": scaled,
    "clip_grad_norm_": lambda model, optimizer: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clip_grad_value_": lambda model, optimizer: torch.nn.utils.clip_grad_value_(model.parameters(), 0.02),
}


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_gradients_is_done_to_those_of_rows(worker: Any, change: str, passes: int) -> None:
    data = [batch(step) for step in range(4 * passes)]
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        for step in range(4):  # the first has gradients that stay for the second: nobody has zeroed them
            for one in data[step * passes : (step + 1) * passes]:
                backward(trained, one)
            if step != 2:
                CHANGES[change](trained, opt)
                backward(trained, data[step])
            opt.step()
            if step > 0:
                opt.zero_grad()
    check(worker, model, expected)
    assert model.one.rows.shape == model.bag.rows.shape == (0, DIM)


def test_a_row_is_not_touched_by_a_gradient_that_was_zeroed(worker: Any) -> None:
    model = zmqps.torch.Embedding("items", TABLE)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    for number, zero in enumerate((model.zero_grad, optimizer.zero_grad)):
        model(torch.tensor([1, 2])).sum().backward()
        zero(set_to_none=number == 1)
        optimizer.step()
    model(torch.tensor([1, 2])).sum().backward()
    model.zero_grad(set_to_none=False)
    model(torch.tensor([7])).sum().backward()
    optimizer.step()
    assert len(worker.table("items")) == 1


def test_one_batch_without_a_step_leaves_nothing(worker: Any) -> None:
    data = [batch(step) for step in range(3)]
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        for number, one in enumerate(data):
            backward(trained, one)
            if trained is model:
                model.one.prefetch(data[(number + 1) % 3][0])
            if number != 1:
                opt.step()
            trained.zero_grad()
    check(worker, model, expected)


def test_a_grad_scaler_unscales_rows_and_finds_what_is_not_finite_in_them(worker: Any) -> None:
    data = [batch(step) for step in range(4)]
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    seen: list[list[float]] = [[], []]
    for trained, opt, found in ((model, optimizer, seen[0]), (expected, theirs, seen[1])):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for number, (ids, bags, offsets, y) in enumerate(data):
            opt.zero_grad()
            scaler.scale(torch.nn.functional.mse_loss(trained(ids, bags, offsets), y)).backward()
            rows = next(trained.one.parameters())
            if number == 1:
                rows.grad[0 if trained is model else ids[0, 0]] = float("inf")
            if number < 3:
                scaler.unscale_(opt)
            found.append(float(torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)))
            scaler.step(opt)
            scaler.update()
            found.append(scaler.get_scale())
    assert seen[0] == pytest.approx(seen[1])
    assert float("inf") in seen[0]
    check(worker, model, expected)


def test_rows_are_frozen_as_parameters_are_and_belong_to_the_optimizer(worker: Any) -> None:
    model = remote()
    with pytest.raises(ConfigurationError, match=r"'items' are in no param group .* model.parameters\(\)"):
        zmqps.torch.Optimizer(model, worker, torch.optim.SGD(model.tower.parameters(), lr=0.1))
    model.one.requires_grad_(False)
    named = dict(model.named_parameters())
    del named["one.rows"]
    optimizer = zmqps.torch.Optimizer(model, worker, torch.optim.SGD(named.values(), lr=0.1), timeout=PATIENCE)
    loop(model, optimizer, [batch(0)])
    assert (len(worker.table("items")), len(worker.table("words")) > 0) == (0, True)
    assert list(zmqps.torch.parameters_of(model)) == [name for name in named if "tower" in name]
    worker.set(zmqps.torch.parameters_of(model), step=True, timeout=PATIENCE)


def test_rows_alone_have_an_optimizer(worker: Any) -> None:
    model = zmqps.torch.Embedding("items", TABLE)
    optimizer = zmqps.torch.Optimizer(model, worker, torch.optim.Adam(model.parameters()), timeout=PATIENCE)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([1, 1, 2])).sum().backward()
        optimizer.step()
    assert rows_of(worker, "items")[[1, 2], 0].tolist() == pytest.approx([START - 0.6, START - 0.3])


def test_a_param_group_of_rows_alone_is_not_one_of_the_job(worker: Any) -> None:
    data = [batch(step) for step in range(4)]
    model, expected = remote(), plain()
    found = []
    for one in (model, expected):
        bags = [*one.one.parameters(), *one.bag.parameters()]
        groups = [{"params": one.tower.parameters()}, {"params": bags, "lr": 0.1}]
        found.append(torch.optim.SGD(groups, lr=0.1))
    optimizer = zmqps.torch.Optimizer(model, worker, found[0], timeout=PATIENCE)
    for trained, opt in ((model, optimizer), (expected, found[1])):
        loop(trained, opt, data[:2])
        opt.param_groups[0]["lr"] = 0.01
        loop(trained, opt, data[2:])
    check(worker, model, expected)


def test_values_that_are_written_to_rows_are_refused(worker: Any) -> None:
    model = zmqps.torch.Embedding("items", TABLE)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    model(torch.tensor([1])).sum().backward()
    with torch.no_grad():
        model.rows.add_(1.0)
    for again in (optimizer.step, lambda: model(torch.tensor([1]))):
        with pytest.raises(ConfigurationError, match=r"worker.table\('items'\).load"):
            again()


def test_hooks_of_rows_see_their_gradient(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        for parameter in trained.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        loop(trained, opt, DATA)
    check(worker, model, expected)


def test_backward_that_runs_twice_counts_twice(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        ids, bags, offsets, y = DATA[0]
        found = trained(ids, bags, offsets)
        torch.nn.functional.mse_loss(found, y).backward(retain_graph=True)
        found.abs().sum().backward(retain_graph=True)
        found.abs().sum().backward()
        opt.step()
    check(worker, model, expected)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_loop_of_its_own_pushes_what_backward_finds_or_takes_it(worker: Any, deferred: bool) -> None:
    one = zmqps.torch.Embedding("items", TABLE)
    worker.init({}, tables=zmqps.torch.tables(one, worker, deferred=deferred), mode="async", timeout=PATIENCE)
    for ids in ([3, 3, 1], [2, 3], []):
        one(torch.tensor(ids, dtype=torch.int64)).sum().backward()
    assert (one.rows.grad is None) == (not deferred)
    if deferred:
        ids, gradients = one.take()
        assert one.take() is None
        assert dict(zip(ids.tolist(), gradients[:, 0].tolist(), strict=True)) == {1: 1.0, 2: 1.0, 3: 3.0}
        worker.table("items").push(ids, gradients, timeout=PATIENCE)
    one.synchronize()
    assert rows_of(worker, "items")[:4, 0].tolist() == pytest.approx([START, START - 0.1, START - 0.1, START - 0.3])


# --- copies and files --------------------------------------------------------------------------


def trained_model(worker: Any) -> tuple[Model, Any]:
    """Return a model after some steps, with gradients and a prefetched batch."""
    model = remote()
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    loop(model, optimizer, DATA[:2])
    backward(model, DATA[2])
    model.one.prefetch(DATA[0][0])
    return model, optimizer


def test_a_copy_reads_rows_and_does_not_train_them(worker: Any) -> None:
    model, optimizer = trained_model(worker)
    copied, group = copy.deepcopy((model, optimizer.param_groups[0]["params"]))
    assert [id(parameter) for parameter in copied.parameters()] == [id(parameter) for parameter in group]
    optimizer.step()
    coming = model.one._way.coming
    ids, bags, offsets, _ = DATA[0]
    assert copied.one(ids).tolist() == model.one(ids).tolist()
    assert coming is not None
    assert copied.one.rows.grad is None
    before = rows_of(worker, "items").tolist()
    with pytest.raises(ConfigurationError, match=r"'(items|words)' is in a copy .* zmqps.torch.Optimizer"):
        copied(ids, bags, offsets).sum().backward()
    loop(model, optimizer, [])
    assert rows_of(worker, "items").tolist() == before
    assert copied.eval()(ids, bags, offsets).shape == (BATCH, 1)


def test_a_copy_takes_nothing_that_was_asked_for_by_the_model(worker: Any) -> None:
    model, optimizer = trained_model(worker)
    optimizer.step()
    coming = model.one._way.coming
    copied = copy.deepcopy(model)
    copied.one(DATA[0][0])
    assert model.one._way.coming is coming is not None


def test_an_averaged_model_has_the_rows_of_the_model(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    averaged, other = AveragedModel(model), AveragedModel(expected)
    for step in range(4):
        for trained, opt, mean in ((model, optimizer, averaged), (expected, theirs, other)):
            loop(trained, opt, [DATA[step]])
            mean.update_parameters(trained)
    with torch.no_grad():
        other.module.one, other.module.bag = expected.one, expected.bag  # rows are not averaged
        torch.testing.assert_close(averaged(*DATA[0][:3]), other(*DATA[0][:3]))
    check(worker, model, expected)


def saved(what: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, **options)


def test_a_model_in_a_file_has_no_worker_and_trains_when_it_gets_one(worker: Any) -> None:
    model, optimizer = trained_model(worker)
    ours = [Model, zmqps.torch.Embedding, zmqps.torch.EmbeddingBag, TableOptions]
    with torch.serialization.safe_globals([*ours, torch.nn.Sequential, torch.nn.Linear, torch.nn.Tanh]):
        restricted = saved(model, weights_only=True)
    for loaded in (restricted, saved(model, weights_only=False), pickle.loads(pickle.dumps(model))):
        with pytest.raises(ConfigurationError, match="'items' has no worker"):
            loaded(*DATA[0][:3])
        assert [tuple(module.rows.shape) for module in (loaded.one, loaded.bag)] == [(0, DIM)] * 2
        assert loaded.one.rows.grad is None
        assert list(loaded.state_dict()) == list(zmqps.torch.parameters_of(loaded))
        zmqps.torch.tables(loaded, worker)
        torch.testing.assert_close(loaded(*DATA[0][:3]), model(*DATA[0][:3]))
    optimizer.step()


def test_state_dicts_have_no_rows_and_refuse_those_of_others(worker: Any) -> None:
    model, _ = trained_model(worker)
    state = saved(model.state_dict(), weights_only=True)
    assert remote().load_state_dict(state).missing_keys == []
    with pytest.raises(RuntimeError, match=r"Unexpected key.*one\.weight"):
        remote().load_state_dict(plain().state_dict())


# --- compiled, traced and run again ------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of PyTorch's own, at any break of a graph
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_one_that_is_not(worker: Any, backend: str) -> None:
    torch.compiler.reset()
    model, expected = remote(), plain()
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    loop(expected, sgd(expected), DATA)
    loop(torch.compile(model, backend=backend), optimizer, DATA)
    check(worker, model, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit")  # which PyTorch advises against
def test_what_makes_one_graph_of_a_model_is_refused(worker: Any) -> None:
    model, _ = trained_model(worker)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"zmqps\.torch talks to servers here"):
        torch.compile(model, backend="eager", fullgraph=True)(*DATA[0][:3])
    for make in (torch.jit.script, lambda model: torch.jit.trace(model, DATA[0][:3])):
        with pytest.raises(ConfigurationError, match=r"torch\.jit"):
            make(model)
    with pytest.raises(ConfigurationError, match="DistributedDataParallel"):
        model.one._replicate_for_data_parallel()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_pass_that_runs_again_pulls_once_and_counts_once(worker: Any, reentrant: bool) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        for ids, bags, offsets, y in DATA:
            opt.zero_grad()
            weights = torch.ones(bags.numel(), requires_grad=True)
            found = checkpoint(trained, ids, bags, offsets, weights, use_reentrant=reentrant)
            if trained is model:
                before = [id(rows) for _, rows in model.bag._way.recent]
            torch.nn.functional.mse_loss(found, y).backward()
            if trained is model:
                assert [id(rows) for _, rows in model.bag._way.recent] == before
            opt.step()
    check(worker, model, expected)


def test_autocast_leaves_rows_as_they_are(worker: Any) -> None:
    model, expected = remote(), plain()
    optimizer, theirs = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE), sgd(expected)
    for trained, opt in ((model, optimizer), (expected, theirs)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert trained.one(DATA[0][0]).dtype == torch.float32
            loss = trained(*DATA[0][:3]).float().sum()
        loss.backward()
        opt.step()
    check(worker, model, expected)


def test_ddp_leaves_rows_alone(worker: Any, tmp_path: Any) -> None:
    model, expected = remote(), plain()
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        loop(torch.nn.parallel.DistributedDataParallel(model), optimizer, DATA)
    finally:
        torch.distributed.destroy_process_group()
    loop(expected, sgd(expected), DATA)
    check(worker, model, expected)


def test_a_step_that_is_skipped_asks_for_what_comes_next(worker: Any) -> None:
    model, optimizer = trained_model(worker)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    optimizer.step()
    assert model.one._way.coming[0].flat.tolist() == DATA[0][0].reshape(-1).tolist()


def test_rows_that_were_asked_for_before_a_step_are_not_used_after_it(worker: Any) -> None:
    model = zmqps.torch.Embedding("items", TABLE)
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
    ids = torch.tensor([1])
    model.prefetch(ids)  # at once: no forward pass has come
    worker.table("items").load([1], np.full((1, DIM), 7.0, np.float32), timeout=PATIENCE)
    optimizer.step()
    assert model(ids)[0, 0].item() == 7.0
