"""Text out of a model whose manifest says how to generate it, in the form of OpenAI's API."""
