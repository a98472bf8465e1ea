"""How every op is split and where its parts run; the file."""

from .configuration import Configuration
from .file import arguments_in
from .measured import Measured
from .strategy import Strategy

__all__ = ["Configuration", "Measured", "Strategy", "arguments_in"]
