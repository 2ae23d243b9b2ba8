"""The digits network cut in two: each replica is two processes, and each of them holds one layer.

python examples/model_parallel.py --replicas 2 starts a cluster, the processes, and compares with the uncut network.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile

import numpy as np

import zmqps
from zmqps import pipeline

try:
    from examples import digits
except ImportError:  # run as a script: its own folder is on the path
    import digits

LEARNING_RATE = 0.1


def batches(num_examples, args):
    """Yield the batch of every step, of which each replica takes its part: the same in all processes."""
    size = args.batch * args.replicas
    for number in range(args.passes):
        order = np.random.default_rng(number).permutation(num_examples)
        for start in range(0, num_examples - size + 1, size):
            yield order[start : start + size]


def first_stage(worker, channel, x, y, mine):
    """Hold the hidden layer: its activations go down the channel, their gradients come back."""
    for batch in mine:
        params = worker.pull(["w1", "b1"])
        hidden = np.maximum(x[batch] @ params["w1"] + params["b1"], 0)
        channel.send({"hidden": hidden})
        d_hidden = channel.receive()["hidden"] * (hidden > 0)
        worker.push({"w1": x[batch].T @ d_hidden, "b1": d_hidden.sum(0)}, examples=len(batch))
        worker.advance()  # a push of some parameters does not complete the step by itself


def second_stage(worker, channel, x, y, mine):
    """Hold the output layer, and know the digits."""
    for batch in mine:
        params = worker.pull(["w2", "b2"])
        hidden = channel.receive()["hidden"]
        scores = hidden @ params["w2"] + params["b2"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = odds / odds.sum(axis=1, keepdims=True)
        d_scores = (probability - np.eye(10, dtype=np.float32)[y[batch]]) / len(batch)
        channel.send({"hidden": d_scores @ params["w2"].T})
        worker.push({"w2": hidden.T @ d_scores, "b2": d_scores.sum(0)}, examples=len(batch))
        worker.advance()


def uncut(x, y, args):
    """Train the same network in one process, with plain SGD on the whole batch of every step."""
    params = digits.initial_params()
    for batch in batches(len(y), args):
        for name, gradient in digits.loss_and_gradients(params, x[batch], y[batch])[1].items():
            params[name] = params[name] - np.float32(LEARNING_RATE) * gradient
    return params


def run_stage(args):
    x, _, y, _ = digits.load_data()
    mine = [np.array_split(batch, args.replicas)[args.replica] for batch in batches(len(y), args)]
    stage, end = (first_stage, pipeline.bind) if args.stage == "first" else (second_stage, pipeline.connect)
    with (
        zmqps.connect(args.coordinator, timeout=60) as worker,
        end(args.channel, name=f"{args.stage} of replica {args.replica}", codec=args.codec) as channel,
    ):
        worker.init(digits.initial_params(), optimizer=zmqps.optim.sgd(LEARNING_RATE), mode="sync")
        stage(worker, channel, x, y, mine)
        worker.barrier("trained", timeout=60)  # all have brought their last step
        worker.finish()


def run_all(args):
    """Start a cluster and all stages, then compare what they have trained with the uncut network."""
    with (
        tempfile.TemporaryDirectory(prefix="zmqps-") as folder,
        zmqps.LocalCluster(servers=2, workers=2 * args.replicas) as cluster,
        zmqps.connect(cluster.address, observer=True) as observer,
    ):
        common = [sys.executable, __file__, "--coordinator", cluster.address, *sys.argv[1:]]
        env = {**os.environ, "ZMQPS_CHANNEL_SECRET": secrets.token_hex(16)}  # known to the stages only
        ends = [(replica, stage) for replica in range(args.replicas) for stage in ("first", "second")]
        stages = [
            subprocess.Popen([*common, f"--replica={r}", f"--stage={s}", f"--channel=ipc://{folder}/{r}"], env=env)
            for r, s in ends
        ]
        x, x_test, y, y_test = digits.load_data()
        steps = sum(1 for _ in batches(len(y), args))
        if any([stage.wait() for stage in stages]):
            sys.exit("a stage failed")
        params = observer.pull(at_least=steps)  # the cluster continues while an observer is connected
        reference = uncut(x, y, args)
    difference = max(float(np.abs(params[name] - reference[name]).max()) for name in reference)
    accuracy = digits.accuracy(params, x_test, y_test)
    print(json.dumps({"steps": steps, "accuracy": round(accuracy, 4), "largest_difference": difference}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a digit classifier whose layers are in different processes.")
    parser.add_argument("--replicas", type=int, default=2, help="copies of the model, two processes each")
    parser.add_argument("--passes", type=int, default=10, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step and replica")
    parser.add_argument("--codec", default="raw", help="of the activations: one for values, such as bf16")
    parser.add_argument("--coordinator", metavar="ADDRESS", help="by default a cluster is started, and all stages")
    parser.add_argument("--replica", type=int, default=0, help="which copy this process is a part of")
    parser.add_argument("--stage", choices=["first", "second"], help="which part")
    parser.add_argument("--channel", metavar="ENDPOINT", help="where its two stages meet: ipc://PATH, tcp://HOST:PORT")
    options = parser.parse_args()
    run_stage(options) if options.stage else run_all(options)
