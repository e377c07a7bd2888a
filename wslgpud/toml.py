"""The standard library's reader of TOML, or before Python 3.11 the package that it came from."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
