"""``ferrum-local bench``: how fast this machine is, in half a minute.

``targets`` are what is measured (engines in this process, or a server), ``measures`` what is
asked of them, ``command`` is the flags and the table. For careful numbers and comparisons there
are the scripts that docs/benchmarks.md describes.
"""
