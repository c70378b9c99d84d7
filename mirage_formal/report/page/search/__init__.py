"""Page sections on a search: units, pruning, the roofline, and searches for a whole program's subgraphs.

Takes the searched units of a report's model. Returns HTML sections. Imports graph, records, report, report.page and
support.
"""
