"""The Whisper runtime: speech to text with faster-whisper on CTranslate2."""

from __future__ import annotations

import os

# CTranslate2 brings a libgomp of its own. See ferrum_local.llm for why it should spin briefly.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
