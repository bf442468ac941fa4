"""Files of lines as they grow: each complete line with the time at which it came."""

import ctypes
import os
import select
import struct
import threading
import time

_MODIFY, _MOVED_TO, _CREATE, _CLOEXEC = 0x2, 0x80, 0x100, 0o2000000
_libc = ctypes.CDLL(None, use_errno=True)


class LineWatch:
    """Watches files in folders that exist. A thread of its own stamps the lines; `on_line(name,
    line, at)` is called on it. A file that is replaced (an atomic rewrite) is read again from its
    beginning: its lines come again."""

    def __init__(self, paths, on_line):
        self._on_line = on_line
        self._paths = {os.path.abspath(path) for path in paths}
        self._place = {}  # path -> (inode, offset, rest of a line)
        self._fd = _libc.inotify_init1(_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders = {}
        for folder in {os.path.dirname(path) for path in self._paths}:
            watch = _libc.inotify_add_watch(self._fd, folder.encode(), _MODIFY | _MOVED_TO | _CREATE)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
            self._folders[watch] = folder
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self):
        """The last lines are read; afterwards none comes any more."""
        os.close(self._stop_writer)
        self._thread.join()
        for path in self._paths:
            self._read(path, time.monotonic())
        os.close(self._fd)
        os.close(self._stop_reader)

    def _follow(self):
        while True:
            ready, _, _ = select.select([self._fd, self._stop_reader], [], [])
            at = time.monotonic()
            if self._fd in ready:
                for path in self._changed():
                    self._read(path, at)
            elif self._stop_reader in ready:
                return

    def _changed(self):
        data = os.read(self._fd, 1 << 16)
        changed, offset = [], 0
        while offset < len(data):
            watch, _, _, length = struct.unpack_from("iIII", data, offset)
            name = data[offset + 16 : offset + 16 + length].rstrip(b"\0").decode()
            path = os.path.join(self._folders.get(watch, ""), name)
            if path in self._paths and path not in changed:
                changed.append(path)
            offset += 16 + length
        return changed

    def _read(self, path, at):
        try:
            with open(path, "rb") as file:
                inode, size = os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_size
                known, offset, rest = self._place.get(path, (inode, 0, b""))
                if known != inode or size < offset:
                    offset, rest = 0, b""
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return
        *lines, rest_now = (rest + data).split(b"\n")
        self._place[path] = (inode, offset + len(data), rest_now)
        for line in lines:
            self._on_line(os.path.basename(path), line.decode(errors="replace"), at)
