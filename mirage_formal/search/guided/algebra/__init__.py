"""The algebra of guided search: parts of axes, masks, normal forms, containment.

Takes expressions over parts of axes. Returns their normal forms, and which contains which. Imports graph and logic.
"""
