"""The error tree and the exit codes. Each class is raised by the packages named beside it.

WancError
├── RequestError      2  spec, run, compare, tiny, targets, signing, cli: legal for no model (4k+1)
├── RefusedError      3  spec, plan, lower, targets, cli: this model, target or fabric refuses it
├── ToolchainError    4  lower, targets: a compiler or tool is missing or failed
├── BundleError       5  bundle, signing, runtime, run, compile: damaged, unsigned, or does not fit
├── RunError          6  run, runtime, bundle, cache, compare, signing: a run or a write failed
│   ├── LostError     6  processes, runtime: another process of the run is gone
│   └── WeightsError  6  weights, run, compare: a checkpoint does not fit the bundle, or is damaged
└── RegistryError     7  registry, share: a registry cannot be reached, refuses, or answers wrongly
"""


class WancError(Exception):
    """An error that a person can act on; its text says what was seen, needed and would work."""

    exit_code = 1


class RequestError(WancError):
    """The request could be legal for no model."""

    exit_code = 2


class RefusedError(WancError):
    """The model, the target or the fabric refuses a well-formed request."""

    exit_code = 3


class ToolchainError(WancError):
    """A compiler or another tool is missing or failed."""

    exit_code = 4


class BundleError(WancError):
    """A bundle is damaged, lacks a signature that it must have, or does not fit this machine."""

    exit_code = 5


class RunError(WancError):
    """A run failed."""

    exit_code = 6


class LostError(RunError):
    """Another process, or the way to it, is gone: what follows from a failure, seldom its cause."""


class WeightsError(RunError):
    """A checkpoint is damaged, or its tensors are not those that the bundle needs."""


class RegistryError(WancError):
    """A registry cannot be reached, refuses, or answers what it should not."""

    exit_code = 7
