"""Access to the API server: static resource paths, plain dicts, typed errors."""
