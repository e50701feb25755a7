"""Every rule about a job's life, each in a module of its own. Pure."""
