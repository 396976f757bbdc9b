"""OFRecord files and the modules that read them: OneFlow's data pipeline.

Touches: record files, images, workers that decode ahead of the step.
Never: the program of a step; what it reads is an input of it.
"""
