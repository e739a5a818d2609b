"""Report → numbers. No torch, no plots, no printing.

``load.read`` makes a Trace of any report, ``job.analyze`` an Analysis of a job's traces.
"""
