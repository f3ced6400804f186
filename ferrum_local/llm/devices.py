"""What ggml can compute on: the backends built in and the devices they found."""

from __future__ import annotations

import ctypes
import functools

import llama_cpp
from llama_cpp import _ggml
from llama_cpp._ctypes_extensions import load_shared_library

# ggml_backend_dev_type: 0 CPU, 1 GPU, 2 integrated GPU, 3 accelerator (e.g. BLAS).
_GPU_TYPES = (1, 2)


@functools.lru_cache(maxsize=1)
def devices() -> tuple[tuple[str, str, int], ...]:
    """(name, description, type) of every device, in ggml's order."""
    registry = _ggml.libggml
    registry.ggml_backend_dev_count.restype = ctypes.c_size_t
    registry.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    registry.ggml_backend_dev_get.restype = ctypes.c_void_p
    # The getters live in ggml-base; only ELF and Mach-O find them through libggml.
    base = load_shared_library("ggml-base", _ggml.libggml_base_path)
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        getattr(base, name).argtypes = [ctypes.c_void_p]
        getattr(base, name).restype = ctypes.c_char_p
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_type.restype = ctypes.c_int
    found = []
    for i in range(registry.ggml_backend_dev_count()):
        device = registry.ggml_backend_dev_get(i)
        found.append(
            (
                base.ggml_backend_dev_name(device).decode(errors="replace"),
                base.ggml_backend_dev_description(device).decode(errors="replace"),
                base.ggml_backend_dev_type(device),
            )
        )
    return tuple(found)


def gpu_devices() -> tuple[str, ...]:
    """Names of the GPUs that layers can be put on; empty for a CPU build."""
    if not llama_cpp.llama_supports_gpu_offload():
        return ()
    return tuple(f"{name} ({text})" for name, text, kind in devices() if kind in _GPU_TYPES)


def version() -> str:
    """Of the Python package, which names the llama.cpp in it."""
    return str(llama_cpp.__version__)


def cpu_features() -> tuple[str, ...]:
    """The instruction sets that the CPU backend uses, by llama.cpp's names, as ``AVX2``; with them
    a few features of its build (``OPENMP``)."""
    info = llama_cpp.llama_print_system_info().decode(errors="replace")
    enabled = [part for part in info.split("|") if part.strip().endswith("= 1")]
    return tuple(part.split("=")[0].split(":")[-1].strip() for part in enabled)


def backend_summary() -> str:
    """One line for people: devices and the CPU features llama.cpp was compiled with."""
    names = ", ".join(f"{name} ({text.strip()})" for name, text, _ in devices())
    return f"{names}; {' '.join(cpu_features())}"
