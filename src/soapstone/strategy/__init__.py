"""How every op is split and where its parts run; the file."""

from .configuration import SHARDS, Configuration, Native
from .file import arguments_in
from .measured import Measured
from .strategy import Strategy

__all__ = ["SHARDS", "Configuration", "Measured", "Native", "Strategy", "arguments_in"]
