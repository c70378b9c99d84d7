"""Searches of an optimized module that continue after ``optimize`` has returned, and the exchange of its plan.

Takes the searches of a module that its time limit has ended. Returns better plans for later calls. Imports api, cache,
frontend, graph, run, support, torch.comparison and torch.modules.
"""
