"""The Program: one kernel as loops, copies, matrix products and barriers; and the plan it is lowered from."""
