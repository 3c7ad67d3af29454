"""What the exporters to other formats share."""
