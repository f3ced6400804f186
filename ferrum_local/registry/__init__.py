"""Which models lie in the directories: found, read from their headers, named. Nothing is loaded."""
