"""Recognise what people take for a model file by mistake."""

from __future__ import annotations

from pathlib import Path

_TORCH_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04")


def what_it_seems(head: bytes, path: str) -> str:
    """`` (…)`` with what the first bytes look like, or nothing."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    guess = ""
    if head.startswith(b"version https://git-lfs"):
        guess = "a Git LFS pointer: run `git lfs pull` to fetch the real file"
    elif text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        guess = "a web page: the download link did not lead to the file itself"
    elif head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:
        guess = "a safetensors file: convert it with llama.cpp's convert_hf_to_gguf.py"
    elif head.startswith(b"PK\x03\x04"):
        guess = "a zip archive or PyTorch checkpoint: unpack or convert it"
    elif head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        guess = "an old GGML file, from before GGUF: get a newer conversion of the model"
    elif head.startswith(b"\x1f\x8b"):
        guess = "gzip-compressed: unpack it"
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        guess = "zstd-compressed: unpack it"
    elif head.startswith(_TORCH_PICKLES):
        guess = "a PyTorch checkpoint: convert it with llama.cpp's convert_hf_to_gguf.py"
    elif text.startswith((b"{", b"[")):
        guess = "a JSON file"
    elif not head.strip(b"\0"):
        guess = "zeros: an unfinished download"
    elif Path(path).suffix.lower() == ".onnx":
        guess = "an ONNX model"
    return f"; it seems to be {guess}" if guess else ""
