"""Inline SVG drawn in Python: `Plot` with axes and legend, and one module for each kind of mark.

Colours are CSS classes of the page (`report.css`), so that a figure follows the light or dark mode of its
reader. A mark with the attribute `data-k` is highlighted together with all marks of the same key.
"""
