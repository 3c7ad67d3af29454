"""The command, the servers, and the tools of maintainers."""
