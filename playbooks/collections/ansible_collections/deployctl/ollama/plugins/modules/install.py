#!/usr/bin/python
"""Installs an archive in Ollama's release layout below a prefix, whole or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: install
short_description: Install Ollama from a release archive
description:
  - Unpacks C(bin/ollama) and C(lib/ollama) of a C(.tar.zst) or C(.tgz) archive below I(prefix).
  - The archive is verified, unpacked beside the old installation and tried before the old one is touched.
  - Nothing is done when the version and checksum noted at the last installation are the wanted ones.
options:
  state: {description: Whether it should be there., type: str, choices: [present, absent], default: present}
  prefix: {description: Where C(bin) and C(lib) are., type: path, default: /usr/local}
  version: {description: Version to note., type: str}
  archive: {description: "Archive on the controller; uploaded, resuming what an earlier run has sent.", type: path}
  url: {description: Where the host fetches the archive if none is given., type: str}
  sha256: {description: Checksum of the archive; needed with I(url)., type: str}
  settings: {description: Files with the settings; kept with what is replaced., type: list, elements: path, default: []}
  keep_dirs: {description: Keep emptied C(bin) and C(lib) when removing., type: bool, default: true}
  uploaded: {description: Internal. The archive on the host., type: path}
  query: {description: Internal. Only tell what is installed., type: bool, default: false}
  progress: {description: Internal. File for the progress., type: path}
attributes:
  check_mode: {support: full}
"""

EXAMPLES = r"""
- deployctl.ollama.install:
    version: 0.32.15
    url: https://github.com/ollama/ollama/releases/download/v0.32.15/ollama-linux-amd64.tar.zst
    sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
"""

