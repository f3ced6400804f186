"""Say what the installed llama.cpp was built with, and prove that it can decode.

Run in a process of its own (a build that does not fit the CPU dies by a signal):
``python scripts/check_llama.py [MODEL.gguf]`` prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys

N_PREFILL_TOKENS = 64  # enough for the matrix kernels that a single token does not reach


def backends(libggml: ctypes.CDLL) -> list[str]:
    """Names of the backends in ggml's registry, for example ``["CUDA", "CPU"]``."""
    libggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    libggml.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_reg_get.restype = ctypes.c_void_p
    reg_name = libggml.ggml_backend_reg_name
    reg_name.argtypes = [ctypes.c_void_p]
    reg_name.restype = ctypes.c_char_p
    count = libggml.ggml_backend_reg_count()
    return [reg_name(libggml.ggml_backend_reg_get(i)).decode() for i in range(count)]


def devices(libggml: ctypes.CDLL) -> list[str]:
    """The devices that those backends found, as ``"CUDA0: NVIDIA H200"``."""
    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        function = getattr(libggml, name)
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_char_p
    found = []
    for i in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(i)
        name = libggml.ggml_backend_dev_name(device).decode(errors="replace")
        what = libggml.ggml_backend_dev_description(device).decode(errors="replace")
        found.append(f"{name}: {what}")
    return found


def decode(model_path: str) -> int:
    """Prefill a few tokens and take one decode step; the number of tokens evaluated.

    :raises RuntimeError: when llama.cpp refuses the model, the context or the batch.
    """
    import llama_cpp as lib

    model = lib.llama_model_load_from_file(model_path.encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {model_path}")
    params = lib.llama_context_default_params()
    params.n_ctx = 4 * N_PREFILL_TOKENS
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context")
    evaluated = 0
    for tokens in (range(100, 100 + N_PREFILL_TOKENS), range(100, 101)):
        array = (lib.llama_token * len(tokens))(*tokens)
        code = lib.llama_decode(context, lib.llama_batch_get_one(array, len(tokens)))
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        evaluated += len(tokens)
    lib.llama_synchronize(context)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return evaluated


def main() -> None:
    import llama_cpp as lib
    from llama_cpp._ggml import libggml

    quiet = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    report = {
        "version": lib.__version__,
        "backends": backends(libggml),
        "devices": devices(libggml),
        "system_info": lib.llama_print_system_info().decode(errors="replace"),
        "gpu_offload": bool(lib.llama_supports_gpu_offload()),
        "tokens_decoded": decode(sys.argv[1]) if len(sys.argv) > 1 else 0,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
