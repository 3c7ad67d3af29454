"""The command, the servers, and what maintainers run."""
