"""The llama.cpp runtime: GGUF models, continuous batching, sampling, chat templates."""

from __future__ import annotations

import os

# libgomp's threads spin for long between the hundreds of barriers of one decode step. That is
# fastest on an idle machine, but beside any other busy process a step then takes 10 to 50 times
# as long (78 ms against 4,100 ms measured). A short spin keeps nearly all of the speed.
# The policy matters once more threads than cores have computed in this process (a second model,
# or a program that loads one itself): libgomp then spins 1,000 rounds, where without it 100 make
# every barrier a sleep, and steps take twice as long. Both are read when libgomp is loaded,
# so they have to be set before the first import of llama_cpp.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("OMP_WAIT_POLICY", "active")
