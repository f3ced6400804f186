"""The llama.cpp runtime: GGUF models, continuous batching, sampling, chat templates."""

from __future__ import annotations

import os

# libgomp's threads spin for long between the hundreds of barriers of one decode step. That is
# fastest on an idle machine, but beside any other busy process a step then takes 10 to 50 times
# as long (78 ms against 4,100 ms measured). A short spin keeps nearly all of the speed. It is
# read when libgomp is loaded, so it has to be set before the first import of llama_cpp.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
