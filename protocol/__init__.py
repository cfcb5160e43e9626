"""Bytes to messages and back, and which message is legal when. Pure and synchronous: no I/O, no clock, no Trio."""
