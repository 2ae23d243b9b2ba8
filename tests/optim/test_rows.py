"""Optimizers on rows of a table."""

from pathlib import Path

import numpy as np
import pytest

from tests.optim.specs import BY_SLOTS, SPECS, rule_of
from tests.tables import for_each
from zmqps import optim
from zmqps.errors import OptimizerError
from zmqps.optim import Rule
from zmqps.optim.kernels import make_kernel
from zmqps.optim.rows import RowKernel, make_row_kernel

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "row_golden.npz")
BACKENDS = ("numpy", "numba")
ROW_SPECS = {
    **SPECS,
    "rowwise_adagrad": optim.rowwise_adagrad(0.2),
    "rowwise_adagrad with options": optim.rowwise_adagrad(
        0.2, initial_accumulator_value=0.3, eps=1e-3, weight_decay=0.1, clip_value=0.7, clip_norm=1.5
    ),
    "adam by row norm": optim.adam(0.02, clip_norm=1.0, weight_decay=0.1),
    "sgd that falls": optim.sgd(optim.step_decay(0.5, every=2, factor=0.5), clip_value=0.4, clip_norm=1.0),
}
#: For what does not depend on the equation of dense parameters.
SOME = (*BY_SLOTS, *(name for name in ROW_SPECS if name not in SPECS))


class Table:
    """Rows, as a server keeps them."""

    def __init__(self, kernel: RowKernel, values: np.ndarray) -> None:
        self.kernel = kernel
        self.values = values.astype(np.float32)
        self.slots = [np.full(values.shape, fill, np.float32) for fill in kernel.slot_fill]
        self.row_slots = [np.full(len(values), fill, np.float32) for fill in kernel.row_slot_fill]
        self.counts = np.zeros(len(values), np.uint32) if kernel.counts else None
        self.step = 0

    def update(self, rows: np.ndarray, grads: np.ndarray, **options) -> None:
        self.step += 1
        state = self.slots, self.row_slots, self.counts
        self.kernel(self.values, rows, grads, *state, self.step, **options)


def batches(seed: int = 0, steps: int = 6, rows: int = 20, dim: int = 5):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        some = rng.permutation(rows)[:7].astype(np.int64)
        yield some, rng.standard_normal((some.size, dim)).astype(np.float32)


def start(rows: int = 20, dim: int = 5) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((rows, dim))


@for_each("dim", [1, 8, 12, 64, 200])
def test_the_mean_of_a_rows_squares_is_right_at_any_length(dim):
    rule = rule_of(ROW_SPECS["rowwise_adagrad with options"])
    kernels = [make_row_kernel(rule, dim, backend) for backend in BACKENDS]
    one, other = (Table(kernel, start(dim=dim)) for kernel in kernels)
    for rows, grads in batches(dim=dim):
        for table in (one, other):
            table.update(rows, grads)
    assert np.allclose(one.row_slots[0], other.row_slots[0], rtol=1e-6, atol=0.0)
    assert np.allclose(one.values, other.values, rtol=2e-6, atol=2e-6)


@for_each("step_counts", ["rows", "table"])
@for_each("name", SOME)
def test_the_compiled_loop_does_what_numpy_does(name, step_counts):
    kernels = [make_row_kernel(rule_of(ROW_SPECS[name]), 5, backend, step_counts) for backend in BACKENDS]
    one, other = (Table(kernel, start()) for kernel in kernels)
    for rows, grads in batches():
        for table in (one, other):
            table.update(rows, grads)
    assert np.allclose(one.values, other.values, rtol=2e-6, atol=2e-6)
    for mine, theirs in zip((*one.slots, *one.row_slots), (*other.slots, *other.row_slots), strict=True):
        assert np.allclose(mine, theirs, rtol=2e-6, atol=2e-6)
    assert (one.counts is None) == (other.counts is None)
    assert one.counts is None or np.array_equal(one.counts, other.counts)


@pytest.mark.parametrize("name", SPECS)
def test_a_row_is_updated_as_a_dense_parameter_with_as_many_updates_would_be(name):
    rule = rule_of(SPECS[name])
    table = Table(make_row_kernel(rule, 5, "numba"), start())  # below it is compared with numpy's
    dense = make_kernel(rule)
    values, numbers = start().astype(np.float32), np.zeros(20, np.int64)
    slots = [np.full(values.shape, fill, np.float32) for fill in rule.slot_fill]
    for rows, grads in batches():
        table.update(rows, grads)
        for row, grad in zip(rows.tolist(), grads, strict=True):
            numbers[row] += 1
            dense(values[row], grad, values[row], tuple(slot[row] for slot in slots), int(numbers[row]))
    assert np.allclose(table.values, values, rtol=2e-6, atol=2e-6)


