"""Train on handwritten digits on Dask: nodes of zmqps next to its workers, training in its tasks.

`python deploy/dask/digits.py` starts a Dask on this host; with an address it takes the one there.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster, WorkerPlugin
from distributed.comm import get_address_host

import zmqps
from zmqps.core.protocol.endpoints import is_loopback
from zmqps.launch.config import ClusterConfig
from zmqps.launch.far import FILES
from zmqps.launch.handout import FOR_NODES, key_files
from zmqps.launch.keeper import HOST, Keeper, Order


class Node(WorkerPlugin):
    """Runs a node of zmqps next to some of Dask's workers, and restarts it when it fails."""

    def __init__(self, orders):
        self.orders = orders

    async def setup(self, worker):
        self.keeper = None
        if order := self.orders.get(worker.nanny or worker.address):
            self.keeper = Keeper(order.settings["name"], get_address_host(worker.address))
            self.running = asyncio.create_task(self.keeper.run(order))

    async def teardown(self, worker):
        if self.keeper is not None:
            await self.keeper.stop()
            await self.running


async def ask(what, *arguments, dask_worker):
    """Ask the keeper of the coordinator."""
    return await getattr(dask_worker.plugins["coordinator"].keeper, what)(*arguments)


def train(number, num_workers, address, token):
    """Be one of the workers; the same as in examples/digits.py, which the client has uploaded."""
    import digits

    x, x_test, y, y_test = digits.load_data()
    try:
        with zmqps.connect(
            address, security=zmqps.Security(token=token), name=f"worker-{number}", timeout=60
        ) as worker:
            worker.init(digits.initial_params(), optimizer=zmqps.optim.adam(2e-3), mode="async", workers=num_workers)
            for turn in range(30):
                order = np.random.default_rng(turn).permutation(len(y))
                for batch in np.array_split(order, len(y) // 16)[worker.rank :: worker.num_workers]:
                    worker.push(digits.loss_and_gradients(worker.pull(), x[batch], y[batch])[1])
            reached = digits.accuracy(worker.pull(), x_test, y_test)
            worker.finish()
            return worker.rank, reached
    except zmqps.errors.PeerLostError:
        time.sleep(12.0)  # a retry can begin the job again once it has ended: once killed tasks are missed, too
        raise


def main(client, servers=2, workers=4):
    found = client.scheduler_info(n_workers=-1)["workers"]
    hosts = sorted(found)
    stays = [found[host]["nanny"] or host for host in hosts]  # a worker that its nanny restarts has another address
    keys, files, more = None, {}, {}
    if not all(is_loopback(get_address_host(host)) for host in hosts):
        with tempfile.TemporaryDirectory() as folder:
            keys, files = zmqps.keys.create(folder), key_files(Path(folder), has_nodes=True)
        more = {"keys": f"{FILES}/{FOR_NODES}"}
    config = ClusterConfig(servers=servers, address=f"tcp://{HOST}:0")

    order = Order(role="coordinator", settings=config.for_coordinator().document() | more, files=files)
    client.register_plugin(Node({stays[0]: order}), "coordinator")
    (answer,) = client.run(ask, "address", workers=hosts[:1]).values()
    address = answer["address"]  # where there is none, it says what kept the coordinator from starting
    token = keys and keys.token("worker", keys.pair("worker"), address)

    orders = {}
    for index, host in enumerate(stays[:servers]):
        settings = config.for_server(index, address, bind=f"tcp://{HOST}:0").document() | more
        orders[host] = Order(role="server", settings=settings, address=address, files=files, restarts=3)
    client.register_plugin(Node(orders), "servers")
    client.run(ask, "status", 60.0, servers, workers=hosts[:1])

    client.upload_file("examples/digits.py")
    facts = {"num_workers": workers, "address": address, "token": token, "pure": False, "retries": 2}
    places = [hosts[number % len(hosts)] for number in range(workers)]  # or Dask may run some after the others
    tasks = [client.submit(train, n, workers=[h], allow_other_workers=True, **facts) for n, h in enumerate(places)]
    for rank, reached in client.gather(tasks):
        print(f"worker {rank}: test accuracy {reached:.3f}")
    client.unregister_worker_plugin("coordinator")
    client.unregister_worker_plugin("servers")


if __name__ == "__main__":
    if sys.argv[1:]:
        with Client(sys.argv[1]) as client:
            main(client)
    else:
        with LocalCluster(n_workers=4, threads_per_worker=1) as cluster, Client(cluster) as client:
            main(client)
