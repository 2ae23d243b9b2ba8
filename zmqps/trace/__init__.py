"""Where the time of a step goes: spans recorded in every process, merged on one clock.

`record` notes spans while a job runs and writes one file a process; `merge` puts the files of a
directory together; `phases` makes a table of them. Nothing of it is imported into the core: the
shells put `record.watch` around the machine and the transport they run.
"""

#: Names the directory to record into.
VARIABLE = "ZMQPS_TRACE"
