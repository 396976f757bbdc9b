"""Private names of torch.distributed, loaded when they are first used.

Touches: torch.distributed past its public interface.
Never: a process group that is made or destroyed here.
"""
