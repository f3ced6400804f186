"""Nothing beside the extension module and what it is linked with.

PyInstaller's own hook adds the C library as well: the same code again, for programs in C.
"""
