"""The parts of ``scripts/bench_llm.py``."""
