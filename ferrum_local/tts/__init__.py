"""The Piper runtime: text to speech, clause by clause."""
