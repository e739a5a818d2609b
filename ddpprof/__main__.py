"""``python -m ddpprof``."""

from ddpprof.cli import main

main()
