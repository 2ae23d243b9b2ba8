"""Embeddings whose rows are on servers train as PyTorch's own, which have theirs in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from zmqps.errors import ConfigurationError  # noqa: E402

DIM, NUM_IDS, BATCH, STEPS = 5, 40, 8, 10
START = 0.25
TABLE = zmqps.table(DIM, optimizer=zmqps.optim.sgd(0.1), initial=zmqps.initial.constant(START))
MODES: dict[str, int | None] = {"async": None, "sync": 0}


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
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), staleness=MODES[mode], timeout=PATIENCE)
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
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), staleness=None, timeout=PATIENCE)
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
    worker.init({}, tables=zmqps.torch.tables(bag, worker), timeout=PATIENCE)
    bag.prefetch(torch.tensor([7, 7, 9]))
    for _ in range(3):
        bag(torch.tensor([7, 7, 9]), torch.tensor([0, 2])).sum().backward()
    bag.synchronize()
    assert rows_of(worker, "words")[[7, 8, 9], 0].tolist() == pytest.approx([START - 0.6, START, START - 0.3])


def test_nothing_is_pushed_in_evaluation(worker: Any) -> None:
    one = zmqps.torch.Embedding("items", TABLE)
    worker.init({}, tables=zmqps.torch.tables(one, worker), timeout=PATIENCE)
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
    worker.init({}, tables=zmqps.torch.tables(both, worker), timeout=PATIENCE)
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
    worker.init({}, tables=zmqps.torch.tables(bag, worker), timeout=PATIENCE)
    assert bag(Jagged())[:, 0].tolist() == [2 * START, 0.0, START]
    assert bag(Jagged(torch.tensor([1.0, 2.0, 4.0])))[:, 0].tolist() == [3 * START, 0.0, 4 * START]
    last = zmqps.torch.EmbeddingBag("words", TABLE, include_last_offset=True)
    last.attach(worker)
    assert last(torch.tensor([4, 6]), torch.tensor([0, 2, 2]))[:, 0].tolist() == [2 * START, 0.0]


def test_no_ids_at_all(worker: Any) -> None:
    bag, one = zmqps.torch.EmbeddingBag("words", TABLE), zmqps.torch.Embedding("items", TABLE)
    both = torch.nn.ModuleList([bag, one])
    worker.init({}, tables=zmqps.torch.tables(both, worker), timeout=PATIENCE)
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
    worker.init({}, tables=zmqps.torch.tables(bag, worker), timeout=PATIENCE)

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
    optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), staleness=None)
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
