"""Which order and which in-place forms have the least peak; where results lie.

Touches: copies of the program.
Never: a choice by the clock.
"""
