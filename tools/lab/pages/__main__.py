"""Writes the pages and charts of docs/reports anew from the numbers in docs/reports/data, without
measurements.

Usage: python -m jax2tf.tools.lab.pages
"""

from jax2tf.tools.lab import pages

if __name__ == "__main__":
  pages.write()
