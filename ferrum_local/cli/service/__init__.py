"""``ferrum-local service``: have the system start the server when you log in.

``units`` writes what systemd and launchd read, ``managers`` talks to them, ``command`` is the
flags.
"""
