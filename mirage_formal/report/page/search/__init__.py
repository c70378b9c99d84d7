"""How a search went, on the page: units, what was pruned, the roofline, searches of a whole program's parts."""
