"""The llama.cpp runtime: GGUF models, continuous batching, sampling, chat templates."""
