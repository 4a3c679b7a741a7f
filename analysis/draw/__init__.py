"""Figures of the report, each drawn once by matplotlib: inline SVG of the page, PNG file, notebook.

A drawing function takes numbers and gives a `matplotlib.figure.Figure`. Colours are names of
`analysis.draw.style.COLOURS`; `svg.inline` makes them variables of the page's style sheet, so that a figure
follows the light or dark mode of its reader.
"""
