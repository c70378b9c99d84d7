"""From a program to verified candidates and their evidence: who asks for what, in which order, and where it is kept."""
