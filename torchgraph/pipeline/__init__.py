"""Pipeline stages: a program cut at its stages, run by torch's own schedules.

Touches: programs, to cut them; torch.distributed.pipelining.
Never: the user's code, which has run.
"""
