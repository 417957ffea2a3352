"""Keeps the last installation that was healthy, and the one before it, so that either can be brought back.

Below ``<prefix>/lib/.deployctl`` there are up to two folders, ``good`` and ``previous``. Each holds the program, its
libraries (hard links: they cost no room while they are installed), the files with the settings, and ``meta.json``. The
libraries are only ever replaced, never written into, so a link keeps what it linked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil

MARKER = ".deployctl.json"  # what the role's installation noted of itself, in lib/ollama
GOOD, PREVIOUS = "good", "previous"


class History:
    """The kept installations of one prefix; ``settings`` are the files that belong to one besides the program."""

    def __init__(self, prefix, settings):
        self.prefix = prefix
        self.settings = settings
        self.home = os.path.join(prefix, "lib", ".deployctl")

    def kept(self, which):
        """Return the meta data of a kept installation, or None."""
        try:
            with open(os.path.join(self.home, which, "meta.json"), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def current(self):
        """Say what is installed: version and checksum where we noted them, and an identity of all of it; or None."""
        if not os.path.isfile(self._program()):
            return None
        note = _read(os.path.join(self._library(), MARKER))
        digest = hashlib.sha256(note)
        if not note:  # not installed by us: its size and time have to do
            status = os.stat(self._program())
            digest.update(b"%d %d" % (status.st_size, int(status.st_mtime)))
        for path in self.settings:
            digest.update(b"\0" + _read(path))
        try:
            said = json.loads(note.decode("utf-8")) if note else {}
        except ValueError:
            said = {}
        return {"id": digest.hexdigest(), "version": said.get("version", ""), "sha256": said.get("sha256", "")}

    def keep(self):
        """Keep what is installed as the good one; what was good becomes the previous one. Says whether that is new."""
        now, good = self.current(), self.kept(GOOD)
        if now is None or (good and good["id"] == now["id"]):
            return False
        new = os.path.join(self.home, "new")
        shutil.rmtree(new, ignore_errors=True)
        os.makedirs(new, mode=0o755)
        self._copy_to(new, now)
        if good:
            self._move(GOOD, PREVIOUS)
        os.rename(new, os.path.join(self.home, GOOD))
        return True

    def adopt(self):
        """Before the first change, keep what somebody else has installed."""
        if self.kept(GOOD) is None:
            self.keep()

    def restore(self, which):
        """Bring a kept installation back, program and settings; says whether anything differed. No restart."""
        folder = os.path.join(self.home, which)
        meta = self.kept(which)
        if meta is None:
            raise LookupError("no %s installation is kept in %s" % (which, self.home))
        now = self.current()
        if now and now["id"] == meta["id"]:
            return False
        fresh = os.path.join(self.home, "restoring")
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(fresh)
        if os.path.isdir(os.path.join(folder, "lib")):
            _link_tree(os.path.join(folder, "lib"), os.path.join(fresh, "lib"))
        shutil.copy2(os.path.join(folder, "program"), os.path.join(fresh, "program"))
        os.chmod(os.path.join(fresh, "program"), 0o755)
        shutil.rmtree(self._library(), ignore_errors=True)
        os.makedirs(os.path.dirname(self._program()), exist_ok=True)
        os.replace(os.path.join(fresh, "program"), self._program())
        # Last, because the note in it says what is installed: cut off before, it is all done again.
        if os.path.isdir(os.path.join(fresh, "lib")):
            os.rename(os.path.join(fresh, "lib"), self._library())
        shutil.rmtree(fresh, ignore_errors=True)
        for number, path in enumerate(self.settings):
            kept = os.path.join(folder, "settings%d" % number)
            if os.path.exists(kept):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                shutil.copy2(kept, path + ".new")
                os.replace(path + ".new", path)
            elif os.path.exists(path):
                os.unlink(path)
        return True

    def back(self):
        """Bring the previous installation back and keep what was good in its place, so that it can be undone."""
        changed = self.restore(PREVIOUS)
        self._move(GOOD, "other")
        self._move(PREVIOUS, GOOD)
        self._move("other", PREVIOUS)
        return changed

    def remove(self):
        """Forget everything; says whether there was anything."""
        there = os.path.isdir(self.home)
        shutil.rmtree(self.home, ignore_errors=True)
        return there

    def _program(self):
        return os.path.join(self.prefix, "bin", "ollama")

    def _library(self):
        return os.path.join(self.prefix, "lib", "ollama")

    def _copy_to(self, folder, meta):
        # The program is copied: an administrator may overwrite it in place, and that must not reach the kept one.
        shutil.copy2(self._program(), os.path.join(folder, "program"))
        if os.path.isdir(self._library()):
            _link_tree(self._library(), os.path.join(folder, "lib"))
        for number, path in enumerate(self.settings):
            if os.path.isfile(path):
                shutil.copy2(path, os.path.join(folder, "settings%d" % number))
        with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
            json.dump(meta, file)

    def _move(self, old, new):
        shutil.rmtree(os.path.join(self.home, new), ignore_errors=True)
        os.rename(os.path.join(self.home, old), os.path.join(self.home, new))


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _link_tree(source, target):
    shutil.copytree(source, target, symlinks=True, copy_function=_link)


def _link(source, target):
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another filesystem, or links are forbidden
        shutil.copy2(source, target, follow_symlinks=False)
