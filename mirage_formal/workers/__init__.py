"""Tasks on worker processes, of this machine or of a dask cluster."""