@for_each("backend", BACKENDS)
@for_each(
    "name, spec, step_counts",
    [
        ("sgd", optim.sgd(0.3), "rows"),
        ("adagrad", optim.adagrad(0.2, initial_accumulator_value=0.1, eps=1e-3), "rows"),
        ("adam", optim.adam(0.02, b1=0.8, b2=0.95, eps=1e-3, eps_hat=True), "table"),
        ("rowwise_adagrad", optim.rowwise_adagrad(0.2, eps=1e-3), "rows"),
        (
            "rowwise_adagrad with options",
            optim.rowwise_adagrad(0.2, initial_accumulator_value=0.3, eps=1e-3, weight_decay=0.1),
            "rows",
        ),
    ],
)
def test_tables_become_what_pytorch_and_fbgemm_make_of_them(name, spec, step_counts, backend):
    """Over batches in which ids repeat, which are summed first, and rows that come late."""
    w0 = GOLDEN["w0"]
    table = Table(make_row_kernel(rule_of(spec), w0.shape[1], backend, step_counts), w0)
    for ids, grads, expected in zip(GOLDEN["ids"], GOLDEN["g"], GOLDEN[name], strict=True):
        rows, inverse = np.unique(ids, return_inverse=True)
        total = np.zeros((rows.size, w0.shape[1]), np.float32)
        np.add.at(total, inverse, grads)
        table.update(rows.astype(np.int64), total)
        assert np.allclose(table.values, expected, rtol=3e-6, atol=3e-6)


@for_each("backend", BACKENDS)
def test_each_row_is_clipped_by_its_own_norm(backend):
    table = Table(make_row_kernel(rule_of(optim.sgd(1.0, clip_norm=1.0)), 2, backend), np.zeros((3, 2)))
    table.update(np.array([0, 2, 1]), np.array([[3.0, 4.0], [0.3, 0.4], [3e38, 0.0]], np.float32))
    assert np.allclose(table.values, [[-0.6, -0.8], [-1.0, 0.0], [-0.3, -0.4]])


@for_each("backend", BACKENDS)
def test_a_row_makes_up_for_the_decay_that_it_has_missed(backend):
    rule = rule_of(optim.adamw(0.1, weight_decay=0.5))
    lazy, plain = (Table(make_row_kernel(rule, 2, backend), np.ones((2, 2))) for _ in range(2))
    zero = np.zeros((1, 2), np.float32)
    for _ in range(4):
        plain.update(np.array([0]), zero)
    lazy.step = 3
    lazy.update(np.array([0]), zero, missed=np.array([3], np.uint32))
    assert np.allclose(lazy.values, plain.values)
    assert lazy.values[1].tolist() == [1.0, 1.0]


@for_each("backend", BACKENDS)
def test_a_learning_rate_may_be_set_and_a_schedule_goes_by_the_table(backend):
    rule = rule_of(optim.sgd(optim.piecewise(1.0, {2: 0.1})))
    table = Table(make_row_kernel(rule, 1, backend), np.zeros((4, 1)))
    one = np.ones((1, 1), np.float32)
    for row in (0, 1, 2):
        table.update(np.array([row]), one)
    table.update(np.array([3]), one, learning_rate=7.0)
    assert np.allclose(table.values[:, 0], [-1.0, -1.0, -0.1, -7.0])


@for_each("backend", BACKENDS)
def test_frozen_rules_and_empty_batches_change_nothing(backend):
    frozen = optim.sgd(groups=[optim.group("w", frozen=True)])
    table = Table(make_row_kernel(rule_of(frozen), 1, backend), np.ones((2, 1)))
    table.update(np.array([0]), np.ones((1, 1), np.float32))
    other = Table(make_row_kernel(rule_of(optim.adam()), 1, backend), np.ones((2, 1)))
    other.update(np.empty(0, np.int64), np.empty((0, 1), np.float32))
    assert table.values.tolist() == other.values.tolist() == [[1.0], [1.0]]


@for_each("backend", BACKENDS)
def test_gradients_may_be_read_only_and_unaligned(backend):
    raw = np.frombuffer(b"x" + np.array([[1.0, 2.0]], np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    table = Table(make_row_kernel(rule_of(optim.sgd(1.0)), 2, backend), np.zeros((1, 2)))
    table.update(np.array([0]), raw.reshape(1, 2))
    assert table.values.tolist() == [[-1.0, -2.0]]


def test_only_rules_whose_numbers_change_count_updates():
    assert make_row_kernel(rule_of(optim.adam()), 4).counts
    assert not make_row_kernel(rule_of(optim.adam()), 4, step_counts="table").counts
    for spec in (optim.sgd(), optim.adagrad(), optim.sgd(momentum=0.9), optim.ftrl(), optim.rowwise_adagrad()):
        assert not make_row_kernel(rule_of(spec), 4).counts


def test_a_rule_with_one_number_a_row_is_not_for_dense_parameters():
    with pytest.raises(OptimizerError, match="so it is for tables of rows"):
        make_kernel(rule_of(optim.rowwise_adagrad()))


def test_a_rule_that_keeps_too_much_is_refused():
    class Much(type(rule_of(optim.sgd()))):
        slots = ("a",)
        row_slots = ("b",)

    assert issubclass(Much, Rule)
    with pytest.raises(OptimizerError, match="is not for tables"):
        make_row_kernel(Much(learning_rate=0.1), 4)
