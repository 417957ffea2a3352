#!/usr/bin/python
"""Makes a model available on the host's Ollama: nothing, an import of a GGUF file, or a pull."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model
short_description: Make a model available on Ollama
description:
  - Does nothing when the model is there. Otherwise imports I(gguf) through the server's API, or pulls I(name).
  - Free space is checked first. A cut pull goes on where it stopped when it is repeated.
options:
  name: {description: The model as C(name:tag)., type: str, required: true}
  url: {description: Where the host's Ollama answers., type: str, default: "http://127.0.0.1:11434"}
  gguf: {description: "Weights on the controller; uploaded, resuming what an earlier run has sent.", type: path}
  digest: {description: "sha256 of I(gguf); without I(gguf), of the manifest that the model must have.", type: str}
  models_dir: {description: Where the server keeps models; for the space check., type: path}
  insecure: {description: Pull over plain HTTP (a mirror on a private network)., type: bool, default: false}
  uploaded: {description: Internal. The weights on the host., type: path}
  query: {description: Internal. Only tell what is there., type: bool, default: false}
  bytes: {description: Internal. Size of I(gguf)., type: int}
  progress: {description: Internal. File for the progress., type: path}
attributes:
  check_mode: {support: full}
"""

EXAMPLES = r"""
- deployctl.ollama.model:
    name: llama3.1:8b
"""

RETURN = r"""
model: {description: "Name, digest and bytes as the server lists them.", type: dict, returned: when present}
kind: {description: "C(model_unavailable), or C(pull_broken) for one to repeat.", type: str, returned: on failure}
"""

import http.client
import json
import os
import urllib.parse

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.deployctl.ollama.plugins.module_utils import health, lifeline
from ansible_collections.deployctl.ollama.plugins.module_utils.progress import Progress

BLOCK = 1 << 20
# A server may fetch from a slow registry; it says something every 60 ms while it does.
SILENCE_S = 600


class Unavailable(Exception):
    """The model cannot be had."""

    kind = "model_unavailable"


class Refused(Unavailable):
    """We do not want it: no room, or another model than the pinned one."""


class Broken(Unavailable):
    """The pull broke off; what has come so far is kept, and a repeated one goes on from there."""

    kind = "pull_broken"


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "url": {"type": "str", "default": "http://127.0.0.1:11434"},
            "gguf": {"type": "path"},
            "digest": {"type": "str"},
            "models_dir": {"type": "path"},
            "insecure": {"type": "bool", "default": False},
            "uploaded": {"type": "path"},
            "query": {"type": "bool", "default": False},
            "bytes": {"type": "int"},
            "progress": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    name = full_name(wanted["name"])
    try:
        found = listed(wanted["url"], name)
        satisfied = found is not None and matches(wanted, found)
    except health.NoAnswer as error:
        if module.check_mode:
            module.exit_json(changed=True, model={}, satisfied=False, diff=difference({}, name))
        module.fail_json(msg="no Ollama answers at %s: %s" % (wanted["url"], error))
    if satisfied or wanted["query"]:
        blob = bool(wanted["gguf"]) and has_blob(wanted["url"], bare(wanted["digest"]))
        if wanted["bytes"] and not satisfied and not blob:
            try:  # before gigabytes are sent
                room(wanted, name, wanted["bytes"])
            except Unavailable as error:
                module.fail_json(msg=str(error), kind="model_unavailable")
        module.exit_json(changed=False, model=found or {}, satisfied=satisfied, blob=blob)
    if module.check_mode:
        module.exit_json(changed=True, model=found or {}, satisfied=False, diff=difference(found, name))
    lifeline.watch()
    progress = Progress(wanted["progress"])
    try:
        if wanted["gguf"]:
            create(wanted, name, progress)
        else:
            pull(wanted, name, progress)
        now = listed(wanted["url"], name)
    except Unavailable as error:
        module.fail_json(msg=str(error), kind=error.kind)
    except (OSError, http.client.HTTPException, health.NoAnswer) as error:
        module.fail_json(msg="Ollama at %s broke off: %s" % (wanted["url"], error or type(error).__name__))
    finally:
        progress.close()
    if now is None:
        module.fail_json(msg="%s is not listed after the server reported success" % name, kind="model_unavailable")
    if not matches(wanted, now):
        module.fail_json(
            msg="%s has another digest than the pinned one: %s, not %s"
            % (name, bare(now["digest"]), bare(wanted["digest"])),
            kind="model_unavailable",
        )
    module.exit_json(changed=True, model=now, satisfied=True, diff=difference(found, name))


