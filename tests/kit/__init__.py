"""What several folders of tests share: samples of cases, processes, reports, and packages of programs, graphs and runs.

A helper that one folder alone needs stands in that folder, beside its tests.
"""
