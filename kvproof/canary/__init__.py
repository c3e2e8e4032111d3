"""The canary: an engine's start, or any command, watched with its whole process tree until it serves or fails."""
