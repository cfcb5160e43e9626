"""The connection machine in layers: each adds the messages of one concern to the one below."""
