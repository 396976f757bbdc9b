"""Stands in for flowvision where documents import it: its names, with little behind them."""

from . import datasets as datasets, models as models, transforms as transforms
