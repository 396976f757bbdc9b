"""``session_context.GetDefaultSession()``: the session of a process, which is always open."""

from __future__ import annotations

from enum import Enum

from ....distributed.words.process import init


class Session:
    """OneFlow: ``MultiClientSession``. Of its states there is one: what it opens is there."""

    class Status(Enum):
        """OneFlow: ``MultiClientSession.Status``."""

        CREATED = 1
        INITED = 2
        CLOSED = 3

    @property
    def status(self) -> Status:
        """Always ``INITED``."""
        return self.Status.INITED

    @property
    def id(self) -> int:
        """0: there is one session."""
        return 0

    @property
    def is_running(self) -> bool:
        """True."""
        return True

    def TryInit(self) -> None:
        """Join the other processes, if that was not done before."""
        init()


_default = Session()


def default_session() -> Session:
    """The session of this process. OneFlow: ``session_context.GetDefaultSession``."""
    return _default
