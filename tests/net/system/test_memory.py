"""What is asked of malloc."""

import resource
import subprocess
import sys

import pytest

from tests.pace import allow
from zmqps.net.system.memory import Reserve, keep_freed_memory

#: Allocates and frees eight megabytes again and again, as ZeroMQ does with what it receives; prints the page faults.
LOOP = """
import ctypes, resource
from zmqps.net.system.memory import keep_freed_memory
assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def again(count):
    for _ in range(count):
        blocks = [libc.malloc(ctypes.c_size_t(2 << 20)) for _ in range(4)]
        for block in blocks:
            libc.memset(ctypes.c_void_p(block), 1, ctypes.c_size_t(2 << 20))
            libc.free(ctypes.c_void_p(block))
again(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
again(20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("not glibc")
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, check=True, timeout=allow(60))
    pages = 20 * 4 * (2 << 20) // resource.getpagesize()
    assert int(done.stdout) < pages / 50


#: Frees 200 MB in the middle of the heap and says so; prints by how much the memory of the process shrank each time.
GIVEN_BACK = """
import numpy as np, psutil
from zmqps.net.system.memory import FreedMemory, keep_freed_memory
assert keep_freed_memory()
rss = lambda: psutil.Process().memory_info().rss
blocks, between = [], []
for _ in range(50):
    blocks.append(np.ones(1 << 20, np.float32))
    between.append(bytes(1 << 20))  # as large as no hole that there may be below
before = rss()
blocks.clear()
kept = before - rss()
FreedMemory().add(50 * (4 << 20))
print(kept, before - rss())
"""


def test_memory_freed_for_good_goes_back_to_the_system() -> None:
    if not keep_freed_memory():
        pytest.skip("not glibc")
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, check=True, timeout=allow(60))
    kept, given_back = map(int, done.stdout.split())
    assert kept < 20e6, "malloc keeps it"
    assert given_back > 190e6


#: A thread allocates and frees eight megabytes, as ZeroMQ's do; prints what the process keeps of them, then after
#: another time while it is to let go.
OF_A_THREAD = """
import ctypes, threading
import psutil
from zmqps.net.system.memory import give_back_freed_memory, keep_freed_memory, let_freed_memory_go
assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size = ctypes.c_size_t(8 << 20)
rss = lambda: psutil.Process().memory_info().rss
def again():
    block = ctypes.c_void_p(libc.malloc(size))
    libc.memset(block, 1, size)
    libc.free(block)
def work():
    give_back_freed_memory()  # what the imports have left behind
    again()
    before = rss()
    give_back_freed_memory()
    kept = before - rss()
    let_freed_memory_go()
    again()
    print(kept, before - rss())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_threads_freed_memory_goes_back_to_the_system_while_it_is_to() -> None:
    if not keep_freed_memory():
        pytest.skip("not glibc")
    done = subprocess.run([sys.executable, "-c", OF_A_THREAD], capture_output=True, check=True, timeout=allow(60))
    kept, given_back = map(int, done.stdout.split())
    assert kept < 1 << 20, "or the system does it now, and this needs no more"
    assert given_back > 7 << 20


#: Makes 60,000 lists of a message again and again, in another thread; prints the memory of the process.
OF_OBJECTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import msgpack, psutil
from zmqps.net.system.memory import FreedObjects, keep_freed_memory
keep_freed_memory()
pack = msgpack.packb
specs = [[[f"{i:07d}", [], "float32"] for i in range(60_000)], [["w", [8], "float32"]] * 60_000]
specs += [{f"{i:06x}": 0 for i in range(60_000)}, [0] * (1 << 20)]
messages = [pack(spec) for spec in specs]
del specs
freed = FreedObjects()
with freed.reading(1 << 20):
    pass
print(psutil.Process().memory_info().rss)
def work(message):
    with freed.reading(len(message)):
        made = msgpack.unpackb(message)
        made = [tuple(one) if isinstance(one, list) else (one,) for one in made]
        del made
with ThreadPoolExecutor(1) as pool:
    for turn in range(8):
        list(pool.map(work, messages))
        print(psutil.Process().memory_info().rss)
"""


@pytest.mark.repeats
def test_objects_made_of_large_messages_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", OF_OBJECTS], capture_output=True, check=True, timeout=allow(60))
    sizes = [*map(int, done.stdout.split())]
    assert max(sizes) < sizes[0] + (8 << 20)


def test_the_reserve_is_given_once_and_set_aside_again() -> None:
    reserve = Reserve()
    assert reserve.give()
    assert not reserve.give(), "it is in use"
    assert reserve.take()
    assert reserve.take(), "it is there"
    assert reserve.give()


IN_NEED = """
import resource
import psutil
from zmqps.net.system.memory import RESERVE_NBYTES, Reserve
reserve = Reserve()
held = []
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
try:
    while True:
        held.append(bytearray(1 << 20))
except MemoryError:
    reserve.give()
more = [bytearray(1 << 20) for _ in range(RESERVE_NBYTES // (2 << 20))]
print(reserve.take())
"""


def test_where_there_is_no_memory_the_reserve_is_some() -> None:
    done = subprocess.run([sys.executable, "-c", IN_NEED], capture_output=True, check=True, timeout=allow(60))
    assert done.stdout.split() == [b"False"], "nor can it be set aside while it is needed"
