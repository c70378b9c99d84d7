"""Search pipeline, from a program to verified candidates and their evidence."""
