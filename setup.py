"""The compiled parts; everything else about the package is in pyproject.toml."""

from build_extensions import BuildExtensions, extensions
from setuptools import setup

found = extensions()
setup(
    ext_modules=found,
    cmdclass={"build_ext": BuildExtensions},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if found else {},
)
