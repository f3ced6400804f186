"""Parts of scripts/soak.py: an HTTP client, the load, and what a good answer looks like."""
