"""The HTTP layer: Flask routes over an engine. ``create_app`` is its way in."""

from __future__ import annotations
