"""Semantic search over a folder of text files, for ``ferrum-local search``.

Nothing here knows how vectors are made: an :class:`ferrum_local.search.folder.Embedder` is given.
"""
