"""One process of a supervised run: does what its supervisor asks, and says where it is.

Started as ``python -m wanc.worker``, with its place and descriptors in the environment.
"""

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from wanc.errors import RunError, WancError
from wanc.processes.launch import Launch
from wanc.processes.marker import BEAT_SECONDS, IDLE, Marker, Patience
from wanc.processes.messages import Answer, Ask, Channel, Failed, Note
from wanc.processes.supervisor import CHANNEL, LISTENING
from wanc.processes.world import Alone, World
from wanc.progress import Silent


def main() -> NoReturn:
    """Work until the supervisor hangs up, or something fails."""
    channel = Channel(socket.socket(fileno=int(os.environ.pop(CHANNEL))))
    code = 0
    try:
        _work(channel)
    except Exception as error:
        code = getattr(error, "exit_code", WancError.exit_code)
        if not isinstance(error, WancError):
            traceback.print_exc()
        said = str(error) if isinstance(error, WancError) else f"{type(error).__name__}: {error}"
        text = said.encode(errors="backslashreplace").decode()
        channel.send(Failed(kind=type(error).__name__, message=text))
    sys.stderr.flush()
    os._exit(code)  # what libraries do at exit may wait for processes that are gone


def _work(channel: Channel) -> None:
    asks = _asks(channel)
    orders = next(asks).value
    patience = Patience(**orders["patience"])
    marker = Marker(patience, channel.send, _Notes(channel))
    threading.Thread(target=_beat, args=(marker,), daemon=True).start()
    # Frameworks are loaded from here on: signs of life come first.
    from wanc.processes.store import join
    from wanc.run.outputs import Files
    from wanc.run.patience import step_seconds
    from wanc.run.pipeline import generate, load_variant
    from wanc.run.request import LoadRequest, RunRequest, from_plain

    launch = Launch.of(os.environ)
    listening = os.environ.pop(LISTENING, None)
    world: World = Alone()
    if launch is not None:
        served = None if listening is None else int(listening)
        world = join(launch, within_seconds=patience.start_seconds, listening=served)
    loaded = load_variant(from_plain(orders["load"], LoadRequest), world, marker)
    patience.predicted = step_seconds(loaded.session.config)
    answer: Any = None
    while True:
        marker.move(IDLE)
        channel.send(Answer(value=answer))
        ask = next(asks, None)
        if ask is None:
            break
        marker.move("begin")
        request = from_plain(ask.value["run"], RunRequest)
        files = from_plain(ask.value["files"], Files)
        answer = generate(loaded, request, files, marker).to_json()
    loaded.close()
    world.close()


class _Notes(Silent):
    """Passes notes on to the supervisor, which draws progress from marks."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def note(self, text: str) -> None:
        """One line."""
        self._channel.send(Note(text=text))


def _asks(channel: Channel) -> Iterator[Ask]:
    """What the supervisor asks, until it hangs up."""
    while (messages := channel.receive()) is not None:
        yield from (message for message in messages if isinstance(message, Ask))


def _beat(marker: Marker) -> None:
    """Signs of life, until the supervisor is gone."""
    supervisor = os.getppid()
    while os.getppid() == supervisor:
        time.sleep(BEAT_SECONDS)
        marker.beat()
    os._exit(RunError.exit_code)


if __name__ == "__main__":
    main()
