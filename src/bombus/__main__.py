"""`python -m bombus` is `bombus`."""

from bombus.cli import main

main()
