"""Report page: one self-contained HTML file.

Takes the model of a report. Returns one self-contained HTML file. Imports graph, records, report, report.drawing,
report.proofs and support.

The HTML is in ``templates/``; ``html.py`` `_sections` lists the sections of a page.
"""
