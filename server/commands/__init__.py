"""The subcommands of ``moorline``, one module each."""
