"""Engines that find what they are told, small runs made with them, edits of their files, and GPUs that are none.

Tests of whole runs use them: tests/run, tests/check, tests/revalidate, tests/report, tests/device, tests/cli.
"""
