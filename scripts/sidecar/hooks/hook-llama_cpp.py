"""llama.cpp's libraries, which llama_cpp opens by name from the ``lib`` beside it.

A wheel has each three times (.so, .so.0, .so.0.5.0), as it cannot hold links. The first is what is
opened and the second what the others ask for, which PyInstaller finds; the third nobody does.
"""

import re

from PyInstaller.utils.hooks import collect_dynamic_libs

_FULL_VERSION = re.compile(r"\.so(\.\d+){2,}$|(\.\d+){2,}\.dylib$")

binaries = [
    (source, target)
    for source, target in collect_dynamic_libs("llama_cpp")
    if not _FULL_VERSION.search(source)
]
