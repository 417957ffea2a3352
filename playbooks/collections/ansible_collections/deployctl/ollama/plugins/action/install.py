"""The controller's side of deployctl.ollama.install: uploads a local archive, only when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.deployctl.ollama.plugins.plugin_utils import transfer

MODULE = "deployctl.ollama.install"


class ActionModule(ActionBase):
    """Verify here, ask there, send what is missing, install."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = {key: value for key, value in self._task.args.items() if value not in (None, "")}
        if arguments.get("state", "present") == "present" and arguments.get("archive"):
            archive = Path(arguments["archive"]).expanduser()
            digest = transfer.sha256(archive)
            wanted = arguments.get("sha256", digest)
            if digest != wanted.lower():
                raise AnsibleActionFail(
                    f"checksum of {archive} is wrong: expected sha256 {wanted}, got {digest}; the host was not touched"
                )
            arguments["sha256"] = digest
            if not self._task.check_mode:
                found = self._execute_module(
                    module_name=MODULE, module_args={**arguments, "query": True}, task_vars=variables
                )
                if found.get("failed"):
                    return {**result, **found}
                if found["installed"] == {"version": arguments.get("version"), "sha256": digest}:
                    return {**result, **found}
                arguments["uploaded"] = transfer.push(self, archive, digest)
        return {**result, **transfer.watched(self, MODULE, arguments, variables)}
