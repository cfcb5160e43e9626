"""The outside: sockets, HTTP, processes, configuration."""
