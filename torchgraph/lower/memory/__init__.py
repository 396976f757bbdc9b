"""Memory planning: node order and in-place forms with the least peak, and the arena's layout.

Touches: copies of the program.
Never: a choice by the clock.
"""
