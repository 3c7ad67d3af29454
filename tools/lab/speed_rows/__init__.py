"""How fast converted functions are: the sections of docs/reports/speed.md."""

SECTIONS = ("models", "functions", "rules", "saving")
