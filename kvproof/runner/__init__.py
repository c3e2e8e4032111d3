"""Runners: the processes in which connectors live, so that nothing a connector does can hurt the suite.

`host` and `forks` are this side, `forkserver` is the process that runners are forked from, `child` the loop inside a
runner, and `calls` what a runner does with its connector.
"""

from kvproof.runner.forks import ForkServer
from kvproof.runner.host import Answer, Died, Grew, Hung, Raised, Returned, Runner, verdict_of

__all__ = ["Answer", "Died", "ForkServer", "Grew", "Hung", "Raised", "Returned", "Runner", "verdict_of"]
