"""`python -m soapstone`."""

from .cli import run

run()
