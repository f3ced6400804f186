"""The library that onnxruntime looks for when it is imported, and nothing else beside its module.

PyInstaller's own hook adds the C library as well: the same code again, for programs in C.
"""

from PyInstaller.utils.hooks import collect_dynamic_libs

binaries = [pair for pair in collect_dynamic_libs("onnxruntime") if "providers_shared" in pair[0]]
