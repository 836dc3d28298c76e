"""The command `ctxrep`."""
