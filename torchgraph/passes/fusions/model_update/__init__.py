"""An optimizer's step for one parameter or for all: one call of its rule's op."""
