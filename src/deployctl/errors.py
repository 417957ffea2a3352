"""Every error that deployctl raises on purpose, and the exit code of each kind."""

from __future__ import annotations


class DeployctlError(Exception):
    """An expected failure: what happened, and the next thing to type.

    ``message`` says what happened and where, in one or two sentences.
    ``hint`` is the next command or edit that helps; it may be empty.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NegativeAnswer(DeployctlError):
    """The question was answered, and the answer is no."""

    exit_code = 1


class DoesNotFit(NegativeAnswer):
    """No variant of the model fits the plan."""


class UsageError(DeployctlError):
    """A command line, a name or a file that the user has to correct."""

    exit_code = 2


class CatalogError(UsageError):
    """An inventory file that cannot be read: always names the file and, where known, the line."""


class RecordError(UsageError):
    """A record that is not there, cannot be read or is of a newer schema: always names the file or the run."""


class HostError(DeployctlError):
    """The host cannot be reached, or it refused."""

    exit_code = 3


class HostUnreachable(HostError):
    """No SSH connection came about, or it broke."""


class AuthenticationFailed(HostError):
    """The host answered but accepted none of our credentials."""


class HostKeyChanged(HostError):
    """The host presents another key than the one that we know; nothing was sent."""


class HostKeyUnknown(HostError):
    """The host's key is not known and may not be accepted silently."""


class HostBusy(HostError):
    """Somebody else is at work on the host."""


class RootMissing(HostError):
    """The user who logs in cannot become root there, and the work needs it."""


class StoreUnavailable(HostError):
    """The store's database is locked, full or out of reach; the records themselves are files and are not lost."""


class ProvisionError(DeployctlError):
    """A playbook failed, or what it left does not work."""

    exit_code = 4


class ModelUnavailable(DeployctlError):
    """The model cannot be had or cannot be loaded."""

    exit_code = 5


class MeasurementError(DeployctlError):
    """The measurement is invalid, or nothing could be certified in the budget."""

    exit_code = 6


class Cancelled(DeployctlError):
    """The user interrupted the run; what was measured so far is kept."""

    exit_code = 7
