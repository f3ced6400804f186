"""Routes in OpenAI's shapes: one blueprint per part of the API."""

from __future__ import annotations
