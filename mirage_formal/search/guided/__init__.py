"""Guided search: closures of index-aware classes over symbolic extents, then extraction and instantiation."""
