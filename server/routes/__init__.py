"""HTTP and WebSocket routes. Each package has ``blueprint(ground)``; `server.app` mounts those that exist."""
