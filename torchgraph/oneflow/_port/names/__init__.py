"""The table of OneFlow's names: CSV files, and their one reader.

Touches: its CSV files, the import of what they name.
Never: a guess.
"""

from .table import Name as Name, namespaces as namespaces, not_ported as not_ported, table as table
