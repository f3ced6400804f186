"""The facade that the HTTP layer talks to; it owns runtimes, queues and threads."""
