"""Table of the reference system's Python interface, with the support for each name.

Takes a name of the reference system's interface. Returns its support here, and the error or warning of its use.
Imports frontend and support.
"""
