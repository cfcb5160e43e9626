"""What a session is, whatever the wire."""
