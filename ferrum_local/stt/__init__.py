"""The Whisper runtime: speech to text with faster-whisper on CTranslate2."""