RETURN = r"""
installed: {description: Version and sha256 that are installed now., type: dict, returned: always}
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.deployctl.ollama.plugins.module_utils import lifeline
from ansible_collections.deployctl.ollama.plugins.module_utils.history import MARKER, History
from ansible_collections.deployctl.ollama.plugins.module_utils.progress import Progress

BLOCK = 1 << 20
# Weights of libraries compress about threefold; the old installation stays until the new one is in place.
UNPACKED_FACTOR = 3


class Problem(Exception):
    """What to tell the user."""


class BadArchive(Problem):
    """The archive itself is useless: keeping what was uploaded would not help the next run."""


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "prefix": {"type": "path", "default": "/usr/local"},
            "version": {"type": "str"},
            "archive": {"type": "path"},
            "url": {"type": "str"},
            "sha256": {"type": "str"},
            "settings": {"type": "list", "elements": "path", "default": []},
            "keep_dirs": {"type": "bool", "default": True},
            "uploaded": {"type": "path"},
            "query": {"type": "bool", "default": False},
            "progress": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    found = noted(wanted["prefix"])
    if wanted["query"]:
        module.exit_json(changed=False, installed=found)
    if wanted["state"] == "absent":
        module.exit_json(changed=remove(wanted["prefix"], wanted["keep_dirs"], module.check_mode), installed={})
    target = {"version": wanted["version"], "sha256": wanted["sha256"]}
    if found == target:
        module.exit_json(changed=False, installed=found)
    if module.check_mode:
        module.exit_json(changed=True, installed=target, diff=difference(found, target))
    lifeline.watch()
    progress = Progress(wanted["progress"])
    try:
        install(wanted, target, progress)
    except (Problem, OSError) as error:
        module.fail_json(msg=str(error), installed=found)
    finally:
        progress.close()
    module.exit_json(changed=True, installed=target, diff=difference(found, target))


def difference(before, after):
    def text(state):
        return "".join("%s: %s\n" % item for item in sorted(state.items()))

    return {"before": text(before), "after": text(after)}


def library(prefix):
    return os.path.join(prefix, "lib", "ollama")


def binary(prefix):
    return os.path.join(prefix, "bin", "ollama")


def noted(prefix):
    """Return what the last installation noted, if its binary is still there."""
    try:
        with open(os.path.join(library(prefix), MARKER), encoding="utf-8") as file:
            note = json.load(file)
        return {"version": note["version"], "sha256": note["sha256"]} if os.access(binary(prefix), os.X_OK) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def install(wanted, target, progress):
    prefix = wanted["prefix"]
    for folder in ("bin", "lib"):
        os.makedirs(os.path.join(prefix, folder), mode=0o755, exist_ok=True)
    for name in os.listdir(os.path.join(prefix, "lib")):
        if name.startswith(".ollama-new-"):  # an earlier run was cut off
            shutil.rmtree(os.path.join(prefix, "lib", name), ignore_errors=True)
    staging = tempfile.mkdtemp(prefix=".ollama-new-", dir=os.path.join(prefix, "lib"))
    try:
        archive = wanted["uploaded"] or fetch(wanted["url"], staging, progress)
        verify(archive, wanted["sha256"], wanted["url"] or os.path.basename(archive))
        room(os.path.getsize(archive), staging)
        name = wanted["url"] or wanted["archive"] or archive
        unpack(archive, name, staging)
        if archive != wanted["uploaded"]:
            os.unlink(archive)
        check(staging)
        History(prefix, wanted["settings"]).adopt()
        swap(staging, prefix, target)
    except BadArchive:
        discard(wanted["uploaded"])
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    discard(wanted["uploaded"])


def discard(path):
    if path:
        os.unlink(path)


def fetch(url, staging, progress):
    if not url:
        raise Problem("neither an archive nor a URL was given")
    path = os.path.join(staging, "archive")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            room(total, staging, total)
            done = 0
            while True:
                block = answer.read(BLOCK)
                if not block:
                    break
                file.write(block)
                done += len(block)
                progress.say("downloading " + url.rsplit("/", 1)[-1], done, total or done)
    except (OSError, ValueError) as error:
        status = "HTTP %d " % error.code if hasattr(error, "code") else ""
        raise Problem("cannot fetch %s: %s%s" % (url, status, getattr(error, "reason", None) or error))
    if total and done != total:
        raise Problem("%s ended early: %d of %d bytes" % (url, done, total))
    return path


def verify(path, wanted, name):
    if not wanted:
        raise Problem("no checksum was given for %s" % name)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
    if digest.hexdigest() != wanted.lower():
        raise BadArchive(
            "checksum of %s is wrong: expected sha256 %s, got %s; the old installation was left as it was"
            % (name, wanted, digest.hexdigest())
        )


def free(path):
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


def room(size, staging, fetched=0):
    need = size * UNPACKED_FACTOR + fetched
    if free(staging) < need:
        raise Problem(
            "too little space below %s: about %d MiB are needed for the archive and what is in it, %d MiB are free"
            % (os.path.dirname(staging), need >> 20, free(staging) >> 20)
        )


def unpack(archive, name, staging):
    with open(archive, "rb") as file:
        magic = file.read(4)
    if magic == b"\x28\xb5\x2f\xfd":
        tool = ["zstd", "-dc"]
    elif magic[:2] == b"\x1f\x8b":
        tool = ["gzip", "-dc"]
    else:
        raise BadArchive("%s is neither zstd nor gzip: is it a release archive of Ollama?" % name)
    if not shutil.which(tool[0]):
        raise Problem("%s is not installed on the host, and the archive needs it" % tool[0])
    with open(archive, "rb") as file:
        first = subprocess.Popen(tool, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        second = subprocess.Popen(
            ["tar", "-xf", "-", "--no-same-owner", "-C", staging], stdin=first.stdout, stderr=subprocess.PIPE
        )
        first.stdout.close()
        try:
            complaint = second.communicate()[1] + first.communicate()[1]
        except BaseException:
            second.kill()
            first.kill()
            second.wait()
            raise
    if first.returncode or second.returncode:
        raise BadArchive("cannot unpack %s: %s" % (name, complaint.decode("utf-8", "replace").strip()[-300:]))


def check(staging):
    """Try the new binary on this host: a wrong architecture or a missing library shows before the swap."""
    program = binary(staging)
    if not os.path.isfile(program):
        raise BadArchive("the archive holds no bin/ollama: is it a release archive of Ollama?")
    os.chmod(program, 0o755)
    os.makedirs(library(staging), exist_ok=True)
    environment = dict(os.environ, OLLAMA_HOST="127.0.0.1:9", HOME=os.environ.get("HOME") or staging)
    try:
        done = subprocess.run(
            [program, "--version"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadArchive("the new ollama does not run on this host: %s" % error)
    if done.returncode:
        raise BadArchive(
            "the new ollama does not run on this host: exit status %d: %s"
            % (done.returncode, done.stdout.decode("utf-8", "replace").strip()[-300:])
        )


def swap(staging, prefix, target):
    """Put the new installation in the old one's place. The note comes last: cut off before, it is all done again."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # short enough to finish although nobody listens any more
    note = os.path.join(staging, MARKER)
    with open(note, "w", encoding="utf-8") as file:
        json.dump(target, file)
    settle(staging)
    old = os.path.join(staging, "old")
    if os.path.lexists(library(prefix)):
        os.rename(library(prefix), old)
    os.rename(library(staging), library(prefix))
    os.chmod(library(prefix), 0o755)
    # Renaming over a running program is allowed where writing into it is not (ETXTBSY).
    os.replace(binary(staging), binary(prefix))
    os.replace(note, os.path.join(library(prefix), MARKER))


def settle(folder):
    """Wait until every file is on the disk: a power cut must not leave a note of what never got there."""
    for where, _folders, names in os.walk(folder):
        for path in (os.path.join(where, name) for name in names):
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())


def remove(prefix, keep_dirs, pretend):
    there = [path for path in (binary(prefix), library(prefix)) if os.path.lexists(path)]
    if there and not pretend:
        for path in there:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
    kept = os.path.isdir(History(prefix, ()).home)
    if kept and not pretend:
        History(prefix, ()).remove()
    if not keep_dirs and not pretend:
        for folder in (os.path.join(prefix, "bin"), os.path.join(prefix, "lib"), prefix):
            try:
                os.rmdir(folder)
            except OSError:
                continue
    return bool(there or kept)


if __name__ == "__main__":
    main()
