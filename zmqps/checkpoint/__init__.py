"""Checkpoints as files, without a cluster: written, published, found, read, checked and converted.

::

    from zmqps.checkpoint import open_checkpoint

    checkpoint = open_checkpoint("/data/run-7")      # the latest good one in it
    checkpoint.version, checkpoint.arrays()
"""

from zmqps.checkpoint.find import find_job, good_ones, latest, open_checkpoint, with_advice
from zmqps.checkpoint.layout import ShardLayout
from zmqps.checkpoint.load import load
from zmqps.checkpoint.manifest import CONSISTENT, PER_SLICE, FileFact, Manifest
from zmqps.checkpoint.publish import Entry, Save, clean, entries, job_directory, prune
from zmqps.checkpoint.reader import Checkpoint, Restored, Restorer, ShardState
from zmqps.checkpoint.storage import LocalStorage, Storage
from zmqps.checkpoint.writer import ShardWriter

__all__ = [
    "CONSISTENT",
    "PER_SLICE",
    "Checkpoint",
    "Entry",
    "FileFact",
    "LocalStorage",
    "Manifest",
    "Restored",
    "Restorer",
    "Save",
    "ShardLayout",
    "ShardState",
    "ShardWriter",
    "Storage",
    "clean",
    "entries",
    "find_job",
    "good_ones",
    "job_directory",
    "latest",
    "load",
    "open_checkpoint",
    "prune",
    "with_advice",
]
