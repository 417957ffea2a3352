"""The options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlanId = Annotated[str, typer.Option("--plan", help="The plan, by its id (deployctl plans).")]
ModelRef = Annotated[str, typer.Option("--model", help="The model as name:tag (deployctl models).")]
Host = Annotated[
    str | None, typer.Option("--host", help="user@address[:port], or a name of inventory/hosts.yml.", metavar="HOST")
]
KeyFile = Annotated[Path | None, typer.Option("--key", help="The private key to log in with.", dir_okay=False)]
Limit = Annotated[
    str | None,
    typer.Option(
        "--limit", help="Many hosts at once: names or globs of inventory/hosts.yml, by commas.", metavar="NAMES"
    ),
]
_WHENCE = "ask, env:NAME or fd:N"
Passphrase = Annotated[str | None, typer.Option("--passphrase", help=f"The key's passphrase: {_WHENCE}.")]
Password = Annotated[str | None, typer.Option("--password", help=f"Log in with a password: {_WHENCE}.")]
SudoPassword = Annotated[str | None, typer.Option("--sudo-password", help=f"What sudo asks for: {_WHENCE}.")]
Jump = Annotated[
    str | None, typer.Option("--jump", help="Go through these hosts, in order: user@host[:port],…", metavar="HOSTS")
]
HostKey = Annotated[str | None, typer.Option("--host-key", help="Insist on this host key: SHA256:….")]
AcceptNew = Annotated[bool, typer.Option("--accept-new", help="Accept a host key that was never seen before.")]
Engine = Annotated[str | None, typer.Option("--engine", help="ollama, or embedded (small, ships with us).")]
Archive = Annotated[Path | None, typer.Option("--ollama-archive", help="A local release archive of Ollama.")]
OllamaVersion = Annotated[str | None, typer.Option("--ollama-version", help="An official release to install.")]
Mirror = Annotated[
    str | None,
    typer.Option(
        "--ollama-mirror",
        help="Where the host gets Ollama: a mirror of the releases (URL/vVERSION/…), or one archive.",
        metavar="URL",
    ),
]
ArchiveSum = Annotated[
    str | None, typer.Option("--ollama-sha256", help="Insist on this checksum of the archive.", metavar="HEX")
]
ModelsDir = Annotated[
    str | None, typer.Option("--models-dir", help="Keep models in this folder of the host.", metavar="PATH")
]
AllowReboot = Annotated[
    bool, typer.Option("--allow-reboot", help="The host may be restarted where a GPU's driver needs it.")
]
Gguf = Annotated[Path | None, typer.Option("--gguf", help="A weights file to import under the model's name.")]
Variant = Annotated[str | None, typer.Option("--variant", help="The quantization, for example q4_K_M.")]
Slots = Annotated[int | None, typer.Option("--slots", min=1, max=1024, help="Parallel slots.")]
Context = Annotated[int | None, typer.Option("--context", min=64, help="Context per slot, in tokens.")]
KvType = Annotated[str, typer.Option("--kv-type", help="f16, q8_0 or q4_0.")]
SloName = Annotated[str | None, typer.Option("--slo", help="The latency targets (inventory/slos.yml).")]
WorkloadName = Annotated[str | None, typer.Option("--workload", help="What users do (inventory/workloads.yml).")]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        help="Where to ask for the model's facts: Ollama's registry, or a mirror (http:// for one without TLS).",
        envvar="DEPLOYCTL_REGISTRY",
        metavar="URL",
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="Ask no registry: what it said before, or the catalogue.", envvar="DEPLOYCTL_OFFLINE"
    ),
]
Probe = Annotated[
    bool, typer.Option("--probe/--no-probe", help="Measure the host's memory bandwidth first (CPU plans, 2 s).")
]
BudgetText = Annotated[str, typer.Option("--budget", help="Time for the search: 20m, or quick, standard, certify.")]
MaxUsers = Annotated[int | None, typer.Option("--max-users", min=1, help="Never try more users than this.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="Seed of everything that is drawn.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, max=256, help="Processes that generate load, per machine.")
]
LoadHosts = Annotated[
    list[str] | None,
    typer.Option("--loadgen", help="A host that generates the load (repeatable), or all.", metavar="HOST"),
]
