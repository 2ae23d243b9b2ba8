"""Where the time of a step goes: spans that the nodes of a running cluster record, on one clock.

`switch` lets a node record: `watched` replaces its machine and transport meanwhile, `doors` its
kernels and codecs, and `ring` holds the spans. `live` makes one trace of what was fetched, `merge` is its file;
`phases`, `pushes` and `bounds` say what is in it. Nothing of it is imported into the core.
"""
