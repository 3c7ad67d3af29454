"""From a converted function to a file: SavedModel, and what reads one."""
