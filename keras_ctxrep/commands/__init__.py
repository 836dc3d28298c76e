"""The subcommands of `ctxrep`: flags, one call, what is printed."""
