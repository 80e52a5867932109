"""Files that appear whole: what several threads must not do to each other."""

import os
import threading

from wanc.files import write_whole


def test_threads_that_write_leave_the_umask_as_it_was(tmp_path, monkeypatch):
    before, original = os.umask(0o027), os.umask

    def slowly(mask):
        old = original(mask)
        if not mask:
            threading.Event().wait(0.02)
        return old

    monkeypatch.setattr(os, "umask", slowly)
    try:
        paths = [tmp_path / str(number) for number in range(4)]
        threads = [threading.Thread(target=write_whole, args=(path, b"x")) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o640] * 4
    finally:
        assert original(before) == 0o027
