"""KernelBench's problems: files of modules that are imported, searched, written anew and compared."""
