"""`python -m soapstone`."""

from .cli import main

main()
