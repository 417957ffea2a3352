"""The controller's side of deployctl.ollama.model: uploads local weights, only when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.deployctl.ollama.plugins.plugin_utils import transfer

MODULE = "deployctl.ollama.model"


class ActionModule(ActionBase):
    """Ask there, send what is missing, import or pull."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = {key: value for key, value in self._task.args.items() if value not in (None, "")}
        if arguments.get("gguf"):
            weights = Path(arguments["gguf"]).expanduser()
            if not weights.is_file():
                raise AnsibleActionFail(f"there is no weights file {weights}")
            arguments["digest"] = (arguments.get("digest") or transfer.sha256(weights)).rpartition(":")[2].lower()
            if not self._task.check_mode:
                asked = {**arguments, "query": True, "bytes": weights.stat().st_size}
                found = self._execute_module(module_name=MODULE, module_args=asked, task_vars=variables)
                if found.get("failed") or found.get("satisfied"):
                    return {**result, **found}
                if not found["blob"]:
                    arguments["uploaded"] = transfer.push(self, weights, arguments["digest"])
        return {**result, **transfer.watched(self, MODULE, arguments, variables)}
