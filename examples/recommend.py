"""Train a recommender whose embeddings are sparse tables: `make up` first, then this in as many terminals as you like.

Two models. `movies` factorises the ratings of MovieLens-100K: a row of factors and a bias for each user and each movie,
and a mean. `clicks` predicts clicks from eight ids, each of a billion possible ones, and some numbers: a network over
the rows of the ids, on data that it makes up itself. `--alone` trains the same in one process, without zmqps.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
from scipy.special import expit

import zmqps

MODES = {"sync": None, "async": None, "bounded": 3}  # name -> staleness
#: Where the ratings are: a package on PyPI carries them. GroupLens allows research with them, neither selling them nor
#: passing them on without permission; see its README.
PACKAGE, MEMBER = "recbole==1.2.1", "recbole/dataset_example/ml-100k/ml-100k.inter"
SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
#: Of a model of factors and biases, on the split below.
WANTED_RMSE = 0.93
TERMS = "MovieLens-100K by GroupLens, University of Minnesota: for research, not to be sold or passed on"


def ratings(folder):
    """Return the path of the ratings, downloaded at first."""
    path = Path(folder) / Path(MEMBER).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = sorted(path.parent.glob("recbole-*.whl"))
        if done.returncode or not wheels:
            sys.exit(
                f"{PACKAGE}, which has the ratings of MovieLens-100K, could not be downloaded: put its file {MEMBER} "
                f"at {path}, or train the other model (--model clicks)\n{done.stderr.strip()[-500:]}"
            )
        with zipfile.ZipFile(wheels[-1]) as wheel:
            data = wheel.read(MEMBER)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(data)
        os.replace(unfinished, path)
        wheels[-1].unlink()
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{path} has other ratings than those of {PACKAGE}: remove it, and it is downloaded again")
    return path


class Movies:
    """A rating is mean + bias of the user + bias of the movie + product of their factors."""

    metric, better = "RMSE", min
    passes, batch = 15, 128
    dim, rate, scale = 32, 0.1, 0.1
    decay = np.r_[np.full(dim, 0.1), 0.02].astype("f4")  # of factors, and of the bias

    def __init__(self, args):
        table = np.loadtxt(args.data or ratings(args.folder), skiprows=1)
        ids, stars = table[:, :2].astype(np.int64), table[:, 2].astype("f4")
        order = np.random.default_rng(0).permutation(len(stars))
        test, train = order[: len(order) // 10], order[len(order) // 10 :]
        self.train, self.test = (ids[train], stars[train]), (ids[test], stars[test])
        self.fields = {"users": self.dim + 1, "movies": self.dim + 1}
        self.num_train = len(train)

    def params(self):
        return {"mean": np.float32([3.5])}

    optimizer = zmqps.optim.sgd(0.05)

    def ids(self, which):
        """Return the ids of some examples, by table."""
        return {"users": self.train[0][which, 0], "movies": self.train[0][which, 1]}

    def predict(self, params, rows):
        user, movie = rows["users"], rows["movies"]
        return params["mean"] + user[:, -1] + movie[:, -1] + (user[:, :-1] * movie[:, :-1]).sum(1)

    def gradients(self, params, rows, which):
        """Return the loss, and the gradients of parameters and of the rows of each example."""
        error = (self.predict(params, rows) - self.train[1][which])[:, None]
        ones = np.ones_like(error)
        by_rows = {}
        for name, other in (("users", rows["movies"]), ("movies", rows["users"])):
            by_rows[name] = error * np.hstack([other[:, :-1], ones]) + self.decay * rows[name]
        return float((error**2).mean()), {"mean": error.mean(0)}, by_rows

    def measure(self, params, read):
        ids, stars = self.test
        rows = {"users": read("users", ids[:, 0]), "movies": read("movies", ids[:, 1])}
        return float(np.sqrt(((np.clip(self.predict(params, rows), 1, 5) - stars) ** 2).mean()))


class Clicks:
    """Predicts a click: a network over the rows of eight ids and four numbers."""

    metric, better = "AUC", max
    passes, batch = 2, 256
    num_fields, num_ids, num_numbers, hidden = 8, 1_000_000_000, 4, 32
    dim, rate, scale = 8, 0.1, 0.05

    def __init__(self, args):
        rng = np.random.default_rng(1)
        number = args.examples + args.examples // 10
        ranks = rng.zipf(1.2, (number, self.num_fields)).astype(np.uint64)
        ids = (ranks * np.uint64(2654435761) % np.uint64(self.num_ids)).astype(np.int64)
        numbers = rng.normal(size=(number, self.num_numbers)).astype("f4")
        # each id draws to a click, or keeps from it, by a number that its bits decide
        draws = np.sin(ids * 12.9898 + np.arange(self.num_fields)) * 43758.5453 % 1
        score = (3 * draws - 1.5).sum(1) + numbers @ np.float32([0.5, -0.5, 0.3, 0]) - 0.5
        clicked = rng.random(number) < expit(score)
        cut = args.examples
        self.train = ids[:cut], numbers[:cut], clicked[:cut].astype("f4")
        self.test = ids[cut:], numbers[cut:], clicked[cut:]
        self.fields = {f"field{number}": self.dim for number in range(self.num_fields)}
        self.num_train = cut

    def params(self):
        rng, width = np.random.default_rng(0), self.num_fields * self.dim + self.num_numbers
        first = rng.normal(0, width**-0.5, (width, self.hidden)).astype("f4")
        last = rng.normal(0, self.hidden**-0.5, self.hidden).astype("f4")
        return {"w1": first, "b1": np.zeros(self.hidden, "f4"), "w2": last, "b2": np.zeros(1, "f4")}

    optimizer = zmqps.optim.adagrad(0.05)

    def ids(self, which):
        return {name: self.train[0][which, number] for number, name in enumerate(self.fields)}

    def forward(self, params, rows, numbers):
        inputs = np.hstack([*rows.values(), numbers])
        hidden = np.maximum(inputs @ params["w1"] + params["b1"], 0)
        return inputs, hidden, hidden @ params["w2"] + params["b2"]

    def gradients(self, params, rows, which):
        numbers, clicked = self.train[1][which], self.train[2][which]
        inputs, hidden, score = self.forward(params, rows, numbers)
        probability = expit(score)
        loss = -np.log(np.where(clicked > 0, probability, 1 - probability) + 1e-7).mean()
        d_score = (probability - clicked) / len(clicked)
        d_hidden = np.outer(d_score, params["w2"]) * (hidden > 0)
        d_inputs = d_hidden @ params["w1"].T
        found = {"w1": inputs.T @ d_hidden, "b1": d_hidden.sum(0), "w2": hidden.T @ d_score, "b2": d_score.sum()[None]}
        pieces = np.split(d_inputs[:, : self.num_fields * self.dim], self.num_fields, axis=1)
        return float(loss), found, dict(zip(rows, map(np.ascontiguousarray, pieces), strict=True))

    def measure(self, params, read):
        ids, numbers, clicked = self.test
        rows = {name: read(name, ids[:, number]) for number, name in enumerate(self.fields)}
        ranks, positive = 1 + self.forward(params, rows, numbers)[2].argsort().argsort(), int(clicked.sum())
        return float((ranks[clicked].sum() - positive * (positive + 1) / 2) / (positive * (len(clicked) - positive)))


MODELS = {"movies": Movies, "clicks": Clicks}


def batches(model, args, rank, size):
    """Return the examples of each step of a worker, over all passes."""
    found = []
    for number in range(args.passes or model.passes):
        order = np.random.default_rng(number).permutation(model.num_train)  # the same on every worker
        per_step = [order[at : at + args.batch] for at in range(0, len(order) - args.batch + 1, args.batch)]
        per_step = per_step[: len(per_step) // size * size]  # as many for each
        found += per_step[rank::size]
    return found


def train(worker, model, args):
    """Train as one of some workers; return the loss of each step, and when it was."""
    options = {"optimizer": zmqps.optim.rowwise_adagrad(model.rate), "initial": zmqps.initial.normal(model.scale)}
    tables = {name: zmqps.table(dim, **options) for name, dim in model.fields.items()}
    bound = args.staleness if args.mode == "bounded" else None
    worker.init(model.params(), optimizer=model.optimizer, tables=tables, mode=args.mode, staleness=bound)
    cache = None
    if args.cache:  # hot rows that this worker has, and gradients of them that it keeps for some steps
        cache = zmqps.row_cache(args.cache, staleness=args.cache_staleness, defer=args.mode == "async", read_own=False)
    tables = {name: worker.table(name, cache=cache) for name in tables}
    steps, curve = batches(model, args, worker.rank, args.share), []
    params, ids = worker.pull(), model.ids(steps[0])
    rows = {name: table.pull(ids[name]) for name, table in tables.items()}
    for which, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        loss, gradients, by_rows = model.gradients(params, rows, which)
        worker.log({"loss": loss}, step=len(curve))
        curve.append((time.time(), loss))
        now, ids = ids, model.ids(following)
        if args.mode == "async":  # what comes next travels with what goes
            coming = {n: t.push_pull_async(now[n], by_rows[n], ids[n]) for n, t in tables.items()}
            params = worker.push_pull(gradients)
        else:  # rows first: the push of the parameters ends the step, and the next rows are those after it
            sent = [table.push_async(now[name], by_rows[name]) for name, table in tables.items()]
            pushed = worker.push_pull_async(gradients)
            coming = {name: table.pull_async(ids[name]) for name, table in tables.items()}
            params = pushed.result()
            for future in sent:
                future.result()
        rows = {name: future.result() for name, future in coming.items()}
    for table in tables.values():
        table.flush()
    return curve


class LocalTable:
    """A table without servers: row-wise Adagrad in numpy, for ids that are known beforehand."""

    def __init__(self, ids, dim, rate, scale):
        self.ids, self.rate = np.unique(ids), rate
        self.values = np.random.default_rng(0).normal(0, scale, (len(self.ids), dim)).astype("f4")
        self.sums = np.zeros(len(self.ids), "f4")

    def pull(self, ids):
        return self.values[np.searchsorted(self.ids, ids)]

    def push(self, ids, gradients):
        rows, places = np.unique(np.searchsorted(self.ids, ids), return_inverse=True)
        total = np.zeros((len(rows), gradients.shape[1]), "f4")
        np.add.at(total, places, gradients)
        self.sums[rows] += (total**2).mean(1)
        self.values[rows] -= self.rate * total / (np.sqrt(self.sums[rows]) + 1e-8)[:, None]


def train_alone(model, args):
    """Train in one process; return what is measured in the end."""
    tables, params = {}, model.params()
    for number, (name, dim) in enumerate(model.fields.items()):
        seen = np.concatenate([model.train[0][:, number], model.test[0][:, number]])
        tables[name] = LocalTable(seen, dim, model.rate, model.scale)
    sums = {name: np.zeros_like(value) for name, value in params.items()}
    for which in batches(model, args, 0, 1):
        ids = model.ids(which)
        _, gradients, by_rows = model.gradients(params, {n: t.pull(ids[n]) for n, t in tables.items()}, which)
        for name, gradient in gradients.items():  # sgd for one, Adagrad for the other
            sums[name] += gradient**2
            rate = 0.05 / (np.sqrt(sums[name]) + 1e-10) if isinstance(model, Clicks) else 0.05
            params[name] = params[name] - rate * gradient
        for name, table in tables.items():
            table.push(ids[name], by_rows[name])
    return model.measure(params, lambda name, ids: tables[name].pull(ids))


def parser():
    found = argparse.ArgumentParser(description="Train a recommender, together with all other runs of this script.")
    found.add_argument("--model", choices=MODELS, default="movies", help="default: movies")
    found.add_argument("--coordinator", default=os.environ.get("ZMQPS_COORDINATOR", "tcp://127.0.0.1:5570"))
    found.add_argument("--passes", type=int, help="passes over the training data (default: movies 15, clicks 2)")
    found.add_argument("--batch", type=int, help="examples per step (default: movies 128, clicks 256)")
    found.add_argument("--mode", choices=MODES, default="sync", help="how workers keep step")
    found.add_argument("--staleness", type=int, default=MODES["bounded"], help="bounded: how many steps to be ahead")
    found.add_argument("--share", type=int, default=1, help="how many workers share the batches")
    found.add_argument("--cache", type=int, default=0, help="rows of each table that a worker keeps (default: 0)")
    found.add_argument("--cache-staleness", type=int, help="for how many steps (default: what the mode allows, or 8)")
    found.add_argument("--examples", type=int, default=200_000, help="clicks: examples to train with")
    found.add_argument("--data", metavar="FILE", help="movies: ratings in the form of ml-100k.inter")
    found.add_argument("--folder", default=".zmqps/data", help="where ratings are downloaded to (default: .zmqps/data)")
    found.add_argument("--report", metavar="FILE", default=os.devnull, help="for losses and statistics, in JSON")
    found.add_argument("--alone", action="store_true", help="in this process, without a cluster")
    return found


def main():
    args = parser().parse_args()
    model = MODELS[args.model](args)
    args.batch = args.batch or model.batch
    if args.alone:
        began, found = time.time(), train_alone(model, args)
        print(f"one process: {model.metric} {found:.4f} after {time.time() - began:.1f} s")
        report = {"measured": found, "seconds": time.time() - began}
    else:
        with zmqps.connect(args.coordinator, timeout=60) as worker:
            curve = train(worker, model, args)
            report = {"rank": worker.rank, "curve": curve, **dataclasses.asdict(worker.statistics())}
            worker.finish()  # when all have, the job ends
    Path(args.report).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