def difference(found, name):
    return {"before": "%s\n" % found["name"] if found else "", "after": "%s\n" % name}


def full_name(name):
    """Add the tag that Ollama would: ``latest``."""
    return name if ":" in name.rsplit("/", 1)[-1] else name + ":latest"


def listed(url, name):
    for model in health.get(url + "/api/tags", timeout=30).get("models") or []:
        if full_name(model.get("name", "")).lower() == name.lower():
            return {"name": model["name"], "digest": model.get("digest", ""), "bytes": model.get("size", 0)}
    return None


def matches(wanted, found):
    """Say whether the listed model is the wanted one: made of the same weights, or of the same manifest."""
    digest = bare(wanted["digest"])
    if not digest:
        return True
    if wanted["gguf"]:
        return has_blob(wanted["url"], digest)
    return bare(found["digest"]) == digest


def bare(digest):
    return (digest or "").rpartition(":")[2].lower()


def connection(url):
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=SILENCE_S)


def has_blob(url, digest):
    link = connection(url)
    try:
        link.request("HEAD", "/api/blobs/sha256:" + digest)
        return link.getresponse().status == 200
    except (OSError, http.client.HTTPException) as error:
        raise health.NoAnswer(str(error))
    finally:
        link.close()


def stream(url, path, body):
    """POST ``body`` and yield the JSON documents of the answer; raises Unavailable for an error in it."""
    link = connection(url)
    try:
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = link.getresponse()
        if answer.status != 200:
            raise Unavailable(said(answer.read(), answer.status))
        for line in answer:
            if not line.strip():
                continue
            document = json.loads(line.decode("utf-8"))
            if "error" in document:
                raise Unavailable(document["error"])
            yield document
    finally:
        link.close()


def said(body, status):
    try:
        return json.loads(body.decode("utf-8"))["error"]
    except (ValueError, KeyError, TypeError):
        return "HTTP %d: %s" % (status, body.decode("utf-8", "replace").strip()[:300])


def pull(wanted, name, progress):
    done = {}
    totals = {}
    finished = False
    try:
        for document in stream(wanted["url"], "/api/pull", {"model": name, "insecure": wanted["insecure"]}):
            digest = document.get("digest")
            if digest and document.get("total"):
                if digest not in totals:
                    totals[digest] = document["total"]
                    room(wanted, name, sum(totals.values()) - sum(done.values()) - document.get("completed", 0))
                done[digest] = document.get("completed", 0)
                progress.say("pulling " + name, sum(done.values()), sum(totals.values()))
            finished = document.get("status") == "success"
    except Unavailable as error:
        if "file does not exist" in str(error) or "not found" in str(error):
            raise Unavailable("the registry has no model %s (%s)" % (name, error))
        if isinstance(error, Refused):
            raise
        raise Broken("the pull of %s broke off: %s" % (name, error))
    if not finished:
        raise Broken("the pull of %s ended before it was complete" % name)


def room(wanted, name, need):
    folder = wanted["models_dir"] or "/"
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    usage = os.statvfs(folder)
    free = usage.f_bavail * usage.f_frsize
    if need > free:
        raise Refused(
            "%s does not fit on the disk: %d MiB are needed, %d MiB are free in %s"
            % (name, need >> 20, free >> 20, folder)
        )


def create(wanted, name, progress):
    path = wanted["uploaded"]
    digest = bare(wanted["digest"])
    if not has_blob(wanted["url"], digest):
        size = os.path.getsize(path)
        room(wanted, name, size)
        send_blob(wanted["url"], path, digest, size, progress)
    base = os.path.basename(wanted["gguf"])
    finished = False
    try:
        for document in stream(wanted["url"], "/api/create", {"model": name, "files": {base: "sha256:" + digest}}):
            finished = document.get("status") == "success"
    except Unavailable as error:
        raise Unavailable("the server cannot make %s of %s: %s" % (name, base, error))
    if not finished:
        raise Unavailable("the import of %s ended before it was complete" % name)
    if path:
        os.unlink(path)


def send_blob(url, path, digest, size, progress):
    def blocks():
        done = 0
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                done += len(block)
                progress.say("importing the weights", done, size)
                yield block

    link = connection(url)
    try:
        link.request("POST", "/api/blobs/sha256:" + digest, blocks(), {"Content-Length": str(size)})
        answer = link.getresponse()
        body = answer.read()
    finally:
        link.close()
    if answer.status not in (200, 201):  # the server verifies the digest
        why = said(body, answer.status)
        if "digest" in why:
            os.unlink(path)  # the next run sends everything anew
        raise Unavailable("the server refuses the weights: %s" % why)


if __name__ == "__main__":
    main()
