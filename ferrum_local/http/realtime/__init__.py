"""``/v1/realtime``: OpenAI's Realtime protocol over WebSocket, all of it answered here."""
