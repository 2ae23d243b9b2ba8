"""Checkpoints as files, without a cluster: written, published, found, read, checked and converted.

::

    from zmqps.checkpoint import open_checkpoint

    checkpoint = open_checkpoint("/data/run-7")      # the latest good one in it
    checkpoint.version, checkpoint.arrays()
"""

from zmqps.checkpoint.export import compact, export, export_table
from zmqps.checkpoint.find import find_job, good_ones, latest, load, look, open_checkpoint, with_advice
from zmqps.checkpoint.layout import ShardLayout
from zmqps.checkpoint.manifest import CONSISTENT, PER_SLICE, FileFact, Manifest, Owner
from zmqps.checkpoint.owners import Claim
from zmqps.checkpoint.publish import Entry, Save, clean, entries, job_directory, prune
from zmqps.checkpoint.reader import Checkpoint, Restored, Restorer, ShardState
from zmqps.checkpoint.remote import storage_of
from zmqps.checkpoint.storage import LocalStorage, Storage
from zmqps.checkpoint.table_file import read_table
from zmqps.checkpoint.torch_state import export_torch, from_torch, torch_state
from zmqps.checkpoint.writer import ShardWriter

__all__ = [
    "CONSISTENT",
    "PER_SLICE",
    "Checkpoint",
    "Claim",
    "Entry",
    "FileFact",
    "LocalStorage",
    "Manifest",
    "Owner",
    "Restored",
    "Restorer",
    "Save",
    "ShardLayout",
    "ShardState",
    "ShardWriter",
    "Storage",
    "clean",
    "compact",
    "entries",
    "export",
    "export_table",
    "export_torch",
    "find_job",
    "from_torch",
    "good_ones",
    "job_directory",
    "latest",
    "load",
    "look",
    "open_checkpoint",
    "prune",
    "read_table",
    "storage_of",
    "torch_state",
    "with_advice",
]
