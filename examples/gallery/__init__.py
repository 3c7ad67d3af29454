"""Ten example programs, each with a picture of its results; docs/gallery shows them."""
