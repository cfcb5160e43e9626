"""ASGI wrappers around the application, outermost first: exchange, proxy, security, body bounds."""
