"""PNG figures, drawn with matplotlib, and the style of all figures."""
