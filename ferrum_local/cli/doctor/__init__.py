"""``ferrum-local doctor``: is everything here that a server needs, and does it work.

``checks`` looks at the machine and the installation, ``models`` has each model answer.
What could end the process runs in a child (``child``, and ``probes`` inside it).
"""
