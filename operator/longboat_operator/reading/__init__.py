"""What a snapshot says: spec, status, pods and how their containers ended. Pure."""
