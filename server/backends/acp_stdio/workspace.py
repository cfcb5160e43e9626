"""Files of one workspace, for an agent that asks its client for them: inside, regular, bounded, or refused.

Every path is walked from the workspace's root by directory descriptors that follow no link, after links have been resolved
and found to stay inside. A link swapped in between is an error, not an escape.
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from server.backends.acp_stdio.messages import INVALID_PARAMS, RESOURCE_NOT_FOUND

__all__ = ["FILE_LIMIT", "MethodError", "Workspace"]

FILE_LIMIT: Final = 32 * 2**20
"""Bytes a file may have that is read or written for an agent: half of what one line can carry."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MethodError(Exception):
    """The agent's request is answered with this JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Workspace:
    """The directory tree one session may touch. Methods block: call them in a thread."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)

    @property
    def root(self) -> str:
        return self._root

    def resolve(self, path: str) -> str:
        """The path relative to the root, links resolved. Raises `MethodError` for what lies outside."""
        if "\0" in path or not os.path.isabs(path):
            raise MethodError(INVALID_PARAMS, "path must be absolute", {"path": path})
        found = os.path.realpath(path)
        relative = os.path.relpath(found, self._root)
        if relative == os.pardir or relative.startswith(os.pardir + os.sep):
            data = {"path": path, "errorKind": "path_outside_workspace"}
            raise MethodError(INVALID_PARAMS, f"path is outside the workspace: {path}", data)
        return relative

    def read_text(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The file's text, or ``limit`` lines of it from ``line`` (counted from 1). Bytes that are no UTF-8: U+FFFD."""
        try:
            text = self._read(self.resolve(path), path).decode("utf-8", "replace")
        except OSError as error:
            raise _as_method_error(error, path) from error
        if line is None and limit is None:
            return text
        start = max(0, (line or 1) - 1)
        # Only LF ends a line here too: an editor counts so, and so does the agent.
        lines = text.split("\n")
        if limit is not None and limit < 0:
            raise MethodError(INVALID_PARAMS, "limit must not be negative", {"path": path})
        if limit is None:
            return "\n".join(lines[start:])
        chosen = lines[start : start + limit]
        return "\n".join(chosen) + ("\n" if chosen and start + limit < len(lines) else "")

    def write_text(self, path: str, content: str) -> None:
        """Replace or create the file whole: readers see the old text or the new one. Missing directories are made."""
        data = content.encode("utf-8", "replace")
        if len(data) > FILE_LIMIT:
            raise MethodError(INVALID_PARAMS, f"content exceeds {FILE_LIMIT} bytes", {"path": path})
        try:
            self._write(self.resolve(path), data)
        except OSError as error:
            raise _as_method_error(error, path) from error

    def _read(self, relative: str, path: str) -> bytes:
        parent, name = self._open_parent(relative, create=False)
        try:
            # Non-blocking: opening a pipe nobody writes to would hang the thread.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise MethodError(INVALID_PARAMS, f"not a regular file: {path}", {"path": path})
            # Not before it is known what this is: for a directory fdopen raises, and leaves the descriptor to its caller.
            with os.fdopen(file, "rb", closefd=False) as opened:
                data = opened.read(FILE_LIMIT + 1)
        finally:
            os.close(file)
        if len(data) > FILE_LIMIT:
            message = f"file has {status.st_size} bytes, more than {FILE_LIMIT}"
            raise MethodError(INVALID_PARAMS, message, {"path": path})
        return data

    def _write(self, relative: str, data: bytes) -> None:
        parent, name = self._open_parent(relative, create=True)
        try:
            mode = self._mode_of(name, parent)
            # Nothing of the name in it: that may be as long as a name can be.
            temporary = f".{uuid.uuid4().hex}.tmp"
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=parent)
            try:
                with os.fdopen(file, "wb") as opened:
                    if mode is not None:
                        os.fchmod(opened.fileno(), mode)
                    opened.write(data)
                os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
        finally:
            os.close(parent)

    def _mode_of(self, name: str, parent: int) -> int | None:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise MethodError(INVALID_PARAMS, f"not a regular file: {name}")
        return stat.S_IMODE(status.st_mode)

    def _open_parent(self, relative: str, *, create: bool) -> tuple[int, str]:
        *folders, name = Path(relative).parts or ("",)
        if not name:
            raise MethodError(INVALID_PARAMS, "path names the workspace itself")
        directory = os.open(self._root, _DIRECTORY)
        for folder in folders:
            try:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=directory)
                deeper = os.open(folder, _DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = deeper
        return directory, name


def _as_method_error(error: OSError, path: str) -> MethodError:
    data = {"path": path, "details": error.strerror}
    if isinstance(error, FileNotFoundError):
        return MethodError(RESOURCE_NOT_FOUND, f"Resource not found: {path}", data)
    return MethodError(INVALID_PARAMS, f"{error.strerror}: {path}", data)
